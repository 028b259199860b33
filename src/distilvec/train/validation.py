"""Validation: distance of the student to the teacher on the validation rows, or the score on a labelled task."""

from __future__ import annotations

import math

import numpy as np
import torch
import torch.nn.functional as F
from accelerate import Accelerator
from jaxtyping import Float
from scipy.stats import spearmanr
from torch import Tensor, nn

from distilvec.core import processes
from distilvec.core.objective import Objective
from distilvec.core.outputs import OutputSpec
from distilvec.core.similarity import FEWEST_CANDIDATES, NEIGHBOR_COUNT, Similarity
from distilvec.losses.distance import distances
from distilvec.losses.relations import similarity_gaps
from distilvec.losses.supervised import task_loss
from distilvec.students.encoder import Encoder
from distilvec.train.dataset import TrainingData
from distilvec.train.metrics import VALIDATION_OVERLAP, Metric
from distilvec.train.start import Standing

ROWS_SEARCHED = 1024  # together: their scores against all texts are in memory


def validate_student(
    encoder: Encoder, objective: Objective, data: TrainingData, accelerator: Accelerator, batch_size: int
) -> tuple[dict[str, float], Standing]:
    """Numbers on the validation rows, and those among them that decide which student is saved.

    `similarity_gap`, of a student in a space of its own, does not rank students. It asks for cosines as large as the
    teacher's, which losses that only order texts, or spread them, do not give. So the last weights ship. Nor does the
    distance rank students of a method that reads pairs, whose last one is compared with the start (pipeline/train.py).
    """
    if objective.head is not None:
        numbers = task_metrics(encoder, objective.head, data, accelerator, batch_size)
        name, value = next(iter(numbers.items()))  # the first one is the score of this kind of task
        return numbers, Standing(Metric(name, value, higher_is_better=True))
    numbers = teacher_distance(encoder, data, accelerator, batch_size, objective.in_teacher_space)
    if objective.in_teacher_space:
        ranks = not objective.reads_pairs
        distance = Metric("distance", numbers["distance"], higher_is_better=False if ranks else None)
        return numbers, Standing(distance, numbers.get(VALIDATION_OVERLAP, 0.0))
    return numbers, Standing(Metric("similarity_gap", numbers["similarity_gap"], higher_is_better=None))


@torch.no_grad()
def task_metrics(
    encoder: Encoder, head: nn.Module, data: TrainingData, accelerator: Accelerator, batch_size: int
) -> dict[str, float]:
    """`accuracy` of classes, or `spearman` of scores (0 if all predictions are equal), and the mean `task_loss`.

    Where a text has several classes: `f1` over all of them (micro), and `accuracy`, the share of texts without a fault.
    Every process takes all the rows, since a rank correlation has no parts.
    """
    encoder.eval()
    head.eval()
    logits = []
    labels = []
    score_range = 1.0
    for group in _groups(data, batch_size):
        batch = data.batch(group).to(accelerator.device)
        assert batch.labels is not None
        with accelerator.autocast():
            pooled = encoder(batch, OutputSpec(vector=True)).vector
        logits.append(head(pooled.float()))
        labels.append(batch.labels)
        score_range = batch.score_range
    predicted = torch.cat(logits)
    gold = torch.cat(labels)
    loss = {"task_loss": float(task_loss(predicted, gold, score_range).double().mean())}
    if gold.ndim == 2:
        right = (predicted > 0) & (gold > 0)
        positives = (predicted > 0).sum() + (gold > 0).sum()
        f1 = 2 * right.sum().double() / positives.clamp(min=1)
        exact = ((predicted > 0) == (gold > 0)).all(1).double().mean()
        return {"f1": float(f1), "accuracy": float(exact)} | loss
    if gold.is_floating_point():
        correlation = spearmanr(predicted[:, 0].cpu().numpy(), gold.cpu().numpy()).statistic
        return {"spearman": float(np.nan_to_num(correlation))} | loss
    return {"accuracy": float((predicted.argmax(1) == gold).double().mean())} | loss


