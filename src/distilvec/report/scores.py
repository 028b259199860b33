"""Scores by model as one table for page, model card, terminal and notebooks, and the verdict made of them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from distilvec.core.escape import one_line
from distilvec.evaluation.aggregate import AVERAGE, AVERAGES, BY_TYPE, RETRIEVAL, average, averages, retention
from distilvec.evaluation.evaluator import Score
from distilvec.evaluation.neighbors import Judgement, read_judgement
from distilvec.evaluation.significance import significance_mark
from distilvec.evaluation.tasks import KNOWN_ITEM, NEIGHBORS
from distilvec.report.neighbors import neighbors_sentence
from distilvec.report.tables import Cell, Part, Table, make_table, number, number_cell, to_frame, words

if TYPE_CHECKING:
    from distilvec.evaluation.tasks import TaskFailure

MODELS = ("teacher", "untrained", "student", "projected", "asymmetric", "untrained_asymmetric", "mixed")
FLOAT_MB = 4e-6  # megabytes of a parameter in float32
LABELS = {RETRIEVAL: "retrieval"}  # of averages
COMPARED = ("student", "projected", "asymmetric")  # models with their changes against the teacher
Scores = Mapping[str, Sequence[Score | Part]]


def by_model(parts: Part | None) -> dict[str, Any]:
    """Return the parts by model in the usual order; empty parts are left out."""
    known = {name: part for name, part in (parts or {}).items() if part}
    return {name: known[name] for name in dict.fromkeys((*MODELS, *known)) if name in known}


def read_scores(scores: Scores | None) -> dict[str, list[Score]]:
    """Return Score objects by model, also from the records of report.json."""
    empty: dict[str, Any] = {"type": "", "metric": "", "metrics": {}, "seconds": 0.0, "rows": 0}
    keys = Score.__dataclass_fields__

    def read(score: Score | Part) -> Score:
        return score if isinstance(score, Score) else Score(**empty | {key: score[key] for key in keys if key in score})

    return {name: [read(score) for score in found] for name, found in by_model(scores).items()}


def shared(ours: Sequence[Score], theirs: Sequence[Score]) -> tuple[list[Score], list[Score]]:
    """Return the scores of two models on the tasks and metrics that both have."""
    both = {(score.task, score.metric) for score in ours} & {(score.task, score.metric) for score in theirs}
    left, right = ([score for score in scores if (score.task, score.metric) in both] for scores in (ours, theirs))
    return left, right


def score_table(
    scores: Scores, intervals: Part | None = None, also: Mapping[str, Sequence[str]] | None = None
) -> Table:
    """Return one row per task, one column per model, then averages and their share of the teacher's.

    A model without a score on some task has no averages, and tasks that are made of an index itself count in none.
    `also` names further metrics by type of task, which get rows of their own and count in no average. With `intervals`
    (report.json's), the models of `COMPARED` get a column with the change against the teacher in points, its stars and
    its interval.
    """
    columns = read_scores(scores)
    compared = COMPARED if intervals is not None and "teacher" in columns else ()
    every = [(name, score) for name, found in columns.items() for score in found]
    tasks = dict.fromkeys((score.task, score.metric) for _, score in every)
    values = {(name, score.task, score.metric): score.value for name, score in every}
    further = {(name, s.task, m): s.metrics.get(m) for name, s in every for m in (also or {}).get(s.type, ())}
    values = {key: value for key, value in further.items() if value is not None} | values
    shown = dict.fromkeys(key for task in tasks for key in (task, *((t, m) for _, t, m in values if t == task[0])))

    def row(label: str, metric: str, found: Part, task: str | None, digits: int = 2) -> list[Cell]:
        cells = [*words(label), Cell(metric.replace("_", " "))]
        for name, value in found.items():
            cells.append(number_cell(value, digits))
            if name in compared:
                low, high, p = ((intervals or {}).get(name) or {}).get(task) or (None, None, None)
                change = None if value is None or found["teacher"] is None else value - found["teacher"]
                stars = "" if p is None else significance_mark(p)
                cells.append(Cell("") if task is None else change_cell(change, low, high, stars))
        return cells

    rows = [
        row(*key, {name: values.get((name, *key)) for name in columns}, key[0] if key in tasks else None)
        for key in shown
    ]
    counted, _ = _without_stored(columns)
    parts: list[tuple[str, str, str | None, dict[str, list[Score]]]] = []
    for key, label in (("in", "in domain"), ("out", "out of domain")):
        group = {name: [score for score in found if score.domain == key] for name, found in counted.items()}
        parts.append((f"{AVERAGE} {label}", AVERAGE, None, group))
    parts += [(name, name, name, counted) for name in (BY_TYPE, RETRIEVAL, AVERAGE)]
    of_a_suite = [task for task, _ in tasks if task not in (NEIGHBORS, KNOWN_ITEM)]
    foot = []
    for title, name, tested, group in parts:
        whole = len(of_a_suite) if tested else max(map(len, group.values()), default=0)
        means = {model: averages(found).get(AVERAGES[name]) for model, found in group.items()}
        if any(value is not None for value in means.values()):
            means = {model: value if len(group[model]) == whole else None for model, value in means.items()}
            kept = {model: retention(found, group.get("teacher", ())).get(name) for model, found in group.items()}
            foot.append(row(LABELS.get(title, title), "", means, tested))
            of_it = title.removeprefix(AVERAGE)
            share = row(f"% of teacher{',' if tested and of_it else ''}{of_it}", "", kept, None, 1)
            foot += [share] if "teacher" in columns else []
    header = [title for name in columns for title in ([name, f"{name}, change"] if name in compared else [name])]
    return Table("score-table", "Scores, times 100", ["Task", "Metric", *header], rows, foot, words=2)


def score_frame(scores: Scores) -> Any:
    """Return a pandas DataFrame in points: task, type, metric, one column per model; one row per task and metric."""
    rows: dict[tuple[str, ...], dict[str, float]] = {}
    for name, found in read_scores(scores).items():
        for score in found:
            rows.setdefault((score.task, score.type, score.metric), {})[name] = score.value
    return to_frame(["task", "type", "metric", *scores], [[*key, *map(row.get, scores)] for key, row in rows.items()])


def task_table(supervised: Part) -> Table:
    """Return the metrics on a labelled task's test split: one row per metric, one column per model."""
    scores: Mapping[str, Part] = supervised.get("scores") or {}
    rows = {name.replace("_", " "): (name, 2, 100.0) for found in scores.values() for name in found or {}}
    title = f"{supervised.get('task')}: {supervised.get('rows') or 0:,} test examples, times 100"
    records = [{"name": name, **(found or {})} for name, found in scores.items()]
    return make_table("task-table", title, records, {"Metric": "name", **rows}, across=True)


def problem_text(problem: TaskFailure) -> str:
    """Return a problem as text: its task, the model where it concerns one, and its message."""
    model = f" ({one_line(problem.column)})" if problem.column else ""
    return f"task '{one_line(problem.task)}'{model}: {problem.text}"


def change_cell(change: float | None, low: float | None, high: float | None, stars: str) -> Cell:
    """Return a change in points with its stars and its interval, coloured where it is significant."""
    if change is None or low is None or high is None:
        return number_cell(change, sign=True)
    kind = ("gain" if change > 0 else "loss") if stars else "same"
    return Cell(
        number(change, sign=True) + stars, change, f"[{number(low, sign=True)}, {number(high, sign=True)}]", kind
    )


# -- the verdict -----------------------------------------------------------------------------------------------------


def make_verdict(
    scores: Scores | None, intervals: Part | None, speed: Part | None, record: Part | None
) -> dict[str, Any]:
    """Return report.json's "verdict": `text` and its numbers, None where a number is unknown.

    - `task_score`, `task_metric`, `task`: the student on a labelled task, times 100.
    - `neighbors`, `neighbors_alone`: the shares of the teacher's ten nearest neighbours that the student finds among
      the teacher's vectors and alone; without a common space `neighbors` is the latter. `neighbors_label` says which.
    - `retention`, `asymmetric_retention`: percent of the teacher's average, over the tasks that both were scored on.
    - `retrieval`, `asymmetric_retrieval`: the same over the retrieval tasks, if there are others as well.
    - `tasks`: their number. `worst_task`, `worst_change`: the lowest retention, as a change in percent.
    - `speedup`, `document_speedup`: the teacher's time over the student's, for queries and for documents.
    - `smaller`: the teacher's parameters over the student's, unless they are about as many.
    - `megabytes`: the student's weights in float32.
    - `teacher_requests`, `teacher_tokens`, `teacher_cost`: what teachers behind an API took; without a price no cost.
    - `within_interval`: whether the confidence interval of the difference of averages contains 0.

    Tasks that are made of an index itself count in no average.
    """
    record, speed = record or {}, speed or {}
    columns, stored = _without_stored(read_scores(scores))
    student, teacher, pair = (columns.get(name, []) for name in ("student", "teacher", "asymmetric"))
    kept, with_pair, ratio = retention(student, teacher), retention(pair, teacher), speed.get("ratio") or {}
    tasks = {task: share for task, share in kept.items() if task not in AVERAGES}
    worst = min(tasks, key=lambda task: tasks[task], default=None)
    low, high, *_ = ((intervals or {}).get("student") or {}).get(AVERAGE) or (None, None)
    judgement = read_judgement(record.get("neighbors"))
    verdict: dict[str, Any] = {
        **_task_score(record.get("supervised") or {}),
        **_neighbor_numbers(judgement),
        "retention": kept.get(AVERAGE),
        "asymmetric_retention": with_pair.get(AVERAGE),
        "retrieval": kept.get(RETRIEVAL),
        "asymmetric_retrieval": with_pair.get(RETRIEVAL),
        "speedup": _positive(ratio.get("query")),
        "document_speedup": _positive(ratio.get("document")),
        **_sizes(record, speed),
        **_api_costs(record),
        "worst_task": worst,
        "worst_change": None if worst is None else tasks[worst] - 100,
        "within_interval": None if low is None or high is None else low <= 0 <= high,
        "tasks": len(shared(student, teacher)[0]) if teacher else len(student),
    }
    parts = _verdict_parts(verdict, student, record)
    if judgement is not None and judgement.origin == "index":
        parts = [neighbors_sentence(judgement), *index_parts(stored, pair), *parts]
    elif judgement is not None and (not student or verdict["task"] is not None):
        parts.append(neighbors_sentence(judgement))
    return {"text": "; ".join(parts) or "not evaluated", **verdict}


def index_parts(stored: Sequence[Score], searched: Sequence[Score]) -> list[str]:
    """Return how well an index is searched by queries of a student: for its own texts, and on tasks of a suite."""
    parts = [
        f"a stored text is found at rank 1 to 10 with MRR {score.metrics['mrr@10'] / 100:.2f}"
        for score in stored
        if score.task == KNOWN_ITEM
    ]
    parts += [f"nDCG@10 {score.value:.1f} on {score.task}" for score in searched if score.type == "retrieval"]
    return parts


def _without_stored(columns: Mapping[str, list[Score]]) -> tuple[dict[str, list[Score]], list[Score]]:
    """Return the scores without those of an index's own texts, and the latter of the student's queries."""
    others = {}
    for name, column in columns.items():
        others[name] = [score for score in column if score.task not in (NEIGHBORS, KNOWN_ITEM)]
    stored = [score for score in columns.get("asymmetric", ()) if score.task in (NEIGHBORS, KNOWN_ITEM)]
    return others, stored


def _task_score(supervised: Part) -> dict[str, Any]:
    """The student's main metric on the test rows of a labelled task."""
    metric = "spearman" if supervised.get("type") == "sts" else "accuracy"
    value = ((supervised.get("scores") or {}).get("student") or {}).get(metric)
    if value is None:
        return {"task_score": None, "task_metric": None, "task": None}
    return {"task_score": 100 * value, "task_metric": metric, "task": supervised["task"]}


def _neighbor_numbers(judgement: Judgement | None) -> dict[str, Any]:
    share = None if judgement is None else judgement.share
    if judgement is None or share is None:
        return {"neighbors": None, "neighbors_alone": None, "neighbors_label": None}
    among, alone = judgement.student.among, judgement.student.alone
    label = "of the teacher's top 10 found, with its own vectors"
    if among is not None:
        label = "of the teacher's top 10 found, among the teacher's vectors"
    if judgement.origin == "index":
        label = "of the index's top 10 found"
    return {
        "neighbors": share.mean,
        "neighbors_alone": None if among is None or alone is None else alone.mean,
        "neighbors_label": label,
    }


def _sizes(record: Part, speed: Part) -> dict[str, float | None]:
    """The teacher's parameters over the student's, and the student's megabytes; parameters from record or speed."""
    smaller = megabytes = None
    for models in (record, speed.get("models") or {}):
        teacher, student = models.get("teacher") or {}, models.get("student") or {}
        theirs, ours = teacher.get("parameters"), student.get("parameters")
        if ours and megabytes is None:
            megabytes = FLOAT_MB * ours
        if ours and theirs and theirs > 1.05 * ours and smaller is None and not teacher.get("unread"):
            smaller = theirs / ours
    return {"smaller": smaller, "megabytes": megabytes}


def _verdict_parts(verdict: Part, student: Sequence[Score], record: Part) -> list[str]:
    """The score on a labelled task, and the share of the teacher's average (without a teacher the average)."""
    parts = []
    if verdict["task"] is not None:
        parts.append(f"{verdict['task_metric']} {verdict['task_score']:.1f} on {verdict['task']}")
    if verdict["retention"] is not None:
        tasks = f"{verdict['tasks']} task{'s' * (verdict['tasks'] != 1)}"
        within = " (no measurable difference)" if verdict["within_interval"] else ""
        parts.append(f"{verdict['retention']:.1f}% of the teacher's average on {tasks}{within}")
        if verdict["retrieval"] is not None:
            pair = verdict["asymmetric_retrieval"]
            more = "" if pair is None else f", {pair:.1f}% with the teacher's documents"
            parts.append(f"{verdict['retrieval']:.1f}% on retrieval{more}")
    elif student and not record.get("supervised"):
        parts.append(f"{average(student):.1f} on average over {verdict['tasks']} tasks")
    return parts


def _api_costs(record: Part) -> dict[str, float | None]:
    """Requests, tokens and cost of all teachers behind an API, None for none."""
    teachers = [record.get("teacher") or {}, *(record.get("more_teachers") or ())]
    spent = [teacher["api"] for teacher in teachers if teacher.get("api")]
    known = {key: [one[key] for one in spent if one.get(key) is not None] for key in ("requests", "tokens", "cost")}
    return {f"teacher_{key}": sum(values) if values else None for key, values in known.items()}


def _positive(value: float | None) -> float | None:
    return float(value) if value is not None and math.isfinite(value) and value > 0 else None
