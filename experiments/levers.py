"""What makes a small student keep more: one change at a time, at equal steps.

    python -m experiments.levers --json results/levers.json

Runs recipes/sweeps/levers.yaml; a killed command continues where it stopped. `python -m experiments.readme` writes the
table into docs/levers.md.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.stopwatch import machine
from distilvec.config.schema import Recipe
from distilvec.pipeline.run_result import RunResult
from distilvec.pipeline.sweep import expand
from experiments.shootout import Rows, run_members, spread

RECIPE = Path(__file__).parents[1] / "recipes" / "sweeps" / "levers.yaml"
COLUMNS = (("student", "stsb"), ("student", "cranfield"), ("asymmetric", "cranfield"))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, required=True, help="the scores, written run by run")
    parser.add_argument("--out", type=Path, default=Path("runs/levers"), help="folder of the runs")
    parser.add_argument("--recipe", type=Path, default=RECIPE)
    parser.add_argument("overrides", nargs="*", metavar="key=value", help="changes of the recipe")
    arguments = parser.parse_args()
    members = sorted(expand(arguments.recipe, arguments.overrides), key=lambda member: member.recipe.train.seed)
    print(levers_table(run_members(members, arguments.out, arguments.json, {"machine": machine()}, rows_of)))


def rows_of(recipe: Recipe, result: RunResult) -> Rows:
    """One row per scored model."""
    about = {
        "seed": recipe.train.seed,
        "parameters": result.record["student"]["parameters"],
        "seconds": round(result.state.seconds, 1),
        "distance": round(result.state.best_distance, 4),
    }
    return [
        {"column": column, **about, "scores": {score.task: round(score.value, 3) for score in scores}}
        for column, scores in result.scores.items()
    ]


def levers_table(report: Mapping[str, Any]) -> str:
    """Mean and deviation over seeds: distance to the teacher, scores and seconds of training, one line per variant."""
    lines = [
        "| variant | seeds | parameters | distance | STS-B | Cranfield | Cranfield, asymmetric | seconds |",
        "|---|---:|---:|---:|---:|---:|---:|---:|",
    ]
    rows = report["rows"]
    teacher = [row["scores"] for row in rows if row["column"] == "teacher"]
    if teacher:
        lines.append(f"| teacher | | | | {teacher[0]['stsb']:.2f} | {teacher[0]['cranfield']:.2f} | | |")
    for run in dict.fromkeys(row["run"] for row in rows):
        own = [row for row in rows if row["run"] == run]
        students = [row for row in own if row["column"] == "student"]
        distance, seconds = (statistics.mean(row[key] for row in students) for key in ("distance", "seconds"))
        cells = [spread([row["scores"][task] for row in own if row["column"] == side]) for side, task in COLUMNS]
        size = f"{students[0]['parameters'] / 1e6:.2f} M"
        lines.append(f"| `{run}` | {len(students)} | {size} | {distance:.3f} | {' | '.join(cells)} | {seconds:.0f} |")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
