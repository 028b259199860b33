"""How fast and how large models are on this machine's processor: latency, throughput, largest batch, memory.

What is timed is one batch from token ids to vectors, in fp32; tokenising is not included. Token ids are drawn at random
and no row is padded, so time depends on batch size and length alone. Settings follow REDACT (appendix G: batch sizes,
queries and documents, largest batch within 100 ms) and DistillMoE (tables 17-19: mean, median, p99, standard deviation,
length at batch size 1; 20 warm-up and 200 measured runs).

Note: a budget of seconds cuts warm-up and repeats of slow settings (at least 5 remain); every row says how many there
were. `full` lifts the budget.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sentence_transformers import SentenceTransformer
from torch import Tensor

from distilvec.config.schema import Role
from distilvec.core.errors import DistilvecError
from distilvec.evaluation.memory import machine_facts, model_facts, random_tokens
from distilvec.evaluation.speed_tables import speed_tables as speed_tables
from distilvec.evaluation.timing import LEAST_REPEATS, Timing, interleaved, statistics_of
from distilvec.formats.onnx import OnnxEmbedder, export_copy, export_onnx, token_limit

ROLE_TOKENS: dict[Role, int] = {"query": 16, "document": 256}
BATCH_SIZES, LENGTHS = (1, 2, 4, 8, 16, 24, 32), (16, 32, 64, 128, 256, 512)
LIMIT_MS = 100.0
TIMED = "one batch from token ids to vectors, without tokenising; random tokens, no padding, fp32"
Encode = Callable[[Mapping[str, Tensor]], Any]
Progress = Callable[[str, int, int], None]


@dataclass(frozen=True)
class Setting:
    """What is timed: texts in a batch, and tokens a text by model. `role` is null in the sweep over lengths."""

    role: Role | None
    batch_size: int
    tokens: Mapping[str, int]


def measure_speed(
    models: Mapping[str, SentenceTransformer],
    backends: Sequence[str] = ("pytorch", "onnx"),
    batch_sizes: Sequence[int] = BATCH_SIZES,
    lengths: Sequence[int] = LENGTHS,
    warmup: int = 20,
    repeats: int = 200,
    budget_seconds: float = 2.0,
    full: bool = False,
    texts: Mapping[Role, Sequence[str]] | None = None,
    memory: bool = True,
    progress: Progress | None = None,
) -> dict[str, Any]:
    """The "speed" of report.json for models by name: machine, rows, models, ratio, ratios, settings, notes.

    Models are measured as their folders load (fp32, no packed layers) and alternate from run to run within a setting, so
    that noise hits all alike. `budget_seconds` bounds the measured runs of one model in one setting. `texts` are samples
    by role: a query then is as long as the mean query is for the model's own tokenizer. A length beyond a model's maximum
    is left out, a role's is cut there. `progress(what, steps done, all steps)`: a step is a setting or a model's memory.

    `ratio` compares "student" (else the last model) with "teacher" (else the first) on the first backend by role: the
    geometric mean over batch sizes of the two median latencies' quotients; `ratios` does so for all.
    `memory_mb` is the peak growth of a fresh process that loads the model and encodes the largest batch of the longest
    document under PyTorch; `megabytes` is the fp32 weights as saved. Both in units of 10^6 bytes.
    Errors: DistilvecError for no models, an unknown backend, sizes below 1 or fewer than 2 repeats. Without onnxruntime,
    or where a model does not export, `notes` say so and the other rows still come.
    """
    _check(models, backends, batch_sizes, lengths)
    timing = Timing(warmup, repeats, None if full else budget_seconds)
    notes: list[str] = []
    plain = {name: export_copy(model) for name, model in models.items()}
    settings = plan_settings(plain, batch_sizes, lengths, texts or {}, notes)
    with tempfile.TemporaryDirectory(prefix="distilvec-speed-") as folder:
        rows = _time_all(plain, backends, settings, timing, Path(folder), notes, progress)
        info = _facts_of_all(plain, settings, len(backends), memory, Path(folder), notes, progress)
    for name in info:
        largest = {
            backend: {role: largest_batch(rows, name, backend, role) for role in ROLE_TOKENS} for backend in backends
        }
        info[name] |= {"largest_batch_under_100_ms": largest[backends[0]], "largest_batch_by_backend": largest}
    reference = "teacher" if "teacher" in models else next(iter(models))
    ratios = {name: speed_ratios(rows, name, reference) for name in models if name != reference}
    compared = ratios.get("student") or next(reversed(ratios.values()), {})
    first = compared.get(backends[0], {})
    return {
        "machine": machine_facts(),
        "settings": {**asdict(timing), "least_repeats": LEAST_REPEATS, "timed": TIMED},
        "rows": rows,
        "models": info,
        "reference": reference,
        "ratio": {role: first[role]["ratio"] if role in first else None for role in ROLE_TOKENS},
        "ratios": ratios,
        "notes": notes,
    }


def plan_settings(
    models: Mapping[str, SentenceTransformer],
    batch_sizes: Sequence[int],
    lengths: Sequence[int],
    texts: Mapping[Role, Sequence[str]],
    notes: list[str],
) -> list[Setting]:
    """Every role at every batch size, then every length at batch size 1; what is cut or left out goes to `notes`."""
    limits = {name: token_limit(model) for name, model in models.items()}
    settings = []
    for role, usual in ROLE_TOKENS.items():
        asked = {
            name: _mean_tokens(model, role, texts[role]) if texts.get(role) else usual for name, model in models.items()
        }
        cut = {name: min(asked[name], limits[name] or asked[name]) for name in models}
        notes += [
            f"{name}: a {role} has {cut[name]} tokens, the most the model takes"
            for name in models
            if cut[name] < asked[name]
        ]
        settings += [Setting(role, size, cut) for size in batch_sizes]
    for length in lengths:
        fitting = {name: length for name, limit in limits.items() if limit is None or length <= limit}
        notes += [
            f"{name}: length {length} is left out, the model takes {limits[name]} tokens"
            for name in models
            if name not in fitting
        ]
        if fitting:
            settings.append(Setting(None, 1, fitting))
    return settings


def _time_all(
    models: Mapping[str, SentenceTransformer],
    backends: Sequence[str],
    settings: Sequence[Setting],
    timing: Timing,
    folder: Path,
    notes: list[str],
    progress: Progress | None,
) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    for part, backend in enumerate(backends):
        encoders = BACKENDS[backend](models, folder, notes)
        for number, setting in enumerate(settings):
            if progress:
                label = f"{backend}, {setting.batch_size} x {max(setting.tokens.values())} tokens"
                progress(label, part * len(settings) + number, len(backends) * len(settings) + len(models))
            rows += measure(backend, setting, encoders, models, timing)
    return rows


def _facts_of_all(
    models: Mapping[str, SentenceTransformer],
    settings: Sequence[Setting],
    backends: int,
    memory: bool,
    folder: Path,
    notes: list[str],
    progress: Progress | None,
) -> dict[str, dict[str, Any]]:
    """Every model's `model_facts`, its memory at its largest batch of documents."""
    largest = max(
        (setting for setting in settings if setting.role == "document"), key=lambda setting: setting.batch_size
    )
    info: dict[str, dict[str, Any]] = {}
    timed = backends * len(settings)
    for number, (name, model) in enumerate(models.items()):
        if progress:
            progress(f"size and memory of {name}", timed + number, timed + len(models))
        batch = largest.batch_size if memory else None
        info[name] = model_facts(
            model, folder / f"model-{number}", batch, largest.tokens[name], torch.get_num_threads()
        )
        if "problem" in (info[name]["memory"] or {}):
            notes.append(f"{name}: its memory could not be measured: {info[name]['memory']['problem']}")
    if progress:
        progress("speed", timed + len(models), timed + len(models))
    return info


