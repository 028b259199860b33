"""The head of a labelled task: a text's vectors in, class logits or a score out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn


@dataclass(frozen=True)
class TaskInfo:
    """What a labelled task is to an objective. `classes` is 1 for scores (STS); `members` 2 where a pair is encoded apart."""

    kind: Literal["classification", "pair", "sts"]
    classes: int
    members: int = 1


class TaskHead(nn.Module):
    """A linear layer on the text's vector in the backbone's width (ModelOutputs.vector).

    Classification and pairs give logits. STS gives a score from 0 to 1: the sigmoid of one logit where the pair is one input,
    the cosine of the two vectors where its texts are encoded apart (no parameters then). Classes of texts encoded apart come
    from u, v and |u - v| side by side (Sentence-BERT, section 3).
    """

    def __init__(self, width: int, task: TaskInfo) -> None:
        super().__init__()
        self.task, self.width = task, width
        cosine = task.kind == "sts" and task.members == 2
        self.linear = None if cosine else nn.Linear(width * (3 if task.members == 2 else 1), task.classes)

    def forward(self, pooled: Float[Tensor, "texts width"]) -> Float[Tensor, "examples classes"]:
        """Logits [examples, classes], or scores [examples, 1]; of two members the first texts come before all second ones."""
        if self.task.members == 2:
            first, second = pooled.chunk(2)
            if self.linear is None:
                return nn.functional.cosine_similarity(first, second, dim=-1)[:, None]
            pooled = torch.cat([first, second, (first - second).abs()], dim=-1)
        assert self.linear is not None
        logits: Tensor = self.linear(pooled)
        return logits.sigmoid() if self.task.kind == "sts" else logits
