"""Exact search among a million documents: seconds and memory, in float32, int8 and binary with rescoring.

    python -m benchmarks.search --json FILE [--documents 1000000 --queries 1000 --width 384 --count 100]

Each precision runs in a process of its own on the same random unit vectors. `seconds` is the search alone; `peak_mb` is
the highest own memory (RssAnon) of the process meanwhile, with the documents, which lie in memory, as `documents_mb` of
it.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.memory import Peak
from distilvec.core.files import write_json
from distilvec.evaluation.search import BLOCK, pack_signs, rescored_top_k, top_k

PRECISIONS = ("float32", "int8", "binary_rescored")
Array = np.ndarray[Any, Any]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, required=True)
    parser.add_argument("--documents", type=int, default=1_000_000)
    parser.add_argument("--queries", type=int, default=1000)
    parser.add_argument("--width", type=int, default=384)
    parser.add_argument("--count", type=int, default=100)
    parser.add_argument("--one", choices=PRECISIONS, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    size = {name: getattr(arguments, name) for name in ("documents", "queries", "width", "count")}
    if arguments.one:
        print(json.dumps(measure(arguments.one, **size)))
        return
    found: dict[str, dict[str, float]] = {}
    options = [f"--{name}={value}" for name, value in size.items()]
    for precision in PRECISIONS:
        line = [sys.executable, "-m", "benchmarks.search", "--json", str(arguments.json), "--one", precision, *options]
        done = subprocess.run(line, check=True, capture_output=True, text=True)
        found[precision] = json.loads(done.stdout.splitlines()[-1])
        print(precision, found[precision], flush=True)
    write_json(arguments.json, {**size, "precisions": found})


def measure(precision: str, documents: int, queries: int, width: int, count: int) -> dict[str, float]:
    """Seconds, peak memory in MB, and the size of the documents in this precision."""
    asked = unit_vectors(queries, width, seed=-1)
    stored = stored_documents(precision, documents, width)
    asked = to_int8(asked, width) if precision == "int8" else asked
    with Peak() as peak:
        start = time.perf_counter()
        rows, _ = (rescored_top_k if precision == "binary_rescored" else top_k)(asked, stored, count)
        seconds = time.perf_counter() - start
    assert rows.shape == (queries, min(count, documents))
    return {
        "seconds": round(seconds, 4),
        "peak_mb": round(peak.megabytes),
        "documents_mb": round(stored.nbytes / 2**20),
    }


def stored_documents(precision: str, documents: int, width: int) -> Array:
    """The documents in this precision, made block by block."""
    stored: Array | None = None
    for start in range(0, documents, BLOCK):
        part = unit_vectors(min(BLOCK, documents - start), width, seed=start)
        if precision != "float32":
            part = to_int8(part, width) if precision == "int8" else pack_signs(part)
        if stored is None:
            stored = np.empty((documents, part.shape[1]), dtype=part.dtype)
        stored[start : start + len(part)] = part
    assert stored is not None
    return stored


def to_int8(vectors: Array, width: int) -> Array:
    """256 steps over +-5 standard deviations of a random unit vector's numbers."""
    from sentence_transformers.util.quantization import quantize_embeddings

    reach = np.full(width, 5 / width**0.5, dtype=np.float32)
    return np.asarray(quantize_embeddings(vectors, "int8", ranges=np.stack([-reach, reach])))


def unit_vectors(rows: int, width: int, seed: int) -> Array:
    """Random unit vectors, float32 [rows, width]."""
    vectors = np.random.default_rng(seed + 1).normal(size=(rows, width)).astype(np.float32)
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


if __name__ == "__main__":
    main()
