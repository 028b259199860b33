"""MinED: tokens paired by minimum edit distance, then compared pair by pair; on class logits plain distillation.

Paper: Wan, Huang, Cai, Quan, Bi, Shi: "Knowledge Fusion of Large Language Models", ICLR 2024. In EMO's comparison (its
section 4.2) it comes down to KL on class logits, where nothing is left to align.
"""

from __future__ import annotations

from typing import Literal

from torch import nn

from distilvec.core.batch import TextBatch
from distilvec.core.errors import DistilvecError
from distilvec.core.objective import Objective, Sizes, Terms
from distilvec.core.outputs import ModelOutputs
from distilvec.losses.logits import soft_kl
from distilvec.losses.padding import token_mean
from distilvec.losses.token_states import pair_states, unit_squares
from distilvec.methods.base.token_or_logit_kd import On, choose_form, compared, form_wants, task_terms, task_weights


class Mined(Objective):
    """mined: KL of class logits, or the distance of the states of paired tokens; task: the labels.

    Options: `on` takes class logits or token states ("auto": logits where there are such). `alpha` is the weight of the task,
    1 - alpha that of mined (EMO, eq. 22). `temperature` is that of KL, 2 as in EMO's scripts. `distance` of states: "cosine",
    1 - cos, or "mse", the mean squared error.

    Note: KL is multiplied by temperature^2 (Hinton et al. 2015).
    Note: the paper knows logits only. On token states one-to-one pairs of the "mined" alignment are compared, and positions
    without a pair, which get the gold token there, are left out. A linear layer takes the student's states to the teacher's
    width: the targets stand still, so that the two cannot meet in one point.
    """

    compatible = False
    citation = """@inproceedings{wan2024fusellm,
  title = {Knowledge Fusion of Large Language Models},
  author = {Wan, Fanqi and Huang, Xinting and Cai, Deng and Quan, Xiaojun and Bi, Wei and Shi, Shuming},
  booktitle = {ICLR},
  year = {2024}
}"""

    def __init__(
        self,
        sizes: Sizes,
        on: On = "auto",
        alpha: float = 0.5,
        temperature: float = 2.0,
        distance: Literal["cosine", "mse"] = "cosine",
    ) -> None:
        super().__init__()
        if temperature <= 0:
            raise DistilvecError(f"[method.options.temperature] found {temperature}; expected a number above 0.")
        self.form = choose_form(on, sizes)
        self.temperature, self.distance = temperature, distance
        self.student_outputs, self.teacher_outputs = form_wants(self.form, "mined")
        if self.form == "hidden":
            self.projection = nn.Linear(sizes.student_width, sizes.teacher_hidden_width or sizes.teacher_width)
        self.weights = task_weights(alpha, {"mined": 1.0}, sizes)

    def forward(self, batch: TextBatch, student: ModelOutputs, teacher: ModelOutputs) -> Terms:
        """The terms that have a weight."""
        found = task_terms(self.weights, batch, student)
        if self.weights["mined"] and self.form == "logits":
            assert student.logits is not None and teacher.logits is not None
            found["mined"] = soft_kl(student.logits, teacher.logits, self.temperature)
        elif self.weights["mined"]:
            assert batch.alignment is not None
            both = compared("hidden", student, teacher)
            ours, theirs, mask = pair_states(both[0].states, both[1].states, batch.alignment.pairs)
            ours = self.projection(ours)
            gaps = unit_squares(ours, theirs) / 2 if self.distance == "cosine" else (ours - theirs).square().mean(-1)
            found["mined"] = token_mean(gaps, mask)
        return found
