"""Keep the index or embed it again: a new query encoder for stored vectors against every other way, on judged queries.

    DISTILVEC_DATA=FOLDER python -m experiments.switch index WORK --maker MPNET
    python -m experiments.switch row WORK --maker MPNET --student MINILM --row 5m-3
    python -m experiments.switch again WORK --model MINILM
    python -m experiments.switch bm25 WORK                       needs bm25s, in an environment of its own
    python -m experiments.switch latency WORK                    on a quiet machine
    python -m experiments.switch score WORK --json results/switch.json --name mpnet

WORK is a folder for one maker, a model that embedded all documents. `index` makes WORK/index.parquet: 20,000 documents
of English collections, those of Cranfield and XQuAD's English part among them, whose 1,415 queries are judged. `row`
trains a query encoder for the index by the command that a user types, `again` embeds all documents by an untouched
model. `score` counts for every row: overlap@10 and the share of the maker's ten that is in the first 100, both by the
maker's own search with the same query, and nDCG@10 by the judgements. Every command resumes; a row that is there is
kept.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.markdown import markdown_table
from benchmarks.results import earlier_results
from benchmarks.stopwatch import machine, spent
from distilvec.core.files import write_json
from distilvec.evaluation.metrics import found_gains, ndcg
from distilvec.evaluation.overlap import WIDER, nearest_rows, shares
from distilvec.evaluation.search import top_k
from distilvec.evaluation.significance import mean_interval
from distilvec.evaluation.task_files import load_retrieval
from distilvec.evaluation.tasks import RetrievalTask
from experiments.new_texts import texts_of

Array = np.ndarray[Any, Any]

DOCUMENTS = 20_000
TASKS = {"cranfield": "cranfield", "xquad-en": "xquad/en"}
FILLERS = ("cisi1460", "medline1033", "ag-news-test", "climate-fever-evidence", "science-enwiki")
LOGS = ("msmarco-passage-dev", "nq-dev", "nq-test", "trec-questions", "webquestions-test")
LOGGED = 20_000
QUERIES_TIMED = 200
PART = 200  # texts that are embedded between two files


@dataclass(frozen=True)
class Row:
    """A way to get a query encoder: words of `distilvec distill INDEX`, behind the student's name.

    {queries} is a file of logged queries, {maker} the model that made the index.
    """

    title: str
    words: tuple[str, ...]


ROWS = {
    "fitted": Row("5M, fitted (`--epochs 0`)", ("--size", "5M", "--epochs", "0")),
    "fitted-23m": Row("23M, fitted (`--epochs 0`)", ("--epochs", "0")),
    "5m-3": Row("5M, 3 minutes of training", ("--size", "5M", "--minutes", "3")),
    "5m-10": Row("5M, 10 minutes of training", ("--size", "5M", "--minutes", "10")),
    "23m-10": Row("23M, 10 minutes of training", ("--minutes", "10")),
    "23m-10-queries": Row(
        "23M, 10 minutes of training, with 20,000 logged queries",
        ("--minutes", "10", "--queries", "{queries}", "--made-by", "{maker}"),
    ),
}


OTHER_TITLES = {
    "maker": "the model that made the index",
    "bm25": "BM25, no model",
    "minilm": "all-MiniLM-L6-v2 as it is, all documents embedded again",
    "e5": "multilingual-e5-small as it is, all documents embedded again",
}


@dataclass(frozen=True)
class Work:
    """The folder of one maker: its index, its vectors of the queries, and the other models' vectors."""

    folder: Path

    @property
    def index(self) -> Path:
        """The table of documents and their vectors."""
        return self.folder / "index.parquet"

    @cached_property
    def tasks(self) -> list[RetrievalTask]:
        """The judged collections."""
        return judged_tasks()

    @cached_property
    def queries(self) -> list[str]:
        """The queries of all collections, in their order."""
        return [query for task in self.tasks for query in task.queries]

    @cached_property
    def documents(self) -> list[str]:
        """The texts of the index."""
        return pq.read_table(self.index, columns=["text"])["text"].to_pylist()

    @cached_property
    def stored(self) -> Array:
        """The vectors of the index, float32 [documents, dim]."""
        column = pq.read_table(self.index, columns=["embedding"])["embedding"].combine_chunks()
        return column.flatten().to_numpy().reshape(len(column), -1)

    def vectors(self, model: str, name: str) -> Array:
        """Vectors that a command has written: of `queries` or `documents`."""
        return np.load(self.folder / model / f"{name}.npy")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("action", choices=["index", "row", "again", "bm25", "latency", "score"])
    parser.add_argument("work", type=Path)
    parser.add_argument("--maker", type=Path, help="index, row: a folder of sentence-transformers")
    parser.add_argument("--model", type=Path, help="again: a folder of sentence-transformers")
    parser.add_argument("--student", help="row: the model that the encoder is made of")
    parser.add_argument("--row", choices=list(ROWS))
    parser.add_argument("--name", help="score: the maker's name in the file")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    work = Work(arguments.work)
    if arguments.action == "index":
        make_index(work, arguments.maker)
    elif arguments.action == "row":
        train_row(work, arguments.row, arguments.student, arguments.maker)
    elif arguments.action == "again":
        embed_again(work, arguments.model)
    elif arguments.action == "bm25":
        search_words(work)
    elif arguments.action == "latency":
        write_json(work.folder / "latency.json", latencies(work))
    else:
        results = earlier_results(arguments.json, {})
        results[arguments.name] = {"machine": machine(), "documents": DOCUMENTS, "rows": scores(work)}
        write_json(arguments.json, results)
        print(table(results[arguments.name]["rows"]))


