"""EMO and DistillMoE, their parts and their baselines across tokenizers: their papers' tables on local data.

    python -m experiments.shootout_cross_tokenizer --json results/shootout_cross_tokenizer.json
    python -m experiments.shootout_cross_tokenizer --quick                                          within ten minutes

Makes the student that all begin with (experiments/testbed_student.py: a BERT with a tokenizer of its own that never saw
a teacher), fine-tunes the teacher on each task, then runs the members of recipes/sweeps/cross_tokenizer.yaml and
distillmoe.yaml (or the one of --sweeps): first the methods on every task, then the forms of EMO and DistillMoE on
banking77, some of them on STS-B, too. The texts of a pair are encoded apart; with one seed they are one input, too.
Few of a task's labels are used; its other texts help distillation alone. All members of a task take the same number of
steps. Each member's scores are written to FILE as soon as they are there. A run that was killed goes on where it
stopped.
`python -m experiments.readme` writes the tables into docs/papers/emo.md and docs/papers/distillmoe.md.

The models are small: two processes of one thread each (OMP_NUM_THREADS=1), with tasks, an --out and a DISTILVEC_CACHE
of their own and one --json, use two cores better than one process does.
"""

from __future__ import annotations

import argparse
import json
import logging
import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from benchmarks.stopwatch import machine
from distilvec.config import recipe as recipes
from distilvec.config.schema import Recipe
from distilvec.core.errors import DistilvecError
from distilvec.pipeline.finished_run import FinishedRun
from distilvec.pipeline.run import run
from distilvec.train.metrics import read_metrics
from distilvec.verbs.run.sweep import Member, expand_sweep
from experiments.cross_tokenizer import distillmoe_tables, emo_tables, one_input_table
from experiments.shootout import Rows, last_values, run_members
from experiments.testbed_student import DATA, make_student

ROOT = Path(__file__).parents[1]
SWEEPS = {name: ROOT / "recipes" / "sweeps" / f"{name}.yaml" for name in ("cross_tokenizer", "distillmoe")}
# The labels that students see are few, so that the teacher has much to add; half of a batch has one. The steps are
# about four to eleven passes over the labels.
STSB = {"type": "sts", "path": "stsb/stsb.jsonl.gz", "validation_split": "validation", "labels": 1500}
TASKS: dict[str, dict[str, Any]] = {
    "banking77": {"type": "classification", "path": "banking77/banking77.jsonl.gz", "labels": 2000},
    "stsb-separate": {**STSB, "name": "stsb-separate", "encode": "separate"},
    "mrpc": {"type": "pair", "path": "mrpc/mrpc.jsonl.gz", "labels": 1000},
    "stsb": STSB,
}
STEPS = {"banking77": 1400, "stsb-separate": 400, "mrpc": 500, "stsb": 800}
# Pairs as one input, as in the papers. The student does not learn them, with any method; so they have one seed, and
# one more member: trained layers, on the labels alone.
JOINT, TRAINED = ("mrpc", "stsb"), "task-trained"
# The teacher is fine-tuned as a whole: adapters of the paper's rank, 256, would hold about as much as its layers of
# 384.
TEACHER = {
    "epochs": 3,
    "learning_rate": 2e-4,
    "final_learning_rate": 2e-6,
    "schedule": {"name": "cosine", "warmup": 0.06},
}
# Run on every task, and before all else; the other variants run on FORMS_ON, those of ALSO_ON on its tasks, too
METHODS = ("task", "task-half", "uld", "mined", "dskd", "multilevel_ot", "emo", "distillmoe")
FORMS_ON = "banking77"
# The forms to take, and what the experts do to vectors that are compared
OF_EXPERTS = ("head-alone", "light-residual", "gate-held", "gate-held-residual", "no-head")
ALSO_ON = {"stsb-separate": ("cdm", "emo-states", "manual-equal", *OF_EXPERTS)}
# The student alone has a label on all rows of a batch, others on half of them: at half of the steps it has seen the
# labels as often. The papers' plain student of Banking77 takes a 160th of the steps.
SHORT = {"task-half": 2, "task-short": 8, "task-ratio": 160}
QUICK = {"steps": 20, "rows": 1000, "sequences": 2000}
NO_LOGITS = (
    "uld",
    "mined",
    "multilevel_ot",
    "cdm",
)  # a score has none: they compare hidden states on STS-B, the paper leaves them out


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--json", type=Path, default=None, help="where the scores go; by default into the folder of --out"
    )
    parser.add_argument(
        "--out",
        type=Path,
        default=None,
        help="folder of the runs; runs/testbed, with --quick runs/testbed-quick",
    )
    parser.add_argument("--data", type=Path, default=DATA)
    parser.add_argument("--tasks", nargs="+", choices=list(TASKS), default=list(TASKS))
    parser.add_argument("--sweeps", nargs="+", choices=list(SWEEPS), default=list(SWEEPS))
    parser.add_argument("--quick", action="store_true", help="one seed, fewer texts, one pass")
    parser.add_argument("overrides", nargs="*", metavar="key=value", help="changes of every member's recipe")
    arguments = parser.parse_args()
    chosen = Chosen(arguments.tasks, arguments.sweeps, arguments.quick, arguments.overrides)
    logging.disable(logging.WARNING)
    out = arguments.out or Path("runs") / ("testbed-quick" if arguments.quick else "testbed")
    path = arguments.json or out / "shootout.json"
    try:
        report = shootout(out, path, arguments.data, chosen)
        print(emo_tables(report), one_input_table(report), distillmoe_tables(report), sep="\n\n")
    except DistilvecError as error:
        raise SystemExit(str(error)) from None


