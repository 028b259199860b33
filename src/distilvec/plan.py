"""What a recipe will do and cost, measured on small samples before any work."""

from __future__ import annotations

import copy
import shutil
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from sentence_transformers import SentenceTransformer

from distilvec.batch import Encoded, TextBatch
from distilvec.data.tokens import TokenStore
from distilvec.run import Run, build_token_store
from distilvec.students.encoder import Encoder
from distilvec.teachers.local import LocalTeacher
from distilvec.teachers.precompute import count_missing
from distilvec.train.data import TrainingData
from distilvec.train.loop import Loop
from distilvec.train.metrics import read_metrics
from distilvec.train.stages import Stage, errors_named

SAMPLE_TEXTS = 512
SAMPLE_STEPS = 8


class SampleTeacher:
    """Stands in for the cache while a few steps are timed: zero vectors, nothing is learnt from them."""

    def __init__(self, width: int) -> None:
        self.width = width

    def signals(self, batch: TextBatch) -> Encoded:
        """Vectors of the right shape."""
        return Encoded(embedding=torch.zeros(len(batch), self.width, device=batch.rows.device))


def make_plan(run: Run) -> list[list[str]]:
    """Rows of (what, figure). The corpus is read and tokenised; teacher and student run on a sample only."""
    corpus = run.corpus
    model = run.student()
    tokens = build_token_store(run.root, corpus, model)
    missing = count_missing(run.cache, corpus)
    teacher_seconds = missing * _seconds_a_text(run)
    stages = [_measure_stage(run, model, tokens, stage) for stage in run.stages]
    bytes_a_text = run.cache.width * (2 if run.recipe.cache.dtype == "float16" else 4) + 16
    lengths, disk = tokens.lengths, shutil.disk_usage(run.cache.folder)
    by_source = np.bincount(corpus.sources, minlength=len(corpus.source_names))
    return [
        ["texts", f"{len(corpus):,} ({len(corpus.holdout_rows):,} held out)"],
        *[[f"  {name}", f"{kept:,}"] for name, kept in zip(corpus.source_names, by_source, strict=True)],
        ["student tokens a text", f"{lengths.mean():.1f} on average, {int(lengths.max())} at most"],
        ["teacher", f"{run.teacher.name}, {run.teacher.width} wide"],
        ["teacher vectors to compute", f"{missing:,} of {len(corpus):,}: about {_duration(teacher_seconds)}"],
        ["disk for them", f"{missing * bytes_a_text / 1e6:,.1f} MB in {run.cache.folder} ({disk.free / 1e9:,.1f} GB free)"],
        ["student", f"{sum(weight.numel() for weight in model.parameters()) / 1e6:.1f} M parameters"],
        *_training_lines(stages),
        ["run folder", str(run.folder)],
    ]


def _seconds_a_text(run: Run) -> float:
    """Time of one teacher vector, over a random sample of the corpus."""
    teacher, corpus = run.teacher, run.corpus
    if not isinstance(teacher, LocalTeacher):
        return 0.0
    rows = np.random.default_rng(0).choice(len(corpus), min(SAMPLE_TEXTS, len(corpus)), replace=False)
    texts = corpus.prompted(np.sort(rows))
    teacher.signals(texts[:32])
    began = time.perf_counter()
    teacher.signals(texts)
    return (time.perf_counter() - began) / len(texts)


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


def _measure_stage(run: Run, model: SentenceTransformer, tokens: TokenStore, stage: Stage) -> StageCost:
    """A stage's cost, from a few real steps on a copy of the untrained student."""
    encoder = Encoder(copy.deepcopy(model))
    objective = run.objective(encoder, stage)
    corpus, train = run.corpus, stage.recipe.train
    data = TrainingData(corpus, tokens, SampleTeacher(run.facts.width), corpus.train_rows, corpus.holdout_rows[:64])
    with tempfile.TemporaryDirectory() as folder, errors_named(stage):
        whole = Loop(encoder, objective, data, train, Path(folder), "plan").total_steps
        sample = train.model_copy(update={"max_steps": SAMPLE_STEPS, "logging_steps": 1, "trackers": []})
        Loop(encoder, objective, data, sample, Path(folder), "plan").run()
        lines = read_metrics(Path(folder) / "metrics.jsonl")
    speeds = [line["train/texts_per_second"] for line in lines if "train/texts_per_second" in line]
    texts = train.batch_size * train.gradient_accumulation_steps
    return StageCost(stage.name, whole, texts, whole * texts / float(np.mean(speeds[2:] or speeds)))


def _duration(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
