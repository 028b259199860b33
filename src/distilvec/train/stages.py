"""Training in stages: each by the same loop, begun with the weights the one before it ended with.

The last stage lives in the run folder, so that whatever reads a run finds it where a run without stages has it; the
others live in `stages/<name>/` (metrics.jsonl, checkpoint/).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import nn

from distilvec.config import recipe as recipes
from distilvec.config.schema import Recipe
from distilvec.core.errors import DistilvecError
from distilvec.core.log import log
from distilvec.core.objective import Objective
from distilvec.students.encoder import Encoder
from distilvec.train.checkpoint import Progress, checkpoint_file, fitting, read_checkpoint, restore
from distilvec.train.dataset import TrainingData
from distilvec.train.distillation import Distillation
from distilvec.train.metrics import Callback
from distilvec.train.optimizer import parameter_groups
from distilvec.train.trainer import Trainer


@dataclass(frozen=True)
class Stage:
    """A stage of training: its name ("" where there is only one), the recipe that holds in it, its folder, whether none follows."""

    name: str
    recipe: Recipe
    folder: Path
    last: bool = True

    @property
    def trained(self) -> str:
        """What it trains, in words."""
        return "everything" if self.recipe.train.trainable is None else ", ".join(self.recipe.train.trainable)


def training_stages(recipe: Recipe, folder: Path) -> list[Stage]:
    """The stages of a run in `folder`, in order; a recipe without stages is one."""
    found = recipes.stage_recipes(recipe) or {"": recipe}
    *_, last = found
    return [
        Stage(name, own, folder if name == last else folder / "stages" / name, name == last)
        for name, own in found.items()
    ]


@contextmanager
def errors_named(stage: Stage) -> Iterator[None]:
    """An error inside names the stage."""
    try:
        yield
    except DistilvecError as error:
        if not stage.name:
            raise
        key, close, problem = str(error).partition("] ")
        raise DistilvecError(f"{key}{close}stage {stage.name}: {problem}") from error


def check_parameters(stage: Stage, encoder: Encoder, objective: Objective) -> None:
    """DistilvecError where the stage names parameters that student and objective do not have; nothing is changed."""
    with errors_named(stage):
        parameter_groups(Distillation(encoder, objective), stage.recipe.train)


def train_stage(
    stage: Stage,
    encoder: Encoder,
    objective: Objective,
    data: TrainingData,
    fingerprint: str,
    save: Callable[[str], None],
    callbacks: Sequence[Callback] = (),
) -> Progress:
    """Train a stage to its end, from its checkpoint on; `save` keeps the student under a name, in the last stage only.

    `callbacks` get the steps of this stage, counted from 0. Errors: Stopped where a signal asked for it.
    """
    place = f" of stage {stage.name}" if stage.name else ""

    def keep(step: int) -> None:
        save(f"students/step-{step}")

    saves: dict[str, Any] = {"save_best": lambda: save("student"), "save_kept": keep} if stage.last else {}
    loop = Trainer(
        encoder, objective, data, stage.recipe.train, stage.folder, fingerprint, **saves, callbacks=callbacks
    )
    trained_before = loop.state.finished
    if not trained_before:
        log(f"training {_trained(encoder)} parameters: {loop.total_steps:,} steps{place} on {loop.describe_machine()}")
        state = loop.run()
        loop.accelerator.wait_for_everyone()
        if not state.finished or loop.stop_asked:
            raise loop.stopped(place)
    kept = trained_before and (stage.folder / "last").exists()  # a kill may fall between the last checkpoint and this
    if stage.last and loop.accelerator.is_main_process and not kept:
        save("last")
    return loop.state


def stage_progress(stage: Stage, fingerprint: str) -> Progress:
    """Where a stage stands, by its checkpoint."""
    found = read_checkpoint(checkpoint_file(stage.folder), fingerprint, ())
    return found[1] if found else Progress()


def take_over(encoder: Encoder, objective: Objective, stage: Stage, before: Stage, fingerprint: str) -> None:
    """Give the student the last weights of the stage before, and the objective what it had learnt where the method is the same.

    Parameters of the objective that the stage before did not have, or in another shape, keep their own start.
    """
    found = read_checkpoint(checkpoint_file(before.folder), fingerprint, ("model/",))
    if found is None or not found[1].finished:
        raise DistilvecError(
            f"[stages] stage {stage.name} begins where {before.name} ends, but {before.folder} holds no finished training. "
            "Start over (--restart)."
        )
    tensors = {name.removeprefix("model/"): value for name, value in found[0].items()}
    with fitting(checkpoint_file(before.folder)):
        restore(
            encoder, {name.removeprefix("encoder."): t for name, t in tensors.items() if name.startswith("encoder.")}
        )
    if stage.recipe.method.name == before.recipe.method.name:
        own = objective.state_dict()
        given = {name.removeprefix("objective."): t for name, t in tensors.items() if name.startswith("objective.")}
        objective.load_state_dict(
            {name: t for name, t in given.items() if name in own and own[name].shape == t.shape}, strict=False
        )


def _trained(module: nn.Module) -> str:
    """How many parameters are trained, and of how many where not all are."""
    every = sum(p.numel() for p in module.parameters())
    trained = sum(p.numel() for p in module.parameters() if p.requires_grad)
    return f"{every / 1e6:.1f} M" if trained == every else f"{trained / 1e6:.2f} of {every / 1e6:.1f} M"
