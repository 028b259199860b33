"""Measurements of speed as tables for a terminal."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from distilvec.evaluation.aggregate import ABSENT


def speed_tables(report: Mapping[str, Any]) -> list[tuple[str, list[str], list[list[str]]]]:
    """The result of `measure_speed` as tables for a terminal: (title, header, rows)."""
    tables = [("Models", *_model_table(report)), ("Summary", *_summary_table(report))]
    header = ["Model", "Batch", "Tokens", "Mean ms", "± std", "Median ms", "p99 ms", "Texts/s", "± std", "Repeats"]
    groups: dict[tuple[str, str | None], list[list[str]]] = {}
    for row in report["rows"]:
        figures = [f"{row[key]:.{digits}f}" for key, digits in _FIGURES.items()]
        cells = [row["model"], str(row["batch_size"]), str(row["tokens"]), *figures, str(row["repeats"])]
        groups.setdefault((row["backend"], row["role"]), []).append(cells)
    titles = {"query": "queries by batch size", "document": "documents by batch size", None: "by length, batch size 1"}
    return tables + [(f"{backend}: {titles[role]}", header, rows) for (backend, role), rows in groups.items()]


_FIGURES = {"mean_ms": 2, "std_ms": 2, "median_ms": 2, "p99_ms": 2, "texts_per_second": 1, "texts_per_second_std": 1}


def _model_table(report: Mapping[str, Any]) -> tuple[list[str], list[list[str]]]:
    rows = []
    for name, info in report["models"].items():
        rest = info["parameters"] - info["embedding_parameters"]
        memory = ABSENT if info["memory_mb"] is None else f"{info['memory_mb']:.0f}"
        rows.append([name, f"{info['parameters'] / 1e6:.2f}", f"{rest / 1e6:.2f}", f"{info['megabytes']:.1f}", memory])
    return ["Model", "Parameters (M)", "without embeddings (M)", "Weights (MB)", "Peak memory (MB)"], rows


def _summary_table(report: Mapping[str, Any]) -> tuple[list[str], list[list[str]]]:
    """REDACT's table 7: the smallest batch's latency, the largest batch in time, and how many times faster than the reference."""
    reference, rows = report["reference"], []
    for backend in dict.fromkeys(row["backend"] for row in report["rows"]):
        for role in ("query", "document"):
            for name, info in report["models"].items():
                of = [
                    row
                    for row in report["rows"]
                    if (row["model"], row["backend"], row["role"]) == (name, backend, role)
                ]
                found = sorted(of, key=lambda row: row["batch_size"])
                if not found:
                    continue
                ratio = report["ratios"].get(name, {}).get(backend, {}).get(role)
                faster = f"{ratio['ratio']:.2f} ({ratio['lowest']:.2f}-{ratio['highest']:.2f})" if ratio else ABSENT
                latency = f"{found[0]['median_ms']:.2f} ± {found[0]['std_ms']:.2f}"
                largest = info["largest_batch_by_backend"][backend][role]
                rows.append(
                    [name, backend, role, latency, str(largest or ABSENT), "1" if name == reference else faster]
                )
    return [
        "Model",
        "Backend",
        "Role",
        "Smallest batch, ms",
        "Largest batch in 100 ms",
        f"Times faster than {reference} (range)",
    ], rows
