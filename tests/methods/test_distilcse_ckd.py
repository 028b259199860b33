"""DistilCSE's contrastive distillation against its check value (seed 18), and the queue: order, wrap-around, resuming."""  # noqa: E501

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from contexts import make_context
from queues import interrupted_equals_whole, queued, terms, vectors_of

from distilvec.core.errors import DistilvecError
from distilvec.core.registry import build_objective
from distilvec.methods.distilcse_ckd import DistilCseCkd

pytestmark = pytest.mark.usefixtures("shared_cache")
CONTEXT = make_context(student_hidden_size=4, student_layers=2, teacher_dim=4)


def negatives(objective, rows):
    """The vectors in the queue that a batch of these rows is compared with."""
    vectors, counted = objective.other_vectors(torch.as_tensor(rows))
    return vectors[counted]


def test_check_value():
    generator = torch.Generator().manual_seed(18)
    student, teacher, queue = (torch.randn(rows, 4, generator=generator, dtype=torch.float64) for rows in (3, 3, 5))
    objective = DistilCseCkd(CONTEXT, {}, queue=5, scale=20.0).double()
    torch.nn.init.eye_(objective.projection.weight)
    torch.nn.init.zeros_(objective.projection.bias)
    objective.queue_vectors = queue.half()
    objective.queue_rows.copy_(torch.arange(10, 15))
    objective.queue_count.fill_(5)
    assert terms(objective, [0, 1, 2], student, teacher)["ckd"].mean().item() == pytest.approx(
        14.7768497760, abs=2e-2
    )  # a float16 queue
    objective.queue_rows.fill_(-1)
    objective.other_vectors = lambda rows: (queue, torch.ones(5, dtype=torch.bool))
    assert terms(objective, [0, 1, 2], student, teacher)["ckd"].mean().item() == pytest.approx(14.7768497760, abs=1e-6)


def test_the_queue_serves_a_batch_first_and_then_takes_it_up():
    objective = DistilCseCkd(CONTEXT, {}, queue=8)
    seen = []
    for rows in ([0, 1, 2], [3, 4, 5]):
        seen.append(negatives(objective, rows))
        terms(objective, rows)
    assert len(seen[0]) == 0 and torch.equal(seen[1], vectors_of([0, 1, 2]))
    assert queued(objective) == [0, 1, 2, 3, 4, 5, -1, -1] and objective.queue_count.item() == 6


def test_the_oldest_vectors_make_room():
    objective = DistilCseCkd(CONTEXT, {}, queue=5)
    for rows in ([0, 1, 2], [3, 4, 5], [6, 7, 8]):
        terms(objective, rows)
    assert queued(objective) == [5, 6, 7, 8, 4]
    terms(objective, [4, 9, 6])
    assert queued(objective) == [5, 6, 7, 8, 9], "only the row that was not there, in the place of the oldest"


def test_a_queue_shorter_than_a_batch():
    objective = DistilCseCkd(CONTEXT, {}, queue=2)
    terms(objective, [0, 1, 2])
    terms(objective, [3, 4, 5])
    assert set(queued(objective)) == {3, 4}


def test_no_text_is_its_own_negative_and_a_second_pass_sees_the_same():
    torch.manual_seed(0)  # the objective draws its own parameters
    objective = DistilCseCkd(CONTEXT, {}, queue=8)
    terms(objective, [0, 1, 2])
    first = terms(objective, [3, 4, 1])
    state = {name: value.clone() for name, value in objective.state_dict().items()}
    second = terms(objective, [3, 4, 1])
    # As in ASAM's second pass. The texts of the first pass are in the queue by then: their columns are masked, but the
    # product and its logsumexp are over 5 columns instead of 3, which the processor adds in another order.
    torch.testing.assert_close(first["ckd"], second["ckd"], rtol=1e-6, atol=1e-7)
    assert all(torch.equal(value, state[name]) for name, value in objective.state_dict().items())
    assert torch.equal(negatives(objective, [3, 4, 1]), vectors_of([0, 2]))


@pytest.mark.parametrize("size", [0, 1, 3, 7, 16])
def test_the_queue_is_that_of_a_loop_over_texts(size):
    objective = DistilCseCkd(CONTEXT, {}, queue=size)
    expected, taken = [-1] * size, 0
    for step in range(12):
        rows = torch.randperm(20, generator=torch.Generator().manual_seed(step))[: 1 + step % 5].tolist()
        new = [row for row in rows if row not in expected][:size]
        terms(objective, rows)
        for row in new:
            expected[taken % size] = row
            taken += 1
        assert queued(objective) == expected and objective.queue_count.item() == taken


