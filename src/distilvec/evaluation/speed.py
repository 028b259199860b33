"""Latency, throughput, largest batch and memory of models on this machine's processor.

One batch from token ids to vectors is timed, in fp32, without tokenising and padding: time depends on batch size and
length alone. Settings follow REDACT (appendix G: batch sizes, queries and documents, largest batch within 100 ms) and
DistillMoE (tables 17-19: mean, median, p99, standard deviation, length at batch size 1; 20 warm-up and 200 measured
runs). Documents are equally long for all models: as long as the model with the shortest input can take.
Note: a budget of seconds limits warm-up and repeats of slow settings (at least 5 remain); every row has its `repeats`.
A limit for the whole table leaves out what would not fit, and says so in `notes`.
"""

from __future__ import annotations

import itertools
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from pydantic import FiniteFloat
from sentence_transformers import SentenceTransformer
from torch import Tensor

from distilvec.config.schema import Role
from distilvec.core.device import release_memory
from distilvec.core.errors import user_error
from distilvec.evaluation.evaluator import Progress
from distilvec.evaluation.memory import MOST_SECONDS, ModelSize, machine_info, measure_size, random_tokens
from distilvec.models.parts import max_length

ROLE_TOKENS: dict[Role, int] = {"query": 16, "document": 256}
BATCH_SIZES, LENGTHS = (1, 2, 4, 8, 16, 24, 32), (16, 32, 64, 128, 256, 512)
LIMIT_MS = 100.0
LEAST_REPEATS, WARMUP_SHARE = 5, 0.25
TIMED = "one batch from token ids to vectors, without tokenising; random tokens, no padding, fp32"
# Shares of a limit that are used up when the first backend is measured, and when sizes and memory are
FIRST_BACKEND_SHARE, MEMORY_SHARE = 0.5, 0.75
EXPORT_SECONDS = 0.3  # of the export to ONNX, for a million parameters, on one core
Encode = Callable[[Mapping[str, Tensor]], Any]


@dataclass(frozen=True)
class SpeedRow:
    """Latency of one model at one setting, in ms for a batch; without a role lengths were compared."""

    model: str
    backend: str
    role: str | None
    batch_size: int
    tokens: int
    mean_ms: float
    median_ms: float
    p99_ms: float
    std_ms: float
    texts_per_second: FiniteFloat
    texts_per_second_std: float | None = None
    repeats: int | None = None


@dataclass(frozen=True)
class SpeedRatio:
    """Times faster than the reference: geometric mean over batch sizes, lowest and highest."""

    ratio: float
    lowest: float
    highest: float


@dataclass(frozen=True)
class Speed:
    """Latency, throughput, size and memory. `ratio`: the student's by role; `ratios` by model, backend and role."""

    machine: dict[str, str | int | None] = field(default_factory=dict)
    settings: dict[str, Any] = field(default_factory=dict)
    rows: list[SpeedRow] = field(default_factory=list)
    models: dict[str, ModelSize] = field(default_factory=dict)
    reference: str | None = None
    ratio: dict[str, float | None] = field(default_factory=dict)
    ratios: dict[str, dict[str, dict[str, SpeedRatio]]] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Setting:
    """Texts per batch and tokens per text; `role` is None in the sweep over lengths."""

    role: Role | None
    batch_size: int
    tokens: int

    @property
    def batch_tokens(self) -> int:
        """Tokens of one batch."""
        return self.batch_size * self.tokens

    def __str__(self) -> str:
        return f"{self.batch_size} x {self.tokens} tokens"


@dataclass(frozen=True)
class Timing:
    """Warm-up rounds, measured rounds, seconds per model and setting (None: unlimited; warm-up: a quarter more)."""

    warmup: int
    repeats: int
    budget_seconds: float | None


class Limit:
    """Seconds that a whole table may take, from the moment this is made; None: no limit."""

    def __init__(self, seconds: float | None) -> None:
        self.seconds, self._began = seconds, time.monotonic()

    def left(self, share: float = 1.0) -> float:
        """Seconds until this share of the limit is used up."""
        return float("inf") if self.seconds is None else self._began + share * self.seconds - time.monotonic()


