"""Comparison of finished runs: means and deviations over seeds, differences with confidence intervals, costs.

A run of several seeds is one row. A difference is tested over the test rows: each has a value whose mean is the score
(evaluation/significance.py), averaged over the seeds. Averaging predictions instead would score an ensemble that was
never trained. The intervals show the effect of other test rows, given these seeds; the standard deviation of a mean
shows the effect of other seeds.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from distilvec.config.score_columns import SCORE_COLUMNS
from distilvec.core.errors import DistilvecError, nearest
from distilvec.evaluation.aggregate import (
    AVERAGE,
    retention,
    weighted_averages,
    weights_of_averages,
    without_index_tasks,
)
from distilvec.evaluation.evaluator import Sample, Score
from distilvec.evaluation.overlap import Overlap, OverlapShare
from distilvec.evaluation.significance import (
    FEWEST,
    LEVEL,
    Interval,
    difference_interval,
    holm,
    seed_summary,
    significance_mark,
)
from distilvec.evaluation.speed import SpeedRow
from distilvec.pipeline.finished_run import FinishedRun
from distilvec.report.comparison import Comparison, Difference, MeanOverlap, Row
from distilvec.report.next_step import next_step
from distilvec.report.record import TrainingRecord
from distilvec.report.verdicts import Lead
from distilvec.verbs.compare.results import SeedRun, distinct_names, finished_runs, unfinished

Groups = Mapping[str, Sequence[FinishedRun]]  # the seeds of a row by its name
PointsBySeed = dict[int | None, dict[str, float]]  # points by task and average, by seed
RowValues = dict[str, np.ndarray[Any, Any]]  # of the test rows of a task, float64 [rows], by row of the comparison
TaskWeights = Mapping[str, float]  # of the tasks in a task's own score, or in an average
START_OF = {"student": "untrained", "asymmetric": "untrained_asymmetric"}  # the same model before its training


def compare_runs(folders: Sequence[Path], reference: str | None = None, column: str | None = None) -> Comparison:
    """Compare runs and sweeps.

    `column` is the model that is compared: by default the student; for runs on an index alone, where it was scored
    beside the stored documents, "asymmetric". `reference` is the name of a row (default: that of the first run). Values
    are points (x 100), intervals cover `LEVEL`, p-values are adjusted (Holm) for the rows that are compared on a task.
    `retention` is in percent of the run's own teacher. `minutes` and `texts` are those of training one seed. Unknown
    values are None.
    Errors: DistilvecError as `finished_runs`; an unknown reference or column; runs that share no task.
    """
    if column is not None and column not in SCORE_COLUMNS:
        hint = nearest(column, SCORE_COLUMNS) or "."
        raise DistilvecError(f"no column '{column}'{hint} Known: {', '.join(SCORE_COLUMNS)}.", key="column")
    seed_runs = finished_runs(folders)
    if not seed_runs:
        raise DistilvecError(
            "found no run to compare.", "Name the folder of at least one run or sweep.", key="run folder"
        )
    runs = [seed_run.run for seed_run in seed_runs]
    groups = _group(seed_runs)
    reference = _find_reference(reference, groups)
    if column is None:
        scored = {name for run in runs for name, scores in run.scores.items() if scores}
        column = "asymmetric" if "asymmetric" in scored and "student" not in scored else "student"
    tasks, notes = _shared_tasks(runs, column)
    rows = {name: _comparison_row(name, group, column, tasks) for name, group in groups.items()}

    differences: list[Difference] = []
    leads: dict[str, Lead] = {}
    if tasks and len(rows) > 1:
        values = _row_values(groups, reference, column, tasks)
        types = _averaged_types(_shared_scores(groups[reference][0], column, tasks))
        seeds = {seed_run.run.folder: seed_run.seed for seed_run in seed_runs}
        points: dict[str, PointsBySeed] = {}  # of every seed, by row
        for name, group in groups.items():
            points[name] = {seeds[run.folder]: _values_with_averages(run, column, tasks) for run in group}
        for task, weights in ({task: {task: 1.0} for task in tasks} | weights_of_averages(types)).items():
            differences += _run_differences(rows, reference, task, values, weights)
            leads[task] = _lead(rows, task, values, weights, points)
        notes += _remarks(reference, values, list(rows), differences)
    for difference in differences:
        rows[difference.run].marks[difference.task] = difference.mark

    notes += [*_cautions(runs, groups), *_namesakes(seed_runs), *unfinished(folders)]
    best_first = sorted(rows.values(), key=_rank)
    return Comparison(
        rows=best_first,
        baselines=_baselines(groups, column, tasks),
        tasks=tasks,
        reference=reference,
        column=column,
        differences=differences,
        leads=leads,
        notes=notes,
    )


def next_of_best(comparison: Comparison) -> str:
    """Return the next command of the best run: it is the one to go on with."""
    return next_step(FinishedRun.open(comparison.rows[0].folders[0]).report).command


# -- rows ------------------------------------------------------------------------------------------------------------


def _group(seed_runs: Sequence[SeedRun]) -> dict[str, list[FinishedRun]]:
    """Group the runs that differ by their seed only; a repeated seed starts another row."""
    groups: list[list[SeedRun]] = []
    for seed_run in seed_runs:
        for group in groups:
            if group[0].group == seed_run.group and seed_run.seed not in [member.seed for member in group]:
                group.append(seed_run)
                break
        else:
            groups.append([seed_run])
    names = distinct_names([group[0] for group in groups])
    return {name: [member.run for member in group] for name, group in zip(names, groups, strict=True)}


def _namesakes(seed_runs: Sequence[SeedRun]) -> list[str]:
    """Say which runs of one name are no repetitions of each other."""
    groups: dict[str, set[str]] = {}
    for run in seed_runs:
        groups.setdefault(run.name, set()).add(run.group)
    names = [name for name, recipes in groups.items() if len(recipes) > 1]
    if not names:
        return []
    return [
        f"Runs named {', '.join(names)} differ by more than their seed: each recipe, and each version of a method's "
        "file, has a row of its own."
    ]


def _find_reference(reference: str | None, groups: Groups) -> str:
    """Find the row of this name, or the one with the run in this folder; the first by default."""
    if reference is None:
        return next(iter(groups))
    for name, group in groups.items():
        folders = [run.folder.resolve() for run in group]
        if reference in (name, *(folder.name for folder in folders)) or Path(reference).resolve() in folders:
            return name
    hint = nearest(reference, groups) or "."
    raise DistilvecError(f"no run '{reference}'{hint} Runs: {', '.join(groups)}.", key="reference")


def _shared_tasks(runs: Sequence[FinishedRun], column: str) -> tuple[list[str], list[str]]:
    """Return the tasks that every run has with the same metric, and a note on the others."""
    if not any(run.scores.get(model) for run in runs for model in SCORE_COLUMNS):
        return [], ["Without a suite of tasks runs are compared by overlap@10, which needs no labels, and by cost."]
    scored_tasks = []
    unscored = []
    for run in runs:
        scores = run.scores.get(column, ())
        scored_tasks.append({(score.task, score.metric) for score in scores})
        if not scores:
            unscored.append(str(run.folder))
    if unscored:
        fix = "Evaluate them on the others' suite or leave them out."
        if len(unscored) == len(runs):
            scored_models = [model for model in SCORE_COLUMNS if any(run.scores.get(model) for run in runs)]
            fix = f"Choose {' or '.join(scored_models)}."
        if column == "asymmetric":
            fix += " The asymmetric column needs a student of its teacher's dim."
        raise DistilvecError(f"no scores in column '{column}': {', '.join(unscored)}.", fix, key="column")
    shared = set.intersection(*scored_tasks)
    if not shared:
        listed = "; ".join(f"{run.folder}: {', '.join(_scores(run, column))}" for run in runs)
        raise DistilvecError(f"the runs share no task ({listed}).", "Evaluate them on one suite.", key="run folder")
    tasks = [score.task for score in runs[0].scores[column] if (score.task, score.metric) in shared]
    left_out = {task for task, _ in set.union(*scored_tasks)} - set(tasks)
    notes = []
    if left_out:
        notes.append(f"Compared on the tasks that all runs share; left out: {', '.join(sorted(left_out))}.")
    return tasks, notes


def _comparison_row(name: str, group: Sequence[FinishedRun], column: str, tasks: Sequence[str]) -> Row:
    """Return the means over the seeds of a run."""
    means: dict[str, float] = {}
    deviations: dict[str, float | None] = {}
    if tasks:
        values = [_values_with_averages(run, column, tasks) for run in group]
        for task in values[0]:
            means[task], deviations[task] = seed_summary([of_seed[task] for of_seed in values])
    first = group[0].record
    trainings = [run.record.training or TrainingRecord() for run in group]
    distances = [run.record.metrics.get("distance") for run in group]
    known_distances = [distance for distance in distances if distance is not None]
    role = "query" if column == "asymmetric" else "document"
    queries = [[row.median_ms for row in _timings(run, "query") if row.batch_size == 1] for run in group]
    return Row(
        run=name,
        method=None if first.method is None else first.method.name,
        seeds=len(group),
        mean=means,
        std=deviations,
        retention=_retention(group, column, tasks),
        asymmetric=_retention(group, "asymmetric", tasks) if column == "student" else {},
        parameters=None if first.student is None else first.student.parameters,
        megabytes=_known_mean(_megabytes(run) for run in group),
        milliseconds=_known_mean(times[0] if times else None for times in queries),
        texts_per_second=_known_mean(_texts_per_second(run, role) for run in group),
        minutes=_known_mean(training.minutes for training in trainings),
        texts=_known_mean(training.texts for training in trainings),
        steps=_known_mean(training.steps for training in trainings),
        distance=_known_mean(known_distances),
        distance_std=seed_summary(known_distances)[1] if known_distances else None,
        overlap_among=_mean_overlap([_overlaps(run).among for run in group]),
        overlap_alone=_mean_overlap([_overlaps(run).alone for run in group]),
        folders=[str(run.folder) for run in group],
    )


def _rank(row: Row) -> tuple[float, float, float]:
    """Return what rows are sorted by: the average score, else overlap@10, else the distance."""
    overlap = 0.0 if row.overlap is None else row.overlap.mean
    return -row.mean.get(AVERAGE, -np.inf), -overlap, row.distance or np.inf


def _overlaps(run: FinishedRun) -> Overlap:
    """Return the shares of the teacher's ten nearest that a run's student finds, as far as they were measured."""
    judgement = run.record.overlap
    return Overlap() if judgement is None else judgement.student


def _mean_overlap(shares: Sequence[OverlapShare | None]) -> MeanOverlap | None:
    """Return the mean over seeds, of the interval as well; None unless all seeds have it."""
    known = [share for share in shares if share is not None]
    if len(known) < len(shares):
        return None
    mean, deviation = seed_summary([share.mean for share in known])
    low, high = (float(np.mean(bounds)) for bounds in zip(*((share.low, share.high) for share in known), strict=True))
    return MeanOverlap(mean, low, high, deviation)


def _baselines(groups: Groups, column: str, tasks: Sequence[str]) -> list[Row]:
    """Return a row for every teacher that was scored on all tasks, then for every student before its training.

    Runs of one teacher, or of equal starts, share a row.
    """
    baselines: dict[str, Row] = {}
    for group in groups.values():
        teacher = group[0].record.teacher
        name = "teacher" if teacher is None or teacher.name is None else f"{teacher.name} (teacher)"
        row = _baseline(name, group, "teacher", tasks)
        if row is not None and column != "teacher":
            row.parameters = None if teacher is None else teacher.parameters
            baselines.setdefault(f"{name} {row.mean}", row)

    starts: dict[str, list[str]] = {}  # rows of runs by what is shown of their start
    for name, group in groups.items():
        row = _baseline(name, group, START_OF.get(column, ""), tasks)
        if row is not None:
            overlaps = (row.overlap_among, row.overlap_alone)
            shown = [overlap and f"{overlap.mean:.2f} {overlap.interval}" for overlap in overlaps]
            start = f"start {row.mean} {shown}"
            starts.setdefault(start, []).append(name)
            baselines.setdefault(start, row)
    for start, names in starts.items():
        baselines[start].run = "before training" if len(starts) == 1 else f"{', '.join(names)}: before training"
    return list(baselines.values())


def _baseline(name: str, group: Sequence[FinishedRun], column: str, tasks: Sequence[str]) -> Row | None:
    """Return a row with the means over the seeds of a model that the runs began with; None where nothing is known."""
    first = group[0].record
    row = Row(name, seeds=None, parameters=None if first.student is None else first.student.parameters)
    if tasks and all(_shared_scores(run, column, tasks) for run in group):
        values = [_values_with_averages(run, column, tasks) for run in group]
        row.mean = {task: float(np.mean([of_seed[task] for of_seed in values])) for task in values[0]}
        row.retention = _retention(group, column, tasks)
    if column == START_OF["student"]:
        starts = [Overlap() if run.record.overlap is None else run.record.overlap.start or Overlap() for run in group]
        row.overlap_among = _mean_overlap([start.among for start in starts])
        row.overlap_alone = _mean_overlap([start.alone for start in starts])
    return row if row.mean or row.overlap is not None else None


def _scores(run: FinishedRun, column: str) -> dict[str, Score]:
    """Return a model's scores by task."""
    return {score.task: score for score in run.scores.get(column, ())}


