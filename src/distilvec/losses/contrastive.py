"""Contrastive losses over the texts of a batch."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor

from distilvec.core.similarity import Similarity

SAME_DOCUMENT = 0.95  # cosine of two stored vectors, above which one answers what the other answers
MOST_LIKE_ANSWER = 0.95  # of the answer's score; a mined negative above it may be an answer that nobody has judged


def info_nce(
    anchors: Float[Tensor, "batch dim"],
    positives: Float[Tensor, "batch dim"],
    temperature: float | Float[Tensor, ""],
    negatives: Float[Tensor, "more dim"] | None = None,
    counted: Bool[Tensor, " more"] | None = None,
) -> Float[Tensor, " batch"]:
    """Return -log softmax(cos(anchor_i, .) / temperature) at positive i (SimCSE, eq. 1; TALAS, eq. 6).

    The softmax is over all positives and `negatives`; `counted` selects among the negatives.
    """
    candidates = positives if negatives is None else torch.cat([positives, negatives])
    similarities = F.normalize(anchors, dim=-1) @ F.normalize(candidates, dim=-1).T / temperature
    if counted is not None:
        is_candidate = F.pad(counted, (len(positives), 0), value=True)
        similarities = similarities.where(is_candidate, -torch.inf)
    own_positive = torch.arange(len(anchors), device=anchors.device)
    return F.cross_entropy(similarities, own_positive, reduction="none")


def answer_loss(
    scores: Float[Tensor, "batch candidates"],
    answers: Int[Tensor, " batch"],
    is_negative: Bool[Tensor, "batch candidates"],
    log_frequency: Float[Tensor, " candidates"],
) -> Float[Tensor, " batch"]:
    """Return -log softmax(score - log frequency) at each query's answer, over the answer and its negatives.

    A document is met as a negative as often as it is an answer, which would punish popular ones; the correction takes
    that back (Yi et al. 2019, Sampling-bias-corrected neural modeling, section 3).
    """
    is_candidate = is_negative.scatter(1, answers[:, None], True)
    return F.cross_entropy((scores - log_frequency).where(is_candidate, -torch.inf), answers, reduction="none")


def true_negatives(
    cosines: Float[Tensor, "batch candidates"],
    likeness: Float[Tensor, "batch candidates"],
    answers: Int[Tensor, " batch"],
    may_be_negative: Bool[Tensor, "batch candidates"],
    is_mined: Bool[Tensor, "batch candidates"],
) -> Bool[Tensor, "batch candidates"]:
    """Say which candidates are negatives of each query.

    None is one whose stored vector has a cosine above SAME_DOCUMENT with the answer's (`likeness`). A mined one must
    have at most MOST_LIKE_ANSWER of the answer's cosine with the query (NV-Retriever, Moreira et al. 2024).
    """
    limits = MOST_LIKE_ANSWER * cosines.gather(1, answers[:, None])
    return may_be_negative & (likeness <= SAME_DOCUMENT) & ~(is_mined & (cosines > limits))


def search_scores(
    queries: Float[Tensor, "batch dim"], documents: Float[Tensor, "candidates dim"], similarity: Similarity
) -> Float[Tensor, "batch candidates"]:
    """Return scores that rank documents as an index does, of about the size of cosines.

    Lengths are over the mean of the stored vectors' lengths.
    """
    if similarity == "cosine":
        return F.normalize(queries, dim=-1) @ F.normalize(documents, dim=-1).T
    mean_length = documents.norm(dim=-1).mean().clamp_min(1e-12)
    documents = documents / mean_length
    if similarity == "dot":
        return F.normalize(queries, dim=-1) @ documents.T
    # The squared distance without the query's square; unlike a product's its order depends on the query's length
    return queries / mean_length @ documents.T - documents.square().sum(-1) / 2
