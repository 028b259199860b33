"""What clicks bring to the query side of an index, where the whole truth is known.

    DISTILVEC_DATA=FOLDER python -m experiments.clicks english WORK --maker mpnet --json results/clicks.json
    DISTILVEC_DATA=FOLDER python -m experiments.clicks turkish WORK --maker E5 --json results/clicks.json

english: WORK is a folder of experiments.switch, with the index of a maker and a student of another family (--base). Its
20,000 documents are judged by Cranfield's and XQuAD's queries. turkish: WORK is a new folder; the index has the
paragraphs of TQuAD and others, and two layers of the maker, with the tokens that these texts use, are its student.

Judged searches become a log. An old search, by the maker, shows ten documents. People ask popular questions more often
(Zipf), look at position p with the chance p^-0.7, and click a relevant document that they see; one in five clicks is on
any document that they see. The stage `clicks` goes on from the student with three files: the judgements themselves, the
log, and the log with the true chances of the positions. A quarter of the judged documents is in no file, and so is half
of the questions about the others. Each stage is judged on the full judgements of the questions that are in no file,
whether it was kept or not. Rows of RESULT stay; each step resumes.
"""

from __future__ import annotations

import argparse
import csv
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.markdown import markdown_table
from benchmarks.results import earlier_results
from benchmarks.stopwatch import spent
from distilvec.config import recipe as recipes
from distilvec.core.files import write_json
from distilvec.core.run_folder import RunFolder
from distilvec.evaluation.overlap import WIDER, nearest_rows, shares
from distilvec.evaluation.pairs import PairJudgement, PairScore, scores_by_query
from distilvec.evaluation.significance import difference_interval
from distilvec.pipeline.run import run
from experiments.new_texts import texts_of
from experiments.switch import Way, Work, embedded, measured_ways, rankings_of
from experiments.switch import table as switch_table

TURKISH = {"tquad": "tquad_retrieval_dev"}
UNTRAINED = ("maker", "minilm", "bm25")  # ways to search the index
SIZE = 800  # documents of the Turkish index
FILES = ("clicks", "judgements", "weighted clicks")
HELD_OUT, LOGGED = 0.25, 0.5  # shares of judged documents that no file names, and of questions that make the files
SHOWN, LOOK, SEEN_CLICK, NOISE = 10, 0.7, 0.8, 0.2
SEARCHES = 4  # for each question, on average

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Search:
    """A question of a log: its number, and the rows of its relevant documents that a file may name."""

    query: int
    relevant: frozenset[int]


@dataclass(frozen=True)
class Split:
    """Which questions make the files, and which documents no file names.

    `judged` int64 [pairs, 2] are numbers of queries and rows of the index; `tested` are the numbers of the other
    questions.
    """

    judged: Array
    held_out: frozenset[int]
    logged: tuple[Search, ...]
    tested: Array


@dataclass(frozen=True)
class Change:
    """nDCG@10 or overlap@10 of the maker, of the student before the stage and behind it, over so many questions.

    `low` and `high` bound the paired difference; over the means of documents where questions have one document.
    """

    questions: int
    maker: float
    before: float
    after: float
    low: float
    high: float

    @property
    def text(self) -> str:
        """Before and after, and the interval of the difference."""
        return f"{self.before:.3f} → {self.after:.3f} [{self.low:+.3f}, {self.high:+.3f}]"


@dataclass(frozen=True)
class TestedTask:
    """A collection's tested questions: answers that a file may name, answers that none names, and overlap@10."""

    named: Change
    others: Change
    overlap: Change


