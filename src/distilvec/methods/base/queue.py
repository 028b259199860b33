"""Methods that compare a batch with a queue of the teacher's vectors of earlier batches."""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from distilvec.core.objective import Objective, ObjectiveContext, Weights


class QueueObjective(Objective):
    """A first-in, first-out queue of `queue` vectors of the teacher (float16, as in the cache).

    A batch reads the queue first, and its own vectors are written afterwards, in training only. The queue holds a text
    at most once, and a batch does not read its own texts. So no text meets itself, and SAM's second pass adds nothing.
    Checkpoints hold the queue.
    """

    queue_vectors: Tensor
    queue_rows: Tensor  # corpus rows; -1: not filled yet
    queue_count: Tensor  # of all vectors ever written

    def __init__(
        self, context: ObjectiveContext, weights: Weights, queue: int, defaults: Weights | None = None
    ) -> None:
        super().__init__(context, weights, defaults)
        self.register_buffer("queue_vectors", torch.zeros(queue, context.teacher.dim, dtype=torch.float16))
        self.register_buffer("queue_rows", torch.full((queue,), -1))
        self.register_buffer("queue_count", torch.tensor(0))

    def filled(self, rows: Int[Tensor, " batch"]) -> Bool[Tensor, ""]:
        """Return whether the queue is full, or holds the whole corpus: every text of this batch is already in it."""
        is_full = self.queue_count >= len(self.queue_rows)
        holds_batch = (rows[:, None] == self.queue_rows).any(1).all()
        return is_full | holds_batch

    def other_vectors(self, rows: Int[Tensor, " batch"]) -> tuple[Float[Tensor, "queue dim"], Bool[Tensor, " queue"]]:
        """Return the queue's vectors, and a mask of those that are filled and not of these corpus rows.

        On a CPU, which waits for nothing, slots that were never filled are left out.
        """
        slots = len(self.queue_rows)
        if rows.device.type == "cpu":
            slots = min(slots, int(self.queue_count))
        queue_rows = self.queue_rows[:slots]
        is_other = (queue_rows >= 0) & (queue_rows[:, None] != rows).all(1)
        return self.queue_vectors[:slots].float(), is_other

    @torch.no_grad()
    def enqueue(self, rows: Int[Tensor, " batch"], vectors: Float[Tensor, "batch dim"]) -> None:
        """Write the vectors of rows that are not in the queue over the oldest ones.

        Shapes do not depend on the number of new rows, which the processor would have to wait for: slots that are not
        needed get their own content again.
        """
        size = len(self.queue_rows)
        is_new = (rows[:, None] != self.queue_rows).all(1)
        order = (~is_new).int().argsort(stable=True)[:size]  # new rows first, in their order
        ranks = torch.arange(len(order), device=rows.device)
        slots = (self.queue_count + ranks) % max(1, size)
        is_written = ranks < is_new.sum()

        new_vectors = vectors[order].to(self.queue_vectors.dtype)
        self.queue_vectors[slots] = new_vectors.where(is_written[:, None], self.queue_vectors[slots])
        self.queue_rows[slots] = rows[order].where(is_written, self.queue_rows[slots])
        self.queue_count += is_written.sum()
