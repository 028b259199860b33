"""Advice on what to try next, from the numbers of a report.json; each rule names the numbers that it follows from.

A rule that compares two scores, or two overlap@10, is silent where the interval of their difference holds 0.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Literal

from distilvec.evaluation.aggregate import AVERAGE, RETRIEVAL, average, without_index_tasks
from distilvec.evaluation.diagnostics import as_scores
from distilvec.evaluation.overlap import Judgement, Overlap, OverlapShare
from distilvec.report.record import TrainingRecord
from distilvec.report.scores import shared
from distilvec.report.sections.compression import BITS, mean_rows, vectors
from distilvec.report.sections.training import metric_values
from distilvec.report.tables import number
from distilvec.report.values import Report, Verdict
from distilvec.report.verdicts import LOWER_RATE, Reason, index_advice, index_reason
from distilvec.train.metrics import OVERLAP_BY_CHANCE, VALIDATION_OVERLAP, Metric, watched_metric

FALLS = 3.0  # percent of the teacher's score that retrieval keeps less than the average
HELPS = 1.0  # percent that the teacher's documents add
FAR = 10.0  # percent of the teacher's score that its documents cost
LOWER = 1.0  # points that a teacher may be below its student
FAR_BELOW = 10.0  # points that a student is below its teacher on labels, from which a larger one is worth its size
STILL = 0.005  # share by which the last validation was better than the one before; set for the distance
NEARER = 0.04  # share by which texts that were trained on are nearer to the teacher than new ones
EQUAL = 0.95  # overlap@10 from which an untrained student is its teacher for the texts whose tokens it kept
KEPT = 99.0  # percent of the student's own score that a smaller vector keeps
RIDGE = "start the new linear layer from a regression on the teacher's vectors (student.start=ridge)"


def advice(report: Report) -> list[str]:
    """Return sentences, the most important first."""
    sentences = [rule(report) for rule in RULES]
    return [sentence for sentence in sentences if sentence]


def fits_the_index(report: Report) -> str:
    """A student of an index; one that training brought nothing is advised on above."""
    judgement = _judgement(report)
    if judgement is None or judgement.origin != "index":
        return ""
    if _training_record(report).brought_nothing and judgement.compatibility != "yes":
        return ""
    return index_advice(judgement, fitted=bool(_training_record(report).fitted))


def reason(report: Report) -> Reason | Literal["brought nothing"] | None:
    """Return what the advice follows from first, of a training that brought nothing or a student of an index."""
    if _training_record(report).brought_nothing:
        return "brought nothing"
    judgement = _judgement(report)
    if judgement is None or judgement.origin != "index":
        return None
    return index_reason(judgement, fitted=bool(_training_record(report).fitted))


def what_was_dropped(report: Report) -> str:
    """The student before training ships, or a stage was left out."""
    sentence = _training_record(report).shipped or ""
    if needs_words(report):  # no rate and no length bring words that the student does not have
        return sentence.partition(f" {LOWER_RATE}")[0]
    return sentence


def training_lowers(report: Report) -> str:
    """The student before training had the higher average, or had a higher overlap@10."""
    columns = (without_index_tasks(report.scores.get(name, ())) for name in ("student", "untrained"))
    student, untrained = shared(*columns)
    change = report.changes.get("training", {}).get(AVERAGE)
    judgement = _judgement(report)
    lost = ""
    if student and change is not None and change.is_loss:
        lost = f"the average fell from {number(average(untrained), 1)} to {number(average(student), 1)}"
    elif judgement is not None and judgement.start is not None and judgement.gain is not None:
        gain = judgement.gain.among or judgement.gain.alone
        before, after = _first_share(judgement.start), _first_share(judgement.student)
        if gain is not None and gain.high < 0 and before is not None and after is not None:
            lost = f"overlap@10 fell from {before.mean:.2f} to {after.mean:.2f}"
    if not lost:
        return ""
    rate = _training_record(report).learning_rate
    lower = f"train.learning_rate={rate / 3:.1g} instead of {rate:g}" if rate else "a lower train.learning_rate"
    return f"Training made the student worse: {lost}. Most often the rate is too high: try {lower}."


def far_from_the_space(report: Report) -> str:
    """Among the teacher's vectors the student finds far less than among its own."""
    alone, with_documents = _kept_in_search(report)
    changes = report.changes.get("documents", {})
    change = changes.get(RETRIEVAL, changes.get(AVERAGE))
    judgement = _judgement(report)
    shares = ""
    has_fallen = change is not None and change.is_loss
    if has_fallen and alone is not None and with_documents is not None and alone - with_documents >= FAR:
        shares = f"{number(with_documents, 1)}% of its retrieval score instead of {number(alone, 1)}%"
    elif judgement is not None and judgement.student.among is not None and judgement.student.alone is not None:
        own_share, among = judgement.student.alone, judgement.student.among
        if among.high < own_share.low:
            shares = f"an overlap@10 of {among.mean:.2f} instead of {own_share.mean:.2f}"
    if not shares:
        return ""
    fix = "train longer (train.epochs)"
    if _starts_at_random(report):
        fix = f"{RIDGE}, or {fix}"
    return (
        f"Among the teacher's vectors the student keeps {shares} alone, so it is not close enough to the teacher's "
        f"space: {fix}."
    )


