"""Rows of finished runs with real teachers: the student at its start and after training.

    distilvec run recipes/sweeps/real_teachers.yaml
    python -m experiments.real_teachers runs/real_teachers --json results/real_teachers.json

    distilvec run recipes/sweeps/real_teachers_turkish.yaml
    python -m experiments.real_teachers runs/real_teachers_turkish --json results/real_teachers_turkish.json

The file keeps the rows of runs that are not in the folders, so that runs may be made one by one, on several machines.
`python -m experiments.readme` writes the tables into docs/papers/redact.md and docs/language.md.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.markdown import markdown_table
from benchmarks.results import earlier_results
from distilvec.core.files import write_json
from distilvec.core.run_folder import RunFolder
from distilvec.pipeline.finished_run import FinishedRun
from distilvec.verbs.runs.runs import runs_below
from experiments.shootout import difference
from experiments.untouched import SIZE, TITLE, Untouched, beside

STARTS = {  # the variants of real_teachers.yaml, and what the student is before its training
    "mpnet-ridge": "mpnet, fitted layer",
    "mpnet-layer": "mpnet, fitted layer; the layer alone is trained",
    "mpnet-random": "mpnet, random layer",
    "e5-ridge": "e5, fitted layer",
    "e5-random": "e5, random layer",
    "e5-plain": "e5, no layer",
    "mpnet-scores": "mpnet, fitted layer; the order of documents is trained, too (`redact_scores`)",
    "mpnet-fixed": "mpnet, fitted layer; the batches of the first epoch in each epoch",
}
CONTRAST = ("mpnet-ridge", "mpnet-random")  # with several seeds
TURKISH = {  # the variants of real_teachers_turkish.yaml
    "trim-12": "12 layers, trimmed to 14,000 tokens",
    "trim-4": "4 layers, trimmed to 14,000 tokens",
    "size-20M": "`--size 20M`: 12 layers with half of the neurons, 14,186 tokens",
    "unigram-12": "12 layers, 16,000 Unigram tokens",
    "unigram-12-slow": "12 layers, 16,000 tokens trained behind prompts, at 1e-4",
    "unigram-4": "4 layers, 16,000 Unigram tokens",
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", nargs="+", type=Path, help="folders of runs or sweeps")
    parser.add_argument("--json", type=Path, required=True)
    arguments = parser.parse_args()

    earlier = earlier_results(arguments.json, {"rows": []})
    rows = {(row["run"], row["seed"]): row for row in earlier["rows"]}
    for folder in arguments.folders:
        for path in [found.folder for found in runs_below(folder)]:
            run = RunFolder(path)
            if run.record.exists() and run.report.exists():
                row = row_of(path)
                rows[row["run"], row["seed"]] = row
    write_json(arguments.json, {"rows": [rows[key] for key in sorted(rows)]})
    print(table({"rows": list(rows.values())}, {name: name for name, _ in rows}))


def row_of(folder: Path) -> dict[str, Any]:
    """Return what a finished run says of its student before and after training."""
    run = FinishedRun.open(folder)
    teacher, student, training = run.record.teacher, run.record.student, run.record.training
    assert teacher is not None and student is not None and training is not None
    overlap = {} if run.record.overlap is None else run.record.overlap.to_json()
    return {
        "run": folder.name.split(",")[0],
        "seed": training.seed,
        "teacher": teacher.name,
        "parameters": student.parameters,
        "steps": training.steps,
        "minutes": training.minutes,
        "learning_rate": training.learning_rate,
        "shipped": training.shipped,
        "distance": {"start": run.validation["untrained_distance"], "student": run.validation["distance"]},
        "overlap": {name: overlap.get(name) for name in ("start", "student", "gain")},
        "scores": {
            column: {score.task: round(score.value, 3) for score in scores} for column, scores in run.scores.items()
        },
        "changes": run.report.changes,
    }


def table(report: Mapping[str, Any], names: Mapping[str, str], untouched: Untouched | None = None) -> str:
    """Return a line for each run: distance and overlap@10 found, and scores, before training and after it.

    Runs with several seeds have means, and their number. The rival comes last.
    """
    seeds: dict[str, list[Mapping[str, Any]]] = {}
    for row in report["rows"]:
        seeds.setdefault(row["run"], []).append(row)
    rows = {name: mean_of(of_seeds) for name, of_seeds in seeds.items()}
    tasks = list(dict.fromkeys(task for row in rows.values() for task in row["scores"]["student"]))
    with_documents = any("asymmetric" in row["scores"] for row in rows.values())
    columns = ["student", "parameters", "steps", "distance", "overlap@10 alone", "among the teacher's"]
    columns += tasks
    if with_documents:
        columns += [f"{task}, asymmetric" for task in tasks]
    lines = []
    for name, title in names.items():
        if name in rows:
            several = f" ({len(seeds[name])} seeds)" if len(seeds[name]) > 1 else ""
            lines.append(cells_of(rows[name], title + several, tasks, with_documents))
    if untouched is not None:
        cells = [TITLE, SIZE, "", "", "", ""]
        cells += [
            beside(untouched.scores[task], [score_of(row, "student", task) for row in rows.values()]) for task in tasks
        ]
        lines.append(cells + [""] * (len(columns) - len(cells)))
    return markdown_table(columns, lines)


def surgery_table(report: Mapping[str, Any]) -> str:
    """Return a line for each Turkish student: overlap@10 and scores before and after training, and less the teacher's.

    Means over seeds; the differences are paired by seed.
    """
    head = ["student", "parameters", "seeds", "overlap@10", "STSb-TR", "against e5", "TQuAD", "against e5"]
    lines = []
    for name, title in TURKISH.items():
        rows = [row for row in report["rows"] if row["run"] == name]
        if not rows:
            continue
        merged = mean_of(rows)
        overlap = merged["overlap"]
        cells = [title, f"{merged['parameters'] / 1e6:.1f} M", str(len(rows))]
        cells.append(change(overlap["start"], overlap["student"], "among"))
        for task in ("stsb_tr", "tquad"):
            student, teacher = (
                {row["seed"]: score_of(row, column, task) for row in rows} for column in ("student", "teacher")
            )
            cells += [scores(merged, "untrained", "student", task), difference(student, teacher)]
        lines.append(cells)
    return markdown_table(head, lines)


def mean_of(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return one row with the means of each number over rows of the same keys."""

    def mean(values: list[Any]) -> Any:
        if isinstance(values[0], Mapping):
            return {key: mean([value[key] for value in values]) for key in values[0]}
        numbers = all(isinstance(value, int | float) for value in values)
        return statistics.mean(values) if numbers else values[0]

    merged: dict[str, Any] = mean([{**row, "changes": None} for row in rows])
    merged["steps"] = rows[0]["steps"]
    return merged


