"""DSKD: both spaces token by token against loops, what is frozen, pairs encoded apart, scores."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from contexts import make_context
from refusals import refused
from token_signals import CLASSES, CONTEXT, SCORES, TASK, TEXTS, assert_padding_is_nothing, signals, texts_of

from distilvec.core.errors import DistilvecError
from distilvec.core.objective import weighted_loss
from distilvec.core.outputs import OutputSpec, TokenOutputSpec
from distilvec.core.registry import build_objective
from distilvec.core.task_head import TaskInfo

TOKENS = TokenOutputSpec(hidden=(-1,))


def attend(queries, keys, values):
    """softmax(q k' / sqrt(width)) v, one query after the other."""
    found = []
    for query in queries:
        weights = torch.stack([query @ key / query.numel() ** 0.5 for key in keys]).softmax(0)
        found.append(sum(weight * value for weight, value in zip(weights, values, strict=True)))
    return torch.stack(found)


def far(x, y):
    """The squared distance of unit vectors, averaged over rows."""
    unit = [z / z.norm(dim=-1, keepdim=True) for z in (x, y)]
    return (unit[0] - unit[1]).square().sum(-1).mean()


def kl(target, other, temperature):
    p, q = ((z / temperature).softmax(-1) for z in (target, other))
    return temperature**2 * (p * (p / q).log()).sum(-1)


def test_on_class_logits():
    torch.manual_seed(0)
    objective = build_objective("dskd", {"distillation_weight": 0.8}, {}, TASK).double()
    assert objective.weights == {"task": pytest.approx(0.2)} | dict.fromkeys(
        ["projected", "student_space", "teacher_space", "probe"], 0.8
    )
    assert objective.teacher_outputs == OutputSpec(logits=True, tokens=TOKENS)
    batch, student, teacher = signals(1, 2)
    terms = objective(batch, student, teacher)
    right = 0
    for row, (ours, theirs, _) in enumerate(texts_of(batch, student, teacher)):
        keys = theirs / theirs.square().mean(-1, keepdim=True).sqrt()
        queries = objective.query(ours)
        projected = objective.head(attend(queries, keys, objective.t2s(keys)).mean(0)[None])[0]
        taken = objective.probe(attend(keys, queries, objective.s2t(ours)).mean(0)[None])[0]
        label = batch.labels[row]
        right += (is_right := int(projected.argmax() == label))
        expected = {
            "projected": -projected.log_softmax(-1)[label],
            "student_space": is_right * kl(projected, student.logits[row], 2.0),
            "teacher_space": kl(teacher.logits[row], taken, 2.0),
            "probe": kl(teacher.logits[row], objective.probe(theirs.mean(0)[None])[0], 1.0),
        }
        for name, value in expected.items():
            torch.testing.assert_close(terms[name][row], value)
    assert 0 < right < TEXTS  # both cases were met


@pytest.mark.parametrize(
    ("term", "reached"),
    [
        ("projected", {"query.weight", "t2s.weight"}),
        ("student_space", set()),
        ("teacher_space", {"query.weight", "s2t.weight"}),
        ("probe", {"probe.linear.weight", "probe.linear.bias"}),
    ],
)
def test_heads_are_frozen_and_targets_stand(term, reached):
    torch.manual_seed(0)
    objective = build_objective("dskd", {}, {}, TASK).double()
    batch, student, teacher = signals()
    objective(batch, student, teacher)[term].sum().backward()
    assert {name for name, parameter in objective.named_parameters() if parameter.grad is not None} == reached
    assert (student.logits.grad is not None) == (term == "student_space")


def test_on_states():
    objective = build_objective("dskd", {}, {}, CONTEXT).double()
    assert objective.weights == {"sentence": 1.0, "token": 1.0}
    assert objective.student_outputs == OutputSpec(embedding=True, hidden_layers=(-1,))
    assert objective.teacher_outputs == OutputSpec(embedding=True, tokens=TOKENS)
    batch, student, teacher = signals(2, 1)
    terms = objective(batch, student, teacher)
    for row, (ours, theirs, _) in enumerate(texts_of(batch, student, teacher)):
        vector, target = student.embedding[row], teacher.embedding[row]
        torch.testing.assert_close(
            terms["sentence"][row], far(objective.s2t(vector), target) + far(vector, objective.to_student @ target)
        )
        first, second = objective.student_attends, objective.teacher_attends
        lent = attend(first.query(ours), first.key(theirs), first.value(theirs))
        taken = attend(second.query(theirs), second.key(ours), second.value(ours))
        torch.testing.assert_close(terms["token"][row], far(ours, lent) + far(theirs, taken))


def test_the_teachers_side_in_the_students_space_is_a_constant_that_is_saved():
    objective = build_objective("dskd", {}, {}, CONTEXT)
    assert (
        objective.to_student.shape == (CONTEXT.student_dim, CONTEXT.teacher.dim)
        and not objective.to_student.requires_grad
    )
    assert "to_student" in objective.state_dict()
    assert len(list(objective.parameters())) == 7  # one layer for vectors, six for attention


@pytest.mark.parametrize(("context", "options"), [(CONTEXT, {}), (TASK, {}), (TASK, {"on": "hidden"})])
def test_padding_is_nothing(context, options):
    torch.manual_seed(0)
    assert_padding_is_nothing(build_objective("dskd", options, {}, context).double())


def test_pairs_encoded_apart():
    """Two texts an example: all first ones, then all second ones; both heads see them as the task's head does."""
    context = make_context(TASK, task=TaskInfo("pair", CLASSES, texts_per_example=2))
    objective = build_objective("dskd", {}, {}, context).double()
    batch, student, teacher = signals()
    batch = replace(batch, labels=batch.labels[:2], texts_per_example=2)
    student, teacher = replace(student, logits=student.logits[:2]), replace(teacher, logits=teacher.logits[:2])
    terms = objective(batch, student, teacher)
    assert {values.shape for values in terms.values()} == {(TEXTS // 2,)}
    theirs = [states.mean(0) for _, states, _ in texts_of(batch, student, teacher)]
    features = torch.cat([theirs[1], theirs[3], (theirs[1] - theirs[3]).abs()])
    torch.testing.assert_close(terms["probe"][1], kl(teacher.logits[1], objective.probe.linear(features), 1.0))
    weighted_loss(terms, objective.weights).backward()
    assert torch.isfinite(student.hidden_layers[-1].grad).all()


def test_scores_take_the_states():
    objective = build_objective("dskd", {}, {}, SCORES)
    assert objective.weights == {"task": pytest.approx(0.5), "sentence": 0.5, "token": 0.5}
    with refused("method.options.on"):
        build_objective("dskd", {"on": "logits"}, {}, SCORES)
    with pytest.raises(DistilvecError, match=r"\[method.options.temperature\] found 0"):
        build_objective("dskd", {"temperature": 0.0}, {}, TASK)
