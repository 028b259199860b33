"""MultiLevelOT: its three levels on class logits and token states, the batch that decides which columns count."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from token_signals import CONTEXT, TASK, assert_padding_is_nothing, signals

from distilvec.core.errors import DistilvecError
from distilvec.core.outputs import OutputSpec
from distilvec.core.registry import build_objective
from distilvec.losses.logits import absolute_gaps, normalised_plan_cost, swapped_cross_entropy


def test_weights_of_the_levels():
    objective = build_objective("multilevel_ot", {}, {}, CONTEXT)
    assert objective.weights == {"absolute": 1.0, "cross_entropy": 0.1, "sinkhorn": pytest.approx(1e-4)}
    assert objective.needs_fixed_batch and not objective.in_teacher_space
    on_task = build_objective("multilevel_ot", {"distillation_weight": 0.8}, {}, TASK)
    assert on_task.weights == {
        "task": pytest.approx(0.2),
        "absolute": 0.8,
        "cross_entropy": pytest.approx(0.08),
        "sinkhorn": pytest.approx(8e-5),
    }
    assert on_task.teacher_outputs == OutputSpec(logits=True)


@pytest.mark.parametrize("kept", [2, 50])
def test_on_class_logits(kept):
    """A sequence of one row: scaled, columns in the order of the batch, and a plan of 1."""
    objective = build_objective("multilevel_ot", {"kept": kept, "temperature": 1.5}, {}, TASK)
    batch, student, teacher = signals()
    terms = objective(batch, student, teacher)
    ordered = []
    for logits in (student.logits, teacher.logits):
        rows = torch.stack([(row / (row.std() + 1e-4) / 1.5).softmax(-1) for row in logits])
        order = sorted(range(rows.shape[1]), key=lambda column, rows=rows: -rows[:, column].sum().item())
        ordered.append(rows[:, order[:kept]])
    ours, theirs = ordered
    torch.testing.assert_close(terms["absolute"], (ours - theirs).abs().sum(-1))
    torch.testing.assert_close(terms["cross_entropy"], -(ours.softmax(-1) * theirs.log_softmax(-1)).sum(-1))
    torch.testing.assert_close(terms["sinkhorn"], ((ours / 2).softmax(-1) - (theirs / 2).softmax(-1)).abs().sum(-1))


def test_on_token_states():
    objective = build_objective("multilevel_ot", {"kept": 4}, {}, CONTEXT)
    batch, student, teacher = signals(1, 2)
    terms = objective(batch, student, teacher)
    ordered = []
    for model in (student, teacher):
        states = model.hidden_layers[-1]
        rows = (states / (states.std(-1, keepdim=True) + 1e-4)).softmax(-1)
        order = rows[model.mask].sum(0).argsort(descending=True)
        ordered.append(rows[..., order[:4]])
    for name, loss in {
        "absolute": absolute_gaps,
        "cross_entropy": swapped_cross_entropy,
        "sinkhorn": normalised_plan_cost,
    }.items():
        torch.testing.assert_close(terms[name], loss(*ordered, student.mask, teacher.mask))


def test_a_text_depends_on_its_batch():
    """Alone the two agree; beside other texts their columns come in different orders."""
    objective = build_objective("multilevel_ot", {}, {}, TASK)
    batch, student, teacher = signals()
    same, ours, theirs = [2.0, 1.0, 0.0], [0.0, 3.0, 0.0], [0.0, 0.0, 3.0]
    student = replace(student, logits=torch.tensor([same, ours, ours, ours]))
    teacher = replace(teacher, logits=torch.tensor([same, theirs, theirs, theirs]))
    together = objective(batch, student, teacher)["absolute"][0]
    alone = objective(
        replace(batch, labels=batch.labels[:1]),
        replace(student, logits=student.logits[:1]),
        replace(teacher, logits=teacher.logits[:1]),
    )["absolute"][0]
    assert alone == 0 and together > 0.1


@pytest.mark.parametrize(
    ("context", "options"), [(CONTEXT, {}), (CONTEXT, {"kept": 3}), (TASK, {}), (TASK, {"on": "hidden"})]
)
def test_padding_is_nothing(context, options):
    assert_padding_is_nothing(build_objective("multilevel_ot", options, {}, context).double())


@pytest.mark.parametrize(("key", "value"), [("kept", 0), ("temperature", 0.0)])
def test_refused_options(key, value):
    with pytest.raises(DistilvecError, match=rf"\[method.options.{key}\] found {value}"):
        build_objective("multilevel_ot", {key: value}, {}, CONTEXT)
