"""Training data: tokenized rows, and the teacher's outputs for them."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

import numpy as np
import torch

from distilvec.alignment.store import AlignmentStore
from distilvec.core.batch import TextBatch
from distilvec.core.similarity import Similarity
from distilvec.data.corpus import Corpus
from distilvec.data.examples import Examples
from distilvec.data.tokens import TokenStore
from distilvec.teachers.embedder import BatchTeacher


class TrainingRows(Protocol):
    """The data of a training loop; `TrainingData` is one."""

    @property
    def teacher(self) -> BatchTeacher:
        """Answers for the same rows."""
        ...

    @property
    def train_rows(self) -> np.ndarray:
        """Numbers of the examples to train on, int64."""
        ...

    def pass_rows(self, epoch: int, seed: int) -> np.ndarray:
        """Numbers of the examples of one pass, int64."""
        ...

    @property
    def holdout_rows(self) -> np.ndarray:
        """Numbers of the validation examples, int64."""

    @property
    def lengths(self) -> np.ndarray:
        """Tokens of every example, int32."""

    def batch(self, numbers: np.ndarray) -> TextBatch:
        """The student's batch of these examples, on the CPU."""


@dataclass(frozen=True)
class TrainingData:
    """Examples, their tokens and their teacher.

    `train_rows` and `holdout_rows` number examples, int64: those of `examples`, or, without any, the corpus's rows.
    `unlabeled_rows` are further training examples, whose label is not used. `similarity` is how the teacher's vectors
    are compared.
    """

    corpus: Corpus
    tokens: TokenStore
    teacher: BatchTeacher
    train_rows: np.ndarray
    holdout_rows: np.ndarray
    alignment: AlignmentStore | None = None
    examples: Examples | None = None
    unlabeled_rows: np.ndarray | None = None
    similarity: Similarity = "cosine"

    def pass_rows(self, epoch: int, seed: int) -> np.ndarray:
        """Numbers of the examples of one pass: `train_rows`, and at most as many others, not the same every time."""
        if self.unlabeled_rows is None:
            return self.train_rows
        generator = np.random.Generator(np.random.PCG64([seed, epoch, 1]))
        unlabeled = generator.permutation(self.unlabeled_rows)[: len(self.train_rows)]
        return np.concatenate([self.train_rows, unlabeled])

    @cached_property
    def lengths(self) -> np.ndarray:
        """Tokens of every example; of an example with two texts those of both."""
        lengths = self.tokens.lengths
        if self.examples is None:
            return lengths
        return lengths[self.examples.rows].sum(1, dtype=np.int32)

    def batch(self, numbers: np.ndarray) -> TextBatch:
        """The student's batch of these examples, on the CPU; with two texts per example all first texts come first."""
        rows = numbers
        labels = None
        texts_per_example = 1
        score_range = 1.0
        if self.examples is not None:
            rows = self.examples.rows[numbers].T.reshape(-1)
            labels = torch.from_numpy(self.examples.labels[numbers])
            texts_per_example = self.examples.info.texts_per_example
            score_range = self.examples.score_range
        return TextBatch(
            rows=torch.from_numpy(np.ascontiguousarray(rows, dtype=np.int64)),
            tokens=self.tokens.batch(rows),
            sources=torch.from_numpy(self.corpus.sources[rows].astype(np.int64)),
            labels=labels,
            texts_per_example=texts_per_example,
            score_range=score_range,
            alignment=self.alignment.batch(rows) if self.alignment is not None else None,
        )
