"""DistilBERT on top of REDACT: the direction of every token's last hidden state, beside the teacher's vector.

Paper: Sanh, Debut, Chaumond, Wolf: "DistilBERT, a distilled version of BERT: smaller, faster, cheaper and lighter", section
3; the sum with the distance is REDACT's appendix B.3. Needs the teacher itself while the student trains, not its cache.
"""

from __future__ import annotations

from typing import Literal

from torch import nn

from distilvec.core.batch import TextBatch
from distilvec.core.errors import DistilvecError
from distilvec.core.objective import Objective, Sizes, Terms
from distilvec.core.outputs import ModelOutputs, OutputSpec
from distilvec.losses.hidden_states import token_cosine_distance
from distilvec.losses.padding import from_first_token, shared_mask
from distilvec.methods.base.requirements import require_layers, require_same_tokenizer
from distilvec.methods.redact import DISTANCES


class DistilBert(Objective):
    """distance: as redact; cosine: 1 - cos of the last hidden states, averaged over a text's tokens (eq. 12).

    Options: `distance` is redact's. `projection` maps the student's states by a matrix first, as REDACT does; without one,
    as in DistilBERT, both models must be equally wide. Both weights are 1. A term of weight 0 is not computed.

    Note: eq. 12 is minus the cosine; ours has the "1 -" of the cosine loss with target +1, which changes no gradient.
    DistilBERT's cross-entropy and masked-language terms need a language model's head and have no place here.
    """

    citation = """@misc{sanh2019distilbert,
  title = {{DistilBERT}, a distilled version of {BERT}: smaller, faster, cheaper and lighter},
  author = {Sanh, Victor and Debut, Lysandre and Chaumond, Julien and Wolf, Thomas},
  year = {2019},
  eprint = {1910.01108},
  archivePrefix = {arXiv}
}"""

    def __init__(self, sizes: Sizes, distance: Literal["l2", "mse", "cosine"] = "l2", projection: bool = True) -> None:
        super().__init__()
        self.sizes, self.distance, self.projected = sizes, distance, projection
        self.weights = {"distance": 1.0, "cosine": 1.0}

    def settle(self) -> None:
        """Refuse models that cannot be compared; no hidden state is asked for where the cosine has no weight."""
        if not self.weights["cosine"]:
            return
        _, width = require_layers("distilbert", self.sizes)
        require_same_tokenizer("distilbert", self.sizes)
        if not self.projected and self.sizes.student_width != width:
            raise DistilvecError(
                f"[method.options.projection] the hidden states are {self.sizes.student_width} wide in the student and {width} in the "
                "teacher; a cosine needs equal widths. Leave the option out, or set it to true."
            )
        self.projection = nn.Linear(self.sizes.student_width, width, bias=False) if self.projected else nn.Identity()
        self.student_outputs = self.teacher_outputs = OutputSpec(embedding=True, hidden_layers=(-1,))

    def forward(self, batch: TextBatch, student: ModelOutputs, teacher: ModelOutputs) -> Terms:
        """The terms that have a weight."""
        terms = Terms()
        if self.weights["distance"]:
            assert student.embedding is not None and teacher.embedding is not None
            terms["distance"] = DISTANCES[self.distance](student.embedding, teacher.embedding)
        if self.weights["cosine"]:
            assert student.mask is not None and teacher.mask is not None
            mask = shared_mask(student.mask, teacher.mask)
            ours = from_first_token(student.hidden_layers[-1], student.mask, mask.shape[1])
            theirs = from_first_token(teacher.hidden_layers[-1], teacher.mask, mask.shape[1])
            terms["cosine"] = token_cosine_distance(self.projection(ours), theirs, mask)
        return terms
