"""Cost estimate of a recipe, measured on small samples before any work."""

from __future__ import annotations

import math
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from sentence_transformers import SentenceTransformer

from distilvec.alignment.store import AlignmentStore
from distilvec.config.presets import find_preset
from distilvec.config.schema import Role
from distilvec.config.score_columns import SCORE_COLUMNS, ScoreColumn, columns_with
from distilvec.core.errors import about
from distilvec.core.files import folder_bytes
from distilvec.core.info import UNLIMITED
from distilvec.core.log import duration
from distilvec.core.outputs import OutputSpec
from distilvec.core.vectors import spread_items
from distilvec.data.origins import validation_line
from distilvec.data.tokens import TokenStore
from distilvec.evaluation.tasks import RetrievalTask, StoredTask, Task, embedded_texts
from distilvec.models.parts import is_static, text_tokenizer
from distilvec.pipeline.caches import (
    begun_cache,
    missing_rows,
    reads_tokens,
)
from distilvec.pipeline.data import ReadyTeacher
from distilvec.pipeline.decide import built_in_line
from distilvec.pipeline.job import Job, Teacher
from distilvec.pipeline.judgement import draw_rows, student_embedder
from distilvec.pipeline.objectives import trains_projection
from distilvec.pipeline.overview import (
    SAMPLE_TEXTS,
    UNLESS,
    PerToken,
    SampleTeacher,
    StageCost,
    TextCost,
    cost_of_a_text,
    embedding_rate,
    may_know_its_texts,
    measure_stage,
    missing_role,
    sample_rows,
    without_labels,
)
from distilvec.pipeline.prepare import align_tokens, prepare_teacher, tokenize_corpus, tokenize_for
from distilvec.pipeline.start import RIDGE_TEXTS, fitted_parts
from distilvec.pipeline.student import untrained_student
from distilvec.pipeline.texts import below_limits, left_out
from distilvec.report.model_card import shorter_reading
from distilvec.report.tables import Table, to_html, to_text, words
from distilvec.teachers.api_embedder import ApiEmbedder
from distilvec.teachers.cache.evaluation_vectors import PromptedTexts, evaluation_folder
from distilvec.teachers.cache.store import MANIFEST, TeacherCache
from distilvec.teachers.encode import BATCH_TOKENS
from distilvec.teachers.model_embedder import ModelEmbedder
from distilvec.teachers.table_embedder import TableEmbedder
from distilvec.train.stages import Stage
from distilvec.verbs.opened_run import Run
from distilvec.vocabulary.compare import parameter_counts

SIZES = {"100 M": 10**8, "1 B": 10**9}  # texts like those of the corpus
KEY_BYTES = 20  # of memory a text, in the process that fills or reads a cache
LONGER = 1.5  # a rate holds for texts up to so many times as long
Side = Literal["queries", "documents"]
SIDES: tuple[Side, Side] = ("queries", "documents")  # of a search
Lines = list[list[str]]  # rows of a name and a value; the name of a detail begins with two spaces
# What a minute brings to a student that is fitted alone (experiments/fitted.py: 4,000 short texts, one thread)
MEASURED_MINUTE = "overlap@10 0.38 to 0.56 for all-MiniLM-L6-v2 at 5M, 0.33 to 0.40 for all-mpnet-base-v2 at 5M"
NO_TRAINING: Lines = [["training", "none (train.epochs=0)"], ["  60 seconds of it brought", MEASURED_MINUTE]]


@dataclass(frozen=True)
class Estimate:
    """A part of the work in words, with the seconds that it takes."""

    text: str
    seconds: float


@dataclass(frozen=True)
class Fleet:
    """`workers` machines or GPUs like the one that the sample runs on, and the price of one for an hour, if any."""

    workers: int
    hourly_price: float | None = None


