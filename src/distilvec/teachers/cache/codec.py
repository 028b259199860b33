"""A teacher's token signals, small: real tokens only, one row or a few numbers each, and back again in one go a batch.

    hidden      int8 [tokens, width + 4]: a row's values in steps of its scale, then the scale's four bytes (float32);
                or float16 [tokens, width]. hidden-2 is the layer before the last, and so on
    importance  float16 [tokens, 1]: masses, at least the smallest number above 0, brought to sum 1 again when they are read
    selected    int16 [m, 2]: (student position, teacher position)
    grams       float16 [m (m + 1) / 2, layers]: the upper triangle, column by column, so that a pair's place does not depend on m

Per text of T tokens, n pairs, m = n // 3: T (width + 6) + 4 m + m (m + 1) layers bytes instead of the heads T T of attention maps.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from jaxtyping import Float, Int
from torch import Tensor

from distilvec.core.errors import DistilvecError
from distilvec.core.outputs import ModelOutputs, TokenOutputSpec
from distilvec.teachers.cache.layout import HIDDEN, Ragged, TokenSettings, item_places

_STEPS = 127
_SMALLEST = np.float16(6e-8)
_LONGEST = np.iinfo(np.int16).max


def token_settings(
    required: TokenOutputSpec, hidden: str, hidden_width: int | None, student_tokenizer: str, student_max_length: int
) -> TokenSettings:
    """What a cache that answers these wants keeps, its hidden states as `hidden` (int8 or float16)."""
    grams = bool(required.gram_layers)
    return TokenSettings(
        hidden=hidden if required.hidden else None,
        hidden_width=hidden_width if required.hidden else None,
        hidden_layers=tuple(sorted(required.hidden, reverse=True)),
        importance=required.importance,
        gram_layers=required.gram_layers,
        divisor=required.divisor if grams else None,
        alignment=required.alignment if grams else None,
        student_tokenizer=student_tokenizer if grams else None,
        student_max_length=student_max_length if grams else None,
    )


# -- a batch in, rows for the cache out --------------------------------------------------------------------------------


def compress(encoded: ModelOutputs, settings: TokenSettings) -> dict[str, Ragged]:
    """The token signals of a batch (ModelOutputs: float32, padded on the right) in the cache's form, on the CPU."""
    assert encoded.mask is not None
    mask = encoded.mask.cpu().numpy()
    lengths = mask.sum(1, dtype=np.int64)
    found: dict[str, Ragged] = {}
    if settings.hidden is not None:
        for layer, name in settings.hidden_names.items():
            rows = encoded.hidden_layers[layer].cpu().numpy()[mask]
            found[name] = Ragged(_to_int8(rows) if settings.hidden == "int8" else _to_float16(rows), lengths)
    if settings.importance:
        assert encoded.importance is not None
        masses = encoded.importance.cpu().numpy()[mask][:, None]
        found["importance"] = Ragged(np.maximum(masses.astype(np.float16), _SMALLEST), lengths)
    if settings.gram_layers:
        assert encoded.selected is not None
        found |= _selection(
            encoded.selected.cpu().numpy(), [encoded.grams[layer].cpu().numpy() for layer in settings.gram_layers]
        )
    return found


def _to_int8(rows: npt.NDArray[np.float32]) -> npt.NDArray[np.int8]:
    """[tokens, width] as int8 [tokens, width + 4]."""
    scales = np.abs(rows).max(1, keepdims=True).astype(np.float32) / np.float32(_STEPS)
    steps = rows / np.where(scales > 0, scales, 1)
    return np.concatenate([np.rint(steps).astype(np.int8), scales.view(np.int8)], axis=1)


def _to_float16(rows: npt.NDArray[np.float32]) -> npt.NDArray[np.float16]:
    with np.errstate(over="ignore"):  # what does not fit is refused when it is stored
        return rows.astype(np.float16)


