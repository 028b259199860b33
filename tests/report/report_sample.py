"""A whole report.json of one run with every part filled: small, the same every time, with figures of a believable size."""  # noqa: E501

from __future__ import annotations

import math
from functools import cache
from typing import Any

import numpy as np

from distilvec.evaluation.overlap import Judgement, Overlap, OverlapShare, SourceOverlap
from distilvec.report.json_values import from_json
from distilvec.report.values import Report
from tests.report.expert_sample import routing_figures, sample_experts
from tests.report.vocabulary_sample import sample_vocabulary

TASKS: dict[str, tuple[Any, ...]] = {  # type, main metric, domain, rows, teacher, untrained, student, asymmetric
    "stsb": ("sts", "spearman", "in", 1379, 82.03, 41.87, 80.92, 81.35),
    "sts13": ("sts", "spearman", "out", 1500, 80.61, 39.02, 79.88, 80.05),
    "mrpc": ("pair", "average_precision", "out", 1725, 84.90, 74.32, 84.41, 84.66),
    "banking77": ("classification", "accuracy", "out", 3080, 91.72, 71.25, 92.04, 89.87),
    "tweet_sentiment": ("classification", "accuracy", "in", 2000, 63.40, 52.15, 63.05, 62.70),
    "cranfield": ("retrieval", "ndcg@10", "in", 185, 47.21, 8.44, 45.56, 46.48),
    "patent_mini": ("retrieval", "ndcg@10", "out", 240, 61.18, 12.30, 59.94, 60.71),
}
OTHERS = {
    "spearman": ("pearson",),
    "average_precision": ("best_accuracy", "best_f1"),
    "accuracy": ("macro_f1",),
    "ndcg@10": ("recall@100", "mrr@10"),
}
COLUMNS = ("teacher", "untrained", "student", "asymmetric")
WIDTHS = (32, 64, 128, 192, 256, 320, 384)
PRECISIONS = {
    "float32": (0.0, 0.0),
    "float16": (0.01, 0.0),
    "int8": (0.35, 0.1),
    "binary": (3.0, 9.0),
    "binary_rescored": (1.2, 4.0),
}
STEPS, EVERY = 2400, 40
WATCHED = {"watched": "distance", "better": "lower"}


@cache
def _report() -> dict[str, Any]:
    scores = _scores()
    return {
        "format": 4,
        "fingerprint": "5f0c1d2e3a4b5968",
        "name": "english",
        "created": "2026-11-21T10:00:00+00:00",
        "verdict": _verdict(scores),
        "scores": scores,
        "failures": [
            {
                "task": "wic",
                "column": None,
                "message": "suite 'english', task 'wic': file tests/wic.jsonl was not found; expected JSON lines.",
            },
            {
                "task": "qnli",
                "column": "untrained",
                "message": "model 'untrained' gave vectors with NaN for 3 of 980 texts; check its weights.",
            },
        ],
        "averages": {column: _averages(column) for column in COLUMNS},
        "intervals": {column: _intervals(column) for column in ("student", "asymmetric")},
        "changes": {"training": _intervals("student"), "documents": _intervals("asymmetric")},
        "overlap": sample_judgement().to_json(),
        "agreement": {task: _agreement(task) for task in ("cranfield", "patent_mini")},
        "compression": {"widths": list(WIDTHS), "precisions": list(PRECISIONS), "rows": _compression()},
        "margin": _margin(),
        "speed": _speed(),
        "history": _history(),
        "experts": sample_experts(),
        "vocabulary": sample_vocabulary(),
        "texts": _texts(),
        "record": _record(scores),
        "recipe": "name: english\nteacher: {model: all-MiniLM-L6-v2}\nstudent: {model: teacher, layers: 3}\nmethod: {name: redact}\n"  # noqa: E501
        "train: {epochs: 3, batch_size: 32, learning_rate: 1.0e-4}  # <- 'the paper' & ours\n",
    }


def sample_report() -> dict[str, Any]:
    """A fresh copy that a test may change."""
    import copy

    return copy.deepcopy(_report())


def as_report(content: dict[str, Any]) -> Report:
    """The report of a JSON content; None is the same as a part that is not there."""
    return from_json(Report, {key: value for key, value in content.items() if value is not None})


def sample_judgement() -> Judgement:
    """A student with two sources, which fits its teacher's vectors in part."""

    def shares(alone: float, among: float, half: float = 0.02) -> Overlap:
        return Overlap(*(OverlapShare(mean, mean - half, mean + half) for mean in (alone, among)), 0.987)

    return Judgement(
        origin="teacher",
        queries=500,
        candidates=10_000,
        texts=26_112,
        similarity="cosine",
        student=shares(0.58, 0.71),
        start=shares(0.22, 0.28),
        gain=shares(0.36, 0.43),
        trained=shares(0.585, 0.715),
        sources=(
            SourceOverlap("english_text", 380, shares(0.59, 0.72, 0.03)),
            SourceOverlap("english_queries", 120, shares(0.55, 0.68, 0.04)),
        ),
        cosine=0.91,
    )


