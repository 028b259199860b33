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
import os
import random
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
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
from distilvec.evaluation.overlap import WIDER, OverlapShare, nearest_rows, shares
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
    "static-3": Row("static (`--layers 0`), 3 minutes of training", ("--layers", "0", "--minutes", "3")),
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
STAGES = {  # of experiments.clicks, on a part of the queries; ROW+STAGE names them
    "judgements": "judgements",
    "clicks": "clicks",
    "weighted-clicks": "clicks by their position",
}


@dataclass(frozen=True)
class Work:
    """The folder of one maker: its index, its vectors of the queries, and the other models' vectors."""

    folder: Path
    collections: Mapping[str, str] = field(default_factory=lambda: TASKS)

    @property
    def index(self) -> Path:
        """The table of documents and their vectors."""
        return self.folder / "index.parquet"

    @cached_property
    def tasks(self) -> list[RetrievalTask]:
        """The judged collections."""
        data = Path(os.environ["DISTILVEC_DATA"])
        return [load_retrieval(name, data / path) for name, path in self.collections.items()]

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
        ways = measured_ways(work, rankings_of(work), np.arange(len(work.queries)))
        rows = {way.name: way.to_json() for way in ways}
        results[arguments.name] = {"machine": machine(), "documents": DOCUMENTS, "rows": rows}
        write_json(arguments.json, results)
        print(table(rows))


# -- the index ---------------------------------------------------------------------------------------------------------


def index_texts(work: Work) -> list[str]:
    """Return the documents of the judged collections, and as many others as there is room for."""
    texts = [text for task in work.tasks for text in task.documents if text.strip()]
    for source in FILLERS:
        texts.extend(texts_of("english_text/english_text.jsonl.gz", source))
    first_of_each = {text.casefold(): text for text in reversed(texts)}
    return [text for text in dict.fromkeys(texts) if first_of_each[text.casefold()] is text][:DOCUMENTS]


def make_index(work: Work, maker: Path) -> None:
    """Embed the documents and the queries by the maker, in parts that stay when the command is stopped."""
    work.folder.mkdir(parents=True, exist_ok=True)
    texts = index_texts(work)
    documents = embedded(maker, texts, "document", work.folder / "maker" / "documents")
    embedded(maker, work.queries, "query", work.folder / "maker" / "queries")
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
    by_length = np.argsort([-len(text) for text in texts], kind="stable")
    parts = []
    for start in range(0, len(texts), PART):
        part = path / f"{start}.npy"
        if not part.exists():
            batch = [texts[row] for row in by_length[start : start + PART]]
            vectors = encode(batch, normalize_embeddings=True, convert_to_tensor=True)
            np.save(part, vectors.float().numpy())
            print(f"{path}: {min(start + PART, len(texts)):,} of {len(texts):,}", flush=True)
        parts.append(np.load(part))
    sorted_vectors = np.concatenate(parts).astype(np.float32)
    in_order = np.empty_like(sorted_vectors)
    in_order[by_length] = sorted_vectors
    np.save(whole, in_order)
    return in_order


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
    medians = {}
    for name in ROWS:
        student = work.folder / name / "run" / "student"
        if student.exists():
            medians[name] = milliseconds(SentenceTransformer(str(student), device="cpu").encode_query, work.queries)
    return medians


def milliseconds(search: Callable[[str], Any], queries: Sequence[str]) -> float:
    times = []
    for query in queries[:QUERIES_TIMED]:
        began = time.perf_counter()
        search(query)
        times.append(1000 * (time.perf_counter() - began))
    return statistics.median(times)


# -- the table ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class TaskFigures:
    """One ranking on one collection: overlap@10, the share of the maker's ten in the first hundred, and nDCG@10."""

    overlap: OverlapShare
    within_100: OverlapShare
    ndcg: OverlapShare


@dataclass(frozen=True)
class Way:
    """A way to answer queries, measured on the collections of TASKS, and what it took; None where that is not known."""

    name: str
    tasks: dict[str, TaskFigures]
    minutes: float | None = None
    processor_minutes: float | None = None
    milliseconds: float | None = None

    @classmethod
    def of_json(cls, name: str, row: Mapping[str, Any]) -> Way:
        """Read what `to_json` gives."""
        tasks = {}
        for task in TASKS:
            tasks[task] = TaskFigures(**{figure: OverlapShare(*values) for figure, values in row[task].items()})
        return cls(name, tasks, row.get("minutes"), row.get("processor_minutes"), row.get("milliseconds"))

    def to_json(self) -> dict[str, Any]:
        """Each figure as its mean, low and high; times that are known."""
        row: dict[str, Any] = {}
        for task, figures in self.tasks.items():
            row[task] = {name: [round(value, 4) for value in share.values()] for name, share in asdict(figures).items()}
        for name in ("minutes", "processor_minutes", "milliseconds"):
            value = getattr(self, name)
            if value is not None:
                row[name] = round(value, 1)
        return row

    @property
    def title(self) -> str:
        """What it is, in words."""
        row, _, stage = self.name.partition("+")
        title = ROWS[row].title if row in ROWS else OTHER_TITLES[row]
        return f"{title}, then {STAGES[stage]}" if stage else title

    @property
    def overlap(self) -> float:
        """The average over the collections."""
        return float(np.mean([figures.overlap.mean for figures in self.tasks.values()]))

    @property
    def within_100(self) -> float:
        """The average over the collections."""
        return float(np.mean([figures.within_100.mean for figures in self.tasks.values()]))

    @property
    def ndcg(self) -> float:
        """The average over the collections."""
        return float(np.mean([figures.ndcg.mean for figures in self.tasks.values()]))