def random_layer(report: Report) -> str:
    """A new linear layer started at random, and the student cannot search the teacher's vectors yet."""
    judgement = _judgement(report)
    if judgement is None or not _starts_at_random(report) or far_from_the_space(report):
        return ""
    if judgement.compatibility in (None, "yes"):
        return ""
    return f"The linear layer to the teacher's vectors started at random: {RIDGE}."


def teacher_below(report: Report) -> str:
    """A fine-tuned teacher is below its student on the labelled task."""
    supervised = None if report.record is None else report.record.supervised
    if supervised is None:
        return ""
    student = supervised.scores.get("student", {}).get("accuracy")
    teacher = supervised.scores.get("teacher", {}).get("accuracy")
    if student is None or teacher is None or 100 * (student - teacher) < LOWER:
        return ""
    change = report.intervals.get("student", {}).get(supervised.task)
    if change is None or not change.is_gain:
        return ""
    below = f"The teacher ({number(100 * teacher, 1)}) is worse than its student ({number(100 * student, 1)})"
    return (
        f"{below}: fine-tune the teacher longer or at a higher rate (distilvec finetune --epochs, --learning-rate), "
        "and compare a training on the labels only (distilvec run task)."
    )


def far_below_the_teacher(report: Report) -> str:
    """A student that is far below its teacher on the labelled task."""
    supervised = None if report.record is None else report.record.supervised
    if supervised is None:
        return ""
    scores = as_scores(supervised)
    change = report.intervals.get("student", {}).get(supervised.task)
    if "student" not in scores or "teacher" not in scores or change is None or not change.is_loss:
        return ""
    student, teacher = scores["student"][0].value, scores["teacher"][0].value
    if teacher - student < FAR_BELOW:
        return ""
    ways = "label more rows"
    if report.verdict is not None and report.verdict.times_smaller is not None and report.verdict.times_smaller > 1:
        ways = "take a larger student (student.layers), or label more rows"
    return f"The student ({number(student, 1)}) is far below its teacher ({number(teacher, 1)}): {ways}."


def confused_classes(report: Report) -> str:
    """The classes that a classifier confuses most."""
    confused = [] if report.mistakes is None else report.mistakes.confused
    most = [pair for pair in confused if pair.rows > 1][:2]
    if not most:
        return ""
    pairs = "; ".join(f"{pair.name} for {pair.taken_for} ({pair.rows} test rows)" for pair in most)
    return f"Confused most: {pairs}. Read these texts in the report; add training rows, or merge the labels."


def retrieval_falls(report: Report) -> str:
    """Retrieval keeps less than the average does, and training is not the cause."""
    verdict = report.verdict or Verdict()
    retention, retrieval = verdict.retention, verdict.retrieval
    if retention is None or retrieval is None or retention - retrieval < FALLS or training_lowers(report):
        return ""
    change = report.intervals.get("student", {}).get(RETRIEVAL)
    if change is None or not change.is_loss:
        return ""
    larger = "keep more layers (student.layers)"
    if report.vocabulary is not None:
        larger = "take a larger token table (student.vocabulary)"
    return (
        f"Retrieval falls most ({number(retrieval, 1)}% of the teacher's score; all tasks {number(retention, 1)}%): "
        f"train longer (train.epochs), or {larger}."
    )


