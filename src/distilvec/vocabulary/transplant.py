"""New tokenizer for a model: the backbone's weights stay, each new row of the embedding table is composed of old rows.

Paper: 003, "... Turkish via Cross-Lingual Tokenizer Surgery and Offline Distillation", section 3.2.
"""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from jaxtyping import Float
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Transformer
from torch import Tensor, nn
from transformers import PreTrainedTokenizerFast

from distilvec.core.errors import DistilvecError, about
from distilvec.models.parts import lengthen, position_limit, position_table
from distilvec.vocabulary.edit import swap_ids
from distilvec.vocabulary.load import OPTION
from distilvec.vocabulary.pieces import Pieces, Surface

Compose = Literal["mean", "weighted", "first", "last"]
Origin = Literal["copied", "composed", "special", "missing"]
_ROWS = 1 << 14  # of the new table computed at once


@dataclass(frozen=True)
class Composition:
    """Old rows of every new token, and their origin.

    "missing" tokens have no piece in the old vocabulary: they get the old unknown token, or no row at all.
    """

    rows: list[list[int]]
    origins: list[Origin]

    @property
    def counts(self) -> dict[str, int]:
        """Return the number of rows by origin."""
        return dict(Counter(self.origins))


def composition(new: Pieces, old: Pieces, limit: int | None = None) -> Composition:
    """Return the old rows i_1, ..., i_k of every new token j.

    E'_j = Compose(E_i1, E_i2, ..., E_ik)                                                           (equation 1)

    Special tokens have the old token of their role, then of their name. Tokens with the same spelling are copied. All
    others have the old tokenizer's pieces of their text. Old tokens from `limit` on have no row (images in Gemma 3).
    """
    if limit is None:
        limit = len(old.tokens)
    rows: list[list[int]] = [[] for _ in new.tokens]
    origins: list[Origin] = ["missing" for _ in new.tokens]
    surfaces: dict[int, Surface] = {}
    same_spelling = old.vocabulary if new.spelling == old.spelling else {}
    for number, token in enumerate(new.tokens):
        if token is None:
            continue
        is_special = number in new.special
        old_number = new.counterpart(number, old) if is_special else same_spelling.get(token)
        if old_number is not None and old_number < limit and (is_special or old_number not in old.special):
            rows[number] = [old_number]
            origins[number] = "special" if is_special else "copied"
            continue
        surface = new.surface(number)
        if surface is not None:
            surfaces[number] = surface
    for (number, surface), pieces in zip(surfaces.items(), old.encode(list(surfaces.values())), strict=True):
        pieces = [piece for piece in pieces if piece < limit]
        if pieces:
            rows[number] = pieces
            origins[number] = "composed"
        elif old.unknown is not None and surface.text:
            rows[number] = [old.unknown]
    return Composition(rows, origins)


def compose_rows(
    table: Float[Tensor, "old dim"], rows: Sequence[Sequence[int]], compose: Compose = "mean", keep_norm: bool = False
) -> Float[Tensor, "new dim"]:
    """Return the new table; a row of a single old one is that row, bit for bit.

    E'_j = 1/k * sum_m E_im                                                             (equation 2, compose="mean")

    Other values of `compose`: "weighted" by k, ..., 1, and the "first" or "last" row alone. `keep_norm` scales E'_j to
    the mean norm of its pieces, which a mean falls short of. A token without rows gets the mean of the old table.
    """
    new_table = table.new_empty(len(rows), table.shape[1])
    norms = table.float().norm(dim=1, keepdim=True) if keep_norm else None
    average = table.float().mean(0).to(table.dtype)
    ends = {"first": slice(1), "last": slice(-1, None)}
    for start in range(0, len(rows), _ROWS):
        pieces = [row[ends.get(compose, slice(None))] for row in rows[start : start + _ROWS]]
        counts = torch.tensor([len(row) for row in pieces])
        part = _weighted_sums(table, pieces, falling=compose == "weighted")
        if norms is not None:
            target = _weighted_sums(norms, pieces, falling=compose == "weighted")
            scaled = part.float() * (target / part.float().norm(dim=1, keepdim=True).clamp_min(1e-12))
            part = torch.where(counts[:, None] > 1, scaled.to(part.dtype), part)
        part[counts == 0] = average
        new_table[start : start + _ROWS] = part
    return new_table


def _weighted_sums(table: Tensor, rows: Sequence[Sequence[int]], falling: bool) -> Tensor:
    """Return the sum of each list of rows with weights of sum 1: equal ones, or proportional to k, ..., 1."""
    weights = [weight for row in rows for weight in _weights(len(row), falling)]
    ids = torch.tensor([number for row in rows for number in row], dtype=torch.long)
    offsets = torch.tensor([0, *(len(row) for row in rows[:-1])]).cumsum(0)
    scale = torch.tensor(weights, dtype=table.dtype)
    sums: Tensor = nn.functional.embedding_bag(ids, table, offsets, mode="sum", per_sample_weights=scale)
    return sums


def _weights(count: int, falling: bool) -> list[float]:
    weights = range(count, 0, -1) if falling else [1] * count
    return [weight / sum(weights) for weight in weights]


