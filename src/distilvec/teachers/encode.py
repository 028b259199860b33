"""Running a SentenceTransformer without the costs of `encode`: token-sorted batches, no padding, no mask where none is needed.

Measured against `encode` (all-MiniLM-L6-v2, short texts with a long tail): batches sorted by characters compute half as
many positions again as there are tokens; here they are cut by exact length, so nearly none is padding.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import chain
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from sentence_transformers import SentenceTransformer
from torch import Tensor
from transformers import PreTrainedModel

from distilvec.core.batch import Text
from distilvec.models.load import evaluating

CPU_TOKENS = 2048  # more in a batch falls out of the processor's cache
_CPU_FLOOR = 256  # fewer tokens than this are not worth a batch of their own
_TOKENIZE = 1024  # texts tokenised together


class Tokens(NamedTuple):
    """Tokens end to end; `offsets` [n + 1]. `types` [tokens] is 1 in the second text of a pair.

    `types` is None where no text is a pair, or the model knows no types.
    """

    ids: npt.NDArray[np.int32]
    offsets: npt.NDArray[np.int64]
    types: npt.NDArray[np.int8] | None = None


class Forward:
    """A model's tokenizer and modules, called directly. Make one with `direct`."""

    def __init__(self, model: SentenceTransformer, batch_tokens: int, max_length: int, bfloat16: bool) -> None:
        self.model, self.batch_tokens, self.max_length, self.bfloat16 = model, batch_tokens, max_length, bfloat16
        first = model[0]
        self.backbone: PreTrainedModel = first.auto_model
        modes = getattr(model[1], "pooling_mode", None) if len(model) > 1 else None
        ours = type(self.backbone).__module__.startswith("transformers.")
        self.keeps_mask = not ours or modes not in ("mean", "cls") or first.tokenizer.padding_side == "left"

    def run(
        self, texts: Sequence[Text], pre_dense: bool, progress: Callable[[int], None] | None = None
    ) -> dict[str, npt.NDArray[np.float32]]:
        """float32 [n, width] "embedding" (before any cut of dimensions) and, if asked for, "pre_dense"; order kept."""
        device = self.model.device
        tokens = self.tokenize(texts)
        lengths = np.diff(tokens.offsets)
        budget, floor = (
            (min(self.batch_tokens, CPU_TOKENS), _CPU_FLOOR)
            if device.type == "cpu"
            else (self.batch_tokens, self.batch_tokens)
        )
        results: list[tuple[npt.NDArray[np.int64], dict[str, Tensor]]] = []
        done = 0
        with evaluating(self.model):
            for rows in plan_batches(lengths, budget, floor):
                results.append((rows, self._batch(tokens, rows, device, pre_dense)))
                done += len(rows)
                if progress:
                    progress(done)
        signals: dict[str, npt.NDArray[np.float32]] = {}
        for rows, found in results:
            for name, values in found.items():
                signals.setdefault(name, np.empty((len(texts), values.shape[1]), dtype=np.float32))[rows] = (
                    values.cpu().numpy()
                )
        return signals

    def tokenize(self, texts: Sequence[Text]) -> Tokens:
        """Token ids with special tokens, truncated as the tokenizer does; an empty text becomes one unknown token."""
        tokenizer = self.model[0].tokenizer
        blank = tokenizer.unk_token_id if tokenizer.unk_token_id is not None else (tokenizer.pad_token_id or 0)
        parts, types, lengths = [], [], []
        typed = any(isinstance(text, tuple) for text in texts) and "token_type_ids" in tokenizer.model_input_names
        for start in range(0, len(texts), _TOKENIZE):
            found = tokenizer(
                list(texts[start : start + _TOKENIZE]),
                truncation=True,
                max_length=self.max_length,
                padding=False,
                return_attention_mask=False,
                return_token_type_ids=typed,
            )
            encoded = [row or [blank] for row in found["input_ids"]]
            lengths += [len(row) for row in encoded]
            parts.append(np.fromiter(chain.from_iterable(encoded), dtype=np.int32, count=sum(map(len, encoded))))
            if typed:
                types.append(
                    np.fromiter(chain.from_iterable(row or [0] for row in found["token_type_ids"]), dtype=np.int8)
                )
        offsets = np.zeros(len(texts) + 1, dtype=np.int64)
        np.cumsum(lengths, out=offsets[1:])
        return Tokens(
            np.concatenate(parts) if parts else np.empty(0, dtype=np.int32),
            offsets,
            np.concatenate(types) if types else None,
        )

    def _batch(
        self, tokens: Tokens, rows: npt.NDArray[np.int64], device: torch.device, pre_dense: bool
    ) -> dict[str, Tensor]:
        """One batch through all modules; rows are sorted by length, longest first."""
        tokenizer, (ids, offsets, types) = self.model[0].tokenizer, tokens
        lengths = offsets[rows + 1] - offsets[rows]
        columns = np.arange(lengths[0])
        shift = (lengths[0] - lengths)[:, None] if tokenizer.padding_side == "left" else 0
        real = (columns >= shift) & (columns < shift + lengths[:, None])
        batch = np.full(real.shape, tokenizer.pad_token_id or 0, dtype=np.int64)
        places = (offsets[rows][:, None] + columns - shift)[real]
        batch[real] = ids[places]
        inputs = {"input_ids": torch.from_numpy(batch).to(device)}
        if types is not None:
            kinds = np.zeros(real.shape, dtype=np.int64)
            kinds[real] = types[places]
            inputs["token_type_ids"] = torch.from_numpy(kinds).to(device)
        mask = torch.from_numpy(real.astype(np.int64)).to(device)
        needed = mask if self.keeps_mask or not real.all() else None
        with torch.autocast(device.type, torch.bfloat16, enabled=self.bfloat16):
            states = self.backbone(**inputs, attention_mask=needed, return_dict=True).last_hidden_state
        return self._head({**inputs, "token_embeddings": states.float(), "attention_mask": mask}, pre_dense)

    def _head(self, features: dict[str, Any], pre_dense: bool) -> dict[str, Tensor]:
        """The modules after the backbone, in fp32."""
        signals = {}
        for module in list(self.model)[1:]:
            if pre_dense and "pre_dense" not in signals and type(module).__name__ == "Dense":
                signals["pre_dense"] = features["sentence_embedding"]
            features = module(features)
        return {"embedding": features["sentence_embedding"].float(), **signals}