class ProgressOfTable:
    """Tells how much of a table is done. A setting counts by its tokens, since large batches take most of the time."""

    def __init__(self, progress: Progress | None, total: int) -> None:
        self._progress, self._total, self._done = progress, total, 0

    def begin(self, what: str, weight: int = 0) -> None:
        """Tell what begins now, and count it as done from the next call on."""
        if self._progress is not None:
            self._progress(what, self._done, self._total)
        self._done += weight

    def finish(self) -> None:
        """Tell that all is done."""
        self._done = self._total
        self.begin("speed")


def weight(setting: Setting) -> int:
    """Share of a setting in a table's progress: settings below 1,024 tokens take as long as their budget."""
    return max(1, setting.batch_tokens // 1024)


def measure_speed(
    models: Mapping[str, SentenceTransformer],
    backends: Sequence[str] = ("pytorch", "onnx"),
    batch_sizes: Sequence[int] = BATCH_SIZES,
    lengths: Sequence[int] = LENGTHS,
    timing: Timing = Timing(20, 200, 2.0),
    memory: bool = True,
    progress: Progress | None = None,
    limit_seconds: float | None = None,
) -> Speed:
    """Measure models by name.

    Models are measured as their folders load (fp32, no packed layers) and alternate from run to run within a setting.
    `ratio` compares "student" (else the last model) with "teacher" (else the first) on the first backend by role,
    `ratios` all models, see `speed_ratios`. `memory_mb` is at the largest measured batch of documents under PyTorch;
    `megabytes` are the saved fp32 weights (both 10^6 bytes). Models that are too short for a setting or cannot be
    exported have a note.

    limit_seconds: time for the whole table. The first backend may use half of it, sizes and memory a quarter, the other
    backends the rest; settings that would not fit are left out, the largest first, and listed in a note.
    """
    from distilvec.formats.onnx import export_copy  # with onnxruntime: a run without scores measures no speed

    limit = Limit(limit_seconds)
    plain = {name: export_copy(model) for name, model in models.items()}
    limits = {name: max_length(model) for name, model in plain.items()}
    document = min([ROLE_TOKENS["document"], *limits.values()])
    settings = plan_settings(batch_sizes, lengths, document)
    notes = _length_notes(limits, document, lengths)
    size_weight = 4  # of one model's size and memory
    told = ProgressOfTable(
        progress, len(backends) * sum(weight(setting) for setting in settings) + len(plain) * size_weight
    )
    sizes: dict[str, ModelSize] = {}
    with tempfile.TemporaryDirectory(prefix="distilvec-speed-") as name:
        folder = Path(name)
        table = _Table(plain, settings, timing, folder, limit, told, notes)
        rows = table.rows(backends[0], FIRST_BACKEND_SHARE if memory or len(backends) > 1 else 1.0, first=True)
        documents = [row.batch_size for row in rows if row.role == "document"]
        for number, (model_name, model) in enumerate(plain.items()):
            told.begin(f"size and memory of {model_name}", size_weight)
            seconds = min(MOST_SECONDS, limit.left(MEMORY_SHARE) / (len(plain) - number))
            setting = (max(documents), document) if memory and documents else None
            size = sizes[model_name] = measure_size(model, folder / f"model-{number}", setting, seconds)
            problem = None if size.memory is None else size.memory.get("problem")
            if problem:
                notes.append(f"{model_name}: its memory could not be measured: {problem}")
        for backend in backends[1:]:
            rows += table.rows(backend, 1.0, first=False)
    told.finish()
    if table.left_out:
        settings_left_out = ", ".join(table.left_out)
        rest = f"left out, to keep within {limit_seconds:g} s in all (evaluation.speed_seconds): {settings_left_out}"
        notes.append(f"{rest}. `distilvec speed` measures every setting")
    for name, size in sizes.items():
        largest = {}
        for backend in backends:
            largest[backend] = {str(role): largest_batch(rows, name, backend, role) for role in ROLE_TOKENS}
        sizes[name] = replace(size, largest_batch_under_100_ms=largest[backends[0]], largest_batch_by_backend=largest)
    settings_used = {"least_repeats": LEAST_REPEATS, "timed": TIMED, "limit_seconds": limit_seconds}
    reference = "teacher" if "teacher" in sizes else next(iter(sizes))
    ratios = {name: speed_ratios(rows, name, reference) for name in sizes if name != reference}
    first = (ratios.get("student") or next(reversed(ratios.values()), {})).get(backends[0], {})
    return Speed(
        machine=machine_info(),
        settings={**asdict(timing), **settings_used},
        rows=rows,
        models=sizes,
        reference=reference,
        ratio={role: first[role].ratio if role in first else None for role in ROLE_TOKENS},
        ratios=ratios,
        notes=notes,
    )


def plan_settings(batch_sizes: Sequence[int], lengths: Sequence[int], document: int) -> list[Setting]:
    """Every role at every batch size, and every length at batch size 1: those with the fewest tokens first.

    `document`: tokens of a document.
    """
    role_tokens: dict[Role, int] = {"query": min(ROLE_TOKENS["query"], document), "document": document}
    settings = [Setting(role, size, tokens) for role, tokens in role_tokens.items() for size in batch_sizes]
    settings += [Setting(None, 1, length) for length in lengths]
    return sorted(settings, key=lambda setting: setting.batch_tokens)


def _length_notes(limits: Mapping[str, int], document: int, lengths: Sequence[int]) -> list[str]:
    """Say why documents are shorter than usual, and which lengths are left out."""
    notes = []
    if document < ROLE_TOKENS["document"]:
        shortest = ", ".join(name for name, most in limits.items() if most == document)
        notes.append(f"documents have {document} tokens for every model, the most that {shortest} takes")
    for name, most in limits.items():
        if most < max(lengths, default=0):
            notes.append(f"{name} takes {most} tokens: it has no rows for longer texts")
    return notes


@dataclass
class _Table:
    """Measures models on one backend after another; `notes` and `left_out` say what has no rows."""

    models: Mapping[str, SentenceTransformer]
    settings: Sequence[Setting]
    timing: Timing
    folder: Path
    limit: Limit
    told: ProgressOfTable
    notes: list[str]
    left_out: list[str] = field(default_factory=list)

    def rows(self, backend: str, share: float, first: bool) -> list[SpeedRow]:
        """Rows of one backend, until `share` of the limit is used up.

        On the `first` backend the smallest batch of queries and of documents is always measured: without them there is
        no comparison at all.
        """
        self.told.begin(f"{backend}: loading")
        encoders = BACKENDS[backend](self.models, self.folder, self.notes, self.limit.left(share))
        if not encoders:
            return []
        rows: list[SpeedRow] = []
        token_seconds: dict[str, float] = {}  # by model, as the last setting took
        unmeasured_roles = set(ROLE_TOKENS) if first else set()
        for number, setting in enumerate(self.settings):
            self.told.begin(f"{backend}, {setting}", weight(setting))
            left = self.limit.left(share)
            needed = (LEAST_REPEATS + 1) * setting.batch_tokens * sum(token_seconds.values())
            if needed >= left and setting.role not in unmeasured_roles:
                self.left_out.append(f"{backend} {setting}")
                continue
            timing = self.timing
            if self.limit.seconds is not None:
                fair = max(0.0, left) / (len(self.settings) - number) / len(encoders) / (1 + WARMUP_SHARE)
                most = fair if timing.budget_seconds is None else min(fair, timing.budget_seconds)
                timing = replace(timing, budget_seconds=most)
            setting_rows = measure(backend, setting, encoders, self.models, timing)
            for row in setting_rows:
                token_seconds[row.model] = row.median_ms / 1e3 / setting.batch_tokens
            unmeasured_roles -= {setting.role}
            rows += setting_rows
        encoders.clear()  # ONNX Runtime keeps memory for every shape that it has seen, as long as its session lives
        release_memory()
        return rows


def measure(
    backend: str,
    setting: Setting,
    encoders: Mapping[str, Encode],
    models: Mapping[str, SentenceTransformer],
    timing: Timing,
) -> list[SpeedRow]:
    """One row per encoder; a model that is too short for the setting is left out."""
    names = [name for name in encoders if max_length(models[name]) >= setting.tokens]
    of_graph = backend == "onnx"
    inputs = [random_tokens(models[name], setting.batch_size, setting.tokens, of_graph) for name in names]
    calls = [partial(encoders[name], tokens) for name, tokens in zip(names, inputs, strict=True)]
    seconds = interleaved(calls, timing)
    rows = []
    for name, taken in zip(names, seconds, strict=True):
        statistics = latency_statistics(taken, setting.batch_size)
        rows.append(SpeedRow(name, backend, setting.role, setting.batch_size, setting.tokens, **statistics))
    return rows


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
        for call, call_seconds in zip(calls, seconds, strict=True):
            start = clock()
            call()
            call_seconds.append(clock() - start)
            spent += call_seconds[-1]
    return seconds


def latency_statistics(seconds: Sequence[float], batch: int) -> dict[str, Any]:
    """Latencies of one batch in ms, texts per second (batch over mean latency), sample standard deviations."""
    times = np.asarray(seconds, dtype=np.float64)
    statistics = {
        "mean_ms": 1e3 * times.mean(),
        "median_ms": 1e3 * np.median(times),
        "p99_ms": 1e3 * np.percentile(times, 99),
        "std_ms": 1e3 * times.std(ddof=1),
        "texts_per_second": batch / times.mean(),
        "texts_per_second_std": (batch / times).std(ddof=1),
    }
    return {**{name: float(value) for name, value in statistics.items()}, "repeats": len(times)}


def pytorch_encoders(
    models: Mapping[str, SentenceTransformer], folder: Path, notes: list[str], seconds: float = float("inf")
) -> dict[str, Encode]:
    """Forward passes of the models themselves."""

    @torch.inference_mode()
    def encode(model: SentenceTransformer, tokens: Mapping[str, Tensor]) -> Any:
        return model(dict(tokens))["sentence_embedding"].numpy()

    return {name: partial(encode, model) for name, model in models.items()}


def onnx_encoders(
    models: Mapping[str, SentenceTransformer], folder: Path, notes: list[str], seconds: float = float("inf")
) -> dict[str, Encode]:
    """Models through ONNX Runtime, exported to `folder`, the smallest first.

    A model that cannot be exported, or not in the `seconds` that are left, is left out and noted.
    """
    from distilvec.formats.onnx import OnnxEmbedder, export_onnx

    encoders: dict[str, Encode] = {}
    began = time.monotonic()
    parameters = {name: sum(weight.numel() for weight in model.parameters()) for name, model in models.items()}
    for number, name in enumerate(sorted(parameters, key=lambda name: parameters[name])):
        expected = EXPORT_SECONDS * parameters[name] / 1e6
        if expected > seconds - (time.monotonic() - began):
            notes.append(f"{name}: no ONNX rows, since its export takes about {expected:.0f} s. See `distilvec speed`")
            continue
        try:
            encoders[name] = OnnxEmbedder(export_onnx(models[name], folder / f"{number}.onnx")).encode_tokens
        except Exception as error:
            problem = user_error(error)
            if problem is None:
                raise
            notes.append(f"{name}: no ONNX rows: {problem}")
    return encoders


BACKENDS = {"pytorch": pytorch_encoders, "onnx": onnx_encoders}


def largest_batch(rows: Sequence[SpeedRow], model: str, backend: str, role: Role) -> int | None:
    """Largest measured batch whose median latency is at most 100 ms (REDACT, table 7: max N); None if there is none."""
    medians = _medians(rows, model, backend, role)
    return max((size for size, median in medians.items() if median <= LIMIT_MS), default=None)


def speed_ratios(rows: Sequence[SpeedRow], model: str, reference: str) -> dict[str, dict[str, SpeedRatio]]:
    """Times faster than the reference, by backend and role: geometric mean over batch sizes, lowest and highest.

    Note: REDACT divides throughputs averaged over batch sizes, in which the largest batches weigh most.
    """
    ratios: dict[str, dict[str, SpeedRatio]] = {}
    for backend, role in itertools.product(dict.fromkeys(row.backend for row in rows), ROLE_TOKENS):
        model_ms = _medians(rows, model, backend, role)
        reference_ms = _medians(rows, reference, backend, role)
        by_size = [reference_ms[size] / model_ms[size] for size in sorted(model_ms) if size in reference_ms]
        if by_size:
            mean = float(np.exp(np.log(by_size).mean()))
            ratios.setdefault(backend, {})[role] = SpeedRatio(mean, min(by_size), max(by_size))
    return ratios


def _medians(rows: Sequence[SpeedRow], model: str, backend: str, role: Role) -> dict[int, float]:
    medians = {}
    for row in rows:
        if (row.model, row.backend, row.role) == (model, backend, role):
            medians[row.batch_size] = row.median_ms
    return medians
