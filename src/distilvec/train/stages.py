"""Training in stages: each by the same loop, from the last weights of the stage before.

The last stage is in the run folder, so that readers of a run find it at the same path as without stages; the
others are in `stages/<name>/` (metrics.jsonl, checkpoint/).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from sentence_transformers import SentenceTransformer

from distilvec.config import recipe as recipes
from distilvec.config.schema import Recipe
from distilvec.core.errors import DistilvecError
from distilvec.core.objective import Objective
from distilvec.students.encoder import Encoder
from distilvec.train.checkpoint import Progress, checkpoint_file, fitting, read_checkpoint, restore, with_prefix
from distilvec.train.dataset import TrainingData
from distilvec.train.distillation import Distillation
from distilvec.train.metrics import Callback
from distilvec.train.optimizer import parameter_groups
from distilvec.train.sharding import whole_model
from distilvec.train.start import HIGHEST_RATE
from distilvec.train.trainer import Trainer, TrainingHooks

Save = Callable[[SentenceTransformer, Objective, str], None]  # model, objective, name


@dataclass(frozen=True)
class Stage:
    """A stage of training: its name ("" for the only one), its recipe, its folder, whether it is the last."""

    name: str
    recipe: Recipe
    folder: Path
    last: bool = True

    @property
    def trained(self) -> str:
        """Trained parameters, in words."""
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
    """Name the stage in errors."""
    try:
        yield
    except DistilvecError as error:
        if not stage.name:
            raise
        raise DistilvecError(error.key, f"stage {stage.name}: {error.problem}", error.fix) from error


def check_parameters(stage: Stage, encoder: Encoder, objective: Objective) -> None:
    """DistilvecError if the stage names parameters that student and objective do not have; nothing is changed."""
    with errors_named(stage):
        parameter_groups(Distillation(encoder, objective), stage.recipe.train)


def stage_progress(stage: Stage, fingerprint: str) -> Progress:
    """Progress of a stage, from its checkpoint."""
    found = read_checkpoint(checkpoint_file(stage.folder), fingerprint, ())
    return found[1] if found else Progress()


def train_stages(
    stages: Sequence[Stage],
    build: Callable[[Stage], tuple[Encoder, Objective]],
    data: Callable[[Objective], TrainingData],
    fingerprint: str,
    save: Save,
    callbacks: Sequence[Callback] = (),
    highest_rate: float = HIGHEST_RATE,
) -> Progress:
    """Train the stages in order, from their checkpoints on; return the progress of the last stage.

    Args:
        build: the untrained student and the objective of a stage.
        data: training data with the teacher outputs that an objective requires.
        fingerprint: ties the checkpoints to recipe and data.
        save: saves a student of the last stage as "student" (best), "last" or "students/step-N", in the main process.
        callbacks: get the steps of every stage, counted from 0.
        highest_rate: of a recipe that leaves the learning rate open.

    Errors: Stopped if a signal asked for it.
    """
    trainer, before = None, None
    for stage in stages:
        if stage.last or not stage_progress(stage, fingerprint).finished:
            encoder, objective = build(stage)
            if before is not None:
                take_over(encoder, objective, stage, before, fingerprint)
            keep: Callable[[str], None] = partial(_keep, save, encoder, objective) if stage.last else lambda name: None
            hooks, train = TrainingHooks(keep, callbacks, highest_rate=highest_rate), stage.recipe.train
            trainer = Trainer(encoder, objective, data(objective), train, stage.folder, fingerprint, hooks)
            saved = trainer.state.finished and (stage.folder / "last").exists()  # a kill may come between the two
            trainer.finish(f" of stage {stage.name}" if stage.name else "")
            if not saved:
                keep("last")
        before = stage
    assert trainer is not None, "the last stage is never left out"
    return trainer.state


def _keep(save: Save, encoder: Encoder, objective: Objective, name: str) -> None:
    """Save the student; all processes call this."""
    with whole_model(encoder) as model:
        if model is not None:
            save(model, objective, name)


def take_over(encoder: Encoder, objective: Objective, stage: Stage, before: Stage, fingerprint: str) -> None:
    """Load the last weights of the stage before into the student, and into an objective of the same method.

    Parameters of the objective that the stage before did not have, or in another shape, keep their initial values.
    """
    path = checkpoint_file(before.folder)
    found = read_checkpoint(path, fingerprint, ("model/",))
    if found is None or not found[1].finished:
        raise DistilvecError(
            "stages",
            f"stage {stage.name} begins after {before.name}, but {before.folder} holds no finished training.",
            "Start over (--restart).",
        )
    with fitting(path):
        restore(encoder, with_prefix(found[0], "model/encoder."))
    if stage.recipe.method.name == before.recipe.method.name:
        own, given = objective.state_dict(), with_prefix(found[0], "model/objective.")
        fit = {name: t for name, t in given.items() if name in own and own[name].shape == t.shape}
        objective.load_state_dict(fit, strict=False)
