"""EMO and DistillMoE with a larger teacher of another tokenizer: multilingual-e5-small to layers of all-MiniLM-L6-v2.

    python -m experiments.larger_teacher TEACHER --tasks mrpc --seeds 0 1 2 --json results/larger_teacher.json

The tables of two more tasks: --tasks stsb banking77-2000 --json results/larger_teacher_tasks.json. TEACHER is a
folder or id. It is fine-tuned on all labels of each task, then recipes/sweeps/larger_teacher.yaml runs seed by seed.
Each member's scores are written to FILE as soon as they are there; the same command goes on where a run stopped.
`python -m experiments.readme` writes the tables into docs/papers/emo.md and docs/papers/distillmoe.md.
"""

from __future__ import annotations

import argparse
import json
import logging
import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from scipy.stats import norm

from benchmarks.markdown import markdown_table
from benchmarks.stopwatch import machine
from distilvec.config import recipe as recipes
from distilvec.config.schema import Recipe
from distilvec.evaluation.evaluator import Sample
from distilvec.pipeline.finished_run import FinishedRun
from distilvec.pipeline.run import run
from distilvec.verbs.run.sweep import Member, expand_sweep
from experiments.shootout import PAIRED, Gap, Rows, Seeds, gap_between_seeds, run_members, spread
from experiments.shootout_cross_tokenizer import last_gates, metrics_of
from experiments.testbed_student import DATA

