"""The stages of a training: each begins from the last weights of the stage before.

Every stage has its own metrics and checkpoint. Those of the last one are where a training without stages has them, so
that readers of a run find them at the same path.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from distilvec.config import recipe as recipes
from distilvec.config.schema import Recipe
from distilvec.core.errors import DistilvecError, about
from distilvec.core.method_file import method_code
from distilvec.core.objective import Objective
from distilvec.core.registry import method_class
from distilvec.core.run_folder import RunFolder, TrainingFolder
from distilvec.core.task_head import TaskHead
from distilvec.students.encoder import Encoder
from distilvec.train.checkpoint import KEY, Progress, fitting, read_checkpoint, restore, with_prefix
from distilvec.train.distillation import Distillation
from distilvec.train.length import Passes, automatic_passes
from distilvec.train.optimizer import parameter_groups


@dataclass(frozen=True)
class Stage:
    """A stage of training: its name ("" for the only one), its recipe, its folder, whether it is the last.

    `automatic`: the passes that were chosen for it; None if the recipe states epochs, max_steps or minutes.
    `code`: the hash of its method's file when the run began, for it may be edited since; None for one of distilvec's.
    """

    name: str
    recipe: Recipe
    folder: TrainingFolder
    last: bool = True
    automatic: Passes | None = None
    code: str | None = None

    @property
    def trained(self) -> str:
        """Trained parameters, in words."""
        return "everything" if self.recipe.train.trainable is None else ", ".join(self.recipe.train.trainable)


def training_stages(recipe: Recipe, run: RunFolder) -> list[Stage]:
    """The stages of a run, in order; a recipe without stages is one."""
    stage_recipes = recipes.stage_recipes(recipe) or {"": recipe}
    last_name = list(stage_recipes)[-1]
    stages = []
    for name, stage_recipe in stage_recipes.items():
        is_last = name == last_name
        folder = run.training if is_last else run.stage(name)
        code = method_code(stage_recipe.method.name)
        stages.append(Stage(name, stage_recipe, folder, is_last, code=code))
    return stages


def any_in_teacher_space(stages: Sequence[Stage]) -> bool:
    """Whether a stage trains the student in the teacher's space, for which it is built then."""
    return any(method_class(stage.recipe.method.name).in_teacher_space for stage in stages)


def with_length(stage: Stage, rows: int, labelled: bool) -> Stage:
    """Decide on the passes that the stage's recipe leaves open, for so many texts or labelled examples.

    With minutes they stay open until the speed is measured. With max_steps they are no limit: a pass has a step at
    least.
    """
    train = stage.recipe.train
    if train.epochs != "auto" or train.minutes is not None:
        return stage
    automatic = automatic_passes(rows, labelled) if train.max_steps is None else None
    epochs = train.max_steps if automatic is None else automatic.count
    train = train.model_copy(update={"epochs": epochs})
    return replace(stage, recipe=stage.recipe.model_copy(update={"train": train}), automatic=automatic)


def check_stage(stage: Stage, encoder: Encoder, objective: Objective) -> None:
    """DistilvecError for parameters that student and objective do not have, and for gradient checkpointing of layers
    that cannot do it; nothing is changed.
    """
    parameter_groups(Distillation(encoder, objective), stage.recipe.train)
    if stage.recipe.train.gradient_checkpointing and not encoder.backbone.supports_gradient_checkpointing:
        raise DistilvecError(
            f"{type(encoder.backbone).__name__} cannot compute its layers again.",
            "Leave it out, and set a smaller train.batch_size where memory does not suffice.",
            key="train.gradient_checkpointing",
        )


def stage_progress(stage: Stage, fingerprint: str) -> Progress:
    """Progress of a stage, from its checkpoint."""
    checkpoint = read_checkpoint(stage.folder.checkpoint, fingerprint, ())
    return checkpoint[1] if checkpoint else Progress()


def take_over(encoder: Encoder, objective: Objective, stage: Stage, before: Stage, fingerprint: str) -> None:
    """Load the last weights of the stage before into the student, and into an objective of the same method.

    Parameters of the objective that the stage before did not have, or in another shape, keep their initial values.
    """
    path = before.folder.checkpoint
    checkpoint = read_checkpoint(path, fingerprint, ("model/",))
    if checkpoint is None or not checkpoint[1].finished:
        raise DistilvecError(
            f"stage {stage.name} begins after {before.name}, but {before.folder.path} holds no finished training.",
            "Start over (--restart).",
            key="stages",
        )
    weights = checkpoint[0]
    with about(KEY, path), fitting(path):
        restore(encoder, with_prefix(weights, "model/encoder."))
    if stage.recipe.method.name == before.recipe.method.name:
        parameters = objective.state_dict()
        fitting_weights = {}
        for name, value in with_prefix(weights, "model/objective.").items():
            if name in parameters and parameters[name].shape == value.shape:
                fitting_weights[name] = value
        objective.load_state_dict(fitting_weights, strict=False)
        head = objective.head
        if isinstance(head, TaskHead) and all(f"head.{name}" in fitting_weights for name in head.state_dict()):
            head.fitted = True