def teachers_documents(report: Report) -> str:
    """Retrieval is better with the teacher's documents."""
    alone, with_documents = _kept_in_search(report)
    if alone is None or with_documents is None or with_documents - alone < HELPS:
        return ""
    has_other_tasks = report.verdict is not None and report.verdict.retrieval is not None
    change = report.changes.get("documents", {}).get(RETRIEVAL if has_other_tasks else AVERAGE)
    if change is None or not change.is_gain:
        return ""
    return (
        f"Search the teacher's documents with the student's queries: {number(with_documents, 1)}% of the teacher's "
        f"retrieval instead of {number(alone, 1)}%."
    )


def still_improves(report: Report) -> str:
    """The last validation was the best one, and clearly better than the one before."""
    metrics = _validations(report)
    if len(metrics) < 4 or needs_words(report):
        return ""
    steps = list(metrics)[1:]
    before, last = metrics[steps[-2]], metrics[steps[-1]]
    if _best_step(metrics) != steps[-1] or not last.is_better_than(before, STILL):
        return ""
    change = f"{number(before.value, 4)} to {number(last.value, 4)}"
    return f"The validation {last.title} still improved at the end ({change}): train longer (train.epochs)."


def best_long_before(report: Report) -> str:
    """The best validation was long before the last one, and the overlap@10 was not higher later."""
    metrics = _validations(report)
    if len(metrics) < 3:
        return ""
    best_step, last_step = _best_step(metrics), list(metrics)[-1]
    best, last = metrics[best_step], metrics[last_step]
    # The student with the higher overlap@10 is the better one, and is saved (train/start.py)
    overlap = dict(metric_values(report.history, f"eval/{VALIDATION_OVERLAP}"))
    gain = overlap.get(last_step, 0.0) - overlap.get(best_step, 0.0)
    if best_step >= 0.7 * last_step or not last.is_worse_than(best, STILL) or gain > OVERLAP_BY_CHANCE:
        return ""
    is_labelled = report.record is not None and report.record.supervised is not None
    return (
        f"The validation {last.title} was best at step {best_step:,} of {last_step:,}: lower train.learning_rate, "
        f"or add {'labelled rows' if is_labelled else 'texts'}."
    )


def _validations(report: Report) -> dict[int, Metric]:
    """Return the watched metric by step, which has a better direction; the first is the start's."""
    metrics = {}
    for line in report.history:
        metric = watched_metric(line)
        if metric is not None and metric.higher_is_better is not None:
            metrics[int(line["step"] or 0)] = metric
    return metrics


def _best_step(metrics: Mapping[int, Metric]) -> int:
    """Return the step of the best validation after the start; of equal ones the first."""
    first, *steps = list(metrics)[1:]
    best = first
    for step in steps:
        if metrics[step].is_better_than(metrics[best]):
            best = step
    return best


def overfits(report: Report) -> str:
    """The student has a higher overlap@10 for texts that it was trained on, or whose words it kept, than for others."""
    shares = _shares_apart(report)
    if shares is None:
        return ""
    seen, new = shares
    if needs_words(report):
        return (
            f"More texts keep more words: overlap@10 is {seen.mean:.2f} for these texts, {new.mean:.2f} for new ones."
        )
    if not _every_text_was_seen(report):
        return ""
    judgement = _judgement(report)
    before = None if judgement is None or judgement.start is None else _first_share(judgement.start)
    if before is not None and new.mean <= before.mean:
        return ""  # training changed nothing: a start is nearer to its texts where their tokens alone were kept
    return (
        f"More texts would help: overlap@10 is {seen.mean:.2f} for trained texts, {new.mean:.2f} for new texts. Add "
        "distinct texts, or cut long texts into pieces (corpus.sources: pieces)."
    )