def _scores() -> dict[str, list[dict[str, Any]]]:
    columns: dict[str, list[dict[str, Any]]] = {column: [] for column in COLUMNS}
    for task, (kind, metric, domain, rows, *values) in TASKS.items():
        for column, value in zip(COLUMNS, values, strict=True):
            metrics = {metric: value} | {
                name: round(value - 1.7 * (number + 1), 2) for number, name in enumerate(OTHERS[metric])
            }
            warnings = ["2 of 1400 documents are empty and rank last"] if task == "cranfield" else []
            columns[column].append(
                {
                    "task": task, "type": kind, "metric": metric, "value": value, "metrics": metrics, "seconds": round(rows / 400, 2),  # noqa: E501
                    "rows": rows, "warnings": warnings, "domain": domain,
                }
            )  # fmt: skip
    return columns


def _averages(column: str) -> dict[str, float]:
    place = 4 + COLUMNS.index(column)
    parts = {
        "all": list(TASKS.values()),
        **{domain: [row for row in TASKS.values() if row[2] == domain] for domain in ("in", "out")},
    }
    return {name: round(float(np.mean([row[place] for row in rows])), 4) for name, rows in parts.items()}


def _verdict(scores: dict[str, list[dict[str, Any]]]) -> dict[str, Any]:
    mean = {column: _averages(column)["all"] for column in COLUMNS}
    changes = {
        ours["task"]: 100 * (ours["value"] / theirs["value"] - 1)
        for ours, theirs in zip(scores["student"], scores["teacher"], strict=True)
    }
    worst = min(changes, key=lambda task: changes[task])
    kept, change = 100 * mean["student"] / mean["teacher"], changes[worst]
    return {
        "text": f"keeps {kept:.1f} % of the teacher, 2.1 times faster, 1.3 times smaller; loses most on {worst} ({change:.1f} %)",  # noqa: E501
        "retention": round(kept, 4),
        "asymmetric_retention": round(100 * mean["asymmetric"] / mean["teacher"], 4),
        "times_faster": 2.1,
        "times_smaller": 1.3,
        "worst_task": worst,
        "worst_change": round(change, 4),
    }


def _intervals(column: str) -> dict[str, list[float]]:
    place, found = 4 + COLUMNS.index(column), {}
    for task, row in TASKS.items():
        change, half = row[place] - row[4], 0.35 + 22 / math.sqrt(row[3])
        found[task] = [
            round(change - half, 3),
            round(change + half, 3),
            round(math.erfc(abs(change) / half * 1.96 / math.sqrt(2)), 4),
        ]
    mean = _averages(column)["all"] - _averages("teacher")["all"]
    return found | {"average": [round(mean - 0.41, 3), round(mean + 0.43, 3), 0.004]}


def _agreement(task: str) -> dict[str, Any]:
    generator = np.random.default_rng(len(task))
    columns = ("teacher", "asymmetric", "student")

    def ranking(column: str) -> list[dict[str, Any]]:
        noise = 0.0 if column == "teacher" else 1.5 if column == "asymmetric" else 3.0
        order = np.argsort(np.arange(14) + noise * generator.normal(size=14))[:10]
        return [
            {
                "rank": rank, "score": round(0.71 - 0.021 * rank, 4), "id": str(100 + int(row)), "relevant": bool(row in (0, 2, 5)),  # noqa: E501
                "text": f"document {100 + int(row)}: the theory of thin wings <in> supersonic & hypersonic flow, part {int(row) + 1}",  # noqa: E501
            }
            for rank, row in enumerate(order, 1)
        ]  # fmt: skip

    return {
        "models": {
            "asymmetric": {"overlap@10": 0.87, "kendall_tau": 0.71},
            "student": {"overlap@10": 0.79, "kendall_tau": 0.6},
        },
        "queries": _listed({name: ranking(name) for name in columns}),
    }


