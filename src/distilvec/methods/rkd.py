"""RKD: the distances and angles between the texts of a batch, not the vectors themselves; teacher and student may differ in width.

Paper: Park, Kim, Lu, Cho: "Relational Knowledge Distillation", CVPR 2019, section 3.2.
"""

from __future__ import annotations

from distilvec.core.batch import TextBatch
from distilvec.core.objective import Objective, Sizes, Terms
from distilvec.core.outputs import ModelOutputs, OutputSpec
from distilvec.losses.relations import rkd_angles, rkd_distances


class Rkd(Objective):
    """distance: relative distances of pairs (eq. 5 and 6); angle: cosines of the angles of triplets (eq. 7 and 8).

    Weighted 1 to 2 as in the paper. The angle term holds batch_size^3 numbers.
    """

    compatible = False
    in_batch = True
    citation = """@inproceedings{park2019rkd,
  title = {Relational Knowledge Distillation},
  author = {Park, Wonpyo and Kim, Dongju and Lu, Yan and Cho, Minsu},
  booktitle = {CVPR},
  year = {2019}
}"""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.student_outputs = self.teacher_outputs = OutputSpec(embedding=True)
        self.weights = {"distance": 1.0, "angle": 2.0}

    def forward(self, batch: TextBatch, student: ModelOutputs, teacher: ModelOutputs) -> Terms:
        """The terms that have a weight."""
        assert student.embedding is not None and teacher.embedding is not None
        losses = {"distance": rkd_distances, "angle": rkd_angles}
        return {name: loss(student.embedding, teacher.embedding) for name, loss in losses.items() if self.weights[name]}
