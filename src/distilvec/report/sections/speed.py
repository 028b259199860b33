"""Latency, throughput, size and memory of teacher and student (REDACT, figure 11)."""

from __future__ import annotations

from collections.abc import Sequence
from operator import itemgetter

from distilvec.evaluation.memory import ModelSize
from distilvec.evaluation.speed import Speed, SpeedRow
from distilvec.report.figures import LevelLine, LineLook, LinePoint, lines_figure
from distilvec.report.section import Block, PageSection, make_section, pairs
from distilvec.report.tables import Table, make_table, to_text
from distilvec.report.values import Report

THRESHOLD = LevelLine("100 ms", 100.0)
SIZES = {
    "Measure": "name", "parameters, millions": ("size.parameters", 2, 1e-6),
    "of these token embeddings, millions": ("size.embedding_parameters", 2, 1e-6),
    "size on disk, MB": ("size.megabytes", 1), "memory, MB": ("size.memory_mb", 0),
    "queries in 100 ms": "queries", "documents in 100 ms": "documents",
}  # fmt: skip
TIMINGS = {
    "Model": "model", "Backend": "backend", "Role": "role", "batch": ("batch_size", 0), "tokens": ("tokens", 0),
    "mean, ms": ("mean_ms", 2), "± std": ("std_ms", 2), "median, ms": ("median_ms", 2), "p99, ms": ("p99_ms", 2),
    "texts/s": ("texts_per_second", 1),
}  # fmt: skip
RATIOS = {
    "Model": "model", "Backend": "backend", "Role": "role", "times faster": ("ratio.ratio", 2),
    "lowest": ("ratio.lowest", 2), "highest": ("ratio.highest", 2),
}  # fmt: skip


def speed_tables(speed: Speed) -> tuple[Table, Table, Table]:
    """Return sizes of the models, ratios to the reference (geometric means over batch sizes), and every timing."""
    models = []
    for name, size in speed.models.items():
        queries, documents = (largest_batch_text(size, speed.rows, name, role) for role in ("query", "document"))
        models.append({"name": name, "size": size, "queries": queries, "documents": documents})
    ratios = []
    for model, by_backend in speed.ratios.items():
        for backend, by_role in by_backend.items():
            for role, ratio in by_role.items():
                ratios.append({"model": model, "backend": backend, "role": role, "ratio": ratio})
    return (
        make_table("model-table", "Size and memory", models, SIZES, across=True),
        make_table("ratio-table", f"Speed against {speed.reference}", ratios, RATIOS),
        make_table("timing-table", "Every timing", speed.rows, TIMINGS),
    )


def largest_batch_text(size: ModelSize, rows: Sequence[SpeedRow], name: str, role: str) -> str | None:
    """Return the largest batch within 100 ms in words: "8 or more" if no larger one was tried.

    It is that of the first backend, as the sizes are.
    """
    largest = size.largest_batch_under_100_ms.get(role)
    if largest is None:
        return None
    first = rows[0].backend if rows else ""
    tried = [row.batch_size for row in rows if (row.model, row.backend, row.role) == (name, first, role)]
    return f"{largest:,}" if largest < max(tried, default=0) else f"{largest:,} or more"


def speed_text(speed: Speed) -> str:
    """Return the tables for a terminal, and the notes; without empty tables: one model has no ratios."""
    parts = [f"\n{table.caption}\n{to_text(table)}" for table in speed_tables(speed) if table.rows]
    return "\n".join([*parts, *(f"note: {note}" for note in speed.notes)])


def section(report: Report) -> PageSection | None:
    """Return latency by batch size and by length, size and memory, and the machine."""
    speed = report.speed
    if speed is None:
        return None
    points: list[LinePoint] = []
    x_titles: dict[str, str] = {}
    for role in dict.fromkeys(row.role for row in speed.rows):
        rows = [row for row in speed.rows if row.role == role]
        if role:
            panel, x_title = f"{role}, {max(row.tokens for row in rows)} tokens", "texts in the batch"
            sizes = [row.batch_size for row in rows]
        else:
            panel, x_title = f"by length, batch of {rows[0].batch_size}", "tokens per text"
            sizes = [row.tokens for row in rows]
        if len(set(sizes)) < 2:
            continue
        x_titles[panel] = x_title
        for size, row in sorted(zip(sizes, rows, strict=True), key=itemgetter(0)):
            points.append(LinePoint(panel, f"{row.model}, {row.backend}", size, row.mean_ms, row.std_ms))
    models, ratios, timings = speed_tables(speed)
    look = LineLook(y="milliseconds per batch", log="xy", level=THRESHOLD)
    return make_section(
        "Speed and size",
        lines_figure("speed", "Latency", points, x_titles, timings, look),
        models,
        ratios,
        pairs(speed.machine, "Machine"),
        Block("list", speed.notes),
    )
