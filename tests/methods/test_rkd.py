"""RKD across widths: both terms, a term of weight 0, a student that learns the teacher's geometry in its own space."""

from __future__ import annotations

import pytest
import torch
from contexts import make_context

from distilvec.core.batch import TextBatch
from distilvec.core.objective import weighted_loss
from distilvec.core.outputs import ModelOutputs
from distilvec.core.registry import build_objective
from distilvec.losses.relations import rkd_angles, rkd_distances

BATCH = TextBatch(torch.arange(6), {"input_ids": torch.ones(6, 2, dtype=torch.long)}, torch.zeros(6, dtype=torch.long))


@pytest.fixture
def vectors():
    generator = torch.Generator().manual_seed(0)
    return torch.randn(6, 4, generator=generator), torch.randn(6, 9, generator=generator)


def test_terms_and_the_papers_weights(vectors):
    student, teacher = vectors
    objective = build_objective("rkd", {}, {}, make_context(student_hidden_size=4, student_layers=2, teacher_dim=9))
    assert objective.weights == {"distance": 1.0, "angle": 2.0}
    terms = objective(BATCH, ModelOutputs(embedding=student), ModelOutputs(embedding=teacher))
    expected = rkd_distances(student, teacher).mean() + 2 * rkd_angles(student, teacher).mean()
    torch.testing.assert_close(weighted_loss(terms, objective.weights), expected)


def test_a_term_of_weight_0_is_not_computed(vectors):
    objective = build_objective(
        "rkd", {}, {"angle": 0.0}, make_context(student_hidden_size=4, student_layers=2, teacher_dim=9)
    )
    assert set(objective(BATCH, ModelOutputs(embedding=vectors[0]), ModelOutputs(embedding=vectors[1]))) == {"distance"}


def test_free_vectors_take_on_the_teachers_geometry(vectors):
    student, teacher = vectors[0].requires_grad_(), vectors[1][:, :4]
    objective = build_objective("rkd", {}, {}, make_context(student_hidden_size=4, student_layers=2, teacher_dim=4))
    optimizer = torch.optim.Adam([student], lr=0.05)
    losses = []
    for _ in range(300):
        optimizer.zero_grad()
        loss = weighted_loss(
            objective(BATCH, ModelOutputs(embedding=student), ModelOutputs(embedding=teacher)), objective.weights
        )
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.01 * losses[0]