def transplant_tokens(
    model: SentenceTransformer,
    tokenizer: PreTrainedTokenizerFast,
    compose: Compose = "mean",
    keep_norm: bool = False,
    max_length: int | None = None,
) -> tuple[SentenceTransformer, Composition]:
    """Return a copy of the model with this tokenizer, and the composition of its embedding table.

    All weights but the input embeddings and an output layer over the vocabulary stay. `max_length` in tokens; the old
    one by default.
    """
    if tokenizer.pad_token is None and model.tokenizer.pad_token is not None:
        raise DistilvecError(
            "the new tokenizer has no padding token, which batches need.",
            "Set its pad_token, save it, and give that.",
            key=OPTION,
        )
    table = model[0].auto_model.get_input_embeddings().weight
    shared = {id(part): part for part in (table, model.tokenizer)}  # large, and replaced below
    changed = copy.deepcopy(model, shared)
    composed = give_tokenizer(changed[0], tokenizer, compose, keep_norm)
    changed.max_seq_length = model.max_seq_length
    if max_length is not None:
        check_length(changed[0], max_length)
        lengthen(changed[0], max_length)
        changed.tokenizer.model_max_length = max_length
    return changed, composed


def give_tokenizer(
    first: Transformer, tokenizer: PreTrainedTokenizerFast, compose: Compose = "mean", keep_norm: bool = False
) -> Composition:
    """Put another tokenizer, and an embedding table composed for it, into a model's first module; see `transplant`."""
    with about("student.model"):
        old = Pieces(first.tokenizer, "the model's tokenizer")
    with about(OPTION):
        new = Pieces(tokenizer, "the new tokenizer").dense()
    missing = [str(old.tokens[number]) for number in old.around if old.counterpart(number, new) is None]
    if missing:
        roles = ", ".join(f"{role} {new.tokens[number]}" for role, number in new.roles.items()) or "none"
        raise DistilvecError(
            f"the model reads texts with {' and '.join(missing)}, which the new tokenizer has no token for. Its "
            f"special tokens by role: {roles}.",
            "Give it one of that role (cls or bos; sep or eos).",
            key=OPTION,
        )
    backbone = first.auto_model
    embeddings = backbone.get_input_embeddings()
    positions = position_table(backbone)
    pad = tokenizer.pad_token_id
    # RoBERTa counts positions from the padding id: another id would shift all positions, so the id stays
    positions_follow_padding = positions is not None and positions.padding_idx is not None
    if positions_follow_padding and pad is not None and embeddings.padding_idx not in (None, pad):
        tokenizer = swap_ids(tokenizer, pad, embeddings.padding_idx)
        new = Pieces(tokenizer, "the new tokenizer")
    table = embeddings.weight
    composed = composition(new, old, len(table))
    with torch.no_grad():
        tables = []
        for part in (table, *_output(backbone, table), *_tables_of_layers(backbone)):
            matrix = part.detach().reshape(len(part), -1)
            if len(part) < len(table):  # Gemma 3n reads row 0 for the tokens behind its second table
                matrix = torch.cat([matrix, matrix[:1].expand(len(table) - len(part), -1)])
            rows = compose_rows(matrix, composed.rows, compose, keep_norm and part.dim() > 1)
            tables.append((part, rows.reshape(-1, *part.shape[1:])))
    put_tables(backbone, tables)
    text = backbone.config.get_text_config()
    if hasattr(text, "vocab_size_per_layer_input"):
        text.vocab_size_per_layer_input = text.vocab_size
    _name_special_tokens(backbone, tokenizer)
    first.processor = tokenizer
    return composed


def check_length(first: Transformer, length: int) -> None:
    """Raise DistilvecError if the module's positions are learned and fewer than `length`."""
    limit = position_limit(first.auto_model)
    if limit is not None and length > limit:
        raise DistilvecError(
            f"a maximum length of {length} is more than the model's {limit} learned positions.",
            "Give at most that.",
            key="max_length",
        )


def _output(backbone: Any, table: Tensor) -> list[Tensor]:
    """Return the parameters per token of an output layer over the vocabulary: a table of its own, biases."""
    layer = backbone.get_output_embeddings()
    if layer is None:
        return []
    owners = [module for module in backbone.modules() if any(child is layer for child in module.children())]
    biases = (getattr(module, "bias", None) for module in (layer, *owners))  # BERT has a second bias
    parts = {id(part): part for part in (layer.weight, *biases) if isinstance(part, Tensor) and part is not table}
    return [part for part in parts.values() if len(part) == len(table)]


def _tables_of_layers(backbone: Any) -> list[Tensor]:
    """Return the tables by token beside the input embeddings, which Gemma 3n and Gemma 4 have for their layers."""
    rows = getattr(backbone.config.get_text_config(), "vocab_size_per_layer_input", None)
    inputs = backbone.get_input_embeddings()
    tables = [module for module in backbone.modules() if isinstance(module, nn.Embedding) and module is not inputs]
    return [table.weight for table in tables if table.num_embeddings == rows]


def put_tables(backbone: Any, tables: Sequence[tuple[Tensor, Tensor]]) -> None:
    """Replace old tables by new ones [tokens, ...], also where they are tied, and update sizes."""
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
    for config in (backbone.config, backbone.config.get_text_config()):
        config.vocab_size = size


def _name_special_tokens(backbone: Any, tokenizer: PreTrainedTokenizerFast) -> None:
    """Write the tokenizer's numbers of special tokens where the backbone states some."""
    for config in (backbone.config, backbone.config.get_text_config()):
        for role in ("pad", "bos", "eos", "cls", "sep"):
            if getattr(config, f"{role}_token_id", None) is not None:
                setattr(config, f"{role}_token_id", getattr(tokenizer, f"{role}_token_id"))
    embeddings = backbone.get_input_embeddings()
    if embeddings.padding_idx is not None:
        embeddings.padding_idx = tokenizer.pad_token_id