@dataclass(frozen=True)
class Chosen:
    """Which members are run, and what is changed in their recipes."""

    tasks: list[str]
    sweeps: list[str]
    quick: bool
    overrides: list[str]


def shootout(out: Path, path: Path, data: Path, chosen: Chosen) -> dict[str, Any]:
    """Make what the members begin with, then run them; gives what `path` then holds."""
    quick = chosen.quick
    start = make_student(out / "student", data, limit=QUICK["sequences"] if quick else None)
    members, teachers = list[Member](), {}
    for task in chosen.tasks:
        section = {**TASKS[task], "path": str(data / TASKS[task]["path"])}
        if quick:
            section |= {"limit": QUICK["rows"], "labels": QUICK["rows"] // 4}
        result = tune({**section, "labels": None}, out / f"teacher-{task}", quick)
        teachers[task] = metrics_of(result)
        members += plan(task, section, start, result.student_folder, chosen)
    members.sort(key=lambda member: (name_of(member.recipe) not in METHODS, member.recipe.train.seed))
    train = members[0].recipe.train
    settings = {"batch_size": train.batch_size, "learning_rate": train.learning_rate, "steps": STEPS}
    info = {"quick": quick, **settings, "machine": machine(), "teachers": teachers}
    report: dict[str, Any] = run_members(members, out / "runs", path, info, rows_of)
    return report


def tune(section: dict[str, Any], folder: Path, quick: bool) -> FinishedRun:
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
    result = run(recipes.validate(tree), folder)
    assert result is not None, "a shootout runs in one process"
    return result


def plan(task: str, section: dict[str, Any], start: Path, teacher: Path, chosen: Chosen) -> list[Member]:
    """The members of the sweeps on one task: all on FORMS_ON, else the methods and those of ALSO_ON."""
    changes: dict[str, Any] = {
        "teacher.model": str(teacher.resolve()),
        "student.model": str(start.resolve()),
        "task": section,
        "train.max_steps": QUICK["steps"] if chosen.quick else STEPS[task],
    }
    if chosen.quick or task in JOINT:
        changes |= {"sweep.seeds": [0]}
    texts = last_values([*(f"{key}={json.dumps(value)}" for key, value in changes.items()), *chosen.overrides])
    found = []
    for recipe in (SWEEPS[name] for name in chosen.sweeps):
        for member in expand_sweep(recipe, texts):
            if task != FORMS_ON and member.group not in (*METHODS, *ALSO_ON.get(task, ())):
                continue
            more = []
            if member.group in SHORT:
                more = [f"train.max_steps={changes['train.max_steps'] // SHORT[member.group]}"]
            if section["type"] == "sts" and member.recipe.method.name in NO_LOGITS:
                more = ["method.options={on: hidden}"]
            if more:
                only = [*texts, f"sweep.seeds=[{member.recipe.train.seed}]", *more]
                (member,) = expand_sweep(recipe, last_values(only), member.group)
            found.append(member)
    if task in JOINT and "cross_tokenizer" in chosen.sweeps:
        found += expand_sweep(
            SWEEPS["cross_tokenizer"], last_values([*texts, "student.model=all-MiniLM-L6-v2"]), TRAINED
        )
    return [replace(member, name=f"{task}-{member.name}") for member in found]


def rows_of(recipe: Recipe, result: FinishedRun) -> Rows:
    """One row: the student's figures on the test split, in per cent."""
    training = result.record.training
    assert recipe.task is not None and training is not None
    return [
        {
            "task": recipe.task.label,
            "method": name_of(recipe),
            "seed": recipe.train.seed,
            "steps": training.steps,
            "train_seconds": 60 * (training.minutes or 0),
            "scores": metrics_of(result),
            **({"gates": gates} if (gates := last_gates(result)) else {}),
        }
    ]


def last_gates(result: FinishedRun) -> list[float]:
    """The mean gate of each expert at the end of training; [] for a student without experts."""
    lines = [line for line in read_metrics(result.files.metrics) if "train/gate_1" in line]
    return (
        [round(value, 3) for name, value in lines[-1].items() if re.fullmatch(r"train/gate_\d+", name)] if lines else []
    )


def name_of(recipe: Recipe) -> str:
    """What a member is called in the tables: its variant's name."""
    name = recipe.name.split(",")[0]
    return next((name.removeprefix(f"{sweep}-") for sweep in SWEEPS if name.startswith(f"{sweep}-")), name)


def metrics_of(result: FinishedRun) -> dict[str, float]:
    """The figures of a task's test split by name, in per cent."""
    supervised = result.report.supervised
    assert supervised is not None
    return {name: round(100 * value, 3) for name, value in supervised.scores["student"].items() if value is not None}


if __name__ == "__main__":
    main()
