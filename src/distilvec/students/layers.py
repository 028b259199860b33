"""The layers of a backbone: a run with some of them, removal of the others, fresh weights.

A pruned backbone is built again from its own, shortened configuration, as it is read from a file, and takes over the
kept weights. So everything that depends on a layer's number (cache index, sliding window, kinds of attention, a first
layer without norm) is the same in a reload of the saved model, and layers that the configuration cannot express are an
error. What a backbone has for each layer outside of its layers, such as the inputs that EmbeddingGemma 2 and Gemma 3n
make for every one, is found by comparing it with a backbone of fewer layers, and cut with them.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from transformers import PretrainedConfig, PreTrainedModel

from distilvec.config.student import LayersSection
from distilvec.core.errors import DistilvecError, first_line
from distilvec.core.vectors import evenly_spread

_NUMBERS = ("layer_idx", "layer_id")  # of a layer, for its entry in a decoder's cache; the second is GPT-Neo's


def choose_layers(layers: int | list[int] | LayersSection, total: int) -> list[int]:
    """Numbers of the layers to keep out of `total`, 0 being the first.

    A number n keeps n layers, evenly spread with the first and the last: round(linspace(0, total - 1, n)), halves to
    the even neighbour, so 3 of 6 are [0, 2, 5]; n = 1 keeps the first. A list is taken as given. So is the `count` of a
    section, until `best_layers` has chosen.
    """
    if isinstance(layers, LayersSection):
        layers = layers.count
    if isinstance(layers, int):
        if not 1 <= layers <= total:
            raise DistilvecError(f"found {layers}; give a number from 1 to {total}.", key="student.layers")
        return evenly_spread(total, layers).tolist()
    if not layers or layers != sorted({*layers}) or not 0 <= layers[0] <= layers[-1] < total:
        raise DistilvecError(
            f"found {layers}; expected numbers from 0 (the first layer) to {total - 1} in ascending order, each once.",
            f"Give for example {evenly_spread(total, max(1, total // 2)).tolist()}.",
            key="student.layers",
        )
    return list(layers)


@dataclass(frozen=True)
class OutsideLayers:
    """What a backbone has for each layer outside of the list of its layers.

    blocks: the dimension in which a weight has as many rows (or columns) for every layer, by its name
    counts: modules and their attributes that hold the number of layers
    """

    blocks: dict[str, int]
    counts: list[tuple[str, str]]


@contextmanager
def only_layers(model: PreTrainedModel, keep: Sequence[int], outside: OutsideLayers | None = None) -> Iterator[None]:
    """Run the backbone with only these layers (ascending) until the block ends; no weight of a layer is copied.

    `outside` saves the time to find it out, where many choices are tried.
    """
    path, layers = layer_list(model)
    total = len(layers)
    if outside is None:
        outside = outside_layers(model)
    parent, _, name = path.rpartition(".")
    holder = model.get_submodule(parent)
    text = model.config.get_text_config()
    settings = dict(vars(text))
    weights = dict(model.named_parameters())
    numbered: list[tuple[nn.Module, str, int, int]] = []  # attributes with a number, the old and the new one
    for new, old in enumerate(keep):
        for module in layers[old].modules():
            for attribute in _NUMBERS:
                if getattr(module, attribute, None) == old:
                    numbered.append((module, attribute, old, new))
    for module_name, attribute in outside.counts:
        numbered.append((model.get_submodule(module_name), attribute, total, len(keep)))
    whole = {weight: weights[weight].data for weight in outside.blocks}
    try:
        for module, attribute, _, new in numbered:
            setattr(module, attribute, new)
        for weight, dim in outside.blocks.items():
            weights[weight].data = _blocks_of(whole[weight], dim, total, keep)
        setattr(holder, name, nn.ModuleList(layers[number] for number in keep))
        for key, value in _cut_settings(text, keep).items():
            setattr(text, key, value)
        yield
    finally:
        vars(text).clear()
        vars(text).update(settings)
        setattr(holder, name, layers)
        for weight, values in whole.items():
            weights[weight].data = values
        for module, attribute, old, _ in numbered:
            setattr(module, attribute, old)


def cut_layers(model: PreTrainedModel, keep: list[int]) -> PreTrainedModel:
    """A backbone with only the layers `keep` (ascending numbers, 0 is the first), in their order and precision.

    `model` stays as it is, and is the result if all layers are kept. Weights are copied.
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
    config = _cut_config(model.config, keep)
    changed = changed_by_reading(model.config, keep)
    if changed:
        raise DistilvecError(
            f"{type(model).__name__} does not run with the layers {keep}: {', '.join(changed)} would be others in the "
            "saved model.",
            f"Keep a layer of the kind of its last one, such as {len(layers) - 1}, as the last.",
            key="student.layers",
        )
    fresh = _built(model, config)
    for name, dim in _compared(model, fresh).blocks.items():
        weights[name] = _blocks_of(weights[name], dim, len(layers), keep)
    return _with_weights(model, fresh, weights)


def reinitialize_layers(model: PreTrainedModel, count: int) -> None:
    """Give the last `count` layers fresh random weights of the backbone's own initialiser, in place.

    The weights come from torch's current generator.
    """
    path, layers = layer_list(model)
    if count > len(layers):
        raise DistilvecError(f"found {count}; give at most {len(layers)}, its layers.", key="student.reinitialize")
    fresh = type(model)(model.config).get_submodule(path)
    for layer, drawn in list(zip(layers, fresh.children(), strict=True))[-count:]:
        layer.load_state_dict(drawn.state_dict())


