"""The KL of scores on a queue of documents against a loop over texts and documents: values, gradients, masks."""

from __future__ import annotations

import math

import pytest
import torch
from torch.nn.functional import cosine_similarity

from distilvec.losses.scores import score_kl


def draw(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def loop(student, teacher, documents, counted, temperature):
    """The definition, one text and one document at a time."""
    found = []
    for ours, theirs in zip(student, teacher, strict=True):
        kept = [document for document, count in zip(documents, counted.tolist(), strict=True) if count]
        scores = [
            [cosine_similarity(text, document, dim=0) / temperature for document in kept] for text in (ours, theirs)
        ]
        log_sums = [torch.logsumexp(torch.stack(row), 0) for row in scores]
        total = torch.zeros((), dtype=torch.float64)
        for our_score, their_score in zip(*scores, strict=True):
            log_q, log_p = our_score - log_sums[0], their_score - log_sums[1]
            total = total + log_p.exp() * (log_p - log_q)
        found.append(total)
    return torch.stack(found)


@pytest.mark.parametrize("temperature", [0.02, 0.05, 1.0])
@pytest.mark.parametrize("counted", [[True] * 6, [True, False, True, True, False, True]])
def test_values_and_gradients_are_those_of_a_loop(temperature, counted):
    student, teacher, documents = draw(4, 5).requires_grad_(), draw(4, 5, seed=1), draw(6, 5, seed=2)
    arguments = (student, teacher, documents, torch.tensor(counted), temperature)
    found, expected = score_kl(*arguments), loop(*arguments)
    torch.testing.assert_close(found, expected, atol=1e-6, rtol=1e-9)
    upstream = draw(4, seed=3)
    gradients = [torch.autograd.grad(values, student, upstream)[0] for values in (found, expected)]
    torch.testing.assert_close(*gradients, atol=1e-6, rtol=1e-9)
    assert gradients[0].abs().max() > 1e-3


def test_is_zero_for_the_teachers_own_scores_and_above_it_for_others():
    teacher, documents, counted = draw(4, 5), draw(7, 5, seed=1), torch.ones(7, dtype=torch.bool)
    assert score_kl(3 * teacher, teacher, documents, counted, 0.05).abs().max() < 1e-12
    assert (score_kl(teacher.flip(0), teacher, documents, counted, 0.05) > 0).all()


def test_a_check_value_of_two_documents():
    """The teacher's probabilities are (e, 1) / (e + 1), the student's (1, e) / (e + 1): KL = (e - 1) / (e + 1)."""
    documents, counted = torch.eye(2), torch.ones(2, dtype=torch.bool)
    found = score_kl(torch.tensor([[0.0, 2.0]]), torch.tensor([[5.0, 0.0]]), documents, counted, 1.0)
    assert found.item() == pytest.approx((math.e - 1) / (math.e + 1), abs=1e-6)


@pytest.mark.parametrize(("documents", "counted"), [(torch.zeros(0, 5), []), (draw(3, 5).float(), [False] * 3)])
def test_without_documents_value_and_gradient_are_zero(documents, counted):
    student = draw(2, 5).float().requires_grad_()
    found = score_kl(student, draw(2, 5, seed=1).float(), documents, torch.tensor(counted, dtype=torch.bool), 0.05)
    found.sum().backward()
    assert torch.equal(found, torch.zeros(2)) and torch.equal(student.grad, torch.zeros(2, 5))


def test_half_precision_is_computed_in_full():
    student, teacher, documents = (draw(4, 5, seed=seed).half() for seed in range(3))
    found = score_kl(student, teacher, documents, torch.ones(4, dtype=torch.bool), 0.05)
    full = score_kl(student.float(), teacher.float(), documents.float(), torch.ones(4, dtype=torch.bool), 0.05)
    assert found.dtype == torch.float32 and torch.equal(found, full)
