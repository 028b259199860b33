"""Latency, throughput, size and memory of teacher and student (REDACT, figure 11)."""

from __future__ import annotations

from functools import partial

from distilvec.report.figures import Panel, draw_lines
from distilvec.report.section import Block, Figure, Section, get, make_section, pairs
from distilvec.report.tables import Part, make_table

THRESHOLD = ("100 ms", 100.0)
SIZES = {
    "Measure": "name", "parameters, millions": ("parameters", 2, 1e-6), "of these token embeddings, millions": ("embedding_parameters", 2, 1e-6),
    "size on disk, MB": ("megabytes", 1), "memory, MB": ("memory_mb", 0),
    **{f"largest batch under 100 ms, {role}": (f"largest_batch_under_100_ms.{role}", 0) for role in ("query", "document")},
}  # fmt: skip
TIMINGS = {
    "Model": "model", "Backend": "backend", "Role": "role", "batch": ("batch_size", 0), "tokens": ("tokens", 0),
    "mean, ms": ("mean_ms", 2), "± std": ("std_ms", 2), "median, ms": ("median_ms", 2), "p99, ms": ("p99_ms", 2),
    "texts/s": ("texts_per_second", 1),
}  # fmt: skip


def section(report: Part) -> Section | None:
    """Return latency by batch size and by length, size and memory, and the machine."""
    speed, panels = get(report, "speed"), speed_panels(get(report, "speed.rows"))
    timings = make_table("timing-table", "Every timing", speed.get("rows") or (), TIMINGS)
    models = [{"name": name, **(found or {})} for name, found in get(speed, "models").items()]
    return make_section(
        "Speed and size",
        Figure("speed", "Latency", partial(draw_lines, panels, "milliseconds per batch", THRESHOLD), timings)
        if panels
        else None,
        make_table("model-table", "Size and memory", models, SIZES, across=True),
        pairs({"machine": speed.get("machine")}),
        Block("list", speed.get("notes")),
    )


def speed_panels(rows: list[Part]) -> list[Panel]:
    """Return a panel per role (milliseconds by batch size) and one by length; a panel needs two batch sizes or lengths."""
    panels = []
    for role in dict.fromkeys(row["role"] for row in rows):
        key, label = ("batch_size", "texts in the batch") if role else ("tokens", "tokens per text")
        of = sorted((row for row in rows if row["role"] == role), key=lambda row: row[key])
        lines: dict[str, list[tuple[float, ...]]] = {}
        for row in of:
            lines.setdefault(f"{row['model']}, {row['backend']}", []).append(
                (row[key], row["mean_ms"], row.get("std_ms") or 0.0)
            )
        title = (
            f"{role}, {max(row['tokens'] for row in of)} tokens"
            if role
            else f"by length, batch of {of[0]['batch_size']}"
        )
        panels += [Panel(title, label, lines, "xy")] if len({row[key] for row in of}) > 1 else []
    return panels
