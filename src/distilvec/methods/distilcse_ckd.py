"""DistilCSE's contrastive distillation: a text's teacher vector is its positive, those of other texts, now and before, its negatives.

Paper: Gao, Wu, Wang, Wang, Zang, Wang, Hu: "DistilCSE: Effective Knowledge Distillation For Contrastive Sentence
Embeddings", 2021. Not to be confused with DistillCSE (Xu et al. 2023), which is `distillcse`. Only cached vectors are needed.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from distilvec.core.batch import TextBatch
from distilvec.core.errors import DistilvecError
from distilvec.core.objective import Objective, Sizes, Terms
from distilvec.core.outputs import ModelOutputs, OutputSpec
from distilvec.losses.contrastive import info_nce
from distilvec.losses.distance import mean_squared_error


class DistilCseCkd(Objective):
    """ckd: InfoNCE of the projected student against teacher vectors, in the batch and in a queue; mse: optional (weight 0).

    Options: `queue` is how many past teacher vectors are kept as negatives (float16, as the cache has them; 0 for none),
    `scale` what cosines are multiplied by at the start; it is learnt, as its logarithm.
    The queue first serves a batch, then takes it up, in training only. A text stands in it at most once, and the batch's own
    texts are left out of the negatives, so that no text is its own negative and the second pass of SAM, over the same
    batches, adds nothing. It is saved with the checkpoint, so that resuming is exact.
    Note: the paper's queue may hold a text several times when it is longer than the corpus; ours then holds every text once.
    Note: the embedding is normalised where the teacher's is. The projection sees it at the length sqrt(width), which is what
    a LayerNorm leaves, as the paper's sees the un-normalised vector: else its bias would outweigh the text.
    """

    compatible = False
    in_batch = True
    citation = """@misc{gao2021distilcse,
  title = {{DistilCSE}: Effective Knowledge Distillation For Contrastive Sentence Embeddings},
  author = {Gao, Chaochen and Wu, Xing and Wang, Peng and Wang, Jue and Zang, Liangjun and Wang, Zhongyuan and Hu, Songlin},
  year = {2021},
  eprint = {2112.05638},
  archivePrefix = {arXiv}
}"""

    queue_vectors: Tensor
    queue_rows: Tensor
    queue_count: Tensor

    def __init__(self, sizes: Sizes, queue: int = 50_000, scale: float = 20.0) -> None:
        super().__init__()
        if queue < 0:
            raise DistilvecError(
                f"[method.options.queue] found {queue}; expected a number of vectors, or 0 for no queue."
            )
        if scale <= 0:
            raise DistilvecError(f"[method.options.scale] found {scale}; expected a number above 0.")
        width = sizes.embedding_width or sizes.teacher_width
        self.projection = nn.Linear(width, sizes.teacher_width)
        self.log_scale = nn.Parameter(torch.tensor(math.log(scale)))
        self.register_buffer("queue_vectors", torch.zeros(queue, sizes.teacher_width, dtype=torch.float16))
        self.register_buffer(
            "queue_rows", torch.full((queue,), -1)
        )  # corpus rows; -1 where the queue is not filled yet
        self.register_buffer("queue_count", torch.tensor(0))  # of all vectors ever taken up
        self.student_outputs = self.teacher_outputs = OutputSpec(embedding=True)
        self.weights = {"ckd": 1.0, "mse": 0.0}

    def forward(self, batch: TextBatch, student: ModelOutputs, teacher: ModelOutputs) -> Terms:
        """The terms that have a weight."""
        assert student.embedding is not None and teacher.embedding is not None
        projected = self.projection(F.normalize(student.embedding, dim=-1) * student.embedding.shape[-1] ** 0.5)
        vectors, counted = self.negatives(batch.rows)
        contrast = info_nce(projected, teacher.embedding, torch.exp(-self.log_scale), vectors, counted)
        if self.training:
            self.take_up(batch.rows, teacher.embedding)
        terms = {"ckd": contrast}
        if self.weights["mse"]:
            terms["mse"] = mean_squared_error(projected, teacher.embedding)
        return terms

    def negatives(self, rows: Int[Tensor, " batch"]) -> tuple[Float[Tensor, "queue width"], Bool[Tensor, " queue"]]:
        """The queue's vectors, and which of them are there and are not of these corpus rows.

        On a processor, where nothing has to be waited for, places that were never filled are left out.
        """
        places = len(self.queue_rows)
        if rows.device.type == "cpu":
            places = min(places, int(self.queue_count))
        kept = self.queue_rows[:places]
        return self.queue_vectors[:places].float(), (kept >= 0) & (kept[:, None] != rows).all(1)

    @torch.no_grad()
    def take_up(self, rows: Int[Tensor, " batch"], vectors: Float[Tensor, "batch width"]) -> None:
        """Put the vectors of rows that are not in the queue in the place of the oldest ones.

        As many places as could be needed are written, in shapes that do not depend on how many are: the others get what they have.
        """
        size = len(self.queue_rows)
        new = (rows[:, None] != self.queue_rows).all(1)
        chosen = (~new).int().argsort(stable=True)[:size]  # new rows first, in their order
        order = torch.arange(len(chosen), device=rows.device)
        places, there = (self.queue_count + order) % max(1, size), order < new.sum()
        self.queue_vectors[places] = (
            vectors[chosen].to(self.queue_vectors.dtype).where(there[:, None], self.queue_vectors[places])
        )
        self.queue_rows[places] = rows[chosen].where(there, self.queue_rows[places])
        self.queue_count += there.sum()
