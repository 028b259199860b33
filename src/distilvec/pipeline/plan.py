"""Cost estimate of a recipe, measured on small samples before any work."""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from sentence_transformers import SentenceTransformer

from distilvec.alignment.store import AlignmentStore
from distilvec.core.batch import TextBatch
from distilvec.core.outputs import ModelOutputs, OutputSpec
from distilvec.data.tokens import TokenStore
from distilvec.pipeline.caches import folder_of_cache, open_cache, reads_tokens, superset_cache, token_source
from distilvec.pipeline.job import Job, Teacher
from distilvec.pipeline.prepare import align, tokenize, tokenize_for, trainable, training_data, untrained_student
from distilvec.pipeline.resolve import make_objective, required_outputs
from distilvec.pipeline.texts import left_out
from distilvec.teachers.cache.fill import compute_tokens, count_missing
from distilvec.teachers.cache.signals import Ragged
from distilvec.teachers.cached import BatchTeacher
from distilvec.teachers.live import LiveTeacher
from distilvec.teachers.model import LocalTeacher
from distilvec.train.metrics import read_metrics
from distilvec.train.stages import Stage, errors_named
from distilvec.train.trainer import Trainer

SAMPLE_TEXTS = 512
SAMPLE_STEPS = 8
Lines = list[list[str]]


