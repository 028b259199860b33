"""MinED: plain KL on class logits, the pairs' distances on token states."""

from __future__ import annotations

import pytest
import torch
from token_signals import CONTEXT, PAIRS, SCORES, TASK, assert_padding_is_nothing, signals, texts_of

from distilvec.core.errors import DistilvecError
from distilvec.core.outputs import OutputSpec, TokenOutputSpec
from distilvec.core.registry import build_objective


def test_on_class_logits_it_is_kl():
    objective = build_objective("mined", {"temperature": 3.0}, {}, TASK)
    assert objective.teacher_outputs == OutputSpec(logits=True) and objective.weights == {
        "task": pytest.approx(0.5),
        "mined": 0.5,
    }
    assert [name for name, _ in objective.named_parameters()] == ["head.linear.weight", "head.linear.bias"]
    batch, student, teacher = signals()
    ours, theirs = (logits.div(3).softmax(-1) for logits in (student.logits, teacher.logits))
    torch.testing.assert_close(
        objective(batch, student, teacher)["mined"], 9 * (theirs * (theirs / ours).log()).sum(-1)
    )


@pytest.mark.parametrize("distance", ["cosine", "mse"])
def test_on_token_states_pair_by_pair(distance):
    objective = build_objective("mined", {"distance": distance}, {}, CONTEXT).double()
    assert objective.teacher_outputs == OutputSpec(tokens=TokenOutputSpec(alignment="mined", hidden=(-1,)))
    batch, student, teacher = signals(2, 1)
    found = objective(batch, student, teacher)["mined"]
    for row, (ours, theirs, pairs) in enumerate(texts_of(batch, student, teacher)):
        gaps = []
        for i, j in pairs:
            projected = objective.projection.weight @ ours[i] + objective.projection.bias
            near = 1 - torch.cosine_similarity(projected, theirs[j], dim=0)
            gaps.append(near.item() if distance == "cosine" else (projected - theirs[j]).square().mean().item())
        assert found[row].item() == pytest.approx(sum(gaps) / len(gaps) if gaps else 0.0, abs=1e-12)
    assert not PAIRS[3] and found[3] == 0  # a text without pairs


@pytest.mark.parametrize(
    ("context", "options"), [(CONTEXT, {}), (CONTEXT, {"distance": "mse"}), (TASK, {}), (TASK, {"on": "hidden"})]
)
def test_padding_is_nothing(context, options):
    assert_padding_is_nothing(build_objective("mined", options, {}, context).double())


def test_states_of_a_task_without_class_logits():
    assert build_objective("mined", {"on": "hidden"}, {}, SCORES).weights == {"task": pytest.approx(0.5), "mined": 0.5}
    with pytest.raises(DistilvecError, match=r"\[method.options.temperature\] found -1"):
        build_objective("mined", {"temperature": -1.0}, {}, CONTEXT)
