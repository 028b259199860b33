"""Results of a run: its record, the student's model card, the report's page."""

from __future__ import annotations

import math
import platform
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

import numpy as np
import sentence_transformers
import torch
import transformers
from sentence_transformers import SentenceTransformer

import distilvec
from distilvec.config import recipe as recipes
from distilvec.config.recipe import fingerprint
from distilvec.config.schema import Recipe
from distilvec.core.device import pick_device
from distilvec.core.errors import DistilvecError, about
from distilvec.core.files import write_json
from distilvec.core.method_file import short_name
from distilvec.core.model_name import ModelName
from distilvec.core.objective import Objective
from distilvec.core.outputs import OutputSpec
from distilvec.data.corpus import Corpus
from distilvec.evaluation.evaluator import Score
from distilvec.evaluation.speed import Speed
from distilvec.formats.sentence_transformers import finish_student
from distilvec.models.load import model_name
from distilvec.models.origin import NO_LICENSE, is_hub_id, origin, terms_of
from distilvec.pipeline.finished_run import FinishedRun
from distilvec.pipeline.job import Job
from distilvec.pipeline.objectives import make_objective
from distilvec.pipeline.start import Start, fresh_layer, read_start
from distilvec.pipeline.student import fitting_texts, trained_student
from distilvec.pipeline.train import Training
from distilvec.report import write
from distilvec.report.exports import read_exports
from distilvec.report.model_card import model_card
from distilvec.report.record import (
    CutScore,
    DataRecord,
    MethodRecord,
    RunRecord,
    SourceRecord,
    SpeedRecord,
    StageRecord,
    TeacherRecord,
    TrainingRecord,
    read_run_record,
    student_record,
)
from distilvec.report.sections.compression import averaged_tasks, mean_rows
from distilvec.report.values import Marks, Report
from distilvec.report.verdicts import dropped_sentence, fitted_sentence, pairs_sentence
from distilvec.train.accelerator import uses_bf16
from distilvec.train.checkpoint import Progress
from distilvec.train.metrics import ShippedNumbers
from distilvec.train.optimizer import final_rate
from distilvec.train.stages import Stage


def publish(job: Job, training: Training, report: Report) -> FinishedRun:
    """Write record, model card and report page; return the run."""
    folder = job.files.student
    student = trained_student(job)
    stages = list(zip(job.stages, training.stages, strict=True))
    unread = job.required == OutputSpec()
    teachers = [teacher.record(len(job.teachers) > 1, unread) for teacher in job.teachers]
    objective = make_objective(job.stages[-1], job.context)
    start = read_start(job)
    before: RunRecord | None = None
    with suppress(DistilvecError):  # a damaged record is written again
        before = read_run_record(job.files)
    record = run_record(stages, teachers, student, job.corpus, objective, training.shipped, report, start)
    if before is not None:  # its models may be gone since
        known = {name: text for name, text in record.terms.items() if text != NO_LICENSE}
        terms = {**record.terms, **before.terms, **known}
        record = replace(record, hub={**record.hub, **before.hub}, terms=terms)
    layer = fresh_layer(job, student)
    if layer is not None and record.training is not None:
        origin = "ridge" if f"student.{layer}" in start.ridge_distances else "random"
        record = replace(record, training=replace(record.training, linear_layer=origin))

    if training.pairs is not None and record.training is not None:
        # The decision on the stage says more than that it brought nothing
        last = replace(stage_record(*stages[-1]), dropped=False)
        others = [*record.training.stages[:-1], last]
        sentences = [dropped_sentence(training.state, False, others), pairs_sentence(training.pairs)]
        shipped = " ".join(sentence for sentence in sentences if sentence is not None)
        record = replace(record, training=replace(record.training, shipped=shipped))

    if record.cuts and report.compression is not None:
        record = replace(record, cut_tasks=averaged_tasks(report.compression.rows))
    record = replace(record, speed=_speed_record(report.speed))
    card = model_card(record, exports=read_exports(folder))
    with about("student"):
        finish_student(folder, student, record.to_json(), card, fitting_texts(job))
    write_json(job.files.record, record.to_json(), sealed=True)  # with it the run is finished
    marks = job.recipe.evaluation.marks
    report.marks = Marks(marks.good, marks.fair)
    write.write_report(job.files, report, record, recipes.dump(job.stated_recipe))
    write.draw_report(job.files, report)
    return FinishedRun(job.folder, record, job.recipe.student.trust_remote_code)