def contrast_line(report: Mapping[str, Any]) -> str:
    """Return the difference of a fitted layer from a random one, paired by seed; empty below three seeds."""
    fitted, drawn = ({row["seed"]: row for row in report["rows"] if row["run"] == name} for name in CONTRAST)
    both = sorted(fitted.keys() & drawn.keys())
    if len(both) < 3:
        return ""
    tasks = [*fitted[both[0]]["scores"]["student"]]
    figures: dict[str, Callable[[Mapping[str, Any]], float]] = {
        "overlap@10 among the teacher's": lambda row: 100 * row["overlap"]["student"]["among"]["mean"],
        "overlap@10 alone": lambda row: 100 * row["overlap"]["student"]["alone"]["mean"],
        **{task: partial(score_of, column="student", task=task) for task in tasks},
        **{f"{task}, asymmetric": partial(score_of, column="asymmetric", task=task) for task in tasks},
    }
    parts = []
    for name, figure in figures.items():
        ours, theirs = ({seed: figure(rows[seed]) for seed in both} for rows in (fitted, drawn))
        parts.append(f"{name} {difference(ours, theirs)}")
    return (
        f"mpnet, fitted against random layer after training, paired by seed ({len(both)} seeds, 95% intervals by "
        f"Student's t; overlap@10 in percent): {'; '.join(parts)}."
    )


def score_of(row: Mapping[str, Any], column: str, task: str) -> float:
    """Return a model's score on a task."""
    return float(row["scores"][column][task])


def cells_of(row: Mapping[str, Any], title: str, tasks: list[str], with_documents: bool) -> list[str]:
    """Return the cells of a run's line; "before → after"."""
    start, student = row["overlap"]["start"], row["overlap"]["student"]
    cells = [
        title,
        f"{row['parameters'] / 1e6:.1f} M",
        f"{row['steps']:,}",
        f"{row['distance']['start']:.3f} → {row['distance']['student']:.3f}",
        change(start, student, "alone"),
        change(start, student, "among"),
    ]
    cells += [scores(row, "untrained", "student", task) for task in tasks]
    if with_documents:
        cells += [scores(row, "untrained_asymmetric", "asymmetric", task) for task in tasks]
    return cells


def change(start: Mapping[str, Any] | None, student: Mapping[str, Any] | None, kind: str) -> str:
    """Return a overlap@10 before and after training."""
    shares = [part[kind] if part else None for part in (start, student)]
    return " → ".join("-" if share is None else f"{share['mean']:.3f}" for share in shares)


def scores(row: Mapping[str, Any], before: str, after: str, task: str) -> str:
    """Return a task's score before and after training, as far as it was measured."""
    values = [row["scores"].get(column, {}).get(task) for column in (before, after)]
    if values[0] is None:
        return "" if values[1] is None else f"{values[1]:.1f}"
    return " → ".join("-" if value is None else f"{value:.1f}" for value in values)


if __name__ == "__main__":
    main()