def _texts() -> dict[str, Any]:
    sources = [
        {"name": name, "texts": 400, "distance": at, "std": 0.08} for name, at in (("news", 0.31), ("<qa>", 0.42))
    ]
    lengths = [
        {"from": low, "to": high, "texts": 200, "distance": at, "std": 0.09}
        for low, high, at in ((1, 8, 0.44), (9, 16, 0.37), (17, 32, 0.33), (33, 64, 0.3))
    ]
    worst = [
        {"text": f"text {number}: what is <b>far</b> & why", "source": ("news", "<qa>")[number % 2],
         "tokens": 9 + number, "distance": 0.9 - 0.01 * number}
        for number in range(20)
    ]  # fmt: skip
    nearer = [{**row, "distance": row["distance"] - 0.04} for row in sources[:1] + lengths]
    trained = {"rows": 2000, "mean": 0.32, "by_source": nearer[:1], "by_length": nearer[1:]}
    return {
        "rows": 800, "mean": 0.365, "by_source": sources, "by_length": lengths, "worst": worst, "trained": trained,
    }  # fmt: skip


def _listed(found: dict[str, list[dict[str, Any]]]) -> dict[str, Any]:
    rows = []
    for number, change in enumerate((-40.0, 0.0, 10.0), 1):
        row: dict[str, Any] = {
            "query": f"listed query {number}?", "overlap": {"student": 0.8, "asymmetric": 0.9},
            "scores": {"teacher": 60.0, "student": 60.0 + change, "asymmetric": 61.0},
        }  # fmt: skip
        ids = {name: [entry["id"] for entry in entries] for name, entries in found.items()}
        rows.append(row | ({"found": ids, "relevant": ["100", "102"]} if number < 3 else {}))
    texts = {entry["id"]: entry["text"] for entries in found.values() for entry in entries}
    return {"count": 185, "rows": rows, "documents": texts}


def _compression() -> list[dict[str, Any]]:
    rows = []
    for task in ("stsb", "mrpc", "cranfield"):
        for column in ("teacher", "student", "asymmetric"):
            whole = TASKS[task][4 + COLUMNS.index(column)]
            for precision, (loss, narrow) in PRECISIONS.items():
                for width in WIDTHS:
                    lost = 3.2 * (math.sqrt(384 / width) - 1) + loss + narrow * (32 / width)
                    row = {
                        "task": task,
                        "metric": TASKS[task][1],
                        "column": column,
                        "width": width,
                        "precision": precision,
                    }
                    rows.append(row | {"value": round(whole - lost, 3)})
    return rows


def _margin() -> dict[str, Any]:
    generator = np.random.default_rng(5)
    distances = np.round(0.29 + 0.5 * np.exp(-np.arange(10) / 2.6), 4)
    names = {task: TASKS[task][4] for task in ("stsb", "cranfield")} | {"average": _averages("teacher")["all"]}
    scores = {
        name: np.round(whole - 14.0 * (distances - 0.32) + 0.35 * generator.normal(size=10), 3)
        for name, whole in names.items()
    }
    points = [
        {
            "step": 240 * (place + 1),
            "distance": float(distance),
            "scores": {name: float(values[place]) for name, values in scores.items()},
        }
        for place, distance in enumerate(distances)
    ]
    fits = {}
    for name, values in scores.items():
        slope, intercept = np.polyfit(distances, values, 1)
        grid = np.linspace(float(distances.min()) - 0.03, float(distances.max()), 24)
        half = 0.22 + 1.6 * np.abs(grid - distances.mean())
        fits[name] = {
            "teacher": names[name], "slope": round(float(slope), 4), "intercept": round(float(intercept), 4), "r2": 0.97, "p": 1e-6,  # noqa: E501
            "crossing": None if name == "cranfield" else 0.3207,
            "crossing_low": None if name == "cranfield" else 0.2951,
            "margin": None if name == "cranfield" else 0.3415,
            "line": [
                dict(zip(("distance", "score", "low", "high"), np.round([d, y, y - h, y + h], 4).tolist(), strict=True))
                for d, y, h in zip(grid, slope * grid + intercept, half, strict=True)
            ],
        }  # fmt: skip
    return {"points": points, "left_out": [80, 160], "fits": fits}


def _speed() -> dict[str, Any]:
    rows = []
    for model, unit in (("teacher", 1.0), ("student", 0.48)):
        for backend, factor in (("pytorch", 1.0), ("onnx", 0.82)):
            for role, tokens in (("query", 16), ("document", 128)):
                rows += [
                    _timing(model, backend, role, size, tokens, unit * factor) for size in (1, 2, 4, 8, 16, 24, 32)
                ]
            rows += [_timing(model, backend, None, 1, tokens, unit * factor) for tokens in (16, 32, 64, 256, 512)]
    return {
        "machine": {"processor": "Intel Xeon @ 2.10GHz", "cores": 2, "threads": 2, "system": "Linux-6.8-x86_64", "torch": "2.13.0+cpu"},  # noqa: E501
        "rows": rows,
        "models": {
            "teacher": {
                "parameters": 22_713_216, "embedding_parameters": 11_918_592, "megabytes": 90.9, "memory_mb": 412.0,
                "largest_batch_under_100_ms": {"query": 24, "document": 4},
            },
            "student": {
                "parameters": 17_389_824, "embedding_parameters": 11_918_592, "megabytes": 69.6, "memory_mb": 371.0,
                "largest_batch_under_100_ms": {"query": 32, "document": None},
            },
        },
        "ratio": {"query": 2.1, "document": 2.0},
    }  # fmt: skip


