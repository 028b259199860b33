"""README.md: the rivals, and how fast a student is made."""

from __future__ import annotations

from benchmarks.markdown import markdown_table
from experiments.pages.parts import Parts, read, rival
from experiments.pages.speed import is_of_equal_work
from experiments.quality_over_time import first_better


def parts() -> Parts:
    """The marked parts of README.md."""
    return {"README.md": {"rivals": rivals(), "fast": fast()}}


def rivals() -> str:
    """Ways to a search, best retrieval first: nDCG@10 on both collections, overlap@10 with the large model, minutes."""
    quality = read("time_to_quality")
    if not quality:
        return ""
    large = quality["minilm"]["teacher"]
    untouched = rival()
    lines = [
        ["all-mpnet-base-v2, the large model", 109.0, None, large],
        ["all-MiniLM-L6-v2 as it is, documents embedded again", 22.7, None, untouched.scores],
    ]
    ways = {
        ("minilm", "distilvec"): "**distilvec, 23M**",
        ("minilm", "sentence-transformers"): "sentence-transformers, its example script for distillation",
        ("5M-minilm", "distilvec"): "**distilvec, 5M**",
        ("static", "distilvec"): "**distilvec, static**",
        ("static", "model2vec"): "model2vec, its `distill`",
    }
    for (job, side), name in ways.items():
        measured = quality[job]["sides"][side]
        last = measured["points"][-1]
        lines.append([name, measured["parameters"] / 1e6, last["minutes"], last])
    lines.sort(key=lambda line: -line[3]["cranfield"])
    rows = []
    for name, millions, minutes, scores in lines:
        rows.append(
            [
                name,
                f"{millions:.1f} M",
                f"{scores['cranfield']:.1f}",
                f"{scores['xquad-en']:.1f}",
                f"{scores['overlap']:.2f}" if "overlap" in scores else "",
                "" if minutes is None else f"{minutes:.1f}",
            ]
        )
    header = ["queries and documents by", "parameters", "Cranfield", "XQuAD", "overlap@10", "minutes"]
    note = (
        "Cranfield and XQuAD: nDCG@10, times 100. overlap@10: the share of the large model's ten nearest texts, of "
        "3,000, that the small model finds. Minutes include the large model's pass ([speed](docs/speed.md))."
    )
    return f"{markdown_table(header, rows)}\n\n{note}"


def fast() -> str:
    """Speed against the peer: the rates of training, and quality against time."""
    training, quality = read("training"), read("time_to_quality")
    if not training or not quality or not is_of_equal_work(training):
        return ""
    rates = [f"{training[f'ratio_{name}']:.1f} ({name})" for name in ("fp32", "bf16") if name in training]
    text = (
        f"- **Fast on a CPU.** Training to the same distance is {' and '.join(rates)} times as fast as "
        "sentence-transformers' trainer"
    )
    better = first_better(quality["minilm"], "sentence-transformers")
    if better is not None:
        our_minutes, their_minutes = better
        text += f"; {our_minutes:.0f} minutes beat {their_minutes:.0f} minutes of its distillation example"
    return f"{text} ([speed](docs/speed.md))."
