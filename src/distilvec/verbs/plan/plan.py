"""Cost estimate of a recipe, measured on small samples before any work."""

from __future__ import annotations

import shutil
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
from distilvec.data.tokens import TokenStore
from distilvec.models.static import is_static, text_tokenizer
from distilvec.pipeline.caches import folder_of_cache, open_cache, reads_tokens, superset_cache, token_source
from distilvec.pipeline.data import ReadyTeacher, training_data
from distilvec.pipeline.job import Job, Teacher
from distilvec.pipeline.judgement import plan_line
from distilvec.pipeline.pace import measure_pace, steps_in_minutes
from distilvec.pipeline.prepare import (
    align,
    prepare_teacher,
    tokenize,
    tokenize_for,
)
from distilvec.pipeline.resolve import make_objective, required_outputs
from distilvec.pipeline.student import trainable, untrained_student
from distilvec.pipeline.texts import below_limits, left_out
from distilvec.report.model_card import shorter_reading
from distilvec.teachers.api_embedder import ApiEmbedder
from distilvec.teachers.cache.fill import compute_tokens, count_missing, in_order
from distilvec.teachers.cache.signals import Ragged
from distilvec.teachers.model_embedder import ModelEmbedder
from distilvec.train.stages import Stage, errors_named
from distilvec.train.trainer import planned_steps
from distilvec.verbs.plan.api_costs import cost_lines
from distilvec.verbs.plan.fleet import Fleet, fleet_lines
from distilvec.verbs.plan.rates import (
    SAMPLE_TEXTS,
    PerToken,
    evaluation_lines,
    mean_lengths,
    measure_rate,
    measured_rows,
    rate_text,
    teacher_evaluation,
)
from distilvec.vocabulary.compare import parameter_counts

