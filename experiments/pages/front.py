"""README.md: the rivals, what a small student keeps, and how fast it is made."""

from __future__ import annotations

from collections.abc import Mapping

from benchmarks.markdown import markdown_table
from distilvec.evaluation.aggregate import AVERAGE, RETRIEVAL
from experiments.pages.parts import Parts, read, rival
from experiments.pages.speed import is_of_equal_work
from experiments.quality_over_time import first_better
from experiments.result_students import kept
from experiments.score_table import retained
from experiments.surgery_tables import by_short_name

PASSES = {1: "One pass", 2: "Two passes"}


def parts() -> Parts:
    """The marked parts of README.md."""
    return {"README.md": {"rivals": rivals(), "headline": headline(), "fast": fast()}}


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
        "Cranfield and XQuAD: nDCG@10, times 100. overlap@10: the share of the large model's ten nearest that is found "
        "among 3,000 texts, with vectors of its own.\nMinutes count from the first command, the large model's pass "
        "included ([speed](docs/speed.md))."
    )
    return f"{markdown_table(header, rows)}\n\n{note}"


def headline() -> str:
    """What a small student keeps, before and after training, and what made it; then one of a larger teacher.

    Its texts were not chosen to resemble a test.
    """
    record = by_short_name((read("surgery") or {}).get("students", {})).get("5m-narrow")
    if not record:
        return ""
    shares, speed, training = retained(record), record["inference"], record["training"]
    before, after = shares["untrained"], shares["student"]
    faster = speed["student_texts_per_second"] / speed["teacher_texts_per_second"]
    return (
        f"For example, a student with {record['student']['parameters'] / 1e6:.1f} of the "
        f"{record['teacher']['parameters'] / 1e6:.1f} million parameters of {record['teacher']['name']} keeps "
        f"{after[RETRIEVAL]:.1f}% of its retrieval\n(Cranfield; {before[RETRIEVAL]:.1f}% before training) and "
        f"{after[AVERAGE]:.1f}% of its average over eight tasks ({before[AVERAGE]:.1f}% before), and embeds "
        f"{faster:.1f} times as many texts\na second on a CPU. {PASSES[training['epochs']]} over "
        f"{record['data']['train_rows']:,} open English texts made it, in {training['minutes']:.0f} minutes of "
        f"training on a machine with two CPU cores\n([results](docs/results.md)).{of_a_larger_teacher()}"
    )


def of_a_larger_teacher() -> str:
    """What the smallest student keeps of a teacher of another family, beside its rival, in two more sentences."""
    rows = {row["name"]: row for row in (read("result_students") or {"rows": []})["rows"]}
    row = rows.get("english-5m")
    if row is None:
        return ""
    scores = row["scores"]

    def shares(values: Mapping[str, float]) -> str:
        cranfield, xquad = (100 * values[task] / scores["teacher"][task] for task in ("cranfield", "xquad-en"))
        return f"{cranfield:.1f}% on Cranfield and {xquad:.1f}% on XQuAD"

    return (
        f"\n\nOf all-mpnet-base-v2 ({row['teacher_parameters'] / 1e6:.0f} million), one of "
        f"{row['parameters'] / 1e6:.1f} million keeps {shares(scores['student'])} ({shares(scores['untrained'])} "
        f"before\ntraining), and {kept(row, 'student', AVERAGE)}% of nine tasks ({kept(row, 'untrained', AVERAGE)}%). "
        "If you can embed your documents again, compare it with all-MiniLM-L6-v2 as it is:\n"
        f"22.7 million parameters, {shares(rival().scores)}."
    )


def fast() -> str:
    """Speed against the peers: the rates of training and caching, and quality against time."""
    training, caching, quality = read("training"), read("caching"), read("time_to_quality")
    if not training or not caching:
        return ""
    text = f"- **Fast on a CPU.** Caching a teacher is {caching['ratio_fp32']:.2f} times as fast as `encode`"
    if is_of_equal_work(training):
        rates = [f"{training[f'ratio_{name}']:.1f} ({name})" for name in ("fp32", "bf16") if name in training]
        text += (
            f", and training {' and '.join(rates)} times as fast as sentence-transformers' trainer, at one learning "
            "rate and to one distance"
        )
    better = first_better(quality["minilm"], "sentence-transformers") if quality else None
    if better is not None:
        our_minutes, their_minutes = better
        untouched = rival().scores
        text += (
            f". A student of all-mpnet-base-v2 is better {our_minutes:.0f} minutes after the first command than the "
            f"one that sentence-transformers' example script makes in {their_minutes:.0f}; all-MiniLM-L6-v2, of which "
            f"both are made, has more in retrieval untouched ({untouched['cranfield']:.1f} on Cranfield, "
            f"{untouched['xquad-en']:.1f} on XQuAD), but no place in mpnet's index"
        )
    return f"{text} ([speed](docs/speed.md), also on a GPU)."
