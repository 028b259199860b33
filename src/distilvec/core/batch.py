"""Micro-batch of texts: tokens, sources, labels and the alignment of two tokenizers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

Text = str | tuple[str, str]
NO_LABEL = -100  # a class that is not used; a score that is not is NaN


Labels = Int[Tensor, " examples"] | Float[Tensor, " examples"] | Float[Tensor, "examples classes"]


def is_missing(labels: Labels) -> Bool[Tensor, " examples"]:
    """Return which examples have no label."""
    if labels.ndim == 2:
        return labels[:, 0].isnan()
    return labels.isnan() if labels.is_floating_point() else labels == NO_LABEL


@dataclass(frozen=True)
class Alignment:
    """Pairs of a student's and a teacher's tokens, in each text of a batch.

    `pairs` holds (student position, teacher position), counted from the text's first token, in order of the student's;
    -1 fills up. `shares` is None for one-to-one pairs, else each pair's part of the student's token (0 where `pairs` is
    -1).
    """

    pairs: Int[Tensor, "batch pairs 2"]
    shares: Float[Tensor, "batch pairs"] | None = None

    def moved(self, move: Callable[[Tensor], Tensor]) -> Alignment:
        """Return the alignment with its tensors moved."""
        return Alignment(move(self.pairs), None if self.shares is None else move(self.shares))


@dataclass(frozen=True)
class PairBatch:
    """Stored documents that answer the queries of a batch, and others that do not.

    `is_query` tells queries from texts that have no answers. `answers` are rows of `candidates`, the stored vectors; 0
    for other texts. `may_be_negative`: the candidate is no known answer of the query. `is_mined`: it was chosen for its
    likeness to an answer, so it may be an answer that nobody has clicked. `log_frequency`: of the candidate among all
    answers, 0 at its mean. `weights` of the queries' losses have the mean 1.
    """

    is_query: Bool[Tensor, " batch"]
    answers: Int[Tensor, " batch"]
    weights: Float[Tensor, " batch"]
    candidates: Float[Tensor, "candidates dim"]
    log_frequency: Float[Tensor, " candidates"]
    may_be_negative: Bool[Tensor, "batch candidates"]
    is_mined: Bool[Tensor, "batch candidates"]

    def moved(self, move: Callable[[Tensor], Tensor]) -> PairBatch:
        """Return the pairs with their tensors moved."""
        return PairBatch(*(move(value) for value in vars(self).values()))


@dataclass(frozen=True)
class TextBatch:
    """A micro-batch of the corpus.

    An example is one text, or a pair encoded separately (`texts_per_example` 2): then all first texts come before all
    second ones. `rows` are corpus row numbers, the keys of every cache; `sources` number the data set of each row.
    `tokens` holds the student's `input_ids`, `attention_mask` (1 = token) only if there is padding, and
    `token_type_ids` for pairs in one input. `labels` are one per example: int64 classes, or float32 scores from 0 to 1,
    or, where a text has several classes, a row of float32 zeros and ones; `is_missing` finds those not used.
    `score_range` is the greatest less the least score in the task's own scale.
    `pairs`: with them some texts are queries of no corpus row: their row is -1, and no teacher's outputs are theirs.
    """

    rows: Int[Tensor, " batch"]
    tokens: dict[str, Tensor]
    sources: Int[Tensor, " batch"]
    texts: list[Text] | None = None
    labels: Labels | None = None
    texts_per_example: int = 1
    score_range: float = 1.0
    alignment: Alignment | None = None
    pairs: PairBatch | None = None

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def examples(self) -> int:
        """Number of examples."""
        return len(self.rows) // self.texts_per_example

    @property
    def mask(self) -> Bool[Tensor, "batch tokens"]:
        """True at tokens, False at padding."""
        ids, mask = self.tokens["input_ids"], self.tokens.get("attention_mask")
        return torch.ones_like(ids, dtype=torch.bool) if mask is None else mask.bool()

    def rows_of(self, first: int, end: int) -> Int[Tensor, " rows"]:
        """Return the numbers of the rows of examples `first` to `end` - 1, in the order of a batch of these alone."""
        examples = torch.arange(first, end, device=self.rows.device)
        steps = torch.arange(self.texts_per_example, device=self.rows.device) * self.examples
        return (steps[:, None] + examples).flatten()

    def part(self, first: int, end: int) -> TextBatch:
        """Return the batch of examples `first` to `end` - 1, padded as this one is, without its pairs."""
        rows = self.rows_of(first, end)
        found = replace(self, labels=None, pairs=None)._moved(lambda value: value[rows])
        texts = None if self.texts is None else [self.texts[row] for row in rows.tolist()]
        return replace(found, texts=texts, labels=None if self.labels is None else self.labels[first:end])

    def to(self, device: torch.device) -> TextBatch:
        """Return the batch with its tensors on `device`; copies from pinned memory wait for nothing."""
        return self._moved(lambda value: value.to(device, non_blocking=device.type != "cpu"))

    def pin_memory(self) -> TextBatch:
        """Return the batch with its tensors in pinned memory."""
        return self._moved(Tensor.pin_memory)

    def _moved(self, move: Callable[[Tensor], Tensor]) -> TextBatch:
        return replace(
            self,
            rows=move(self.rows),
            tokens={name: move(value) for name, value in self.tokens.items()},
            sources=move(self.sources),
            labels=None if self.labels is None else move(self.labels),
            alignment=None if self.alignment is None else self.alignment.moved(move),
            pairs=None if self.pairs is None else self.pairs.moved(move),
        )
