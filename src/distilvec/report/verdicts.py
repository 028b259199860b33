"""Every judgement in words, the same on terminal, page and card: what a number means, and what follows from it.

- make_verdict: the sentence that the report of a student begins with, and its numbers
- pairs_sentence: what clicks have brought, and whether their stage was dropped
- dropped_sentence: a training, or a stage of it, that brought nothing
- fitted_sentence: a student that was fitted, and not trained
- overlap_sentence, compatibility_note: the judgement by overlap@10, and whether the student can search the teacher's
  vectors
- index_verdict, index_reason, index_advice: whether to use a model with an index, why not, and what to do
- labels_sentence: a student on the test rows of labels
- leader_sentence: which of several runs leads
What to try next is in advice.py.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from distilvec.core.similarity import NEIGHBOR_COUNT, Similarity, SimilaritySource
from distilvec.evaluation.aggregate import AVERAGE, AVERAGES, RETRIEVAL, average, retention, without_index_tasks
from distilvec.evaluation.diagnostics import LabelledScores
from distilvec.evaluation.evaluator import Score
from distilvec.evaluation.overlap import DOUBTFUL, FITS, WIDER, Compatibility, Judgement
from distilvec.evaluation.significance import least_p
from distilvec.evaluation.speed import Speed
from distilvec.evaluation.tasks import KNOWN_ITEM, NEIGHBORS
from distilvec.report.record import RunRecord, StageRecord
from distilvec.report.scores import ScoresByModel, shared
from distilvec.report.tables import number
from distilvec.report.values import Changes, Marks, Verdict, VocabularyChange
from distilvec.teachers.agreement import Disagreement
from distilvec.train.checkpoint import Progress

if TYPE_CHECKING:
    from distilvec.evaluation.pairs import PairJudgement

FLOAT_MB = 4e-6  # megabytes of a parameter in float32
OVERLAP_MARKS = Marks(FITS, DOUBTFUL)  # "teacher-compatible" means the same on screen, page and card, and in `check`
# Of an existing model: why its vectors disagree with the stored ones (teachers/agreement.py), "chance", "far"; of a
# training: "own space", "not learned", "too short"; of a student that was not trained: "own space", "fitted".
Reason = Literal["fits", "in part", "own space", "chance", "far", "fitted", "not learned", "too short"] | Disagreement
LOWER_RATE = "Lower train.learning_rate"  # begins the advice after what a dropped training did


# -- a student ---------------------------------------------------------------------------------------------------------


def make_verdict(
    scores: ScoresByModel,
    changes: Changes | None = None,
    speed: Speed | None = None,
    record: RunRecord | None = None,
    vocabulary: VocabularyChange | None = None,
) -> Verdict:
    """Return the verdict on a student. `changes` are the student's against the teacher.

    Tasks that are made of an index itself count in no average.
    """
    record = record or RunRecord()
    student = without_index_tasks(scores.get("student", ()))
    teacher = without_index_tasks(scores.get("teacher", ()))
    asymmetric = without_index_tasks(scores.get("asymmetric", ()))
    alone = retention(student, teacher)
    with_documents = retention(asymmetric, teacher)

    judged = shared(student, teacher)[0] if teacher else student
    suite_tasks = {score.task for column in scores.values() for score in without_index_tasks(column)}
    verdict = Verdict(
        retention=alone.get(AVERAGE),
        asymmetric_retention=with_documents.get(AVERAGE),
        retrieval=alone.get(RETRIEVAL),
        asymmetric_retrieval=with_documents.get(RETRIEVAL),
        task_count=len(judged),
    )
    if len(shared(asymmetric, teacher)[0]) < len(judged):
        verdict.asymmetric_retention = None  # over fewer tasks than the student's own
    if judged and len(judged) < len(suite_tasks):
        verdict.coverage = f" on {len(judged)} of {len(suite_tasks)} tasks"
    by_task = {task: share for task, share in alone.items() if task not in AVERAGES}
    if len(by_task) > 1:
        verdict.worst_task = min(by_task, key=lambda task: by_task[task])
        verdict.worst_change = by_task[verdict.worst_task] - 100
    of_average = (changes or {}).get(AVERAGE)
    answered = shared(student, teacher)[1]
    if of_average is not None and answered:
        verdict.within_interval = of_average.low <= 0 <= of_average.high
        of_teacher = average(answered)
        if of_teacher > 0:
            bounds = (100 + 100 * of_average.low / of_teacher, 100 + 100 * of_average.high / of_teacher)
            verdict.retention_interval = bounds
    _add_task_score(verdict, record.supervised)
    _add_overlap(verdict, record.overlap)
    _add_sizes(verdict, record, speed)
    teachers = [record.teacher, *record.more_teachers]
    apis = [teacher.api for teacher in teachers if teacher is not None and teacher.api is not None]
    verdict.teacher_requests = _sum(api.requests for api in apis)
    verdict.teacher_tokens = _sum(api.tokens for api in apis)
    verdict.teacher_cost = _sum(api.cost for api in apis)
    if vocabulary is not None:
        verdict.vocabulary_tokens = vocabulary.after.vocabulary.size
        verdict.vocabulary_tokens_before = vocabulary.before.vocabulary.size
    if speed is not None:
        verdict.times_faster = _positive(speed.ratio.get("query"))
        verdict.documents_times_faster = _positive(speed.ratio.get("document"))
    verdict.text = "; ".join(_sentences(verdict, student, scores.get("asymmetric", ()), record)) or "not evaluated"
    return verdict


def _sentences(verdict: Verdict, student: Sequence[Score], searched: Sequence[Score], record: RunRecord) -> list[str]:
    """Return the parts of the verdict's text, the judgement by overlap@10 last, of an index first."""
    parts = []
    if verdict.task is not None:
        is_share = verdict.task_metric == "accuracy"
        score = f"{verdict.task_score:.1f}% right" if is_share else f"{verdict.task_metric} {verdict.task_score:.1f}"
        parts.append(f"{score} on {verdict.task}")
        if verdict.teacher_score is not None:
            parts.append(f"the teacher has {verdict.teacher_score:.1f}{'%' if is_share else ''}")
    if verdict.retention is not None and (verdict.task is None or verdict.task_count > 1):
        within = " (no measurable difference)" if verdict.within_interval else ""
        parts.append(f"{retention_text(verdict)}{within}")
        if verdict.retrieval is not None:
            more = ""
            if verdict.asymmetric_retrieval is not None:
                more = f", {verdict.asymmetric_retrieval:.1f}% with the teacher's documents"
            parts.append(f"{verdict.retrieval:.1f}% on retrieval{more}")
    elif student and record.supervised is None:
        parts.append(f"{average(student):.1f} on average{verdict.coverage or f' over {verdict.task_count} tasks'}")

    judgement = record.overlap
    if judgement is None:
        return parts
    if judgement.origin == "index":
        return [overlap_sentence(judgement), *index_sentences(searched), *parts]
    if not student and verdict.task is None:
        parts.append(overlap_sentence(judgement))
    return parts