# -- the index ---------------------------------------------------------------------------------------------------------


def judged_tasks() -> list[RetrievalTask]:
    data = Path(os.environ["DISTILVEC_DATA"])
    return [load_retrieval(name, data / path) for name, path in TASKS.items()]


def index_texts() -> list[str]:
    """Return the documents of the judged collections, and as many others as there is room for."""
    texts = [text for task in judged_tasks() for text in task.documents if text.strip()]
    for source in FILLERS:
        texts.extend(texts_of("english_text/english_text.jsonl.gz", source))
    first_of_each = {text.casefold(): text for text in reversed(texts)}
    return [text for text in dict.fromkeys(texts) if first_of_each[text.casefold()] is text][:DOCUMENTS]


def make_index(work: Work, maker: Path) -> None:
    """Embed the documents and the queries by the maker, in parts that stay when the command is stopped."""
    work.folder.mkdir(parents=True, exist_ok=True)
    texts = index_texts()
    documents = embedded(maker, texts, "document", work.folder / "maker" / "documents")
    queries = [query for task in judged_tasks() for query in task.queries]
    embedded(maker, queries, "query", work.folder / "maker" / "queries")
    vectors = pa.FixedSizeListArray.from_arrays(documents.reshape(-1), documents.shape[1])
    pq.write_table(pa.table({"id": np.arange(len(texts)), "text": texts, "embedding": vectors}), work.index)
    print(f"{work.index}: {len(texts):,} documents, {documents.shape[1]} dimensions", flush=True)


def embedded(model: Path, texts: Sequence[str], role: str, path: Path) -> Array:
    """Return float32 [texts, dim] by sentence-transformers in bf16, in this role; PATH.npy, its parts until then."""
    whole = path.with_suffix(".npy")
    if whole.exists():
        return np.load(whole)
    import torch
    from sentence_transformers import SentenceTransformer

    encoder = SentenceTransformer(str(model), device="cpu", model_kwargs={"dtype": torch.bfloat16})
    encode = encoder.encode_query if role == "query" else encoder.encode_document
    path.mkdir(parents=True, exist_ok=True)
    parts = []
    for start in range(0, len(texts), PART):
        part = path / f"{start}.npy"
        if not part.exists():
            batch = encode(list(texts[start : start + PART]), normalize_embeddings=True, convert_to_tensor=True)
            np.save(part, batch.float().numpy())
            print(f"{path}: {min(start + PART, len(texts)):,} of {len(texts):,}", flush=True)
        parts.append(np.load(part))
    vectors = np.concatenate(parts).astype(np.float32)
    np.save(whole, vectors)
    return vectors


# -- the rows ----------------------------------------------------------------------------------------------------------