def rankings_of(work: Work) -> dict[str, Array]:
    """The first hundred documents of every way whose vectors are there, int64 [queries, 100]."""
    rankings = {"maker": nearest_rows(work.vectors("maker", "queries"), work.stored, WIDER)}
    for folder in sorted(work.folder.iterdir()):
        if (folder / "ranked.npy").exists():
            rankings[folder.name] = np.load(folder / "ranked.npy")
        elif (folder / "queries.npy").exists() and folder.name != "maker":
            again = (folder / "documents.npy").exists()
            documents = work.vectors(folder.name, "documents") if again else work.stored
            rankings[folder.name] = top_k(work.vectors(folder.name, "queries"), documents, WIDER)[0]
    return rankings


def measured_ways(work: Work, rankings: Mapping[str, Array], tested: Array) -> list[Way]:
    """The figures of rankings on the tested queries, given by their numbers, and what each way took."""
    student_latencies = earlier_results(work.folder / "latency.json", {})
    ways = []
    for name, ranked in rankings.items():
        time_taken = earlier_results(work.folder / name / "time.json", {})
        latency = earlier_results(work.folder / name / "latency.json", {"milliseconds": student_latencies.get(name)})
        ways.append(
            Way(
                name,
                task_figures(work, rankings["maker"][:, :10], ranked, tested),
                _minutes(time_taken.get("seconds")),
                _minutes(time_taken.get("processor_seconds")),
                latency["milliseconds"],
            )
        )
    return ways


def task_figures(work: Work, expected: Array, ranked: Array, tested: Array) -> dict[str, TaskFigures]:
    """The figures of one ranking on the tested queries, by collection.

    Queries about one paragraph of XQuAD are not independent: intervals are over the means of judged documents there.
    """
    row_of = {text: row for row, text in enumerate(work.documents)}
    figures = {}
    first = 0
    for task in work.tasks:
        part = slice(first, first + len(task.queries))
        is_tested = np.isin(np.arange(part.start, part.stop), tested)
        first = part.stop
        rows = np.array([row_of.get(text, -1) for text in task.documents])
        judged = np.stack([task.judged[:, 0], rows[task.judged[:, 1]]], axis=1)
        is_stored = judged[:, 1] >= 0  # Cranfield has two documents without a text
        judged, gains = judged[is_stored], task.gains[is_stored]
        ideal = _padded(judged[:, 0], gains, len(task.queries))
        gains_by_rank = found_gains(ranked[part, :10], len(work.documents), judged, gains)
        origins = None
        if task.name == "xquad-en":
            first_judgements = np.unique(judged[:, 0], return_index=True)[1]
            origins = judged[first_judgements, 1][is_tested]
        figures[task.name] = TaskFigures(
            overlap=_share(shares(expected[part], ranked[part, :10])[is_tested], origins),
            within_100=_share(shares(expected[part], ranked[part])[is_tested], origins),
            ndcg=_share(ndcg(gains_by_rank, ideal, 10)[is_tested], origins),
        )
    return figures


def _padded(queries: Array, gains: Array, count: int) -> Array:
    """The gains of each query, [queries, most judged], padded with 0."""
    counts = np.bincount(queries, minlength=count)
    table = np.zeros((count, counts.max()))
    for query in range(count):
        table[query, : counts[query]] = gains[queries == query]
    return table


def _share(values: Array, origins: Array | None) -> OverlapShare:
    """Mean and interval; of the means of each origin where queries have one."""
    if origins is not None:
        numbers = np.unique(origins, return_inverse=True)[1]
        values = np.bincount(numbers, weights=values) / np.bincount(numbers)
    return OverlapShare(*mean_interval(values))


def _minutes(seconds: float | None) -> float | None:
    return None if seconds is None else seconds / 60


def best_first(rows: Mapping[str, Mapping[str, Any]]) -> list[Way]:
    """The rows of a file of results, highest overlap@10 first."""
    ways = [Way.of_json(name, row) for name, row in rows.items()]
    return sorted(ways, key=lambda way: way.overlap, reverse=True)


def table(rows: Mapping[str, Mapping[str, Any]]) -> str:
    """The rows as Markdown; averages of the two collections, nDCG@10 of each, and times where some are known."""
    ways = best_first(rows)
    columns = [
        ["queries by", *(way.title for way in ways)],
        ["overlap@10", *(f"{way.overlap:.2f}" for way in ways)],
        ["in the first 100", *(f"{way.within_100:.2f}" for way in ways)],
        ["nDCG@10, Cranfield", *(_with_interval(way.tasks["cranfield"].ndcg) for way in ways)],
        ["nDCG@10, XQuAD", *(_with_interval(way.tasks["xquad-en"].ndcg) for way in ways)],
    ]
    if any(way.minutes is not None for way in ways):
        columns.append(["minutes", *(_number(way.minutes, 0) for way in ways)])
    if any(way.milliseconds is not None for way in ways):
        columns.append(["ms a query", *(_number(way.milliseconds, 1) for way in ways)])
    head, *lines = zip(*columns, strict=True)
    return markdown_table(head, lines)


def _with_interval(share: OverlapShare) -> str:
    return f"{share.mean:.3f} [{share.low:.3f}, {share.high:.3f}]"


def _number(value: float | None, digits: int) -> str:
    return "" if value is None else f"{value:.{digits}f}"


if __name__ == "__main__":
    main()