def test_loss_agrees_with_a_loop():
    objective = DistilCseCkd(CONTEXT, {}, queue=8, scale=5.0)
    objective.weights["mse"] = 1.0
    terms(objective, [0, 1, 2])
    student, teacher = vectors_of([20, 21]), vectors_of([3, 4])
    found = terms(objective.eval(), [3, 4], student, teacher)
    candidates = [*teacher, *vectors_of([0, 1, 2])]
    for i in range(2):
        projected = objective.projection(F.normalize(student[i], dim=0) * 2)
        logits = torch.stack([5.0 * F.cosine_similarity(projected, vector, dim=0) for vector in candidates])
        assert found["ckd"][i].item() == pytest.approx(-logits.log_softmax(-1)[i].item(), abs=1e-5)
        assert found["mse"][i].item() == pytest.approx((projected - teacher[i]).square().mean().item(), abs=1e-5)


def test_evaluation_uses_the_queue_and_leaves_it_alone():
    objective = DistilCseCkd(CONTEXT, {}, queue=8, scale=5.0)  # at 20 a far negative adds less than float32 can hold
    terms(objective, [0, 1, 2])
    before = queued(objective)
    objective.eval()
    value = terms(objective, [3, 4])["ckd"]
    assert queued(objective) == before
    objective.queue_rows.fill_(-1)
    fewer = terms(objective, [3, 4])["ckd"]
    assert (fewer < value).all(), "fewer negatives"


def test_resumes_from_its_state():
    whole, resumed = (DistilCseCkd(CONTEXT, {}, queue=5) for _ in range(2))
    steps = [[0, 1, 2], [3, 4, 5], [6, 0, 7], [8, 9, 3]]
    for rows in steps[:2]:
        terms(whole, rows)
    resumed.load_state_dict({name: value.clone() for name, value in whole.state_dict().items()})
    for rows in steps[2:]:
        assert torch.equal(terms(whole, rows)["ckd"], terms(resumed, rows)["ckd"])
    assert queued(whole) == queued(resumed)


def test_scale_is_learnt_and_stays_positive():
    torch.manual_seed(0)  # of the projection: with some the student is right at once
    objective = DistilCseCkd(CONTEXT, {}, queue=0, scale=20.0)
    assert objective.log_scale.item() == pytest.approx(math.log(20))
    terms(objective, [0, 1, 2])["ckd"].mean().backward()
    torch.optim.SGD(objective.parameters(), lr=0.01).step()
    assert 0 < objective.log_scale.exp().item() < 20, "smaller, as long as the student is wrong"


def test_options_are_checked_and_mse_has_no_weight_by_default():
    with pytest.raises(DistilvecError, match=r"\[method.options.queue\] found -1"):
        build_objective("distilcse_ckd", {"queue": -1}, {}, CONTEXT)
    with pytest.raises(DistilvecError, match=r"\[method.options.scale\] found 0"):
        build_objective("distilcse_ckd", {"scale": 0.0}, {}, CONTEXT)
    assert build_objective("distilcse_ckd", {"queue": 4}, {}, CONTEXT).weights == {"ckd": 1.0, "mse": 0.0}


@pytest.mark.parametrize("queue", [0, 4])
def test_gradients_are_finite_for_a_collapsed_student_and_a_batch_of_one(queue):
    objective = DistilCseCkd(CONTEXT, {}, queue=queue)
    for rows in ([0], [1, 2, 3]):
        student = torch.zeros(len(rows), 4, requires_grad=True)
        sum(values.mean() for values in terms(objective, rows, student).values()).backward()
        assert torch.isfinite(student.grad).all()
        assert all(torch.isfinite(parameter.grad).all() for parameter in objective.parameters())


@pytest.mark.parametrize("update", ["plain", "asam"])
def test_interrupted_training_equals_uninterrupted(tiny_recipe, tmp_path, update):
    method = {"name": "distilcse_ckd", "options": {"queue": 40}}
    objective = interrupted_equals_whole(tiny_recipe(method=method, train__update={"name": update}), tmp_path)
    assert objective.queue_count > 40 and (objective.queue_rows >= 0).all()