@dataclass(frozen=True, repr=False)
class Plan:
    """What a run would do, measured on a few texts.

    lines: rows of a name and a value, as `--dry-run` shows them
    texts: of the corpus, validation texts included
    tokens: a text's on average, as the student reads it
    parameters, layers: the student's
    minutes: of the whole run on this machine, without waiting for an API
    bytes: that the teachers' vectors will take on the disk
    cost: of an API's tokens, in the currency of its price; None without a price
    """

    lines: Lines
    texts: int
    tokens: float
    parameters: int
    layers: int
    minutes: float
    bytes: float
    cost: float | None
    start: Callable[[], Run] | None = None

    def run(self) -> Run:
        """Do what is planned."""
        assert self.start is not None
        return self.start()

    def __repr__(self) -> str:
        return to_text(self._table)

    def _repr_html_(self) -> str:
        return to_html(self._table)

    @property
    def _table(self) -> Table:
        return Table("plan", "", ["Plan", ""], [words(*line) for line in self.lines], words=2)


def make_plan(job: Job, fleet: Fleet | None = None, run: Callable[[], Run] | None = None) -> Plan:
    """Return the plan of a job. The corpus is read and tokenized; teachers and student run on a sample only.

    With a `fleet` the teachers' rows include disk, time and cost with its workers, also for 100 M and 1 B such texts.
    """
    student = untrained_student(job, fitted=False)
    tokens = tokenize_corpus(job, job.corpus, student)
    teachers = [_plan_teacher(job, teacher, student, fleet, tokens) for teacher in job.teachers]
    sources_of_outputs = [teacher.source for teacher in teachers]
    alignment = next((teacher.alignment for teacher in teachers if teacher.alignment is not None), None)
    costs = []
    for stage in job.stages if job.trains else ():
        costs.append(measure_stage(job, stage, student, tokens, alignment, sources_of_outputs))
    start = _start_estimate(job, tokens, student)
    judgement = _judgement_estimate(job, tokens, student)
    evaluation = _evaluation_estimates(job, student, teachers[0].evaluation)

    lines = _corpus_lines(job, tokens)
    for teacher in teachers:
        lines += teacher.lines
    lines += _student_lines(job, student)
    if start is not None:
        lines.append(["start", start.text])
    if costs:
        training = _training_lines(job.stages, costs)
        if may_know_its_texts(job):
            training[0][1] += UNLESS
        lines += training
    else:
        lines += NO_TRAINING
    if judgement is not None:
        lines.append(["judgement", judgement.text])
    lines += evaluation_lines(job, evaluation)
    seconds = sum(teacher.seconds for teacher in teachers) + sum(cost.seconds for cost in costs)
    seconds += sum(part.seconds for part in (start, judgement, *evaluation.values()) if part is not None)
    with_api = ", and the time of the API" if any(teacher.section.api is not None for teacher in job.teachers) else ""
    lines.append(["in all", f"about {duration(seconds)}{with_api}"])
    for code in _code(job):
        lines.append(["runs code", code])
    lines.append(["run folder", str(job.folder)])
    prices = [teacher.cost for teacher in teachers if teacher.cost is not None]
    return Plan(
        lines=lines,
        texts=len(job.corpus),
        tokens=float(tokens.lengths.mean()),
        parameters=parameter_counts(student)["total"],
        layers=job.student.layers,
        minutes=seconds / 60,
        bytes=sum(teacher.bytes for teacher in teachers),
        cost=sum(prices) if prices else None,
        start=run,
    )