@torch.no_grad()
def teacher_distance(
    encoder: Encoder, data: TrainingData, accelerator: Accelerator, batch_size: int, compatible: bool = True
) -> dict[str, float]:
    """Means over the validation rows of `distance` and `cosine` to the teacher (REDACT, section 4.3), and of a gap.

    `similarity_gap` is the mean absolute difference of the student's and the teacher's cosines within a batch: the only
    number if student and teacher are not `compatible`, so that their vectors have no common space. The overlap@10 is of
    one row of each origin, and left out where these are too few for it (see `overlap_found`).
    """
    encoder.eval()
    groups = _groups(data, batch_size)
    names = ["distance", "cosine", "similarity_gap"] if compatible else ["similarity_gap"]
    sums = torch.zeros(len(groups), len(names), dtype=torch.float64, device=accelerator.device)
    places = np.split(np.arange(len(data.holdout_rows)), np.cumsum([len(group) for group in groups])[:-1])
    vectors: Tensor | None = None  # of the student and of the teacher, [2, rows, dim]
    # Every process runs the model equally often, some on a group that does not count: with sharded weights all take
    # part in every pass
    rounds = math.ceil(len(groups) / processes.world_size())
    for number in range(processes.rank(), rounds * processes.world_size(), processes.world_size()):
        group = groups[number % len(groups)]
        batch = data.batch(group).to(accelerator.device)
        teacher = data.teacher.signals(batch).embedding
        with accelerator.autocast():
            student = encoder(batch, OutputSpec(embedding=True)).embedding
        assert student is not None and teacher is not None
        values = distances(student, teacher) if compatible else {}
        values["similarity_gap"] = similarity_gaps(student, teacher)
        if compatible and vectors is None:
            vectors = torch.zeros(2, len(data.holdout_rows), student.shape[1], device=accelerator.device)
        if number < len(groups):
            sums[number] = torch.stack([values[name].sum() for name in names])
            if vectors is not None:
                vectors[:, places[number]] = torch.stack([student.float(), teacher.float()])
    # One row of sums per group, so that any number of processes adds up in the same order
    means = processes.total(sums).sum(0) / len(data.holdout_rows)
    metrics = dict(zip(names, means.tolist(), strict=True))
    rows = np.concatenate(groups) if data.examples is None else data.examples.rows[np.concatenate(groups), 0]
    chosen = np.sort(np.unique(data.corpus.origins[rows], return_index=True)[1])
    if vectors is not None and len(chosen) > FEWEST_CANDIDATES:
        student_vectors, teacher_vectors = processes.total(vectors)[:, torch.from_numpy(chosen).to(vectors.device)]
        metrics[VALIDATION_OVERLAP] = overlap_found(student_vectors, teacher_vectors, data.similarity)
    return metrics


def overlap_found(
    student: Float[Tensor, "rows dim"], teacher: Float[Tensor, "rows dim"], similarity: Similarity = "cosine"
) -> float:
    """Share of the teacher's ten nearest texts that the student's vectors find among the teacher's.

    `similarity` is the teacher's: a student in its space is searched with as its index is.
    """
    if similarity == "cosine":
        student, teacher = F.normalize(student, dim=1), F.normalize(teacher, dim=1)

    def nearest(queries: Tensor, rows: Tensor) -> Tensor:
        if similarity == "euclidean":
            scores = -torch.cdist(queries[rows], teacher)
        else:
            scores = queries[rows] @ teacher.T
        scores[torch.arange(len(rows)), rows] = -torch.inf  # not the text itself
        return scores.topk(NEIGHBOR_COUNT).indices

    shared = 0
    for rows in torch.split(torch.arange(len(teacher), device=teacher.device), ROWS_SEARCHED):
        by_student, by_teacher = nearest(student, rows), nearest(teacher, rows)
        shared += int((by_student[:, :, None] == by_teacher[:, None, :]).sum())
    return shared / (NEIGHBOR_COUNT * len(teacher))


def padded_tokens(data: TrainingData, batch_size: int) -> int:
    """Return the tokens that a model reads in a validation, padding included: what its time depends on."""
    return sum(len(group) * int(data.lengths[group].max()) for group in _groups(data, batch_size))


def _groups(data: TrainingData, batch_size: int) -> list[np.ndarray]:
    """The validation rows, shortest first, in batches."""
    order = np.argsort(data.lengths[data.holdout_rows], kind="stable")
    return np.array_split(data.holdout_rows[order], max(1, len(order) // batch_size))
