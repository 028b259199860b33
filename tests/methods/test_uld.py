"""ULD: class logits and token states against loops, its options, where it has no place."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from refusals import refused
from token_signals import CLASSES, CONTEXT, SCORES, TASK, assert_padding_is_nothing, signals, texts_of

from distilvec.core.errors import DistilvecError
from distilvec.core.outputs import OutputSpec, TokenOutputSpec
from distilvec.core.registry import build_objective
from distilvec.losses.supervised import task_loss


def gap(student, teacher):
    """One distribution each: sorted, the shorter filled up with zeros, summed."""
    ours, theirs = (sorted(values.softmax(-1).tolist(), reverse=True) for values in (student, teacher))
    most = max(len(ours), len(theirs))
    ours, theirs = (values + [0.0] * (most - len(values)) for values in (ours, theirs))
    return sum(abs(a - b) for a, b in zip(ours, theirs, strict=True))


def test_on_class_logits():
    objective = build_objective("uld", {"distillation_weight": 0.8}, {}, TASK)
    assert objective.weights == {"task": pytest.approx(0.2), "uld": 0.8}
    assert objective.teacher_outputs == OutputSpec(logits=True) and objective.student_outputs == OutputSpec(vector=True)
    batch, student, teacher = signals()
    terms = objective(batch, student, teacher)
    expected = [gap(s, t) for s, t in zip(student.logits, teacher.logits, strict=True)]
    assert terms["uld"].tolist() == pytest.approx(expected, abs=1e-12)
    torch.testing.assert_close(terms["task"], task_loss(student.logits, batch.labels))
    mean = build_objective("uld", {"reduction": "mean"}, {}, TASK)(batch, student, teacher)["uld"]
    torch.testing.assert_close(mean, terms["uld"] / CLASSES)


def test_on_token_states():
    objective = build_objective("uld", {}, {}, CONTEXT)
    assert objective.weights == {"uld": 1.0}
    assert objective.student_outputs == OutputSpec(hidden_layers=(-1,)) and objective.teacher_outputs == OutputSpec(
        tokens=TokenOutputSpec(hidden=(-1,))
    )
    batch, student, teacher = signals(1, 2)
    found = objective(batch, student, teacher)["uld"]
    for row, (ours, theirs, _) in enumerate(texts_of(batch, student, teacher)):
        gaps = [gap(s, t) for s, t in zip(ours, theirs, strict=False)]
        assert found[row].item() == pytest.approx(sum(gaps) / len(gaps), abs=1e-12)


def test_temperatures_are_separate():
    batch, student, teacher = signals()
    found = build_objective("uld", {"student_temperature": 2.0, "teacher_temperature": 0.5}, {}, TASK)(
        batch, student, teacher
    )["uld"]
    expected = [gap(s / 2, t / 0.5) for s, t in zip(student.logits, teacher.logits, strict=True)]
    assert found.tolist() == pytest.approx(expected, abs=1e-12)
    with refused("method.options.teacher_temperature"):
        build_objective("uld", {"teacher_temperature": 0.0}, {}, CONTEXT)


@pytest.mark.parametrize(
    ("context", "options"), [(CONTEXT, {}), (TASK, {}), (TASK, {"on": "hidden"}), (SCORES, {"on": "hidden"})]
)
def test_padding_is_nothing(context, options):
    objective = build_objective("uld", options, {"task": 0.0} if context is SCORES else {}, context).double()
    assert_padding_is_nothing(objective)


@pytest.mark.parametrize("name", ["uld", "mined", "multilevel_ot"])
def test_no_logits_to_match(name):
    for options, context in (({}, SCORES), ({"on": "logits"}, SCORES), ({"on": "logits"}, CONTEXT)):
        with pytest.raises(DistilvecError, match=r"^\[method.options.on\].* Set on: hidden"):
            build_objective(name, options, {}, context)


@pytest.mark.parametrize("name", ["uld", "mined", "multilevel_ot", "cdm", "dskd"])
def test_the_weight_of_the_task(name):
    with refused("method.options.distillation_weight"):
        build_objective(name, {"distillation_weight": 1.5}, {}, TASK)
    terms = {
        term: weight
        for term, weight in build_objective(name, {"distillation_weight": 0.8}, {}, TASK).weights.items()
        if term != "task"
    }
    assert build_objective(name, {"distillation_weight": 0.9}, {}, TASK).weights == {
        "task": pytest.approx(0.1),
        **{term: pytest.approx(weight * 9 / 8) for term, weight in terms.items()},
    }


@pytest.mark.parametrize("name", ["uld", "mined", "multilevel_ot", "cdm", "dskd", "emo", "distillmoe"])
def test_the_weight_of_distillation_is_one_option(name):
    context = replace(TASK, student=replace(TASK.student, experts=3, layers=2))

    def weights(**options):
        return build_objective(name, options, {"dynamic_cka": 0.0} if name == "distillmoe" else {}, context).weights

    whole = {term: weight for term, weight in weights(distillation_weight=1.0).items() if term != "task"}
    expected = {"task": pytest.approx(0.7), **{term: 0.3 * weight for term, weight in whole.items()}}
    assert weights(distillation_weight=0.3) == pytest.approx(expected)
    assert weights() == weights(distillation_weight=0.5)
    with refused("method.options.distillation_weight"):
        weights(distillation_weight=1.5)
