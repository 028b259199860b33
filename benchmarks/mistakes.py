"""Thirty mistakes at the command line, with the line and the exit status that each ends with.

    python -m benchmarks.mistakes                               # this source
    python -m benchmarks.mistakes --against OTHER/CHECKOUT      # beside the same command lines of another commit

Every command runs in this process, in a folder with a few texts, rows, vectors and recipes. The teacher is
all-MiniLM-L6-v2, which the extra `quickstart` brings. Nothing is trained.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

MODEL = "all-MiniLM-L6-v2"
TEACHER = ["distill", MODEL, "texts.txt"]
MISTAKES: list[list[str]] = [
    ["distill", MODEL, "text.txt"],
    ["distill", "./no-model", "texts.txt"],
    [*TEACHER, "--size", "5X"],
    [*TEACHER, "--size", "5M", "--layers", "2"],
    [*TEACHER, "--size", "1000"],
    [*TEACHER, "--epochs", "2", "--minutes", "3"],
    [*TEACHER, "--epochs", "2", "train.epochs=3"],
    [*TEACHER, "--method", "redcat"],
    [*TEACHER, "--dims", "384,x"],
    [*TEACHER, "--dims", "512,128", "--dry-run"],
    [*TEACHER, "--limit", "5"],
    [*TEACHER, "--test", "rows.csv"],
    [*TEACHER, "train.lr=1e-3"],
    [*TEACHER, "train.epochs=two", "train.batch_size=0"],
    ["distill", MODEL, "rows.csv", "--dry-run"],
    ["distill", MODEL, "rows.csv", "--column", "text=absent", "--dry-run"],
    ["distill", MODEL, "texts.txt", "--queries", "rows.csv", "--dry-run"],
    ["distill", "vectors.parquet", "--dry-run"],
    ["distill", "vectors.parquet", "--column", "embedding=absent"],
    ["distill", "vectors.parquet", "--queries", "texts.txt"],
    ["run", "redcat"],
    ["run", "broken.yaml"],
    ["run", "redact", "--variant", "nowhere"],
    ["check", MODEL, "vectors.parquet", "--column", "text=nowhere"],
    ["check", MODEL, "vectors.parquet"],
    ["classify", "rows.csv", "--label", "nowhere"],
    ["evaluate", MODEL, "--teacher", "./no-model", "--suite", "broken.yaml"],
    ["compare", "runs/nothing"],
    ["transplant", MODEL, "--texts", "rows.csv", "--out", "smaller"],
    ["finetune", MODEL, "--task", "rows.csv", "--type", "pairs", "--out", "tuned"],
]  # fmt: skip


def prepare(folder: Path) -> None:
    """Write what the commands read."""
    texts = [f"A sentence about the number {number}." for number in range(200)]
    (folder / "texts.txt").write_text("\n".join(texts), encoding="utf-8")
    (folder / "rows.csv").write_text("utterance,kind\nfirst,a\nsecond,b\n", encoding="utf-8")
    (folder / "broken.yaml").write_text("name: [\n", encoding="utf-8")
    vectors = np.random.default_rng(0).normal(size=(20, 8)).astype(np.float32)
    column = pa.FixedSizeListArray.from_arrays(pa.array(vectors.reshape(-1)), 8)
    pq.write_table(pa.table({"text": texts[:20], "embedding": column}), folder / "vectors.parquet")


def last_lines() -> list[dict[str, object]]:
    """Run every command; its exit status, and the lines of its error."""
    from distilvec.__main__ import run_command

    results: list[dict[str, object]] = []
    for words in MISTAKES:
        output, errors = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(output), contextlib.redirect_stderr(errors):
            status = run_command(words)
        printed = errors.getvalue()
        start = printed.rfind("distilvec: ")
        line = printed[max(start, 0) :].strip().replace(str(Path.cwd()), ".")
        results.append({"command": " ".join(words), "status": status, "line": line})
    return results


def measured(checkout: Path) -> list[dict[str, object]]:
    """Run the commands by the source of a checkout, in a process and a folder of their own."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name).resolve()
        prepare(folder)
        environment = {
            **os.environ, "PYTHONPATH": str(checkout / "src"), "TERM": "dumb", "HF_HUB_OFFLINE": "1",
            "DISTILVEC_CACHE": str(folder / "cache"),
        }  # fmt: skip
        command = [sys.executable, str(Path(__file__).resolve()), "--lines"]
        process = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=True)
    results: list[dict[str, object]] = json.loads(process.stdout.splitlines()[-1])
    return results


def main() -> None:
    """Print all mistakes, beside those of another checkout where one is named."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--against", type=Path, help="a checkout of another commit")
    parser.add_argument("--lines", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.lines:
        print(json.dumps(last_lines()))
        return
    here = measured(Path(__file__).resolve().parents[1])
    before = measured(arguments.against.resolve()) if arguments.against else None
    for number, result in enumerate(here):
        print(f"\n{number + 1}. distilvec {result['command']}")
        if before is not None:
            print(f"   before {before[number]['status']}: {before[number]['line']}")
        print(f"   {'after ' if before is not None else ''}{result['status']}: {result['line']}")


if __name__ == "__main__":
    main()
