"""A teacher's token signals: attention received by each token, selected pairs, Gram matrices of the selected rows.

Pure functions, without a loop over texts and without waiting for the device.
"""

from __future__ import annotations

from dataclasses import replace

from jaxtyping import Bool
from torch import Tensor

from distilvec.core.batch import Alignment
from distilvec.core.errors import DistilvecError
from distilvec.core.outputs import ModelOutputs, OutputSpec, TokenOutputSpec
from distilvec.losses.emo import importance, select, selected_gram


def token_reading(required: TokenOutputSpec | None) -> OutputSpec:
    """Outputs of the model from which `token_signals` computes these."""
    if required is None:
        return OutputSpec()
    last = {-1} if required.importance or required.gram_layers else set[int]()
    return OutputSpec(hidden_layers=required.hidden, attention_layers=tuple(sorted({*last, *required.gram_layers})))


def token_signals(
    read: ModelOutputs,
    required: TokenOutputSpec | None,
    alignment: Alignment | None,
    ordinary: Bool[Tensor, "batch tokens"] | None = None,
) -> ModelOutputs:
    """`read` (the outputs of `token_reading`) with importance, selected pairs and Gram matrices.

    `ordinary` is False at the teacher's special tokens; pairs of those are selected only without `ordinary`.
    Errors: DistilvecError for Gram matrices of texts without an alignment.
    """
    if required is None or not (required.importance or required.gram_layers):
        return read
    assert read.mask is not None
    received = importance(read.attentions[-1], read.mask)
    if not required.gram_layers:
        return replace(read, importance=received)
    if alignment is None:
        raise DistilvecError(
            "Gram matrices of a teacher's tokens need an alignment; this batch has none.",
            "Give the teacher and the student fast tokenizers.",
            key="method.name",
        )
    selected = select(alignment.pairs, received, required.divisor, ordinary)
    grams = {layer: selected_gram(read.attentions[layer], selected[..., 1]) for layer in required.gram_layers}
    return replace(read, importance=received if required.importance else None, selected=selected, grams=grams)