def _speed_record(speed: Speed | None) -> SpeedRecord | None:
    """Return the student's time for one query, for its card; None where it was not measured."""
    if speed is None:
        return None
    one_query = {}
    for row in speed.rows:
        if (row.backend, row.role, row.batch_size) == ("pytorch", "query", 1):
            one_query[row.model] = row
    if "student" not in one_query:
        return None
    student = one_query["student"]
    times_faster = None
    if "teacher" in one_query and student.median_ms:
        times_faster = one_query["teacher"].median_ms / student.median_ms
    processor, threads = speed.machine.get("processor"), speed.machine.get("threads")
    return SpeedRecord(
        milliseconds=round(student.median_ms, 3),
        tokens=student.tokens,
        times_faster=times_faster,
        processor=None if processor is None else str(processor),
        threads=None if threads is None else int(threads),
    )


def run_record(
    stages: Sequence[tuple[Stage, Progress]],
    teachers: Sequence[TeacherRecord],
    student: SentenceTransformer,
    corpus: Corpus,
    objective: Objective,
    shipped: ShippedNumbers,
    report: Report,
    start: Start,
) -> RunRecord:
    """Return the record: method and settings of the last stage; steps, texts and minutes of all stages."""
    recipe = stages[-1][0].recipe
    base = recipe.student.model
    if base == "teacher":
        base = teachers[0].name
    elif base:
        base = model_name(base)
    kept_layers = start.layers
    if not kept_layers and isinstance(recipe.student.layers, list):
        kept_layers = recipe.student.layers
    described_student = student_record(student, recipe.name, base, kept_layers)
    scores = {
        model: [Score(score.task, score.type, score.metric, round(score.value, 4)) for score in column]
        for model, column in report.scores.items()
    }
    # Of the method files that trained the student; None if distilvec's own methods did
    codes = [stage.code for stage, _ in stages]
    code = codes[0]
    if len(codes) > 1:
        code = fingerprint(*codes) if any(codes) else None
    return RunRecord(
        name=recipe.name,
        teacher=teachers[0],
        more_teachers=list(teachers[1:]),
        student=replace(described_student, settings=recipe.student.model_dump(mode="json", exclude_defaults=True)),
        data=data_record(corpus),
        method=MethodRecord(
            name=short_name(recipe.method.name),
            summary=" ".join((objective.__doc__ or "").strip().split("\n\n")[0].split()),
            options=recipe.method.options,
            weights=dict(objective.weights),
            citation=objective.citation,
            code=code,
        ),
        training=training_record(stages, start),
        metrics=dict(shipped.numbers),
        watched=shipped.watched if math.isfinite(shipped.watched.value) else None,
        scores=scores,
        versions=versions(),
        teacher_compatible=objective.in_teacher_space and described_student.width == teachers[0].width,
        supervised=report.supervised,
        overlap=report.overlap,
        hub=hub_record(recipe),
        terms=terms_record(recipe, teachers),
        cuts=cut_scores(recipe.student.dims or (), report),
    )


def cut_scores(dims: Sequence[int], report: Report) -> list[CutScore]:
    """Return the average score of the student at each of `dims`, in their order; none that was not measured."""
    if report.compression is None:
        return []
    scores = {}
    for row in mean_rows(report.compression.rows):
        if row.column == "student" and row.precision == "float32":
            scores[row.width] = round(row.value, 4)
    return [CutScore(dim, scores[dim]) for dim in dims if dim in scores]


