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
from distilvec.evaluation.aggregate import AVERAGE, AVERAGES, retention, weighted_averages
from distilvec.evaluation.significance import (
    draw_rows,
    holm,
    percentile_interval,
    resampled,
    seed_summary,
    significance_mark,
)
from distilvec.pipeline.results import RunSummary, distinct_names, load_runs, unfinished
from distilvec.report.comparison import comparison_frame, comparison_html, comparison_text
from distilvec.report.scores import MODELS

Groups = Mapping[str, Sequence[RunSummary]]  # the runs of a row by its name
Drawn = dict[str, dict[str, np.ndarray[Any, Any]]]  # points on every resample, float64 [draws], by task and row
LEVEL = 0.95


class Comparison(dict[str, Any]):
    """A comparison as a JSON mapping: rows (best average first), tasks, reference, column, differences, leads, notes.

    `leads` has the best row on every task and average, and how far it is ahead.
    """

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
    if column not in MODELS:
        hint = nearest(column, MODELS) or "."
        raise DistilvecError("--column", f"no column '{column}'{hint} Known: {', '.join(MODELS)}.")
    runs = load_runs(folders)
    if not runs:
        raise DistilvecError("run folder", "found no run to compare.", "Name the folder of at least one run or sweep.")
    groups = _group(runs)
    reference = _find_reference(reference, groups)
    tasks, notes = _shared_tasks(runs, column)
    rows = {name: _row(name, group, column, tasks) for name, group in groups.items()}
    differences: list[dict[str, Any]] = []
    leads: dict[str, dict[str, Any]] = {}
    if tasks and len(rows) > 1:
        drawn = _resample(groups, reference, column, tasks, draws)
        differences = [item for task in drawn for item in _differences(rows, reference, task, drawn[task])]
        leads = {task: _lead(rows, task, drawn[task]) for task in drawn}
        notes += _remarks(reference, drawn, list(rows), draws)
    for item in differences:
        rows[item["a"]]["marks"][item["task"]] = item["mark"]
    return Comparison(
        rows=sorted(rows.values(), key=lambda row: (-row["mean"].get(AVERAGE, -np.inf), row["distance"] or np.inf)),
        tasks=tasks,
        reference=reference,
        column=column,
        differences=differences,
        leads=leads,
        notes=[*notes, *_cautions(runs, groups), *unfinished(folders)],
    )


# -- rows ------------------------------------------------------------------------------------------------------------


def _group(runs: Sequence[RunSummary]) -> dict[str, list[RunSummary]]:
    """Group the runs that differ by their seed only; a repeated seed starts another row."""
    found: list[list[RunSummary]] = []
    for run in runs:
        same = (group for group in found if group[0].group == run.group)
        group = next((group for group in same if run.seed not in [other.seed for other in group]), None)
        if group is None:
            found.append([run])
        else:
            group.append(run)
    return dict(zip(distinct_names([group[0] for group in found]), found, strict=True))


def _find_reference(reference: str | None, groups: Groups) -> str:
    """Find the row of this name, or the one with the run in this folder; the first by default."""
    if reference is None:
        return next(iter(groups))
    for name, group in groups.items():
        folders = [run.folder.resolve() for run in group]
        if reference in (name, *(folder.name for folder in folders)) or Path(reference).resolve() in folders:
            return name
    hint = nearest(reference, groups) or "."
    raise DistilvecError("--reference", f"no run '{reference}'{hint} Runs: {', '.join(groups)}.")


def _shared_tasks(runs: Sequence[RunSummary], column: str) -> tuple[list[str], list[str]]:
    """Return the tasks that every run has with the same metric, and a note on the others."""
    scored = [{(task, score["metric"]) for task, score in run.scores(column).items()} for run in runs]
    if not any(run.scores(model) for run in runs for model in MODELS):
        return [], ["No run was evaluated: they are compared by distance and cost."]
    if bare := [str(run.folder) for run, pairs in zip(runs, scored, strict=True) if not pairs]:
        raise DistilvecError(
            "--column",
            f"no scores in column '{column}': {', '.join(bare)}.",
            "Evaluate them on the others' suite or leave them out. The asymmetric column needs a student of its "
            "teacher's dim.",
        )
    shared = set.intersection(*scored)
    if not shared:
        listed = "; ".join(f"{run.folder}: {', '.join(run.scores(column))}" for run in runs)
        raise DistilvecError("run folder", f"the runs share no task ({listed}).", "Evaluate them on one suite.")
    tasks = [task for task, score in runs[0].scores(column).items() if (task, score["metric"]) in shared]
    rest = sorted({task for pairs in scored for task, _ in pairs} - set(tasks))
    return tasks, [f"Compared on the tasks that all runs share; left out: {', '.join(rest)}."] if rest else []


