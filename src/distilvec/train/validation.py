"""The numbers to watch: how far the student is from the teacher on the held-out rows, or how well it does a task."""

from __future__ import annotations

import numpy as np
import torch
from accelerate import Accelerator
from scipy.stats import spearmanr
from torch import nn

from distilvec.core.objective import Objective
from distilvec.core.outputs import OutputSpec
from distilvec.losses.distance import distances
from distilvec.losses.relations import similarity_gaps
from distilvec.losses.supervised import task_loss
from distilvec.students.encoder import Encoder
from distilvec.train.dataset import TrainingData


def held_out(
    encoder: Encoder, objective: Objective, data: TrainingData, accelerator: Accelerator, batch_size: int
) -> tuple[dict[str, float], float]:
    """The figures on the held-out examples, and the one to watch: the smaller the better, for a task one minus the score."""
    if objective.head is not None:
        found = held_out_score(encoder, objective.head, data, accelerator, batch_size)
        return found, 1 - found["spearman" if "spearman" in found else "accuracy"]
    found = held_out_distance(encoder, data, accelerator, batch_size, objective.in_teacher_space)
    return found, found["distance" if objective.in_teacher_space else "similarity_gap"]


@torch.no_grad()
def held_out_score(
    encoder: Encoder, head: nn.Module, data: TrainingData, accelerator: Accelerator, batch_size: int
) -> dict[str, float]:
    """`accuracy` of classes, or `spearman` of scores (0 where all are predicted alike), and the mean `task_loss`.

    Every process takes all the examples, since a rank correlation has no parts.
    """
    encoder.eval()
    head.eval()
    logits, labels, losses = [], [], []
    for group in _groups(data, batch_size):
        batch = data.batch(group).to(accelerator.device)
        assert batch.labels is not None
        with accelerator.autocast():
            pooled = encoder(batch, OutputSpec(vector=True)).vector
        logits.append(head(pooled.float()))
        labels.append(batch.labels)
        losses.append(task_loss(logits[-1], batch.labels))
    predicted, gold = torch.cat(logits), torch.cat(labels)
    if gold.is_floating_point():
        score = {
            "spearman": float(np.nan_to_num(spearmanr(predicted[:, 0].cpu().numpy(), gold.cpu().numpy()).statistic))
        }
    else:
        score = {"accuracy": float((predicted.argmax(1) == gold).double().mean())}
    return score | {"task_loss": float(torch.cat(losses).double().mean())}


def _groups(data: TrainingData, batch_size: int) -> list[np.ndarray]:
    """The held-out examples, shortest first, in batches."""
    order = np.argsort(data.lengths[data.holdout_rows], kind="stable")
    return np.array_split(data.holdout_rows[order], max(1, len(order) // batch_size))


@torch.no_grad()
def held_out_distance(
    encoder: Encoder, data: TrainingData, accelerator: Accelerator, batch_size: int, compatible: bool = True
) -> dict[str, float]:
    """Means over the held-out rows of `distance` and `cosine` to the teacher (REDACT, section 4.3) and of `similarity_gap`.

    The gap is the mean absolute difference between student's and teacher's cosines within a batch. Where student and
    teacher are not `compatible`, a distance between their vectors says nothing, even at equal widths: the gap stands alone.
    """
    encoder.eval()
    groups = _groups(data, batch_size)
    sums: dict[str, torch.Tensor] = {}
    for group in groups[accelerator.process_index :: accelerator.num_processes]:
        batch = data.batch(group).to(accelerator.device)
        teacher = data.teacher.signals(batch).embedding
        with accelerator.autocast():
            student = encoder(batch, OutputSpec(embedding=True)).embedding
        assert student is not None and teacher is not None
        found = distances(student, teacher) if compatible else {}
        found |= {
            "similarity_gap": similarity_gaps(student, teacher),
            "rows": torch.ones(len(group), device=student.device),
        }
        for name, values in found.items():
            sums[name] = sums.get(name, torch.zeros((), dtype=torch.float64, device=accelerator.device)) + values.sum()
    *totals, rows = accelerator.reduce(torch.stack([*sums.values()]), "sum").tolist()
    return {name: value / rows for name, value in zip(sums, totals, strict=False)}
