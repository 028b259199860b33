"""What a run needs, looked at before anything is loaded, built or claimed."""

from __future__ import annotations

from pathlib import Path

from distilvec.config.schema import Recipe
from distilvec.config.training import TrainSection
from distilvec.core.device import pick_device
from distilvec.core.extras import require_extra
from distilvec.pipeline.run_dir import refuse_foreign


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
