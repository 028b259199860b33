"""An index in which new documents have a student's vectors, and old ones those of the model that made it.

    python -m experiments.mixed_index MINILM_FOLDER --json results/mixed_index.json

The index holds the documents of cranfield and xquad-en, and short texts of english_text (docs/data.md). Half of its
documents are old: the student is trained on their vectors alone, as on an index at the day of the switch. Of the other
half, 10, 30 and 50% of all documents, none of which the student has seen, get the student's vectors instead of the
maker's. Queries are those of both tasks, by the student. The list that a query is compared with is the one before the
switch: query and documents by the maker. The command goes on where it stopped.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

import distilvec
from benchmarks.markdown import markdown_table
from benchmarks.results import earlier_results
from distilvec.core.files import write_json
from distilvec.core.similarity import NEIGHBOR_COUNT
from distilvec.evaluation.metrics import found_gains, ndcg
from distilvec.evaluation.overlap import nearest_rows, shares
from distilvec.evaluation.significance import mean_interval
from distilvec.evaluation.suite import load_suite
from distilvec.evaluation.tasks import RetrievalTask
from distilvec.teachers.open import open_embedder
from experiments.linear_layer import english_texts

Array = np.ndarray[Any, Any]
SUITE = Path(__file__).parents[1] / "recipes" / "suites" / "retrieval.yaml"
ROWS, SIZE, MINUTES = 8_000, "5M", 3.0
NEW_SHARES = (0.0, 0.1, 0.3, 0.5)


@dataclass(frozen=True)
class Index:
    """The documents, and for each the rank at which it becomes a new one: ranks below half of all are never seen."""

    texts: list[str]
    new_rank: Array

    def is_new(self, share: float) -> Array:
        """Which documents have the student's vectors, bool [documents]."""
        return np.asarray(self.new_rank < round(share * len(self.texts)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("maker", help="the folder of the model that makes the index")
    parser.add_argument("--student", default="all-MiniLM-L6-v2", help="the model that the student is made of")
    parser.add_argument("--rows", type=int, default=ROWS)
    parser.add_argument("--size", default=SIZE)
    parser.add_argument("--minutes", type=float, default=MINUTES)
    parser.add_argument("--out", type=Path, default=Path("runs/mixed-index"))
    parser.add_argument("--json", type=Path, required=True)
    arguments = parser.parse_args()

    arguments.out.mkdir(parents=True, exist_ok=True)
    tasks = [task for task in load_suite(SUITE, []) if isinstance(task, RetrievalTask)]
    index = make_index(tasks, arguments.rows)
    queries = [query for task in tasks for query in task.queries]
    maker_documents = embedded(arguments.maker, index.texts, "document", arguments.out / "documents.npy")
    maker_queries = embedded(arguments.maker, queries, "query", arguments.out / "queries.npy")

    old = arguments.out / "old.parquet"
    if not old.exists():
        rows = np.flatnonzero(~index.is_new(0.5))
        texts = [index.texts[row] for row in rows]
        pq.write_table(pa.table({"text": texts, "embedding": list(maker_documents[rows])}), old)
    before_training = time.process_time()
    run = distilvec.distill(
        str(old),
        student=arguments.student,
        size=arguments.size,
        minutes=arguments.minutes,
        similarity="cosine",
        out=arguments.out / "run",
    )
    assert run is not None and run.record.training is not None, "one process trains"
    processor_minutes = (time.process_time() - before_training) / 60
    student = str(run.student_folder)
    new_rows = np.flatnonzero(index.is_new(0.5))
    new_texts = [index.texts[row] for row in new_rows]
    student_documents = maker_documents.copy()
    student_documents[new_rows] = embedded(student, new_texts, "document", arguments.out / "new-documents.npy")
    student_queries = embedded(student, queries, "query", arguments.out / "student-queries.npy")

    expected = nearest_rows(maker_queries, maker_documents, NEIGHBOR_COUNT)
    before = nearest_rows(student_queries, maker_documents, NEIGHBOR_COUNT)
    report = {
        "maker": Path(arguments.maker).name,
        "student": arguments.size,
        "minutes": arguments.minutes,
        "processor_minutes": round(processor_minutes, 1),
        "steps": run.record.training.steps,
        "documents": len(index.texts),
        "queries": len(queries),
        "before": {"ndcg@10": ndcg_by_task(tasks, index, expected)},
    }
    rows = earlier_results(arguments.json, {"rows": []})["rows"]
    for share in NEW_SHARES:
        if any(row["new"] == share for row in rows):
            continue
        is_new = index.is_new(share)
        documents = np.where(is_new[:, None], student_documents, maker_documents)
        hits = nearest_rows(student_queries, documents, NEIGHBOR_COUNT)
        rows.append({
            "new": share,
            "overlap@10": list(mean_interval(shares(expected, hits))),
            "ndcg@10": ndcg_by_task(tasks, index, hits),
            "of_hits": float(is_new[hits].mean()),
            "of_hits_with_old_vectors": float(is_new[before].mean()),
        })  # fmt: skip
        write_json(arguments.json, {**report, "rows": rows})
    print(table(earlier_results(arguments.json, {})))


def make_index(tasks: list[RetrievalTask], rows: int) -> Index:
    """Return the distinct documents of the tasks and short texts beside them, in an order drawn by seed."""
    documents = [text for task in tasks for text in task.documents if text]
    texts = list(dict.fromkeys([*documents, *english_texts(rows)]))[:rows]
    return Index(texts, np.random.default_rng(0).permutation(len(texts)))


def embedded(model: str, texts: list[str], role: Any, path: Path) -> Array:
    """Return a model's vectors of texts, float32 of length 1 [texts, dim]; stored in a file."""
    if not path.exists():
        vectors = open_embedder(model).embed(texts, role)
        np.save(path, vectors / np.linalg.norm(vectors, axis=1, keepdims=True))
    return np.asarray(np.load(path))


def ndcg_by_task(tasks: list[RetrievalTask], index: Index, hits: Array) -> dict[str, list[float]]:
    """Return nDCG@10 x 100 of each task with its interval, from the hits of all queries, int64 [queries, 10]."""
    row_of_text = {text: row for row, text in enumerate(index.texts)}
    scores = {}
    first = 0
    for task in tasks:
        ranked = hits[first : first + len(task.queries)]
        first += len(task.queries)
        has_text = np.array([bool(task.documents[document]) for document in task.judged[:, 1]])
        judged = task.judged[has_text]
        rows = np.array([row_of_text[task.documents[document]] for document in judged[:, 1]])
        judged = np.stack([judged[:, 0], rows], axis=1)
        gains = found_gains(ranked, len(index.texts), judged, task.gains[has_text])
        by_query: list[list[float]] = [[] for _ in task.queries]
        for query, gain in zip(task.judged[:, 0].tolist(), task.gains.tolist(), strict=True):
            by_query[query].append(gain)
        ideal = np.array(list(zip_longest(*by_query, fillvalue=0.0))).T
        scores[task.name] = [100 * value for value in mean_interval(ndcg(gains, ideal, NEIGHBOR_COUNT))]
    return scores


def table(report: Mapping[str, Any]) -> str:
    """Return a line for each share of new documents, after that of the index before the switch."""
    names = list(report["before"]["ndcg@10"])
    lines = [["before the switch", "1.00", *(interval(report["before"]["ndcg@10"][name], 1) for name in names), ""]]
    for row in report["rows"]:
        fairness = ""
        if row["new"]:
            fairness = f"{row['of_hits'] / row['of_hits_with_old_vectors']:.2f}"
        scores = [interval(row["ndcg@10"][name], 1) for name in names]
        lines.append([f"{100 * row['new']:.0f}%", interval(row["overlap@10"], 2), *scores, fairness])
    head = ["documents by the student", "overlap@10", *(f"nDCG@10, {name}" for name in names), "their share of hits"]
    return (
        f"{markdown_table(head, lines)}\n\n"
        f"{report['documents']:,} documents by {report['maker']}, {report['queries']:,} queries by a student of "
        f"{report['student']} after {report['steps']:,} steps on the documents\nthat stay as they are "
        f"({report['processor_minutes']:.1f} minutes of one processor for the whole run). Their share of hits: how "
        "many of all hits are\ndocuments with the student's vectors, divided by how many the same documents are with "
        "their old vectors; 1 is fair."
    )


def interval(values: list[float], digits: int) -> str:
    """Return a mean with its 95% interval."""
    mean, low, high = values
    return f"{mean:.{digits}f} [{low:.{digits}f}, {high:.{digits}f}]"


if __name__ == "__main__":
    main()
