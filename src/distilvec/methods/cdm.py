"""CDM: tokens that stand one to one and spell the same, compared in the teacher's space; on class logits plain distillation.

Paper: Chen, Liu, Meng, Chen, Xu, Zhou: "Enhancing Cross-Tokenizer Knowledge Distillation with Contextual Dynamical Mapping",
Findings of ACL 2025; for embeddings as the authors of TALAS use it in their comparison.
"""

from __future__ import annotations

from torch import nn

from distilvec.core.batch import TextBatch
from distilvec.core.errors import DistilvecError
from distilvec.core.objective import Objective, Sizes, Terms
from distilvec.core.outputs import ModelOutputs, OutputSpec
from distilvec.losses.logits import soft_kl
from distilvec.losses.padding import token_mean
from distilvec.losses.token_states import pair_states, unit_squares
from distilvec.methods.base.token_or_logit_kd import On, choose_form, compared, form_wants, task_terms, task_weights


class Cdm(Objective):
    """tokens: squared error of the unit states of paired tokens, sentence: that of the sentence vectors; task: the labels.

    Options: `on` takes class logits or token states ("auto": logits where there are such, else states, also for STS). `alpha`
    is the weight of the task, 1 - alpha that of the others: on states 100 x tokens + 1 x sentence, both means over the teacher's
    dimensions, behind a linear layer to its width; on logits the one term kl. `temperature` is that of KL.

    Note: pairs are the "strict" ones of the alignment, one to one and spelled alike. The paper's own time warping, with costs weighed
    by the entropy of each token's prediction, and its map between vocabularies need a distribution over tokens, which embedding
    models lack.
    Note: classes are the same for both models: on class logits there is nothing to warp or to map, and KL is what is left of the
    method. Public code decodes class numbers there as if they were token ids; that has no meaning and is not done.
    Note: KL is multiplied by temperature^2; the official code multiplies the teacher's log-probabilities instead, an error.
    Note: values are averaged text by text, not over all pairs of the batch.
    """

    compatible = False
    citation = """@inproceedings{chen2025cdm,
  title = {Enhancing Cross-Tokenizer Knowledge Distillation with Contextual Dynamical Mapping},
  author = {Chen, Yijie and Liu, Yijin and Meng, Fandong and Chen, Yufeng and Xu, Jinan and Zhou, Jie},
  booktitle = {Findings of ACL},
  year = {2025}
}"""

    def __init__(self, sizes: Sizes, on: On = "auto", alpha: float = 0.5, temperature: float = 2.0) -> None:
        super().__init__()
        if temperature <= 0:
            raise DistilvecError(f"[method.options.temperature] found {temperature}; expected a number above 0.")
        self.form, self.temperature = choose_form(on, sizes, scores="hidden"), temperature
        self.student_outputs, self.teacher_outputs = form_wants(self.form, "strict")
        if self.form == "hidden":
            self.token_projection = nn.Linear(sizes.student_width, sizes.teacher_hidden_width or sizes.teacher_width)
            self.sentence_projection = nn.Linear(sizes.embedding_width or sizes.teacher_width, sizes.teacher_width)
            self.student_outputs |= OutputSpec(embedding=True)
            self.teacher_outputs |= OutputSpec(embedding=True)
        terms = {"tokens": 100.0, "sentence": 1.0} if self.form == "hidden" else {"kl": 1.0}
        self.weights = task_weights(alpha, terms, sizes)

    def forward(self, batch: TextBatch, student: ModelOutputs, teacher: ModelOutputs) -> Terms:
        """The terms that have a weight."""
        found = task_terms(self.weights, batch, student)
        if self.weights.get("kl"):
            assert student.logits is not None and teacher.logits is not None
            found["kl"] = soft_kl(student.logits, teacher.logits, self.temperature)
        if self.weights.get("tokens"):
            assert batch.alignment is not None
            both = compared("hidden", student, teacher)
            ours, theirs, mask = pair_states(both[0].states, both[1].states, batch.alignment.pairs)
            found["tokens"] = token_mean(unit_squares(self.token_projection(ours), theirs), mask) / theirs.shape[-1]
        if self.weights.get("sentence"):
            assert student.embedding is not None and teacher.embedding is not None
            projected = self.sentence_projection(student.embedding)
            found["sentence"] = unit_squares(projected, teacher.embedding) / teacher.embedding.shape[-1]
        return found
