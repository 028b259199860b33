"""What flows through the house: text batches in, named signals out. One type each, for student and teacher alike."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Literal

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from distilvec.errors import DistilvecError

LayerPooling = Literal["own", "mean", "cls", "lasttoken"]
Text = str | tuple[str, str]


@dataclass(frozen=True)
class TextBatch:
    """A micro-batch of the corpus.

    `rows` are corpus row numbers, the key to every cache. `tokens` holds the student's `input_ids` and, only where the
    batch has padding, `attention_mask` (1 = token): without it every position is a token and the faster kernels apply.
    `sources` numbers the data set each row came from.
    """

    rows: Int[Tensor, " batch"]
    tokens: dict[str, Tensor]
    sources: Int[Tensor, " batch"]
    texts: list[Text] | None = None
    labels: Tensor | None = None

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
        )


@dataclass(frozen=True)
class Wants:
    """What to keep from a forward pass; nothing else is computed or stored.

    Layers are numbered as in transformers' `hidden_states`: 0 is the embedding output, 1 the first layer; negative
    numbers count from the last. Attention layers are numbered from 1 likewise. `layer_pooling` says how `pooled_layers`
    are pooled; "own" is as the model pools its last layer. With a second view, layers and embedding are the first view's.
    """

    embedding: bool = False
    pre_dense: bool = False
    pooled_layers: tuple[int, ...] = ()
    hidden_layers: tuple[int, ...] = ()
    attention_layers: tuple[int, ...] = ()
    second_view: bool = False
    layer_pooling: LayerPooling = "own"

    def __or__(self, other: Wants) -> Wants:
        """Everything that either one wants; DistilvecError where both want pooled layers, but not pooled alike."""
        kinds = {wants.layer_pooling for wants in (self, other) if wants.pooled_layers}
        if len(kinds) > 1:
            raise DistilvecError(f"layers can be pooled in one way at a time; found {' and '.join(sorted(kinds))} wanted together.")
        return Wants(
            self.embedding or other.embedding,
            self.pre_dense or other.pre_dense,
            tuple(sorted({*self.pooled_layers, *other.pooled_layers})),
            tuple(sorted({*self.hidden_layers, *other.hidden_layers})),
            tuple(sorted({*self.attention_layers, *other.attention_layers})),
            self.second_view or other.second_view,
            kinds.pop() if kinds else "own",
        )


@dataclass(frozen=True)
class Encoded:
    """The answer to `Wants`, from a student, a live teacher or a cache. Fields that were not wanted are None or empty.

    `embedding` is what the shipped model returns; `pre_dense` the pooled vector before the first Dense layer;
    `pooled_layers[l]` the pooled hidden states of layer l; `attentions[l]` head-averaged attention probabilities.
    Layer keys are the numbers that were asked for.
    """

    embedding: Float[Tensor, "batch width"] | None = None
    pre_dense: Float[Tensor, "batch inner"] | None = None
    pooled_layers: dict[int, Float[Tensor, "batch inner"]] = field(default_factory=dict)
    hidden_layers: dict[int, Float[Tensor, "batch tokens inner"]] = field(default_factory=dict)
    attentions: dict[int, Float[Tensor, "batch tokens tokens"]] = field(default_factory=dict)
    second_view: Float[Tensor, "batch width"] | None = None
    mask: Bool[Tensor, "batch tokens"] | None = None
