"""Memory that a real teacher takes above its own weights: while it fills a cache, and while a run is evaluated.

    python -m benchmarks.teacher_memory --json FILE [--teacher MODEL] [--student MODEL] [--source FOLDER]

Texts have 5 to 500 words, so that nearly every batch has another shape. A run of two steps is evaluated with every part
of the report, the table of speed included, on a retrieval task of the same texts. The figures are peaks of the
process's own memory (RssAnon): everything but the weights, which torch maps from their file, and libraries. `--source`
is the `src` folder of another checkout.
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import json
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict
from pathlib import Path

import numpy as np

from benchmarks.memory import Peak
from benchmarks.texts import COMMON

ROOT = Path(__file__).parents[1]
WORDS = (5, 500)  # of the shortest and of the longest text
QUERIES, QUERY_WORDS = 20, 12


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, required=True)
    parser.add_argument("--teacher", default="all-MiniLM-L6-v2")
    parser.add_argument("--student", default="all-MiniLM-L6-v2")
    parser.add_argument("--texts", type=int, default=80)
    parser.add_argument("--source", type=Path, default=ROOT / "src", help="of the version to measure")
    parser.add_argument("--here", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.here:
        print(json.dumps(measure(arguments.teacher, arguments.student, arguments.texts)))
        return
    command = [sys.executable, "-m", "benchmarks.teacher_memory", *sys.argv[1:], "--here"]
    environment = {**os.environ, "PYTHONPATH": f"{arguments.source.resolve()}{os.pathsep}{ROOT}"}
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, env=environment)
    report = json.loads(done.stdout.splitlines()[-1])
    arguments.json.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    print(json.dumps(report, indent=1))


def measure(teacher: str, student: str, count: int) -> dict[str, object]:
    """Peaks in MB, seconds of processor time, and the teacher's weights in MB."""
    from distilvec.config import recipe as recipes
    from distilvec.pipeline.evaluate import evaluate
    from distilvec.pipeline.prepare import fill_cache, prepare
    from distilvec.pipeline.resolve import resolve
    from distilvec.pipeline.train import train

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_texts(folder, count)
        recipe = recipes.validate(
            {
                "name": "memory",
                "teacher": {"model": teacher},
                "student": {"model": student},
                "cache": {"root": str(folder / "cache")},
                "corpus": {
                    "sources": [{"path": str(folder / "texts.txt")}],
                    "validation_rows": 8,
                    "exclude_evaluation": False,
                },
                "method": {"name": "redact"},
                "train": {"max_steps": 2, "batch_size": 8, "device": "cpu", "precision": "fp32"},
                "evaluation": {"suite": str(folder / "suite.yaml")},
            }
        )
        job = resolve(recipe, folder / "run")
        began = time.process_time()
        with Peak() as caching:
            fill_cache(job, job.teacher)
        cached = time.process_time()
        train(job, prepare(job))
        release()  # what training leaves would hide what the evaluation takes
        with Peak() as evaluation:
            report = evaluate(job)
    return {
        "teacher": job.teacher.info.name,
        "weights_mb": round(4 * (job.teacher.parameters or 0) / 2**20),
        "caching_mb": round(caching.megabytes),
        "evaluation_mb": round(evaluation.megabytes),
        "caching_processor_seconds": round(cached - began, 1),
        "texts": count,
        "failures": [asdict(failure) for failure in report.failures],
    }


def release() -> None:
    """Hand freed memory back to the system."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)


def write_texts(folder: Path, count: int) -> None:
    """Texts of all lengths, and a suite that searches them."""
    generator = np.random.default_rng(0)
    lengths = np.linspace(*WORDS, count).astype(int)
    texts = [" ".join([*generator.choice(COMMON, length), str(row)]) for row, length in enumerate(lengths)]
    (folder / "texts.txt").write_text("\n".join(texts), encoding="utf-8")
    (folder / "search").mkdir()
    queries = [" ".join(text.split()[:QUERY_WORDS]) for text in texts[:: max(1, count // QUERIES)]]
    for name, part in (("corpus", texts), ("queries", queries)):
        rows = [json.dumps({"id": str(row), "text": text}) for row, text in enumerate(part)]
        (folder / "search" / f"{name}.jsonl").write_text("\n".join(rows), encoding="utf-8")
    pairs = "".join(f"{row}\t{row * max(1, count // QUERIES)}\t1\n" for row in range(len(queries)))
    (folder / "search" / "qrels.tsv").write_text(f"query-id\tcorpus-id\tscore\n{pairs}", encoding="utf-8")
    (folder / "suite.yaml").write_text("- {name: search, type: retrieval, path: search}\n", encoding="utf-8")


if __name__ == "__main__":
    main()
