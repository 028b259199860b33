"""The layers of a backbone: choice of those to keep, removal of the others, fresh weights.

A pruned backbone is built again from its own, shortened configuration and takes over the kept weights. So everything
that depends on a layer's number (cache index, sliding window, kinds of attention, a first layer without norm) is the
same in a reload of the saved model, and layers that the configuration cannot express are an error.
"""

from __future__ import annotations

import copy
import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from transformers import PretrainedConfig, PreTrainedModel

from distilvec.config.student import LayersSection
from distilvec.core.errors import DistilvecError, first_line
from distilvec.core.spread import evenly_spread

MOST_CHOICES = 300  # that are all compared
_NUMBERS = ("layer_idx", "layer_id")  # of a layer, for its entry in a decoder's cache; the second is GPT-Neo's


def choose_layers(layers: int | list[int] | LayersSection, total: int) -> list[int]:
    """Numbers of the layers to keep out of `total`, 0 being the first.

    A number n keeps n layers, evenly spread with the first and the last: round(linspace(0, total - 1, n)), halves to
    the even neighbour, so 3 of 6 are [0, 2, 5]; n = 1 keeps the first. A list is taken as given. So is the `count` of a
    section, until `best_layers` has chosen.
    Errors: DistilvecError for an empty choice, layers that the model lacks, repetitions, or another order.
    """
    if isinstance(layers, LayersSection):
        layers = layers.count
    if isinstance(layers, int):
        if not 1 <= layers <= total:
            raise DistilvecError("student.layers", f"found {layers}; give a number from 1 to {total}.")
        return evenly_spread(total, layers).tolist()
    if not layers or layers != sorted({*layers}) or not 0 <= layers[0] <= layers[-1] < total:
        raise DistilvecError(
            "student.layers",
            f"found {layers}; expected numbers from 0 (the first layer) to {total - 1} in ascending order, each once.",
            f"Give for example {evenly_spread(total, max(1, total // 2)).tolist()}.",
        )
    return list(layers)


def best_layers(
    model: PreTrainedModel, count: int, distance: Callable[[], float]
) -> tuple[list[int], dict[tuple[int, ...], float]]:
    """Choose `count` layers by `distance`, called while the model runs with a choice only; and every distance found.

    All choices are compared if there are at most 300. Else layers are added one by one, each the best next to those
    chosen before, and the evenly spread ones are compared with the result. The model is unchanged afterwards.
    """
    _, layers = layer_list(model)
    total = len(layers)
    distances: dict[tuple[int, ...], float] = {}
    # Layers that may come first: ModernBERT's layer 0 lacks the norm of the others, and nothing can replace it
    kinds = [layer.state_dict().keys() for layer in layers]
    first_layers = [number for number in range(total) if kinds[number] == kinds[0]]

    def measured(keep: Sequence[int]) -> float:
        if tuple(keep) not in distances:
            with only_layers(model, keep):
                distances[tuple(keep)] = distance()
        return distances[tuple(keep)]

    spread = choose_layers(count, total)
    measured(spread)  # always measured, for the report
    if _all_compared(count, total):
        choices = [list(keep) for keep in itertools.combinations(range(total), count) if keep[0] in first_layers]
        return min(choices, key=measured), distances
    chosen: list[int] = []
    for _ in range(count):
        candidates = [sorted([*chosen, layer]) for layer in range(total) if layer not in chosen]
        chosen = min((keep for keep in candidates if keep[0] in first_layers), key=measured)
    return min(chosen, spread, key=measured), distances


def number_of_choices(count: int, total: int) -> int:
    """Return how many choices `best_layers` measures at most."""
    if _all_compared(count, total):
        return math.comb(total, count)
    return 1 + sum(total - chosen for chosen in range(count))


def _all_compared(count: int, total: int) -> bool:
    return math.comb(total, count) <= MOST_CHOICES


@contextmanager
def only_layers(model: PreTrainedModel, keep: Sequence[int]) -> Iterator[None]:
    """Run the backbone with only these layers (ascending) until the block ends; no weight is copied."""
    path, layers = layer_list(model)
    parent, _, name = path.rpartition(".")
    holder = model.get_submodule(parent)
    text = model.config.get_text_config()
    changed = _cut_settings(text, keep)
    settings = {key: getattr(text, key) for key in changed}
    numbered: list[tuple[nn.Module, str, int, int]] = []  # attributes with a layer's number, the old and the new one
    for new, old in enumerate(keep):
        for module in layers[old].modules():
            for attribute in _NUMBERS:
                if getattr(module, attribute, None) == old:
                    numbered.append((module, attribute, old, new))
    try:
        for module, attribute, _, new in numbered:
            setattr(module, attribute, new)
        setattr(holder, name, nn.ModuleList(layers[number] for number in keep))
        for key, value in changed.items():
            setattr(text, key, value)
        yield
    finally:
        setattr(holder, name, layers)
        for module, attribute, old, _ in numbered:
            setattr(module, attribute, old)
        for key, value in settings.items():
            setattr(text, key, value)


