"""Latency, throughput, largest batch and memory of models on this machine's processor.

One batch from token ids to vectors is timed, in fp32, without tokenising and padding: time depends on batch size and
length alone. Settings follow REDACT (appendix G: batch sizes, queries and documents, largest batch within 100 ms) and
DistillMoE (tables 17-19: mean, median, p99, standard deviation, length at batch size 1; 20 warm-up and 200 measured
runs).
Note: a budget of seconds limits warm-up and repeats of slow settings (at least 5 remain); every row has its `repeats`.
"""

from __future__ import annotations

import itertools
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sentence_transformers import SentenceTransformer
from torch import Tensor

from distilvec.config.schema import Role
from distilvec.core.errors import DistilvecError
from distilvec.evaluation.evaluator import Progress
from distilvec.evaluation.memory import machine_info, model_info, random_tokens
from distilvec.formats.onnx import OnnxEmbedder, export_copy, export_onnx, token_limit

ROLE_TOKENS: dict[Role, int] = {"query": 16, "document": 256}
BATCH_SIZES, LENGTHS = (1, 2, 4, 8, 16, 24, 32), (16, 32, 64, 128, 256, 512)
LIMIT_MS = 100.0
LEAST_REPEATS, WARMUP_SHARE = 5, 0.25
TIMED = "one batch from token ids to vectors, without tokenising; random tokens, no padding, fp32"
Encode = Callable[[Mapping[str, Tensor]], Any]
Row = Mapping[str, Any]


@dataclass(frozen=True)
class Setting:
    """Texts per batch and tokens per text; `role` is None in the sweep over lengths."""

    role: Role | None
    batch_size: int
    tokens: int


@dataclass(frozen=True)
class Timing:
    """Warm-up rounds, measured rounds, seconds per model and setting (None: unlimited; warm-up: a quarter more)."""

    warmup: int
    repeats: int
    budget_seconds: float | None


def measure_speed(
    models: Mapping[str, SentenceTransformer],
    backends: Sequence[str] = ("pytorch", "onnx"),
    batch_sizes: Sequence[int] = BATCH_SIZES,
    lengths: Sequence[int] = LENGTHS,
    timing: Timing = Timing(20, 200, 2.0),
    memory: bool = True,
    progress: Progress | None = None,
) -> dict[str, Any]:
    """Make report.json's "speed" for models by name: machine, settings, rows, models, reference, ratio, ratios, notes.

    Models are measured as their folders load (fp32, no packed layers) and alternate from run to run within a setting.
    `ratio` compares "student" (else the last model) with "teacher" (else the first) on the first backend by role,
    `ratios` all models, see `speed_ratios`. `memory_mb` is at the largest batch of documents under PyTorch; `megabytes`
    are the saved fp32 weights (both 10^6 bytes). Models that are too short for a setting or cannot be exported have a
    note.
    """
    plain, settings = {name: export_copy(model) for name, model in models.items()}, plan_settings(batch_sizes, lengths)
    longest = max(setting.tokens for setting in settings)
    notes = [
        f"{name} takes {limit} tokens: documents are limited to them, longer settings are left out"
        for name, model in plain.items()
        if (limit := token_limit(model)) and limit < longest
    ]
    rows: list[dict[str, Any]] = []
    info: dict[str, dict[str, Any]] = {}
    total, done = len(backends) * len(settings) + len(models), itertools.count()

    def log(label: str) -> None:
        if progress is not None:
            progress(label, next(done), total)

    with tempfile.TemporaryDirectory(prefix="distilvec-speed-") as folder:
        for backend in backends:
            encoders = BACKENDS[backend](plain, Path(folder), notes)
            for setting in settings:
                log(f"{backend}, {setting.batch_size} x {setting.tokens} tokens")
                rows += measure(backend, setting, encoders, plain, timing)
        for number, (name, model) in enumerate(plain.items()):
            log(f"size and memory of {name}")
            size = (max(batch_sizes), min(ROLE_TOKENS["document"], token_limit(model) or longest)) if memory else None
            info[name] = model_info(model, Path(folder) / f"model-{number}", size)
            if problem := (info[name]["memory"] or {}).get("problem"):
                notes.append(f"{name}: its memory could not be measured: {problem}")
    log("speed")
    return {
        "machine": machine_info(),
        "settings": {**asdict(timing), "least_repeats": LEAST_REPEATS, "timed": TIMED},
        "rows": rows,
        **_summary(rows, info, backends),
        "notes": notes,
    }


def plan_settings(batch_sizes: Sequence[int], lengths: Sequence[int]) -> list[Setting]:
    """Every role at every batch size, then every length at batch size 1."""
    roles = [Setting(role, size, tokens) for role, tokens in ROLE_TOKENS.items() for size in batch_sizes]
    return roles + [Setting(None, 1, length) for length in lengths]


def measure(
    backend: str,
    setting: Setting,
    encoders: Mapping[str, Encode],
    models: Mapping[str, SentenceTransformer],
    timing: Timing,
) -> list[dict[str, Any]]:
    """One row per encoder. A role's length is limited to the model's; a model too short for a length is left out."""
    limits = {name: token_limit(models[name]) or setting.tokens for name in encoders}
    tokens = {
        name: min(setting.tokens, limit) for name, limit in limits.items() if setting.role or limit >= setting.tokens
    }
    inputs = {name: random_tokens(models[name], setting.batch_size, count) for name, count in tokens.items()}
    seconds = interleaved([partial(encoders[name], given) for name, given in inputs.items()], timing)
    shared = {"backend": backend, "role": setting.role, "batch_size": setting.batch_size}
    return [
        {"model": name, **shared, "tokens": count, **latency_statistics(taken, setting.batch_size)}
        for (name, count), taken in zip(tokens.items(), seconds, strict=True)
    ]


