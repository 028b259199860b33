"""The numbers to watch: how far the student is from the teacher on the held-out rows."""

from __future__ import annotations

import numpy as np
import torch
from accelerate import Accelerator

from distilvec.batch import Wants
from distilvec.losses.distance import distances
from distilvec.losses.relations import similarity_gaps
from distilvec.students.encoder import Encoder
from distilvec.train.data import TrainingData


@torch.no_grad()
def held_out_distance(
    encoder: Encoder, data: TrainingData, accelerator: Accelerator, batch_size: int, compatible: bool = True
) -> dict[str, float]:
    """Means over the held-out rows of `distance` and `cosine` to the teacher (REDACT, section 4.3) and of `similarity_gap`.

    The gap is the mean absolute difference between student's and teacher's cosines within a batch. Where student and
    teacher are not `compatible`, a distance between their vectors says nothing, even at equal widths: the gap stands alone.
    """
    encoder.eval()
    order = np.argsort(data.tokens.lengths[data.holdout_rows], kind="stable")
    groups = np.array_split(data.holdout_rows[order], max(1, len(order) // batch_size))
    sums: dict[str, torch.Tensor] = {}
    for group in groups[accelerator.process_index :: accelerator.num_processes]:
        batch = data.batch(group).to(accelerator.device)
        teacher = data.teacher.signals(batch).embedding
        with accelerator.autocast():
            student = encoder(batch, Wants(embedding=True)).embedding
        assert student is not None and teacher is not None
        found = distances(student, teacher) if compatible else {}
        found |= {"similarity_gap": similarity_gaps(student, teacher), "rows": torch.ones(len(group), device=student.device)}
        for name, values in found.items():
            sums[name] = sums.get(name, torch.zeros((), dtype=torch.float64, device=accelerator.device)) + values.sum()
    *totals, rows = accelerator.reduce(torch.stack([*sums.values()]), "sum").tolist()
    return {name: value / rows for name, value in zip(sums, totals, strict=False)}
