"""The papers' tables of costs: a step, alignment, the token cache, DynamicCKA, experts and their gates.

Scripts that commit 0e823248 has in benchmarks/ measured them, apart from the gates (experiments/routing.py).
"""

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
EXPERTS_MS = {
    1: (2.9516, 3.2969),
    32: (4.7701, 4.9498),
}  # DistillMoE, tables 17 and 18, an H200: without and with experts
DISTILLMOE_MARK = 1.35  # of a step with a task loss alone
EMO_SECONDS = {
    "uld": 0.18,
    "dskd": 0.31,
    "mined": 0.67,
    "multilevel_ot": 0.72,
    "ira": 0.41,
    "otis": 0.56,
    "emo": 0.97,
}  # EMO, table 10
CACHE_SIZES = {
    "english_text": "english_text, at most 256 tokens, int8",
    "english_text_float16": "the same, float16",
    "exactly_256_tokens": "texts of exactly 256 tokens, int8",
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


def moe_step_table(report: Mapping[str, Any]) -> str:
    """Time of a step by method, as a multiple of the step with the labels alone; the paper has 4.9 times ULD's."""
    lines = []
    for name, entry in report.items():
        for precision, part in precisions(entry).items():
            ratio = 1.0 if name == "task" else part["time_ratio"]["task"]
            lines.append([name, precision, f"{part['ms']:.0f}", f"{ratio:.2f}", f"{part['peak_mb']:.0f}"])
    head = ["method", "precision", "ms a step", "times `task`", "peak memory, MB"]
    found = [
        f"{part['time_ratio']['task']:.3f} in {precision}"
        for precision, part in precisions(report["distillmoe"]).items()
    ]
    return (
        markdown_table(head, lines, columns="llrrr")
        + f"\n\n`distillmoe` over `task`: {' and '.join(found)} (target: {DISTILLMOE_MARK}). In the paper it takes 4.9 times a step of ULD (table 3)."  # noqa: E501
    )


def aggregation_line(report: Mapping[str, Any]) -> str:
    """DynamicCKA's aggregation, and what the rules keep."""
    first = next(part for part in report.values() if isinstance(part, dict) and "paper" in part)
    rules = []
    for rule in first:
        if rule == "similarity_ms":
            continue
        ms, faster = first[rule]["distilvec_ms"], first[rule]["times_faster"]["aggregation"]
        half = (
            f" ({first[rule]['aggregation_bf16_ms']:.1f} with the products with Q in bf16)"
            if "aggregation_bf16_ms" in first[rule]
            else ""
        )
        rules.append(
            f"`{rule}`: {ms['aggregation']:.1f} ms{half}, {faster:.0f} times as fast as the paper's loop, "
            f"{ms['alone']:.1f} ms without the cosines"
        )
    return f"Aggregation for {report['texts']}, 384 wide. {'; '.join(rules)} ({report['machine']}; target: {report['mark_ms']:g} ms)."  # noqa: E501


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
    paper = ", ".join(f"{with_ms / without:.3f} at batch {batch}" for batch, (without, with_ms) in EXPERTS_MS.items())
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
        + f"\n\n{found['steps']} steps of 32 texts of banking77, one run each. Equal gates have entropy 1. The figures are those of every "  # noqa: E501
        "fifth step of the second half (`python -m experiments.routing --json FILE`). The experts are pointwise, "
        "contrastive, pairwise."
    )


def alignment_tables(found: Mapping[str, Any]) -> str:
    """How many tokens are mapped, as EMO's table 6, and how fast."""
    rates = []
    for name, part in found["rates"].items():
        for kind in ("offsets", "mined", "strict"):
            own = part[kind]
            ordinary = f"{own['teacher_rate_ordinary']:.1f} / {own['student_rate_ordinary']:.1f}"
            rates.append([name, kind, f"{own['teacher_rate']:.1f}", f"{own['student_rate']:.1f}", ordinary])
    head = ["texts", "kind", "teacher, %", "student, %", "without special tokens"]
    rate_table = markdown_table(head, rates, columns="llrrr")

    speed = [[kind, f"{part['aligned']:,}", f"{part['with_tokenising']:,}"] for kind, part in found["kinds"].items()]
    speed_table = markdown_table(["kind", "texts a second, alignment alone", "with both tokenizers"], speed)
    info = (
        f"{found['count']:,} texts of {found['characters_a_text']:.0f} characters on average ({found['texts']}), "
        f"{found['machine']}: {found['corpus']['sentences']:,} texts a second are aligned and written for the training "
        f"(target: {found['mark']:,})."
    )
    return "\n\n".join([rate_table, info, speed_table])