# -- timing ----------------------------------------------------------------------------------------------------------


def measure(
    backend: str,
    setting: Setting,
    encoders: Mapping[str, Encode],
    models: Mapping[str, SentenceTransformer],
    timing: Timing,
) -> list[dict[str, Any]]:
    """One row for every model that has an encoder and takes the setting's length."""
    names = [name for name in setting.tokens if name in encoders]
    if not names:
        return []
    calls = [
        _call(encoders[name], random_tokens(models[name], setting.batch_size, setting.tokens[name])) for name in names
    ]
    seconds = interleaved(calls, timing)
    return [
        {
            "model": name,
            "backend": backend,
            "role": setting.role,
            "batch_size": setting.batch_size,
            "tokens": setting.tokens[name],
            **asdict(statistics_of(taken, setting.batch_size)),
        }
        for name, taken in zip(names, seconds, strict=True)
    ]


def pytorch_encoders(models: Mapping[str, SentenceTransformer], folder: Path, notes: list[str]) -> dict[str, Encode]:
    """The models' own forward passes."""

    def make(model: SentenceTransformer) -> Encode:
        def encode(tokens: Mapping[str, Tensor]) -> Any:
            with torch.inference_mode():
                return model(dict(tokens))["sentence_embedding"].numpy()

        return encode

    return {name: make(model) for name, model in models.items()}


