"""DistillCSE: the teacher's similarities within the batch as soft labels, their fine order shuffled, beside SimCSE.

Paper: Xu, Shao, Chen, Liu: "DistillCSE: Distilled Contrastive Learning for Sentence Embeddings", Findings of EMNLP 2023.
Not to be confused with DistilCSE (Gao et al. 2021), which is `distilcse_ckd`. Only cached vectors are needed.
"""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from distilvec.core.batch import TextBatch
from distilvec.core.errors import DistilvecError
from distilvec.core.objective import Objective, Sizes, Terms
from distilvec.core.outputs import ModelOutputs, OutputSpec
from distilvec.losses.contrastive import info_nce
from distilvec.losses.ranking import group_shuffled, listwise_cross_entropy, others
from distilvec.losses.relations import cosine_relations


class DistillCse(Objective):
    """distill: cross-entropy of the in-batch similarities, teacher to student (first view); simcse: two dropout views.

    Options: `student_temperature` and `teacher_temperature` of distill, `temperature` of simcse. `shuffle` is the share of
    softmax mass of a group within which the student's similarities change places while training (group-p shuffling; null
    leaves them in place). `teacher_widths` says that the cached vector is the vectors of several teachers side by side, and
    how wide each is: their similarities are averaged. (The mean of cosines is also the cosine of the concatenated unit
    vectors; the option normalises each part first.)
    Note: the public student has a projection head while training; ours, as in TALAS' comparison, has none.
    """

    compatible = False
    in_batch = True
    citation = """@inproceedings{xu2023distillcse,
  title = {{DistillCSE}: Distilled Contrastive Learning for Sentence Embeddings},
  author = {Xu, Jiahao and Shao, Wei and Chen, Lihui and Liu, Lemao},
  booktitle = {Findings of EMNLP},
  year = {2023}
}"""

    def __init__(
        self,
        sizes: Sizes,
        student_temperature: float = 0.025,
        teacher_temperature: float = 0.0125,
        temperature: float = 0.05,
        shuffle: float | None = 0.15,
        teacher_widths: list[int] | None = None,
    ) -> None:
        super().__init__()
        if shuffle is not None and not 0 < shuffle <= 1:
            raise DistilvecError(
                f"[method.options.shuffle] found {shuffle}; expected a share of softmax mass above 0 and up to 1, or null."
            )
        self.teacher_widths = teacher_widths or [sizes.teacher_width]
        if sum(self.teacher_widths) != sizes.teacher_width or min(self.teacher_widths) < 1:
            raise DistilvecError(
                f"[method.options.teacher_widths] found {self.teacher_widths}; expected widths that add up to the cached vector's, "
                f"{sizes.teacher_width}."
            )
        self.student_temperature, self.teacher_temperature, self.temperature = (
            student_temperature,
            teacher_temperature,
            temperature,
        )
        self.shuffle = shuffle
        self.weights = {"distill": 1.0, "simcse": 1.0}
        self.settle()

    def settle(self) -> None:
        """No second view without simcse, no teacher without distill."""
        self.student_outputs = OutputSpec(embedding=True, second_view=bool(self.weights["simcse"]))
        self.teacher_outputs = OutputSpec(embedding=bool(self.weights["distill"]))

    def forward(self, batch: TextBatch, student: ModelOutputs, teacher: ModelOutputs) -> Terms:
        """The terms that have a weight."""
        assert student.embedding is not None
        found: Terms = {}
        if self.weights["distill"]:
            assert teacher.embedding is not None
            ours, theirs = (
                others(cosine_relations(student.embedding[None])[0]),
                others(self.similarities(teacher.embedding)),
            )
            if self.shuffle is not None and self.training:
                ours = group_shuffled(ours, theirs, self.shuffle)
            found["distill"] = listwise_cross_entropy(ours, theirs, self.student_temperature, self.teacher_temperature)
        if self.weights["simcse"]:
            assert student.second_view is not None
            found["simcse"] = info_nce(student.embedding, student.second_view, self.temperature)
        return found

    def similarities(self, vectors: Float[Tensor, "batch width"]) -> Float[Tensor, "batch batch"]:
        """Cosines to the teacher, averaged over the teachers where the vector holds several."""
        return torch.stack(
            [cosine_relations(part[None])[0] for part in torch.split(vectors, self.teacher_widths, -1)]
        ).mean(0)
