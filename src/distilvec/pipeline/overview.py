"""How long a job takes and what it stores, measured before the work; and the first screen of a run.

A token of a long text takes longer than one of a short text (attention), and texts differ in length by a factor of 50.
So seconds are added up token by token; the seconds of a token are interpolated between two measured lengths.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from sentence_transformers import SentenceTransformer

from distilvec.alignment.store import AlignmentStore
from distilvec.core.batch import Text, TextBatch
from distilvec.core.device import pick_device
from distilvec.core.info import UNLIMITED
from distilvec.core.log import Level, duration, level
from distilvec.core.outputs import ModelOutputs, OutputSpec
from distilvec.core.registry import method_class
from distilvec.core.vectors import spread_items
from distilvec.data.corpus import Corpus
from distilvec.data.tokens import TokenStore
from distilvec.evaluation.tasks import StoredTask
from distilvec.pipeline.caches import (
    bytes_of_a_text,
    missing_rows,
    reads_tokens,
    token_source,
)
from distilvec.pipeline.data import ReadyTeacher, training_data, with_pairs
from distilvec.pipeline.decide import built_in_line
from distilvec.pipeline.job import Job, Teacher
from distilvec.pipeline.objectives import make_objective, required_outputs
from distilvec.pipeline.prepare import tokenize_corpus
from distilvec.pipeline.student import trainable
from distilvec.pipeline.train import measure_pace, steps_in_minutes
from distilvec.teachers.cache.fill import compute_tokens, in_text_order
from distilvec.teachers.cache.signals import Array, Ragged
from distilvec.teachers.model_embedder import CHARACTERS_A_TOKEN, ModelEmbedder
from distilvec.train.stages import Stage
from distilvec.train.trainer import planned_steps

UNLESS = " unless the student knows its texts from the start"
SAMPLE_TEXTS = 2048  # whose lengths are looked at
MEASURED_TOKENS = 1024  # that are embedded to measure a rate
SHORT_QUANTILE = 0.25
STEP_FORWARDS = 3  # a step's forward and backward pass take as long as so many forward passes
# The rate is measured on short and on long texts. Work of fewer tokens has no estimate: it is over soon, and the
# measurement would be more than a twentieth of it.
LEAST_TOKENS = 20 * 2 * MEASURED_TOKENS
MEGABYTE = 1e6
BYTES_A_PARAMETER = 4  # float32
Lengths = npt.NDArray[np.int64]
Rows = npt.NDArray[np.int64]


@dataclass(frozen=True)
class PerToken:
    """A quantity for each token (seconds, bytes) of texts of two lengths, the shorter first."""

    lengths: tuple[int, int]
    values: tuple[float, float]

    def total(self, lengths: Lengths) -> float:
        """The quantity for texts of these lengths; beyond both measured lengths a token counts as at the nearer one."""
        return float((lengths * np.interp(lengths, self.lengths, self.values)).sum())

    def mean(self, lengths: Lengths) -> float:
        """The quantity for one text, on average over a sample of lengths."""
        return self.total(lengths) / max(1, len(lengths))


def sample_rows(corpus: Corpus) -> Rows:
    """At most SAMPLE_TEXTS rows of the corpus, drawn by a fixed seed, sorted, int64."""
    return np.sort(np.random.default_rng(0).choice(len(corpus), min(SAMPLE_TEXTS, len(corpus)), replace=False))


def measured_rows(lengths: Lengths) -> tuple[Rows, Rows]:
    """Rows of short and of long texts with about MEASURED_TOKENS tokens each, out of a sample's lengths."""
    by_length = np.argsort(lengths, kind="stable")
    from_a_quarter = by_length[int(SHORT_QUANTILE * len(by_length)) :]
    return _first_rows(from_a_quarter, lengths), _first_rows(by_length[::-1], lengths)