@dataclass(frozen=True)
class FileResult:
    """What a file brought: to the questions that decide, and to those that are tested, by collection."""

    maker: str
    base: str
    file: str
    pairs: str
    processor_minutes: float
    decision: PairJudgement
    tested: dict[str, TestedTask]

    @classmethod
    def of_json(cls, row: Mapping[str, Any]) -> FileResult:
        """Read a row of the file of results."""
        scores: dict[str, Any] = dict(row["decision"])
        for name in ("score", "seen", "unseen"):
            if scores[name] is not None:
                scores[name] = PairScore(**scores[name])
        tested = {}
        for task, changes in row["tested"].items():
            tested[task] = TestedTask(**{name: Change(**values) for name, values in changes.items()})
        return cls(**{**row, "decision": PairJudgement(**scores), "tested": tested})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("collection", choices=["english", "turkish"])
    parser.add_argument("work", type=Path)
    parser.add_argument("--maker", type=Path, required=True, help="english: its name; turkish: its folder")
    parser.add_argument(
        "--base", default="static-3", help="english: the row of experiments.switch that the stages go on from"
    )
    parser.add_argument("--out", type=Path, help="folder of files and runs; by default WORK/clicks-BASE")
    parser.add_argument("--json", type=Path, required=True)
    arguments = parser.parse_args()

    if arguments.collection == "english":
        work, base = Work(arguments.work), arguments.base
    else:
        work, base = Work(arguments.work, TURKISH), "two-layers"
        make_turkish(work, arguments.maker, base)
    folder = arguments.out or arguments.work / f"clicks-{base}"
    folder.mkdir(parents=True, exist_ok=True)
    split = split_queries(work)
    write_files(work, split, folder)
    for name in FILES:
        results = earlier_results(arguments.json, {"rows": []})
        keys = {"maker": arguments.maker.name, "base": base, "file": name}
        if not any(keys.items() <= row.items() for row in results["rows"]):
            results["rows"].append(keys | measured(work, split, base, name, folder))
            write_json(arguments.json, results)
    if arguments.collection == "english":
        results = earlier_results(arguments.json, {})
        beside = results.setdefault("beside", {})
        maker = arguments.maker.name
        beside[maker] = beside.get(maker, {}) | rows_beside(work, split, base, folder)
        write_json(arguments.json, results)
    results = earlier_results(arguments.json, {})
    print(clicks_table(results), *tables_beside(results).values(), sep="\n\n")


def make_turkish(work: Work, maker: Path, base: str) -> None:
    """Embed TQuAD and other paragraphs, and distil a student from the stored vectors alone."""
    work.folder.mkdir(parents=True, exist_ok=True)
    texts = [text for task in work.tasks for text in task.documents]
    others = [text for text in texts_of("turkish_text/paragraphs.jsonl.gz") if 100 < len(text) < 500]
    texts = list(dict.fromkeys([*texts, *others]))[:SIZE]
    documents = embedded(maker, texts, "document", work.folder / "maker" / "documents")
    embedded(maker, work.queries, "query", work.folder / "maker" / "queries")
    vectors = pa.FixedSizeListArray.from_arrays(documents.reshape(-1), documents.shape[1])
    if not work.index.exists():
        pq.write_table(pa.table({"id": np.arange(len(texts)), "text": texts, "embedding": vectors}), work.index)
    tree = index_recipe("base", work) | {"method": {"name": "redact"}, "train": {"epochs": 6}}
    tree["student"] = {"model": str(maker.resolve()), "layers": 2, "max_length": 128}
    tree["student"]["vocabulary"] = {"kind": "trim", "letters": "seen"}  # as by --language tr
    run(recipes.validate(tree), work.folder / base / "run")
    embedded(work.folder / base / "run" / "student", work.queries, "query", work.folder / base / "queries")


# -- the log -----------------------------------------------------------------------------------------------------------


def split_queries(work: Work) -> Split:
    """Draw documents that no file names, and questions that make the files; those without another document test."""
    generator = np.random.default_rng(1)
    row_of = {text: row for row, text in enumerate(work.documents)}
    judged = []
    first = 0
    for task in work.tasks:
        for query, document in task.judged.tolist():
            if task.documents[document] in row_of:
                judged.append((first + query, row_of[task.documents[document]]))
        first += len(task.queries)
    documents = sorted({document for _, document in judged})
    held_out = frozenset(generator.choice(documents, int(HELD_OUT * len(documents)), replace=False).tolist())
    relevant: dict[int, set[int]] = {}
    for query, document in judged:
        if document not in held_out:
            relevant.setdefault(query, set()).add(document)

    is_drawn = generator.random(len(work.queries)) < LOGGED
    logged = [Search(query, frozenset(relevant[query])) for query in sorted(relevant) if is_drawn[query]]
    # A question of several collections, or asked twice, is not both
    logged_texts = {work.queries[search.query] for search in logged}
    tested = [query for query, text in enumerate(work.queries) if text not in logged_texts]
    return Split(np.array(judged, dtype=np.int64), held_out, tuple(logged), np.array(tested, dtype=np.int64))


