"""Where DistillMoE's gate goes, by the weight of the pull towards equal gates (beta, eq. 8): the bounds of
train/monitors.py.

    python -m experiments.routing --json results/routing.json [--folder runs/routing]

Runs recipes/distillmoe.yaml, variant local (banking77, three layers of fresh weights, three experts), for 100 steps
of 32 texts with each beta. JSON: a row a run, with the mean gates at the end, the lowest and the highest entropy (1:
equal gates) and spread (standard deviation over texts) of its second half, and the first step at which the greatest
mean gate of a batch was above train/monitors.py's bound (null: never).
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from benchmarks.stopwatch import machine
from distilvec.config import recipe as recipes
from distilvec.config.builtin import recipe_folder
from distilvec.core.files import write_json
from distilvec.pipeline.prepare import prepare
from distilvec.pipeline.resolve import resolve
from distilvec.pipeline.train import train
from distilvec.train.metrics import read_metrics
from distilvec.train.monitors import ONE

BETAS = (0.0, 0.3, 1.0, 5.0, 20.0, 100.0)
STEPS, EVERY, ROWS = 100, 5, 2000


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, required=True)
    parser.add_argument("--folder", type=Path, default=Path("runs/routing"))
    parser.add_argument("--steps", type=int, default=STEPS)
    parser.add_argument("overrides", nargs="*", metavar="key=value", help="changes of every recipe")
    arguments = parser.parse_args()
    rows = list[dict[str, Any]]()
    report = {"machine": machine(), "steps": arguments.steps, "rows": rows}
    for beta in BETAS:
        rows.append(measure(beta, arguments.folder, arguments.steps, arguments.overrides))
        write_json(arguments.json, report)
        print(rows[-1], flush=True)


def measure(beta: float, folder: Path, steps: int, overrides: list[str]) -> dict[str, Any]:
    """The gates of one run."""
    changes = [
        f"train.max_steps={steps}",
        f"train.logging_steps={EVERY}",
        f"task.limit={ROWS}",
        "evaluation.parts=[]",
        f"method.options.beta={beta}",
        *overrides,
    ]
    recipe = recipes.load(recipe_folder() / "distillmoe.yaml", "local", changes)
    job = resolve(recipe, folder / f"beta-{beta:g}")
    train(job, prepare(job))

    lines = [line for line in read_metrics(job.files.metrics) if "train/gate_1" in line]
    gates = []
    one_expert_at = None
    for line in lines:
        gates.append([value for key, value in line.items() if key.removeprefix("train/gate_").isdigit()])
        if one_expert_at is None and max(gates[-1]) > ONE:
            one_expert_at = line["step"]

    half = len(lines) // 2
    means = []
    for of_expert in zip(*gates[half:], strict=True):
        means.append(round(sum(of_expert) / len(of_expert), 3))
    row: dict[str, Any] = {"beta": beta, "means": means}
    for name in ("entropy", "spread"):
        values = [line[f"train/gate_{name}"] for line in lines[half:]]
        row[name] = [round(min(values), 4), round(max(values), 4)]
    row["one_expert_at"] = one_expert_at
    return row


if __name__ == "__main__":
    main()
