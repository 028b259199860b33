"""What the loop draws batches from: pre-tokenised rows and the teacher's signals for them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch

from distilvec.batch import Encoded, TextBatch, Wants
from distilvec.data.corpus import Corpus
from distilvec.data.tokens import TokenStore
from distilvec.errors import DistilvecError
from distilvec.teachers.cache import TeacherCache


class Teacher(Protocol):
    """Gives the teacher's side of a batch: from a cache or by running the model."""

    def signals(self, batch: TextBatch) -> Encoded:
        """The wanted signals on the batch's device, without gradient."""
        ...


class CachedTeacher:
    """Reads the teacher's vectors from its cache; the model is not in memory."""

    def __init__(self, cache: TeacherCache, keys: np.ndarray, wants: Wants) -> None:
        if wants.pooled_layers or wants.hidden_layers or wants.attention_layers or wants.second_view:
            raise DistilvecError(f"a teacher cache holds embeddings and pre-dense vectors; the method also wants {wants}.")
        self.cache, self.wants = cache, wants
        self.positions = cache.positions(keys)
        missing = int((self.positions < 0).sum())
        if missing:
            raise DistilvecError(
                f"{missing:,} of {len(keys):,} corpus rows have no teacher vector in {cache.folder}; run `distilvec cache` first."
            )

    def signals(self, batch: TextBatch) -> Encoded:
        """Embedding (and pre-dense vector) of the batch's rows, float32."""
        positions = self.positions[batch.rows.cpu().numpy()]

        def read(signal: str) -> torch.Tensor:
            return torch.from_numpy(self.cache.read(positions, signal)).to(batch.rows.device, non_blocking=True)

        return Encoded(
            embedding=read("embedding") if self.wants.embedding else None,
            pre_dense=read("pre_dense") if self.wants.pre_dense else None,
        )


@dataclass(frozen=True)
class TrainingData:
    """Rows, their tokens and their teacher. Rows are corpus row numbers, int64."""

    corpus: Corpus
    tokens: TokenStore
    teacher: Teacher
    train_rows: np.ndarray
    holdout_rows: np.ndarray

    def batch(self, rows: np.ndarray) -> TextBatch:
        """The student's view of these corpus rows, on the CPU."""
        return TextBatch(
            rows=torch.from_numpy(np.ascontiguousarray(rows, dtype=np.int64)),
            tokens=self.tokens.batch(rows),
            sources=torch.from_numpy(self.corpus.sources[rows].astype(np.int64)),
        )
