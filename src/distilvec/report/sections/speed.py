"""Latency, throughput, size and memory of teacher and student (REDACT, figure 11)."""

from __future__ import annotations

from collections.abc import Sequence
from operator import itemgetter
from typing import Any

from distilvec.report.figures import lines_figure
from distilvec.report.section import Block, Section, get, make_section, pairs
from distilvec.report.tables import Part, Table, lookup, make_table, to_text

THRESHOLD = ("100 ms", 100.0)
SIZES = {
    "Measure": "name", "parameters, millions": ("parameters", 2, 1e-6),
    "of these token embeddings, millions": ("embedding_parameters", 2, 1e-6),
    "size on disk, MB": ("megabytes", 1), "memory, MB": ("memory_mb", 0),
    "queries in 100 ms": "queries", "documents in 100 ms": "documents",
}  # fmt: skip
TIMINGS = {
    "Model": "model", "Backend": "backend", "Role": "role", "batch": ("batch_size", 0), "tokens": ("tokens", 0),
    "mean, ms": ("mean_ms", 2), "± std": ("std_ms", 2), "median, ms": ("median_ms", 2), "p99, ms": ("p99_ms", 2),
    "texts/s": ("texts_per_second", 1),
}  # fmt: skip


RATIOS = {
    "Model": "model", "Backend": "backend", "Role": "role", "times faster": ("ratio", 2), "lowest": ("lowest", 2),
    "highest": ("highest", 2),
}  # fmt: skip


def tables(speed: Part) -> tuple[Table, Table, Table]:
    """Return sizes of the models, ratios to the reference (geometric means over batch sizes), and every timing."""
    rows = speed.get("rows") or []
    models = [
        {
            "name": name,
            **(found or {}),
            "queries": largest_batch(found, rows, name, "query"),
            "documents": largest_batch(found, rows, name, "document"),
        }
        for name, found in get(speed, "models").items()
    ]
    ratios = [
        {"model": model, "backend": backend, "role": role, **ratio}
        for model, backends in get(speed, "ratios").items()
        for backend, roles in backends.items()
        for role, ratio in roles.items()
    ]
    return (
        make_table("model-table", "Size and memory", models, SIZES, across=True),
        make_table("ratio-table", f"Speed against {speed.get('reference')}", ratios, RATIOS),
        make_table("timing-table", "Every timing", rows, TIMINGS),
    )


def largest_batch(model: Part | None, rows: Sequence[Part], name: str, role: str) -> str | None:
    """Return the largest batch within 100 ms in words: "8 or more" if no larger one was tried."""
    largest = lookup(model or {}, f"largest_batch_under_100_ms.{role}")
    if largest is None:
        return None
    sizes = [row["batch_size"] for row in rows if row["model"] == name and row["role"] == role]
    return f"{largest:,}" if largest < max(sizes, default=0) else f"{largest:,} or more"


def speed_text(speed: Part) -> str:
    """Return the tables for a terminal, and the notes; without empty tables: one model has no ratios."""
    found = [f"\n{table.caption}\n{to_text(table)}" for table in tables(speed) if table.rows]
    return "\n".join([*found, *(f"note: {remark}" for remark in speed.get("notes") or [])])


def section(report: Part) -> Section | None:
    """Return latency by batch size and by length, size and memory, and the machine."""
    speed, points, x = get(report, "speed"), list[tuple[Any, ...]](), {}
    rows = speed.get("rows") or []
    for role in dict.fromkeys(row["role"] for row in rows):
        key = "batch_size" if role else "tokens"
        of = sorted((row for row in rows if row["role"] == role), key=itemgetter(key))
        title = (
            f"{role}, {max(row['tokens'] for row in of)} tokens"
            if role
            else f"by length, batch of {of[0]['batch_size']}"
        )
        if len({row[key] for row in of}) > 1:
            x[title] = "texts in the batch" if role else "tokens per text"
            points += [
                (title, f"{row['model']}, {row['backend']}", row[key], row["mean_ms"], row.get("std_ms") or 0.0)
                for row in of
            ]
    models, ratios, timings = tables(speed)
    return make_section(
        "Speed and size",
        lines_figure("speed", "Latency", points, x, timings, y="milliseconds per batch", log="xy", level=THRESHOLD),
        models,
        ratios,
        pairs(get(speed, "machine"), "Machine"),
        Block("list", speed.get("notes")),
    )
