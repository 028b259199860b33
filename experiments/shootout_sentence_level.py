"""The sentence-level methods side by side, and the ablations of TALAS: tables 1, 2, 7, 8 and 9 of its paper on local
data.

    python -m experiments.testbed_student --out runs/testbed/student                               the student, once
    python -m experiments.shootout_sentence_level --json results/shootout_sentence_level.json      all of it
    python -m experiments.shootout_sentence_level --quick                          one seed, fewer texts and tasks

Runs recipes/sweeps/sentence_level.yaml, its methods and then its other variants (the ablations), seed by seed. Each
member's scores are written to FILE as soon as they are there, with a mark of what was trained and scored. A run that
was killed goes on where it stopped: a member whose mark is in FILE is not run again, whether or not its folder is
still there. Figures follow TALAS' protocol: macro F1, average precision, Spearman; plain means over tasks. `python -m
experiments.readme` writes the tables into docs/papers/talas.md.
"""

from __future__ import annotations

import argparse
import json
import logging
from pathlib import Path
from typing import Any

from benchmarks.stopwatch import machine
from distilvec.config import recipe as recipes
from distilvec.config.schema import Recipe
from distilvec.core.errors import DistilvecError
from distilvec.evaluation.aggregate import averages, with_protocol
from distilvec.pipeline.finished_run import FinishedRun
from distilvec.verbs.run.sweep import Member, expand_sweep
from experiments.sentence_level import shootout_tables
from experiments.shootout import last_values, run_members

ROOT = Path(__file__).parents[1]
RECIPE = ROOT / "recipes" / "sweeps" / "sentence_level.yaml"
QUICK = (  # a sixth of the work: fewer texts, one seed, five quick tasks
    "corpus.sources.0.limit=2000",
    "corpus.sources.1.limit=2000",
    "corpus.sources.2.limit=2000",
    f"evaluation.suite={ROOT / 'recipes' / 'suites' / 'sentence_level_quick.yaml'}",
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--json", type=Path, default=None, help="where the scores go; by default into the folder of --out"
    )
    parser.add_argument(
        "--out",
        type=Path,
        default=None,
        help="folder of the runs; runs/sentence_level, with --quick runs/sentence_level-quick",
    )
    parser.add_argument("--recipe", type=Path, default=RECIPE)
    parser.add_argument("--quick", action="store_true", help="the methods alone, one seed, fewer texts and tasks")
    parser.add_argument("overrides", nargs="*", metavar="key=value", help="changes of the recipe")
    arguments = parser.parse_args()
    logging.disable(logging.WARNING)
    out = arguments.out or Path("runs") / ("sentence_level-quick" if arguments.quick else "sentence_level")
    path = arguments.json or out / "shootout.json"
    try:
        print(shootout_tables(shootout(arguments.recipe, out, path, arguments.quick, arguments.overrides)))
    except DistilvecError as error:
        raise SystemExit(str(error)) from None


def shootout(
    recipe: Path, out: Path, path: Path, quick: bool = False, overrides: list[str] | None = None
) -> dict[str, Any]:
    """Run every member that is not done; gives what `path` then holds."""
    members = plan(recipe, quick, overrides or [])
    report: dict[str, Any] = run_members(members, out, path, describe(members, quick), rows_of)
    return report


def plan(recipe: Path, quick: bool, overrides: list[str]) -> list[Member]:
    """The members seed by seed: all methods, then the ablations."""
    tree = recipes.read_tree(recipe)
    methods, seeds = tree["sweep"]["variants"], tree["sweep"]["seeds"]
    if quick:
        return expand_sweep(recipe, last_values([*QUICK, *overrides, f"sweep.seeds={seeds[:1]}"]))
    names = json.dumps([*methods, *(name for name in tree["variants"] if name not in methods)])
    members = expand_sweep(recipe, last_values([f"sweep.variants={names}", *overrides]))
    return sorted(members, key=lambda member: member.recipe.train.seed)


def describe(members: list[Member], quick: bool) -> dict[str, Any]:
    """What the figures were taken with."""
    train = members[0].recipe.train
    settings = {"epochs": train.epochs, "batch_size": train.batch_size, "learning_rate": train.learning_rate}
    return {"quick": quick, **settings, "machine": machine()}


def rows_of(recipe: Recipe, result: FinishedRun) -> list[dict[str, Any]]:
    """One row a scored model: the figures by task and the averages over tasks in and out of domain, and all.

    Errors: DistilvecError if a task could not be scored.
    """
    if result.problems:
        listed = "; ".join(f"{problem.task}: {problem.message}" for problem in result.problems)
        raise DistilvecError(f"{result.folder}: not every task could be scored ({listed}).", key="run folder")
    training = result.record.training
    assert training is not None
    found = []
    for column, scores in result.scores.items():
        figures = [with_protocol(score, "talas") for score in scores]
        found.append(
            {
                "column": column,
                "seed": recipe.train.seed,
                "update": recipe.train.update.name,
                "steps": training.steps,
                "train_seconds": 60 * (training.minutes or 0),
                "averages": {name: round(value, 3) for name, value in averages(figures).items()},
                "scores": {score.task: round(score.value, 3) for score in figures},
                "domains": {score.task: score.domain for score in figures},
            }
        )
    return found


if __name__ == "__main__":
    main()