def _shared_scores(run: FinishedRun, column: str, tasks: Sequence[str]) -> list[Score]:
    """Return the scores on the shared tasks; empty unless every one was scored."""
    scores = _scores(run, column)
    return [scores[task] for task in tasks] if all(task in scores for task in tasks) else []


def _values_with_averages(run: FinishedRun, column: str, tasks: Sequence[str]) -> dict[str, float]:
    """Return the values by task, and their averages."""
    scores = _shared_scores(run, column, tasks)
    values = {score.task: score.value for score in scores}
    return values | weighted_averages(values, _averaged_types(scores))


def _averaged_types(scores: Sequence[Score]) -> dict[str, str]:
    """Return the types of the tasks that count in averages, by task."""
    return {score.task: score.type for score in without_index_tasks(scores)}


def _retention(group: Sequence[FinishedRun], column: str, tasks: Sequence[str]) -> dict[str, float | None]:
    """Return the percent of each run's own teacher by task and average, a mean over seeds; {} unless all are scored."""
    shares = [retention(_shared_scores(run, column, tasks), _shared_scores(run, "teacher", tasks)) for run in group]
    names = [name for name in shares[0] if all(name in of_seed for of_seed in shares)]
    return {name: _known_mean(of_seed[name] for of_seed in shares) for name in names}