def _row(name: str, group: Sequence[RunSummary], column: str, tasks: Sequence[str]) -> dict[str, Any]:
    values = [_values(run, column, tasks) for run in group]
    values = [value | weighted_averages(value, _types(group[0], column, tasks)) if tasks else {} for value in values]
    summary = {task: seed_summary([value[task] for value in values]) for task in values[0]}
    records = [
        {part: run.record.get(part) or {} for part in ("training", "metrics", "method", "student")} for run in group
    ]
    distance = [known for one in records if (known := one["metrics"].get("distance")) is not None]
    role = "query" if column == "asymmetric" else "document"
    return {
        "run": name,
        "method": records[0]["method"].get("name"),
        "seeds": len(group),
        "mean": {task: mean for task, (mean, _) in summary.items()},
        "std": {task: deviation for task, (_, deviation) in summary.items()},
        "retention": _retention(group, column, tasks),
        **({"asymmetric": _retention(group, "asymmetric", tasks)} if column == "student" else {}),
        "parameters": records[0]["student"].get("parameters"),
        "megabytes": _mean(_megabytes(run) for run in group),
        "milliseconds": _mean(_milliseconds(run) for run in group),
        "texts_per_second": _mean(_texts_per_second(run, role) for run in group),
        **{key: _mean(one["training"].get(key) for one in records) for key in ("minutes", "texts", "steps")},
        "marks": {},
        "distance": _mean(distance),
        "distance_std": seed_summary(distance)[1] if distance else None,
        "folders": [str(run.folder) for run in group],
    }


def _retention(group: Sequence[RunSummary], column: str, tasks: Sequence[str]) -> dict[str, float | None]:
    """Return the percent of each run's own teacher by task and average, a mean over seeds; {} unless all are scored."""
    scored = [_scored(run, column, tasks) for run in group]
    kept = [retention(ours, _scored(run, "teacher", tasks)) for ours, run in zip(scored, group, strict=True)]
    return {task: _mean(one.get(task) for one in kept) for task in kept[0] if all(task in one for one in kept)}


def _scored(run: RunSummary, column: str, tasks: Sequence[str]) -> list[dict[str, Any]]:
    """Return the scores on the tasks; empty unless every task was scored."""
    scores = run.scores(column)
    return [scores[task] for task in tasks] if all(task in scores for task in tasks) else []


def _types(run: RunSummary, column: str, tasks: Sequence[str]) -> dict[str, str]:
    scores = run.scores(column)
    return {task: scores[task]["type"] for task in tasks}


def _values(run: RunSummary, column: str, tasks: Sequence[str]) -> dict[str, float]:
    """Return values by task; empty unless every task was scored."""
    return {score["task"]: float(score["value"]) for score in _scored(run, column, tasks)}


def _megabytes(run: RunSummary) -> float | None:
    """Return the size of the student's saved fp32 weights, 10^6 bytes."""
    models = (run.report.get("speed") or {}).get("models") or {}
    return (models.get("student") or {}).get("megabytes")


def _milliseconds(run: RunSummary) -> float | None:
    """Return the student's median time in PyTorch for one query of 16 tokens."""
    return next((row.get("median_ms") for row in _timings(run, "query") if row.get("batch_size") == 1), None)


def _texts_per_second(run: RunSummary, role: str) -> float | None:
    """Return the student's best throughput in PyTorch for texts of a role."""
    return max((row["texts_per_second"] for row in _timings(run, role)), default=None)


def _timings(run: RunSummary, role: str) -> list[dict[str, Any]]:
    """Return the student's rows of the speed table in PyTorch for texts of a role."""
    setting = {"model": "student", "backend": "pytorch", "role": role}
    rows = (run.report.get("speed") or {}).get("rows") or []
    return [row for row in rows if setting.items() <= row.items()]


def _mean(values: Iterable[float | None]) -> float | None:
    """Return the mean; None unless all values are known."""
    known = list(values)
    return float(np.mean([value for value in known if value is not None])) if known and None not in known else None


# -- differences -----------------------------------------------------------------------------------------------------


