"""Signals of a cache's rows: vectors of one dimension, and a teacher's token signals in a small form.

    hidden      int8 [tokens, dim + 4]: a token's values in steps of its scale, then the scale's four bytes (float32);
                or float16 [tokens, dim]. hidden-2 is the layer before the last, and so on
    importance  float16 [tokens, 1]: attention weights received, above 0, of sum 1 again when they are read
    selected    int16 [m, 2]: (student position, teacher position)
    grams       float16 [m (m + 1) / 2, layers]: the upper triangle, column by column, so that m moves no pair

A text of T tokens with n pairs, m = n // 3, takes T (dim + 6) + 4 m + m (m + 1) layers bytes instead of heads T T.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypedDict

import numpy as np
import numpy.typing as npt
import torch
from jaxtyping import Float
from torch import Tensor

from distilvec.core.errors import DistilvecError
from distilvec.core.outputs import ModelOutputs, TokenOutputSpec

HIDDEN = "hidden"
OFFSETS = "-offsets"  # appended to the name of a signal of uneven length
_INT8_STEPS = 127  # int8 steps between 0 and a token's largest value
_SCALE_BYTES = 4  # a float32 behind each token's int8 values
_SMALLEST_WEIGHT = np.float16(6e-8)  # of importance: no token loses its weight to float16
_MAX_POSITION = np.iinfo(np.int16).max
Array = npt.NDArray[Any]
Rows = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Signal:
    """`width` values of `dtype` a row; of an `uneven` signal a row has any number of items of `width` values."""

    width: int
    dtype: str
    uneven: bool = False


def file_names(signals: Mapping[str, Signal]) -> list[str]:
    """Names of the files of a shard with these signals."""
    offsets = [name + OFFSETS for name, signal in signals.items() if signal.uneven]
    return ["keys", *signals, *offsets]


@dataclass(frozen=True)
class Ragged:
    """Rows of uneven length: `values` [items, width] end to end, `lengths` [rows] items of each."""

    values: Array
    lengths: Rows

    def __len__(self) -> int:
        return len(self.lengths)

    @property
    def offsets(self) -> Rows:
        """int64 [rows + 1]: the first item of each row, and the end."""
        return np.r_[0, np.cumsum(self.lengths, dtype=np.int64)]

    def take(self, rows: Rows) -> Ragged:
        """These rows, in this order."""
        lengths = self.lengths[rows]
        positions = item_positions(self.offsets[:-1][rows], lengths)
        return Ragged(self.values[positions], lengths)


def join_ragged(parts: Sequence[Ragged]) -> Ragged:
    """Several parts, one after another."""
    values = np.concatenate([part.values for part in parts])
    lengths = np.concatenate([part.lengths for part in parts])
    return Ragged(values, lengths)


class TokenFields(TypedDict, total=False):
    """Fields of ModelOutputs that token signals fill."""

    mask: Tensor
    hidden_layers: dict[int, Tensor]
    importance: Tensor
    selected: Tensor
    grams: dict[int, Tensor]


@dataclass(frozen=True)
class TokenSettings:
    """Token signals of a cache and all that they depend on in addition to the teacher; None means "does not apply".

    `hidden` is the number format of the hidden states of `hidden_layers` (-1: the last). The student's tokenizer and
    `student_max_length` change the pairs, and with them the selected ones and their Gram matrices. `special_tokens` is
    "drop" if these leave the teacher's special tokens out.
    """

    hidden: str | None = None
    hidden_width: int | None = None
    hidden_layers: tuple[int, ...] = ()
    importance: bool = False
    gram_layers: tuple[int, ...] = ()
    divisor: int | None = None
    alignment: str | None = None
    student_tokenizer: str | None = None
    student_max_length: int | None = None
    special_tokens: str | None = None

    @property
    def hidden_names(self) -> dict[int, str]:
        """Names of the hidden states in the cache, by layer."""
        names = {}
        for layer in self.hidden_layers:
            names[layer] = HIDDEN if layer == -1 else f"{HIDDEN}{layer}"
        return names

    @property
    def signals(self) -> dict[str, Signal]:
        """Shape and number format of each signal."""
        signals: dict[str, Signal] = {}
        if self.hidden_width is not None:
            if self.hidden == "int8":
                states = Signal(self.hidden_width + _SCALE_BYTES, "int8", uneven=True)
            else:
                states = Signal(self.hidden_width, "float16", uneven=True)
            for name in self.hidden_names.values():
                signals[name] = states
        if self.importance:
            signals["importance"] = Signal(1, "float16", uneven=True)
        if self.gram_layers:
            signals["selected"] = Signal(2, "int16", uneven=True)
            signals["grams"] = Signal(len(self.gram_layers), "float16", uneven=True)
        return signals

    def items(self, name: str, lengths: Rows, pairs: Rows) -> Rows:
        """Items [n] of a signal of texts with so many tokens and aligned pairs [n]; see `select` in losses/emo.py."""
        if name not in ("selected", "grams"):
            return lengths
        assert self.divisor is not None
        selected = pairs // self.divisor
        selected = np.where(selected > 1, selected, 0) if self.special_tokens == "drop" else np.maximum(selected, 2)
        return selected if name == "selected" else selected * (selected + 1) // 2


def token_settings(
    required: TokenOutputSpec, hidden: str, hidden_size: int | None, student_tokenizer: str, student_max_length: int
) -> TokenSettings:
    """Settings of a cache with these outputs; hidden states are stored as `hidden` (int8 or float16).

    Fields on which none of the outputs depends stay None, so that caches of other students are used again.
    """
    settings = TokenSettings(
        hidden_layers=tuple(sorted(required.hidden, reverse=True)),
        importance=required.importance,
        gram_layers=required.gram_layers,
    )
    if required.hidden:
        settings = replace(settings, hidden=hidden, hidden_width=hidden_size)
    if required.gram_layers:
        settings = replace(
            settings,
            divisor=required.divisor,
            alignment=required.alignment,
            student_tokenizer=student_tokenizer,
            student_max_length=student_max_length,
            special_tokens=None if required.special_tokens else "drop",
        )
    return settings


def compress_tokens(outputs: ModelOutputs, settings: TokenSettings) -> dict[str, Ragged]:
    """Token signals of a batch (float32, padded on the right) in the cache's form, on the CPU."""
    assert outputs.mask is not None
    mask = outputs.mask.cpu().numpy()
    lengths = mask.sum(1, dtype=np.int64)
    signals: dict[str, Ragged] = {}
    pack = _to_int8 if settings.hidden == "int8" else _to_float16
    for layer, name in settings.hidden_names.items():
        states = outputs.hidden_layers[layer].cpu().numpy()
        signals[name] = Ragged(pack(states[mask]), lengths)
    if settings.importance:
        assert outputs.importance is not None
        weights = outputs.importance.cpu().numpy()[mask][:, None]
        signals["importance"] = Ragged(np.maximum(weights.astype(np.float16), _SMALLEST_WEIGHT), lengths)
    if settings.gram_layers:
        assert outputs.selected is not None
        grams = [outputs.grams[layer].cpu().numpy() for layer in settings.gram_layers]
        signals.update(_selection(outputs.selected.cpu().numpy(), grams))
    return signals