def needs_words(report: Report) -> bool:
    """Whether the untrained student ships, and equals the teacher on its own texts alone, whose tokens it kept."""
    shares, training = _shares_apart(report), _training_record(report)
    if shares is None or training.fitted:
        return False
    return training.steps == 0 or (training.brought_nothing and shares[0].mean >= EQUAL)


def _shares_apart(report: Report) -> tuple[OverlapShare, OverlapShare] | None:
    """Return overlap@10 of the texts of the training and of new ones, None where the first is not clearly higher."""
    judgement = _judgement(report)
    if judgement is None or judgement.trained is None:
        return None
    seen, new = _first_share(judgement.trained), _first_share(judgement.student)
    if seen is None or new is None or seen.low <= new.high:
        return None
    return seen, new


def more_texts(report: Report) -> str:
    """Texts that were trained on are nearer to the teacher than new ones, where their overlap@10 was not measured."""
    judgement = _judgement(report)
    if judgement is not None and judgement.trained is not None:  # `overfits` has intervals
        return ""
    if report.texts is None or report.texts.trained is None or not _every_text_was_seen(report):
        return ""
    new, seen = report.texts.mean, report.texts.trained.mean
    if seen > (1 - NEARER) * new:
        return ""
    return (
        f"More texts would help: the mean distance is {number(seen, 2)} for trained texts, {number(new, 2)} for new "
        "texts. Add distinct texts, or cut long texts into pieces (corpus.sources: pieces)."
    )


def smaller_vectors(report: Report) -> str:
    """The smallest vectors that keep KEPT percent of the student's score with whole ones."""
    if report.compression is None:
        return ""
    rows = [row for row in mean_rows(report.compression.rows) if row.column == "student"]
    whole = max((row for row in rows if row.precision == "float32"), key=lambda row: row.width, default=None)
    if whole is None or whole.value <= 0:
        return ""
    enough = [row for row in rows if 100 * row.value / whole.value >= KEPT]
    # Of equally small ones the better: binary vectors that are scored again take no more room
    smallest = min(enough, key=lambda row: (BITS[row.precision] * row.width, -row.value))
    times = BITS["float32"] * whole.width / (BITS[smallest.precision] * smallest.width)
    if times < 2:
        return ""
    share = 100 * smallest.value / whole.value
    return (
        f"Store documents in {smallest.width} dimensions as {vectors(smallest.precision)}: {number(times, 0)} times "
        f"smaller, {number(share, 1)}% of the student's score."
    )


RULES: Sequence[Callable[[Report], str]] = (
    what_was_dropped, fits_the_index, training_lowers, far_from_the_space, random_layer, teacher_below,
    far_below_the_teacher, retrieval_falls, overfits, still_improves,
    best_long_before, more_texts, confused_classes, teachers_documents,
    smaller_vectors,
)  # fmt: skip


def _judgement(report: Report) -> Judgement | None:
    """The judgement by overlap@10, but of a run on labels, whose aim is another one."""
    if report.record is not None and report.record.supervised is not None:
        return None
    return report.overlap


def _training_record(report: Report) -> TrainingRecord:
    if report.record is None or report.record.training is None:
        return TrainingRecord()
    return report.record.training


def _kept_in_search(report: Report) -> tuple[float | None, float | None]:
    """The percent of the teacher's retrieval that the student keeps, alone and with the teacher's documents.

    Where every task is a retrieval task, the verdict has no number of its own for them.
    """
    verdict = report.verdict or Verdict()
    if verdict.retrieval is None:
        return verdict.retention, verdict.asymmetric_retention
    return verdict.retrieval, verdict.asymmetric_retrieval


def _first_share(shares: Overlap) -> OverlapShare | None:
    """The share that is named first: among the teacher's vectors, else alone."""
    return shares.among or shares.alone


def _starts_at_random(report: Report) -> bool:
    """Whether a new linear layer into the teacher's space started at random."""
    return _training_record(report).linear_layer == "random"


def _every_text_was_seen(report: Report) -> bool:
    texts = _training_record(report).texts
    rows = None if report.record is None or report.record.data is None else report.record.data.train_rows
    return bool(texts and rows and texts >= rows)