def layer_list(model: PreTrainedModel) -> tuple[str, nn.ModuleList]:
    """The dotted name and the list of a backbone's layers: the shallowest ModuleList of the configured length."""
    config = model.config.get_text_config()
    total = config.num_hidden_layers
    if getattr(config, "num_kv_shared_layers", None):  # of Gemma 3n and 4: a cut would take others, in silence
        raise DistilvecError(
            f"the last layers of {type(model).__name__} read keys and values of earlier layers: no layer can be cut.",
            "Leave it out.",
            key="student.layers",
        )
    lists = [(name, module) for name, module in model.named_modules() if isinstance(module, nn.ModuleList)]
    candidates = [(name, module) for name, module in lists if len(module) == total]
    if not candidates:
        raise DistilvecError(
            f"{type(model).__name__} has no list of {total} layers.", "Leave it out.", key="student.layers"
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
    """The settings of a configuration that change with its layers, by name: lists with one entry a layer, and others.

    `per_layer_config` has the settings of some layers by their numbers (EmbeddingGemma 2).
    """
    total = text.num_hidden_layers
    cut: dict[str, Any] = {}
    for name, value in vars(text).items():
        if isinstance(value, list) and len(value) == total and "token" not in name:
            cut[name] = [value[layer] for layer in keep]
    if vars(text).get("_heterogeneity_spec") is not None:
        of_layers = {int(layer): settings for layer, settings in text.to_dict()["per_layer_config"].items()}
        cut["per_layer_config"] = {new: of_layers[old] for new, old in enumerate(keep) if old in of_layers}
    return {**cut, "num_hidden_layers": len(keep)}


def changed_by_reading(config: PretrainedConfig, keep: Sequence[int]) -> list[str]:
    """List settings of a cut configuration that are others when it is read from a file.

    EmbeddingGemma 2 gives its last layer full attention, whatever the file says.
    """
    cut = _cut_config(config, list(keep))
    saved = cut.get_text_config().to_dict()
    read = type(cut).from_dict(cut.to_dict()).get_text_config().to_dict()
    return [name for name in _cut_settings(config.get_text_config(), keep) if saved.get(name) != read.get(name)]


def _blocks_of(weight: torch.Tensor, dim: int, total: int, keep: Sequence[int]) -> torch.Tensor:
    """Return the rows (or columns) of a weight that belong to the layers `keep`."""
    blocks = weight.chunk(total, dim)
    return torch.cat([blocks[layer] for layer in keep], dim)


def outside_layers(model: PreTrainedModel) -> OutsideLayers:
    """Find what a backbone has for each of its layers outside of their list; nothing where it has a single layer."""
    if model.config.get_text_config().num_hidden_layers == 1:
        return OutsideLayers({}, [])
    last = model.config.get_text_config().num_hidden_layers - 1
    return _compared(model, _built(model, _cut_config(model.config, [last])))


def _compared(model: PreTrainedModel, smaller: PreTrainedModel) -> OutsideLayers:
    """Find what differs outside of the layers between a backbone and one of fewer layers."""
    path, layers = layer_list(model)
    total, kept = len(layers), smaller.config.get_text_config().num_hidden_layers
    blocks = {}
    shapes = {name: weight.shape for name, weight in smaller.named_parameters()}
    for name, weight in model.named_parameters():
        if name.startswith(f"{path}.") or name not in shapes:
            continue
        sizes = list(zip(weight.shape, shapes[name], strict=True))
        changed = [dim for dim, (old, new) in enumerate(sizes) if old != new and old * kept == new * total]
        if changed:
            blocks[name] = changed[0]
    counts = []
    modules = dict(smaller.named_modules())
    for name, module in model.named_modules():
        if name.startswith(f"{path}.") or name not in modules:
            continue
        attributes = vars(modules[name])
        for attribute, value in vars(module).items():
            if type(value) is int and value == total and attributes.get(attribute) == kept:
                counts.append((name, attribute))
    return OutsideLayers(blocks, counts)


def rebuild(model: PreTrainedModel, config: PretrainedConfig, weights: dict[str, Any]) -> PreTrainedModel:
    """A model of the same class and precision from `config`, with exactly these `weights`."""
    return _with_weights(model, _built(model, config), weights)


def _built(model: PreTrainedModel, config: PretrainedConfig) -> PreTrainedModel:
    """A model of the same class and precision from `config`, with weights that mean nothing yet."""
    tensor = next(model.parameters())
    try:
        with torch.random.fork_rng(devices=[]):
            return type(model)(config).to(device=tensor.device, dtype=tensor.dtype)
    except (AssertionError, LookupError, TypeError, ValueError) as error:
        raise DistilvecError(
            f"{type(model).__name__} cannot be built with other layers: {first_line(error)}.",
            "Leave the student's changes out, or name another model.",
            key="student.layers",
        ) from error


def _with_weights(model: PreTrainedModel, fresh: PreTrainedModel, weights: dict[str, Any]) -> PreTrainedModel:
    """Give a new model exactly these `weights`, and the mode of the old one."""
    shapes = {name: value.shape for name, value in fresh.state_dict().items()}
    fitting = {name: value for name, value in weights.items() if shapes.get(name, value.shape) == value.shape}
    report = fresh.load_state_dict(fitting, strict=False)
    misfits = [*report.missing_keys, *report.unexpected_keys]
    if misfits:
        raise DistilvecError(
            f"{type(model).__name__} does not run with these layers: {', '.join(misfits[:3])} do not fit. A layer "
            "differs from the others; keep its first and its last layer in their places.",
            key="student.layers",
        )
    return fresh.train(model.training)