def write_files(work: Work, split: Split, folder: Path) -> None:
    """Write the judgements of the logged questions, and a simulated log of searches for them."""
    with (folder / "judgements.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["query", "id"])
        for search in split.logged:
            for document in sorted(search.relevant):
                writer.writerow([work.queries[search.query], document])

    with (folder / "clicks.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["query", "id", "position", "count"])
        for (query, document, position), count in simulated_clicks(work, split).items():
            writer.writerow([work.queries[query], document, position, count])


def simulated_clicks(work: Work, split: Split) -> dict[tuple[int, int, int], int]:
    """Clicks on the maker's search, by query, document and position from 1; none on held-out documents."""
    generator = np.random.default_rng(2)
    popularity = 1 / (1 + generator.permutation(len(split.logged)))
    asked = generator.choice(len(split.logged), SEARCHES * len(split.logged), p=popularity / popularity.sum())
    queries = work.vectors("maker", "queries")[[search.query for search in split.logged]]
    shown = nearest_rows(queries, work.stored, SHOWN)
    clicks: dict[tuple[int, int, int], int] = {}
    for number in asked.tolist():
        search = split.logged[number]
        is_seen = generator.random(SHOWN) < look_chances()
        for position in np.flatnonzero(is_seen).tolist():
            if int(shown[number, position]) not in search.relevant or generator.random() > SEEN_CLICK:
                continue
            if generator.random() < NOISE:
                position = int(generator.choice(np.flatnonzero(is_seen)))
            document = int(shown[number, position])
            if document not in split.held_out:
                click = search.query, document, position + 1
                clicks[click] = clicks.get(click, 0) + 1
    return clicks


def look_chances() -> Array:
    """How often each position of the old search is looked at."""
    return np.asarray((1.0 + np.arange(SHOWN)) ** -LOOK)


# -- the stage ---------------------------------------------------------------------------------------------------------


def index_recipe(name: str, work: Work) -> dict[str, Any]:
    """Return the keys that all recipes share."""
    return {
        "name": name,
        "teacher": {"vectors": str(work.index)},
        "corpus": {"sources": [{"builtin": "teacher"}], "exclude_evaluation": False},
        "evaluation": {"parts": [], "columns": ["asymmetric"], "stored": 500},
    }


def measured(work: Work, split: Split, base: str, name: str, folder: Path) -> dict[str, Any]:
    """Train the stage on a file, from the base on, and score both on the tested questions."""
    run_folder = folder / name.replace(" ", "-")
    tree = index_recipe("clicks", work) | {"method": {"name": "clicks"}}
    tree["student"] = {"model": str((work.folder / base / "run" / "student").resolve())}
    file = "judgements.csv" if name == "judgements" else "clicks.csv"
    tree["pairs"] = {"path": str((folder / file).resolve())}
    if name == "weighted clicks":
        tree["pairs"]["propensity"] = look_chances().tolist()
    tree["train"] = {"epochs": 5, "learning_rate": 1e-4, "keep_checkpoint": True}
    time_taken = spent(lambda: run(recipes.validate(tree), run_folder))
    files = RunFolder(run_folder)
    decision = json.loads(files.training_result.read_text())["pairs"]
    after = embedded(files.last, work.queries, "query", run_folder / "queries")
    queries = {"maker": work.vectors("maker", "queries"), "before": work.vectors(base, "queries"), "after": after}
    tested = tested_tasks(work, split, queries)
    return {
        "pairs": f"{sum(1 for _ in (folder / file).open()) - 1:,} rows",
        "processor_minutes": round(time_taken.processor_seconds / 60, 1),
        "decision": decision,
        "tested": {task: asdict(changes) for task, changes in tested.items()},
    }


def tested_tasks(work: Work, split: Split, queries: Mapping[str, Array]) -> dict[str, TestedTask]:
    """The changes of each collection, from the vectors of all queries by maker, student before and student after."""
    is_held_out = np.isin(split.judged[:, 1], sorted(split.held_out))
    expected = nearest_rows(queries["maker"], work.stored, 10)

    def ndcg_of(judged: Array) -> Callable[[Array], Array]:
        return lambda vectors: scores_by_query(vectors, work.stored, judged, "cosine")

    def overlap_of(vectors: Array) -> Array:
        return shares(expected, nearest_rows(vectors, work.stored, 10))

    tasks = {}
    first = 0
    for task in work.tasks:
        part = split.tested[(split.tested >= first) & (split.tested < first + len(task.queries))]
        first += len(task.queries)
        is_of_part = np.isin(split.judged[:, 0], part)
        named, others = split.judged[is_of_part & ~is_held_out], split.judged[is_of_part & is_held_out]
        tasks[task.name] = TestedTask(
            named=change(ndcg_of(named), named, queries),
            others=change(ndcg_of(others), others, queries),
            overlap=change(overlap_of, split.judged[is_of_part], queries),
        )
    return tasks


def change(score: Callable[[Array], Array], judged: Array, queries: Mapping[str, Array]) -> Change:
    """Score the questions of these judgements. Questions about one document are not independent: their mean counts."""
    numbers, first_rows, counts = np.unique(judged[:, 0], return_index=True, return_counts=True)
    origins = np.arange(len(numbers))
    if counts.max() == 1:
        origins = np.unique(judged[first_rows, 1], return_inverse=True)[1]

    def by_origin(vectors: Array) -> Array:
        return np.asarray(np.bincount(origins, weights=score(vectors)[numbers]) / np.bincount(origins))

    values = {name: by_origin(vectors) for name, vectors in queries.items()}
    interval = difference_interval([values["after"] - values["before"]])
    assert interval is not None  # there are questions
    means = {name: float(scores.mean()) for name, scores in values.items()}
    return Change(len(numbers), **means, low=interval.low / 100, high=interval.high / 100)


def rows_beside(work: Work, split: Split, base: str, folder: Path) -> dict[str, Any]:
    """The stages beside the rows of experiments.switch, all on the tested questions alone."""
    rankings = rankings_of(work)
    for name in FILES:
        stage = name.replace(" ", "-")
        rankings[f"{base}+{stage}"] = nearest_rows(np.load(folder / stage / "queries.npy"), work.stored, WIDER)
    # Times are those of the other table, and of another day
    ways = measured_ways(work, rankings, split.tested)
    return {way.name: Way(way.name, way.tasks).to_json() for way in ways}


# -- the table ---------------------------------------------------------------------------------------------------------


def clicks_table(results: Mapping[str, Any]) -> str:
    """Return a line for each file and collection: the tested questions before and after, and the decision."""
    head = ["index, student", "trained on", "judged by", "answers that the file may name", "other answers"]
    head += ["overlap@10", "the stage is"]
    lines: list[Sequence[str]] = []
    for result in map(FileResult.of_json, results["rows"]):
        verdict = "kept" if result.decision.is_kept else "dropped"
        for task, tested in result.tested.items():
            changes = [change.text for change in (tested.named, tested.others, tested.overlap)]
            lines.append([f"{result.maker}, {result.base}", result.file, task, *changes, verdict])
    return markdown_table(head, lines, columns="lllrrrl")


def tables_beside(results: Mapping[str, Any]) -> dict[str, str]:
    """Return, for each maker, the student before and behind its stages beside the ways that need no training."""
    tables = {}
    for maker, rows in results.get("beside", {}).items():
        bases = {name.partition("+")[0] for name in rows if "+" in name}
        tables[maker] = switch_table(
            {name: row for name, row in rows.items() if name.partition("+")[0] in {*bases, *UNTRAINED}}
        )
    return tables


if __name__ == "__main__":
    main()