def _selection(selected: npt.NDArray[np.int64], grams: list[npt.NDArray[np.float32]]) -> dict[str, Ragged]:
    """Selected pairs [batch, m, 2] and their Gram matrices ([batch, m, m] a layer), without what fills up."""
    if selected.max(initial=0) > _LONGEST:
        raise DistilvecError(
            f"[teacher.max_length] a token cache numbers {_LONGEST:,} tokens of a text; found {selected.max():,}."
        )
    counts = (selected[..., 0] >= 0).sum(1, dtype=np.int64)
    pairs = selected[np.arange(selected.shape[1]) < counts[:, None]].astype(np.int16)
    column, row = np.tril_indices(selected.shape[1])
    sizes = counts * (counts + 1) // 2
    triangles = np.stack([gram[:, row, column] for gram in grams], axis=-1)
    kept = triangles[np.arange(len(row)) < sizes[:, None]].astype(np.float16)
    return {"selected": Ragged(pairs, counts), "grams": Ragged(kept, sizes)}


# -- rows of the cache in, a batch out ---------------------------------------------------------------------------------


def decompress(found: dict[str, Ragged], settings: TokenSettings, device: torch.device) -> dict[str, Any]:
    """The fields of ModelOutputs from a batch's rows: float32, padded on the right, on `device`, where int8 is turned back."""
    fields: dict[str, Any] = {}
    tokens = next((kept for name, kept in found.items() if name.startswith(HIDDEN) or name == "importance"), None)
    if tokens is not None:
        columns = np.arange(tokens.lengths.max(initial=0))
        fields["mask"] = torch.from_numpy(columns < tokens.lengths[:, None]).to(device)
    states = {layer: found[name] for layer, name in settings.hidden_names.items() if name in found}
    if states:
        fields["hidden_layers"] = {
            layer: _padded(_states(_moved(kept.values, device)), kept.lengths) for layer, kept in states.items()
        }
    if "importance" in found:
        masses = _padded(_moved(found["importance"].values, device).float(), found["importance"].lengths)[..., 0]
        fields["importance"] = masses / masses.sum(1, keepdim=True)
    if "selected" in found:
        pairs = _moved(found["selected"].values, device).to(torch.int64)
        fields["selected"] = _padded(pairs, found["selected"].lengths, fill=-1)
        triangles = _padded(_moved(found["grams"].values, device).float(), found["grams"].lengths)
        squares = _squares(triangles, fields["selected"].shape[1])
        fields["grams"] = {layer: squares[..., number] for number, layer in enumerate(settings.gram_layers)}
    return fields


def _moved(values: npt.NDArray[Any], device: torch.device) -> Tensor:
    return torch.from_numpy(values).to(device, non_blocking=True)


def _states(stored: Tensor) -> Float[Tensor, "tokens width"]:
    """Hidden states from int8 rows with their scales, or from float16 ones."""
    if stored.dtype == torch.float16:
        return stored.float()
    scales = stored[:, -4:].contiguous().view(torch.float32)
    return stored[:, :-4].float() * scales


def _padded(items: Tensor, lengths: npt.NDArray[np.int64], fill: float = 0) -> Tensor:
    """Items [n, width] of a batch as [batch, longest, width], `fill` behind each row's own."""
    longest = int(lengths.max(initial=0))
    places = torch.from_numpy(item_places(np.arange(len(lengths)) * longest, lengths)).to(
        items.device, non_blocking=True
    )
    flat = items.new_full((len(lengths) * longest, items.shape[1]), fill)
    return flat.index_copy_(0, places, items).view(len(lengths), longest, items.shape[1])


def _squares(triangles: Float[Tensor, "batch items layers"], size: int) -> Float[Tensor, "batch size size layers"]:
    """Symmetric matrices from their upper triangles, column by column."""
    places: Int[Tensor, "size size"] = torch.arange(size, device=triangles.device)
    high = torch.maximum(places[:, None], places)
    low = torch.minimum(places[:, None], places)
    return triangles[:, high * (high + 1) // 2 + low]
