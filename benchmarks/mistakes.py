"""Mistakes at the command line: the line, the exit status and the seconds that each ends with.

    python -m benchmarks.mistakes                               # this source
    python -m benchmarks.mistakes --against OTHER/CHECKOUT      # beside the same command lines of another commit

Every command runs in a process of its own, in a folder with a few texts, rows, vectors and recipes, without the hub.
Seconds are those of the processor, since a busy machine changes those of the clock; "torch" says that the model
libraries were imported. The teacher is all-MiniLM-L6-v2, which the extra `quickstart` brings. Nothing is trained.
"""

from __future__ import annotations

import argparse
import os
import resource
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

MODEL = "all-MiniLM-L6-v2"
RUN = """import sys
from distilvec.__main__ import run_command
status = run_command(sys.argv[1:])
print(f"{'torch, ' if 'torch' in sys.modules else ''}status {status}")"""
TEACHER = ["distill", MODEL, "texts.txt"]
# What words, files and headers tell: refused before the model libraries are imported
OF_WORDS: list[list[str]] = [
    ["distill", MODEL, "text.txt"],
    ["distill", "./no-model", "texts.txt"],
    [*TEACHER, "--size", "5X"],
    [*TEACHER, "--size", "5M", "--layers", "2"],
    [*TEACHER, "--epochs", "2", "--minutes", "3"],
    [*TEACHER, "--epochs", "2", "train.epochs=3"],
    [*TEACHER, "--method", "redcat"],
    [*TEACHER, "--dims", "384,x"],
    [*TEACHER, "--limit", "5"],
    [*TEACHER, "--test", "rows.csv"],
    [*TEACHER, "train.lr=1e-3"],
    [*TEACHER, "train.epochs=two", "train.batch_size=0"],
    ["distill", MODEL, "rows.csv", "--dry-run"],
    ["distill", MODEL, "rows.csv", "--column", "text=absent", "--dry-run"],
    ["distill", MODEL, "texts.txt", "--queries", "rows.csv", "--dry-run"],
    ["distill", "vectors.parquet", "--column", "embedding=absent"],
    ["run", "redcat"],
    ["run", "broken.yaml"],
    ["run", "redact", "--variant", "nowhere"],
    ["check", MODEL, "vectors.parquet", "--column", "text=nowhere"],
    ["classify", "rows.csv", "--label", "nowhere"],
    ["evaluate", MODEL, "--teacher", "./no-model", "--suite", "broken.yaml"],
    ["compare", "runs/nothing"],
    ["finetune", MODEL, "--task", "rows.csv", "--type", "pairs", "--out", "tuned"],
    ["distill", "texts.txt", MODEL],
    ["distill", "texts.txt"],
    ["distill", MODEL],
    ["distill", MODEL, "few.txt"],
    ["distill", MODEL, "papers"],
    ["distill", MODEL, "texts.txt.zst"],
    ["distill", MODEL, "headless.csv"],
    ["distill", "shop"],
    ["distill", "lancedb://shop/things"],
    ["distill", "faiss://vectors"],
    ["distill", "vectors.parquet", "--column", "textt=body"],
    [*TEACHER, "--out", "texts.txt"],
    ["serve", "runs/nothing"],
    ["export", "runs/nothing/student"],
    ["demo", "runs/nothing"],
    ["push", "runs/nothing/student", "me/name"],
]  # fmt: skip
# What a model, the hub or the rows of an index tell
OF_MODELS: list[list[str]] = [
    [*TEACHER, "--size", "1000"],
    [*TEACHER, "--dims", "512,128", "--dry-run"],
    ["distill", "vectors.parquet", "--dry-run"],
    ["distill", "vectors.parquet", "--queries", "texts.txt"],
    ["check", MODEL, "vectors.parquet"],
    ["transplant", MODEL, "--texts", "rows.csv", "--out", "smaller"],
    ["distill", "all-MiniLM-L6v2", "texts.txt"],
    [*TEACHER, "--size", "50M"],
    [*TEACHER, "--size", "5"],
    [*TEACHER, "--student", MODEL, "--size", "50M"],
]  # fmt: skip


def prepare(folder: Path) -> None:
    """Write what the commands read."""
    texts = [f"A sentence about the number {number}." for number in range(200)]
    (folder / "texts.txt").write_text("\n".join(texts), encoding="utf-8")
    (folder / "rows.csv").write_text("utterance,kind\nfirst,a\nsecond,b\n", encoding="utf-8")
    (folder / "few.txt").write_text("\n".join(texts[:5]), encoding="utf-8")
    (folder / "headless.csv").write_text("\n".join(f"{n},{text}" for n, text in enumerate(texts)), encoding="utf-8")
    (folder / "texts.txt.zst").write_bytes(b"no zstandard")
    (folder / "papers").mkdir()
    (folder / "papers" / "paper.pdf").write_bytes(b"%PDF-1.7")
    (folder / "shop" / "docs.lance").mkdir(parents=True)  # a database of LanceDB with a table
    (folder / "broken.yaml").write_text("name: [\n", encoding="utf-8")
    vectors = np.random.default_rng(0).normal(size=(20, 8)).astype(np.float32)
    column = pa.FixedSizeListArray.from_arrays(pa.array(vectors.reshape(-1)), 8)
    pq.write_table(pa.table({"text": texts[:20], "embedding": column}), folder / "vectors.parquet")


def measured(words: list[str], checkout: Path, folder: Path) -> str:
    """Run a command by the source of a checkout: processor seconds, exit status, the line of the error."""
    environment = {
        **os.environ, "PYTHONPATH": str(checkout / "src"), "TERM": "dumb", "HF_HUB_OFFLINE": "1",
        "DISTILVEC_CACHE": str(folder / "cache"), "PYTHONDONTWRITEBYTECODE": "",
    }  # fmt: skip
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    command = [sys.executable, "-c", RUN, *words]
    process = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    seconds = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    line = process.stderr[max(process.stderr.rfind("distilvec: "), 0) :].strip().replace(str(folder), ".")
    return f"{seconds:.1f} s, {process.stdout.splitlines()[-1]}: {line}"


def main() -> None:
    """Print all mistakes, beside those of another checkout where one is named."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--against", type=Path, help="a checkout of another commit")
    against = parser.parse_args().against
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name).resolve()
        prepare(folder)
        for number, words in enumerate([*OF_WORDS, *OF_MODELS], 1):
            print(f"\n{number}. distilvec {' '.join(words)}", flush=True)
            if against:
                print(f"   before {measured(words, against.resolve(), folder)}")
            print(f"   {measured(words, Path(__file__).resolve().parents[1], folder)}", flush=True)


if __name__ == "__main__":
    main()
