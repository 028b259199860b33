"""REDACT with scores: the terms against their parts, when the KL begins, the queue through a kill."""

from __future__ import annotations

import pytest
import torch
from contexts import make_context
from queues import interrupted_equals_whole, queued, terms, vectors_of

from distilvec.core.errors import DistilvecError
from distilvec.core.registry import build_objective
from distilvec.losses.distance import cosine_distance, l2_distance
from distilvec.losses.scores import score_kl
from distilvec.methods.redact_scores import RedactScores

pytestmark = pytest.mark.usefixtures("shared_cache")
CONTEXT = make_context(student_hidden_size=4, student_layers=2, teacher_dim=4)


def filled(queue=6, **options):
    """The method with texts 0 to 5 in its queue."""
    objective = RedactScores(CONTEXT, {}, queue=queue, **options)
    terms(objective, [0, 1, 2])
    terms(objective, [3, 4, 5])
    return objective


def test_terms_are_the_distance_and_the_kl_of_the_scores_on_the_queue():
    student, teacher = vectors_of([20, 21]), vectors_of([8, 9])
    found = terms(filled(temperature=0.2), [8, 9], student, teacher)
    assert torch.equal(found["l2"], l2_distance(student, teacher))
    expected = score_kl(student, teacher, vectors_of(range(6)), torch.ones(6, dtype=torch.bool), 0.2)
    torch.testing.assert_close(found["kl"], expected)
    assert (found["kl"] > 0.01).all()


def test_texts_of_the_batch_are_no_documents():
    objective = filled().eval()
    student, teacher = vectors_of([20, 21]), vectors_of([2, 9])
    expected = score_kl(student, teacher, vectors_of([0, 1, 3, 4, 5]), torch.ones(5, dtype=torch.bool), 0.05)
    torch.testing.assert_close(terms(objective, [2, 9], student, teacher)["kl"], expected)


def test_the_kl_begins_with_a_full_queue():
    objective = RedactScores(CONTEXT, {}, queue=5)
    values = [terms(objective, rows)["kl"] for rows in ([0, 1, 2], [3, 4, 5], [6, 7, 8])]
    assert not values[0].any() and not values[1].any() and (values[2] > 0).all()


def test_the_kl_begins_with_the_second_pass_if_the_queue_holds_every_text():
    objective = RedactScores(CONTEXT, {}, queue=50)
    first = [terms(objective, rows)["kl"] for rows in ([0, 1, 2], [3, 4, 5])]
    assert not any(values.any() for values in first)
    assert (terms(objective, [4, 0, 3])["kl"] > 0).all()


def test_without_the_kl_the_values_are_those_of_redact():
    student, teacher = vectors_of([20, 21]), vectors_of([0, 1])
    for distance, expected in {"l2": l2_distance, "cosine": cosine_distance}.items():
        for name, weights in (("redact", {}), ("redact_scores", {"kl": 0.0})):
            objective = build_objective(name, {"distance": distance}, weights, CONTEXT)
            found = terms(objective, [0, 1], student, teacher)
            assert found.keys() == {distance} and torch.equal(found[distance], expected(student, teacher))


def test_gradients_reach_the_student_alone():
    objective = filled()
    student, teacher = vectors_of([20, 21]).requires_grad_(), vectors_of([8, 9]).requires_grad_()
    terms(objective, [8, 9], student, teacher.detach())["kl"].sum().backward()
    assert student.grad.abs().max() > 0 and teacher.grad is None
    assert not any(buffer.requires_grad for buffer in objective.buffers())


def test_options_are_checked():
    with pytest.raises(DistilvecError, match=r"\[method.options.queue\] found 0"):
        build_objective("redact_scores", {"queue": 0}, {}, CONTEXT)
    with pytest.raises(DistilvecError, match=r"\[method.options.temperature\] found 0"):
        build_objective("redact_scores", {"temperature": 0.0}, {}, CONTEXT)


@pytest.mark.parametrize("update", ["plain", "sam"])
def test_interrupted_training_equals_uninterrupted(tiny_recipe, tmp_path, update):
    method = {"name": "redact_scores", "options": {"queue": 40}}
    objective = interrupted_equals_whole(tiny_recipe(method=method, train__update={"name": update}), tmp_path)
    assert objective.queue_count > 40


def test_the_queue_takes_the_texts_in_their_order():
    assert queued(filled()) == [0, 1, 2, 3, 4, 5]
