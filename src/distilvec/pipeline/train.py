"""Training of a job, stage by stage; every student is saved as a folder that loads without distilvec."""

from __future__ import annotations

import copy
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from accelerate import Accelerator
from pydantic import TypeAdapter

from distilvec.config.training import TrainSection
from distilvec.core.errors import Stopped, about
from distilvec.core.files import read_json, remove, write_json
from distilvec.core.log import log
from distilvec.core.objective import Objective
from distilvec.core.processes import is_main, max_over_ranks
from distilvec.core.run_folder import TrainingFolder
from distilvec.core.task_head import TaskHead
from distilvec.formats.sentence_transformers import save_student
from distilvec.pipeline.job import Job
from distilvec.pipeline.objectives import make_objective
from distilvec.pipeline.prepare import Prepared
from distilvec.pipeline.start import has_new_layer
from distilvec.pipeline.student import fitting_texts, student_similarity, trainable
from distilvec.students.encoder import Encoder
from distilvec.students.factorize import expanded
from distilvec.students.lora import merged
from distilvec.students.task_head import save_head
from distilvec.train.checkpoint import Progress, read_progress, save_objective
from distilvec.train.dataset import TrainingData
from distilvec.train.length import Pace, read_steps, steps_within, write_steps
from distilvec.train.metrics import Callback, ShippedNumbers, shipped_numbers
from distilvec.train.sharding import whole_model
from distilvec.train.stages import Stage, stage_progress, take_over
from distilvec.train.start import BEHIND_LAYER_RATE, HIGHEST_RATE, Standing, suitable_rate
from distilvec.train.trainer import Trainer, TrainingHooks, steps_between
from distilvec.train.validation import padded_tokens, validate_student

if TYPE_CHECKING:
    from distilvec.evaluation.pairs import PairJudgement

FORMAT = 3  # of training.json


@dataclass(frozen=True)
class Training:
    """A finished training: the progress of every stage, and what validation says of the student that ships.

    `pairs`: the decision on a stage that learns from pairs.
    """

    stages: tuple[Progress, ...]
    shipped: ShippedNumbers
    pairs: PairJudgement | None = None

    @property
    def state(self) -> Progress:
        """The progress of the last stage."""
        return self.stages[-1]

    @property
    def ships_start(self) -> bool:
        """Whether the student is the one before all training; step 0 of a later stage has been trained."""
        return len(self.stages) == 1 and self.state.best_step == 0


def finished_training(job: Job) -> Training | None:
    """Read a training that has ended, with its student saved; None if there is something left to train."""
    path = job.files.training_result
    if not path.exists() or not job.files.student.exists():
        return None
    content = read_json(path, "Delete it and run the same recipe again.")
    if content.get("format") != FORMAT or content.get("fingerprint") != job.fingerprint:
        return None
    judgement = None
    if content.get("pairs") is not None:
        from distilvec.evaluation.pairs import PairJudgement

        judgement = TypeAdapter(PairJudgement).validate_python(content["pairs"])
    return _read_training(job, [read_progress(stage) for stage in content["stages"]], judgement)


def _rate_of(job: Job, stage: Stage) -> Callable[[float | None], float]:
    """Return the learning rate by the cosine at the start, for a stage without a stated one.

    The number and the width of layers count where all of them are trained: not in a table alone, in adapters, or in the
    parts that `train.trainable` names.
    """
    rate_of = partial(suitable_rate, highest=BEHIND_LAYER_RATE if has_new_layer(job) else HIGHEST_RATE)
    trains_layers = job.student.layers and job.recipe.student.lora is None and stage.recipe.train.trainable is None
    if not trains_layers:
        return rate_of
    return partial(rate_of, layers=job.student.layers, width=job.student.hidden_size)


def train(job: Job, prepared: Prepared, callbacks: Sequence[Callback] = ()) -> Training:
    """Train every stage from its checkpoint on, and save the students of the last one.

    `callbacks` get the steps of every stage, counted from 0.
    """
    encoder: Encoder | None = prepared.student
    finished: list[Progress] = []
    judgement = None
    before = None
    for stage in job.stages:
        progress = stage_progress(stage, job.fingerprint)
        if not stage.last and progress.finished:
            finished.append(progress)
            before = stage
            continue
        if encoder is None:
            encoder = trainable(job, prepared.start.student(job))
        objective = make_objective(stage, job.context)
        if before is None:
            prepared.start.set_objective(objective)
        else:
            take_over(encoder, objective, stage, before, job.fingerprint)

        data = prepared.data.data_of(objective)
        settings = stage.recipe.train
        if settings.minutes is not None:
            settings = with_measured_steps(stage, encoder, objective, data, job.fingerprint)
        ends_early = stage.automatic is not None
        hooks = TrainingHooks(
            callbacks=callbacks, rate_of=_rate_of(job, stage), ends_early=ends_early, another_follows=not stage.last
        )
        if stage.last:
            hooks = replace(hooks, save=partial(save, job, encoder, objective))
        trainer = Trainer(encoder, objective, data, settings, stage.folder, job.fingerprint, hooks)
        if ends_early and is_main():
            write_steps(stage.folder, trainer.planned_steps, job.fingerprint)  # for `distilvec runs`
        was_finished = trainer.state.finished
        trainer.finish(f" of stage {stage.name}" if stage.name else "")
        # A kill may come after the checkpoint of a finished training and before its last student is saved
        if stage.last and not (was_finished and job.files.last.exists()):
            save(job, encoder, objective, "last")

        if objective.reads_pairs:
            start = trainable(job, prepared.start.student(job))
            if before is not None:
                take_over(start, make_objective(stage, job.context), stage, before, job.fingerprint)
            judgement = judge_pairs(job, stage, start, encoder)
            if not max_over_ranks(judgement is not None and judgement.is_kept):
                trainer.state.best_step = 0
                save(job, start, objective, "student")

        finished.append(trainer.state)
        before = stage
        encoder = None  # the next stage begins with a student of its own: this one may be sharded, or compiled
    if is_main():
        # After the students: with this file the training counts as finished, and needs no checkpoint any more
        content = {"format": FORMAT, "fingerprint": job.fingerprint, "stages": [asdict(stage) for stage in finished]}
        if judgement is not None:
            content["pairs"] = asdict(judgement)
        path = job.files.training_result
        write_json(path, content, sealed=True)
    return _read_training(job, finished, judgement)


