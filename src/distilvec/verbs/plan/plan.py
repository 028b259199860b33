"""Cost estimate of a recipe, measured on small samples before any work."""

from __future__ import annotations

import copy
import shutil
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sentence_transformers import SentenceTransformer

from distilvec.alignment.store import AlignmentStore
from distilvec.config.presets import find_preset
from distilvec.core.batch import TextBatch
from distilvec.core.duration import duration
from distilvec.core.info import UNLIMITED
from distilvec.core.outputs import ModelOutputs, OutputSpec
from distilvec.data.corpus import validation_line
from distilvec.data.tokens import TokenStore
from distilvec.evaluation.tasks import StoredTask
from distilvec.evaluation.text_distances import row_batches
from distilvec.models.parts import is_static, text_tokenizer
from distilvec.pipeline.caches import (
    begun_cache,
    bytes_of_a_text,
    missing_rows,
    reads_tokens,
    token_source,
)
from distilvec.pipeline.data import ReadyTeacher, training_data
from distilvec.pipeline.job import Job, Teacher
from distilvec.pipeline.judgement import draw_rows, student_embedder
from distilvec.pipeline.objectives import make_objective, required_outputs
from distilvec.pipeline.overview import PerToken, measure_rate, missing_role, rate_text, sample_rows
from distilvec.pipeline.prepare import align, prepare_teacher, tokenize, tokenize_for
from distilvec.pipeline.student import trainable, untrained_student
from distilvec.pipeline.texts import below_limits, left_out
from distilvec.pipeline.train import measure_pace, steps_in_minutes
from distilvec.report.model_card import shorter_reading
from distilvec.teachers.api_embedder import ApiEmbedder
from distilvec.teachers.cache.fill import compute_tokens, in_order
from distilvec.teachers.cache.signals import Array, Ragged, Rows
from distilvec.teachers.model_embedder import ModelEmbedder
from distilvec.teachers.table_embedder import TableEmbedder
from distilvec.train.stages import Stage
from distilvec.train.trainer import planned_steps
from distilvec.verbs.plan.api_costs import cost_lines
from distilvec.verbs.plan.evaluation import evaluation_lines, teacher_evaluation
from distilvec.verbs.plan.fleet import Fleet, fleet_lines
from distilvec.vocabulary.compare import parameter_counts

JUDGED_SAMPLE = 64  # texts that are embedded to measure the time of the judgement
Lines = list[list[str]]  # rows of a name and a value; the name of a detail begins with two spaces


