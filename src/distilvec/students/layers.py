"""Which layers of a backbone stay, and how to cut the others out so that the rest saves, loads and computes the same.

A cut backbone is built anew from its own, shortened configuration and takes over the kept weights. So everything that
hangs on a layer's number (cache index, sliding window, kinds of attention, a first layer without norm) is what a reload
of the saved model builds, and a cut that the configuration cannot express is an error here and not a wrong vector later.
"""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import torch
from torch import nn
from transformers import PretrainedConfig, PreTrainedModel

from distilvec.core.errors import DistilvecError


def choose_layers(layers: int | list[int], total: int) -> list[int]:
    """Numbers of the layers to keep out of `total`, 0 being the first.

    A number n keeps n layers, evenly spread with the first and the last: round(linspace(0, total - 1, n)), halves to the
    even neighbour, so 3 of 6 are [0, 2, 5]; n = 1 keeps the first. A list is taken as it stands.
    Errors: DistilvecError for an empty choice, layers that the model does not have, repetitions, or another order.
    """
    if isinstance(layers, int):
        if not 1 <= layers <= total:
            raise DistilvecError(
                f"[student.layers] found {layers}; the model has {total} layers, so give a number from 1 to {total}."
            )
        return [int(layer) for layer in np.round(np.linspace(0, total - 1, layers))]
    example = choose_layers(max(1, total // 2), total)
    if not layers:
        raise DistilvecError(f"[student.layers] the list is empty; give at least one layer, for example {example}.")
    outside = [layer for layer in layers if not 0 <= layer < total]
    if outside:
        raise DistilvecError(
            f"[student.layers] found {outside} in {layers}; the model has layers 0 to {total - 1} (0 is the first). Example: {example}."
        )
    if len(set(layers)) < len(layers):
        raise DistilvecError(
            f"[student.layers] {layers} names a layer twice; name each once, for example {sorted(set(layers))}."
        )
    if sorted(layers) != layers:
        raise DistilvecError(
            f"[student.layers] {layers} is not in ascending order; layers keep their order, so write {sorted(layers)}."
        )
    return list(layers)


def cut_layers(model: PreTrainedModel, keep: list[int]) -> PreTrainedModel:
    """A backbone with only the layers `keep` (ascending numbers, 0 is the first), in the order and precision they have.

    `model` itself is left as it is; all layers kept gives it back unchanged. Its weights are copied, so cutting needs
    the memory of the result beside it.
    Errors: DistilvecError if the architecture has no list of layers, or cannot do with these (a ModernBERT or T5 without
    layer 0, which is built differently from the others).
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
    return rebuild(model, cut_config(model.config, keep), weights)


def reinitialize_layers(model: PreTrainedModel, count: int) -> None:
    """Give the last `count` layers the fresh random weights that the backbone's own initialiser draws, in place.

    The weights come from torch's current generator. Errors: DistilvecError for more layers than there are.
    """
    path, layers = layer_list(model)
    if count > len(layers):
        raise DistilvecError(
            f"[student.reinitialize] found {count}; the student has {len(layers)} layers, so give a number from 1 to {len(layers)}."
        )
    fresh = type(model)(model.config).get_submodule(path)
    for layer, drawn in list(zip(layers, fresh.children(), strict=True))[-count:]:
        layer.load_state_dict(drawn.state_dict())


def layer_list(model: PreTrainedModel) -> tuple[str, nn.ModuleList]:
    """The dotted name and the list of a backbone's layers: the shallowest ModuleList as long as its config says."""
    total = model.config.get_text_config().num_hidden_layers
    found = [
        (name, module)
        for name, module in model.named_modules()
        if isinstance(module, nn.ModuleList) and len(module) == total
    ]
    if not found:
        raise DistilvecError(
            f"[student.layers] {type(model).__name__} has no list of {total} layers that could be cut; "
            "leave student.layers out, or take another architecture."
        )
    return min(found, key=lambda item: item[0].count("."))


def cut_config(config: PretrainedConfig, keep: list[int]) -> PretrainedConfig:
    """A copy of a configuration with these layers only: their number, and every list with one entry a layer."""
    config = copy.deepcopy(config)
    text = config.get_text_config()
    total = text.num_hidden_layers
    for name, value in list(vars(text).items()):
        if "layer" in name and isinstance(value, list) and len(value) == total:
            setattr(text, name, [value[layer] for layer in keep])
    text.num_hidden_layers = len(keep)
    return config


def rebuild(model: PreTrainedModel, config: PretrainedConfig, weights: dict[str, Any]) -> PreTrainedModel:
    """A model of the same class and precision from `config`, holding `weights` (every one of its own, and no other)."""
    tensor = next(model.parameters())
    with torch.random.fork_rng(devices=[]):
        fresh = type(model)(config).to(device=tensor.device, dtype=tensor.dtype)
    report = fresh.load_state_dict(weights, strict=False)
    if report.missing_keys or report.unexpected_keys:
        odd = [*report.missing_keys, *report.unexpected_keys]
        raise DistilvecError(
            f"[student.layers] {type(model).__name__} cannot do with these layers: {', '.join(odd[:3])} would not fit. "
            "Its first layer is built differently; keep layer 0 in first place."
        )
    fresh.train(model.training)
    return fresh
