"""What a recipe will do and cost, measured on small samples before any work."""

from __future__ import annotations

import copy
import shutil
import tempfile
import time
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
    recipe, corpus = run.recipe, run.corpus
    model = run.student()
    tokens = build_token_store(run.root, corpus, model)
    missing = count_missing(run.cache, corpus)
    teacher_seconds = missing * _seconds_a_text(run)
    loop_steps, step_seconds, parameters = _measure_steps(run, model, tokens)
    bytes_a_text = run.cache.width * (2 if recipe.cache.dtype == "float16" else 4) + 16
    lengths, disk, batch = (
        tokens.lengths,
        shutil.disk_usage(run.cache.folder),
        recipe.train.batch_size * recipe.train.gradient_accumulation_steps,
    )
    by_source = np.bincount(corpus.sources, minlength=len(corpus.source_names))
    return [
        ["texts", f"{len(corpus):,} ({len(corpus.holdout_rows):,} held out)"],
        *[[f"  {name}", f"{kept:,}"] for name, kept in zip(corpus.source_names, by_source, strict=True)],
        ["student tokens a text", f"{lengths.mean():.1f} on average, {int(lengths.max())} at most"],
        ["teacher", f"{run.teacher.name}, {run.teacher.width} wide"],
        ["teacher vectors to compute", f"{missing:,} of {len(corpus):,}: about {_duration(teacher_seconds)}"],
        ["disk for them", f"{missing * bytes_a_text / 1e6:,.1f} MB in {run.cache.folder} ({disk.free / 1e9:,.1f} GB free)"],
        ["student", f"{parameters / 1e6:.1f} M parameters"],
        ["training", f"{loop_steps:,} steps of {batch} texts: about {_duration(loop_steps * step_seconds)}"],
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


def _measure_steps(run: Run, model: SentenceTransformer, tokens: TokenStore) -> tuple[int, float, int]:
    """(steps of the whole run, seconds of one, parameters), from a few real steps on a copy of the student."""
    encoder = Encoder(copy.deepcopy(model))
    objective = run.objective(encoder)
    corpus = run.corpus
    data = TrainingData(corpus, tokens, SampleTeacher(run.facts.width), corpus.train_rows, corpus.holdout_rows[:64])
    with tempfile.TemporaryDirectory() as folder:
        whole = Loop(encoder, objective, data, run.recipe.train, Path(folder), "plan").total_steps
        train = run.recipe.train.model_copy(update={"max_steps": SAMPLE_STEPS, "logging_steps": 1, "trackers": []})
        Loop(encoder, objective, data, train, Path(folder), "plan").run()
        speeds = [
            line["train/texts_per_second"] for line in read_metrics(Path(folder) / "metrics.jsonl") if "train/texts_per_second" in line
        ]
    texts_a_step = run.recipe.train.batch_size * run.recipe.train.gradient_accumulation_steps
    return whole, texts_a_step / float(np.mean(speeds[2:])), sum(p.numel() for p in encoder.parameters())


def _duration(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