def retention_text(verdict: Verdict) -> str:
    """Return how much of the teacher's average the student keeps, and on how many tasks."""
    tasks = verdict.coverage or (" on 1 task" if verdict.task_count == 1 else f" on {verdict.task_count} tasks")
    return f"{verdict.retention:.1f}% of the teacher's average{tasks}"


def index_sentences(searched: Iterable[Score]) -> list[str]:
    """Return how well an index is searched by queries of a student: for its own texts, and on tasks of a suite."""
    of_index, of_suite = [], []
    for score in searched:
        if score.task == KNOWN_ITEM:
            rank = score.metrics["mrr@10"] / 100
            of_index.append(f"a stored text is found at rank 1 to 10 with MRR {rank:.2f}")
        elif score.task != NEIGHBORS and score.type == "retrieval":
            of_suite.append(f"nDCG@10 {score.value:.1f} on {score.task}")
    return of_index + of_suite


def _add_task_score(verdict: Verdict, supervised: LabelledScores | None) -> None:
    """Add the student's main metric on the test rows of a labelled task."""
    if supervised is None:
        return
    metric = "spearman" if supervised.type == "sts" else "accuracy"
    value = supervised.scores.get("student", {}).get(metric)
    if value is not None:
        verdict.task_score, verdict.task_metric, verdict.task = 100 * value, metric, supervised.task
        if metric == "accuracy":
            low, high = supervised.accuracy("student").interval
            verdict.task_score_interval = (100 * low, 100 * high)
        teacher = supervised.scores.get("teacher", {}).get(metric)
        if teacher is not None:
            verdict.teacher_score = 100 * teacher


