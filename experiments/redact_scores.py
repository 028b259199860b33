"""REDACT alone and with score-level distillation (redact_scores), at equal steps.

    python -m experiments.redact_scores --json results/redact_scores.json

Runs recipes/sweeps/redact_scores.yaml seed by seed; a killed command continues where it stopped. `python -m
experiments.readme` writes the table into docs/methods.md.
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

RECIPE = Path(__file__).parents[1] / "recipes" / "sweeps" / "redact_scores.yaml"
SETTINGS = {"redact": "`redact`", "scores": "`redact_scores`", "scores-1": "`redact_scores`, `kl: 1`"}
COLUMNS = (("student", "cranfield"), ("asymmetric", "cranfield"), ("student", "stsb"))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, required=True, help="the scores, written run by run")
    parser.add_argument("--out", type=Path, default=Path("runs/redact_scores"), help="folder of the runs")
    parser.add_argument("--recipe", type=Path, default=RECIPE)
    parser.add_argument("overrides", nargs="*", metavar="key=value", help="changes of the recipe")
    arguments = parser.parse_args()
    members = sorted(expand(arguments.recipe, arguments.overrides), key=lambda member: member.recipe.train.seed)
    print(scores_table(run_members(members, arguments.out, arguments.json, {"machine": machine()}, rows_of)))


def rows_of(recipe: Recipe, result: RunResult) -> Rows:
    """One row per scored model."""
    training = {"seed": recipe.train.seed, "steps": result.state.step, "seconds": round(result.state.seconds, 1)}
    return [
        {
            "column": column,
            **training,
            "distance": round(result.state.best_distance, 4),
            "scores": {score.task: round(score.value, 3) for score in scores},
        }
        for column, scores in result.scores.items()
    ]


def scores_table(report: Mapping[str, Any]) -> str:
    """Mean and deviation over seeds of the distance to the teacher and the scores, one line per setting."""
    rows = report["rows"]
    lines = ["| model | seeds | distance | Cranfield | Cranfield, asymmetric | STS-B |", "|---|---:|" + "---:|" * 4]
    for column in ("teacher", "untrained"):
        found = [row for row in rows if row["column"] == column]
        if found:
            scores = [found[0]["scores"][task] for task in ("cranfield", "stsb")]
            lines.append(f"| {column} | | | {scores[0]:.2f} | | {scores[1]:.2f} |")
    for run, name in SETTINGS.items():
        own = [row for row in rows if row["run"] == run]
        students = [row for row in own if row["column"] == "student"]
        if not students:
            continue
        cells = [spread([row["scores"][task] for row in own if row["column"] == side]) for side, task in COLUMNS]
        distance = statistics.mean(row["distance"] for row in students)
        lines.append(f"| {name} | {len(students)} | {distance:.3f} | {' | '.join(cells)} |")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
