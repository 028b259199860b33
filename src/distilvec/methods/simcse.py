"""SimCSE, unsupervised: a text's two dropout views belong together, the other texts of the batch do not.

Paper: Gao, Yao, Chen: "SimCSE: Simple Contrastive Learning of Sentence Embeddings", EMNLP 2021, section 3. A baseline
without a teacher.
"""

from __future__ import annotations

from typing import Literal

import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from distilvec.core.batch import TextBatch
from distilvec.core.objective import Objective, Sizes, Terms
from distilvec.core.outputs import ModelOutputs, OutputSpec
from distilvec.losses.contrastive import info_nce


class SimCse(Objective):
    """simcse: InfoNCE between the student's embeddings under two dropout masks (eq. 1, 4).

    Options: `temperature`; `head` "mlp" puts a linear layer and tanh on the embedding while training ("none" in TALAS'
    comparison), as the paper's own models have.
    Note: the embedding is normalised where the teacher's is. The head sees it at the length sqrt(width), which is what a
    LayerNorm leaves, and so works in tanh's bend as it does on the paper's un-normalised vector.
    """

    compatible = False
    in_batch = True
    citation = """@inproceedings{gao2021simcse,
  title = {{SimCSE}: Simple Contrastive Learning of Sentence Embeddings},
  author = {Gao, Tianyu and Yao, Xingcheng and Chen, Danqi},
  booktitle = {EMNLP},
  year = {2021}
}"""

    def __init__(self, sizes: Sizes, temperature: float = 0.05, head: Literal["none", "mlp"] = "none") -> None:
        super().__init__()
        self.temperature = temperature
        width = sizes.embedding_width or sizes.teacher_width
        self.mlp = nn.Sequential(nn.Linear(width, width), nn.Tanh()) if head == "mlp" else None
        self.student_outputs, self.teacher_outputs = OutputSpec(embedding=True, second_view=True), OutputSpec()
        self.weights = {"simcse": 1.0}

    def forward(self, batch: TextBatch, student: ModelOutputs, teacher: ModelOutputs) -> Terms:
        """One term."""
        assert student.embedding is not None and student.second_view is not None
        return {
            "simcse": info_nce(
                self._train_view(student.embedding), self._train_view(student.second_view), self.temperature
            )
        }

    def _train_view(self, embedding: Float[Tensor, "batch width"]) -> Float[Tensor, "batch width"]:
        if self.mlp is None:
            return embedding
        view: Tensor = self.mlp(F.normalize(embedding, dim=-1) * embedding.shape[-1] ** 0.5)
        return view
