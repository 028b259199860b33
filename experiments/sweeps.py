"""The scores of finished sweeps by run and seed, and their tables.

    python -m experiments.sweeps RUNS... --json FILE

RUNS are folders of sweeps, such as those of recipes/sweeps/out_of_domain.yaml and tokenizers.yaml. The JSON: "tasks"
with type, metric and domain of each; "rows" with run, seed, parameters, tokens of the vocabulary, minutes, steps and
the scores by model (student, untrained, teacher) and task.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.markdown import markdown_table
from distilvec.core.files import write_json
from distilvec.core.model_name import ModelName
from distilvec.models.load import load_tokenizer
from distilvec.verbs.compare.results import finished_runs
from experiments.shootout import PAIRED, difference, spread

OF_TASK, COLUMNS = ("type", "metric", "domain"), ("student", "untrained", "teacher")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="+", type=Path)
    parser.add_argument("--json", type=Path, required=True)
    arguments = parser.parse_args()
    write_json(arguments.json, collected(arguments.runs))


def collected(folders: Sequence[Path]) -> dict[str, Any]:
    """What the finished runs of sweeps recorded."""
    tasks: dict[str, dict[str, Any]] = {}
    rows = []
    for member in finished_runs(folders):
        run = member.run
        student, training = run.record.student, run.record.training
        assert student is not None and training is not None
        for score in run.scores.get("student", ()):
            tasks[score.task] = {key: getattr(score, key) for key in OF_TASK}
        values = {
            column: {score.task: score.value for score in run.scores[column]}
            for column in COLUMNS
            if column in run.scores
        }
        rows.append(
            {
                "run": member.name,
                "seed": member.seed,
                "parameters": student.parameters,
                "tokens": len(load_tokenizer(ModelName(str(run.student_folder)))),
                "minutes": training.minutes,
                "steps": training.steps,
                "scores": values,
            }
        )
    return {"tasks": tasks, "rows": rows}


def domains_table(report: Mapping[str, Any]) -> str:
    """Averages in and out of domain, and each method's difference to the student without a teacher."""
    groups = {
        f"{words} domain": [name for name, task in report["tasks"].items() if task["domain"] == domain]
        for words, domain in (("in", "in"), ("out of", "out"))
    }
    return differences_table(report, groups, "simcse")


def tokenizers_table(report: Mapping[str, Any]) -> str:
    """Scores by type of task before and after training, and each tokenizer's difference to the teacher's own."""
    groups: dict[str, list[str]] = {}
    for name, task in report["tasks"].items():
        groups.setdefault(task["type"], []).append(name)
    return f"{differences_table(report, groups, 'own', untrained=True)} Untrained → trained."


def differences_table(
    report: Mapping[str, Any], groups: Mapping[str, Sequence[str]], reference: str, untrained: bool = False
) -> str:
    """A row for the teacher and one for each run: mean and deviation over seeds of every group of tasks and of all
    tasks, each with its difference to the reference.
    """
    columns = {**groups, "all": [*report["tasks"]]}
    runs: dict[str, list[dict[str, Any]]] = {}
    for row in report["rows"]:
        runs.setdefault(short_name(row["run"]), []).append(row)

    def by_seed(rows: Sequence[Mapping[str, Any]], model: str, tasks: Sequence[str]) -> dict[int, float]:
        return {
            row["seed"]: statistics.mean(row["scores"][model][task] for task in tasks)
            for row in rows
            if model in row["scores"]
        }

    heads = [head for column in columns for head in (column, f"against {reference}")]
    lines = []
    if any("teacher" in row["scores"] for row in report["rows"]):
        cells = ["teacher", "", ""]
        for tasks in columns.values():
            scores = by_seed(report["rows"], "teacher", tasks)
            cells += [f"{statistics.mean(scores.values()):.2f}", ""]
        lines.append(cells)
    for name, rows in runs.items():
        cells = [name, str(len(rows)), f"{rows[0]['tokens']:,}"]
        for tasks in columns.values():
            ours, before = by_seed(rows, "student", tasks), by_seed(rows, "untrained", tasks)
            start = f"{statistics.mean(before.values()):.2f} → " if untrained and before else ""
            cells.append(start + spread([*ours.values()]))
            cells.append("" if name == reference else difference(ours, by_seed(runs[reference], "student", tasks)))
        lines.append(cells)
    steps = " or ".join(f"{count:,}" for count in sorted({row["steps"] for row in report["rows"]}))
    names = "; ".join(f"{group}: {', '.join(tasks)}" for group, tasks in groups.items())
    table = markdown_table(["", "seeds", "tokens", *heads], lines)
    return f"{table}\n\nMeans of the tasks' scores ({names}). {steps} steps a run. {PAIRED}"


def short_name(run: str) -> str:
    """A run's variant without the part that names the machine's own models."""
    return run.removesuffix("+testbed").split("-")[-1]


if __name__ == "__main__":
    main()
