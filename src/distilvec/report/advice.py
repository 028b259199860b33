"""Advice on what to try next, from the numbers of a report.json; each rule names the numbers that it follows from.

A rule that compares two scores, or two shares of neighbours, is silent where the interval of their difference holds 0.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Sequence
from pathlib import Path

from distilvec.evaluation.aggregate import AVERAGE, RETRIEVAL, average
from distilvec.evaluation.neighbors import DOUBTFUL, Judgement, NeighborShares, Share, read_judgement
from distilvec.report.neighbors import wider_text
from distilvec.report.scores import read_scores, shared
from distilvec.report.section import get
from distilvec.report.sections.compression import BITS, mean_rows, vectors
from distilvec.report.tables import Part, number
from distilvec.train.metrics import SCORES, validation_metric

FALLS = 3.0  # percent of the teacher's score that retrieval keeps less than the average
HELPS = 1.0  # percent that the teacher's documents add
FAR = 10.0  # percent of the teacher's score that its documents cost
LOWER = 1.0  # points that a teacher may be below its student
STILL = 0.005  # share by which the last validation was better than the one before
NEARER = 0.04  # share by which texts that were trained on are nearer to the teacher than new ones
KEPT = 99.0  # percent of the student's own score that a smaller vector keeps
RIDGE = "start the new linear layer from a regression on the teacher's vectors (student.start=ridge)"


def advice(report: Part) -> list[str]:
    """Return sentences, the most important first."""
    return [text for rule in RULES if (text := rule(report))]


def index_advice(judgement: Judgement) -> str:
    """Return whether to switch the queries of an index to a student, and the next step."""
    share = judgement.share
    if judgement.compatibility == "yes":
        return "The model fits the index. Switch, and compare answers on real queries for some days."
    if judgement.compatibility == "in part":
        return (
            f"The model fits in part: {wider_text(judgement)}. Rank its top 100 again with the large model or a "
            "cross-encoder, or train longer, with more layers or more texts."
        )
    if share is None or judgement.cosine is None or judgement.cosine < DOUBTFUL:
        return (
            f"Do not switch: the model's vectors have a mean cosine of {judgement.cosine or 0:.2f} with the stored "
            "ones, so it is of another space, or reads another prompt. Train one for this index: distilvec index "
            "distill."
        )
    return (
        "Do not switch: the model is in the index's space, and not close enough. Train longer (--epochs), keep more "
        "layers, or read more of the index (--limit)."
    )


def fits_the_index(report: Part) -> str:
    """A student of an index."""
    judgement = _judgement(report)
    return index_advice(judgement) if judgement is not None and judgement.origin == "index" else ""


def training_lowers(report: Part) -> str:
    """The student before training had the higher average, or found more of the teacher's neighbours."""
    columns = read_scores(get(report, "scores") or {})
    student, untrained = shared(*(columns.get(name, []) for name in ("student", "untrained")))
    judgement, lost = _judgement(report), ""
    if student and _below_zero(get(report, "changes.training").get(AVERAGE)):
        lost = f"the average fell from {number(average(untrained), 1)} to {number(average(student), 1)}"
    elif judgement is not None and judgement.start is not None and judgement.gain is not None:
        gain = judgement.gain.among or judgement.gain.alone
        before, after = _first(judgement.start), _first(judgement.student)
        if gain is not None and gain.high < 0 and before is not None and after is not None:
            lost = f"of the teacher's top 10 it finds {after.mean:.2f}, before training {before.mean:.2f}"
    if not lost:
        return ""
    rate = get(report, "record.training.learning_rate")
    lower = f"train.learning_rate={rate / 3:.1g} instead of {rate:g}" if rate else "a lower train.learning_rate"
    return f"Training made the student worse: {lost}. Most often the rate is too high: try {lower}."


def far_from_the_space(report: Part) -> str:
    """Among the teacher's vectors the student finds far less than among its own."""
    key, names = "retrieval", (RETRIEVAL, AVERAGE)
    if get(report, "verdict").get("retrieval") is None:  # every task is a retrieval task
        key = "retention"
    alone, pair = (get(report, "verdict").get(name) for name in (key, f"asymmetric_{key}"))
    changes, judgement, found = get(report, "changes.documents"), _judgement(report), ""
    interval = next((changes[name] for name in names if name in changes), None)
    if alone is not None and pair is not None and alone - pair >= FAR and _below_zero(interval):
        found = f"{number(pair, 1)}% of its retrieval score instead of {number(alone, 1)}%"
    elif judgement is not None and judgement.student.among is not None and judgement.student.alone is not None:
        own, among = judgement.student.alone, judgement.student.among
        if among.high < own.low:
            found = f"{among.mean:.2f} of its top 10 instead of {own.mean:.2f}"
    if not found:
        return ""
    fix = f"{RIDGE}, or train longer (train.epochs)" if _random_layer(report) else "train longer (train.epochs)"
    return (
        f"With the teacher's vectors the student keeps {found} alone, so it is not yet in the teacher's space: {fix}."
    )


