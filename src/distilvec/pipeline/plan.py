"""What a recipe will do and cost, measured on small samples before any work."""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch

from distilvec.core.batch import TextBatch
from distilvec.core.outputs import ModelOutputs, OutputSpec
from distilvec.data.tokens import TokenStore
from distilvec.pipeline.prepare import build_token_store, left_out
from distilvec.pipeline.resolve import together, validation_outputs
from distilvec.pipeline.run import Run
from distilvec.pipeline.teachers import TeacherSide
from distilvec.teachers.cache.fill import count_missing
from distilvec.teachers.cache.fill_tokens import compute_tokens
from distilvec.teachers.cache.layout import Ragged
from distilvec.teachers.cache.reuse import complete_cache
from distilvec.teachers.cache.store import MANIFEST, TeacherCache
from distilvec.teachers.model import LocalTeacher
from distilvec.train.metrics import read_metrics
from distilvec.train.stages import Stage, errors_named
from distilvec.train.trainer import Trainer

SAMPLE_TEXTS = 512
SAMPLE_STEPS = 8


class SampleTeacher:
    """Stands in for a cache while a few steps are timed: signals of the right shapes, nothing is learnt from them."""

    def __init__(self, side: TeacherSide) -> None:
        run = side.run
        self.side, self.required = side, run.required
        self.classes = 1 if run.examples is None else run.examples.info.classes

    def signals(self, batch: TextBatch) -> ModelOutputs:
        """Zero vectors; of tokens equal masses, the first pairs, and Gram matrices of rows at right angles."""
        info, pre_dense = self.side.info, self.side.manifest.pre_dense_width
        zeros = torch.zeros(
            len(batch), max(info.width, info.hidden_width or 0, pre_dense or 0), device=batch.rows.device
        )
        found = ModelOutputs(
            embedding=zeros[:, : info.width],
            pre_dense=zeros[:, :pre_dense] if pre_dense else None,
            vector=zeros[:, : info.hidden_width],
            logits=zeros.new_zeros(len(batch) // batch.texts_per_example, self.classes),
        )
        return found if self.required.tokens is None else self._tokens(batch, found)

    def _tokens(self, batch: TextBatch, found: ModelOutputs) -> ModelOutputs:
        side, required = self.side, self.required.tokens
        assert required is not None
        known = side.tokens.lengths if side.alignment is None else side.alignment.teacher_lengths
        lengths = torch.from_numpy(known[batch.rows.cpu().numpy()]).to(batch.rows.device)
        mask = torch.arange(int(lengths.max()), device=lengths.device) < lengths[:, None]
        states = torch.zeros(*mask.shape, side.info.hidden_width or 0, device=mask.device)
        found = replace(
            found, hidden_layers=dict.fromkeys(required.hidden, states), mask=mask, importance=mask / lengths[:, None]
        )
        if batch.alignment is None:
            return found
        selected = batch.alignment.pairs[:, : max(2, batch.alignment.pairs.shape[1] // required.divisor)]
        there = (selected[..., 0] >= 0).float()
        grams = torch.diag_embed(there / there.sum(1, keepdim=True).clamp_min(1).sqrt())
        return replace(found, selected=selected, grams=dict.fromkeys(required.gram_layers, grams))


def make_plan(run: Run) -> list[list[str]]:
    """Rows of (what, figure). The corpus is read and tokenised; teacher and student run on a sample only."""
    corpus = run.corpus
    model = run.student()
    tokens = build_token_store(run.root, corpus, model)
    vectors = [line for side in run.sides for line in _teacher_lines(side)]
    stages = [_measure_stage(run, tokens, stage) for stage in run.stages]
    lengths = tokens.lengths
    by_source = np.bincount(corpus.sources, minlength=len(corpus.source_names))
    return [
        [
            "texts" if run.examples is None else "examples",
            f"{corpus.report['train'] + corpus.report['holdout']:,} ({corpus.report['holdout']:,} held out)",
        ],
        *[[f"  {name}", f"{kept:,}"] for name, kept in zip(_told_apart(corpus.source_names), by_source, strict=True)],
        *(
            [["  left out", line] for line in left_out(corpus.report, run.recipe.corpus)]
            if run.recipe.corpus is not None
            else []
        ),
        ["student tokens a text", f"{lengths.mean():.1f} on average, {int(lengths.max())} at most"],
        *vectors,
        ["student", f"{sum(weight.numel() for weight in model.parameters()) / 1e6:.1f} M parameters"],
        *_training_lines(stages),
        *[["runs code", line] for line in _code(run)],
        ["run folder", str(run.folder)],
    ]


def _told_apart(names: list[str]) -> list[str]:
    """The sources' names; those that several sources have, with the key of each."""
    return [name if names.count(name) == 1 else f"{name} (corpus.sources.{place})" for place, name in enumerate(names)]


def _code(run: Run) -> Iterator[str]:
    """The code that the recipe brings into this process."""
    methods = dict.fromkeys(stage.recipe.method.name for stage in run.stages)
    yield from (f"the code in {name} (method.name)" for name in methods if name.endswith(".py"))
    student = run.recipe.student
    sections = [(side.key, side.section.model, side.section.trust_remote_code) for side in run.sides]
    for key, model, trusted in [*sections, ("student", student.model or student.tokenizer, student.trust_remote_code)]:
        if trusted:
            yield f"the code that comes with {model} ({key}.trust_remote_code)"


def _teacher_lines(side: TeacherSide) -> list[list[str]]:
    """A teacher, and what its cache still needs; nothing where it runs in every step, or is not asked at all."""
    run, info = side.run, side.info
    several = f", weight {side.section.weight:g}" if len(run.sides) > 1 else ""
    name = ["teacher" if side is run.sides[0] else "further teacher", f"{info.name}, {info.width} wide{several}"]
    if side.live or run.required == OutputSpec():
        why = "none: the teacher runs in every step" if side.live else "none: nothing is asked of it"
        return [name, ["teacher vectors to compute", why]]
    folder, cache = _cache_of(side)
    missing = len(run.corpus) if cache is None else count_missing(cache, side.corpus)
    disk = shutil.disk_usage(
        next(parent for parent in (folder.absolute(), *folder.absolute().parents) if parent.exists())
    )
    seconds, size = _cost_of_a_text(side)
    return [
        name,
        ["teacher vectors to compute", f"{missing:,} of {len(run.corpus):,}: about {_duration(missing * seconds)}"],
        ["disk for them", f"{missing * size / 1e6:,.1f} MB in {folder} ({disk.free / 1e9:,.1f} GB free)"],
    ]


def _cache_of(side: TeacherSide) -> tuple[Path, TeacherCache | None]:
    """Where a teacher's cache is, or will be; the cache itself if it is there. Nothing is made."""
    folder = side.cache_folder(side.info.name, side.manifest.fingerprint)
    wider = (
        None if folder == side.run.recipe.cache.path else complete_cache(folder, side.manifest.fingerprint, side.corpus)
    )
    if wider is not None:
        return wider.folder, wider
    used = (folder / MANIFEST).exists() or folder.is_file() or (folder.is_dir() and any(folder.iterdir()))
    return folder, side.own_cache() if used else None


def _cost_of_a_text(side: TeacherSide) -> tuple[float, float]:
    """Seconds and bytes of one text's signals; what is told of tokens is measured over a random sample, as the time is."""
    teacher, corpus, signals = side.teacher, side.corpus, side.manifest.signals
    size = 16.0 + sum(
        signal.width * np.dtype(signal.dtype).itemsize for signal in signals.values() if not signal.uneven
    )
    if not isinstance(teacher, LocalTeacher):
        return 0.0, size
    rows = np.sort(np.random.default_rng(0).choice(len(corpus), min(SAMPLE_TEXTS, len(corpus)), replace=False))
    if side.manifest.tokens is None and side.manifest.vector_width is None:
        texts = corpus.prompted(rows)
        teacher.signals(texts[:32])
        began = time.perf_counter()
        teacher.signals(texts)
        return (time.perf_counter() - began) / len(rows), size
    source = side.token_source()
    began = time.perf_counter()
    found = compute_tokens(side.manifest, corpus, source, rows, lambda done: None)
    seconds = (time.perf_counter() - began) / len(rows)
    uneven = [values for values in found.values() if isinstance(values, Ragged)]
    return seconds, size + sum(8 + values.values.nbytes / len(rows) for values in uneven)


@dataclass(frozen=True)
class StageCost:
    """What a stage of training takes."""

    name: str
    steps: int
    texts: int  # in a step
    seconds: float  # of all its steps


def _training_lines(stages: list[StageCost]) -> list[list[str]]:
    """The training as a whole, then, where there are several, stage by stage."""
    lines = [f"{cost.steps:,} steps of {cost.texts} texts: about {_duration(cost.seconds)}" for cost in stages]
    if len(stages) == 1:
        return [["training", lines[0]]]
    steps, seconds = sum(cost.steps for cost in stages), sum(cost.seconds for cost in stages)
    whole = ["training", f"{steps:,} steps in {len(stages)} stages: about {_duration(seconds)}"]
    return [whole, *([f"  {cost.name}", line] for cost, line in zip(stages, lines, strict=True))]


def _measure_stage(run: Run, tokens: TokenStore, stage: Stage) -> StageCost:
    """A stage's cost, from a few real steps on a copy of the untrained student."""
    encoder = run.encoder()
    objective = run.objective(encoder, stage)
    train = stage.recipe.train
    required = objective.teacher_outputs | validation_outputs(run)
    data = run.training_data(
        tokens, together([side.answering(required) if side.live else SampleTeacher(side) for side in run.sides])
    )
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
