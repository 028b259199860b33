"""Comparison of finished runs: means and deviations over seeds, differences with confidence intervals, costs.

A run of several seeds is one row. A difference is tested by a paired bootstrap over the test rows. Every resample takes
the same rows for all seeds of both runs, computes each seed's metric on them and averages over the seeds. Averaging
predictions first would score an ensemble that was never trained. The intervals show the effect of other test rows,
given these seeds; the standard deviation of a mean shows the effect of other seeds.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from distilvec.core.errors import DistilvecError, nearest
from distilvec.evaluation.aggregate import average, retention
from distilvec.evaluation.significance import (
    draw_rows,
    holm,
    percentile_interval,
    resampled,
    seed_summary,
    significance_mark,
)
from distilvec.pipeline.results import RunSummary, load_runs, unfinished
from distilvec.report.comparison import comparison_frame, comparison_html, comparison_text
from distilvec.report.scores import MODELS

Array = np.ndarray[Any, Any]
AVERAGE = "average"
LEVEL = 0.95


class Comparison(dict[str, Any]):
    """A comparison as a JSON mapping: rows (best average first), tasks, reference, column, differences, notes."""

    def __repr__(self) -> str:
        return comparison_text(self)

    def _repr_html_(self) -> str:
        return comparison_html(self)

    def to_dataframe(self) -> Any:
        """Return a pandas DataFrame: one row per run; a column for every metric, deviation, significance and cost."""
        return comparison_frame(self)


def compare_runs(
    folders: Sequence[Path], reference: str | None = None, column: str = "student", draws: int = 1000
) -> Comparison:
    """Compare runs and sweeps.

    `reference` is the name of a row (default: that of the first run). Values are points (x 100), intervals cover
    `LEVEL`, p-values are adjusted (Holm) for the rows that are compared on a task. `retention` is in percent of the
    run's own teacher. `minutes` and `texts` are those of training one seed. Unknown values are None.
    Errors: DistilvecError as `load_runs`; an unknown reference or column; runs that share no task.
    """
    runs = load_runs(folders)
    if not runs:
        raise DistilvecError("[run folder] found no run to compare. Name the folder of at least one run or sweep.")
    if column not in MODELS:
        raise DistilvecError(f"[--column] no column '{column}'{nearest(column, MODELS)}. Columns: {', '.join(MODELS)}.")
    groups = _group(runs)
    reference = _find_reference(reference, groups)
    tasks, notes = _shared_tasks(runs, column)
    rows = {name: _row(name, group, column, tasks) for name, group in groups.items()}
    differences, remarks = _differences(rows, groups, reference, column, tasks, draws)
    for item in differences:
        rows[item["a"]]["marks"][item["task"]] = item["mark"]
    ordered = sorted(rows.values(), key=lambda row: (-row["mean"].get(AVERAGE, -np.inf), row["distance"] or np.inf))
    return Comparison(
        rows=ordered,
        tasks=tasks,
        reference=reference,
        column=column,
        differences=differences,
        notes=[*notes, *remarks, *_cautions(runs, groups), *unfinished(folders)],
    )


# -- grouping ----------------------------------------------------------------------------------------------------------


def _group(runs: Sequence[RunSummary]) -> dict[str, list[RunSummary]]:
    """Group the runs that differ by their seed only; a repeated seed starts another row."""
    found: list[list[RunSummary]] = []
    for run in runs:
        fits = (
            group for group in found if group[0].group == run.group and run.seed not in [other.seed for other in group]
        )
        if (group := next(fits, None)) is not None:
            group.append(run)
        else:
            found.append([run])
    names = [group[0].name for group in found]
    named = [
        group[0].name if names.count(group[0].name) == 1 else f"{group[0].name} ({group[0].folder})" for group in found
    ]
    return dict(zip(named, found, strict=True))


def _find_reference(reference: str | None, groups: Mapping[str, Sequence[RunSummary]]) -> str:
    """Find the row of this name, or the one with the run in this folder; the first by default."""
    if reference is None:
        return next(iter(groups))
    for name, group in groups.items():
        if reference == name or any(
            Path(reference).resolve() == run.folder.resolve() or reference == run.folder.name for run in group
        ):
            return name
    raise DistilvecError(f"[--reference] no run '{reference}'{nearest(reference, groups)}. Runs: {', '.join(groups)}.")


def _shared_tasks(runs: Sequence[RunSummary], column: str) -> tuple[list[str], list[str]]:
    """Return the tasks that every run has with the same metric, and a note on the others."""
    scored = [{(task, score["metric"]) for task, score in run.scores(column).items()} for run in runs]
    if not any(scored):
        if any(run.scores(other) for run in runs for other in MODELS):
            raise DistilvecError(
                f"[--column] no run has a column '{column}'. A student of another width than its teacher's has no "
                "asymmetric one."
            )
        return [], ["No run was evaluated: they are compared by distance and cost."]
    for run, pairs in zip(runs, scored, strict=True):
        if not pairs:
            raise DistilvecError(
                f"[--column] {run.folder} has no scores in column '{column}'. Evaluate it on the others' suite, or "
                "leave it out."
            )
    shared = set.intersection(*scored)
    if not shared:
        listed = "; ".join(f"{run.folder}: {', '.join(run.scores(column))}" for run in runs)
        raise DistilvecError(f"[run folder] the runs share no task ({listed}). Evaluate them on one suite.")
    tasks = [task for task, score in runs[0].scores(column).items() if (task, score["metric"]) in shared]
    rest = sorted({task for pairs in scored for task, _ in pairs} - set(tasks))
    return tasks, [f"Compared on the tasks that all runs share; left out: {', '.join(rest)}."] if rest else []


# -- rows ------------------------------------------------------------------------------------------------------------


def _row(name: str, group: Sequence[RunSummary], column: str, tasks: Sequence[str]) -> dict[str, Any]:
    values = [_values(run.scores(column), tasks) for run in group]
    teachers = [_values(run.scores("teacher"), tasks) for run in group]
    summary = {task: seed_summary([value[task] for value in values]) for task in values[0]}
    kept = [retention(_tasks(own), _tasks(teacher)) for own, teacher in zip(values, teachers, strict=True)]
    distance = [known for run in group if (known := (run.record.get("metrics") or {}).get("distance")) is not None]
    training = [run.record.get("training") or {} for run in group]
    return {
        "run": name,
        "method": (group[0].record.get("method") or {}).get("name"),
        "seeds": len(group),
        "mean": {task: mean for task, (mean, _) in summary.items()},
        "std": {task: deviation for task, (_, deviation) in summary.items()},
        "retention": {
            task: float(np.mean([one[task] for one in kept])) for task in kept[0] if all(task in one for one in kept)
        },
        "parameters": (group[0].record.get("student") or {}).get("parameters"),
        "texts_per_second": _mean(
            _texts_per_second(run.report, "query" if column == "asymmetric" else "document") for run in group
        ),
        "minutes": _mean(part.get("minutes") for part in training),
        "texts": _mean(part.get("texts") for part in training),
        "steps": _mean(part.get("steps") for part in training),
        "marks": {},
        "distance": float(np.mean(distance)) if distance else None,
        "distance_std": seed_summary(distance)[1] if distance else None,
        "folders": [str(run.folder) for run in group],
    }


def _values(scores: Mapping[str, Mapping[str, Any]], tasks: Sequence[str]) -> dict[str, float]:
    """Return values by task, and their plain mean as `average`; empty unless every task was scored."""
    if not tasks or not all(task in scores for task in tasks):
        return {}
    values = {task: float(scores[task]["value"]) for task in tasks}
    return {**values, AVERAGE: average(values)}


def _tasks(values: Mapping[str, float]) -> dict[str, float]:
    return {task: value for task, value in values.items() if task != AVERAGE}


def _texts_per_second(report: Mapping[str, Any], role: str) -> float | None:
    """Return the student's best throughput in PyTorch for texts of a role."""
    rows = (report.get("speed") or {}).get("rows") or []
    setting = {"model": "student", "backend": "pytorch", "role": role}
    return max(
        (row["texts_per_second"] for row in rows if all(row.get(key) == value for key, value in setting.items())),
        default=None,
    )


