"""What makes a small student keep more: one change at a time, at equal steps.

    python -m experiments.levers --json results/levers.json
    python -m experiments.levers --json results/levers.json \\
        'sweep.variants=[narrow,last-layers,trimmed]' 'sweep.seeds=[0,1,2]'

Runs recipes/sweeps/levers.yaml; a killed command continues where it stopped. The second line has three seeds: name
every seed of a variant, since rows of its others are removed. `python -m experiments.readme` writes the table into
docs/levers.md.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.markdown import markdown_table
from benchmarks.stopwatch import machine
from distilvec.config.schema import Recipe
from distilvec.pipeline.finished_run import FinishedRun
from distilvec.verbs.run.sweep import expand_sweep
from experiments.shootout import Rows, run_members, spread

RECIPE = Path(__file__).parents[1] / "recipes" / "sweeps" / "levers.yaml"
CHANGES = {  # of the variant that the sweep begins from, `last-layers`
    "trimmed": "layers [0, 5], rows of 384 numbers for 2,300 tokens",
    "rank-56": "layers [0, 5]",
    "rank-96": "layers [0, 5], rows of 96 numbers for 12,000 tokens",
    "last-layers": "**none**: layers [4, 5], rows of 56 numbers for 21,000 tokens",
    "ridge": "a linear layer behind the pooling, started by ridge regression; 18,300 tokens",
    "scores": "`redact_scores`, `kl: 0.1`",
    "scores-1": "`redact_scores`, `kl: 1`",
    "table-rate": "three times the rate for the token table",
    "rate-half": "half of the rate",
    "rate-double": "twice the rate",
    "stable": "warm-up, stable, decay over the last fifth",
    "linear-decay": "linear decay",
    "window-1": "batches of mixed lengths",
    "batch-64": "half of the steps with 64 texts, 1.5 times the rate",
    "cos": "cosine distance",
    "mse": "squared distance",
    "muon": "Muon for the layers' matrices",
    "muon-double": "Muon, twice the rate",
    "longer": "three passes",
    "narrow": "768 of 1,536 neurons in each layer, rows of 104 numbers",
    "narrow-384": "384 neurons, rows of 136 numbers",
    "narrow-three": "layers [0, 4, 5], 384 neurons, rows of 94 numbers",
}
COLUMNS = (("student", "stsb"), ("student", "cranfield"), ("asymmetric", "cranfield"))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, required=True, help="the scores, written run by run")
    parser.add_argument("--out", type=Path, default=Path("runs/levers"), help="folder of the runs")
    parser.add_argument("--recipe", type=Path, default=RECIPE)
    parser.add_argument("overrides", nargs="*", metavar="key=value", help="changes of the recipe")
    arguments = parser.parse_args()
    members = sorted(expand_sweep(arguments.recipe, arguments.overrides), key=lambda member: member.recipe.train.seed)
    print(levers_table(run_members(members, arguments.out, arguments.json, {"machine": machine()}, rows_of)))


def rows_of(recipe: Recipe, result: FinishedRun) -> Rows:
    """One row per scored model."""
    student, training = result.record.student, result.record.training
    assert student is not None and training is not None
    about = {
        "seed": recipe.train.seed,
        "parameters": student.parameters,
        "seconds": 60 * (training.minutes or 0),
        "distance": round(result.validation["distance"] or 0.0, 4),
    }
    return [
        {"column": column, **about, "scores": {score.task: round(score.value, 3) for score in scores}}
        for column, scores in result.scores.items()
    ]


def levers_table(report: Mapping[str, Any]) -> str:
    """Mean and deviation over seeds: distance to the teacher and scores, one line per variant, the nearest first."""
    head = ["change", "seeds", "distance", "STS-B", "Cranfield", "Cranfield, asymmetric"]
    lines = []
    rows = report["rows"]
    teacher = [row["scores"] for row in rows if row["column"] == "teacher"]
    if teacher:
        lines.append(["teacher", "", "", f"{teacher[0]['stsb']:.2f}", f"{teacher[0]['cranfield']:.2f}", ""])
    by_run: dict[str, list[float]] = {}
    for row in rows:
        if row["column"] == "student":
            by_run.setdefault(row["run"], []).append(row["distance"])
    for run, distances in sorted(by_run.items(), key=lambda item: statistics.mean(item[1])):
        own = [row for row in rows if row["run"] == run]
        cells = [spread([row["scores"][task] for row in own if row["column"] == side]) for side, task in COLUMNS]
        lines.append([CHANGES.get(run, run), str(len(distances)), f"{statistics.mean(distances):.3f}", *cells])
    return markdown_table(head, lines)


if __name__ == "__main__":
    main()