def onnx_encoders(models: Mapping[str, SentenceTransformer], folder: Path, notes: list[str]) -> dict[str, Encode]:
    """The models through ONNX Runtime, exported to `folder`; a model that cannot be is left out and noted."""
    found: dict[str, Encode] = {}
    for number, (name, model) in enumerate(models.items()):
        try:
            found[name] = OnnxEmbedder(export_onnx(model, folder / f"{number}.onnx")).encode_tokens
        except DistilvecError as error:
            notes.append(f"{name}: no ONNX rows: {error}")
    return found


BACKENDS = {"pytorch": pytorch_encoders, "onnx": onnx_encoders}


# -- what follows from the rows --------------------------------------------------------------------------------------


def largest_batch(rows: Sequence[Mapping[str, Any]], model: str, backend: str, role: Role) -> int | None:
    """The largest measured batch whose median latency is at most 100 ms (REDACT, table 7: max N); None if none is."""
    fitting = (row["batch_size"] for row in _of(rows, model, backend, role) if row["median_ms"] <= LIMIT_MS)
    return max(fitting, default=None)


def speed_ratios(
    rows: Sequence[Mapping[str, Any]], model: str, reference: str
) -> dict[str, dict[str, dict[str, float]]]:
    """How many times faster the model is, by backend and role: the geometric mean over batch sizes, the lowest and the highest.

    Note: REDACT divides throughputs averaged over batch sizes, in which the largest batches weigh most.
    """
    ratios: dict[str, dict[str, dict[str, float]]] = {}
    for backend in dict.fromkeys(row["backend"] for row in rows):
        for role in ROLE_TOKENS:
            ours, theirs = (
                {row["batch_size"]: row["median_ms"] for row in _of(rows, who, backend, role)}
                for who in (model, reference)
            )
            if both := sorted(set(ours) & set(theirs)):
                quotients = np.array([theirs[size] / ours[size] for size in both])
                found = {
                    "ratio": float(np.exp(np.log(quotients).mean())),
                    "lowest": float(quotients.min()),
                    "highest": float(quotients.max()),
                }
                ratios.setdefault(backend, {})[role] = found
    return ratios


# -- small parts -----------------------------------------------------------------------------------------------------


def _of(rows: Sequence[Mapping[str, Any]], model: str, backend: str, role: Role) -> list[Mapping[str, Any]]:
    return [row for row in rows if (row["model"], row["backend"], row["role"]) == (model, backend, role)]


def _call(encode: Encode, tokens: Mapping[str, Tensor]) -> Callable[[], Any]:
    return lambda: encode(tokens)


def _mean_tokens(model: SentenceTransformer, role: Role, texts: Sequence[str]) -> int:
    """Mean length of the sample texts with their prompt, as the model cuts them, at least 1."""
    prompt = (model.prompts or {}).get(role) or ""
    limit = token_limit(model)
    rows = model[0].tokenizer([prompt + text for text in texts], truncation=limit is not None, max_length=limit)[
        "input_ids"
    ]
    return max(1, round(sum(len(row) for row in rows) / len(rows)))


def _check(
    models: Mapping[str, Any], backends: Sequence[str], batch_sizes: Sequence[int], lengths: Sequence[int]
) -> None:
    if not models:
        raise DistilvecError("[models] there is no model to measure. Name at least one.")
    if unknown := [name for name in backends if name not in BACKENDS]:
        raise DistilvecError(f"[backends] unknown backend {', '.join(unknown)}; expected one of {', '.join(BACKENDS)}.")
    if not backends or not batch_sizes or min([*batch_sizes, *lengths]) < 1:
        raise DistilvecError(
            f"[batch_sizes] expected at least one backend and one batch size, sizes and lengths of 1 or more; found {list(backends)}, "
            f"batch sizes {list(batch_sizes)}, lengths {list(lengths)}."
        )
