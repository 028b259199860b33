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
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from jaxtyping import Float
from torch import Tensor

from distilvec.core.errors import DistilvecError
from distilvec.core.outputs import ModelOutputs, TokenOutputSpec

HIDDEN = "hidden"
OFFSETS = "-offsets"  # appended to the name of a signal of uneven length
_STEPS = 127
_SMALLEST = np.float16(6e-8)
_LONGEST = np.iinfo(np.int16).max
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
    return ["keys", *signals, *(name + OFFSETS for name, signal in signals.items() if signal.uneven)]


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
        return Ragged(self.values[item_positions(self.offsets[:-1][rows], lengths)], lengths)


def join(parts: Sequence[Ragged]) -> Ragged:
    """Several parts, one after another."""
    return Ragged(np.concatenate([part.values for part in parts]), np.concatenate([part.lengths for part in parts]))


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
        return {layer: HIDDEN if layer == -1 else f"{HIDDEN}{layer}" for layer in self.hidden_layers}

    @property
    def signals(self) -> dict[str, Signal]:
        """Shape and number format of each signal."""
        found: dict[str, Signal] = {}
        if self.hidden_width is not None:
            packed = self.hidden == "int8"
            states = Signal(self.hidden_width + 4 * packed, "int8" if packed else "float16", uneven=True)
            found |= dict.fromkeys(self.hidden_names.values(), states)
        if self.importance:
            found["importance"] = Signal(1, "float16", uneven=True)
        if self.gram_layers:
            found["selected"] = Signal(2, "int16", uneven=True)
            found["grams"] = Signal(len(self.gram_layers), "float16", uneven=True)
        return found


def token_settings(
    required: TokenOutputSpec, hidden: str, hidden_size: int | None, student_tokenizer: str, student_max_length: int
) -> TokenSettings:
    """Settings of a cache with these outputs; hidden states are stored as `hidden` (int8 or float16)."""
    kept: dict[str, Any] = {"hidden": hidden, "hidden_width": hidden_size} if required.hidden else {}
    if required.gram_layers:
        kept |= {"divisor": required.divisor, "alignment": required.alignment}
        kept |= {"student_tokenizer": student_tokenizer, "student_max_length": student_max_length}
        kept |= {} if required.special_tokens else {"special_tokens": "drop"}
    layers = tuple(sorted(required.hidden, reverse=True))
    return TokenSettings(hidden_layers=layers, importance=required.importance, gram_layers=required.gram_layers, **kept)


def compress(outputs: ModelOutputs, settings: TokenSettings) -> dict[str, Ragged]:
    """Token signals of a batch (float32, padded on the right) in the cache's form, on the CPU."""
    assert outputs.mask is not None
    mask = outputs.mask.cpu().numpy()
    lengths = mask.sum(1, dtype=np.int64)
    found: dict[str, Ragged] = {}
    pack = _to_int8 if settings.hidden == "int8" else _to_float16
    for layer, name in settings.hidden_names.items():
        found[name] = Ragged(pack(outputs.hidden_layers[layer].cpu().numpy()[mask]), lengths)
    if settings.importance:
        assert outputs.importance is not None
        received = outputs.importance.cpu().numpy()[mask][:, None]
        found["importance"] = Ragged(np.maximum(received.astype(np.float16), _SMALLEST), lengths)
    if settings.gram_layers:
        assert outputs.selected is not None
        grams = [outputs.grams[layer].cpu().numpy() for layer in settings.gram_layers]
        found |= _selection(outputs.selected.cpu().numpy(), grams)
    return found


def _to_int8(rows: npt.NDArray[np.float32]) -> Array:
    """[tokens, dim] as int8 [tokens, dim + 4]."""
    scales = np.abs(rows).max(1, keepdims=True).astype(np.float32) / np.float32(_STEPS)
    steps = rows / np.where(scales > 0, scales, 1)
    return np.concatenate([np.rint(steps).astype(np.int8), scales.view(np.int8)], axis=1)


def _to_float16(rows: npt.NDArray[np.float32]) -> Array:
    with np.errstate(over="ignore"):  # overflows are refused when they are stored
        return rows.astype(np.float16)


def _selection(selected: Rows, grams: list[npt.NDArray[np.float32]]) -> dict[str, Ragged]:
    """Selected pairs [batch, m, 2] and their Gram matrices ([batch, m, m] a layer), without padding."""
    if selected.max(initial=0) > _LONGEST:
        raise DistilvecError("teacher.max_length", f"found token {selected.max():,}; give at most {_LONGEST:,}.")
    counts = (selected[..., 0] >= 0).sum(1, dtype=np.int64)
    pairs = selected[np.arange(selected.shape[1]) < counts[:, None]].astype(np.int16)
    column, row = np.tril_indices(selected.shape[1])
    sizes = counts * (counts + 1) // 2
    triangles = np.stack([gram[:, row, column] for gram in grams], axis=-1)
    kept = triangles[np.arange(len(row)) < sizes[:, None]].astype(np.float16)
    return {"selected": Ragged(pairs, counts), "grams": Ragged(kept, sizes)}


def decompress(found: dict[str, Ragged], settings: TokenSettings, device: torch.device) -> dict[str, Any]:
    """Fields of ModelOutputs from a batch's rows: float32, padded on the right, on `device`."""

    def padded(name: str, fill: float = 0) -> Tensor:
        """A signal as [batch, longest, width], in its stored number format but for int8."""
        items, lengths = torch.from_numpy(found[name].values).to(device, non_blocking=True), found[name].lengths
        if items.dtype == torch.int8:
            items = items[:, :-4].float() * items[:, -4:].contiguous().view(torch.float32)
        items = items.float() if items.is_floating_point() else items.to(torch.int64)
        longest = int(lengths.max(initial=0))
        slots = torch.from_numpy(item_positions(np.arange(len(lengths)) * longest, lengths))
        flat = items.new_full((len(lengths) * longest, items.shape[1]), fill)
        flat.index_copy_(0, slots.to(device, non_blocking=True), items)
        return flat.view(len(lengths), longest, items.shape[1])

    fields: dict[str, Any] = {}
    if tokens := [kept.lengths for name, kept in found.items() if name.startswith(HIDDEN) or name == "importance"]:
        columns = np.arange(tokens[0].max(initial=0))
        fields["mask"] = torch.from_numpy(columns < tokens[0][:, None]).to(device)
    if states := {layer: padded(name) for layer, name in settings.hidden_names.items() if name in found}:
        fields["hidden_layers"] = states
    if "importance" in found:
        received = padded("importance")[..., 0]
        fields["importance"] = received / received.sum(1, keepdim=True)
    if "selected" in found:
        fields["selected"] = padded("selected", fill=-1)
        squares = _squares(padded("grams"), fields["selected"].shape[1])
        fields["grams"] = {layer: squares[..., number] for number, layer in enumerate(settings.gram_layers)}
    return fields


def _squares(triangles: Float[Tensor, "batch items layers"], size: int) -> Float[Tensor, "batch size size layers"]:
    """Symmetric matrices from their upper triangles, column by column."""
    numbers = torch.arange(size, device=triangles.device)
    high, low = torch.maximum(numbers[:, None], numbers), torch.minimum(numbers[:, None], numbers)
    return triangles[:, high * (high + 1) // 2 + low]


def item_positions(starts: Rows, lengths: Rows) -> Rows:
    """int64 [items]: positions of the items of rows that begin at `starts` (both [rows])."""
    before = np.cumsum(lengths) - lengths
    return np.repeat(starts - before, lengths) + np.arange(int(lengths.sum()), dtype=np.int64)
