"""Advice on what to try next, from the numbers of a report.json; each rule names the numbers that it follows from."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Sequence
from pathlib import Path

from distilvec.evaluation.aggregate import AVERAGE, retention
from distilvec.report.scores import read_scores
from distilvec.report.section import get
from distilvec.report.sections.compression import BITS, mean_rows, vectors
from distilvec.report.tables import Part, number
from distilvec.train.metrics import SCORES, validation_metric

FALLS = 3.0  # percent of the teacher's score that retrieval keeps less than the average
HELPS = 1.0  # percent that the teacher's documents add
LOWER = 1.0  # percent of the untrained score that training may cost; points that a teacher may be below its student
STILL = 0.005  # share by which the last validation was better than the one before
NEARER = 0.04  # share by which texts that were trained on are nearer to the teacher than new ones
KEPT = 99.0  # percent of the student's own score that a smaller vector keeps


def advice(report: Part) -> list[str]:
    """Return sentences, the most important first; empty without scores."""
    return [text for rule in RULES if (text := rule(report))]


def training_lowers(report: Part) -> str:
    """The student before training has the higher average."""
    columns = read_scores(get(report, "scores") or {})
    student, untrained, teacher = (columns.get(name, []) for name in ("student", "untrained", "teacher"))
    own = retention(student, untrained).get(AVERAGE)
    if own is None or own > 100 - LOWER:
        return ""
    before, after = (retention(scores, teacher).get(AVERAGE) for scores in (untrained, student))
    change = ""
    if before is not None and after is not None:
        change = f", from {number(before, 1)} % of the teacher's to {number(after, 1)} %"
    return (
        f"Training lowered the average{change}. Check that the teacher knows the language of the texts; then add texts "
        "and steps (train.epochs), or lower train.learning_rate."
    )


def teacher_below(report: Part) -> str:
    """A fine-tuned teacher is below its student on the labelled task."""
    scores = get(report, "record.supervised.scores")
    ours, theirs = ((scores.get(name) or {}).get("accuracy") for name in ("student", "teacher"))
    if ours is None or theirs is None or 100 * (ours - theirs) < LOWER:
        return ""
    below = f"The teacher ({number(100 * theirs, 1)}) is below its student ({number(100 * ours, 1)})"
    return (
        f"{below}: fine-tune it longer or at a larger rate (distilvec finetune --epochs, --learning-rate), and compare "
        "the labels alone (distilvec run task)."
    )


def confused_classes(report: Part) -> str:
    """The classes that a classifier confuses most."""
    found = [one for one in get(report, "mistakes.confused") or () if one["rows"] > 1][:2]
    if not found:
        return ""
    shown = "; ".join(f"{one['class']} for {one['taken_for']} ({one['rows']} test rows)" for one in found)
    return f"Read the wrong texts in the report. Mistaken most: {shown}. Add training rows of these, or merge them."


def retrieval_falls(report: Part) -> str:
    """Retrieval keeps less than the average does, and training is not the cause."""
    kept, retrieval = (get(report, "verdict").get(key) for key in ("retention", "retrieval"))
    if kept is None or retrieval is None or kept - retrieval < FALLS or training_lowers(report):
        return ""
    own = bool(get(report, "vocabulary"))
    larger = "take a larger token table (student.vocabulary)" if own else "keep more layers (student.layers)"
    return (
        f"Retrieval falls most ({number(retrieval, 1)} % of the teacher's, all tasks {number(kept, 1)} %): "
        f"train longer (train.epochs), or {larger}."
    )


def teachers_documents(report: Part) -> str:
    """Retrieval is better with the teacher's documents."""
    alone, pair = (get(report, "verdict").get(key) for key in ("retrieval", "asymmetric_retrieval"))
    if alone is None:  # every task is a retrieval task
        alone, pair = (get(report, "verdict").get(key) for key in ("retention", "asymmetric_retention"))
    if alone is None or pair is None or pair - alone < HELPS:
        return ""
    return (
        f"Search the teacher's documents with the student's queries: {number(pair, 1)} % of the teacher's retrieval "
        f"instead of {number(alone, 1)} %."
    )


def still_better(report: Part) -> str:
    """The validation was still improving at the end, or was best long before."""
    lines = [line for line in get(report, "history") or () if validation_metric(line)]
    name = validation_metric(lines[-1]) if lines else None
    values = [(line["step"], line[f"eval/{name}"]) for line in lines[1:] if f"eval/{name}" in line]
    if name in (None, "similarity_gap") or len(values) < 3:  # the gap does not rank students
        return ""
    way, title = (-1 if name in SCORES else 1), name.replace("_", " ")
    best_step, best = min(values, key=lambda pair: way * pair[1])
    (_, before), (last_step, last) = values[-2:]
    if best_step == last_step and way * (before - last) > STILL * abs(before):
        change = f"{number(before, 4)} to {number(last, 4)}"
        return f"The validation {title} still improved at the end ({change}): train longer (train.epochs)."
    if best_step < 0.7 * last_step and way * (last - best) > STILL * abs(best):
        return (
            f"The validation {title} was best at step {best_step:,} of {last_step:,}: lower train.learning_rate, or "
            "add texts."
        )
    return ""


def more_texts(report: Part) -> str:
    """Texts that were trained on are nearer to the teacher than validation texts, by more than chance."""
    new, seen = get(report, "texts.mean"), get(report, "texts.trained.mean")
    passes = get(report, "record.training.texts"), get(report, "record.data.train_rows")
    if not new or not seen or not all(passes) or passes[0] < passes[1] or seen > (1 - NEARER) * new:
        return ""
    return (
        f"Texts that were trained on are nearer to the teacher ({number(seen, 3)}) than new ones ({number(new, 3)}): "
        "add distinct texts, or the long ones in pieces (corpus.sources: pieces)."
    )


def smaller_vectors(report: Part) -> str:
    """The smallest vectors that keep KEPT percent of the student's score with whole ones."""
    rows = [row for row in mean_rows(get(report, "compression.rows") or []) if row["column"] == "student"]
    whole = max((row for row in rows if row["precision"] == "float32"), key=lambda row: row["width"], default=None)
    if whole is None or whole["value"] <= 0:
        return ""
    shares = [(BITS[row["precision"]] * row["width"], 100 * row["value"] / whole["value"], row) for row in rows]
    bits, share, row = min((one for one in shares if one[1] >= KEPT), key=lambda one: one[:2])
    times = BITS["float32"] * whole["width"] / bits
    if times < 2:
        return ""
    return (
        f"Store documents in {row['width']} dimensions as {vectors(row['precision'])}: {number(times, 0)} times "
        f"smaller, {number(share, 1)} % of the student's score."
    )


def smaller_weights(report: Part) -> str:
    """The student was not exported."""
    if get(report, "exports") or not get(report, "record.student"):
        return ""
    student = shlex.quote(str(Path(report.get("folder") or ".") / "student"))
    return f"Export a smaller and faster file: distilvec export {student} --to onnx-int8 (int8 weights, checked)."


RULES: Sequence[Callable[[Part], str]] = (
    training_lowers, teacher_below, retrieval_falls, still_better, more_texts, confused_classes, teachers_documents,
    smaller_vectors, smaller_weights,
)  # fmt: skip
