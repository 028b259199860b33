"""The table of results/step_cost.json (benchmarks/step_cost.py of commit 0e823248): what a step costs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from benchmarks.markdown import markdown_table

MARKS = {
    "time": {
        "talas_plain": ("simcse", 1.15),
        "talas": ("talas_plain", 1.95),
        "emo": ("task", 1.35),
        **dict.fromkeys(
            ["distillmoe", "distillmoe_two_layers", "distillmoe_embedding", "distillmoe_headless"], ("task", 1.35)
        ),
    },
    "memory": {"talas_plain": ("simcse", 1.08)},
}


def cost_table(report: Mapping[str, Any]) -> str:
    """Time and memory of a step by method and precision, as the paper's table 3, and the ratios that have a mark."""
    lines = []
    for name, entry in report.items():
        for precision, part in precisions(entry).items():
            cells = [f"{part[key]:.0f}" for key in ("ms", "mean_mb", "peak_mb", "std_mb")]
            lines.append([name, precision, *cells])
    head = ["method", "precision", "ms a step", "mean MB", "peak MB", "std MB"]
    table = markdown_table(head, lines, columns="llrrrr")
    notes = []
    for what, marks in MARKS.items():
        for name, (other, mark) in marks.items():
            for precision, part in precisions(report[name]).items() if name in report else ():
                if other in part.get(f"{what}_ratio", {}):
                    notes.append(
                        f"- {what} of `{name}` over `{other}`, {precision}: {part[f'{what}_ratio'][other]:.2f} "
                        f"(target: {mark})"
                    )
    for name, entry in report.items():
        for precision, part in precisions(entry).items():
            if "weight_passes" in part:
                share = f"{100 * part['weight_passes']:.1f}% of a step"
                notes.append(f"- perturbing and restoring the weights, `{name}`, {precision}: {share} (target: 5%)")
    return "\n\n".join([table, "\n".join(notes)]) if notes else table


def precisions(entry: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    """The figures of a method by precision."""
    return {entry["precision"]: entry, **({"bf16": entry["bf16"]} if "bf16" in entry else {})}
