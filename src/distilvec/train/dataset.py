"""Training data: tokenized rows, and the teacher's outputs for them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Protocol

import numpy as np
import torch
from torch import nn

from distilvec.alignment.store import AlignmentStore
from distilvec.core.batch import TextBatch
from distilvec.core.errors import DistilvecError
from distilvec.core.outputs import ModelOutputs, OutputSpec
from distilvec.data.corpus import Corpus
from distilvec.data.labeled import Examples
from distilvec.data.tokens import TokenStore
from distilvec.teachers.cache.codec import decompress
from distilvec.teachers.cache.store import TeacherCache


class Teacher(Protocol):
    """Gives the teacher's outputs for a batch: from a cache or by running the model."""

    def signals(self, batch: TextBatch) -> ModelOutputs:
        """The required outputs on the batch's device, without gradient."""


class TrainingRows(Protocol):
    """The data of a training loop; `TrainingData` is one."""

    @property
    def teacher(self) -> Teacher:
        """The teacher of the same rows."""

    @property
    def train_rows(self) -> np.ndarray:
        """Numbers of the examples to train on, int64."""

    @property
    def holdout_rows(self) -> np.ndarray:
        """Numbers of the validation examples, int64."""

    @property
    def lengths(self) -> np.ndarray:
        """Tokens of every example, int32."""

    def batch(self, numbers: np.ndarray) -> TextBatch:
        """The student's batch of these examples, on the CPU."""


class CachedTeacher:
    """Reads the teacher's signals from its cache; the model is not in memory.

    `keys` are those of all corpus rows. `head` is that of the task the teacher was fine-tuned for: logits are its answer to
    the cached vectors.
    """

    def __init__(
        self, cache: TeacherCache, keys: np.ndarray, required: OutputSpec, head: nn.Module | None = None
    ) -> None:
        if found := uncached(required):
            raise DistilvecError(
                f"[teacher.live] a teacher cache does not hold {', '.join(found)}, which the method needs. Set teacher.live=true."
            )
        if required.tokens and not cache.manifest.tokens:
            raise DistilvecError(
                f"[cache] the teacher cache {cache.folder} holds nothing of the teacher's tokens, which the method needs. "
                "Fill one for this recipe: distilvec cache fill."
            )
        self.cache, self.required = cache, required
        self.head = None if head is None else head.eval()
        self.positions = cache.positions(keys)
        missing = int((self.positions < 0).sum())
        if missing:
            raise DistilvecError(
                f"[cache] {missing:,} of {len(keys):,} corpus rows have no teacher vector in {cache.folder}. Fill it: distilvec cache fill."
            )
        self._token_signals = (
            [name for name, signal in cache.signals.items() if signal.uneven] if required.tokens else []
        )

    @torch.no_grad()
    def signals(self, batch: TextBatch) -> ModelOutputs:
        """What is wanted of the batch's rows, float32, token signals padded on the right."""
        required, device = self.required, batch.rows.device
        positions = self.positions[batch.rows.cpu().numpy()]

        def read(signal: str) -> torch.Tensor:
            return torch.from_numpy(self.cache.read(positions, signal)).to(device, non_blocking=True)

        vector = read("vector") if required.vector or required.logits else None
        tokens = {name: self.cache.read_ragged(positions, name) for name in self._token_signals}
        return ModelOutputs(
            embedding=read("embedding") if required.embedding else None,
            pre_dense=read("pre_dense") if required.pre_dense else None,
            vector=vector if required.vector else None,
            logits=self._logits(vector) if required.logits else None,
            **(decompress(tokens, self.cache.manifest.tokens, device) if tokens and self.cache.manifest.tokens else {}),
        )

    def _logits(self, vector: torch.Tensor | None) -> torch.Tensor:
        assert self.head is not None and vector is not None
        logits: torch.Tensor = self.head.to(vector.device)(vector)
        return logits


class SeveralTeachers:
    """A recipe's first teacher, and in `others` of what it answers what the further ones do."""

    def __init__(self, first: Teacher, others: Sequence[Teacher]) -> None:
        self.first, self.others = first, others

    def signals(self, batch: TextBatch) -> ModelOutputs:
        """Every teacher's answer."""
        return replace(self.first.signals(batch), others=tuple(other.signals(batch) for other in self.others))


def uncached(required: OutputSpec) -> list[str]:
    """What of these wants no cache keeps, in words."""
    named = {
        "attention maps": required.attention_layers,
        "hidden states of layers": required.hidden_layers,
        "queries, keys and values": required.projection_layers,
        "a second view": required.second_view,
        "pooled states of layers": required.pooled_layers,
        "gates and experts": required.experts,
    }
    return [name for name, wanted in named.items() if wanted]


@dataclass(frozen=True)
class TrainingData:
    """Examples, their tokens and their teacher.

    `train_rows` and `holdout_rows` number examples, int64: those of `examples`, or, without any, the corpus's rows.
    """

    corpus: Corpus
    tokens: TokenStore
    teacher: Teacher
    train_rows: np.ndarray
    holdout_rows: np.ndarray
    alignment: AlignmentStore | None = None
    examples: Examples | None = None

    @cached_property
    def lengths(self) -> np.ndarray:
        """Tokens of every example; of an example with two texts those of both."""
        lengths = self.tokens.lengths
        return lengths if self.examples is None else lengths[self.examples.rows].sum(1, dtype=np.int32)

    def batch(self, numbers: np.ndarray) -> TextBatch:
        """The student's batch of these examples, on the CPU; with two texts per example all first texts come first."""
        labels, members, rows = None, 1, numbers
        if self.examples is not None:
            labels, members = torch.from_numpy(self.examples.labels[numbers]), self.examples.info.members
            rows = self.examples.rows[numbers].T.reshape(-1)
        return TextBatch(
            rows=torch.from_numpy(np.ascontiguousarray(rows, dtype=np.int64)),
            tokens=self.tokens.batch(rows),
            sources=torch.from_numpy(self.corpus.sources[rows].astype(np.int64)),
            labels=labels,
            members=members,
            alignment=self.alignment.batch(rows) if self.alignment is not None else None,
        )