def cut_layers(model: PreTrainedModel, keep: list[int]) -> PreTrainedModel:
    """A backbone with only the layers `keep` (ascending numbers, 0 is the first), in their order and precision.

    `model` stays as it is, and is the result if all layers are kept. Weights are copied.
    Errors: DistilvecError if the architecture has no list of layers, or does not run with these (a ModernBERT or T5
    without layer 0, which differs from the others).
    """
    path, layers = layer_list(model)
    if keep == list(range(len(layers))):
        return model
    renumbered = {f"{path}.{old}.": f"{path}.{new}." for new, old in enumerate(keep)}
    weights: dict[str, torch.Tensor] = {}
    for name, value in model.state_dict().items():
        if not name.startswith(f"{path}."):
            weights[name] = value
            continue
        prefix = ".".join(name.split(".")[: path.count(".") + 2]) + "."
        if prefix in renumbered:
            weights[renumbered[prefix] + name.removeprefix(prefix)] = value
    return rebuild(model, _cut_config(model.config, keep), weights)


def reinitialize_layers(model: PreTrainedModel, count: int) -> None:
    """Give the last `count` layers fresh random weights of the backbone's own initialiser, in place.

    The weights come from torch's current generator. Errors: DistilvecError for more layers than there are.
    """
    path, layers = layer_list(model)
    if count > len(layers):
        raise DistilvecError("student.reinitialize", f"found {count}; give at most {len(layers)}, its layers.")
    fresh = type(model)(model.config).get_submodule(path)
    for layer, drawn in list(zip(layers, fresh.children(), strict=True))[-count:]:
        layer.load_state_dict(drawn.state_dict())


def layer_list(model: PreTrainedModel) -> tuple[str, nn.ModuleList]:
    """The dotted name and the list of a backbone's layers: the shallowest ModuleList of the configured length."""
    total = model.config.get_text_config().num_hidden_layers
    lists = [(name, module) for name, module in model.named_modules() if isinstance(module, nn.ModuleList)]
    candidates = [(name, module) for name, module in lists if len(module) == total]
    if not candidates:
        raise DistilvecError(
            "student.layers", f"{type(model).__name__} has no list of {total} layers.", "Leave it out."
        )
    return min(candidates, key=lambda candidate: candidate[0].count("."))


def _cut_config(config: PretrainedConfig, keep: list[int]) -> PretrainedConfig:
    """A copy of a configuration with these layers only: their number, and every list with one entry a layer."""
    config = copy.deepcopy(config)
    text = config.get_text_config()
    for name, value in _cut_settings(text, keep).items():
        setattr(text, name, value)
    return config


def _cut_settings(text: PretrainedConfig, keep: Sequence[int]) -> dict[str, Any]:
    """The settings of a configuration that change with its layers, by name."""
    total = text.num_hidden_layers
    cut = {}
    for name, value in vars(text).items():
        is_by_layer = "layer" in name or name == "attention_window"  # Longformer's, one for each layer
        if is_by_layer and isinstance(value, list) and len(value) == total:
            cut[name] = [value[layer] for layer in keep]
    return {**cut, "num_hidden_layers": len(keep)}


def rebuild(model: PreTrainedModel, config: PretrainedConfig, weights: dict[str, Any]) -> PreTrainedModel:
    """A model of the same class and precision from `config`, with exactly these `weights`.

    Errors: DistilvecError for a configuration that the architecture refuses, and for weights that do not fit it.
    """
    tensor = next(model.parameters())
    try:
        with torch.random.fork_rng(devices=[]):
            fresh = type(model)(config).to(device=tensor.device, dtype=tensor.dtype)
    except (AssertionError, LookupError, TypeError, ValueError) as error:
        raise DistilvecError(
            "student.layers",
            f"{type(model).__name__} cannot be built with other layers: {first_line(error)}.",
            "Leave the student's changes out, or name another model.",
        ) from error
    report = fresh.load_state_dict(weights, strict=False)
    misfits = [*report.missing_keys, *report.unexpected_keys]
    if misfits:
        raise DistilvecError(
            "student.layers",
            f"{type(model).__name__} does not run with these layers: {', '.join(misfits[:3])} do not fit. Its first "
            "layer differs from the others; keep layer 0 as the first.",
        )
    return fresh.train(model.training)