def training_record(stages: Sequence[tuple[Stage, Progress]], start: Start) -> TrainingRecord:
    """Describe the training: settings of the last stage, cost of all."""
    last, state = stages[-1]
    if last.recipe.train.epochs == 0 and len(stages) == 1:
        sentence = fitted_sentence(last.recipe.teacher.vectors is not None)
        seed = last.recipe.train.seed
        return TrainingRecord(steps=0, start=start.label, seed=seed, best_step=0, shipped=sentence, fitted=True)
    progress = [progress for _, progress in stages]
    records = [stage_record(*stage) for stage in stages]
    train = last.recipe.train
    batch_size: int | str = train.batch_size * train.gradient_accumulation_steps
    if train.max_tokens:
        batch_size = f"{train.max_tokens} tokens"
    # What the recipe leaves to the machine: minutes or passes
    length = None if last.automatic is None else str(last.automatic)
    if train.minutes is not None:
        length = f"{train.minutes:g} minutes"
    return TrainingRecord(
        steps=sum(part.step for part in progress),
        texts=sum(part.texts for part in progress),
        epochs=round(state.passes, 2) if state.step_in_epoch else state.epoch,
        length=length,
        batch_size=batch_size,
        learning_rate=state.learning_rate,
        final_learning_rate=final_rate(train, state.learning_rate),
        schedule=train.schedule.name,
        weight_decay=train.weight_decay,
        optimizer=None if train.optimizer == "adamw" else train.optimizer,
        update=None if train.update.label == "plain" else train.update.label,
        start=None if start == Start() else start.label,
        precision="bf16" if uses_bf16(train, pick_device(train.device)) else "fp32",
        seed=train.seed,
        best_step=state.best_step,
        shipped=dropped_sentence(state, last.recipe.task is not None, records),
        minutes=round(sum(part.seconds for part in progress) / 60, 1),
        stages=records if last.name else [],
    )


def hub_record(recipe: Recipe) -> dict[str, Any]:
    """Return the part of the model card's metadata that follows from the recipe: base_model, datasets, license."""
    models: list[ModelName | None] = []
    adapters: list[ModelName] = []
    for teacher in [recipe.teacher, *recipe.more_teachers]:
        models.append(None if teacher.api is not None else teacher.named_model)
        for adapter in teacher.adapters or ():
            adapters.append(ModelName(adapter))

    student = recipe.student
    base: ModelName | None = None
    if student.model == "teacher":
        base = models[0]
    elif student.model is not None:
        base = ModelName(student.model, student.revision)
    metadata = origin(base, [*models, *adapters])

    sources = recipe.corpus.sources if recipe.corpus is not None else []
    datasets = [source.dataset for source in sources if is_hub_id(source.dataset)]
    if datasets:
        metadata["datasets"] = list(dict.fromkeys(datasets))  # each once
    return metadata


def terms_record(recipe: Recipe, teachers: Sequence[TeacherRecord]) -> dict[str, str]:
    """Return the license in words of each model that a student is made of, by the name that its card shows."""
    student, terms = recipe.student, {}
    if student.model not in (None, "teacher"):
        terms[model_name(student.model)] = terms_of(ModelName(student.model, student.revision))
    for teacher, section in zip(teachers, [recipe.teacher, *recipe.more_teachers], strict=True):
        if section.api is not None:
            text = "an API: its provider's terms, which may forbid training on its vectors"
        elif section.named_model is None:
            text = "a table of vectors: the terms of the model that made them"
        else:
            text = terms_of(section.named_model)
        terms[str(teacher.name)] = text
        for adapter in section.adapters or ():
            terms[model_name(adapter)] = terms_of(ModelName(adapter))
    return terms


def stage_record(stage: Stage, state: Progress) -> StageRecord:
    """Describe a stage: trained parameters, method and cost; the last one ships its start where that is best."""
    return StageRecord(
        name=stage.name,
        method=short_name(stage.recipe.method.name),
        trained=stage.trained,
        learning_rate=state.learning_rate,
        steps=state.step,
        texts=state.texts,
        minutes=round(state.seconds / 60, 1),
        dropped=state.best_step == 0 if stage.last else state.dropped,
    )


def data_record(corpus: Corpus) -> DataRecord:
    """Describe the corpus by source; rows of a task are examples."""
    rows = np.bincount(corpus.sources, minlength=len(corpus.source_names)).tolist()
    columns = zip(corpus.source_names, rows, corpus.roles, corpus.languages, strict=True)
    return DataRecord(
        fingerprint=corpus.fingerprint,
        sources=[SourceRecord(name, count, role, language) for name, count, role, language in columns],
        train_rows=corpus.report["train"],
        holdout_rows=corpus.report["holdout"],
    )


def versions() -> dict[str, str]:
    """List the versions of the packages in use."""
    return {
        "distilvec": distilvec.__version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "sentence-transformers": sentence_transformers.__version__,
        "numpy": np.__version__,
    }
