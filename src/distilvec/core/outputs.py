"""What is required of a model's forward pass, and what it returns: one type each, for student and teacher alike."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from jaxtyping import Bool, Float, Int
from torch import Tensor

from distilvec.core.errors import DistilvecError

LayerPooling = Literal["own", "mean", "cls", "lasttoken"]
AlignmentKind = Literal["offsets", "overlap", "mined", "strict"]


@dataclass(frozen=True)
class TokenOutputSpec:
    """What a teacher is to tell of its single tokens: what a cache keeps small (teachers/token_signals.py).

    `alignment` is how the student's tokens are matched with its own, None where nothing depends on it. `hidden`: the hidden
    states of these layers, counted from the last (-1). `importance`: the attention a token receives (EMO, eq. 6 and 15).
    `gram_layers`: for these layers of the teacher (numbered from 1) the Gram matrices of the attention rows of the selected
    tokens: of n one-to-one pairs the max(2, n // `divisor`) whose teacher tokens are the most important ones.
    """

    alignment: AlignmentKind | None = None
    hidden: tuple[int, ...] = ()
    importance: bool = False
    gram_layers: tuple[int, ...] = ()
    divisor: int = 3


@dataclass(frozen=True)
class OutputSpec:
    """What to keep from a forward pass; nothing else is computed or stored.

    Layers are numbered as in transformers' `hidden_states`: 0 is the embedding output, 1 the first layer; negative
    numbers count from the last. Attention and projection layers are numbered from 1 likewise. `layer_pooling` says how `pooled_layers`
    are pooled; "own" is as the model pools its last layer. With a second view, layers and embedding are the first view's.
    `vector` is the text's in the model's own width, `experts` what its mixture of experts is made of. `logits` are those of a task's
    head; `tokens` is asked of a teacher only.
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
        """Everything that either one wants; DistilvecError where both want pooled layers or tokens, but not alike."""
        kinds = {required.layer_pooling for required in (self, other) if required.pooled_layers}
        if len(kinds) > 1:
            raise DistilvecError(
                f"[method.options.layer_pooling] layers can be pooled in one way at a time; found {' and '.join(sorted(kinds))} together. "
                "Give all of them the same."
            )
        if self.tokens and other.tokens and self.tokens != other.tokens:
            raise DistilvecError(
                f"[stages] a teacher's tokens can be asked for in one way at a time; found {self.tokens} and {other.tokens}. "
                "Take methods, or options, that need the same."
            )
        return OutputSpec(
            self.embedding or other.embedding,
            self.pre_dense or other.pre_dense,
            tuple(sorted({*self.pooled_layers, *other.pooled_layers})),
            tuple(sorted({*self.hidden_layers, *other.hidden_layers})),
            tuple(sorted({*self.attention_layers, *other.attention_layers})),
            self.second_view or other.second_view,
            kinds.pop() if kinds else "own",
            tuple(sorted({*self.projection_layers, *other.projection_layers})),
            self.vector or other.vector,
            self.experts or other.experts,
            self.logits or other.logits,
            self.tokens or other.tokens,
        )


@dataclass(frozen=True)
class Projections:
    """Queries, keys and values of one layer, by head; keys and values may have fewer heads."""

    query: Float[Tensor, "batch heads tokens head_width"]
    key: Float[Tensor, "batch groups tokens head_width"]
    value: Float[Tensor, "batch groups tokens head_width"]

    def first(self, texts: int) -> Projections:
        """Those of the first `texts` texts."""
        return Projections(self.query[:texts], self.key[:texts], self.value[:texts])


@dataclass(frozen=True)
class ModelOutputs:
    """What a model returns for an `OutputSpec`, from a student, a live teacher or a cache. Fields that were not wanted are None or empty.

    `embedding` is what the shipped model returns; `pre_dense` the pooled vector before the first Dense layer;
    `pooled_layers[l]` the pooled hidden states of layer l; `attentions[l]` head-averaged attention probabilities, of all
    tokens, or of those whose positions were given with the wants. `projections[l]` are queries, keys and values.
    Layer keys are the numbers that were asked for.

    `vector` is pooled and, where the model has experts, their mixture: what the head of a task reads; `gates` have sum 1, `experts` are
    what each of them makes of the pooled vector (models/experts.py). `logits` come from that head (one an example). `others` are
    the answers of a recipe's further teachers, in its order.

    What a teacher tells of its tokens: `hidden_layers` and `mask` in its own tokens, which begin at position 0 on whatever side the
    model pads; `importance`, masses of sum 1 (0 at padding); `selected`, the pairs of Alignment that count most, in descending order
    of importance, -1 fills up; `grams[l]`, centred, of unit Frobenius norm, over `selected`, 0 where that is -1.
    """

    embedding: Float[Tensor, "batch width"] | None = None
    pre_dense: Float[Tensor, "batch inner"] | None = None
    pooled_layers: dict[int, Float[Tensor, "batch inner"]] = field(default_factory=dict)
    hidden_layers: dict[int, Float[Tensor, "batch tokens inner"]] = field(default_factory=dict)
    attentions: dict[int, Float[Tensor, "batch rows tokens"]] = field(default_factory=dict)
    second_view: Float[Tensor, "batch width"] | None = None
    mask: Bool[Tensor, "batch tokens"] | None = None
    projections: dict[int, Projections] = field(default_factory=dict)
    vector: Float[Tensor, "batch inner"] | None = None
    gates: Float[Tensor, "batch experts"] | None = None
    experts: Float[Tensor, "batch experts inner"] | None = None
    logits: Float[Tensor, "examples classes"] | None = None
    others: tuple[ModelOutputs, ...] = ()
    importance: Float[Tensor, "batch tokens"] | None = None
    selected: Int[Tensor, "batch selected 2"] | None = None
    grams: dict[int, Float[Tensor, "batch selected selected"]] = field(default_factory=dict)