def plan_batches(lengths: npt.NDArray[np.int64], budget: int, floor: int) -> list[npt.NDArray[np.int64]]:
    """Rows in batches, longest first: at most `budget` positions (or one row), other lengths only below `floor` positions."""
    order = np.argsort(-lengths, kind="stable")
    sizes = lengths[order]
    batches, start = [], 0
    while start < len(order):
        longest = int(sizes[start])
        alike = int(np.searchsorted(-sizes, -longest, side="right"))
        end = min(max(alike, start + floor // longest), start + max(1, budget // longest), len(order))
        batches.append(order[start:end])
        start = end
    return batches


def runs_directly(model: SentenceTransformer) -> bool:
    """Whether this way gives what `encode` gives: a plain text transformer whose tokenizer needs nothing but its ids."""
    first = model[0]
    if type(first).__name__ != "Transformer" or not isinstance(getattr(first, "auto_model", None), PreTrainedModel):
        return False
    modes = getattr(first, "modality_config", {})
    text = modes.get("text", {})
    output = text.get("method_output_name")
    special = ("query_length", "document_length", "query_expansion", "processing_kwargs")
    if (
        "message" in modes
        or text.get("method") != "forward"
        or output not in ("last_hidden_state", ("last_hidden_state",), ["last_hidden_state"])
        or first.module_output_name != "token_embeddings"
        or any(getattr(first, name, None) for name in special)
        or getattr(first.auto_model.config, "output_hidden_states", False)
    ):
        return False
    probe = first.tokenizer(["a text of some words"])
    return set(probe) <= {"input_ids", "attention_mask", "token_type_ids"} and not any(
        chain(*probe.get("token_type_ids", []))
    )
