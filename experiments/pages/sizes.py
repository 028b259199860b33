"""docs/sizes.md: students by size, and what a corpus takes by the rates that the benchmarks measured."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from benchmarks.markdown import markdown_table
from distilvec.core.log import duration
from experiments.design_rule import table as design_table
from experiments.pages.parts import STAR, Parts, main_students, read, tables
from experiments.score_table import modes_table

DIM, KEY_BYTES = 384, 16  # all-MiniLM-L6-v2's vectors; a text's key in the cache
SIZES = (10_000, 100_000, 1_000_000, 10_000_000)


def parts() -> Parts:
    """The marked parts of docs/sizes.md."""
    return {
        "docs/sizes.md": {
            "students": students(),
            "design": tables(("design_rule", design_table)),
            "hardware": hardware(),
        }
    }


def students() -> str:
    """What the students keep of the teacher, in both modes."""
    records = main_students()
    return f"{modes_table(records)}\n\n{STAR}" if records else ""


def hardware() -> str:
    """Sizes and hours of a corpus, and the minutes of the runs that were measured."""
    training, caching, memory = (read(name) for name in ("training", "caching", "memory"))
    if not training or not caching or not memory:
        return ""
    runs = {"`quickstart`": read("quickstart")}
    for name, record in main_students("8m", "5m", "5m-rank").items():  # the narrow ones had no core of their own
        runs[f"`{'small_' * name[0].isdigit()}english`, {name}"] = record
    return hardware_table(training, caching, memory, {name: record for name, record in runs.items() if record})


def hardware_table(
    training: Mapping[str, Any],
    caching: Mapping[str, Any],
    memory: Mapping[str, Any],
    runs: Mapping[str, Mapping[str, Any]],
) -> str:
    """Two tables as Markdown: what a corpus takes at the measured rates, and runs as they were measured."""
    cached = caching["texts_per_second"]
    trained = {name: training[name]["texts_per_second"]["ours"] for name in ("fp32", "bf16")}
    rates = [cached["ours_fp32"], cached["ours_bf16"], trained["fp32"], trained["bf16"]]
    size_rows = []
    for size in SIZES:
        disk = size * (2 * DIM + KEY_BYTES)
        size_rows.append([f"{size:,}", *(duration(size / rate) for rate in rates), f"{disk / 1e6:,.0f} MB"])
    most = max(max(part.values()) for part in memory["peak_mb"].values())
    setting = (
        f"Two CPU cores ({training['fp32']['machine']}), teacher {caching['model']}, student of three of its "
        f"layers, short English texts ({caching['text_origin']}). "
        f"Rates: {cached['ours_fp32']:.0f} and {cached['ours_bf16']:.0f} texts/s "
        f"for the teacher, {trained['fp32']:.0f} and {trained['bf16']:.0f} for training. With a tiny random model "
        f"(`python -m benchmarks.memory`), memory of the process did not exceed {most:.0f} MB at 300,000 texts; "
        "weights and batches of a real model come on top."
    )
    run_rows = []
    for name, record in runs.items():
        part = record["training"]
        parameters = f"{record['student']['parameters'] / 1e6:.1f} M"
        run_rows.append([name, f"{part['texts']:,}", parameters, f"{part['minutes']:.0f}"])
    head = ["texts", "teacher, once, fp32", "bf16", "one pass of training, fp32", "bf16", "cache on disk"]
    tables = [
        markdown_table(head, size_rows, columns="rrrrrr"),
        setting,
        markdown_table(["run", "texts seen", "parameters", "minutes of training"], run_rows),
    ]
    return "\n\n".join(tables)
