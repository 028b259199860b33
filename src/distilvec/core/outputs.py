"""Required outputs of a model's forward pass, and the outputs themselves: one type each, for students and teachers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, fields, is_dataclass, replace
from typing import Any, Literal

from jaxtyping import Bool, Float, Int
from torch import Tensor

from distilvec.core.errors import DistilvecError

LayerPooling = Literal["own", "mean", "cls", "lasttoken"]
Precision = Literal["int8", "float16"]
AlignmentKind = Literal["offsets", "overlap", "mined", "mined_types", "strict"]


@dataclass(frozen=True)
class TokenOutputSpec:
    """Required outputs of a teacher's single tokens, which a cache keeps compressed (teachers/cached.py).

    - `alignment`: how the student's tokens are matched with the teacher's; None if nothing depends on the match.
    - `hidden`: the hidden states of these layers, counted from the last (-1); a cache stores them in `precision` if the
      recipe does not choose another one.
    - `importance`: the attention that a token receives (EMO, eq. 6 and 15).
    - `gram_layers`, `divisor`: Gram matrices of attention rows in these layers, numbered from 1 (EMO, eq. 10), over the
      n // `divisor` of n one-to-one pairs whose teacher tokens are the most important. With `special_tokens` n counts
      all pairs, and 2 are taken at least; else n counts those of ordinary tokens.
    """

    alignment: AlignmentKind | None = None
    hidden: tuple[int, ...] = ()
    importance: bool = False
    gram_layers: tuple[int, ...] = ()
    divisor: int = 3
    special_tokens: bool = True
    precision: Precision = "int8"


@dataclass(frozen=True)
class OutputSpec:
    """Required outputs of a forward pass; nothing else is computed or stored. `ModelOutputs` describes them.

    Layers are numbered as in transformers' `hidden_states`: 0 is the embedding output, 1 the first layer; negative
    numbers count from the last. Attention and projection layers begin at 1. `layer_pooling` is for `pooled_layers`;
    "own" is the model's pooling of its last layer. `tokens` is required of a teacher only.
    """

    embedding: bool = False
    pre_dense: bool = False
    pooled_layers: tuple[int, ...] = ()
    hidden_layers: tuple[int, ...] = ()
    attention_layers: tuple[int, ...] = ()
    second_view: bool = False
    layer_pooling: LayerPooling = "own"
    projection_layers: tuple[int, ...] = ()
    vector: bool = False
    experts: bool = False
    logits: bool = False
    tokens: TokenOutputSpec | None = None

    def __or__(self, other: OutputSpec) -> OutputSpec:
        """Return the union; DistilvecError if both require pooled layers, or tokens, in different ways."""
        kinds = {required.layer_pooling for required in (self, other) if required.pooled_layers}
        if len(kinds) > 1:
            raise DistilvecError(
                f"layers are pooled in one way; found {sorted(kinds)}.",
                "Give one of them.",
                key="method.options.layer_pooling",
            )
        if self.tokens and other.tokens and self.tokens != other.tokens:
            raise DistilvecError(
                f"all stages need the same outputs of teacher tokens; found {self.tokens} and {other.tokens}.",
                "Take methods, or options, that need the same.",
                key="stages",
            )

        def union(name: str) -> Any:
            first, second = getattr(self, name), getattr(other, name)
            return tuple(sorted({*first, *second})) if isinstance(first, tuple) else first or second

        merged = {entry.name: union(entry.name) for entry in fields(self)}
        return OutputSpec(**{**merged, "layer_pooling": kinds.pop() if kinds else "own"})


@dataclass(frozen=True)
class Projections:
    """Queries, keys and values of one layer, by head; keys and values may have fewer heads."""

    query: Float[Tensor, "batch heads tokens head_dim"]
    key: Float[Tensor, "batch groups tokens head_dim"]
    value: Float[Tensor, "batch groups tokens head_dim"]

    def first(self, texts: int) -> Projections:
        """Return those of the first `texts` texts."""
        return Projections(self.query[:texts], self.key[:texts], self.value[:texts])


@dataclass(frozen=True)
class ModelOutputs:
    """Outputs of a student, a live teacher or a cache. Those that were not required are None or empty.

    - `embedding`: the vector that the shipped model returns; `second_view`: the same under another dropout mask.
    - `pre_dense`: the pooled vector before the first Dense layer; `pooled_layers[l]`: the pooled hidden states of layer
      l.
    - `hidden_layers[l]`, `projections[l]`, `attentions[l]`: hidden states; queries, keys and values; head-averaged
      attention of all tokens, or of the rows that were asked for. Keys are the numbers in the OutputSpec. Layers are
      those of the first view.
    - `vector`: pooled, with the mixture of experts if the model has one; read by the head of a task, which gives
      `logits` (per example).
    - `gates`, `experts`: gate weights, of sum 1, and the experts' vectors (models/experts.py).
    - `others`: the outputs of a recipe's further teachers, in its order.

    Of a teacher's tokens, which begin at position 0: `hidden_layers` and `mask`; `importance`, of sum 1, 0 at padding;
    `selected`, the most important pairs of the Alignment in descending order, -1 fills up; `grams[l]`, centred, of unit
    Frobenius norm, over `selected`.
    """

    embedding: Float[Tensor, "batch dim"] | None = None
    pre_dense: Float[Tensor, "batch hidden"] | None = None
    pooled_layers: dict[int, Float[Tensor, "batch hidden"]] = field(default_factory=dict)
    hidden_layers: dict[int, Float[Tensor, "batch tokens hidden"]] = field(default_factory=dict)
    attentions: dict[int, Float[Tensor, "batch rows tokens"]] = field(default_factory=dict)
    second_view: Float[Tensor, "batch dim"] | None = None
    mask: Bool[Tensor, "batch tokens"] | None = None
    projections: dict[int, Projections] = field(default_factory=dict)
    vector: Float[Tensor, "batch hidden"] | None = None
    gates: Float[Tensor, "batch experts"] | None = None
    experts: Float[Tensor, "batch experts hidden"] | None = None
    logits: Float[Tensor, "examples classes"] | None = None
    others: tuple[ModelOutputs, ...] = ()
    importance: Float[Tensor, "batch tokens"] | None = None
    selected: Int[Tensor, "batch selected 2"] | None = field(default=None, metadata={"fill": -1})
    grams: dict[int, Float[Tensor, "batch selected selected"]] = field(default_factory=dict)


def change_tensors(value: Any, change: Callable[[Tensor, int], Tensor], fill: int = 0) -> Any:
    """Return outputs with `change(tensor, fill)` for each of their tensors, always in the same order.

    `fill` is the value at padding, from the metadata of the field.
    """
    if isinstance(value, Tensor):
        return change(value, fill)
    if isinstance(value, dict):
        return {name: change_tensors(each, change, fill) for name, each in value.items()}
    if isinstance(value, tuple):
        return tuple(change_tensors(each, change, fill) for each in value)
    if is_dataclass(value) and not isinstance(value, type):
        named = {each.name: (getattr(value, each.name), each.metadata.get("fill", 0)) for each in fields(value)}
        return replace(
            value, **{name: change_tensors(each, change, field_fill) for name, (each, field_fill) in named.items()}
        )
    return value