def _megabytes(run: FinishedRun) -> float | None:
    """Return the size of the student's saved fp32 weights, 10^6 bytes."""
    speed = run.report.speed
    return speed.models["student"].megabytes if speed is not None and "student" in speed.models else None


def _texts_per_second(run: FinishedRun, role: str) -> float | None:
    """Return the student's best throughput in PyTorch for texts of a role."""
    return max((row.texts_per_second for row in _timings(run, role)), default=None)


def _timings(run: FinishedRun, role: str) -> list[SpeedRow]:
    """Return the student's rows of the speed table in PyTorch for texts of a role."""
    rows = [] if run.report.speed is None else run.report.speed.rows
    return [row for row in rows if (row.model, row.backend, row.role) == ("student", "pytorch", role)]


def _known_mean(values: Iterable[float | None]) -> float | None:
    """Return the mean; None unless there are values and all are known."""
    numbers = []
    for value in values:
        if value is None:
            return None
        numbers.append(value)
    return float(np.mean(numbers)) if numbers else None


# -- differences -----------------------------------------------------------------------------------------------------


def _row_values(groups: Groups, reference: str, column: str, tasks: Sequence[str]) -> dict[str, RowValues]:
    """Return the values of the test rows, a mean over seeds, by task; of rows without samples there are none."""
    samples = {name: [run.samples(column, tasks) for run in group] for name, group in groups.items()}
    by_task: dict[str, RowValues] = {}
    for task in tasks:
        by_task[task] = {}
        for name, seeds in _same_rows(samples, reference, task).items():
            by_task[task][name] = np.mean([sample.row_values for sample in seeds], axis=0)
    return by_task