def _timing(model: str, backend: str, role: str | None, size: int, tokens: int, unit: float) -> dict[str, Any]:
    mean = unit * (3.0 + 0.17 * size * tokens * (1 + tokens / 900))
    return {
        "model": model, "backend": backend, "role": role, "batch_size": size, "tokens": tokens, "mean_ms": round(mean, 3),  # noqa: E501
        "median_ms": round(0.98 * mean, 3), "p99_ms": round(1.21 * mean, 3), "std_ms": round(0.06 * mean, 3),
        "texts_per_second": round(1000 * size / mean, 2),
    }  # fmt: skip


def _history() -> list[dict[str, Any]]:
    generator, lines = np.random.default_rng(9), []
    lines.append({"step": 0, "epoch": 0.0, "eval/distance": 0.9712, "eval/cosine": 0.4521} | WATCHED)
    for step in range(EVERY, STEPS + 1, EVERY):
        distance = 0.31 + 0.6 * math.exp(-step / 420) + 0.012 * float(generator.normal())
        relations = 0.05 + 0.11 * math.exp(-step / 300) + 0.003 * float(generator.normal())
        line = {"step": step, "epoch": round(step / 800, 4), "train/loss": distance + 0.5 * relations, "train/loss_distance": distance,  # noqa: E501
                "train/loss_relations": relations, "train/learning_rate": 1e-4 * min(step / 240, 1) * (1 - 0.9 * step / STEPS),  # noqa: E501
                "train/texts_per_second": 96.0 + float(generator.normal())}  # fmt: skip
        lines.append({key: round(value, 7) for key, value in line.items()} | routing_figures(step))
        if step % 240 == 0:
            found = 0.3 + 0.55 * math.exp(-step / 500)
            evaluated = {"eval/distance": round(found, 4), "eval/cosine": round(1 - found**2 / 2, 4)} | WATCHED
            lines.append({"step": step, "epoch": round(step / 800, 4)} | evaluated)
    return lines


def _record(scores: dict[str, list[dict[str, Any]]]) -> dict[str, Any]:
    return {
        "format": 1,
        "name": "english",
        "teacher": {
            "name": "all-MiniLM-L6-v2", "fingerprint": "90ab12cd34ef", "width": 384, "prompts": {}, "normalized": True,
            "parameters": 22_713_216,
        },
        "student": {
            "name": "english", "base_model": "sentence-transformers/all-MiniLM-L6-v2", "architecture": "BertModel", "layers": 3,  # noqa: E501
            "kept_layers": None, "hidden_width": 384, "width": 384, "pooling": "mean", "dense": False, "normalized": True,  # noqa: E501
            "max_length": 256, "parameters": 17_389_824, "embedding_parameters": 11_918_592, "prompts": {}, "similarity": "cosine",  # noqa: E501
        },
        "data": {
            "fingerprint": "77aa88bb", "train_rows": 25_600, "holdout_rows": 512,
            "sources": [
                {"name": "english_text", "rows": 20_000, "role": "document", "language": "en"},
                {"name": "english_queries", "rows": 6_112, "role": "query", "language": "en"},
            ],
        },
        "method": {
            "name": "redact", "summary": "The L2 distance to the teacher's vectors.", "options": {},
            "weights": {"distance": 1.0, "relations": 0.5},
            "citation": "@article{redact, title={REDACT}, year={2025}}",
        },
        "training": {
            "steps": STEPS, "texts": 76_800, "epochs": 3, "batch_size": 32, "learning_rate": 1e-4, "final_learning_rate": 1e-5,  # noqa: E501
            "schedule": "linear", "weight_decay": 0.01, "update": "plain", "precision": "fp32", "seed": 0, "best_step": 2400, "minutes": 41.3,  # noqa: E501
        },
        "watched": {"name": "distance", "value": 0.3045, "higher_is_better": False},
        "metrics": {"distance": 0.3045, "cosine": 0.9536, "untrained_distance": 0.9712},
        "scores": {name: [{key: s[key] for key in ("task", "type", "metric", "value")} for s in found] for name, found in scores.items()},  # noqa: E501
        "versions": {"distilvec": "0.1.0", "python": "3.11.9", "torch": "2.13.0+cpu", "sentence-transformers": "6.2.0"},
        "teacher_compatible": True,
        "overlap": sample_judgement().to_json(),
    }  # fmt: skip