def random_layer(report: Part) -> str:
    """A new linear layer started at random, and the student cannot search the teacher's vectors yet."""
    judgement = _judgement(report)
    if judgement is None or not _random_layer(report) or far_from_the_space(report):
        return ""
    if judgement.compatibility in (None, "yes"):
        return ""
    return f"The linear layer to the teacher's vectors started at random: {RIDGE}."


def teacher_below(report: Part) -> str:
    """A fine-tuned teacher is below its student on the labelled task."""
    scores = get(report, "record.supervised.scores")
    ours, theirs = ((scores.get(name) or {}).get("accuracy") for name in ("student", "teacher"))
    if ours is None or theirs is None or 100 * (ours - theirs) < LOWER:
        return ""
    if not _above_zero(get(report, "intervals.student").get(get(report, "record.supervised").get("task"))):
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
    if not _below_zero(get(report, "intervals.student").get(RETRIEVAL)):
        return ""
    own = bool(get(report, "vocabulary"))
    larger = "take a larger token table (student.vocabulary)" if own else "keep more layers (student.layers)"
    return (
        f"Retrieval falls most ({number(retrieval, 1)}% of the teacher's, all tasks {number(kept, 1)}%): "
        f"train longer (train.epochs), or {larger}."
    )


def teachers_documents(report: Part) -> str:
    """Retrieval is better with the teacher's documents."""
    key, name = "retrieval", RETRIEVAL
    if get(report, "verdict").get("retrieval") is None:  # every task is a retrieval task
        key, name = "retention", AVERAGE
    alone, pair = (get(report, "verdict").get(part) for part in (key, f"asymmetric_{key}"))
    if alone is None or pair is None or pair - alone < HELPS:
        return ""
    if not _above_zero(get(report, "changes.documents").get(name)):
        return ""
    return (
        f"Search the teacher's documents with the student's queries: {number(pair, 1)}% of the teacher's retrieval "
        f"instead of {number(alone, 1)}%."
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


def overfits(report: Part) -> str:
    """The student finds more neighbours of texts that it was trained on than of new ones."""
    judgement = _judgement(report)
    if judgement is None or judgement.trained is None or not _seen_once(report):
        return ""
    seen, new = _first(judgement.trained), _first(judgement.student)
    if seen is None or new is None or seen.low <= new.high:
        return ""
    return (
        f"The student has learned its texts by heart: it finds {seen.mean:.2f} of the teacher's top 10 for texts that "
        f"it was trained on, {new.mean:.2f} for new ones. Add distinct texts, or the long ones in pieces "
        "(corpus.sources: pieces), or train fewer passes (train.epochs)."
    )


def more_texts(report: Part) -> str:
    """Texts that were trained on are nearer to the teacher than new ones, where their neighbours were not compared."""
    new, seen = get(report, "texts.mean"), get(report, "texts.trained.mean")
    judgement = _judgement(report)
    if judgement is not None and judgement.trained is not None:  # `overfits` has intervals
        return ""
    if not new or not seen or not _seen_once(report) or seen > (1 - NEARER) * new:
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
        f"smaller, {number(share, 1)}% of the student's score."
    )


def smaller_weights(report: Part) -> str:
    """The student was not exported."""
    if get(report, "exports") or not get(report, "record.student"):
        return ""
    student = shlex.quote(str(Path(report.get("folder") or ".") / "student"))
    return f"Export a smaller and faster file: distilvec export {student} --to onnx-int8 (int8 weights, checked)."


RULES: Sequence[Callable[[Part], str]] = (
    fits_the_index, training_lowers, far_from_the_space, random_layer, teacher_below, retrieval_falls, overfits,
    still_better, more_texts, confused_classes, teachers_documents, smaller_vectors, smaller_weights,
)  # fmt: skip


def _judgement(report: Part) -> Judgement | None:
    """The judgement by neighbours, but of a run on labels, whose aim is another one."""
    return None if get(report, "record.supervised") else read_judgement(get(report, "neighbors"))


def _first(shares: NeighborShares) -> Share | None:
    """The share that is named first: among the teacher's vectors, else alone."""
    return shares.among or shares.alone


def _random_layer(report: Part) -> bool:
    return bool(get(report, "record.training.linear_layer") == "random")


def _seen_once(report: Part) -> bool:
    """Whether every training text was seen."""
    texts, rows = get(report, "record.training.texts"), get(report, "record.data.train_rows")
    return bool(texts and rows and texts >= rows)


def _below_zero(interval: Sequence[float] | None) -> bool:
    """Whether a difference's interval [low, high, p] is known and below 0."""
    return interval is not None and interval[1] < 0


def _above_zero(interval: Sequence[float] | None) -> bool:
    """Whether a difference's interval [low, high, p] is known and above 0."""
    return interval is not None and interval[0] > 0
