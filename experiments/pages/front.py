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

PASSES = {1: "one pass", 2: "two passes"}


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
        "Cranfield and XQuAD: nDCG@10, times 100. overlap@10: the share of the large model's ten nearest texts that "
        "the small model finds among 3,000, with its own vectors.\nMinutes count from the first command and include "
        "the large model's pass ([speed](docs/speed.md))."
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
        f"A {record['student']['parameters'] / 1e6:.1f}M student of {record['teacher']['name']} "
        f"({record['teacher']['parameters'] / 1e6:.1f}M) keeps {after[RETRIEVAL]:.1f}% of its retrieval (Cranfield; "
        f"{before[RETRIEVAL]:.1f}% before training)\nand {after[AVERAGE]:.1f}% of its average over eight tasks "
        f"({before[AVERAGE]:.1f}% before), and it is {faster:.1f} times as fast on a CPU. It was trained for "
        f"{training['minutes']:.0f} minutes\non two CPU cores: {PASSES[training['epochs']]} over "
        f"{record['data']['train_rows']:,} open English texts.{of_a_larger_teacher()} All [results](docs/results.md)."
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
        f"\n\nA {row['parameters'] / 1e6:.1f}M student of all-mpnet-base-v2 ({row['teacher_parameters'] / 1e6:.0f}M) "
        f"keeps {kept(row, 'student', AVERAGE)}% of its average over nine tasks; in retrieval it keeps "
        f"{shares(scores['student'])}.\nBefore training these were {kept(row, 'untrained', AVERAGE)}%, "
        f"{shares(scores['untrained'])}. all-MiniLM-L6-v2 as it is (22.7M) has {shares(rival().scores)}:\n"
        "take it if you can embed your documents again."
    )


def fast() -> str:
    """Speed against the peers: the rates of training and caching, and quality against time."""
    training, caching, quality = read("training"), read("caching"), read("time_to_quality")
    if not training or not caching:
        return ""
    text = f"- **Fast on a CPU.** Caching the teacher is {caching['ratio_fp32']:.2f} times as fast as `encode`"
    if is_of_equal_work(training):
        rates = [f"{training[f'ratio_{name}']:.1f} ({name})" for name in ("fp32", "bf16") if name in training]
        text += (
            f". Training is {' and '.join(rates)} times as fast as sentence-transformers' trainer, at the same "
            "learning rate and to the same distance"
        )
    better = first_better(quality["minilm"], "sentence-transformers") if quality else None
    if better is not None:
        our_minutes, their_minutes = better
        text += (
            f". {our_minutes:.0f} minutes of distilvec beat {their_minutes:.0f} minutes of sentence-transformers' own "
            "distillation example; all-MiniLM-L6-v2 untouched ranks better than both, but cannot search the index of "
            "the large model"
        )
    return f"{text} ([speed](docs/speed.md), also on a GPU)."
