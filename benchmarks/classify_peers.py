"""`distilvec classify` against setfit on the same labelled rows: accuracy on the official test rows, and minutes.

    python -m venv SETFIT && SETFIT/bin/pip install setfit 'transformers<5'
    python -m benchmarks.classify_peers WORKSPACE --setfit SETFIT/bin/python --labels 8 --json results/classify.json
    python -m benchmarks.classify_peers WORKSPACE --setfit SETFIT/bin/python --labels all --pairs 1 --json FILE

Banking77: 77 intents, 10,003 training rows and 3,080 test rows. `--labels 8` draws 8 rows of each intent by seed, the
setting that setfit is made for. Both sides start from the same model and use their own defaults, but for the number of
pairs that setfit trains on: its default takes every pair of texts (about 380,000 for 616 rows), its paper 20 pairs of
each kind for a text, as here. Ten thousand rows have one. setfit runs in an environment of its own. Each side is a
process of its own; the clock has imports and everything else.
setfit's student is the whole model, ours has a third of its layers: the file says how many parameters each has.
The file keeps what other calls have left there.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import subprocess
import sys
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.markdown import markdown_table
from benchmarks.results import earlier_results
from benchmarks.stopwatch import machine
from benchmarks.texts import SHARED
from distilvec.core.files import write_json

ROOT = Path(__file__).parents[1]
DATA = SHARED.parents[1] / "banking77" / "banking77.jsonl.gz"
Row = dict[str, str]
KEPT = ("sentence", "accuracy", "interval", "parameters", "teacher_accuracy", "teacher_parameters")  # of our result

# Runs in setfit's environment, which has no distilvec: one epoch of contrastive pairs, then a logistic regression.
SETFIT = """
import json, sys, time
from datasets import Dataset
from setfit import SetFitModel, Trainer, TrainingArguments

model_name, train_file, test_file, seed, pairs = sys.argv[1:6]
rows = [[json.loads(line) for line in open(name, encoding="utf-8")] for name in (train_file, test_file)]
train, test = (Dataset.from_list([{"text": row["text"], "label": row["label"]} for row in part]) for part in rows)
model = SetFitModel.from_pretrained(model_name)
settings = TrainingArguments(seed=int(seed), num_iterations=int(pairs), report_to="none")
trainer = Trainer(model=model, args=settings, train_dataset=train)
trainer.train()
predicted = model.predict(test["text"])
right = sum(str(one) == other for one, other in zip(predicted, test["label"]))
parameters = sum(weight.numel() for weight in model.model_body.parameters())
print(json.dumps({"accuracy": 100 * right / len(test), "parameters": parameters}))
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("workspace", type=Path)
    parser.add_argument("--json", type=Path, required=True)
    parser.add_argument("--setfit", type=Path, help="the Python of an environment with setfit")
    parser.add_argument("--labels", default="8", help="training rows of each label, or all")
    parser.add_argument("--model", default="all-MiniLM-L6-v2", help="that both start from")
    parser.add_argument("--pairs", type=int, default=20, help="setfit's pairs of each kind for a text")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--sides", nargs="+", choices=["distilvec", "setfit"], default=["distilvec", "setfit"])
    arguments = parser.parse_args()

    from distilvec.models.load import resolve_model

    workspace: Path = arguments.workspace.resolve() / f"{arguments.labels}-{arguments.seed}"
    workspace.mkdir(parents=True, exist_ok=True)
    write_rows(workspace, arguments.labels, arguments.seed)
    for side in arguments.sides:
        if side == "setfit" and arguments.setfit is None:
            parser.error("--setfit is needed: the Python of an environment with setfit")
        began = time.time()
        if side == "distilvec":
            result = run_distilvec(workspace, arguments.model, arguments.seed)
        else:
            model = str(resolve_model(arguments.model))
            result = run_setfit(workspace, arguments.setfit, model, arguments.seed, arguments.pairs)
        result["minutes"] = round((time.time() - began) / 60, 2)
        print(side, result, flush=True)
        rows = "all" if arguments.labels == "all" else f"{arguments.labels} a label, seed {arguments.seed}"
        save(arguments.json, rows, side, result)