def train_row(work: Work, name: str, student: str, maker: Path) -> None:
    """Train a query encoder by the command line, and embed the queries by what it saved."""
    folder = work.folder / name
    run = folder / "run"
    further = [word.format(queries=logged_queries(work), maker=maker) for word in ROWS[name].words]
    words = ["distill", str(work.index), "--student", student, *further, "--out", str(run)]
    command = [sys.executable, "-m", "distilvec", *words]
    if not (folder / "time.json").exists():
        folder.mkdir(parents=True, exist_ok=True)
        with (folder / "log.txt").open("w") as log:
            time_taken = spent(lambda: subprocess.run(command, check=True, stdout=log, stderr=log))
        write_json(folder / "time.json", asdict(time_taken) | {"command": " ".join(words[:1] + words[2:-2])})
    embedded(run / "student", work.queries, "query", folder / "queries")


def logged_queries(work: Work) -> Path:
    """Write the file of logged queries: none of them is a question about XQuAD's paragraphs."""
    path = work.folder / "queries.txt"
    if not path.exists():
        texts = sorted(
            {text for source in LOGS for text in texts_of("english_queries/english_queries.jsonl.gz", source)}
        )
        path.write_text("\n".join(random.Random(0).sample(texts, LOGGED)) + "\n", encoding="utf-8")
    return path


def embed_again(work: Work, model: Path) -> None:
    """Embed all documents and queries by another model, as it is."""
    folder = work.folder / model.name
    folder.mkdir(parents=True, exist_ok=True)
    time_taken = spent(lambda: embedded(model, work.documents, "document", folder / "documents"))
    if not (folder / "time.json").exists():
        write_json(folder / "time.json", asdict(time_taken))
    embedded(model, work.queries, "query", folder / "queries")


def search_words(work: Work) -> None:
    """Rank the documents by BM25, with the defaults of the package bm25s and its list of English stop words."""
    import bm25s

    folder = work.folder / "bm25"
    folder.mkdir(parents=True, exist_ok=True)
    ranker = bm25s.BM25()
    began = time.perf_counter()
    ranker.index(bm25s.tokenize(work.documents, stopwords="en", show_progress=False), show_progress=False)
    write_json(folder / "time.json", {"seconds": time.perf_counter() - began})

    def search(query: str) -> Array:
        tokens = bm25s.tokenize([query], stopwords="en", show_progress=False)
        return ranker.retrieve(tokens, k=WIDER, show_progress=False)[0][0]

    np.save(folder / "ranked.npy", np.stack([search(query) for query in work.queries]))
    write_json(folder / "latency.json", {"milliseconds": milliseconds(search, work.queries)})


def latencies(work: Work) -> dict[str, float]:
    """Milliseconds from a query's text to its vector, the median over queries one at a time, on one thread."""
    import torch
    from sentence_transformers import SentenceTransformer

    torch.set_num_threads(1)
    found = {}
    for name in ROWS:
        student = work.folder / name / "run" / "student"
        if student.exists():
            found[name] = milliseconds(SentenceTransformer(str(student), device="cpu").encode_query, work.queries)
    return found


def milliseconds(search: Callable[[str], Any], queries: Sequence[str]) -> float:
    times = []
    for query in queries[:QUERIES_TIMED]:
        began = time.perf_counter()
        search(query)
        times.append(1000 * (time.perf_counter() - began))
    return statistics.median(times)


# -- the table ---------------------------------------------------------------------------------------------------------


def scores(work: Work) -> dict[str, Any]:
    """A row for every way whose vectors are there: figures by collection, minutes of the clock and the processor."""
    maker_queries = work.vectors("maker", "queries")
    expected = nearest_rows(maker_queries, work.stored, 10)
    ranked = {"maker": nearest_rows(maker_queries, work.stored, WIDER)}
    for folder in sorted(work.folder.iterdir()):
        if (folder / "ranked.npy").exists():
            ranked[folder.name] = np.load(folder / "ranked.npy")
        elif (folder / "queries.npy").exists() and folder.name != "maker":
            again = (folder / "documents.npy").exists()
            documents = work.vectors(folder.name, "documents") if again else work.stored
            ranked[folder.name] = top_k(work.vectors(folder.name, "queries"), documents, WIDER)[0]
    times = _times(work)
    return {name: {**figures(work, expected, rows), **times.get(name, {})} for name, rows in ranked.items()}