def _interval(
    values: Mapping[str, RowValues], weights: TaskWeights, first: str, second: str, level: float = LEVEL
) -> Interval | None:
    """Return the interval of a row's difference from another one; None where it cannot be tested."""
    differences = []
    for task in weights:
        if first not in values[task] or second not in values[task]:
            return None
        differences.append(values[task][first] - values[task][second])
    return difference_interval(differences, list(weights.values()), level)


def _same_rows(
    samples: Mapping[str, Sequence[Mapping[str, Sample]]], reference: str, task: str
) -> dict[str, list[Sample]]:
    """Return the samples of a task by row, seed by seed, of all rows with the test rows of the reference."""
    first = samples[reference][0].get(task)
    if first is None or not len(first.gold):
        return {}
    comparable = {}
    for name, seeds in samples.items():
        of_task = [seed[task] for seed in seeds if task in seed]
        if len(of_task) == len(seeds) and all(np.array_equal(sample.gold, first.gold) for sample in of_task):
            comparable[name] = of_task
    return comparable


def _run_differences(
    rows: Mapping[str, Row], reference: str, task: str, values: Mapping[str, RowValues], weights: TaskWeights
) -> list[Difference]:
    """Return every row's difference from the reference on a task; low, high and p are None if it cannot be tested."""
    differences = []
    for name, row in rows.items():
        if name == reference:
            continue
        difference = Difference(name, reference, task, row.mean[task] - rows[reference].mean[task])
        interval = _interval(values, weights, name, reference)
        if interval is not None:
            difference.low, difference.high, difference.p = interval.low, interval.high, interval.p
            difference.differing = interval.differing
        differences.append(difference)
    tested = [difference for difference in differences if difference.p is not None]
    adjusted = holm([difference.p for difference in tested if difference.p is not None])
    for difference, p in zip(tested, adjusted, strict=True):
        difference.p, difference.mark = p, significance_mark(p)
    return differences


