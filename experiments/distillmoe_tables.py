"""The tables of docs/papers/distillmoe.md on the cost of a step, of the head and of DynamicCKA,
from their JSON.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from benchmarks.markdown import markdown_table
from experiments.step_costs import precisions

PAPER_MS = {
    1: (2.9516, 3.2969),
    32: (4.7701, 4.9498),
}  # DistillMoE, tables 17 and 18, an H200: without and with experts
MARK = 1.35  # of a step with a task loss alone


def moe_step_table(report: Mapping[str, Any]) -> str:
    """Time of a step by method, as a multiple of the step with the labels alone; the paper has 4.9 times ULD's."""
    lines = []
    for name, entry in report.items():
        for precision, part in precisions(entry).items():
            ratio = 1.0 if name == "task" else part["time_ratio"]["task"]
            lines.append([name, precision, f"{part['ms']:.0f}", f"{ratio:.2f}", f"{part['peak_mb']:.0f}"])
    head = ["method", "precision", "ms a step", "of `task`", "peak memory, MB"]
    found = [
        f"{part['time_ratio']['task']:.3f} in {precision}"
        for precision, part in precisions(report["distillmoe"]).items()
    ]
    return (
        markdown_table(head, lines, columns="llrrr")
        + f"\n\n`distillmoe` over `task`: {' and '.join(found)} (target: {MARK}). In the paper it takes 4.9 times a step of ULD (table 3)."  # noqa: E501
    )


def aggregation_line(found: Mapping[str, Any]) -> str:
    """DynamicCKA's aggregation, and what the rules keep."""
    first = next(part for part in found.values() if isinstance(part, dict) and "paper" in part)
    said = []
    for rule in (rule for rule in first if rule != "similarity_ms"):
        ms, faster = first[rule]["distilvec_ms"], first[rule]["times_faster"]["aggregation"]
        half = (
            f" ({first[rule]['aggregation_bf16_ms']:.1f} with the products with Q in bf16)"
            if "aggregation_bf16_ms" in first[rule]
            else ""
        )
        said.append(
            f"`{rule}`: {ms['aggregation']:.1f} ms{half}, {faster:.0f} times as fast as the paper's loop, "
            f"{ms['alone']:.1f} ms without the cosines"
        )
    return f"Aggregation for {found['texts']}, 384 wide. {'; '.join(said)} ({found['machine']}; target: {found['mark_ms']:g} ms)."  # noqa: E501


def experts_speed_table(found: Mapping[str, Any]) -> str:
    """What experts add to inference, beside tables 17 to 19; p99 in brackets where it was measured."""

    def cell(part: Mapping[str, Any], kind: str) -> str:
        more = f" ± {part[f'{kind}_std_ms']:.2f} (p99 {part[f'{kind}_p99_ms']:.2f})" if f"{kind}_p99_ms" in part else ""
        return f"{part[f'{kind}_ms']:.2f}{more}"

    lines = []
    for name, model in found["models"].items():
        for backend, settings in model.items():
            if backend in ("parameters", "experts"):
                continue
            for setting, part in settings.items():
                ratio = f"{part['ratio']:.3f} ({part['lowest']:.3f} to {part['highest']:.3f})"
                lines.append([name, backend, setting, cell(part, "without"), cell(part, "with"), ratio])
    head = ["encoder", "backend", "tokens x texts", "without, ms", "with experts, ms", "ratio"]
    paper = ", ".join(f"{with_ms / without:.3f} at batch {batch}" for batch, (without, with_ms) in PAPER_MS.items())
    marks = ", ".join(f"{mark} at batch {batch}" for batch, mark in found["marks"].items())
    return (
        markdown_table(head, lines, columns="lllrrr")
        + f"\n\nTargets for bert-base: {marks}; the paper, on an H200: {paper}. A query has 16 tokens, a document 256."
    )


def routing_table(found: Mapping[str, Any]) -> str:
    """Where the gate goes, by beta."""
    head = ["beta", "mean gates at the end", "entropy", "deviation over texts", "first step above 0.9"]
    lines = []
    for row in found["rows"]:
        entropy, spread = (" to ".join(f"{value:.3f}" for value in row[key]) for key in ("entropy", "spread"))
        means = ", ".join(f"{mean:.2f}" for mean in row["means"])
        at = "never" if row["one_expert_at"] is None else str(row["one_expert_at"])
        lines.append([f"{row['beta']:g}", means, entropy, spread, at])
    return (
        markdown_table(head, lines, columns="rlrrr")
        + f"\n\n{found['steps']} steps of 32 texts of banking77, one run each; entropy 1 is equal gates; figures of the second half, "  # noqa: E501
        "looked at every fifth step (`python -m experiments.routing --json FILE`). The experts are pointwise, "
        "contrastive, pairwise."
    )