def figures(work: Work, expected: Array, ranked: Array) -> dict[str, Any]:
    """overlap@10, the share within the first hundred and nDCG@10 of one ranking, by collection, with intervals.

    Queries about one paragraph of XQuAD are not independent: intervals are over the means of judged documents there.
    """
    row_of = {text: row for row, text in enumerate(work.documents)}
    result = {}
    first = 0
    for task in work.tasks:
        part = slice(first, first + len(task.queries))
        first = part.stop
        rows = np.array([row_of.get(text, -1) for text in task.documents])
        judged = np.stack([task.judged[:, 0], rows[task.judged[:, 1]]], axis=1)
        kept = judged[:, 1] >= 0  # Cranfield has two documents without a text
        judged, gains = judged[kept], task.gains[kept]
        ideal = _padded(judged[:, 0], gains, len(task.queries))
        found = found_gains(ranked[part, :10], len(work.documents), judged, gains)
        origins = judged[np.unique(judged[:, 0], return_index=True)[1], 1] if task.name == "xquad-en" else None
        values = {
            "overlap": shares(expected[part], ranked[part, :10]),
            "within_100": shares(expected[part], ranked[part]),
            "ndcg": ndcg(found, ideal, 10),
        }
        result[task.name] = {name: _interval(column, origins) for name, column in values.items()}
    return result


def _padded(queries: Array, gains: Array, count: int) -> Array:
    """The gains of each query, [queries, most judged], padded with 0."""
    counts = np.bincount(queries, minlength=count)
    table = np.zeros((count, counts.max()))
    for query in range(count):
        table[query, : counts[query]] = gains[queries == query]
    return table


def _interval(values: Array, origins: Array | None) -> list[float]:
    """Mean, low and high; of the means of each origin where queries have one."""
    if origins is not None:
        numbers = np.unique(origins, return_inverse=True)[1]
        values = np.bincount(numbers, weights=values) / np.bincount(numbers)
    return [round(value, 4) for value in mean_interval(values)]


def _times(work: Work) -> dict[str, dict[str, float]]:
    """What commands have written of each way: minutes, and milliseconds a query."""
    latency = earlier_results(work.folder / "latency.json", {})
    result = {}
    for path in work.folder.glob("*/time.json"):
        name = path.parent.name
        taken = json.loads(path.read_text())
        result[name] = {"minutes": round(taken["seconds"] / 60, 1)}
        if "processor_seconds" in taken:
            result[name]["processor_minutes"] = round(taken["processor_seconds"] / 60, 1)
        own = earlier_results(path.with_name("latency.json"), {"milliseconds": latency.get(name)})
        result[name]["milliseconds"] = own["milliseconds"]
    return result


def table(rows: Mapping[str, Mapping[str, Any]]) -> str:
    """The rows as Markdown, highest overlap@10 first; averages of the two collections, nDCG@10 of each."""
    lines = []
    for name, row in by_overlap(rows):
        ndcgs = [_with_interval(row[task]["ndcg"]) for task in TASKS]
        overlap, wider = (f"{mean(row, figure):.2f}" for figure in ("overlap", "within_100"))
        minutes = "" if "minutes" not in row else f"{row['minutes']:.0f}"
        milliseconds = "" if row.get("milliseconds") is None else f"{row['milliseconds']:.1f}"
        lines.append([title(name), overlap, wider, *ndcgs, minutes, milliseconds])
    head = ["queries by", "overlap@10", "of the ten in the first 100", "nDCG@10, Cranfield", "nDCG@10, XQuAD"]
    is_timed = any(row.get("milliseconds") is not None for row in rows.values())
    if not is_timed:
        lines = [line[:-1] for line in lines]
    return markdown_table([*head, "minutes", *(["ms a query"] if is_timed else [])], lines)


def by_overlap(rows: Mapping[str, Mapping[str, Any]]) -> list[tuple[str, Mapping[str, Any]]]:
    """The rows with their names, highest overlap@10 first."""
    return sorted(rows.items(), key=lambda item: mean(item[1], "overlap"), reverse=True)


def title(name: str) -> str:
    """What a row is, in words."""
    return ROWS[name].title if name in ROWS else OTHER_TITLES[name]


def mean(row: Mapping[str, Any], figure: str) -> float:
    """The average of a figure over the collections."""
    return float(np.mean([row[task][figure][0] for task in TASKS]))


def _with_interval(figures: Sequence[float]) -> str:
    mean, low, high = figures
    return f"{mean:.3f} [{low:.3f}, {high:.3f}]"


if __name__ == "__main__":
    main()