def _lead(
    rows: Mapping[str, Row],
    task: str,
    values: Mapping[str, RowValues],
    weights: TaskWeights,
    points: Mapping[str, PointsBySeed],
) -> Lead:
    """Return the row with the highest mean on a task, and its lead over the row that may still be level with it.

    `clear` is True if its lead over every other row has an interval above 0, and with every seed that both have: the
    intervals are over test rows alone, and seeds may scatter by more than the lead. Intervals hold for all rows
    together (Bonferroni): else the best of many equal rows would be called a winner too often. If the lead is clear,
    `over` is the next row. low and high are None where samples are missing.
    """
    first, *others = sorted(rows, key=lambda name: -rows[name].mean[task])
    level = 1 - (1 - LEVEL) / len(others)
    leads = []
    for name in others:
        lead = Lead(first, name, rows[first].mean[task] - rows[name].mean[task])
        interval = _interval(values, weights, first, name, level)
        if interval is not None:
            lead = replace(lead, low=interval.low, high=interval.high, differing=interval.differing)
            lead = replace(lead, too_few=interval.least_p >= 1 - level)
        shared = points[first].keys() & points[name].keys()
        every_seed = all(points[first][seed][task] > points[name][seed][task] for seed in shared)
        leads.append(replace(lead, every_seed=every_seed))
    for lead in leads:
        if lead.low is None or lead.low <= 0 or not lead.every_seed:
            return lead
    return replace(leads[0], clear=True)


# -- notes -----------------------------------------------------------------------------------------------------------


def _remarks(
    reference: str, values: Mapping[str, RowValues], names: Sequence[str], differences: Sequence[Difference]
) -> list[str]:
    """Describe the test, and name the rows that it leaves out, and the tasks on which it cannot tell."""
    others = len(names) - 1
    notes = [
        f"Differences are to {reference}, test row by test row, with {LEVEL:.0%} intervals. The spread over seeds is "
        "not in the intervals; ± shows it. Significance: * p < 0.05, ** p < 0.01, *** p < 0.001, after Holm for "
        f"{others} {'comparison' if others == 1 else 'comparisons'} a task."
    ]
    if others > 1:
        notes[0] += " The interval of the first line is wider: it holds for all runs together."
    untested = []
    for name in names:
        tasks = [task for task in values if name not in values[task]]
        if tasks:
            untested.append(f"{name}: {', '.join(tasks)}")
    if untested:
        notes.append(f"No interval: no stored samples, or other test rows than {reference}: {'; '.join(untested)}.")
    too_few = []
    for task in dict.fromkeys(difference.task for difference in differences):
        differing = [item.differing for item in differences if item.task == task and item.differing is not None]
        if differing and max(differing) < FEWEST:
            too_few.append(f"{task} ({max(differing)})")
    if too_few:
        notes.append(
            f"Too few test rows that differ to tell: {', '.join(too_few)}. With fewer than {FEWEST} no test can give a "
            "p-value below 0.05."
        )
    return notes


def _cautions(runs: Sequence[FinishedRun], groups: Groups) -> list[str]:
    """List reasons to distrust the rows."""
    seeds = {len(group) for group in groups.values()}
    teachers, corpora = set(), set()
    for run in runs:
        teacher, data = run.record.teacher, run.record.data
        teachers.add(None if teacher is None else teacher.embeddings or teacher.fingerprint)
        corpora.add(None if data is None else data.fingerprint)
    cautions = []
    if seeds == {1}:
        cautions.append("One seed a row: the spread over seeds is not known.")
    if len(seeds) > 1:
        cautions.append(f"Rows have from {min(seeds)} to {max(seeds)} seeds.")
    different_steps = _different_steps(runs)
    if different_steps:
        cautions.append(different_steps)
    if len(teachers) > 1:
        cautions.append("Different teachers: retention is of each run's own; distances are not comparable.")
    if len(corpora) > 1:
        cautions.append("Different corpora: distances may be measured on different validation texts.")
    return cautions


def _different_steps(runs: Sequence[FinishedRun]) -> str:
    """Say that the runs have different numbers of steps, and why where the last batches of a pass can be the reason."""
    trainings = [run.record.training for run in runs if run.record.training is not None]
    steps = [training.steps for training in trainings if training.steps is not None]
    if len(set(steps)) < 2:
        return ""
    note = f"Runs have from {min(steps):,} to {max(steps):,} steps."
    passes = max(float(training.epochs or 0) for training in trainings)
    if max(steps) - min(steps) <= passes:
        note += " A method that compares the texts of a batch leaves out the last one of a pass if it is not full."
    return note