def cache_tables(found: Mapping[str, Any]) -> str:
    """Bytes a text, and how far losses and gradients are from the live teacher's."""
    sizes = []
    for key, title in CACHE_SIZES.items():
        part = found["sizes"][key]
        cells = [
            title,
            f"{part['mean_tokens']:.0f}",
            f"{part['bytes_per_text']:,.0f}",
            f"{part['by_signal']['hidden']:,.0f}",
            f"{part['by_signal']['grams']:,.0f}",
            f"{part['times_smaller']:.1f}",
        ]
        sizes.append(cells)
    head = ["texts", "tokens a text", "bytes a text", "hidden states", "Gram matrices", "times smaller than 768 KB"]
    size_table = markdown_table(head, sizes)

    fidelity = []
    for kind in ("int8", "float16"):
        for term in ("ira", "otis", "total"):
            errors = [
                f"{found['fidelity'][kind][term][what]['largest']:.1e}" for what in ("loss_error", "gradient_error")
            ]
            fidelity.append([kind, term, *errors])
    fidelity_table = markdown_table(["hidden states", "term", "loss", "gradient"], fidelity, columns="llrr")
    return f"{size_table}\n\n{fidelity_table}"


def step_table(report: Mapping[str, Any]) -> str:
    """Time of a step by method, beside the paper's table 10; both also as multiples of ULD's step."""
    head = ["method", "precision", "ms a step", "times ULD", "the paper, s a batch", "times ULD"]
    lines = []
    for name, entry in report.items():
        for precision, part in precisions(entry).items():
            uld = precisions(report["uld"])[precision]["ms"]
            paper = ["", ""]
            if name in EMO_SECONDS:
                paper = [f"{EMO_SECONDS[name]:.2f}", f"{EMO_SECONDS[name] / EMO_SECONDS['uld']:.1f}"]
            lines.append([name, precision, f"{part['ms']:.0f}", f"{part['ms'] / uld:.2f}", *paper])
    notes = []
    for precision, part in precisions(report["emo"]).items():
        notes.append(f"- `emo` over `task`, {precision}: {part['time_ratio']['task']:.2f} (target: 1.35)")
        live, task = precisions(report["emo_live"])[precision], precisions(report["task"])[precision]
        most = 1.35 * task["ms"] + live["teacher_ms"]
        notes.append(
            f"- `emo_live`, {precision}: {live['ms']:.0f} ms; 1.35 steps of `task` and a forward pass of the teacher: "
            f"{most:.0f} ms"
        )
    return markdown_table(head, lines, columns="llrrrr") + "\n\n" + "\n".join(notes)


def transport_line(found: Mapping[str, Any]) -> str:
    """Batched Sinkhorn beside POT called text by text."""
    parts = [
        f"{found[key]['ratio']:.1f} times as fast {words}"
        for key, words in (("tolerance", "to a marginal error of 1e-6"), ("fixed", "for 100 iterations"))
    ]
    most = max(found[key]["largest_difference"] for key in ("tolerance", "fixed"))
    return (
        f"Sinkhorn, {found['problems']}, against POT called text by text: {', '.join(parts)} (target: 8). "
        f"The values differ by at most {most:.0e}."
    )


def rows_line(found: Mapping[str, Any]) -> str:
    """What attention rows add to a forward pass."""
    parts = [
        f"{found[length][kind]['rows']:.3f} at {length} tokens ({kind})"
        for length in ("25", "128")
        for kind in ("inference", "training")
    ]
    return (
        "Time of a forward pass with the attention rows of two layers, divided by the time without: "
        f"{', '.join(parts)} (target: {found['mark']})."
    )