def _add_overlap(verdict: Verdict, judgement: Judgement | None) -> None:
    if judgement is None or verdict.task is not None:  # labels have another aim
        return
    verdict.of_index = judgement.origin == "index"
    among, alone = judgement.student.among, judgement.student.alone
    if among is not None:
        verdict.overlap_among, verdict.overlap_among_interval = among.mean, (among.low, among.high)
    if alone is not None:
        verdict.overlap_alone, verdict.overlap_alone_interval = alone.mean, (alone.low, alone.high)


def _add_sizes(verdict: Verdict, record: RunRecord, speed: Speed | None) -> None:
    """Add the teacher's parameters over the student's, and the student's megabytes, from the record or from speed."""
    sizes = speed.models if speed is not None else {}
    student = record.student.parameters if record.student is not None else None
    if not student and "student" in sizes:
        student = sizes["student"].parameters
    if not student:
        return
    verdict.megabytes = FLOAT_MB * student
    teacher = record.teacher.parameters if record.teacher is not None else None
    is_unread = record.teacher is not None and record.teacher.unread
    if not teacher and "teacher" in sizes:
        teacher = sizes["teacher"].parameters
    if teacher and teacher > 1.05 * student and not is_unread:
        verdict.times_smaller = teacher / student


def _sum(values: Iterable[float | None]) -> float | None:
    numbers = [value for value in values if value is not None]
    return sum(numbers) if numbers else None


def _positive(value: float | None) -> float | None:
    if value is None or not math.isfinite(value) or value <= 0:
        return None
    return float(value)


def dropped_sentence(state: Progress, labelled: bool, stages: Sequence[StageRecord]) -> str | None:
    """Return the sentence for a run in which a stage, or the whole training, was dropped; `state` is the last stage's.

    A training that improves nothing ships its start; a stage leaves what it began with.
    """
    dropped = [stage.name for stage in stages if stage.dropped]
    if not dropped:
        return None
    if state.step == 0 and len(stages) == 1:
        return "Saved as it is: the student already equals the teacher on these texts."
    rate, steps = f"{state.learning_rate:.1e}", f"{state.step:,} steps"
    lower = f"{LOWER_RATE} (it was {rate}), or train longer (it was {steps})."
    if len(dropped) < len(stages) or state.start is None:  # None: validation does not rank students of the last stage
        return f"The stage {' and '.join(dropped)} did not help and was dropped. Lower its train.learning_rate."
    start, last = state.start, state.last
    assert start is not None and last is not None  # a start ships only where it is the best that was validated
    values = f"{start.metric.value:.4f} before, {last.metric.value:.4f} after"
    if labelled:
        return (
            "Training did not help: the start, a logistic regression on the unchanged vectors, is saved (validation: "
            f"{values}). {lower}"
        )
    measured = f"{last.metric.title} {values}"
    if last.metric.is_better_than(start.metric):
        measured = f"overlap@10 {start.overlap:.2f} before, {last.overlap:.2f} after; {measured}"
    return f"Training brought nothing ({measured}): the untrained student is saved. {lower}"


def pairs_sentence(judgement: PairJudgement) -> str:
    """Return what validation pairs say of a stage that learns from them, and whether it was kept."""
    score = judgement.score
    queries = "query" if score.queries == 1 else "queries"
    gain = (
        f"on {score.queries:,} validation {queries} nDCG@10 went from {score.before:.3f} to {score.after:.3f} "
        f"(difference {score.after - score.before:+.3f} [{judgement.low:+.3f}, {judgement.high:+.3f}])"
    )
    overlap = (
        f"overlap@10 on held-out stored texts from {judgement.overlap_before:.3f} to {judgement.overlap_after:.3f}"
    )
    if judgement.is_kept:
        text = f"The stage {judgement.stage} was kept: {gain}, {overlap}."
    else:
        reasons = []
        if not judgement.is_gain:
            reasons.append("the interval is not above 0")
        if not judgement.holds_overlap:
            reasons.append("overlap@10 fell by more than two points")
        text = (
            f"The stage {judgement.stage} was dropped, and the student before it is saved: {gain}, {overlap}; "
            f"{' and '.join(reasons)}."
        )
    groups = []
    for name, group in (("seen in training", judgement.seen), ("not seen", judgement.unseen)):
        if group is not None:
            groups.append(f"documents {name}: {group.before:.3f} to {group.after:.3f} ({group.queries:,} queries)")
    if groups:
        text += f" {'; '.join(groups).capitalize()}."
    if judgement.repeats_search:
        text += (
            " Clicks only know what the old search showed: a document that it never showed counts as no answer "
            "(pairs.propensity weighs clicks by their position)."
        )
    return text


