"""EMO, its parts and its baselines across tokenizers: tables 1 to 4 of its paper on local data.

    python -m benchmarks.shootout_cross_tokenizer --json results/shootout_cross_tokenizer.json     within two hours of two cores
    python -m benchmarks.shootout_cross_tokenizer --quick                                          within ten minutes

Makes the student that all begin with (benchmarks/cross_tokenizer_start.py), fine-tunes the teacher on each task, then runs the members
of recipes/sweeps/cross_tokenizer.yaml on every task. Each member's scores are written to FILE as soon as they are there. A run that
was killed goes on where it stopped. `python -m benchmarks.readme` writes the tables into docs/token_level.md.
"""

from __future__ import annotations

import argparse
import json
import logging
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks.cross_tokenizer import shootout_tables
from benchmarks.cross_tokenizer_start import TEXTS, make_start
from benchmarks.shootout import Rows, machine, run_members
from distilvec import recipe as recipes
from distilvec.errors import DistilvecError
from distilvec.run import Run, RunResult
from distilvec.schema import Recipe
from distilvec.sweep import Member, expand

ROOT = Path(__file__).parents[1]
RECIPE = ROOT / "recipes" / "sweeps" / "cross_tokenizer.yaml"
DATA = ROOT.parent / "shared" / "data"
TASKS: dict[str, dict[str, Any]] = {
    "banking77": {"type": "classification", "path": "banking77/banking77.jsonl.gz"},
    "mrpc": {"type": "pair", "path": "mrpc/mrpc.jsonl.gz", "encode": "separate"},
    "stsb": {"type": "sts", "path": "stsb/stsb.jsonl.gz", "encode": "separate", "validation_split": "validation"},
}
# The teacher is fine-tuned as a whole: adapters of the paper's rank, 256, would hold about as much as its layers of 384.
TEACHER = {"epochs": 3, "learning_rate": 2e-4, "final_learning_rate": 2e-6, "schedule": {"name": "cosine", "warmup": 0.06}}
ROWS, QUICK_ROWS = 3000, 1000  # of a task that the students see; the teacher was fine-tuned on all of them
QUICK_TEXTS = 20_000
NO_LOGITS = ("uld", "mined", "multilevel_ot", "cdm")  # a score has none: they compare hidden states on STS-B, the paper leaves them out


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, default=None, help="where the scores go; by default into the folder of --out")
    parser.add_argument(
        "--out", type=Path, default=None, help="folder of the runs; runs/cross_tokenizer, with --quick runs/cross_tokenizer-quick"
    )
    parser.add_argument("--data", type=Path, default=DATA)
    parser.add_argument("--tasks", nargs="+", choices=list(TASKS), default=list(TASKS))
    parser.add_argument("--quick", action="store_true", help="one seed, fewer texts, one pass")
    parser.add_argument("overrides", nargs="*", metavar="key=value", help="changes of every member's recipe")
    arguments = parser.parse_args()
    logging.disable(logging.WARNING)
    out = arguments.out or Path("runs") / ("cross_tokenizer-quick" if arguments.quick else "cross_tokenizer")
    path = arguments.json or out / "shootout.json"
    try:
        print(shootout_tables(shootout(out, path, arguments.data, arguments.tasks, arguments.quick, arguments.overrides)))
    except DistilvecError as error:
        raise SystemExit(str(error)) from None


def shootout(out: Path, path: Path, data: Path, tasks: list[str], quick: bool, overrides: list[str]) -> dict[str, Any]:
    """Make what the members begin with, then run them; gives what `path` then holds."""
    start = make_start(out / "start", QUICK_TEXTS if quick else TEXTS)
    members, teachers = list[Member](), {}
    for task in tasks:
        section = {**TASKS[task], "path": str(data / TASKS[task]["path"])}
        result = tune({**section, **({"limit": QUICK_ROWS} if quick else {})}, out / f"teacher-{task}", quick)
        teachers[task] = metrics_of(result)
        section["limit"] = QUICK_ROWS if quick else ROWS
        members += plan(task, section, start, result.folder / "student", quick, overrides)
    members.sort(key=lambda member: member.recipe.train.seed)
    train = members[0].recipe.train
    settings = {"epochs": train.epochs, "batch_size": train.batch_size, "learning_rate": train.learning_rate}
    facts = {"quick": quick, **settings, "machine": machine(), "teachers": teachers}
    report: dict[str, Any] = run_members(members, out / "runs", path, facts, rows_of)
    return report


def tune(section: dict[str, Any], folder: Path, quick: bool) -> RunResult:
    """The teacher fine-tuned on a task, made if it is not there."""
    tree = {
        "name": folder.name,
        "teacher": {"model": "all-MiniLM-L6-v2"},
        "student": {"model": "teacher", "max_length": 128},
        "task": section,
        "method": {"name": "task"},
        "train": {**TEACHER, **({"epochs": 1} if quick else {})},
        "evaluation": {"parts": []},
    }
    result = Run(recipes.validate(tree), folder).execute()
    assert result is not None, "a shootout runs in one process"
    return result


def plan(task: str, section: dict[str, Any], start: Path, teacher: Path, quick: bool, overrides: list[str]) -> list[Member]:
    """The members of the sweep on one task."""
    changes: dict[str, Any] = {"teacher.model": str(teacher.resolve()), "student.model": str(start.resolve()), "task": section}
    if quick:
        changes |= {"train.epochs": 1, "sweep.seeds": [0]}
    texts = [*(f"{key}={json.dumps(value)}" for key, value in changes.items()), *overrides]
    found = []
    for member in expand(RECIPE, texts):
        if section["type"] == "sts" and member.recipe.method.name in NO_LOGITS:
            (member,) = expand(RECIPE, [*texts, f"sweep.seeds=[{member.recipe.train.seed}]", "method.options={on: hidden}"], member.group)
        found.append(replace(member, name=f"{task}-{member.name}"))
    return found


def rows_of(recipe: Recipe, result: RunResult) -> Rows:
    """One row: the student's figures on the test split, in per cent."""
    assert recipe.task is not None
    return [
        {
            "task": recipe.task.label,
            "method": recipe.name.removeprefix("cross_tokenizer-").split(",")[0],
            "seed": recipe.train.seed,
            "steps": result.state.step,
            "train_seconds": round(result.state.seconds, 1),
            "scores": metrics_of(result),
        }
    ]


def metrics_of(result: RunResult) -> dict[str, float]:
    """The figures of a task's test split by name, in per cent."""
    report = json.loads((result.folder / "report.json").read_text(encoding="utf-8"))
    return {name: round(100 * value, 3) for name, value in report["supervised"]["scores"]["student"].items() if value is not None}


if __name__ == "__main__":
    main()