def _first_rows(rows: Rows, lengths: Lengths) -> Rows:
    """The first rows with at most MEASURED_TOKENS tokens together, at least one row."""
    tokens = np.cumsum(lengths[rows])
    count = int(np.searchsorted(tokens, MEASURED_TOKENS, side="right"))
    return rows[: max(1, count)]


def measure_rate(compute: Callable[[Rows], Any], lengths: Lengths) -> tuple[PerToken, list[Any]]:
    """Seconds for each token, from two calls of `compute` on rows of a sample; and what the calls returned."""
    groups = measured_rows(lengths)
    compute(groups[0][:8])  # warm-up
    results = []
    seconds = []
    for rows in groups:
        began = time.perf_counter()
        results.append(compute(rows))
        seconds.append((time.perf_counter() - began) / int(lengths[rows].sum()))
    short, long = (round(float(lengths[rows].mean())) for rows in groups)
    return PerToken((min(short, long), long), (seconds[0], seconds[1])), results


def embedding_rate(model: ModelEmbedder, texts: Sequence[Text]) -> tuple[PerToken, Lengths]:
    """Seconds for each token of texts with their prompts, and the lengths of a sample of them."""
    sample = spread_items(texts, SAMPLE_TEXTS)
    lengths = model.lengths(sample)
    rate, _ = measure_rate(lambda rows: model.signals([sample[row] for row in rows]), lengths)
    return rate, lengths


def seconds_a_text(job: Job, model: ModelEmbedder) -> float:
    """Measure how long a model takes for one of the corpus's texts, on average."""
    rate, lengths = embedding_rate(model, job.corpus.prompted(sample_rows(job.corpus)))
    return rate.mean(lengths)


def rate_text(rate: PerToken, lengths: Lengths) -> str:
    """A rate in words: texts a second on average, and tokens a second on short and on long texts."""
    short, long = rate.lengths
    short_seconds, long_seconds = rate.values
    by_length = f"{1 / short_seconds:,.0f} tokens/s on texts of {short} tokens"
    if short != long:
        by_length += f", {1 / long_seconds:,.0f} on texts of {long}"
    return f"{1 / max(rate.mean(lengths), 1e-9):,.1f} texts/s on average ({by_length})"


# -- the cost of a teacher's vectors and of a training -----------------------------------------------------------------


@dataclass(frozen=True)
class TextCost:
    """Seconds and bytes of a text on average, and the rate in words; a table of vectors or an API has no rate."""

    bytes: float
    seconds: float = 0.0
    rate: PerToken | None = None
    rate_text: str = ""


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


