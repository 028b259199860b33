"""Score-level distillation: similarities to the same documents, the student's and the teacher's."""

from __future__ import annotations

import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor

from distilvec.core.device import full_precision

_LEFT_OUT = -1e4  # score of a document that does not count: finite, so that 0 * log 0 is 0 without a case of its own


def score_kl(
    y: Float[Tensor, "batch dim"],
    y_hat: Float[Tensor, "batch dim"],
    documents: Float[Tensor, "count dim"],
    counted: Bool[Tensor, " count"],
    temperature: float,
) -> Float[Tensor, " batch"]:
    """Return KL(softmax(cos(y_hat, d) / t) || softmax(cos(y, d) / t)) over documents d, in nats, by rows.

    As in REDACT, y is the student's vector of a text and y_hat the teacher's; d is the teacher's vector of a document,
    so that cos(y, d) is the score of asymmetric retrieval. `counted` selects documents; without any the value is 0.
    """
    candidates = F.normalize(full_precision(documents), dim=-1)

    def log_probabilities(vectors: Tensor) -> Tensor:
        scores = F.normalize(full_precision(vectors), dim=-1) @ candidates.T
        return (scores.where(counted, _LEFT_OUT) / temperature).log_softmax(-1)

    student, teacher = log_probabilities(y), log_probabilities(y_hat)
    return F.kl_div(student, teacher, reduction="none", log_target=True).sum(-1)
