"""A loss that is not finite stops the run before the optimizer's step, under every rule, with accumulation, and in
bf16.
"""

from __future__ import annotations

from typing import ClassVar

import pytest
import torch
from loops import make_loop
from refusals import refused

from distilvec.core.errors import DistilvecError
from distilvec.core.info import ObjectiveContext, StudentInfo, TeacherInfo
from distilvec.core.objective import Objective
from distilvec.train.checkpoint import read_checkpoint

pytestmark = pytest.mark.usefixtures("shared_cache")


class Failing(Objective):
    """Gives one bad loss in the pass numbered `bad`, counted from 0 over the passes of training."""

    default_weights: ClassVar[dict[str, float]] = {"good": 1.0, "bad": 0.5}

    def __init__(self, bad: int, value: float) -> None:
        super().__init__(ObjectiveContext(StudentInfo(32, 2), (TeacherInfo(32),)), {})
        self.bad, self.value, self.passes = bad, value, 0

    def forward(self, batch, student, teacher):
        good = (student.embedding - teacher.embedding).square().sum(-1)
        bad = good * (self.value if self.training and self.passes == self.bad else 1.0)
        self.passes += self.training
        return {"good": good, "bad": bad}


def weights(loop):
    trained = {name: value.clone() for name, value in loop.module.state_dict().items()}
    moments = {f"{id(p)}{k}": v.clone() for p, state in loop.optimizer.state.items() for k, v in state.items()}
    return trained | moments


RULES = {  # changes of the recipe: passes before the bad one (in step 4, whose first pass is number 3 x passes a step)
    "plain": ({}, 3),
    "inf": ({}, 3),
    "accumulation": ({"train__gradient_accumulation_steps": 3}, 10),
    "sam, first pass": ({"train__update": {"name": "sam"}}, 6),
    "sam, second pass": ({"train__update": {"name": "sam"}}, 7),
    "asam": ({"train__update": {"name": "asam"}}, 7),
    "disam": ({"train__update": {"name": "disam"}}, 6),
    "sam and accumulation": ({"train__update": {"name": "sam"}, "train__gradient_accumulation_steps": 2}, 15),
    "bf16": ({"train__precision": "bf16"}, 3),
    "clipped": ({"train__max_grad_norm": 1.0}, 3),
}


@pytest.mark.parametrize("deferred", [False, True], ids=["read in every step", "read on the device"])
@pytest.mark.parametrize("rule", RULES)
def test_weights_and_checkpoint_stay_those_of_the_step_before(tiny_recipe, tmp_path, rule, deferred):
    changes, bad = RULES[rule]
    value = float("inf" if rule == "inf" else "nan")
    recipe = tiny_recipe(
        train__epochs=3, train__batch_size=8, train__checkpoint_steps=2, train__logging_steps=5, **changes
    )
    loop = make_loop(recipe, tmp_path / "run", Failing(bad, value))
    if deferred:  # as on CUDA; the fused AdamW of the CPU reads the flag as well
        loop.guard.__init__(loop.optimizer, loop.accelerator, deferred=True)
    step, before = loop._step, []

    def keep(batches, index):
        before.append(weights(loop))
        step(batches, index)

    loop._step = keep
    with refused("train", f"bad {value}"):
        loop.run()
    assert len(before) == 4  # read at the checkpoint after step 4 at the latest
    after = weights(loop)
    assert after.keys() == before[3].keys() and all(torch.equal(after[name], before[3][name]) for name in after)
    assert read_checkpoint(loop.checkpoint, "mark", ())[1].step == 2
    assert not all(torch.equal(before[2][name], before[3][name]) for name in after if name in before[2]), "it trained"


def test_the_first_step_points_at_the_method_and_not_at_the_rate(tiny_recipe, tmp_path):
    loop = make_loop(tiny_recipe(), tmp_path / "run", Failing(0, float("nan")))
    with refused("train", "No weight has changed yet") as caught:
        loop.run()
    assert "learning_rate" not in str(caught.value)


def test_later_steps_are_skipped_until_the_flag_is_read(tiny_recipe, tmp_path):
    loop = make_loop(tiny_recipe(train__logging_steps=100), tmp_path / "run", Failing(3, float("nan")))
    loop.guard.__init__(loop.optimizer, loop.accelerator, deferred=True)
    step, before = loop._step, []
    loop._step = lambda batches, index: before.append(weights(loop)) or step(batches, index)
    with pytest.raises(DistilvecError, match=r"^\[train\] loss is nan at step 4 "):
        loop.run()
    assert len(before) == 11
    assert all(torch.equal(value, weights(loop)[name]) for name, value in before[3].items())


def test_a_gradient_norm_that_is_not_finite(tiny_recipe, tmp_path):
    """The loss is finite, its gradient is not; clipping would make all weights nan."""

    class Root(Failing):
        def forward(self, batch, student, teacher):
            terms = super().forward(batch, student, teacher)
            rooted = (terms["good"] * 0).sqrt() if self.passes == 3 else terms["bad"] * 0
            return {"good": terms["good"], "bad": rooted}

    loop = make_loop(tiny_recipe(train__max_grad_norm=1.0), tmp_path / "run", Root(-1, 0.0))
    with refused("train", "gradient_norm nan"):
        loop.run()
    assert all(torch.isfinite(p).all() for p in loop.module.parameters())


class RootOfZero(Objective):
    """Distances of all pairs, with the diagonal: finite, and its gradient is not."""

    default_weights: ClassVar[dict[str, float]] = {"pairs": 1.0}

    def __init__(self) -> None:
        super().__init__(ObjectiveContext(StudentInfo(32, 2), (TeacherInfo(32),)), {})

    def forward(self, batch, student, teacher):
        gaps = student.embedding[:, None] - student.embedding[None]
        return {"pairs": gaps.square().sum(-1).sqrt().mean(-1)}


@pytest.mark.parametrize(
    "changes", [{}, {"train__checkpoint_steps": 1}, {"train__max_grad_norm": 1.0}], ids=["loss", "weights", "norm"]
)
def test_a_gradient_that_is_not_finite_points_at_the_method_first(tiny_recipe, tmp_path, changes):
    """No checkpoint is there, so the same command trains the corrected method: nothing is to be moved aside."""
    loop = make_loop(tiny_recipe(**changes), tmp_path / "run", RootOfZero())
    with refused("train", "for sqrt or norm at 0") as caught:
        loop.run()
    assert "run the command again" in caught.value.fix and "--restart" not in caught.value.fix
