"""Another tokenizer for a model: every weight of the backbone stays, each new row of the embedding table is composed of old ones.

Paper: "Adapting Multilingual Embedding Models to Turkish via Cross-Lingual Tokenizer Surgery and Offline Distillation", 3.2.
"""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import torch
from jaxtyping import Float
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Transformer
from torch import Tensor, nn
from transformers import PreTrainedTokenizerFast

from distilvec.core.errors import DistilvecError
from distilvec.models.limits import lengthen, position_limit
from distilvec.vocabulary.edit import swap_ids
from distilvec.vocabulary.pieces import OPTION, Pieces, Surface

Compose = Literal["mean", "weighted", "first", "last"]
Origin = Literal["copied", "composed", "special", "missing"]
_ROWS = 1 << 14  # of the new table made at once


@dataclass(frozen=True)
class Composition:
    """How each row of the new table is made: of the old rows `ids`, row by row from `offsets` [rows + 1] on, with `weights` of sum 1.

    A token of origin "missing" has no piece: it is made of the old unknown token, which the old tokenizer would have read, or, where
    there is none or the token stands for no text at all (a space's mark), of nothing: such a row becomes the mean of all old rows.
    """

    ids: npt.NDArray[np.int64]
    weights: npt.NDArray[np.float32]
    offsets: npt.NDArray[np.int64]
    origins: list[Origin]

    @property
    def counts(self) -> dict[str, int]:
        """How many rows have which origin."""
        return dict(Counter(self.origins))


def composition(new: Pieces, old: Pieces, compose: Compose = "mean", limit: int | None = None) -> Composition:
    """Which of the old tokenizer's tokens each of the new one's is made of.

    Special tokens go by their role, then by their name; tokens that are written alike are copied; all others have the old
    tokenizer's pieces of the same text, in the form it has where the token stands in a text: "mean" of them, "weighted" by k, ..., 1,
    the "first" or the "last" one. Of an old table of `limit` rows, tokens from there on have none (Gemma 3's for images).
    """
    limit = len(old.tokens) if limit is None else limit
    rows: list[list[int]] = [[] for _ in new.tokens]
    origins: list[Origin] = ["missing" for _ in new.tokens]
    surfaces: dict[int, Surface] = {}
    alike = new.marks == old.marks
    for number, token in enumerate(new.tokens):
        if token is None:
            continue
        if number in new.special:
            found = new.counterpart(number, old)
            if found is not None and found < limit:
                rows[number], origins[number] = [found], "special"
            continue
        same = old.vocabulary.get(token) if alike else None
        if same is not None and same not in old.special and same < limit:
            rows[number], origins[number] = [same], "copied"
        elif (surface := new.surface(number)) is not None:
            surfaces[number] = surface
    for number, made in zip(surfaces, old.encode(list(surfaces.values())), strict=True):
        if pieces := [piece for piece in made if piece < limit]:
            rows[number], origins[number] = _chosen(pieces, compose), "composed"
        elif old.unknown is not None and surfaces[number].text:
            rows[number] = [old.unknown]
    weights = [_weights(len(row), compose) for row in rows]
    return Composition(
        np.array([number for row in rows for number in row], dtype=np.int64),
        np.concatenate([np.zeros(0, dtype=np.float32), *weights]),
        np.r_[0, np.cumsum([len(row) for row in rows], dtype=np.int64)],
        origins,
    )