def _start_estimate(job: Job, tokens: TokenStore, student: SentenceTransformer) -> Estimate | None:
    """Describe the fit of the student's new layer, and the validation of the start; None where no layer is fitted."""
    if "student" not in fitted_parts(job):
        return None
    corpus = job.corpus
    fitted = min(RIDGE_TEXTS[0], len(corpus.train_rows))
    lengths = np.asarray(tokens.lengths[sample_rows(corpus)], dtype=np.int64)
    rate, _ = embedding_rate(student_embedder(job, student, "student"), corpus.prompted(sample_rows(corpus)))
    seconds = rate.mean(lengths) * (fitted + len(corpus.holdout_rows))
    text = f"a linear layer, fitted to {fitted:,} texts"
    return Estimate(f"{text}: about {duration(seconds)}", seconds)


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
    if (built_in := built_in_line(job.recipe, job.stated_recipe.teacher)) is not None:
        lines.append(["  prompt", built_in])
    lines += [["  method", line] for line in without_labels(job)]
    section = job.recipe.corpus
    if section is not None:
        lines.append(["  validation", validation_line(report)])
        lines += [["  left out", line] for line in left_out(report)]
        lines += [["  warning", line] for line in below_limits(report, section)]
    if job.pairs is not None:
        lines.append(["pairs", job.pairs.counts.line])
    lengths = tokens.lengths
    lines.append(["student tokens a text", f"{lengths.mean():.1f} on average, {int(lengths.max())} at most"])
    return lines


def _student_lines(job: Job, student: SentenceTransformer) -> Lines:
    """Describe the student: its size, how it reads a text, and what its design notes."""
    pooling = "mean of token vectors" if is_static(student) else str(student[1].pooling_mode)
    length = shorter_reading(job.student_length, job.teacher.info.max_length) or f"{job.student_length:,} tokens"
    lines = [["student", _student_size(job, student)]]
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


def _student_size(job: Job, student: SentenceTransformer) -> str:
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


# -- teachers ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class TeacherPlan:
    """A teacher's rows, the source of its outputs in timed steps, its alignment, and what it embeds to be evaluated;
    seconds, bytes and cost of its vectors.
    """

    lines: Lines
    source: ReadyTeacher | SampleTeacher
    alignment: AlignmentStore | None
    evaluation: Estimate | None
    seconds: float = 0.0
    bytes: float = 0.0
    cost: float | None = None


def _plan_teacher(
    job: Job, teacher: Teacher, student: SentenceTransformer, fleet: Fleet | None, student_tokens: TokenStore
) -> TeacherPlan:
    """Describe a teacher, and the rows that its cache lacks if it has one."""
    lines = _teacher_lines(job, teacher)
    if teacher.live or job.required == OutputSpec():
        reason = "the teacher runs in every step" if teacher.live else "the method requires none"
        lines.append(["teacher vectors to compute", f"none: {reason}"])
        return _plan_without_cache(job, teacher, student, lines)

    with teacher.load(job.recipe.train.device) as embedder, about(teacher.key):
        model = embedder if isinstance(embedder, ModelEmbedder) else None
        alignment = None
        tokens = None
        if model is not None and job.required.tokens and job.required.tokens.alignment is not None:
            alignment = align_tokens(job, text_tokenizer(student), model)
        if model is not None and reads_tokens(teacher):
            tokens = tokenize_for(job, teacher, model)
        cost = cost_of_a_text(job, teacher, model, tokens, alignment)
        folder, missing = missing_rows(job, teacher)
        if missing and isinstance(embedder, TableEmbedder):
            embedder.check_texts(teacher.corpus, teacher.manifest.signals, begun_cache(job, teacher))
        evaluation = None
        if job.tasks and teacher is job.teacher and model is not None:
            evaluation = teacher_evaluation(job, model, None if reads_tokens(teacher) else cost.rate)
        service_lines: Lines = []
        price = None
        made_by = teacher.section.made_by
        if isinstance(embedder, ApiEmbedder):
            amounts = _texts_to_pay_for(job, teacher, embedder, missing)
            service_lines = cost_lines(embedder, amounts)
            price = embedder.api.cost(sum(amount.tokens for amount in amounts))
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
        lines += fleet_lines(fleet, teacher, missing, cost, student_tokens)

    lengths = None
    if alignment is not None:
        lengths = alignment.teacher_lengths
    elif tokens is not None:
        lengths = tokens.lengths
    return TeacherPlan(
        lines,
        SampleTeacher(job, teacher, lengths),
        alignment,
        evaluation,
        seconds=missing * cost.seconds,
        bytes=missing * cost.bytes,
        cost=price,
    )


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


