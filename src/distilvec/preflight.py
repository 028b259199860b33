"""What a run needs, looked at before anything is loaded, built or claimed."""

from __future__ import annotations

from pathlib import Path

from distilvec.device import pick_device
from distilvec.extras import require_extra
from distilvec.run_folder import refuse_foreign
from distilvec.schema import Recipe
from distilvec.schema_train import TrainSection


def check_run(recipe: Recipe, folder: Path) -> None:
    """DistilvecError where the run could not be written to `folder`, or a package or device that the recipe needs is missing."""
    refuse_foreign(folder)
    check_training(recipe.train)
    if recipe.student.lora is not None:
        require_extra("finetune", "student.lora")
    for number, source in enumerate(recipe.corpus.sources if recipe.corpus else []):
        if source.dataset is not None:
            require_extra("datasets", f"corpus.sources.{number}.dataset")


def check_training(train: TrainSection) -> None:
    """The same for the part that recipes of every kind have."""
    pick_device(train.device)
    for tracker in train.trackers:
        require_extra(tracker, f"train.trackers: {tracker}")