def compose_rows(
    table: Float[Tensor, "old width"], made: Composition, keep_norm: bool = False
) -> Float[Tensor, "new width"]:
    """The new table, a block of rows at a time; a row of a single old one is that one, bit for bit.

    `keep_norm` brings each composed row to the mean norm of its pieces, which the mean of several vectors falls short of.
    """
    rows = len(made.origins)
    found = table.new_empty(rows, table.shape[1])
    ids, weights = torch.from_numpy(made.ids), torch.from_numpy(made.weights).to(table.dtype)
    mean = table.float().mean(0).to(table.dtype)
    norms = table.float().norm(dim=1, keepdim=True) if keep_norm else None
    for first in range(0, rows, _ROWS):
        last = min(rows, first + _ROWS)
        begin, end = int(made.offsets[first]), int(made.offsets[last])
        offsets = torch.from_numpy(made.offsets[first:last] - begin)
        part = _bag(table, ids[begin:end], offsets, weights[begin:end])
        if norms is not None:
            wanted = _bag(norms, ids[begin:end], offsets, weights[begin:end].float())
            several = torch.from_numpy(np.diff(made.offsets[first : last + 1]) > 1)[:, None]
            scaled = part.float() * (wanted / part.float().norm(dim=1, keepdim=True).clamp_min(1e-12))
            part = torch.where(several, scaled.to(part.dtype), part)
        empty = torch.from_numpy(np.diff(made.offsets[first : last + 1]) == 0)
        part[empty] = mean
        found[first:last] = part
    return found


def transplant(
    model: SentenceTransformer,
    tokenizer: PreTrainedTokenizerFast,
    compose: Compose = "mean",
    keep_norm: bool = False,
    max_length: int | None = None,
) -> tuple[SentenceTransformer, Composition]:
    """A copy of the model with this tokenizer, and how its embedding table was made. The model itself is not changed.

    Everything but the input embeddings and, where there is one, the output layer over the vocabulary is as it was. `max_length` in
    tokens; the old limit by default.
    Errors: DistilvecError for a slow tokenizer, ids with holes, a tokenizer without a token that the model's own puts around a
    text, or without a padding token where the model's has one, or more tokens than the model has positions.
    """
    if tokenizer.pad_token is None and model.tokenizer.pad_token is not None:
        raise DistilvecError(
            f"[{OPTION}] the new tokenizer has no padding token, which batches need. Set its pad_token, save it, and give that."
        )
    table = model[0].auto_model.get_input_embeddings().weight
    changed = copy.deepcopy(
        model, {id(part): part for part in (table, model.tokenizer)}
    )  # both large, and replaced at once
    length = model.max_seq_length
    made = give_tokenizer(changed[0], tokenizer, compose, keep_norm)
    changed.max_seq_length = length
    if max_length is not None:
        extend(changed[0], max_length)
    return changed, made


def give_tokenizer(
    first: Transformer, tokenizer: PreTrainedTokenizerFast, compose: Compose = "mean", keep_norm: bool = False
) -> Composition:
    """Put another tokenizer, and an embedding table composed for it, into a model's first module; see `transplant`."""
    old, new = (
        Pieces(first.tokenizer, "the model's tokenizer", "student.model"),
        Pieces(tokenizer, "the new tokenizer").dense(),
    )
    if lacking := [str(old.tokens[number]) for number in old.frame if old.counterpart(number, new) is None]:
        raise DistilvecError(
            f"[{OPTION}] the model reads texts with {' and '.join(lacking)}, which the new tokenizer has no token for. "
            f"Its special tokens by role: {', '.join(f'{role} {new.tokens[number]}' for role, number in new.roles.items()) or 'none'}. "
            "Give it one of that role (cls or bos before a text, sep or eos behind it), and save it with that."
        )
    backbone = first.auto_model
    if _positions_follow_padding(
        backbone
    ):  # positions are counted from the padding token's id: it has to stay where it was
        pad, wanted = tokenizer.pad_token_id, backbone.get_input_embeddings().padding_idx
        if pad is not None and wanted is not None and pad != wanted:
            tokenizer = swap_ids(tokenizer, pad, wanted)
            new = Pieces(tokenizer, "the new tokenizer")
    table = backbone.get_input_embeddings().weight
    made = composition(new, old, compose, len(table))
    with torch.no_grad():
        fresh = [(table, compose_rows(table.detach(), made, keep_norm))]
        for part in _output(backbone, table):
            rows = compose_rows(part.detach().reshape(len(part), -1), made, keep_norm and part.dim() > 1)
            fresh.append((part, rows.reshape(-1, *part.shape[1:])))
    _put(backbone, fresh, tokenizer)
    first.processor = tokenizer
    return made