# -- training ----------------------------------------------------------------------------------------------------------


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


# -- judgement and evaluation ------------------------------------------------------------------------------------------


def _judgement_estimate(job: Job, tokens: TokenStore, model: SentenceTransformer) -> Estimate | None:
    """Return texts, tokens and time of the judgement, measured on a few texts; None without one."""
    if job.required == OutputSpec() or job.corpus.paired:
        return None
    if job.recipe.evaluation.stored is not None:
        count = next(len(task.queries) for task in job.tasks if isinstance(task, StoredTask))
        return Estimate(f"{count:,} stored texts, searched for among the others", 0.0)
    rows = draw_rows(job, tokens)
    if rows is None:
        return None
    embedder = student_embedder(job, model, "student")
    rate, _ = embedding_rate(embedder, job.corpus.prompted(sample_rows(job.corpus)))
    lengths = np.asarray(tokens.lengths[rows.every], dtype=np.int64)
    students = "the student before and after training" if job.trains else "the student"
    seconds = (2 if job.trains else 1) * rate.total(lengths)
    text = (
        f"{len(rows.queries):,} validation texts, searched for among {len(rows.candidates):,} others: "
        f"{lengths.sum():,} tokens, by {students}: about {duration(seconds)}"
    )
    return Estimate(text, seconds)


def evaluation_texts(tasks: Sequence[Task], sides: Sequence[Side] = SIDES) -> dict[Role, list[str]]:
    """Distinct texts that a model embeds for all tasks, by role.

    `sides`: the sides of a search on which the model stands. Other tasks are its own where it has the queries.
    """
    by_role: dict[Role, dict[str, None]] = {}
    for task in tasks:
        is_search = isinstance(task, RetrievalTask)
        for side, (role, texts) in zip(SIDES, embedded_texts(task), strict=True):
            if (side if is_search else "queries") in sides:
                by_role.setdefault(role, {}).update(dict.fromkeys(texts))
    return {role: list(texts) for role, texts in by_role.items()}


def teacher_evaluation(job: Job, model: ModelEmbedder, rate: PerToken | None) -> Estimate:
    """What the teacher has to embed for the evaluation, and how long that takes.

    `rate` is that of the training texts; it is measured again if there is none, or if these texts are longer.
    """
    folder = evaluation_folder(job.store.root, job.teacher.embeddings)
    cache = TeacherCache.open(folder) if (folder / MANIFEST).exists() else None
    count = 0
    missing: list[str] = []
    for role, texts in evaluation_texts(job.tasks).items():
        count += len(texts)
        prompted = PromptedTexts(texts, job.teacher.info.prompts.get(role, ""))
        rows = np.arange(len(texts))
        if cache is not None:
            rows = np.flatnonzero(cache.positions(prompted.keys) < 0)
        missing += prompted.prompted(rows)
    if not missing:
        return Estimate(f"the vectors of all {count:,} texts are stored: {folder}", 0.0)
    lengths = model.lengths(spread_items(missing, SAMPLE_TEXTS))
    if rate is None or lengths.max() > LONGER * rate.lengths[1]:
        rate, _ = embedding_rate(model, missing)
    seconds = len(missing) * rate.mean(lengths)
    return Estimate(f"{len(missing):,} of {count:,} texts: about {duration(seconds)}; then stored", seconds)


