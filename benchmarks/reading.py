"""What reading an index takes: seconds, seconds of the processor and memory for 100,000 rows of each store.

    python -m benchmarks.reading [KIND ...] --json results/reading.json

Each store is written by its own package (benchmarks/indexes.py; `make .stores/installed` has those that development
lacks). A process of its own then reads it as `distill` and `check` do, into a local copy. Memory is the process's peak
above what it held when the reader and its package were imported. Kinds of KIND alone are measured anew.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from benchmarks.indexes import KINDS, lacking, stored
from benchmarks.markdown import markdown_table
from benchmarks.results import earlier_results
from benchmarks.stopwatch import Spent, machine, spent
from distilvec.config.schema import TeacherSection
from distilvec.core.files import write_json
from distilvec.evaluation.memory import peak_memory
from distilvec.teachers.indexes.copy import local_table
from distilvec.teachers.indexes.stores import read_address, store_of
from distilvec.teachers.table_embedder import TableEmbedder

ROWS, DIM = 100_000, 384
TEXT = "{}: a chunk of a document is a few sentences long, so that a row has about as much text as this sentence has. "
MEGABYTE = 1e6


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kinds", nargs="*", metavar="KIND", default=KINDS, help=f"of {', '.join(KINDS)}")
    parser.add_argument("--rows", type=int, default=ROWS)
    parser.add_argument("--read", metavar="OPTIONS", help="for the process that reads: keys of `teacher` as JSON")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    if arguments.read:
        print(json.dumps(measure(json.loads(arguments.read))))
        return
    results = earlier_results(arguments.json, {"rows": {}})
    results |= {"machine": machine(), "count": arguments.rows, "dim": DIM}
    for kind in arguments.kinds:
        if lacking(kind):
            print(f"{kind}: {lacking(kind)} is missing", flush=True)
            continue
        results["rows"][kind] = read_apart(kind, arguments.rows)
        print(f"{kind}: {results['rows'][kind]}", flush=True)
        write_json(arguments.json, results)
    print(reading_table(results))


def read_apart(kind: str, rows: int) -> dict[str, Any]:
    """Write an index of this kind and read it in a process of its own."""
    texts = [TEXT.format(number) * 3 for number in range(rows)]
    vectors = np.random.default_rng(0).standard_normal((rows, DIM), dtype=np.float32)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    with tempfile.TemporaryDirectory() as folder, stored(kind, Path(folder) / "index", texts, vectors) as index:
        options = {"vectors": index.address, **index.options}
        command = [sys.executable, "-m", "benchmarks.reading", "--read", json.dumps(options, default=str)]
        environment = {**os.environ, "DISTILVEC_CACHE": str(Path(folder) / "cache")}
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    measured: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return measured


def measure(options: dict[str, Any]) -> dict[str, Any]:
    """Read an index into a local copy: rows, seconds of the clock and the processor, megabytes of memory."""
    section = TeacherSection(**options)
    _ = store_of(read_address(str(section.vectors))).reader_class
    cache = Path(os.environ["DISTILVEC_CACHE"])
    before = psutil.Process().memory_info().rss
    times: list[Spent] = []
    peak = peak_memory(lambda: times.append(spent(lambda: local_table(section, cache))))
    return {
        "rows": TableEmbedder(local_table(section, cache)).table.rows_of_files,
        "seconds": round(times[0].seconds, 1),
        "processor_seconds": round(times[0].processor_seconds, 1),
        "megabytes": round((peak - before) / MEGABYTE),
    }


def reading_table(found: dict[str, Any]) -> str:
    """The rows as Markdown."""
    head = ["store", "seconds of the processor", "memory, MB"]
    rows = [[kind, f"{row['processor_seconds']:.1f}", f"{row['megabytes']:,}"] for kind, row in found["rows"].items()]
    return markdown_table(head, rows)


if __name__ == "__main__":
    main()