def extend(first: Transformer, length: int) -> None:
    """Let a model's first module read so many tokens of a text; errors as `check_length`."""
    check_length(first, length)
    lengthen(first, length)
    first.tokenizer.model_max_length = length


def check_length(first: Transformer, length: int) -> None:
    """DistilvecError where the module's positions are learned and fewer than `length`."""
    limit = position_limit(first.auto_model)
    if limit is not None and length > limit:
        raise DistilvecError(
            f"[max_length] a maximum length of {length} is more than the model's {limit} learned positions; only rotary and relative ones "
            "go on beyond what they were trained on. Give at most that."
        )


def _output(backbone: Any, table: Tensor) -> list[Tensor]:
    """What an output layer over the vocabulary has beside the input table that it may share: a table of its own, a bias."""
    layer = backbone.get_output_embeddings()
    if layer is None:
        return []
    owners = [
        module for module in backbone.modules() if any(child is layer for child in module.children())
    ]  # BERT's has a second bias
    parts = {id(part): part for part in (layer.weight, *(getattr(module, "bias", None) for module in (layer, *owners)))}
    return [
        part for part in parts.values() if isinstance(part, Tensor) and part is not table and len(part) == len(table)
    ]


def _put(backbone: Any, tables: Sequence[tuple[Tensor, Tensor]], tokenizer: PreTrainedTokenizerFast) -> None:
    """New tables [tokens, ...] in the places of old ones; every parameter that is the same tensor, so tied in, becomes the same new one.

    Sizes and special tokens in the configuration follow. Other tables by token id than those given stay as they are.
    """
    fresh = {id(old): nn.Parameter(rows, requires_grad=old.requires_grad) for old, rows in tables}
    size = len(tables[0][1])
    for module in backbone.modules():
        for name, parameter in list(module.named_parameters(recurse=False)):
            if id(parameter) in fresh:
                setattr(module, name, fresh[id(parameter)])
                if isinstance(module, nn.Embedding):
                    module.num_embeddings = size
                elif isinstance(module, nn.Linear):
                    module.out_features = size
    configs = {id(config): config for config in (backbone.config, backbone.config.get_text_config())}
    for config in configs.values():
        config.vocab_size = size
        for role in ("pad", "bos", "eos", "cls", "sep"):
            if getattr(config, f"{role}_token_id", None) is not None:
                setattr(config, f"{role}_token_id", getattr(tokenizer, f"{role}_token_id"))
    embeddings = backbone.get_input_embeddings()
    if embeddings.padding_idx is not None:
        embeddings.padding_idx = tokenizer.pad_token_id


def _positions_follow_padding(backbone: Any) -> bool:
    """Whether positions begin behind the padding token's id, as RoBERTa's and its kin's do."""
    return any(
        isinstance(module, nn.Embedding) and module.padding_idx is not None
        for name, module in backbone.named_modules()
        if name.rsplit(".", 1)[-1] == "position_embeddings"
    )


def _bag(table: Tensor, ids: Tensor, offsets: Tensor, weights: Tensor) -> Tensor:
    if len(ids) == 0:
        return table.new_zeros(len(offsets), table.shape[1])
    found: Tensor = nn.functional.embedding_bag(ids, table, offsets, mode="sum", per_sample_weights=weights)
    return found


def _chosen(pieces: list[int], compose: Compose) -> list[int]:
    return pieces[:1] if compose == "first" else pieces[-1:] if compose == "last" else pieces


def _weights(count: int, compose: Compose) -> npt.NDArray[np.float32]:
    falling = np.arange(count, 0, -1, dtype=np.float64) if compose == "weighted" else np.ones(count)
    return (falling / max(falling.sum(), 1)).astype(np.float32)