def student_evaluation(job: Job, student: SentenceTransformer) -> Estimate | None:
    """What models of the student's size embed for the evaluation, and how long that takes; None for nothing."""
    section = job.recipe.evaluation
    checkpoints = job.recipe.train.keep_students
    models = [column.name for column in _scored_columns(job) if len(column.models) == 1 and column.queries != "teacher"]
    times = len(models)
    if checkpoints and "margin" in section.parts:
        models.append(f"{checkpoints} saved checkpoints")
        times += checkpoints
    groups: list[tuple[list[str], int, Sequence[Side]]] = [(models, times, SIDES)]
    for side in SIDES:
        columns = _columns_of_one_side(job, side)
        groups.append((columns, len(columns), [side]))

    parts = []
    seconds = 0.0
    model = ModelEmbedder(student, "student", section.batch_tokens, job.student_prompts)
    for names, repeats, sides in groups:
        if not names:
            continue
        texts = []
        for role, role_texts in evaluation_texts(job.tasks, sides).items():
            prompt = model.prompts.get(role, "")
            texts += [prompt + text for text in role_texts]
        rate, lengths = embedding_rate(model, texts)
        seconds += repeats * len(texts) * rate.mean(lengths)
        parts.append(f"{len(texts):,} texts, {repeats} times ({', '.join(names)})")
    return Estimate(f"{'; '.join(parts)}: about {duration(seconds)}", seconds) if parts else None


def _scored_columns(job: Job) -> list[ScoreColumn]:
    """Return the columns that the recipe names and that there will be models for."""
    columns = [SCORE_COLUMNS[name] for name in SCORE_COLUMNS if name in job.recipe.evaluation.columns]
    if trains_projection(job):
        return columns
    return [column for column in columns if "projected" not in column.models]


def _columns_of_one_side(job: Job, side: Side) -> list[str]:
    """Return the columns of two models in which one of the student's size embeds this side of a search alone.

    Without those of a model that has a column of its own, for which it embeds the same texts.
    """
    if not job.in_teacher_space or job.context.student_dim != job.teacher.info.dim:
        return []
    columns = _scored_columns(job)
    alone = {column.queries for column in columns if len(column.models) == 1}
    names = []
    for column in columns:
        model = column.queries if side == "queries" else column.documents
        if len(column.models) > 1 and model != "teacher" and model not in alone:
            names.append(column.name)
    return names


def _evaluation_estimates(job: Job, student: SentenceTransformer, teacher: Estimate | None) -> dict[str, Estimate]:
    """Return the parts of the evaluation by name; `teacher` is the teacher's, None if it embeds nothing."""
    if not job.tasks:
        return {}
    section = job.recipe.evaluation
    estimates = {}
    if teacher is not None and columns_with("teacher") & {*section.columns}:
        estimates["with the teacher"] = teacher
    of_student = student_evaluation(job, student)
    if of_student is not None:
        estimates["with the student"] = of_student
    if "speed" in section.parts:
        text = f"at most {duration(section.speed_seconds)} (evaluation.speed_seconds)"
        estimates["table of speed"] = Estimate(text, section.speed_seconds)
    return estimates


def evaluation_lines(job: Job, estimates: Mapping[str, Estimate]) -> Lines:
    """Rows of the plan about the evaluation."""
    if not job.tasks:
        return []
    names = ", ".join(task.name for task in job.tasks)
    count = "1 task" if len(job.tasks) == 1 else f"{len(job.tasks)} tasks"
    lines = [["evaluation", f"{count}: {names}"]]
    for name, estimate in estimates.items():
        lines.append([f"  {name}", estimate.text])
    return lines


# -- an API ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _TextsToSend:
    """Texts to send, and about how many tokens they have."""

    title: str
    texts: int
    tokens: int


def _texts_to_pay_for(job: Job, teacher: Teacher, model: ApiEmbedder, missing: int) -> list[_TextsToSend]:
    """Return the `missing` texts of the corpus, and those of the evaluation if there are any."""
    amounts = [_TextsToSend("tokens to pay for", missing, model.estimate(teacher.corpus, missing))]
    evaluation_texts = _texts_to_send(job, teacher)
    if evaluation_texts:
        tokens = int(sum(model.count(evaluation_texts)))
        amounts.append(_TextsToSend("  for evaluation", len(evaluation_texts), tokens))
    return amounts