Lines = list[list[str]]
Cost = tuple[int, int, float]  # steps, texts per step, seconds of all steps


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
        info, classes = self.teacher.info, 1 if self.job.examples is None else self.job.examples.info.classes
        zeros, required = partial(torch.zeros, device=batch.rows.device), self.job.required.tokens
        found = ModelOutputs(
            embedding=zeros(len(batch), info.dim),
            pre_dense=zeros(len(batch), info.pre_dense_dim) if info.pre_dense_dim else None,
            vector=zeros(len(batch), info.hidden_size or info.dim),
            logits=zeros(len(batch) // batch.texts_per_example, classes),
        )
        if required is None or self.lengths is None:
            return found
        lengths = torch.from_numpy(self.lengths[batch.rows.cpu().numpy()]).to(batch.rows.device)
        mask = torch.arange(int(lengths.max()), device=lengths.device) < lengths[:, None]
        states = dict.fromkeys(required.hidden, zeros(*mask.shape, info.hidden_size or 0))
        found = replace(found, hidden_layers=states, mask=mask, importance=mask / lengths[:, None])
        if batch.alignment is None:
            return found
        pairs = batch.alignment.pairs
        selected = pairs[:, : max(2, pairs.shape[1] // required.divisor)]
        present = (selected[..., 0] >= 0).float()
        grams = torch.diag_embed(present / present.sum(1, keepdim=True).clamp_min(1).sqrt())
        return replace(found, selected=selected, grams=dict.fromkeys(required.gram_layers, grams))


def make_plan(job: Job, fleet: Fleet | None = None) -> Lines:
    """Return rows of (name, value). The corpus is read and tokenized; teachers and student run on a sample only.

    With a `fleet` the teachers' rows include disk, time and cost with its workers, also for 100 M and 1 B such texts.
    """
    corpus, model = job.corpus, untrained_student(job)
    tokens = tokenize(job, corpus, model)
    described = [_describe(job, teacher, model, fleet, tokens) for teacher in job.teachers]
    teachers = [one.ready for one in described]
    alignment = next((one.alignment for one in described if one.alignment is not None), None)
    costs = [_measure_stage(job, stage, tokens, alignment, teachers) for stage in job.stages]
    judgement = plan_line(job, tokens, model)
    report, names, kept = corpus.report, corpus.source_names, np.bincount(corpus.sources)
    sources = [n if names.count(n) == 1 else f"{n} (corpus.sources.{number})" for number, n in enumerate(names)]
    count = f"{report['train'] + report['holdout']:,} ({report['holdout']:,} for validation)"
    section = job.recipe.corpus
    length = shorter_reading(job.student_length, job.teacher.info.max_length) or f"{job.student_length:,} tokens"
    pooling = "mean of token vectors" if is_static(model) else str(model[1].pooling_mode)
    dropped, below = ([], []) if section is None else (left_out(report), below_limits(report, section))
    return [
        ["texts" if job.examples is None else "examples", count],
        *[[f"  {name}", f"{kept[number] if number < len(kept) else 0:,}"] for number, name in enumerate(sources)],
        *[["  left out", line] for line in dropped],
        *[["  warning", line] for line in below],
        ["student tokens a text", f"{tokens.lengths.mean():.1f} on average, {int(tokens.lengths.max())} at most"],
        *[line for one in described for line in one.lines],
        ["student", _student_line(job, model)],
        *_reading(pooling, model.prompts, length),
        *[["  note", note] for note in job.student.notes],
        *_training_lines(job.stages, costs),
        *([] if judgement is None else [judgement]),
        *evaluation_lines(job, model, described[0].evaluation),
        *[["runs code", line] for line in _code(job)],
        ["run folder", str(job.folder)],
    ]


def _reading(pooling: str | None, prompts: Mapping[Any, str], length: str) -> Lines:
    """Describe how a model reads a text: pooling of its tokens, prompts, maximum length."""
    listed = ", ".join(f"{role} {prompt!r}" for role, prompt in prompts.items() if prompt)
    lines = [["  prompts", listed or "none"], ["  maximum length", length]]
    return lines if pooling is None else [["  pooling", pooling], *lines]


def _student_line(job: Job, model: SentenceTransformer) -> str:
    """Describe the student's parameters, a factorized table's rank and tokens, and the neurons that are kept."""
    student, details = job.recipe.student, list[str]()
    if student.is_static:
        details.append(f"static, {model[0].num_embeddings:,} tokens by {model[0].embedding_dim}")
    elif student.embedding is not None:
        tokens = model[0].auto_model.get_input_embeddings().num_embeddings
        details.append(f"rank {student.embedding.rank} with {tokens:,} tokens")
    if student.intermediate_size is not None:
        details.append(f"{student.intermediate_size:,} neurons a layer")
    return ": ".join(
        [f"{parameter_counts(model)['total'] / 1e6:.1f} M parameters", *filter(None, [", ".join(details)])]
    )


def _code(job: Job) -> Iterator[str]:
    """List the code that the recipe brings into this process."""
    methods = dict.fromkeys(stage.recipe.method.name for stage in job.stages)
    yield from (f"the code in {name} (method.name)" for name in methods if name.endswith(".py"))
    student = job.recipe.student
    sections = [(teacher.key, teacher.section.model, teacher.section.trust_remote_code) for teacher in job.teachers]
    for key, model, trusted in [*sections, ("student", student.model or student.tokenizer, student.trust_remote_code)]:
        if trusted:
            yield f"the code that comes with {model} ({key}.trust_remote_code)"


# -- teachers ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Described:
    """A teacher's rows, the teacher for the timed steps, its alignment, and what it embeds for the evaluation."""

    lines: Lines
    ready: ReadyTeacher | SampleTeacher
    alignment: AlignmentStore | None
    evaluation: str | None = None


def _describe(
    job: Job, teacher: Teacher, student: SentenceTransformer, fleet: Fleet | None, stored: TokenStore
) -> Described:
    """Describe a teacher and the rows its cache lacks."""
    weight = f", weight {teacher.section.weight:g}" if len(job.teachers) > 1 else ""
    title = "teacher" if teacher is job.teacher else "further teacher"
    lines = [[title, f"{teacher.info.name}, {teacher.info.dim} dimensions{weight}"]]
    if preset := find_preset(teacher.section.preset, teacher.section.model):
        lines.append(["  preset", preset])
    limit = "none known" if teacher.info.max_length >= UNLIMITED else f"{teacher.info.max_length:,} tokens"
    lines += _reading(teacher.info.pooling, teacher.info.prompts, limit)
    if teacher.section.local_model is not None:
        lines.append(["  precision", teacher.section.dtype])
    if teacher.live or job.required == OutputSpec():
        reason = "the teacher runs in every step" if teacher.live else "the method requires none"
        lines.append(["teacher vectors to compute", f"none: {reason}"])
        ready, alignment = prepare_teacher(job, teacher, text_tokenizer(student))
        evaluation = None
        if job.tasks and teacher is job.teacher and ready.model is not None:
            evaluation = teacher_evaluation(job, ready.model, None)
        elif job.tasks and teacher is job.teacher:
            with teacher.load(job.recipe.train.device) as loaded:
                evaluation = teacher_evaluation(job, loaded, None) if isinstance(loaded, ModelEmbedder) else None
        return Described(lines, ready, alignment, evaluation)
    kind = job.required.tokens.alignment if job.required.tokens else None
    with teacher.load(job.recipe.train.device) as loaded:
        model = loaded if isinstance(loaded, ModelEmbedder) else None
        alignment = align(job, text_tokenizer(student), model) if model is not None and kind is not None else None
        tokens = tokenize_for(job, teacher, model) if model is not None and reads_tokens(teacher) else None
        cost = _cost_of_a_text(job, teacher, model, tokens, alignment)
        folder, missing = _missing(job, teacher)
        evaluation = None
        if job.tasks and teacher is job.teacher and model is not None:
            evaluation = teacher_evaluation(job, model, None if reads_tokens(teacher) else cost.rate)
        costs = cost_lines(job, teacher, loaded, missing) if isinstance(loaded, ApiEmbedder) else []
    existing = next(parent for parent in (folder.absolute(), *folder.absolute().parents) if parent.exists())
    room = f"{missing * cost.bytes / 1e6:,.1f} MB in {folder} ({shutil.disk_usage(existing).free / 1e9:,.1f} GB free)"
    if teacher.manifest.tokens is not None and teacher.manifest.tokens.hidden is not None:
        room += f", hidden states in {teacher.manifest.tokens.hidden} (cache.hidden)"
    time_left = "" if costs else f": about {duration(missing * cost.seconds)}"
    lines += [
        ["teacher vectors to compute", f"{missing:,} of {len(job.corpus):,}{time_left}"],
        *([["  rate", cost.rate_text]] if cost.rate_text else []),
        *costs,
        ["disk for them", room],
        *(fleet_lines(fleet, teacher, missing, (cost.seconds, cost.bytes), stored) if fleet is not None else ()),
    ]
    lengths = alignment.teacher_lengths if alignment is not None else tokens.lengths if tokens is not None else None
    return Described(lines, SampleTeacher(job, teacher, lengths), alignment, evaluation)


def _missing(job: Job, teacher: Teacher) -> tuple[Path, int]:
    """Return the folder of the teacher's cache, or of a superset, and the number of rows that it lacks."""
    folder, cache = folder_of_cache(job, teacher), superset_cache(job, teacher)
    if cache is None and folder.exists() and (folder.is_file() or any(folder.iterdir())):
        cache = open_cache(job, teacher)
    return (folder, len(teacher.corpus)) if cache is None else (cache.folder, count_missing(cache, teacher.corpus))


@dataclass(frozen=True)
class TextCost:
    """Seconds and bytes of a text on average, and the rate in words; a table of vectors or an API has no rate."""

    bytes: float
    seconds: float = 0.0
    rate: PerToken | None = None
    rate_text: str = ""


def _cost_of_a_text(
    job: Job, teacher: Teacher, model: ModelEmbedder | None, tokens: TokenStore | None, alignment: AlignmentStore | None
) -> TextCost:
    """Measure what a text costs, on long and on short ones of a random sample."""
    corpus, signals = teacher.corpus, teacher.manifest.signals
    size = 16.0 + sum(one.width * np.dtype(one.dtype).itemsize for one in signals.values() if not one.uneven)
    if model is None:
        return TextCost(size)
    rows = np.sort(np.random.default_rng(0).choice(len(corpus), min(SAMPLE_TEXTS, len(corpus)), replace=False))
    if tokens is None:
        texts = corpus.prompted(rows)
        lengths = model.lengths(texts)
        rate, _ = measure_rate(lambda chosen: model.signals([texts[row] for row in chosen]), lengths)
    else:
        source = token_source(job, teacher, model, tokens, alignment)
        lengths = np.asarray(tokens.lengths[rows], dtype=np.int64)
        rate, results = measure_rate(
            lambda chosen: in_order(list(compute_tokens(teacher.manifest, corpus, source, rows[chosen]))), lengths
        )
        groups = measured_rows(lengths)
        stored_bytes = [sum(v.values.nbytes for v in found.values() if isinstance(v, Ragged)) for found in results]
        short, long = (n / int(lengths[chosen].sum()) for n, chosen in zip(stored_bytes, groups, strict=True))
        offsets = 8 * sum(one.uneven for one in signals.values())
        size += offsets + PerToken(mean_lengths(lengths, groups), (short, long)).mean(lengths)
    return TextCost(size, rate.mean(lengths), rate, rate_text(rate, lengths))


# -- training ----------------------------------------------------------------------------------------------------------


def _measure_stage(
    job: Job,
    stage: Stage,
    tokens: TokenStore,
    alignment: AlignmentStore | None,
    teachers: Sequence[ReadyTeacher | SampleTeacher],
) -> Cost:
    """Measure a stage by a few real steps on a copy of the untrained student."""
    encoder, objective, train = (
        trainable(job, untrained_student(job)),
        make_objective(stage, job.context),
        stage.recipe.train,
    )
    required = required_outputs(objective, job.examples)
    data = training_data(job, tokens, alignment, [teacher.signals_for(required) for teacher in teachers], required)
    with errors_named(stage):
        pace = measure_pace(encoder, objective, data, train)
    if train.minutes is None:
        steps = planned_steps(train, pace.steps_an_epoch)
    else:
        steps = steps_in_minutes(train, pace, data)
    return steps, pace.texts_a_step, steps * pace.step_seconds


def _training_lines(stages: Sequence[Stage], costs: Sequence[Cost]) -> Lines:
    """Describe the training as a whole, then stage by stage."""
    lines = [f"{steps:,} steps of {texts} texts: about {duration(seconds)}" for steps, texts, seconds in costs]
    if len(stages) == 1:
        return [["training", lines[0]]]
    steps, _, seconds = (sum(values) for values in zip(*costs, strict=True))
    whole = f"{steps:,} steps in {len(stages)} stages: about {duration(seconds)}"
    return [["training", whole], *([f"  {stage.name}", line] for stage, line in zip(stages, lines, strict=True))]
