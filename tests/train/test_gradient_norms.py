"""Norms of each term's gradient: equal to autograd's by hand, without effect on the training, drawn as shares."""

from __future__ import annotations

import pytest
import torch
from loops import make_loop

from distilvec.core.run_folder import RunFolder
from distilvec.pipeline.resolve import resolve
from distilvec.report.sections.training import gradient_points
from distilvec.train.distillation import seed_step
from distilvec.train.metrics import read_metrics

pytestmark = pytest.mark.usefixtures("shared_cache")

TALAS = {"method__name": "talas", "train__max_steps": 4, "train__batch_size": 8, "train__precision": "fp32"}


def by_hand(loop, index):
    """Norm of the weighted gradient in the student of every term on the batch of a step, term by term."""
    module, data = loop.module.train(), loop.data
    batch = data.batch(loop._batches(0)[index])
    found = {}
    for name, weight in module.objective.weights.items():
        seed_step(loop.train.seed, index, 0, 0)
        terms = module(batch, data.teacher.signals(batch))
        loss = weight * terms[name].sum() / len(terms[name])
        parameters = [one for one in module.encoder.parameters() if one.requires_grad]
        parts = torch.autograd.grad(loss, parameters, allow_unused=True)
        found[name] = sum(part.square().sum().item() for part in parts if part is not None) ** 0.5
    return found


def test_norms_equal_autograd_term_by_term(tiny_recipe, tmp_path):
    recipe = tiny_recipe(train__gradient_steps=1, **TALAS)
    expected = by_hand(make_loop(recipe, tmp_path / "hand"), 0)
    assert len(expected) == 3 and all(value > 0 for value in expected.values())
    make_loop(recipe, tmp_path / "run").run()
    lines = [line for line in read_metrics(RunFolder(tmp_path / "run").metrics) if "train/gradient_simcse" in line]
    assert [line["step"] for line in lines] == [1, 2, 3, 4]
    assert {name: lines[0][f"train/gradient_{name}"] for name in expected} == pytest.approx(expected, rel=1e-5)
    points = gradient_points(lines)
    total = sum(expected.values())
    assert {point.line: point.y for point in points if point.x == 1} == pytest.approx(
        {name: value / total for name, value in expected.items()}, rel=1e-5
    )


@pytest.mark.parametrize(
    "changes",
    [TALAS, {**TALAS, "method__name": "distilcse_ckd", "train__gradient_accumulation_steps": 2}],
    ids=["talas", "a queue in the objective"],
)
def test_the_training_is_the_same(tiny_recipe, tmp_path, changes):
    weights = []
    for every in (None, 2):
        recipe = tiny_recipe(train__gradient_steps=every, **changes)
        loop = make_loop(recipe, tmp_path / f"{every}")
        loop.run()
        weights.append({name: value.clone() for name, value in loop.module.state_dict().items()})
    assert all(torch.equal(value, weights[1][name]) for name, value in weights[0].items())
    plain, logged = (resolve(tiny_recipe(train__gradient_steps=n, **changes), tmp_path / "job") for n in (None, 2))
    assert plain.fingerprint == logged.fingerprint
