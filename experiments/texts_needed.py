"""How many stored texts a query encoder needs: trained on a part of an index, it searches all of it.

    DISTILVEC_DATA=FOLDER python -m experiments.texts_needed WORK --maker E5 --student MINILM \\
        --json results/texts_needed.json

100,000 English texts of `english_text` are embedded by MAKER. For each count a query encoder of 5 million parameters is
trained on so many of them, by the command that a user types and with its defaults: about 100,000 texts are seen, each
at most 30 times. 1,000 logged questions that no training reads are its queries; both models search all 100,000 vectors.
WORK keeps vectors and runs: the same command resumes, and a count that is in the file is not trained again.
"""

from __future__ import annotations

import argparse
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

import distilvec
from benchmarks.markdown import markdown_table
from benchmarks.results import earlier_results
from benchmarks.stopwatch import machine, spent
from distilvec.core.files import write_json
from distilvec.evaluation.overlap import WIDER, nearest_rows, shares
from distilvec.evaluation.significance import mean_interval
from experiments.new_texts import texts_of
from experiments.switch import embedded

COUNTS = (3_000, 10_000, 30_000, 100_000)
QUERY_SOURCES = ("msmarco-passage-dev", "nq-test")
QUERIES = 1_000
SEED = 0

Array = np.ndarray[Any, Any]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("work", type=Path)
    parser.add_argument("--maker", type=Path, required=True, help="a folder of sentence-transformers")
    parser.add_argument("--student", required=True, help="the model that encoders are made of")
    parser.add_argument("--json", type=Path, required=True)
    arguments = parser.parse_args()

    texts = drawn("english_text/english_text.jsonl.gz", None, COUNTS[-1])
    queries = drawn("english_queries/english_queries.jsonl.gz", QUERY_SOURCES, QUERIES)
    stored = embedded(arguments.maker, texts, "document", arguments.work / "documents")
    expected = nearest_rows(embedded(arguments.maker, queries, "query", arguments.work / "queries"), stored, 10)

    results = earlier_results(arguments.json, {"maker": arguments.maker.name, "rows": []})
    for count in COUNTS:
        if any(row["texts"] == count for row in results["rows"]):
            continue
        folder = arguments.work / str(count)
        time_taken = train(folder, texts[:count], stored[:count], arguments.student)
        vectors = embedded(folder / "run" / "student", queries, "query", folder / "queries")
        results["machine"] = machine()
        results["rows"].append(
            {"texts": count, **figures(expected, nearest_rows(vectors, stored, WIDER)), **time_taken}
        )
        write_json(arguments.json, results)
    for row in results["rows"]:
        row["on_stored_texts"] = judged_by_the_run(arguments.work / str(row["texts"]) / "run")
    write_json(arguments.json, results)
    print(table(results))


def drawn(file: str, sources: tuple[str, ...] | None, count: int) -> list[str]:
    """Return so many distinct texts of a file of $DISTILVEC_DATA, or of some of its sources, in random order."""
    texts = sorted({text for source in sources or (None,) for text in texts_of(file, source)})
    return random.Random(SEED).sample(texts, count)


def train(folder: Path, texts: list[str], vectors: Array, student: str) -> dict[str, float]:
    """Write the index of these texts and train a query encoder for it. Minutes of the clock and the processor."""
    folder.mkdir(parents=True, exist_ok=True)
    index = folder / "index.parquet"
    column = pa.FixedSizeListArray.from_arrays(vectors.reshape(-1), vectors.shape[1])
    pq.write_table(pa.table({"id": np.arange(len(texts)), "text": texts, "embedding": column}), index)
    words = ["distill", str(index), "--student", student, "--size", "5M", "--out", str(folder / "run")]
    command = [sys.executable, "-m", "distilvec", *words]
    with (folder / "log.txt").open("a") as log:
        time_taken = spent(lambda: subprocess.run(command, check=True, stdout=log, stderr=log))
    minutes = {"minutes": time_taken.seconds / 60, "processor_minutes": time_taken.processor_seconds / 60}
    return {name: round(value, 1) for name, value in minutes.items()}


def judged_by_the_run(run: Path) -> dict[str, Any]:
    """Return overlap@10 of held-out stored texts among those of the part: mean, low, high, and their number."""
    judgement = distilvec.result(run).record.overlap
    assert judgement is not None and judgement.student.among is not None
    share = judgement.student.among
    return {"overlap": [share.mean, share.low, share.high], "candidates": judgement.candidates}


def figures(expected: Array, ranked: Array) -> dict[str, list[float]]:
    """overlap@10, and the share of the maker's ten in the first hundred: mean, low and high over the queries."""
    overlap, wider = shares(expected, ranked[:, :10]), shares(expected, ranked)
    return {
        "overlap": [round(value, 4) for value in mean_interval(overlap)],
        "within_100": [round(value, 4) for value in mean_interval(wider)],
    }


def table(results: dict[str, Any]) -> str:
    """The rows as Markdown."""
    rows = []
    for row in results["rows"]:
        overlap, low, high = row["overlap"]
        stored = row["on_stored_texts"]
        mean, lower, upper = stored["overlap"]
        rows.append(
            [
                f"{row['texts']:,}",
                f"{overlap:.3f} [{low:.3f}, {high:.3f}]",
                f"{row['within_100'][0]:.2f}",
                f"{mean:.2f} [{lower:.2f}, {upper:.2f}] among {stored['candidates']:,}",
            ]
        )
    header = [
        "stored texts",
        "overlap@10 of real queries",
        "in the first 100",
        "of held-out stored texts",
    ]
    return markdown_table(header, rows)


if __name__ == "__main__":
    main()