def fitted_sentence(of_index: bool) -> str:
    """Return the sentence for a student that is the start of a training, on an index of another model or not."""
    sentence = (
        "Fitted, not trained (train.epochs=0): it finds candidates for a reranker. The same command with --minutes or "
        "--epochs trains on from here."
    )
    if of_index:
        sentence += (
            " It can at best reach the ranking of the model that made the index. If it is the better model, embed the "
            "documents again with it."
        )
    return sentence


# -- overlap@10 --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class CompatibilityNote:
    """Whether queries of the student can search the teacher's vectors: a title, and what follows from it."""

    title: str
    text: str


def overlap_sentence(judgement: Judgement) -> str:
    """Return the sentence that every report of the student begins with, without a full stop.

    That of an index says how vectors were compared, and what the queries were.
    """
    student, start = judgement.student, judgement.start
    whose = "the index's" if judgement.origin == "index" else "the teacher's"
    parts, before = [], []
    if student.among is not None:
        where = "" if judgement.origin == "index" else " among the teacher's vectors"
        parts.append(f"finds {student.among.mean:.2f} of {whose} ten nearest{where} (overlap@10) {student.among.text}")
        if start is not None and start.among is not None:
            before.append(f"{start.among.mean:.2f}")
    if student.alone is not None:
        alone = f"{student.alone.mean:.2f}"
        where = "ten nearest with its own vectors (overlap@10)"
        first = f"finds {alone} of {whose} {where}" if not parts else f"{alone} alone"
        parts.append(f"{first} {student.alone.text}")
        if start is not None and start.alone is not None:
            before.append(f"{start.alone.mean:.2f}")
    sentence = ", ".join(parts)
    if judgement.similarity_source is not None:
        source = SIMILARITY_SOURCES[judgement.similarity_source]
        sentence += f" by {SIMILARITY_NAMES[judgement.similarity]}, {source}"
    if before:
        sentence += f"; before training {' and '.join(before)}"
    if judgement.origin == "index":
        sentence += f"; {_queries_text(judgement)}{_part_text(judgement)}"
    return sentence


def _queries_text(judgement: Judgement) -> str:
    """Return what the queries of an index were, and with real ones what a reranker could still find."""
    log = judgement.log
    documents = "; a document with several rows counts once" if judgement.by_document else ""
    if log is None:
        return f"judged on stored texts; queries are shorter{documents}"
    share, interval = judgement.student.among_wider, judgement.student.among_wider_interval
    assert share is not None and interval is not None
    wider = f"its first {WIDER} hold {share:.2f} of them [{interval[0]:.2f}, {interval[1]:.2f}]"
    drawn = f"{judgement.queries:,} queries"
    if judgement.queries < log.distinct:
        drawn = f"{judgement.queries:,} of {log.distinct:,} distinct queries, drawn evenly"
    return f"{wider}; judged on {drawn}, by what {log.made_by} finds{documents}"


def _part_text(judgement: Judgement) -> str:
    """Return that a part of an index was searched, and how the share falls as the index grows."""
    if judgement.all_rows is None:
        return ""
    shares = [f"{part.share.mean:.2f} among {part.candidates:,}" for part in judgement.parts]
    return (
        f"; only {judgement.texts:,} of {judgement.all_rows:,} rows were read, and the share falls as an index grows: "
        f"{', '.join(shares)}"
    )