def write_rows(workspace: Path, labels: str, seed: int) -> None:
    """Write train.jsonl, with so many rows of each label, and test.jsonl."""
    with gzip.open(DATA, "rt", encoding="utf-8") as file:
        rows: list[Row] = [json.loads(line) for line in file]
    train = [row for row in rows if row["split"] == "train"]
    if labels != "all":
        train = drawn(train, int(labels), seed)
    test = [row for row in rows if row["split"] == "test"]
    for name, part in {"train": train, "test": test}.items():
        lines = [json.dumps({"text": row["text"], "label": row["label"]}) + "\n" for row in part]
        (workspace / f"{name}.jsonl").write_text("".join(lines), encoding="utf-8")


def drawn(rows: list[Row], count: int, seed: int) -> list[Row]:
    """Return `count` rows of each label."""
    by_label: dict[str, list[Row]] = defaultdict(list)
    for row in rows:
        by_label[row["label"]].append(row)
    generator = np.random.default_rng(seed)
    chosen: list[Row] = []
    for label_rows in by_label.values():
        numbers = generator.choice(len(label_rows), size=count, replace=False)
        chosen += [label_rows[number] for number in numbers]
    return chosen


def run_distilvec(workspace: Path, model: str, seed: int) -> dict[str, Any]:
    """Run the command; return its sentence, accuracies with the interval in per cent, and parameters."""
    out = workspace / "run"
    line = [sys.executable, "-m", "distilvec", "classify", str(workspace / "train.jsonl")]
    line += ["--test", str(workspace / "test.jsonl"), "--teacher", model, "--seed", str(seed), "--out", str(out)]
    line += ["--json", str(workspace / "result.json"), "--restart"]
    path = os.pathsep.join([str(ROOT / "src"), os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, "PYTHONPATH": path, "DISTILVEC_CACHE": str(workspace / "cache")}
    subprocess.run(line, check=True, env=environment, cwd=workspace)
    result: dict[str, Any] = json.loads((workspace / "result.json").read_text(encoding="utf-8"))
    kept = {name: result[name] for name in KEPT}
    kept["accuracy"] *= 100
    kept["teacher_accuracy"] *= 100
    kept["interval"] = [100 * end for end in kept["interval"]]
    return kept


def run_setfit(workspace: Path, python: Path, model: str, seed: int, pairs: int) -> dict[str, Any]:
    """Train with setfit; return accuracy, parameters, and its pairs."""
    files = [str(workspace / "train.jsonl"), str(workspace / "test.jsonl")]
    line = [str(python), "-c", SETFIT, model, *files, str(seed), str(pairs)]
    output = subprocess.run(line, check=True, stdout=subprocess.PIPE, text=True, cwd=workspace).stdout
    result: dict[str, Any] = json.loads(output.splitlines()[-1])
    return {**result, "pairs": pairs}


def classify_table(report: dict[str, Any]) -> str:
    """Return a line for each model of each job: accuracy on the test rows, parameters, and minutes of the command."""
    lines = []
    for job, sides in report.items():
        if job == "machine":
            continue
        rows = []
        if (ours := sides.get("distilvec")) is not None:
            low, high = ours["interval"]
            teacher = [f"{ours['teacher_accuracy']:.1f}", f"{ours['teacher_parameters'] / 1e6:.1f} M", ""]
            rows.append(["`classify`, its teacher", *teacher])
            accuracy = f"{ours['accuracy']:.1f} [{low:.1f}, {high:.1f}]"
            student = [accuracy, f"{ours['parameters'] / 1e6:.1f} M", f"{ours['minutes']:.1f}"]
            rows.append(["`classify`", *student])
        if (peer := sides.get("setfit")) is not None:
            figures = [f"{peer['accuracy']:.1f}", f"{peer['parameters'] / 1e6:.1f} M", f"{peer['minutes']:.1f}"]
            rows.append([f"setfit, {2 * peer['pairs']} pairs a text", *figures])
        title = job
        for row in rows:
            lines.append([title, *row])
            title = ""  # a job's name stands in its first line alone
    head = ["training rows", "model", "accuracy", "parameters", "minutes"]
    return markdown_table(head, lines, columns="llrrr")


def save(path: Path, job: str, side: str, result: dict[str, Any]) -> None:
    """Put a side's result into the file."""
    report = earlier_results(path, {})
    report["machine"] = machine()
    report.setdefault(job, {})[side] = result
    write_json(path, report)


if __name__ == "__main__":
    main()
