"""The tables of docs/papers/emo.md on alignment, the compressed cache and the cost of a step, from the JSON of their
benchmarks.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from benchmarks.markdown import markdown_table
from experiments.step_costs import precisions

SECONDS = {
    "uld": 0.18,
    "dskd": 0.31,
    "mined": 0.67,
    "multilevel_ot": 0.72,
    "ira": 0.41,
    "otis": 0.56,
    "emo": 0.97,
}  # EMO, table 10
SIZES = {
    "english_text": "english_text, at most 256 tokens, int8",
    "english_text_float16": "the same, float16",
    "exactly_256_tokens": "texts of exactly 256 tokens, int8",
}


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
    speed_table = markdown_table(["kind", "texts a second, encodings there", "with both tokenisers"], speed)
    info = (
        f"{found['count']:,} texts of {found['characters_a_text']:.0f} characters on average ({found['texts']}), "
        f"{found['machine']}; aligned, written and ready to train from: {found['corpus']['sentences']:,} a second. "
        f"Target: {found['mark']:,}."
    )
    return "\n\n".join([rate_table, info, speed_table])


def cache_tables(found: Mapping[str, Any]) -> str:
    """Bytes a text, and how far losses and gradients are from the live teacher's."""
    sizes = []
    for key, title in SIZES.items():
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
    head = ["texts", "tokens a text", "bytes a text", "of these hidden states", "Gram matrices", "times below 768 KB"]
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
    head = ["method", "precision", "ms a step", "of ULD's", "the paper, s a batch", "of ULD's"]
    lines = []
    for name, entry in report.items():
        for precision, part in precisions(entry).items():
            uld = precisions(report["uld"])[precision]["ms"]
            paper = [f"{SECONDS[name]:.2f}", f"{SECONDS[name] / SECONDS['uld']:.1f}"] if name in SECONDS else ["", ""]
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
    return f"Sinkhorn, {found['problems']}: {' and '.join(parts)} as POT called text by text (target: 8); values differ by at most {most:.0e}."  # noqa: E501


def rows_line(found: Mapping[str, Any]) -> str:
    """What attention rows add to a forward pass."""
    parts = [
        f"{found[length][kind]['rows']:.3f} at {length} tokens ({kind})"
        for length in ("25", "128")
        for kind in ("inference", "training")
    ]
    return f"A forward pass that gives the attention rows of two layers, over one that gives none: {', '.join(parts)} (target: {found['mark']})."  # noqa: E501
