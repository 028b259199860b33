"""CDM: strict pairs and sentence vectors on states, KL on class logits."""

from __future__ import annotations

import pytest
import torch
from token_signals import CONTEXT, SCORES, TASK, assert_padding_is_nothing, signals, texts_of

from distilvec.core.errors import DistilvecError
from distilvec.core.outputs import OutputSpec, TokenOutputSpec
from distilvec.core.registry import build_objective
from distilvec.losses.logits import soft_kl


def test_on_states():
    objective = build_objective("cdm", {}, {}, CONTEXT).double()
    assert objective.weights == {"tokens": 100.0, "sentence": 1.0}
    assert objective.teacher_outputs == OutputSpec(
        embedding=True, tokens=TokenOutputSpec(alignment="strict", hidden=(-1,))
    )
    batch, student, teacher = signals(1, 2)
    terms = objective(batch, student, teacher)

    def unit(vector):
        return vector / vector.norm()

    for row, (ours, theirs, pairs) in enumerate(texts_of(batch, student, teacher)):
        gaps = [(unit(objective.token_projection(ours[i])) - unit(theirs[j])).square().mean().item() for i, j in pairs]
        assert terms["tokens"][row].item() == pytest.approx(sum(gaps) / max(1, len(gaps)), abs=1e-12)
        sentence = unit(objective.sentence_projection(student.embedding[row])) - unit(teacher.embedding[row])
        assert terms["sentence"][row].item() == pytest.approx(sentence.square().mean().item(), abs=1e-12)


def test_on_class_logits_there_is_nothing_to_warp():
    objective = build_objective("cdm", {"distillation_weight": 0.6}, {}, TASK)
    assert objective.weights == {"task": pytest.approx(0.4), "kl": 0.6} and objective.teacher_outputs == OutputSpec(
        logits=True
    )
    batch, student, teacher = signals()
    torch.testing.assert_close(objective(batch, student, teacher)["kl"], soft_kl(student.logits, teacher.logits, 2.0))


@pytest.mark.parametrize(("context", "options"), [(CONTEXT, {}), (TASK, {}), (TASK, {"on": "hidden"})])
def test_padding_is_nothing(context, options):
    assert_padding_is_nothing(build_objective("cdm", options, {}, context).double())


def test_scores_take_the_states():
    objective = build_objective("cdm", {}, {}, SCORES)
    assert objective.weights == {"task": pytest.approx(0.5), "tokens": 50.0, "sentence": 0.5}
    with pytest.raises(DistilvecError, match=r"\[method.options.temperature\] found 0"):
        build_objective("cdm", {"temperature": 0.0}, {}, TASK)
    batch, student, teacher = signals()
    without = build_objective("cdm", {}, {"tokens": 0.0}, CONTEXT).double()
    assert (
        set(without(batch, student, teacher)) == {"sentence"}
        and torch.isfinite(without(batch, student, teacher)["sentence"]).all()
    )