@dataclass(frozen=True)
class SampleTeacher:
    """Gives outputs of the right shapes while a few steps are timed; nothing is learned from them.

    `lengths` are the teacher's tokens per row, None if no token outputs are required.
    """

    job: Job
    teacher: Teacher
    lengths: np.ndarray | None

    def signals_for(self, required: OutputSpec) -> SampleTeacher:
        """Return this teacher, for any outputs."""
        return self

    def signals(self, batch: TextBatch) -> ModelOutputs:
        """Return zero vectors; for tokens equal importance, the first pairs, and Gram matrices of orthogonal rows."""
        info = self.teacher.info
        classes = 1 if self.job.examples is None else self.job.examples.info.classes
        zeros = partial(torch.zeros, device=batch.rows.device)
        outputs = ModelOutputs(
            embedding=zeros(len(batch), info.dim),
            pre_dense=zeros(len(batch), info.pre_dense_dim) if info.pre_dense_dim else None,
            vector=zeros(len(batch), info.hidden_size or info.dim),
            logits=zeros(len(batch) // batch.texts_per_example, classes),
        )
        required = self.job.required.tokens
        if required is None or self.lengths is None:
            return outputs
        lengths = torch.from_numpy(self.lengths[batch.rows.cpu().numpy()]).to(batch.rows.device)
        mask = torch.arange(int(lengths.max()), device=lengths.device) < lengths[:, None]
        states = dict.fromkeys(required.hidden, zeros(*mask.shape, info.hidden_size or 0))
        outputs = replace(outputs, hidden_layers=states, mask=mask, importance=mask / lengths[:, None])
        if batch.alignment is None:
            return outputs
        pairs = batch.alignment.pairs
        selected = pairs[:, : max(2, pairs.shape[1] // required.divisor)]
        is_pair = (selected[..., 0] >= 0).float()
        grams = torch.diag_embed(is_pair / is_pair.sum(1, keepdim=True).clamp_min(1).sqrt())
        return replace(outputs, selected=selected, grams=dict.fromkeys(required.gram_layers, grams))


def make_plan(job: Job, fleet: Fleet | None = None) -> Lines:
    """Return rows of (name, value). The corpus is read and tokenized; teachers and student run on a sample only.

    With a `fleet` the teachers' rows include disk, time and cost with its workers, also for 100 M and 1 B such texts.
    """
    student = untrained_student(job, fitted=False)
    tokens = tokenize(job, job.corpus, student)
    teachers = [_plan_teacher(job, teacher, student, fleet, tokens) for teacher in job.teachers]
    sources_of_outputs = [teacher.source for teacher in teachers]
    alignment = next((teacher.alignment for teacher in teachers if teacher.alignment is not None), None)
    costs = [measure_stage(job, stage, student, tokens, alignment, sources_of_outputs) for stage in job.stages]
    judgement = plan_line(job, tokens, student)

    lines = _corpus_lines(job, tokens)
    for teacher in teachers:
        lines += teacher.lines
    lines += _student_lines(job, student)
    lines += _training_lines(job.stages, costs)
    if judgement is not None:
        lines.append(judgement)
    lines += evaluation_lines(job, student, teachers[0].evaluation)
    for code in _code(job):
        lines.append(["runs code", code])
    lines.append(["run folder", str(job.folder)])
    return lines


def _corpus_lines(job: Job, tokens: TokenStore) -> Lines:
    """Describe the texts: how many, those of each source, what is left out, their tokens."""
    corpus = job.corpus
    report = corpus.report
    count = f"{report['train'] + report['holdout']:,} ({report['holdout']:,} for validation)"
    lines = [["texts" if job.examples is None else "examples", count]]
    rows_of_sources = np.bincount(corpus.sources, minlength=len(corpus.source_names))
    for number, name in enumerate(corpus.source_names):
        title = name if corpus.source_names.count(name) == 1 else f"{name} (corpus.sources.{number})"
        lines.append([f"  {title}", f"{rows_of_sources[number]:,}"])
    if (missing := missing_role(job)) is not None:
        lines.append(["  roles", missing])
    section = job.recipe.corpus
    if section is not None:
        lines.append(["  validation", validation_line(report)])
        lines += [["  left out", line] for line in left_out(report)]
        lines += [["  warning", line] for line in below_limits(report, section)]
    lengths = tokens.lengths
    lines.append(["student tokens a text", f"{lengths.mean():.1f} on average, {int(lengths.max())} at most"])
    return lines


def _student_lines(job: Job, student: SentenceTransformer) -> Lines:
    """Describe the student: its size, how it reads a text, and what its design notes."""
    pooling = "mean of token vectors" if is_static(student) else str(student[1].pooling_mode)
    length = shorter_reading(job.student_length, job.teacher.info.max_length) or f"{job.student_length:,} tokens"
    lines = [["student", _size_text(job, student)]]
    lines += _reading_lines(pooling, student.prompts, length)
    if layers := _layers_text(job, student):
        lines.append(["  after the pooling", layers])
    lines += [["  note", note] for note in job.student.notes]
    return lines


def _reading_lines(pooling: str | None, prompts: Mapping[Any, str], length: str) -> Lines:
    """Describe how a model reads a text: pooling of its tokens, prompts, maximum length."""
    shown_prompts = [f"{role} {prompt!r}" for role, prompt in prompts.items() if prompt]
    lines = []
    if pooling is not None:
        lines.append(["  pooling", pooling])
    lines.append(["  prompts", ", ".join(shown_prompts) or "none"])
    lines.append(["  maximum length", length])
    return lines


def _layers_text(job: Job, student: SentenceTransformer) -> str:
    """Describe the layers of its model that a student keeps after its pooling, and their parameters; empty without."""
    if job.recipe.student.dense not in ("keep", "fold"):
        return ""
    layers = [module for module in student if type(module).__name__ in ("Dense", "LayerNorm")]
    names = []
    for layer in layers:
        if type(layer).__name__ == "LayerNorm":
            names.append("LayerNorm")
            continue
        activation = type(layer.activation_function).__name__
        names.append(f"Dense {layer.in_features} → {layer.out_features}")
        if activation != "Identity":
            names[-1] += f" with {activation}"
    owner = "the teacher's own" if job.recipe.student.model == "teacher" else "its model's own"
    parameters = sum(weight.numel() for layer in layers for weight in layer.parameters())
    return f"{', '.join(names)} ({owner}, {parameters:,} parameters)"


def _size_text(job: Job, student: SentenceTransformer) -> str:
    """Describe the student's parameters, a factorized table's rank and tokens, and the neurons of a layer."""
    section = job.recipe.student
    details = []
    if section.is_static:
        details.append(f"static, {student[0].num_embeddings:,} tokens by {student[0].embedding_dim}")
    elif section.embedding is not None:
        tokens = student[0].auto_model.get_input_embeddings().num_embeddings
        details.append(f"rank {section.embedding.rank} with {tokens:,} tokens")
    if section.intermediate_size is not None:
        details.append(f"{section.intermediate_size:,} neurons a layer")
    size = f"{parameter_counts(student)['total'] / 1e6:.1f} M parameters"
    return f"{size}: {', '.join(details)}" if details else size


def _code(job: Job) -> Iterator[str]:
    """List the code that the recipe brings into this process."""
    for method in dict.fromkeys(stage.recipe.method.name for stage in job.stages):
        if method.endswith(".py"):
            yield f"the code in {method} (method.name)"
    for teacher in job.teachers:
        if teacher.section.trust_remote_code:
            yield f"the code that comes with {teacher.section.model} ({teacher.key}.trust_remote_code)"
    student = job.recipe.student
    if student.trust_remote_code:
        yield f"the code that comes with {student.model or student.tokenizer} (student.trust_remote_code)"


@dataclass(frozen=True)
class TeacherPlan:
    """A teacher's rows, the source of its outputs in timed steps, its alignment, and what it embeds to be evaluated."""

    lines: Lines
    source: ReadyTeacher | SampleTeacher
    alignment: AlignmentStore | None
    evaluation: str | None


@dataclass(frozen=True)
class TextCost:
    """Seconds and bytes of a text on average, and the rate in words; a table of vectors or an API has no rate."""

    bytes: float
    seconds: float = 0.0
    rate: PerToken | None = None
    rate_text: str = ""


def _plan_teacher(
    job: Job, teacher: Teacher, student: SentenceTransformer, fleet: Fleet | None, student_tokens: TokenStore
) -> TeacherPlan:
    """Describe a teacher, and the rows that its cache lacks if it has one."""
    lines = _teacher_lines(job, teacher)
    if teacher.live or job.required == OutputSpec():
        reason = "the teacher runs in every step" if teacher.live else "the method requires none"
        lines.append(["teacher vectors to compute", f"none: {reason}"])
        return _plan_without_cache(job, teacher, student, lines)

    with teacher.load(job.recipe.train.device) as embedder:
        model = embedder if isinstance(embedder, ModelEmbedder) else None
        alignment = None
        tokens = None
        if model is not None and job.required.tokens and job.required.tokens.alignment is not None:
            alignment = align(job, text_tokenizer(student), model)
        if model is not None and reads_tokens(teacher):
            tokens = tokenize_for(job, teacher, model)
        cost = _cost_of_a_text(job, teacher, model, tokens, alignment)
        folder, missing = missing_rows(job, teacher)
        if missing and isinstance(embedder, TableEmbedder):
            embedder.check_texts(teacher.corpus, teacher.manifest.signals, begun_cache(job, teacher))
        evaluation = None
        if job.tasks and teacher is job.teacher and model is not None:
            evaluation = teacher_evaluation(job, model, None if reads_tokens(teacher) else cost.rate)
        service_lines: Lines = []
        made_by = teacher.section.made_by
        if isinstance(embedder, ApiEmbedder):
            service_lines = cost_lines(job, teacher, embedder, missing)
        elif isinstance(embedder, TableEmbedder) and made_by is not None:
            absent = embedder.absent(teacher.corpus)
            service_lines = [["  by the index's model", f"{absent:,} that the table lacks, by {made_by}"]]

    vectors = f"{missing:,} of {len(job.corpus):,}"
    if not service_lines:  # nothing is known about the speed of others
        vectors += f": about {duration(missing * cost.seconds)}"
    lines.append(["teacher vectors to compute", vectors])
    if cost.rate_text:
        lines.append(["  rate", cost.rate_text])
    lines += service_lines
    lines.append(["disk for them", _disk_text(teacher, folder, missing * cost.bytes)])
    if fleet is not None and cost.rate is None:
        lines.append(["  with workers", "they are for a teacher that is a model on their machines"])
    elif fleet is not None:
        lines += fleet_lines(fleet, teacher, missing, cost.seconds, cost.bytes, student_tokens)

    lengths = None
    if alignment is not None:
        lengths = alignment.teacher_lengths
    elif tokens is not None:
        lengths = tokens.lengths
    return TeacherPlan(lines, SampleTeacher(job, teacher, lengths), alignment, evaluation)


def _teacher_lines(job: Job, teacher: Teacher) -> Lines:
    info = teacher.info
    title = "teacher" if teacher is job.teacher else "further teacher"
    weight = f", weight {teacher.section.weight:g}" if len(job.teachers) > 1 else ""
    lines = [[title, f"{info.name}, {info.dim} dimensions{weight}"]]
    preset = find_preset(teacher.section.preset, teacher.section.model)
    if preset:
        lines.append(["  preset", preset])
    limit = "none known" if info.max_length >= UNLIMITED else f"{info.max_length:,} tokens"
    lines += _reading_lines(info.pooling, info.prompts, limit)
    lines += [["  note", note] for note in info.notes]
    if teacher.section.local_model is not None:
        lines.append(["  precision", teacher.section.dtype])
    return lines


def _plan_without_cache(job: Job, teacher: Teacher, student: SentenceTransformer, lines: Lines) -> TeacherPlan:
    """The plan of a teacher that runs in every step, or whose vectors the method does not read."""
    ready, alignment = prepare_teacher(job, teacher, text_tokenizer(student))
    evaluation = None
    if job.tasks and teacher is job.teacher:
        if ready.model is not None:
            evaluation = teacher_evaluation(job, ready.model, None)
        else:
            with teacher.load(job.recipe.train.device) as embedder:
                if isinstance(embedder, ModelEmbedder):
                    evaluation = teacher_evaluation(job, embedder, None)
    return TeacherPlan(lines, ready, alignment, evaluation)


def _disk_text(teacher: Teacher, folder: Path, size: float) -> str:
    existing = next(parent for parent in (folder.absolute(), *folder.absolute().parents) if parent.exists())
    free = shutil.disk_usage(existing).free
    text = f"{size / 1e6:,.1f} MB in {folder} ({free / 1e9:,.1f} GB free)"
    tokens = teacher.manifest.tokens
    if tokens is not None and tokens.hidden is not None:
        text += f", hidden states in {tokens.hidden} (cache.hidden)"
    return text


def _cost_of_a_text(
    job: Job, teacher: Teacher, model: ModelEmbedder | None, tokens: TokenStore | None, alignment: AlignmentStore | None
) -> TextCost:
    """Measure what a text costs, on long and on short ones of a random sample."""
    corpus = teacher.corpus
    pairs = None if alignment is None else np.asarray(alignment.counts, dtype=np.int64)
    size = bytes_of_a_text(teacher, None if tokens is None else np.asarray(tokens.lengths, dtype=np.int64), pairs)
    if model is None:
        return TextCost(size)

    rows = sample_rows(corpus)
    if tokens is None:
        texts = corpus.prompted(rows)
        lengths = model.lengths(texts)
        rate, _ = measure_rate(lambda chosen: model.signals([texts[row] for row in chosen]), lengths)
    else:
        source = token_source(job, teacher, model, tokens, alignment)
        lengths = np.asarray(tokens.lengths[rows], dtype=np.int64)

        def compute(chosen: Rows) -> dict[str, Array | Ragged]:
            return in_order(list(compute_tokens(teacher.manifest, corpus, source, rows[chosen])))

        rate, _ = measure_rate(compute, lengths)
    return TextCost(size, rate.mean(lengths), rate, rate_text(rate, lengths))


@dataclass(frozen=True)
class StageCost:
    """A stage of the training, and the seconds of all its steps."""

    steps: int
    texts_a_step: int
    seconds: float

    @property
    def line(self) -> str:
        """The steps and their time in words."""
        return f"{self.steps:,} steps of {self.texts_a_step} texts: about {duration(self.seconds)}"


def measure_stage(
    job: Job,
    stage: Stage,
    student: SentenceTransformer,
    tokens: TokenStore,
    alignment: AlignmentStore | None,
    teachers: Sequence[ReadyTeacher | SampleTeacher],
) -> StageCost:
    """Measure a stage by a few real steps on a copy of the untrained student.

    `alignment`: the teacher's tokens beside the student's, None for a method that reads none. `teachers` give the
    outputs in these steps.
    """
    train = stage.recipe.train
    encoder = trainable(job, copy.deepcopy(student))
    objective = make_objective(stage, job.context)
    required = required_outputs(objective, job.examples)
    data = training_data(job, tokens, alignment, [teacher.signals_for(required) for teacher in teachers], required)
    pace = measure_pace(encoder, objective, data, train)
    if train.minutes is None:
        steps = planned_steps(train, pace.steps_an_epoch)
    else:
        steps = steps_in_minutes(train, pace, data)
    return StageCost(steps, pace.texts_a_step, steps * pace.step_seconds)


def _training_lines(stages: Sequence[Stage], costs: Sequence[StageCost]) -> Lines:
    """Describe the training as a whole, then stage by stage."""
    stage_lines = []
    for stage, cost in zip(stages, costs, strict=True):
        stage_lines.append([f"  {stage.name}", cost.line])
    if len(stages) == 1:
        return [["training", stage_lines[0][1]]]
    steps = sum(cost.steps for cost in costs)
    seconds = sum(cost.seconds for cost in costs)
    whole = f"{steps:,} steps in {len(stages)} stages: about {duration(seconds)}"
    return [["training", whole], *stage_lines]


def plan_line(job: Job, tokens: TokenStore, model: SentenceTransformer) -> list[str] | None:
    """Return the plan's row: texts, tokens and time of the judgement, the last measured on a few texts; None without
    one.
    """
    if job.required == OutputSpec() or job.corpus.paired:
        return None
    if job.recipe.evaluation.stored is not None:
        count = next(len(task.queries) for task in job.tasks if isinstance(task, StoredTask))
        return ["judgement", f"{count:,} stored texts, searched for among the others"]
    rows = draw_rows(job, tokens)
    if rows is None:
        return None
    embedder = student_embedder(job, model, "student")
    sample = rows.every[:JUDGED_SAMPLE]
    list(row_batches(job.corpus, sample[:8], embedder))  # warm-up
    began = time.perf_counter()
    list(row_batches(job.corpus, sample, embedder))
    a_token = (time.perf_counter() - began) / int(tokens.lengths[sample].sum())
    read = int(tokens.lengths[rows.every].sum())
    return [
        "judgement",
        f"{len(rows.queries):,} validation texts, searched for among {len(rows.candidates):,} others: {read:,} tokens, "
        f"by the student before and after training: about {duration(2 * read * a_token)}",
    ]
