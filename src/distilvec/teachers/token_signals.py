"""A teacher's token signals: attention received by each token, selected pairs, Gram matrices of the selected rows.

Pure functions, without a loop over texts and without waiting for the device.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from distilvec.core.batch import Alignment
from distilvec.core.errors import DistilvecError
from distilvec.core.outputs import ModelOutputs, OutputSpec, TokenOutputSpec
from distilvec.losses.cka import centred_gram, unit_gram

Pairs = Int[Tensor, "batch pairs 2"]
Importance = Float[Tensor, "batch tokens"]


def importance(attention: Float[Tensor, "batch tokens tokens"], mask: Bool[Tensor, "batch tokens"]) -> Importance:
    """Attention that each token receives from all tokens and itself, of sum 1; 0 at padding (EMO, eq. 6 and 15).

    `attention` is a head-averaged map; rows of padding do not count.

    Note: the authors' code takes the softmax of the sums, so that nearly all weight is one token's; the paper divides.
    """
    here = mask.to(attention.dtype)
    received = torch.bmm(here[:, None], attention)[:, 0] * here
    return received / received.sum(1, keepdim=True)


def student_importance(
    importance: Float[Tensor, "batch _teacher_tokens"], pairs: Pairs, mask: Bool[Tensor, "batch student_tokens"]
) -> Float[Tensor, "batch student_tokens"]:
    """Importance of the student's tokens, of sum 1: that of its teacher's token, else the smallest one (EMO, 3.2).

    `mask` is the student's. The importance of several partners is added up. The smallest one is taken from the
    teacher's tokens with any importance: padding has none.
    """
    student, teacher = pairs.clamp_min(0).unbind(-1)
    there = (pairs[..., 0] >= 0).to(importance.dtype)
    empty = importance.new_zeros(mask.shape)
    received = empty.scatter_add(1, student, importance.gather(1, teacher) * there)
    matched = empty.scatter_add(1, student, there) > 0
    smallest = importance.where(importance > 0, torch.inf).amin(1, keepdim=True)
    found = received.where(matched, smallest) * mask
    return found / found.sum(1, keepdim=True)


def select(pairs: Pairs, importance: Importance, divisor: int) -> Int[Tensor, "batch selected 2"]:
    """The max(2, n // divisor) of a text's n pairs (n, if fewer than 2) with the most important teacher tokens.

    In descending importance, ties in the order of `pairs`; -1 fills up. The shape depends on the shape of `pairs`
    alone.
    """
    there = pairs[..., 0] >= 0
    weights = importance.gather(1, pairs[..., 1].clamp_min(0)).where(there, -1.0)
    order = weights.argsort(dim=1, descending=True, stable=True)
    most = min(pairs.shape[1], max(2, pairs.shape[1] // divisor))
    chosen = pairs.gather(1, order[:, :most, None].expand(-1, -1, 2))
    count = (there.sum(1) // divisor).clamp_min(2)  # missing pairs come last, and are -1 themselves
    kept = torch.arange(most, device=pairs.device) < count[:, None]
    return chosen.where(kept[..., None], -1)


def selected_gram(
    attention: Float[Tensor, "batch tokens tokens"], rows: Int[Tensor, "batch selected"]
) -> Float[Tensor, "batch selected selected"]:
    """H A A' H of the rows `rows` (-1 fills up) of a map, of unit Frobenius norm; 0 at -1 (EMO, eq. 9-12)."""
    chosen = attention.gather(1, rows.clamp_min(0)[..., None].expand(-1, -1, attention.shape[2]))
    return unit_gram(centred_gram(chosen, rows >= 0))


def token_reading(required: TokenOutputSpec | None) -> OutputSpec:
    """Outputs of the model from which `token_signals` computes these."""
    if required is None:
        return OutputSpec()
    last = {-1} if required.importance or required.gram_layers else set[int]()
    return OutputSpec(hidden_layers=required.hidden, attention_layers=tuple(sorted({*last, *required.gram_layers})))


def token_signals(read: ModelOutputs, required: TokenOutputSpec | None, alignment: Alignment | None) -> ModelOutputs:
    """`read` (the outputs of `token_reading`) with importance, selected pairs and Gram matrices.

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
            "[method.name] Gram matrices of a teacher's tokens need an alignment; this batch has none. "
            "Give the teacher and the student fast tokenizers."
        )
    selected = select(alignment.pairs, received, required.divisor)
    grams = {layer: selected_gram(read.attentions[layer], selected[..., 1]) for layer in required.gram_layers}
    return replace(read, importance=received if required.importance else None, selected=selected, grams=grams)
