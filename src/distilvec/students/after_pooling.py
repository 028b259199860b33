"""The modules behind a model's pooling, which a student of the teacher's layers keeps.

EmbeddingGemma has two linear layers there, 768 -> 3072 -> 768, LaBSE one with Tanh. Without them the pooled vectors lie
in another space than the teacher's, and training has to find these layers again.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from sentence_transformers.sentence_transformer.modules import Dense, Dropout, LayerNorm, Module, Normalize, Pooling
from torch import nn

from distilvec.core.model_name import ModelName
from distilvec.models.load import hub_name, read_modules

KEPT = ("Dense", "LayerNorm", "Dropout", "Normalize")
_CLASSES: dict[str, type[Module]] = {kind.__name__: kind for kind in (Pooling, Dense, LayerNorm, Dropout, Normalize)}


def read_later_modules(model: ModelName) -> list[Any]:
    """Load the modules after a model's transformer, which are small; one of a kind that is not kept is left empty."""
    source = hub_name(model)
    modules: list[Any] = []
    for entry in read_modules(source)[1:]:
        kind = _CLASSES.get(entry["type"].rpartition(".")[2])
        if kind is None:
            modules.append(nn.Module())
        else:
            modules.append(kind.load(source.name, subfolder=entry["path"], revision=model.revision))
    return modules


def has_own_modules(later_modules: Sequence[Any]) -> bool:
    """Whether a model has more after its transformer than a pooling and a normalisation: modules with weights."""
    return any(type(module).__name__ not in ("Pooling", "Normalize", "Dropout") for module in later_modules)


def why_not_kept(later_modules: Sequence[Any], pooling: str | None, dim: int | None) -> str | None:
    """Say why a student cannot keep the modules after a model's transformer; None if it can.

    `pooling` is the recipe's, None for the model's own. `dim` is that of the student's vectors, None for any: it may be
    smaller than what the modules give, of which the first dimensions are then taken (teacher.truncate_dim).
    """
    kinds = [type(module).__name__ for module in later_modules]
    if kinds[:1] != ["Pooling"] or not has_own_modules(later_modules):
        return f"found {', '.join(kinds) or 'nothing'} after its backbone, expected a pooling, then Dense modules"
    if others := [kind for kind in kinds[1:] if kind not in KEPT]:
        return f"found {', '.join(others)}; only {', '.join(KEPT)} are kept"
    mode = later_modules[0].pooling_mode
    if pooling not in (None, mode):
        return f"they read vectors of the pooling {mode}, not of {pooling}"
    width = later_modules[0].embedding_dimension
    reader = next(module for module in later_modules[1:] if type(module).__name__ in ("Dense", "LayerNorm"))
    first = int(reader.in_features if type(reader).__name__ == "Dense" else reader.dimension)
    last = width_behind(later_modules)
    if first != width or last < (dim or 0):
        return f"they lead from {first} to {last} dimensions; expected from {width} (the backbone) to {dim or last}"
    return None


def kept_modules(later_modules: Sequence[Any], dim: int | None, fold: bool) -> list[Any]:
    """Return the modules after the pooling, or after a static model's table, without the closing Normalize.

    With `fold` neighbouring linear layers become one matrix: the same vectors to rounding, with fewer parameters. What
    has an activation, and what stands between, stays as it is. Where the modules give more than `dim` dimensions, a
    linear layer takes the first ones, exactly.
    """
    modules = list(later_modules[1:])
    while modules and type(modules[-1]).__name__ == "Normalize":
        modules.pop()
    width = width_behind(later_modules)
    if dim is not None and dim < width:
        modules.append(first_dims_layer(width, dim))
    if not fold:
        return modules
    folded: list[Any] = []
    for module in modules:
        follows_plain = bool(folded) and _is_plain(folded[-1]) and _is_plain(module)
        if follows_plain and isinstance(folded[-1].activation_function, nn.Identity):
            module = _product(folded.pop(), module)
        folded.append(module)
    return folded


def width_behind(later_modules: Sequence[Any]) -> int:
    """Return the dimensions that the last of the modules gives."""
    widths = [
        module.get_embedding_dimension() for module in later_modules if hasattr(module, "get_embedding_dimension")
    ]
    return int([width for width in widths if width is not None][-1])


def _is_plain(module: Any) -> bool:
    """Whether a module is a Dense layer of the text's vector, without a residual."""
    return (
        type(module).__name__ == "Dense"
        and module.module_input_name == module.module_output_name == "sentence_embedding"
        and not getattr(module, "use_residual", False)
    )


@torch.no_grad()
def _product(first: Dense, second: Dense) -> Dense:
    """Return one layer for two, of which the first has no activation: B(Ax + a) + b = (BA)x + (Ba + b)."""
    weight = second.linear.weight.double() @ first.linear.weight.double()
    bias = None
    if first.linear.bias is not None:
        bias = second.linear.weight.double() @ first.linear.bias.double()
    if second.linear.bias is not None:
        bias = second.linear.bias.double() if bias is None else bias + second.linear.bias.double()
    return Dense(
        first.in_features,
        second.out_features,
        bias=bias is not None,
        activation_function=second.activation_function,
        init_weight=weight.to(second.linear.weight.dtype),
        init_bias=None if bias is None else bias.to(second.linear.weight.dtype),
    )


def first_dims_layer(width: int, dim: int) -> Dense:
    """Return a layer that keeps the first `dim` of `width` dimensions."""
    return Dense(width, dim, bias=False, activation_function=nn.Identity(), init_weight=torch.eye(dim, width))