def _read_training(job: Job, stages: Sequence[Progress], judgement: PairJudgement | None) -> Training:
    shipped = shipped_numbers([stage.folder.metrics for stage in job.stages], stages[-1].best_step)
    return Training(tuple(stages), shipped, judgement)


def judge_pairs(job: Job, stage: Stage, start: Encoder, trained: Encoder) -> PairJudgement | None:
    """Judge a stage that learns from pairs, and log the decision; None in all processes but the main one."""
    from distilvec.pipeline.pairs import judge_stage
    from distilvec.report.verdicts import pairs_sentence

    with whole_model(trained) as model:
        if model is None:
            return None
        before = merged(start.model).to(model.device)
        judgement = judge_stage(job, stage.name or stage.recipe.method.name, before, merged(model))
    log(pairs_sentence(judgement))
    return judgement


def remove_checkpoints(job: Job) -> None:
    """Remove what only a training that goes on needs: the checkpoints of all stages, and the last weights."""
    for stage in job.stages:
        remove(stage.folder.checkpoint.parent)
    remove(job.files.objective("last"))
    remove(job.files.last)


def save(job: Job, encoder: Encoder, objective: Objective, name: str) -> None:
    """Save the student of the last stage as "student" (the best so far), "last" or "students/step-N".

    All processes call this; the main one writes, with the parameters and the head that the objective has learned.
    The first and the last are read back while their model is in memory, the best one when the run is published.
    """
    with whole_model(encoder) as model:
        if model is None:
            return
        student = merged(model)
        student.similarity_fn_name = student_similarity(job)
        section = job.recipe.student.embedding
        if section is not None and section.expand:
            student, distance = expanded(student, fitting_texts(job))
            log(f"{name}: the full table's vectors differ from the factorized table's by {distance:.3f} on average")
        info = {"method": job.stages[-1].recipe.method.name, "teacher": job.teacher.info.name}
        card = f"# {job.recipe.name}\n\n{about_saved(name)}\n"
        is_first = not job.files.student.exists()  # before the training, which would be in vain
        texts = fitting_texts(job) if is_first or name == "last" else None
        with about("student"):
            save_student(student, job.files.model(name), info, card, head_writer(job, objective), texts)
        save_objective(job.files.objective(name), objective)


def about_saved(name: str) -> str:
    """Say what a saved student is; the card of `student` is replaced when the run is published."""
    if name == "student":
        return "The best student so far. Training has not finished."
    if name == "last":
        return "The weights after the last step of a finished training. The student to use is `../../student`."
    step = name.removeprefix("students/step-")
    return f"The weights after step {step} (train.keep_students). The student to use is `../../student`."


def head_writer(job: Job, objective: Objective) -> Callable[[Path], None]:
    """Return a function that writes the objective's head into a student's folder; without a task it writes nothing."""

    def write(folder: Path) -> None:
        examples = job.examples
        if examples is not None and isinstance(objective.head, TaskHead):
            prompt = examples.corpus.prompts.get(examples.corpus.roles[0], "")
            save_head(folder, objective.head, examples.classes, examples.scale, prompt)

    return write


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
    rows_a_step = len(data.pass_rows(0, train.seed)) / pace.steps_an_epoch
    return steps_within(
        60 * train.minutes, pace, lambda steps: len(steps_between(train, steps, holdout_rows, rows_a_step))
    )


def measure_pace(encoder: Encoder, objective: Objective, data: TrainingData, train: TrainSection) -> Pace:
    """Measure a few real steps and validations. The steps change `encoder` and `objective`: pass copies."""
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
    ) -> tuple[dict[str, float], Standing]:
        _finish_device(accelerator.device)  # the steps before
        began = time.monotonic()
        result = validate_student(encoder, objective, data, accelerator, size)
        _finish_device(accelerator.device)
        ends.append(time.monotonic())
        validations.append(ends[-1] - began)
        tokens.append(trainer.state.tokens)
        return result

    with tempfile.TemporaryDirectory() as folder:
        hooks = TrainingHooks(validate=timed, title="measuring the speed of the training")
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