def _mean(values: Iterable[float | None]) -> float | None:
    """Return the mean; None unless all values are known."""
    known = list(values)
    return float(np.mean([value for value in known if value is not None])) if known and None not in known else None


# -- differences -----------------------------------------------------------------------------------------------------


def _differences(
    rows: Mapping[str, Mapping[str, Any]],
    groups: Mapping[str, Sequence[RunSummary]],
    reference: str,
    column: str,
    tasks: Sequence[str],
    draws: int,
) -> tuple[list[dict[str, Any]], list[str]]:
    """Return every row's differences from the reference, by task and on average, and notes on the test."""
    others = [name for name in rows if name != reference]
    if not tasks or not others:
        return [], []
    drawn, odd = _resample(groups, reference, column, tasks, draws)
    drawn[AVERAGE] = {
        name: np.mean([drawn[task][name] for task in tasks], axis=0)
        for name in rows
        if all(name in drawn[t] for t in tasks)
    }
    found: list[dict[str, Any]] = []
    for task in [*tasks, AVERAGE]:
        items = [_difference(rows, name, reference, task, drawn[task]) for name in others]
        tested = [item for item in items if item["p"] is not None]
        for item, p in zip(tested, holm([item["p"] for item in tested]), strict=True):
            item.update(p=p, mark=significance_mark(p))
        found += items
    notes = [
        f"Differences are to {reference}: paired bootstrap, {draws:,} resamples of the test rows, {LEVEL:.0%} "
        "intervals. Every resample "
        "takes the same rows for all seeds of both runs and averages the metric over the seeds, so intervals leave out "
        "the spread over "
        f"seeds (± shows it). Significance: * p < 0.05, ** p < 0.01, *** p < 0.001, after Holm for {len(others)} "
        "comparison(s) a task."
    ]
    if len(others) / (draws + 1) >= 1 - LEVEL:
        notes.append(
            f"{draws:,} resamples are too few for significance among {len(others)} comparisons; take at least "
            f"{20 * len(others):,}."
        )
    if odd:
        notes.append(
            f"No interval for rows without stored samples, or with other test rows than {reference}: {'; '.join(odd)}."
        )
    return found, notes