def compatibility_note(record: RunRecord) -> CompatibilityNote | None:
    """Return what a student's record says of a search among the teacher's vectors; None without a teacher."""
    teacher, judgement = record.teacher, record.overlap
    if teacher is None or teacher.unread:
        return None
    measured = "" if judgement is None else f"It {overlap_sentence(judgement)}. "
    if not record.in_teacher_space:
        width = None if record.student is None else record.student.width
        widths = ""
        if teacher.width and teacher.width != width:
            widths = f"Its vectors have {width or '?'} dimensions, the teacher's {teacher.width}. "
        return CompatibilityNote(
            "Teacher-compatible: no", f"{widths}{measured}Compare vectors of this model only with each other."
        )
    if judgement is None or judgement.compatibility is None:
        return CompatibilityNote(
            "Teacher-compatible: not measured",
            f"It was trained into the teacher's space. {measured}Measure its overlap@10 "
            "before it searches the teacher's vectors.",
        )
    if judgement.origin == "index":
        title = f"Teacher-compatible: {judgement.compatibility}"
        is_fitted = record.training is not None and bool(record.training.fitted)
        return CompatibilityNote(title, f"{measured}{index_advice(judgement, fitted=is_fitted)}")
    if judgement.compatibility == "yes":
        return CompatibilityNote(
            "Teacher-compatible: yes",
            f"{measured}So you can embed queries with this model and search documents that the teacher embedded. You "
            "can move between the two models without embedding documents again.",
        )
    if judgement.compatibility == "in part":
        return CompatibilityNote(
            "Teacher-compatible: in part",
            f"{measured}Among the teacher's vectors {wider_text(judgement)}: rank these 100 again with the teacher or "
            "a cross-encoder, or train longer.",
        )
    return CompatibilityNote(
        "Not yet teacher-compatible",
        f"{measured}From {DOUBTFUL:g}, its results among the teacher's vectors are worth ranking again; from {FITS:g}, "
        "they can replace the teacher's. Until then compare vectors of this model only with each other, or train "
        "longer.",
    )


def wider_text(judgement: Judgement) -> str:
    """Return the overlap@10 that the student has in its first 100, or in all where there are fewer, in words."""
    share = judgement.student.among_wider or 0.0
    whose = "the index's" if judgement.origin == "index" else "the teacher's"
    return (
        f"its first {min(WIDER, judgement.candidates)} of {judgement.candidates:,} hold {number(100 * share, 1)}% of "
        f"{whose} top {NEIGHBOR_COUNT}"
    )


# -- a model and an index ----------------------------------------------------------------------------------------------

SIMILARITY_NAMES: dict[Similarity, str] = {
    "cosine": "cosine",
    "dot": "inner product",
    "euclidean": "Euclidean distance",
}
SIMILARITY_SOURCES: dict[SimilaritySource, str] = {
    "user": "as stated",
    "index": "as the index states",
    "store": "the store's default",
    "unit vectors": "as the stored vectors have length 1 (every similarity ranks them alike)",
    "nobody": "as the index states no similarity (--similarity)",
}
INDEX_VERDICTS: dict[Compatibility, str] = {
    "yes": "use it",
    "in part": "use it with a reranker",
    "not yet": "do not use it",
}


def index_verdict(judgement: Judgement) -> str:
    """Return whether to use a model with an index, in a few words; without a common space it is of no use."""
    return INDEX_VERDICTS[judgement.compatibility or "not yet"]


def index_reason(judgement: Judgement, fitted: bool = False) -> Reason:
    """Return whether a model fits an index, or in part, and if not, why.

    A judgement with a `start` is of a student that was trained on the index: its vectors are what training made them,
    so that the reason is one of the training. So are those of a student that was `fitted` to the index. Another model
    has its vectors from elsewhere, and the stored ones are compared with them.
    """
    share, agreement = judgement.share, judgement.agreement
    disagreement = None if agreement is None else agreement.reason
    if judgement.start is not None or fitted:
        if share is None or judgement.compatibility is None:
            return "own space"
        if judgement.compatibility == "yes":
            return "fits"
        if disagreement == "cut texts":
            return disagreement
        if judgement.compatibility == "in part":
            return "in part"
        if fitted:
            return "fitted"
        gain = None if judgement.gain is None else judgement.gain.among
        has_learned = share.low > judgement.by_chance and (gain is None or gain.low > 0)
        return "too short" if has_learned else "not learned"

    fits = judgement.compatibility == "yes"
    if disagreement is not None and not (fits and disagreement in ("cut texts", "heading")):
        return disagreement
    if fits:
        return "fits"
    if judgement.compatibility == "in part":
        return "in part"
    return "chance" if share is None or share.low <= judgement.by_chance else "far"