def interleaved(
    calls: Sequence[Callable[[], Any]], timing: Timing, clock: Callable[[], float] = time.perf_counter
) -> list[list[float]]:
    """Seconds of every call, [calls][rounds]: warm-up rounds, then measured rounds, each of which runs every call once.

    Measured rounds end when the calls took the budget on average, but not before LEAST_REPEATS (or `repeats`, if less).
    """
    budget = float("inf") if timing.budget_seconds is None else timing.budget_seconds * len(calls)
    _rounds(calls, timing.warmup, min(1, timing.warmup), WARMUP_SHARE * budget, clock)
    return _rounds(calls, timing.repeats, min(LEAST_REPEATS, timing.repeats), budget, clock)


def _rounds(
    calls: Sequence[Callable[[], Any]], count: int, least: int, budget: float, clock: Callable[[], float]
) -> list[list[float]]:
    seconds: list[list[float]] = [[] for _ in calls]
    spent = 0.0
    for done in range(count):
        if done >= least and spent >= budget:
            break
        for call, kept in zip(calls, seconds, strict=True):
            start = clock()
            call()
            kept.append(clock() - start)
            spent += kept[-1]
    return seconds


def latency_statistics(seconds: Sequence[float], batch: int) -> dict[str, Any]:
    """Latencies of one batch in ms, texts per second (batch over mean latency), sample standard deviations."""
    times = np.asarray(seconds, dtype=np.float64)
    found = {
        "mean_ms": 1e3 * times.mean(),
        "median_ms": 1e3 * np.median(times),
        "p99_ms": 1e3 * np.percentile(times, 99),
        "std_ms": 1e3 * times.std(ddof=1),
        "texts_per_second": batch / times.mean(),
        "texts_per_second_std": (batch / times).std(ddof=1),
    }
    return {**{name: float(value) for name, value in found.items()}, "repeats": len(times)}


def pytorch_encoders(models: Mapping[str, SentenceTransformer], folder: Path, notes: list[str]) -> dict[str, Encode]:
    """Forward passes of the models themselves."""

    @torch.inference_mode()
    def encode(model: SentenceTransformer, tokens: Mapping[str, Tensor]) -> Any:
        return model(dict(tokens))["sentence_embedding"].numpy()

    return {name: partial(encode, model) for name, model in models.items()}


def onnx_encoders(models: Mapping[str, SentenceTransformer], folder: Path, notes: list[str]) -> dict[str, Encode]:
    """Models through ONNX Runtime, exported to `folder`; a model that cannot be exported is left out and noted."""
    found: dict[str, Encode] = {}
    for number, (name, model) in enumerate(models.items()):
        try:
            found[name] = OnnxEmbedder(export_onnx(model, folder / f"{number}.onnx")).encode_tokens
        except DistilvecError as error:
            notes.append(f"{name}: no ONNX rows: {error}")
    return found


BACKENDS = {"pytorch": pytorch_encoders, "onnx": onnx_encoders}


def _summary(rows: Sequence[Row], info: Mapping[str, dict[str, Any]], backends: Sequence[str]) -> dict[str, Any]:
    """Models with their largest batches, and how many times faster each is than the reference."""
    for name, found in info.items():
        largest = {
            backend: {role: largest_batch(rows, name, backend, role) for role in ROLE_TOKENS} for backend in backends
        }
        found |= {"largest_batch_under_100_ms": largest[backends[0]], "largest_batch_by_backend": largest}
    reference = "teacher" if "teacher" in info else next(iter(info))
    ratios = {name: speed_ratios(rows, name, reference) for name in info if name != reference}
    first = (ratios.get("student") or next(reversed(ratios.values()), {})).get(backends[0], {})
    return {
        "models": info,
        "reference": reference,
        "ratio": {role: first[role]["ratio"] if role in first else None for role in ROLE_TOKENS},
        "ratios": ratios,
    }


def largest_batch(rows: Sequence[Row], model: str, backend: str, role: Role) -> int | None:
    """Largest measured batch whose median latency is at most 100 ms (REDACT, table 7: max N); None if there is none."""
    medians = _medians(rows, model, backend, role)
    return max((size for size, median in medians.items() if median <= LIMIT_MS), default=None)


def speed_ratios(rows: Sequence[Row], model: str, reference: str) -> dict[str, dict[str, dict[str, float]]]:
    """Times faster than the reference, by backend and role: geometric mean over batch sizes, lowest and highest.

    Note: REDACT divides throughputs averaged over batch sizes, in which the largest batches weigh most.
    """
    ratios: dict[str, dict[str, dict[str, float]]] = {}
    for backend, role in itertools.product(dict.fromkeys(row["backend"] for row in rows), ROLE_TOKENS):
        ours, theirs = (_medians(rows, name, backend, role) for name in (model, reference))
        if found := np.array([theirs[size] / ours[size] for size in sorted(set(ours) & set(theirs))]).tolist():
            mean = float(np.exp(np.log(found).mean()))
            ratios.setdefault(backend, {})[role] = {"ratio": mean, "lowest": min(found), "highest": max(found)}
    return ratios


def _medians(rows: Sequence[Row], model: str, backend: str, role: Role) -> dict[int, float]:
    key = (model, backend, role)
    return {r["batch_size"]: r["median_ms"] for r in rows if (r["model"], r["backend"], r["role"]) == key}
