"""Students of 1,600 labeled questions: fine-tuned alone, or by a fine-tuned teacher. The table of docs/task_student.md.

    python -m experiments.intents --out runs/intents --json results/intents.json [--seeds 0 1 2]

20 classes of banking77 (`distilvec data get banking77`, or --data FILE), 1,600 training rows drawn once, all test rows
of these classes. Every line is a command of distilvec in a process of its own. Finished runs are not repeated.
`python -m experiments.readme` writes the table.
"""

from __future__ import annotations

import argparse
import gzip
import json
import random
import statistics
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.markdown import markdown_table
from distilvec.core.files import write_json
from distilvec.core.run_folder import RunFolder
from distilvec.pipeline.finished_run import FinishedRun

DATA = Path(__file__).parents[2] / "shared" / "data" / "banking77" / "banking77.jsonl.gz"
CLASSES, ROWS = 20, 1_600
TWO = "student={model: all-MiniLM-L6-v2, layers: 2}"
TRIMMED = "student={model: all-MiniLM-L6-v2, layers: 2, vocabulary: {kind: trim, size: 2900}}"
FINETUNE = ("finetune", "all-MiniLM-L6-v2", "--no-lora")
GOOD = ("--learning-rate", "2e-4", "--epochs", "5")
BY_TEACHER = ("run", "mined", "--variant", "local", "teacher.model={teacher}")
ALONE = ("run", "task", "--variant", "local")
RUNS: dict[str, tuple[str, ...]] = {  # by the table's words; {teacher}: the student of the second line with seed 0
    "`finetune` with its defaults (2e-5, 3 epochs)": FINETUNE,
    "`finetune --learning-rate 2e-4 --epochs 5`: a teacher": (*FINETUNE, *GOOD),
    "`task`, two layers of all-MiniLM-L6-v2": (*ALONE, TWO),
    "the same with `vocabulary: {kind: trim, size: 2900}` in `student`": (*ALONE, TRIMMED),
    "`mined`, two layers of that teacher": (*BY_TEACHER, "student={model: teacher, layers: 2}"),
    "`task`, `--variant local` alone: fresh weights, 2,000 tokens of its own": ALONE,
    "`mined`, the same student": BY_TEACHER,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--json", type=Path, required=True)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--data", type=Path, default=DATA, help="banking77.jsonl.gz, with columns split, text, label")
    arguments = parser.parse_args()
    task, rows = write_task(arguments.data, arguments.out / "task"), list[dict[str, Any]]()
    for seed in arguments.seeds:
        for number, (name, words) in enumerate(RUNS.items()):
            out = arguments.out / f"{number}-{seed}"
            if not RunFolder(out).report.exists():
                subprocess.run(command(words, task, RunFolder(arguments.out / "1-0").student, out, seed), check=True)
            rows.append({"run": name, "seed": seed, **result(out)})
            write_json(arguments.json, {"rows": rows})
            print(rows[-1], flush=True)


def write_task(source: Path, folder: Path) -> Path:
    """Write train.jsonl and test.jsonl with the chosen classes and rows."""
    with gzip.open(source, "rt", encoding="utf-8") as lines:
        rows = [json.loads(line) for line in lines]
    classes = sorted({row["label"] for row in rows})[:CLASSES]
    split = {
        name: [row for row in rows if row["split"] == name and row["label"] in classes] for name in ("train", "test")
    }
    random.Random(0).shuffle(split["train"])
    folder.mkdir(parents=True, exist_ok=True)
    for name, chosen in (("train", split["train"][:ROWS]), ("test", split["test"])):
        lines_of = (json.dumps({"text": row["text"], "label": row["label"]}) + "\n" for row in chosen)
        (folder / f"{name}.jsonl").write_text("".join(lines_of), encoding="utf-8")
    return folder


def command(words: Sequence[str], task: Path, teacher: Path, out: Path, seed: int) -> list[str]:
    """The command line of one run."""
    data = ["--task", str(task), "--type", "classification"]
    if words[0] == "run":
        data = [f"task={{type: classification, path: {task}}}"]
    line = [word.format(teacher=teacher) if "{teacher}" in word else word for word in words]
    return [sys.executable, "-m", "distilvec", *line, *data, f"train.seed={seed}", "--out", str(out)]


def result(out: Path) -> dict[str, Any]:
    """Accuracy, parameters and test rows of a finished run."""
    run = FinishedRun.open(out)
    (score,) = run.scores["student"]
    parameters = None if run.record.student is None else run.record.student.parameters
    return {"accuracy": score.value, "test_rows": score.rows, "parameters": parameters}


def intents_table(found: Mapping[str, Any]) -> str:
    """Mean accuracy of every run over its seeds."""
    rows: list[dict[str, Any]] = found["rows"]
    seeds = len({row["seed"] for row in rows})
    counted = f"{seeds} seeds" if seeds > 1 else "1 seed"
    lines = []
    for name in RUNS:
        own = [row for row in rows if row["run"] == name]
        mean = statistics.mean(row["accuracy"] for row in own)
        spread = f" ± {statistics.stdev(row['accuracy'] for row in own):.1f}" if len(own) > 1 else ""
        lines.append([name, f"{own[0]['parameters'] / 1e6:.1f} M", f"{mean:.1f}{spread}"])
    return markdown_table(["run", "parameters", f"accuracy ({counted})"], lines)


if __name__ == "__main__":
    main()