def index_advice(
    judgement: Judgement, distill: str = "distilvec distill INDEX", cut: str = "", fitted: bool = False
) -> str:
    """Return whether to use a model for the queries of an index, why not, and the next step.

    `distill` is the command that trains a student for this index; only the advice on an existing model names it. `cut`
    says which dimensions of the model were compared, if not all: "the first 64 of 128 dimensions". `fitted`: the model
    was fitted to the index, and not trained.
    """
    reason = index_reason(judgement, fitted)
    agreement = judgement.agreement
    verdict = f"{index_verdict(judgement).capitalize()}: "
    if judgement.compatibility == "yes":
        verdict += "the model fits the index. Compare its answers on real queries for some days."
    elif judgement.compatibility == "in part":
        verdict += f"{wider_text(judgement)}."
    rank = "Rank its top 100 again with the large model or a cross-encoder"
    train = f"Train one for this index: {distill}."
    if fitted:
        train = "Train it: the same command with --minutes or --epochs goes on from here."
    texts = {
        "fits": "",
        "in part": f"{rank}." if judgement.start is not None else f"{rank}. {train}",
        "own space": "its method trains a vector space of its own, so its vectors cannot be compared with the stored "
        "vectors. Take another method, such as redact (method.name).",
        "chance": "the model finds no more of the index's top 10 than chance. Either its vectors are in another space, "
        f"or texts and vectors are in different order: check order and ids. {train}",
        "far": f"the model is in the index's space, but not close enough. {train}",
        "not learned": "training has not brought the student close to the stored vectors. Either it was far too short, "
        "or texts and vectors do not belong together: check their order, their ids, and whether one model made all.",
        "fitted": f"it is not close enough without training. {train}",
        "too short": "training has brought the student closer, but not close enough.",
    }
    text = texts.get(reason, "")
    if agreement is not None and not text:
        text = agreement.text
        if reason == "other space":
            text = f"{text} {train}"
    if verdict.endswith(": ") and text[:4] == "The ":
        text = f"t{text[1:]}"
    advice = f"{verdict.rstrip()} {text}".strip()
    if cut and judgement.compatibility in ("yes", "in part"):
        advice += f" Cut its vectors to {cut}."
    return advice


# -- labels ------------------------------------------------------------------------------------------------------------


def labels_sentence(supervised: LabelledScores) -> str:
    """Return how good a student is on test rows, beside its teacher, without a full stop."""
    metric, unit = ("spearman", "") if supervised.type == "sts" else ("accuracy", "%")
    values = {model: scores.get(metric) for model, scores in supervised.scores.items()}
    points = {model: 100 * value for model, value in values.items() if value is not None}
    sentence = f"Spearman {points['student']:.1f} on {supervised.rows:,} test rows"
    if metric == "accuracy":
        student = supervised.accuracy("student")
        low, high = (100 * limit for limit in student.interval)
        has_several = supervised.type == "multilabel"
        right = "with every label right" if has_several else "right"
        sentence = f"{points['student']:.1f}% {right} on {student.rows:,} test rows [{low:.1f}, {high:.1f}]"
        if has_several and student.f1 is not None:
            sentence += f", F1 {student.f1:.2f}"
    return f"{sentence}; the teacher has {points['teacher']:.1f}{unit}" if "teacher" in points else sentence


# -- several runs ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Lead:
    """The best row on a task or average, and how far it is ahead of another; see `compare_runs`.

    every_seed: it is ahead with every seed that both rows have
    clear: its lead over every other row is outside the interval, and with every seed
    differing: test rows on which the two differ
    too_few: so few that no test can tell which is better
    """

    run: str
    over: str
    difference: float
    low: float | None = None
    high: float | None = None
    every_seed: bool = True
    clear: bool = False
    differing: int | None = None
    too_few: bool = False


def leader_sentence(lead: Lead | None, runs: int) -> str:
    """Say which of several runs leads on average, or that none does, and why; "" without a lead."""
    if lead is None:
        return ""
    if lead.differing == 0:
        return f"No winner: {lead.run} and {lead.over} are equal on every test row."
    points = f"{number(lead.difference)} points"
    if lead.low is None or lead.high is None:
        return f"No winner yet: {lead.run} leads {lead.over} by {points}, which cannot be tested."
    points += f" [{number(lead.low)}, {number(lead.high)}]"
    if lead.too_few and lead.differing is not None:
        return (
            f"No winner yet: {lead.run} leads {lead.over} by {points}, but they differ on too few test rows "
            f"({lead.differing}) to tell: no test can give a p-value below {least_p(lead.differing):.2g}."
        )
    if not lead.clear:
        reason = "" if lead.every_seed else ", but not with every seed"
        return f"No winner yet: {lead.run} leads {lead.over} by {points}{reason}."
    if runs == 2:
        return f"{lead.run} leads {lead.over} by {points}."
    return f"{lead.run} leads every other run; the next one, {lead.over}, by {points}."