def _resample(groups: Groups, reference: str, column: str, tasks: Sequence[str], draws: int) -> Drawn:
    """Return the mean over seeds on every resample, by task, average, and row; others are missing."""
    samples = {name: [run.samples(column, tasks) for run in group] for name, group in groups.items()}
    drawn: Drawn = {}
    for number, task in enumerate(tasks):
        gold = samples[reference][0][task].gold if task in samples[reference][0] else np.empty(0)
        fitting = {
            name: [seed[task] for seed in seeds]
            for name, seeds in samples.items()
            if len(gold) and all(task in seed and np.array_equal(seed[task].gold, gold) for seed in seeds)
        }
        values: dict[str, list[Any]] = {name: [] for name in fitting}
        for counts in draw_rows(len(gold), draws, np.random.default_rng([0, number])) if reference in fitting else ():
            for name, seeds in fitting.items():
                values[name].append(np.mean([resampled(sample, counts) for sample in seeds], axis=0))
        drawn[task] = {name: 100 * np.concatenate(blocks) for name, blocks in values.items() if blocks}
    complete = [name for name in groups if all(name in drawn[task] for task in tasks)]
    types = _types(groups[reference][0], column, tasks)
    means = {name: weighted_averages({task: drawn[task][name] for task in tasks}, types) for name in complete}
    averages = [average for average in AVERAGES if any(average in found for found in means.values())] or [AVERAGE]
    return {**drawn, **{average: {name: found[average] for name, found in means.items()} for average in averages}}


def _differences(
    rows: Mapping[str, Mapping[str, Any]], reference: str, task: str, drawn: Mapping[str, Any]
) -> list[dict[str, Any]]:
    """Return every row's difference from the reference on a task; low, high and p are None if it cannot be tested."""
    found = []
    for name in (name for name in rows if name != reference):
        difference = rows[name]["mean"][task] - rows[reference]["mean"][task]
        both = name in drawn and reference in drawn
        interval = percentile_interval(difference, drawn[name] - drawn[reference], LEVEL) if both else None
        bounds = {key: getattr(interval, key, None) for key in ("low", "high", "p")}
        found.append({"a": name, "b": reference, "task": task, "difference": difference, **bounds, "mark": ""})
    tested = [item for item in found if item["p"] is not None]
    for item, p in zip(tested, holm([item["p"] for item in tested]), strict=True):
        item.update(p=p, mark=significance_mark(p))
    return found


def _lead(rows: Mapping[str, Mapping[str, Any]], task: str, drawn: Mapping[str, Any]) -> dict[str, Any]:
    """Return the row with the highest mean on a task, and its lead over the row that may still be level with it.

    `clear` is True if its lead over every other row has an interval above 0. Intervals hold for all rows together
    (Bonferroni): else the best of many equal rows would be called a winner too often. If the lead is clear, `over` is
    the next row. low and high are None where samples are missing.
    """
    first, *others = sorted(rows, key=lambda name: -rows[name]["mean"][task])
    level = 1 - (1 - LEVEL) / len(others)
    found = []
    for name in others:
        difference = rows[first]["mean"][task] - rows[name]["mean"][task]
        both = first in drawn and name in drawn
        interval = percentile_interval(difference, drawn[first] - drawn[name], level) if both else None
        low, high = (interval.low, interval.high) if interval else (None, None)
        found.append({"run": first, "over": name, "difference": difference, "low": low, "high": high})
    level_with = [lead for lead in found if lead["low"] is None or lead["low"] <= 0]
    return {**(level_with or found)[0], "clear": not level_with}


# -- notes -----------------------------------------------------------------------------------------------------------


def _remarks(reference: str, drawn: Drawn, names: Sequence[str], draws: int) -> list[str]:
    """Describe the test, and the rows that it leaves out."""
    others = len(names) - 1
    notes = [
        f"Differences are to {reference}: paired bootstrap over test rows, {draws:,} resamples, {LEVEL:.0%} intervals. "
        "The spread over seeds is not in the intervals; ± shows it. Significance: * p < 0.05, ** p < 0.01, "
        f"*** p < 0.001, after Holm for {others} comparison(s) a task."
    ]
    if others / (draws + 1) >= 1 - LEVEL:
        notes.append(f"{draws:,} resamples cannot show significance; take at least {20 * others:,}.")
    missing = {name: [task for task in drawn if task not in AVERAGES and name not in drawn[task]] for name in names}
    if odd := [f"{name}: {', '.join(tasks)}" for name, tasks in missing.items() if tasks]:
        notes.append(f"No interval: no stored samples, or other test rows than {reference}: {'; '.join(odd)}.")
    return notes


def _cautions(runs: Sequence[RunSummary], groups: Groups) -> list[str]:
    """List reasons to distrust the rows."""
    seeds = {len(group) for group in groups.values()}
    described = [run.record.get("teacher") or {} for run in runs]
    teachers = {teacher.get("embeddings") or teacher.get("fingerprint") for teacher in described}
    corpora = {(run.record.get("data") or {}).get("fingerprint") for run in runs}
    cautions = {
        "One seed a row: the spread over seeds is not known.": seeds == {1},
        f"Rows have from {min(seeds)} to {max(seeds)} seeds.": len(seeds) > 1,
        "Different teachers: retention is of each run's own; distances are not comparable.": len(teachers) > 1,
        "Different corpora: distances may be measured on different validation texts.": len(corpora) > 1,
    }
    return [text for text, holds in cautions.items() if holds]
