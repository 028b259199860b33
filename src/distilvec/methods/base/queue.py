"""Methods that compare a batch with a queue of the teacher's vectors of earlier batches."""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from distilvec.core.objective import Objective, ObjectiveContext, Weights


class QueueObjective(Objective):
    """A first-in, first-out queue of `queue` vectors of the teacher (float16, as in the cache).

    The queue serves a batch first and then takes its vectors, in training only. It holds a text at most once and leaves
    the batch's own texts out of what it serves. So no text meets itself, and SAM's second pass adds nothing.
    Checkpoints hold the queue.
    """

    queue_vectors: Tensor
    queue_rows: Tensor  # corpus rows; -1: not filled yet
    queue_count: Tensor  # of all vectors ever taken

    def __init__(
        self, context: ObjectiveContext, weights: Weights, queue: int, defaults: Weights | None = None
    ) -> None:
        super().__init__(context, weights, defaults)
        self.register_buffer("queue_vectors", torch.zeros(queue, context.teacher.dim, dtype=torch.float16))
        self.register_buffer("queue_rows", torch.full((queue,), -1))
        self.register_buffer("queue_count", torch.tensor(0))

    def filled(self, rows: Int[Tensor, " batch"]) -> Bool[Tensor, ""]:
        """Return whether the queue is full, or holds all texts: those of a batch already, before the queue takes it."""
        return (self.queue_count >= len(self.queue_rows)) | (rows[:, None] == self.queue_rows).any(1).all()

    def other_vectors(self, rows: Int[Tensor, " batch"]) -> tuple[Float[Tensor, "queue dim"], Bool[Tensor, " queue"]]:
        """Return the queue's vectors, and a mask of those that are filled and not of these corpus rows.

        On a CPU, which waits for nothing, slots that were never filled are left out.
        """
        slots = len(self.queue_rows)
        if rows.device.type == "cpu":
            slots = min(slots, int(self.queue_count))
        kept = self.queue_rows[:slots]
        return self.queue_vectors[:slots].float(), (kept >= 0) & (kept[:, None] != rows).all(1)

    @torch.no_grad()
    def take_up(self, rows: Int[Tensor, " batch"], vectors: Float[Tensor, "batch dim"]) -> None:
        """Write the vectors of rows that are not in the queue over the oldest ones.

        Shapes do not depend on the number of new rows: slots that are not needed get their own content again.
        """
        size = len(self.queue_rows)
        new = (rows[:, None] != self.queue_rows).all(1)
        chosen = (~new).int().argsort(stable=True)[:size]  # new rows first, in their order
        order = torch.arange(len(chosen), device=rows.device)
        slots, there = (self.queue_count + order) % max(1, size), order < new.sum()
        content = vectors[chosen].to(self.queue_vectors.dtype)
        self.queue_vectors[slots] = content.where(there[:, None], self.queue_vectors[slots])
        self.queue_rows[slots] = rows[chosen].where(there, self.queue_rows[slots])
        self.queue_count += there.sum()