@dataclass(frozen=True)
class SampleTeacher:
    """Gives outputs of the right shapes while a few steps are timed; nothing is learned from them.

    `lengths` are the teacher's tokens per row, None if no token outputs are required.
    """

    job: Job
    teacher: Teacher
    lengths: np.ndarray | None

    def signals(self, batch: TextBatch) -> ModelOutputs:
        """Return zero vectors; for tokens equal importance, the first pairs, and Gram matrices of orthogonal rows."""
        info, classes = self.teacher.info, 1 if self.job.examples is None else self.job.examples.info.classes
        zeros = torch.zeros(
            len(batch), max(info.dim, info.hidden_size or 0, info.pre_dense_dim or 0), device=batch.rows.device
        )
        found = ModelOutputs(
            embedding=zeros[:, : info.dim],
            pre_dense=zeros[:, : info.pre_dense_dim] if info.pre_dense_dim else None,
            vector=zeros[:, : info.hidden_size],
            logits=zeros.new_zeros(len(batch) // batch.texts_per_example, classes),
        )
        required = self.job.required.tokens
        if required is None or self.lengths is None:
            return found
        lengths = torch.from_numpy(self.lengths[batch.rows.cpu().numpy()]).to(zeros.device)
        mask = torch.arange(int(lengths.max()), device=zeros.device) < lengths[:, None]
        states = torch.zeros(*mask.shape, info.hidden_size or 0, device=zeros.device)
        found = replace(
            found, hidden_layers=dict.fromkeys(required.hidden, states), mask=mask, importance=mask / lengths[:, None]
        )
        if batch.alignment is None:
            return found
        selected = batch.alignment.pairs[:, : max(2, batch.alignment.pairs.shape[1] // required.divisor)]
        present = (selected[..., 0] >= 0).float()
        grams = torch.diag_embed(present / present.sum(1, keepdim=True).clamp_min(1).sqrt())
        return replace(found, selected=selected, grams=dict.fromkeys(required.gram_layers, grams))


@dataclass(frozen=True)
class TeacherCost:
    """The lines about a teacher, and its outputs for the timed steps."""

    lines: Lines
    sample: SampleTeacher
    live: LocalTeacher | None
    tokens: TokenStore | None
    alignment: AlignmentStore | None


def make_plan(job: Job) -> Lines:
    """Return rows of (name, value). The corpus is read and tokenized; teachers and student run on a sample only."""
    corpus, model = job.corpus, untrained_student(job)
    tokens = tokenize(job, corpus, model)
    costs = [_teacher_cost(job, teacher, model) for teacher in job.teachers]
    stages = [_measure_stage(job, tokens, costs, stage) for stage in job.stages]
    report, names = corpus.report, corpus.source_names
    by_source = np.bincount(corpus.sources, minlength=len(names))
    dropped = left_out(report, job.recipe.corpus) if job.recipe.corpus is not None else []
    parameters = sum(weight.numel() for weight in model.parameters()) / 1e6
    return [
        [
            "texts" if job.examples is None else "examples",
            f"{report['train'] + report['holdout']:,} ({report['holdout']:,} for validation)",
        ],
        *[[f"  {name}", f"{kept:,}"] for name, kept in zip(_distinct(names), by_source, strict=True)],
        *[["  left out", line] for line in dropped],
        ["student tokens a text", f"{tokens.lengths.mean():.1f} on average, {int(tokens.lengths.max())} at most"],
        *[line for cost in costs for line in cost.lines],
        ["student", f"{parameters:.1f} M parameters"],
        *_training_lines(stages),
        *[["runs code", line] for line in _code(job)],
        ["run folder", str(job.folder)],
    ]


def _distinct(names: list[str]) -> list[str]:
    """Add the key of each source to names that several sources share."""
    return [name if names.count(name) == 1 else f"{name} (corpus.sources.{n})" for n, name in enumerate(names)]


def _code(job: Job) -> Iterator[str]:
    """List the code that the recipe brings into this process."""
    methods = dict.fromkeys(stage.recipe.method.name for stage in job.stages)
    yield from (f"the code in {name} (method.name)" for name in methods if name.endswith(".py"))
    student = job.recipe.student
    sections = [(teacher.key, teacher.section.model, teacher.section.trust_remote_code) for teacher in job.teachers]
    for key, model, trusted in [*sections, ("student", student.model or student.tokenizer, student.trust_remote_code)]:
        if trusted:
            yield f"the code that comes with {model} ({key}.trust_remote_code)"


def _teacher_cost(job: Job, teacher: Teacher, student: SentenceTransformer) -> TeacherCost:
    """Describe a teacher and the rows its cache still lacks."""
    info, first = teacher.info, teacher is job.teacher
    weight = f", weight {teacher.section.weight:g}" if len(job.teachers) > 1 else ""
    lines = [["teacher" if first else "further teacher", f"{info.name}, {info.dim} dimensions{weight}"]]
    if job.required == OutputSpec():
        return TeacherCost(
            [*lines, ["teacher vectors to compute", "none: the method requires none"]],
            SampleTeacher(job, teacher, None), None, None, None,
        )  # fmt: skip
    loaded = teacher.load(job.recipe.train.device)
    kind = job.required.tokens.alignment if job.required.tokens else None
    model = loaded if isinstance(loaded, LocalTeacher) else None
    alignment = align(job, student, model) if model is not None and kind is not None else None
    reads = model is not None and (teacher.live or reads_tokens(teacher))
    tokens = tokenize_for(job, teacher, model) if model is not None and reads else None
    if teacher.live:
        lines.append(["teacher vectors to compute", "none: the teacher runs in every step"])
        return TeacherCost(lines, SampleTeacher(job, teacher, None), model, tokens, alignment)
    with loaded:
        seconds, size = _cost_of_a_text(job, teacher, model, tokens, alignment)
    folder, missing = _missing(job, teacher)
    existing = next(parent for parent in (folder.absolute(), *folder.absolute().parents) if parent.exists())
    free, rows = shutil.disk_usage(existing).free, len(job.corpus)
    lines += [
        ["teacher vectors to compute", f"{missing:,} of {rows:,}: about {_duration(missing * seconds)}"],
        ["disk for them", f"{missing * size / 1e6:,.1f} MB in {folder} ({free / 1e9:,.1f} GB free)"],
    ]
    lengths = alignment.teacher_lengths if alignment is not None else tokens.lengths if tokens is not None else None
    return TeacherCost(lines, SampleTeacher(job, teacher, lengths), None, None, alignment)


def _missing(job: Job, teacher: Teacher) -> tuple[Path, int]:
    """Return the folder of the teacher's cache, and how many rows of the corpus it lacks. Nothing is created."""
    folder, found = folder_of_cache(job, teacher), superset_cache(job, teacher)
    if found is None and folder.exists() and (folder.is_file() or any(folder.iterdir())):
        found = open_cache(job, teacher)
    return (folder, len(teacher.corpus)) if found is None else (found.folder, count_missing(found, teacher.corpus))


def _cost_of_a_text(
    job: Job, teacher: Teacher, model: LocalTeacher | None, tokens: TokenStore | None, alignment: AlignmentStore | None
) -> tuple[float, float]:
    """Measure seconds and bytes per text over a random sample."""
    corpus, signals = teacher.corpus, teacher.manifest.signals
    size = 16.0 + sum(one.width * np.dtype(one.dtype).itemsize for one in signals.values() if not one.uneven)
    if model is None:
        return 0.0, size
    rows = np.sort(np.random.default_rng(0).choice(len(corpus), min(SAMPLE_TEXTS, len(corpus)), replace=False))
    if tokens is None:
        texts = corpus.prompted(rows)
        model.signals(texts[:32])
        began = time.perf_counter()
        model.signals(texts)
        return (time.perf_counter() - began) / len(rows), size
    source = token_source(job, teacher, model, tokens, alignment)
    began = time.perf_counter()
    found = compute_tokens(teacher.manifest, corpus, source, rows, lambda done: None)
    seconds = (time.perf_counter() - began) / len(rows)
    uneven = [values for values in found.values() if isinstance(values, Ragged)]
    return seconds, size + sum(8 + values.values.nbytes / len(rows) for values in uneven)


@dataclass(frozen=True)
class StageCost:
    """A stage's steps, texts per step, and seconds of all its steps."""

    name: str
    steps: int
    texts: int
    seconds: float


def _training_lines(stages: list[StageCost]) -> Lines:
    """Describe the training as a whole, then stage by stage."""
    lines = [f"{cost.steps:,} steps of {cost.texts} texts: about {_duration(cost.seconds)}" for cost in stages]
    if len(stages) == 1:
        return [["training", lines[0]]]
    steps, seconds = sum(cost.steps for cost in stages), sum(cost.seconds for cost in stages)
    whole = ["training", f"{steps:,} steps in {len(stages)} stages: about {_duration(seconds)}"]
    return [whole, *([f"  {cost.name}", line] for cost, line in zip(stages, lines, strict=True))]


def _measure_stage(job: Job, tokens: TokenStore, costs: list[TeacherCost], stage: Stage) -> StageCost:
    """Measure a stage's cost by a few real steps on a copy of the untrained student."""
    encoder, objective, train = (
        trainable(job, untrained_student(job)),
        make_objective(stage, job.context),
        stage.recipe.train,
    )
    required = required_outputs(objective, job.examples)
    teachers: list[BatchTeacher] = []
    for teacher, cost in zip(job.teachers, costs, strict=True):
        if cost.live is not None and cost.tokens is not None:
            teachers.append(LiveTeacher(cost.live, cost.tokens, required, teacher.head))
        else:
            teachers.append(cost.sample)
    alignment = next((cost.alignment for cost in costs if cost.alignment is not None), None)
    data = training_data(job, tokens, alignment, teachers)
    data = replace(data, holdout_rows=data.holdout_rows[:64])
    with tempfile.TemporaryDirectory() as folder, errors_named(stage):
        whole = Trainer(encoder, objective, data, train, Path(folder), "plan").total_steps
        sample = train.model_copy(update={"max_steps": SAMPLE_STEPS, "logging_steps": 1, "trackers": []})
        Trainer(encoder, objective, data, sample, Path(folder), "plan").run()
        lines = read_metrics(Path(folder) / "metrics.jsonl")
    speeds = [line["train/texts_per_second"] for line in lines if "train/texts_per_second" in line]
    texts = train.batch_size * train.gradient_accumulation_steps
    return StageCost(stage.name, whole, texts, whole * texts / float(np.mean(speeds[2:] or speeds)))


def _duration(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