def _to_int8(rows: npt.NDArray[np.float32]) -> Array:
    """[tokens, dim] as int8 [tokens, dim + 4]."""
    scales = np.abs(rows).max(1, keepdims=True).astype(np.float32) / np.float32(_INT8_STEPS)
    steps = rows / np.where(scales > 0, scales, 1)
    return np.concatenate([np.rint(steps).astype(np.int8), scales.view(np.int8)], axis=1)


def _to_float16(rows: npt.NDArray[np.float32]) -> Array:
    with np.errstate(over="ignore"):  # an overflow is refused when the shard is stored (store.py)
        return rows.astype(np.float16)


def _selection(selected: Rows, grams: list[npt.NDArray[np.float32]]) -> dict[str, Ragged]:
    """Selected pairs [batch, m, 2] and their Gram matrices ([batch, m, m] a layer), without padding."""
    if selected.max(initial=0) > _MAX_POSITION:
        raise DistilvecError(
            f"found token {selected.max():,}; give at most {_MAX_POSITION:,}.", key="teacher.max_length"
        )
    counts = (selected[..., 0] >= 0).sum(1, dtype=np.int64)
    is_pair = np.arange(selected.shape[1]) < counts[:, None]
    pairs = selected[is_pair].astype(np.int16)

    # Column by column: the first m (m + 1) / 2 items are the triangle of the first m pairs, whatever the padding.
    column, row = np.tril_indices(selected.shape[1])
    sizes = counts * (counts + 1) // 2
    triangles = np.stack([gram[:, row, column] for gram in grams], axis=-1)
    is_item = np.arange(len(row)) < sizes[:, None]
    items = triangles[is_item].astype(np.float16)
    return {"selected": Ragged(pairs, counts), "grams": Ragged(items, sizes)}


