"""A micro-batch of texts, with what belongs to it: tokens, sources, labels, the alignment of two tokenizers."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

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