RECIPE = Path(__file__).parents[1] / "recipes" / "sweeps" / "larger_teacher.yaml"
TASKS: dict[str, dict[str, Any]] = {
    "mrpc": {"type": "pair", "path": "mrpc/mrpc.jsonl.gz", "encode": "joint"},
    "stsb": {"type": "sts", "path": "stsb/stsb.jsonl.gz", "validation_split": "validation", "encode": "joint"},
    "banking77": {"type": "classification", "path": "banking77/banking77.jsonl.gz"},
}
# 2,000 labels, and in every pass as many other texts. The teacher is fine-tuned on all labels.
ALL_LABELS = {"banking77-2000": "banking77"}
TASKS["banking77-2000"] = {**TASKS["banking77"], "name": "banking77-2000", "labels": 2000}
TEST_ROWS = {"mrpc": 1725, "stsb": 1379, "banking77": 3080, "banking77-2000": 3080}
STEPS = {"mrpc": 600, "stsb": 800, "banking77": 1400, "banking77-2000": 1400}
MAIN = {"mrpc": "accuracy", "stsb": "spearman", "banking77": "accuracy", "banking77-2000": "accuracy"}
# Three passes of all of e5's layers over all labels
TUNING = {
    "epochs": 3,
    "batch_size": 32,
    "learning_rate": 1e-4,
    "final_learning_rate": 1e-6,
    "schedule": {"name": "cosine", "warmup": 0.06},
}
# What each member is compared with: the one that it differs from by one key
EMO = {
    "mined": "task",
    "dskd-hidden": "task",
    "emo": "task",
    "emo-ira": "task",
    "emo-otis": "task",
    "emo-ordinary": "emo",
    "emo-states": "emo",
    "emo-pooled": "emo-states",
    "emo-tokens": "emo-states",
}
DISTILLMOE = {
    "distillmoe": "task",
    "head-alone": "task",
    "gate-held": "distillmoe",
    "gate-equal": "distillmoe",
    "margin-0": "distillmoe",
    "no-dynamic-cka": "distillmoe",
    "manual-equal": "task",
    "cka-alone": "task",
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("teacher")
    parser.add_argument("--json", type=Path, required=True)
    parser.add_argument("--out", type=Path, default=Path("runs/larger-teacher"), help="folder of the runs")
    parser.add_argument("--tasks", nargs="+", choices=list(TASKS), default=["mrpc"])
    parser.add_argument("--seeds", nargs="+", type=int, default=[0])
    parser.add_argument("--members", nargs="+", help="some of the sweep's variants; default: all")
    parser.add_argument("--data", type=Path, default=DATA)
    arguments = parser.parse_args()
    logging.disable(logging.WARNING)

    teachers: dict[str, dict[str, float]] = {}
    members: list[Member] = []
    for task in arguments.tasks:
        path = str(arguments.data / TASKS[task]["path"])
        whole = ALL_LABELS.get(task, task)
        tuned = tune(arguments.teacher, {**TASKS[whole], "path": path}, arguments.out / f"teacher-{whole}")
        teachers[task] = metrics_of(tuned)
        members += plan(task, {**TASKS[task], "path": path}, tuned.student_folder, arguments.seeds, arguments.members)
    info = {"steps": STEPS, "test_rows": TEST_ROWS, "machine": machine(), "teachers": teachers}
    # All members with the first seed, then all with the second
    members.sort(key=lambda member: member.recipe.train.seed)
    run_members(members, arguments.out / "runs", arguments.json, info, rows_of)


def tune(model: str, section: dict[str, Any], folder: Path) -> FinishedRun:
    """Return the teacher fine-tuned on a task, made if it is not there."""
    tree = {
        "name": folder.name,
        "teacher": {"model": str(Path(model).resolve()) if Path(model).is_dir() else model},
        "student": {"model": "teacher", "max_length": 128},
        "task": section,
        "method": {"name": "task"},
        "train": TUNING,
        "evaluation": {"parts": []},
    }
    result = run(recipes.validate(tree, origin="experiments.larger_teacher"), folder)
    assert result is not None, "one process trains"
    return result


def plan(
    task: str, section: dict[str, Any], teacher: Path, seeds: Sequence[int], chosen: Sequence[str] | None
) -> list[Member]:
    """Return the members of the sweep on a task."""
    changes: dict[str, Any] = {
        "teacher.model": str(teacher.resolve()),
        "task": section,
        "train.max_steps": STEPS[task],
        "sweep.seeds": list(seeds),
    }
    if chosen is not None:
        changes["sweep.variants"] = list(chosen)
    members = expand_sweep(RECIPE, [f"{key}={json.dumps(value)}" for key, value in changes.items()])
    return [replace(member, name=f"{task}-{member.name}") for member in members]


def rows_of(recipe: Recipe, result: FinishedRun) -> Rows:
    """Return one row: the student's figures on the test split, in per cent."""
    training = result.record.training
    assert recipe.task is not None and training is not None
    row = {
        "task": recipe.task.label,
        "method": recipe.name.split(",")[0].removeprefix("larger_teacher-"),
        "seed": recipe.train.seed,
        "steps": training.steps,
        "minutes": round(training.minutes or 0, 1),
        "scores": metrics_of(result),
    }
    samples = result.samples("student", [recipe.task.label])
    if recipe.task.type != "sts" and samples:
        row["right"] = packed(samples[recipe.task.label])
    gates = last_gates(result)
    return [{**row, "gates": gates} if gates else row]


def packed(sample: Sample) -> str:
    """Return which test rows are right, a bit for each, in hexadecimal digits."""
    return np.packbits(sample.predicted == sample.gold).tobytes().hex()


def row_difference(ours: Rows, theirs: Rows, test_rows: int) -> Gap | None:
    """Return the difference with one or two seeds, and its interval over the test rows.

    None of a figure that is no share of rows that are right.
    """
    by_seed = {row["seed"]: row for row in theirs if "right" in row}
    pairs = [(row, by_seed[row["seed"]]) for row in ours if "right" in row and row["seed"] in by_seed]
    if not pairs:
        return None
    changes = [
        100.0 * (unpacked(one["right"], test_rows) - unpacked(other["right"], test_rows)) for one, other in pairs
    ]
    by_row = np.mean(changes, axis=0)
    mean = float(by_row.mean())
    # By hand: norm.interval gives no numbers where no row differs
    half = float(norm.ppf(0.975) * by_row.std(ddof=1) / math.sqrt(test_rows))
    return Gap(mean, mean - half, mean + half)


def unpacked(digits: str, test_rows: int) -> np.ndarray[Any, Any]:
    """Return 1 for each test row that is right, float64 [rows]."""
    return np.unpackbits(np.frombuffer(bytes.fromhex(digits), dtype=np.uint8))[:test_rows].astype(np.float64)


def emo_table(report: Mapping[str, Any]) -> str:
    """Return EMO's members, each with its difference from the member it is one key apart from."""
    return table(report, EMO)


def distillmoe_table(report: Mapping[str, Any]) -> str:
    """Return DistillMoE's members, each with its difference from the member it is one key apart from."""
    return table(report, DISTILLMOE)


def table(report: Mapping[str, Any], against: Mapping[str, str]) -> str:
    """Return the rows of some members on every task that was run, the teacher and the labels alone first."""
    rows = report["rows"]
    has_gates = any("gates" in row for row in rows if row["method"] in against)
    parts: list[str] = []
    for task, teacher in report["teachers"].items():
        figure = MAIN[task]
        columns = ["run", "seeds", f"{task}, {figure}", "difference", "from"]
        alignments = "lrrrl"
        if has_gates:
            columns.append("greatest gate")
            alignments += "r"
        blank = [""] * (len(columns) - 3)
        lines = [["teacher, fine-tuned", "1", f"{teacher[figure]:.2f}", *blank]]
        for name in ("task", *against):
            scores = by_seed(rows, task, name)
            if not scores:
                continue
            other = against.get(name)
            gap = "" if other is None else str(gap_between(report, task, name, other) or "")
            reference = f"`{other}`" if other is not None else ""
            cells = [name, str(len(scores)), spread([*scores.values()]), gap, reference]
            if has_gates:
                gates = [max(row["gates"]) for row in rows_of_member(rows, task, name) if "gates" in row]
                cells.append(f"{statistics.mean(gates):.2f}" if gates else "")
            lines.append(cells)
        fewer = f"With fewer seeds: the interval over the {report['test_rows'][task]:,} test rows."
        parts.append(markdown_table(columns, lines, alignments))
        parts.append(f"{report['steps'][task]} steps of 32 texts. {PAIRED} {fewer}")
    return "\n\n".join(parts)


def gap_between(report: Mapping[str, Any], task: str, name: str, other: str) -> Gap | None:
    """Return the difference of two members, its interval over seeds from three on, else over the test rows."""
    rows = report["rows"]
    scores, reference = by_seed(rows, task, name), by_seed(rows, task, other)
    if len(scores.keys() & reference.keys()) < 3:
        ours, theirs = (rows_of_member(rows, task, member) for member in (name, other))
        gap = row_difference(ours, theirs, report["test_rows"][task])
        if gap is not None:
            return gap
    return gap_between_seeds(scores, reference)


def rows_of_member(rows: Rows, task: str, method: str) -> Rows:
    """Return a member's rows on a task, one for each seed."""
    return [row for row in rows if (row["task"], row["method"]) == (task, method)]


def by_seed(rows: Rows, task: str, method: str) -> Seeds:
    """Return a member's main figure by seed."""
    return {row["seed"]: row["scores"][MAIN[task]] for row in rows_of_member(rows, task, method)}


if __name__ == "__main__":
    main()
