"""Teachers of a training step: outputs for a batch, from a cache, from several teachers, or none."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Protocol

import torch
from torch import nn

from distilvec.core.batch import TextBatch
from distilvec.core.errors import DistilvecError
from distilvec.core.outputs import ModelOutputs, OutputSpec
from distilvec.teachers.cache.index import Keys
from distilvec.teachers.cache.signals import decompress
from distilvec.teachers.cache.store import TeacherCache


class BatchTeacher(Protocol):
    """Outputs of a teacher for a batch: CachedTeacher, LiveTeacher (live.py), SeveralTeachers or NoTeacher."""

    def signals(self, batch: TextBatch) -> ModelOutputs:
        """The required outputs on the batch's device, float32, without gradient."""
        ...


Finish = Callable[[TextBatch], ModelOutputs]


def read_ahead(teacher: BatchTeacher, batch: TextBatch) -> Finish:
    """Read the caches for a batch on the CPU; the result gives the teacher's outputs for the batch on its device.

    A teacher that runs has nothing to read, and runs in the result. Threads may call this, but not the result.
    """
    if isinstance(teacher, CachedTeacher):
        return teacher.read(batch)
    if isinstance(teacher, SeveralTeachers):
        first, *others = (read_ahead(one, batch) for one in (teacher.first, *teacher.others))
        return lambda batch: replace(first(batch), others=tuple(other(batch) for other in others))
    return teacher.signals


class CachedTeacher:
    """Reads a teacher's outputs from its cache; the model is not in memory.

    `keys` are those of all corpus rows. `head` is the head of the task that the teacher was fine-tuned for: logits are
    its outputs for the cached vectors.
    """

    def __init__(self, cache: TeacherCache, keys: Keys, required: OutputSpec, head: nn.Module | None = None) -> None:
        if found := uncached(required):
            raise DistilvecError(f"no cache holds {', '.join(found)}.", "Set teacher.live=true.", key="teacher.live")
        fix = "Fill one for this recipe: distilvec cache fill."
        if required.tokens and not cache.manifest.tokens:
            raise DistilvecError(f"{cache.folder} has no token signals, which the method requires.", fix, key="cache")
        self.positions = cache.positions(keys)
        if missing := int((self.positions < 0).sum()):
            raise DistilvecError(
                f"{missing:,} of {len(keys):,} rows have no vector in {cache.folder}.", fix, key="cache"
            )
        self.cache, self.required, self.head = cache, required, None if head is None else head.eval()
        self._settings = cache.manifest.tokens if required.tokens else None
        self._token_signals = list(self._settings.signals) if self._settings else []

    def signals(self, batch: TextBatch) -> ModelOutputs:
        """Outputs for the batch's rows, float32; token signals are padded on the right."""
        return self.read(batch)(batch)

    def read(self, batch: TextBatch) -> Finish:
        """Read the cache for the batch's rows, into pinned memory if the batch is there; see `read_ahead`."""
        required, positions = self.required, self.positions[batch.rows.cpu().numpy()]
        names = {"embedding": required.embedding, "pre_dense": required.pre_dense}
        names["vector"] = required.vector or required.logits
        stored = {name: torch.from_numpy(self.cache.read(positions, name)) for name, needed in names.items() if needed}
        if batch.rows.is_pinned():
            stored = {name: value.pin_memory() for name, value in stored.items()}
        tokens = {name: self.cache.read_ragged(positions, name) for name in self._token_signals}

        @torch.no_grad()
        def finish(batch: TextBatch) -> ModelOutputs:
            device = batch.rows.device
            found = {name: value.to(device, non_blocking=True) for name, value in stored.items()}
            logits = self.head.to(device)(found["vector"]) if required.logits and self.head is not None else None
            return ModelOutputs(
                embedding=found.get("embedding"),
                pre_dense=found.get("pre_dense"),
                vector=found["vector"] if required.vector else None,
                logits=logits,
                **(decompress(tokens, self._settings, device) if self._settings and tokens else {}),
            )

        return finish


class SeveralTeachers:
    """A recipe's first teacher; `others` of its outputs are those of the further ones."""

    def __init__(self, first: BatchTeacher, others: Sequence[BatchTeacher]) -> None:
        self.first, self.others = first, others

    def signals(self, batch: TextBatch) -> ModelOutputs:
        """Every teacher's outputs."""
        return replace(self.first.signals(batch), others=tuple(other.signals(batch) for other in self.others))


class NoTeacher:
    """Teacher of a method that requires none."""

    def signals(self, batch: TextBatch) -> ModelOutputs:
        """No outputs."""
        return ModelOutputs()


def uncached(required: OutputSpec) -> list[str]:
    """Required outputs that no cache keeps, in words."""
    named = {
        "attention maps": required.attention_layers,
        "hidden states of layers": required.hidden_layers,
        "queries, keys and values": required.projection_layers,
        "a second view": required.second_view,
        "pooled states of layers": required.pooled_layers,
        "gates and experts": required.experts,
    }
    return [name for name, layers in named.items() if layers]
