"""The speed of a training on this machine, by a few real steps, and the number of steps that minutes stand for."""

from __future__ import annotations

import copy
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator

from distilvec.config.training import TrainSection
from distilvec.core.errors import Stopped
from distilvec.core.log import log
from distilvec.core.objective import Objective
from distilvec.core.processes import is_main, max_over_ranks
from distilvec.core.run_folder import TrainingFolder
from distilvec.students.encoder import Encoder
from distilvec.train.dataset import TrainingData
from distilvec.train.length import Pace, read_steps, steps_within, write_steps
from distilvec.train.metrics import Metric
from distilvec.train.stages import Stage
from distilvec.train.trainer import Trainer, TrainingHooks, steps_between
from distilvec.train.validation import padded_tokens, validate

SAMPLE_STEPS = 8
WARM_STEPS = 2  # the first ones are slower: memory is allocated, kernels are chosen
VALIDATION_ROWS = 64


def with_measured_steps(
    stage: Stage, encoder: Encoder, objective: Objective, data: TrainingData, fingerprint: str
) -> TrainSection:
    """Return the settings of a stage whose recipe states minutes, with the steps that fit into them as max_steps.

    The first start decides, in a file beside the checkpoint: a training that is resumed has the same schedule.
    Student and objective stay as they are. All processes call this and get the same steps, those of the main one.
    """
    train = stage.recipe.train
    assert train.minutes is not None
    decided = read_steps(stage.folder, fingerprint) if is_main() else None
    steps = max_over_ranks(decided or 0)
    if not steps:
        student, targets = copy.deepcopy((encoder, objective))  # together: parts that both have stay shared
        pace = measure_pace(student, targets, data, train)
        steps = max_over_ranks(steps_in_minutes(train, pace, data) if is_main() else 0)
        if is_main():
            write_steps(stage.folder, steps, fingerprint)
        minutes = f"{train.minutes:g} minute{'' if train.minutes == 1 else 's'}"
        log(f"{minutes}: {steps:,} steps of {pace.texts_a_step:,} texts at {1 / pace.step_seconds:.3g}/s")
    # A pass has one step at least, so as many passes are enough
    return train.model_copy(update={"minutes": None, "epochs": steps, "max_steps": steps})


def steps_in_minutes(train: TrainSection, pace: Pace, data: TrainingData) -> int:
    """Return the steps that fit into `train.minutes` at this pace, their validations included."""
    assert train.minutes is not None
    holdout_rows = len(data.holdout_rows)
    rows_a_step = len(data.train_rows) / pace.steps_an_epoch
    return steps_within(
        60 * train.minutes, pace, lambda steps: len(steps_between(train, steps, holdout_rows, rows_a_step))
    )


def measure_pace(encoder: Encoder, objective: Objective, data: TrainingData, train: TrainSection) -> Pace:
    """Measure a few real steps and validations. The steps change `encoder` and `objective`: pass copies.

    Errors: Stopped if a signal asked for it.
    """
    rows = min(VALIDATION_ROWS, len(data.holdout_rows))
    sample = replace(data, holdout_rows=data.holdout_rows[:rows])
    settings = train.model_copy(
        update={
            "minutes": None,
            "epochs": SAMPLE_STEPS,  # of one step at least
            "max_steps": SAMPLE_STEPS,
            "validation_steps": WARM_STEPS,
            # Nothing is learned: a return to the start, or a student that collapses, would only be a strange message
            "learning_rate": 1e-9,
            "final_learning_rate": 0.0,
            "keep_students": None,
            "gradient_steps": None,
            "trackers": [],
        }
    )
    ends: list[float] = []  # of validations
    tokens: list[int] = []  # that were trained on before each of them
    validations: list[float] = []  # seconds of each

    def timed(
        encoder: Any, objective: Objective, data: Any, accelerator: Accelerator, size: int
    ) -> tuple[dict[str, float], Metric]:
        _finish_device(accelerator.device)  # the steps before
        began = time.monotonic()
        result = validate(encoder, objective, data, accelerator, size)
        _finish_device(accelerator.device)
        ends.append(time.monotonic())
        validations.append(ends[-1] - began)
        tokens.append(trainer.state.tokens)
        return result

    with tempfile.TemporaryDirectory() as folder:
        hooks = TrainingHooks(validate=timed)
        trainer = Trainer(encoder, objective, sample, settings, TrainingFolder(Path(folder)), "pace", hooks)
        state = trainer.run()
    if not state.finished:
        raise Stopped(
            "stopped before the first step.", "Run the same command again.", key="train", number=trainer.stop_signal
        )

    # From the end of the warm steps on. By tokens: the texts of a few batches are longer or shorter than all texts are
    seconds = ends[-1] - ends[1] - sum(validations[2:])
    seconds_a_token = seconds / (tokens[-1] - tokens[1])
    tokens_a_pass = int(data.lengths[data.pass_rows(0, train.seed)].sum())
    texts = train.batch_size * train.gradient_accumulation_steps
    if train.max_tokens is not None:  # batches of as many texts as have these tokens
        texts = round(state.texts / state.step)
    # By tokens, too, with their padding: a few texts are padded more than many, which have others of their length
    sample_share = padded_tokens(sample, train.batch_size) / padded_tokens(data, train.batch_size)
    return Pace(
        step_seconds=seconds_a_token * tokens_a_pass / trainer.steps_an_epoch,
        validation_seconds=min(validations) / sample_share,
        texts_a_step=texts,
        steps_an_epoch=trainer.steps_an_epoch,
    )


def _finish_device(device: torch.device) -> None:
    """Wait for the GPU: steps are only enqueued."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    elif device.type == "mps":
        torch.mps.synchronize()