def _resample(
    groups: Mapping[str, Sequence[RunSummary]], reference: str, column: str, tasks: Sequence[str], draws: int
) -> tuple[dict[str, dict[str, Array]], list[str]]:
    """Return the mean over seeds on every resample, float64 [draws], by task and row; and the rows left out."""
    samples = {name: [run.samples(column, tasks) for run in group] for name, group in groups.items()}
    drawn: dict[str, dict[str, Array]] = {}
    for number, task in enumerate(tasks):
        gold = samples[reference][0][task].gold if task in samples[reference][0] else np.empty(0)
        fitting = {
            name: [seed[task] for seed in seeds]
            for name, seeds in samples.items()
            if len(gold) and all(task in seed and np.array_equal(seed[task].gold, gold) for seed in seeds)
        }
        values: dict[str, list[Array]] = {name: [] for name in fitting}
        for counts in draw_rows(len(gold), draws, np.random.default_rng([0, number])) if reference in fitting else ():
            for name, seeds in fitting.items():
                values[name].append(np.mean([resampled(sample, counts) for sample in seeds], axis=0))
        drawn[task] = {name: 100 * np.concatenate(blocks) for name, blocks in values.items() if blocks}
    missing = {name: [task for task in tasks if name not in drawn[task]] for name in groups}
    return drawn, [f"{name}: {', '.join(absent)}" for name, absent in missing.items() if absent]


def _difference(
    rows: Mapping[str, Mapping[str, Any]], name: str, reference: str, task: str, drawn: Mapping[str, Array]
) -> dict[str, Any]:
    """Return one difference with its percentile interval and two-sided p; None if not tested."""
    difference = rows[name]["mean"][task] - rows[reference]["mean"][task]
    values = drawn[name] - drawn[reference] if name in drawn and reference in drawn else np.empty(0)
    interval = percentile_interval(difference, values, LEVEL)
    low, high, p = (interval.low, interval.high, interval.p) if interval else (None, None, None)
    return {
        "a": name,
        "b": reference,
        "task": task,
        "difference": difference,
        "low": low,
        "high": high,
        "p": p,
        "mark": "",
    }


# -- notes -----------------------------------------------------------------------------------------------------------


def _cautions(runs: Sequence[RunSummary], groups: Mapping[str, Sequence[RunSummary]]) -> list[str]:
    """List reasons to distrust the rows."""
    notes = []
    counts = {len(group) for group in groups.values()}
    if counts == {1}:
        notes.append("One seed a row: the spread over seeds is not known.")
    elif len(counts) > 1:
        notes.append(f"Rows have from {min(counts)} to {max(counts)} seeds.")
    origins = {part: {(run.record.get(part) or {}).get("fingerprint") for run in runs} for part in ("teacher", "data")}
    if len(origins["teacher"]) > 1:
        notes.append(
            "The runs have different teachers: retention is of each run's own, and distances are not comparable."
        )
    if len(origins["data"]) > 1:
        notes.append("The runs have different corpora: their distances may be measured on different validation texts.")
    return notes