def cost_lines(model: ApiEmbedder, amounts: Sequence[_TextsToSend]) -> Lines:
    """Describe tokens, cost, time and cap."""
    api = model.api
    rule = "4 bytes a token" if api.tokenizer is None else f"tokenizer {api.tokenizer}"
    lines = []
    requests = 0
    total = 0
    for amount in amounts:
        cost = api.cost_note(amount.tokens)
        lines.append([amount.title, f"about {amount.tokens:,} of {amount.texts:,} texts ({rule}){cost}"])
        by_texts = math.ceil(amount.texts / api.batch_texts)
        by_tokens = math.ceil(amount.tokens / (model.section.batch_tokens or BATCH_TOKENS))
        requests += max(by_texts, by_tokens)
        total += amount.tokens

    minutes = 0.0
    if api.requests_per_minute:
        minutes = max(minutes, requests / api.requests_per_minute)
    if api.tokens_per_minute:
        minutes = max(minutes, total / api.tokens_per_minute)
    time = f", at least {minutes:,.1f} minutes" if minutes else ""
    key = f"with the key in {api.key_variable}" if api.key_variable else "without a key"
    lines.append(["server", f"{api.base_url}, {key}"])
    lines.append(["requests", f"about {requests:,}{time}"])

    spent = model.meter.counts["tokens"]
    if api.cap is not None:
        warning = " The cap ends it before." if api.exceeded(spent + total) else ""
        lines.append(["cap", f"{api.cap}; {spent:,} tokens spent until now.{warning}"])
    elif spent:
        lines.append(["spent until now", model.meter.note])
    return lines


def _texts_to_send(job: Job, teacher: Teacher) -> list[str]:
    """Distinct texts with prompts that the evaluation sends; none if it does not score this teacher."""
    if teacher is not job.teacher or not columns_with("teacher") & {*job.recipe.evaluation.columns}:
        return []
    texts: dict[tuple[Role, str], None] = {}
    for task in job.tasks:
        for role, texts_of_role in embedded_texts(task):
            texts.update(dict.fromkeys((role, text) for text in texts_of_role))
    prompts = teacher.info.prompts
    return [prompts.get(role, "") + text for role, text in texts]


# -- several workers ---------------------------------------------------------------------------------------------------


def fleet_lines(fleet: Fleet, teacher: Teacher, missing: int, cost: TextCost, tokens: TokenStore) -> Lines:
    """Rows for the corpus and for the sizes of SIZES; `cost` is that of a text on one worker.

    Time is that of the model alone, divided by the workers. Disk has the vectors, the corpus and the student's tokens.
    """
    text_bytes = (folder_bytes(teacher.corpus.folder) + folder_bytes(tokens.folder)) / len(teacher.corpus)
    workers = "1 worker" if fleet.workers == 1 else f"{fleet.workers:,} workers"
    lines = [[f"with {workers}", _fleet_line(fleet, cost, text_bytes, missing)]]
    for name, count in SIZES.items():
        lines.append([f"  {name} texts", _fleet_line(fleet, cost, text_bytes, count)])
    return lines


def _fleet_line(fleet: Fleet, cost: TextCost, text_bytes: float, texts: int) -> str:
    seconds = texts * cost.seconds
    price = "" if fleet.hourly_price is None else f", cost {seconds / 3600 * fleet.hourly_price:,.2f}"
    time = duration(seconds / fleet.workers)
    vectors = _size_of(texts * cost.bytes)
    text_files = _size_of(texts * text_bytes)
    keys = _size_of(texts * KEY_BYTES)
    return f"about {time}{price}; {vectors} of vectors, {text_files} of texts and tokens; keys in memory {keys}"


def _size_of(count: float) -> str:
    """A number of bytes in MB, GB or TB."""
    if count >= 1e12:
        return f"{count / 1e12:,.1f} TB"
    if count >= 1e9:
        return f"{count / 1e9:,.1f} GB"
    return f"{count / 1e6:,.1f} MB"
