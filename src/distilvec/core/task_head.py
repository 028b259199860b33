"""Head of a labelled task: from the vectors of texts to class logits or a score."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn

TaskKind = Literal["classification", "multilabel", "pair", "sts"]
PAIRS: tuple[TaskKind, ...] = ("pair", "sts")  # an example is two texts


@dataclass(frozen=True)
class TaskInfo:
    """A labelled task. `classes` is 1 for scores (STS); `texts_per_example` is 2 for pairs encoded separately."""

    kind: TaskKind
    classes: int
    texts_per_example: int = 1


@dataclass(frozen=True)
class HeadInfo:
    """The head's dropout rate, in training, and the size of its hidden layer (tanh); None: a linear layer alone."""

    dropout: float = 0.0
    hidden: int | None = None


class TaskHead(nn.Module):
    """A linear layer on `ModelOutputs.vector`, for classes or for a score from 0 to 1; `info` adds a layer before it.

    - Classes: logits of the vector, or of [u, v, |u - v|] for two texts encoded separately (Sentence-BERT, section 3).
    - Several classes of a text (multilabel): the same logits, each for a sigmoid of its own.
    - STS: the sigmoid of one logit, or the cosine of two vectors, which needs no parameters and ignores `info`.

    `fitted`: the head does not begin at random (pipeline/start.py), so that the start is a student that could ship.
    """

    fitted = False

    def __init__(self, width: int, task: TaskInfo, info: HeadInfo = HeadInfo()) -> None:
        super().__init__()
        self.task, self.width, self.info, pair = task, width, info, task.texts_per_example == 2
        inputs, self.hidden, self.linear = width * (3 if pair else 1), None, None
        if not (pair and task.kind == "sts"):
            self.hidden = None if info.hidden is None else nn.Linear(inputs, info.hidden)
            self.linear = nn.Linear(info.hidden or inputs, task.classes)

    def forward(self, pooled: Float[Tensor, "texts dim"]) -> Float[Tensor, "examples classes"]:
        """Return logits [examples, classes] or scores [examples, 1]; first texts come before all second ones."""
        if self.linear is None:
            first, second = pooled.chunk(2)
            return nn.functional.cosine_similarity(first, second, dim=-1)[:, None]
        pooled = nn.functional.dropout(self.inputs(pooled), self.info.dropout, self.training)
        logits: Tensor = self.linear(pooled if self.hidden is None else self.hidden(pooled).tanh())
        return logits.sigmoid() if self.task.kind == "sts" else logits

    def inputs(self, pooled: Float[Tensor, "texts dim"]) -> Float[Tensor, "examples width"]:
        """Return what the first linear layer reads of the texts' vectors."""
        if self.task.texts_per_example == 1:
            return pooled
        first, second = pooled.chunk(2)
        return torch.cat([first, second, (first - second).abs()], dim=-1)