def decompress(signals: dict[str, Ragged], settings: TokenSettings, device: torch.device) -> TokenFields:
    """Fields of ModelOutputs from a batch's rows: float32, padded on the right, on `device`."""
    fields = TokenFields()
    lengths = [rows.lengths for name, rows in signals.items() if name.startswith(HIDDEN) or name == "importance"]
    if lengths:
        columns = np.arange(lengths[0].max(initial=0))
        fields["mask"] = torch.from_numpy(columns < lengths[0][:, None]).to(device)
    hidden_layers = {}
    for layer, name in settings.hidden_names.items():
        if name in signals:
            hidden_layers[layer] = _padded(signals[name], device)
    if hidden_layers:
        fields["hidden_layers"] = hidden_layers
    if "importance" in signals:
        weights = _padded(signals["importance"], device)[..., 0]
        fields["importance"] = weights / weights.sum(1, keepdim=True)
    if "selected" in signals:
        selected = _padded(signals["selected"], device, fill=-1)
        squares = _squares(_padded(signals["grams"], device), selected.shape[1])
        fields["selected"] = selected
        fields["grams"] = {layer: squares[..., number] for number, layer in enumerate(settings.gram_layers)}
    return fields


def _padded(rows: Ragged, device: torch.device, fill: float = 0) -> Tensor:
    """Rows as [batch, longest, width] on `device`: float32 with int8 unpacked, or int64."""
    items = torch.from_numpy(rows.values).to(device, non_blocking=True)
    if items.dtype == torch.int8:
        scales = items[:, -_SCALE_BYTES:].contiguous().view(torch.float32)
        items = items[:, :-_SCALE_BYTES].float() * scales
    items = items.float() if items.is_floating_point() else items.to(torch.int64)
    batch = len(rows)
    longest = int(rows.lengths.max(initial=0))
    slots = torch.from_numpy(item_positions(np.arange(batch) * longest, rows.lengths))
    flat = items.new_full((batch * longest, items.shape[1]), fill)
    flat.index_copy_(0, slots.to(device, non_blocking=True), items)
    return flat.view(batch, longest, items.shape[1])


def _squares(triangles: Float[Tensor, "batch items layers"], size: int) -> Float[Tensor, "batch size size layers"]:
    """Symmetric matrices from their upper triangles, column by column."""
    numbers = torch.arange(size, device=triangles.device)
    high = torch.maximum(numbers[:, None], numbers)
    low = torch.minimum(numbers[:, None], numbers)
    return triangles[:, high * (high + 1) // 2 + low]


def item_positions(starts: Rows, lengths: Rows) -> Rows:
    """int64 [items]: positions of the items of rows that begin at `starts` (both [rows])."""
    items_before = np.cumsum(lengths) - lengths
    return np.repeat(starts - items_before, lengths) + np.arange(int(lengths.sum()), dtype=np.int64)
