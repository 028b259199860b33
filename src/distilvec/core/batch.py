"""What flows through the house: text batches in, named signals out. One type each, for student and teacher alike."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Literal

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from distilvec.core.errors import DistilvecError

LayerPooling = Literal["own", "mean", "cls", "lasttoken"]
AlignmentKind = Literal["offsets", "overlap", "mined", "strict"]
Text = str | tuple[str, str]


@dataclass(frozen=True)
class Alignment:
    """Which of the student's tokens go with which of the teacher's, in each text of a batch (alignment.py).

    `pairs` holds (student position, teacher position), both counted from the text's first token, in order of the student's;
    -1 fills up. `shares` is None where pairs are one to one; else the part of the student's token that each of its pairs
    has, 0 where `pairs` is -1.
    """

    pairs: Int[Tensor, "batch pairs 2"]
    shares: Float[Tensor, "batch pairs"] | None = None

    def to(self, device: torch.device) -> Alignment:
        """The same alignment on `device`."""
        return Alignment(self.pairs.to(device), None if self.shares is None else self.shares.to(device))


@dataclass(frozen=True)
class TextBatch:
    """A micro-batch of the corpus.

    `rows` are corpus row numbers, the key to every cache. `tokens` holds the student's `input_ids` and, only where the
    batch has padding, `attention_mask` (1 = token): without it every position is a token and the faster kernels apply; for
    texts that are pairs in one input also `token_type_ids`, where the student knows such.
    `sources` numbers the data set each row came from. An example is one text, or, with two `members`, a pair of texts
    encoded apart: rows, tokens and sources are then all first texts followed by all second ones. `labels` are one an
    example: int64 classes, or float32 scores from 0 to 1.
    """

    rows: Int[Tensor, " batch"]
    tokens: dict[str, Tensor]
    sources: Int[Tensor, " batch"]
    texts: list[Text] | None = None
    labels: Int[Tensor, " examples"] | Float[Tensor, " examples"] | None = None
    members: int = 1
    alignment: Alignment | None = None

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def mask(self) -> Bool[Tensor, "batch tokens"]:
        """True at tokens, False at padding."""
        ids, mask = self.tokens["input_ids"], self.tokens.get("attention_mask")
        return torch.ones_like(ids, dtype=torch.bool) if mask is None else mask.bool()

    def to(self, device: torch.device) -> TextBatch:
        """The same batch with its tensors on `device`."""
        return replace(
            self,
            rows=self.rows.to(device),
            tokens={name: value.to(device, non_blocking=True) for name, value in self.tokens.items()},
            sources=self.sources.to(device),
            labels=None if self.labels is None else self.labels.to(device),
            alignment=None if self.alignment is None else self.alignment.to(device),
        )


@dataclass(frozen=True)
class TokenWants:
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
class Wants:
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
    tokens: TokenWants | None = None

    def __or__(self, other: Wants) -> Wants:
        """Everything that either one wants; DistilvecError where both want pooled layers or tokens, but not alike."""
        kinds = {wants.layer_pooling for wants in (self, other) if wants.pooled_layers}
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
        return Wants(
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
class Encoded:
    """The answer to `Wants`, from a student, a live teacher or a cache. Fields that were not wanted are None or empty.

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
    others: tuple[Encoded, ...] = ()
    importance: Float[Tensor, "batch tokens"] | None = None
    selected: Int[Tensor, "batch selected 2"] | None = None
    grams: dict[int, Float[Tensor, "batch selected selected"]] = field(default_factory=dict)