def cost_of_a_text(
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
        rate, lengths = embedding_rate(model, corpus.prompted(rows))
    else:
        source = token_source(job, teacher, model, tokens, alignment)
        lengths = np.asarray(tokens.lengths[rows], dtype=np.int64)

        def compute(chosen: Rows) -> dict[str, Array | Ragged]:
            return in_text_order(list(compute_tokens(teacher.manifest, corpus, source, rows[chosen])))

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
    query_tokens = None if job.pairs is None else tokenize_corpus(job, job.pairs.corpus, student)
    data = with_pairs(job, objective, data, query_tokens)
    pace = measure_pace(encoder, objective, data, train)
    if train.minutes is None:
        steps = planned_steps(train, pace.steps_an_epoch)
    else:
        steps = steps_in_minutes(train, pace, data)
    return StageCost(steps, pace.texts_a_step, steps * pace.step_seconds)


# -- the first screen of a run -----------------------------------------------------------------------------------------


def overview(job: Job) -> list[tuple[str, str]]:
    """Return the lines of the first screen as (name, text)."""
    lines = [("teacher", _teacher_line(teacher)) for teacher in job.teachers]
    lines.append(("student", _student_line(job)))
    texts = f"{len(job.corpus):,}, {len(job.corpus.holdout_rows):,} of them for validation"
    if job.examples is not None:
        texts = f"{len(job.corpus):,} in labelled examples"
    lines.append(("texts", texts))
    lines += [("method", line) for line in without_labels(job)]
    if job.pairs is not None:
        lines.append(("pairs", job.pairs.counts.line))
    if (missing := missing_role(job)) is not None:
        lines.append(("roles", missing))
    if (built_in := built_in_line(job.recipe, job.stated_recipe.teacher)) is not None:
        lines.append(("prompt", built_in))
    cached = [teacher for teacher in job.teachers if not teacher.live]
    if job.required != OutputSpec() and cached:
        lines.append(("disk", _disk_line(cached)))
    if (time := time_line(job)) is not None:
        lines.append(("time", time))
    lines.append(("test", _test_line(job)))
    lines.append(("folder", str(job.folder)))
    return lines


def _teacher_line(teacher: Teacher) -> str:
    info = teacher.info
    parts = [info.name]
    if teacher.parameters is not None:
        parts.append(_size_of_model(teacher.parameters))
    parts.append(f"{info.dim} dimensions")
    if info.max_length < UNLIMITED:
        parts.append(f"reads {info.max_length:,} tokens")
    return ", ".join(parts)


def _student_line(job: Job) -> str:
    info = job.student
    parts = []
    if info.parameters is not None:
        parts.append(_size_of_model(info.parameters))
    layers = "layer" if info.layers == 1 else "layers"
    parts.append(f"{info.layers} {layers}")
    parts.append(f"reads {job.student_length:,} tokens")
    return ", ".join(parts)


def without_labels(job: Job) -> list[str]:
    """Name the methods that learn labels as published and have none here, nor SimCSE in their place."""
    if job.examples is not None:
        return []
    methods = [stage.recipe.method for stage in job.stages]
    names = [method.name for method in methods if not method.options.get("simcse")]
    learners = [name for name in dict.fromkeys(names) if method_class(name).learns_labels]
    return [f"{name} without its term 'task': the texts have no labels" for name in learners]


def missing_role(job: Job) -> str | None:
    """Describe a prompt of the first teacher that no text has, so that the student does not learn it; None without one.

    A labelled task is embedded in the one role that its recipe states.
    """
    if not job.teachers or job.examples is not None:
        return None
    prompts = job.teachers[0].info.prompts
    query, document = prompts.get("query", ""), prompts.get("document", "")
    if job.recipe.student.built_in_prompt is not None:  # `built_in_line` says it
        return None
    missing = {"query", "document"} - set(job.corpus.roles)
    if query == document or not missing:
        return None
    if "document" in missing:
        return f"all texts are queries ({query!r}), none is a document ({document!r}): role: document of a source"
    return f"all texts are documents ({document!r}), none is a query ({query!r}): --queries FILE, or role: query"


def _disk_line(teachers: Sequence[Teacher]) -> str:
    """Describe the size of the teachers' caches; that of token signals is estimated, since no text is tokenized yet."""
    size = 0.0
    for teacher in teachers:
        lengths = estimated_lengths(teacher) if teacher.manifest.tokens is not None else None
        size += len(teacher.corpus) * bytes_of_a_text(teacher, lengths)
    megabytes = f"{size / MEGABYTE:,.1f} MB"
    whose = "teacher's" if len(teachers) == 1 else "teachers'"
    if any(teacher.manifest.tokens is not None for teacher in teachers):
        return f"about {megabytes} for the {whose} vectors and outputs for each token, kept for later runs"
    return f"{megabytes} for the {whose} vectors, kept for later runs"


def estimated_lengths(teacher: Teacher) -> Lengths:
    """Estimate the teacher's tokens of a sample of texts [n] from their characters."""
    characters = []
    for text in teacher.corpus.prompted(sample_rows(teacher.corpus)):
        characters.append(len(text) if isinstance(text, str) else sum(map(len, text)))
    tokens = np.array(characters, dtype=np.int64) // CHARACTERS_A_TOKEN + sum(teacher.info.special_tokens or ())
    return np.clip(tokens, 1, teacher.info.max_length)


def time_line(job: Job) -> str | None:
    """Return the estimated time of teacher and training; None where nothing can be said without loading a model.

    Models are in memory where they had to be loaded for their description: in the first run with them. The rate of the
    student is that of the CPU, so a training on a GPU has no estimate.
    """
    if level() is Level.QUIET:
        return None
    parts = [_teacher_time(job), _training_time(job)]
    return ", ".join(part for part in parts if part is not None) or None


def _teacher_time(job: Job) -> str | None:
    model = job.loaded.teacher
    if model is None or job.required == OutputSpec() or job.teacher.live or reads_tokens(job.teacher):
        return None
    missing = missing_rows(job, job.teacher)[1]
    if not missing:
        return None
    seconds = _seconds_of(job, model, missing)
    return None if seconds is None else f"about {duration(seconds)} for the teacher's vectors"


def _training_time(job: Job) -> str | None:
    if not job.trains:
        return None
    minutes = [stage.recipe.train.minutes for stage in job.stages if stage.recipe.train.minutes is not None]
    if len(minutes) == len(job.stages):
        return f"{sum(minutes):g} min for the training, besides its start and the test"
    student = job.loaded.untrained
    if student is None or pick_device(job.recipe.train.device) != "cpu":
        return None
    texts = 0
    for stage in job.stages:
        train = stage.recipe.train
        if train.minutes is not None:
            continue
        rows = len(job.corpus.train_rows)
        if job.pairs is not None and method_class(stage.recipe.method.name).reads_pairs:
            rows = 2 * len(job.pairs)  # beside each pair goes a text
        seen = train.passes * rows
        if train.max_steps is None:
            texts += seen
        else:
            texts += min(seen, train.max_steps * train.batch_size)
    embedder = ModelEmbedder(student, "student", job.recipe.evaluation.batch_tokens, job.student_prompts)
    seconds = _seconds_of(job, embedder, texts)
    if seconds is None:
        return None
    unless = UNLESS if may_know_its_texts(job) else ""
    return f"about {duration(STEP_FORWARDS * seconds + 60 * sum(minutes))} for the training{unless}"


def may_know_its_texts(job: Job) -> bool:
    """Whether the student has all of the teacher's layers, so that a training may end at once (train/trainer.py)."""
    section = job.recipe.student
    is_whole = section.intermediate_size is None and section.embedding is None
    takes_all_layers = section.model == "teacher" and job.student.layers == job.teacher.info.layers
    return is_whole and takes_all_layers and job.stages[-1].automatic is not None


def _seconds_of(job: Job, model: ModelEmbedder, texts: int) -> float | None:
    """Return the seconds that the model needs for so many of the corpus's texts; None for little work."""
    sample = job.corpus.prompted(sample_rows(job.corpus))
    characters = float(np.mean([len(text) for text in sample]))
    if texts * characters < CHARACTERS_A_TOKEN * LEAST_TOKENS:  # roughly: counting the tokens takes time as well
        return None
    return texts * seconds_a_text(job, model)


def _test_line(job: Job) -> str:
    parts = []
    if job.examples is not None:
        parts.append(f"the test split of {job.examples.name}")
    of_the_index = [task for task in job.tasks if isinstance(task, StoredTask)]
    if of_the_index:  # with fewer queries than `evaluation.stored` where that is more than a fifth of the index
        parts.append(f"{len(of_the_index[0].queries):,} texts of the index")
    elif job.required != OutputSpec():  # on labels alone there is no teacher to compare with
        parts.append("overlap@10 of held-out texts")
    if job.tasks:
        parts.append(", ".join(task.name for task in job.tasks))
    return "; ".join(parts)


def _size_of_model(parameters: int) -> str:
    megabytes = parameters * BYTES_A_PARAMETER / MEGABYTE
    return f"{parameters / 1e6:.1f}M parameters ({megabytes:,.0f} MB)"
