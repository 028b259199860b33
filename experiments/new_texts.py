"""Does the overlap@10 that a run ends with hold for new texts? Five inputs, with texts that no run has seen.

    python -m experiments.new_texts WORKSPACE --teachers FOLDER --json results/new_texts.json [--inputs abstracts ...]

Each input is a file or an index as users have them, distilled by the shortest command. The run's own overlap@10 is of
its validation texts. The independent number is of other documents: their texts are searched for among the same
candidates as the run's own, by the teacher and by the student, and every document counts once.
WORKSPACE keeps the runs, so that the same command resumes. FOLDER holds the teachers `minilm` and `e5`;
$DISTILVEC_DATA the texts.
"""

from __future__ import annotations

import gzip
import json
import os
import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import lancedb
import numpy as np

import distilvec
from benchmarks.markdown import markdown_table
from benchmarks.results import earlier_results, workspace_parser
from distilvec.core.files import write_json
from distilvec.core.similarity import NEIGHBOR_COUNT
from distilvec.data.corpus_files import pieces
from distilvec.data.docstrings import docstrings
from distilvec.data.origins import origin_numbers
from distilvec.evaluation.overlap import QueryOverlaps, find_overlap, nearest_rows
from distilvec.evaluation.stored import draw_stored
from distilvec.pipeline.caches import cached_vectors
from distilvec.pipeline.finished_run import FinishedRun
from distilvec.pipeline.judgement import draw_rows, embed_rows
from distilvec.pipeline.prepare import tokenize_corpus
from distilvec.pipeline.resolve import resolve
from distilvec.teachers.open import open_embedder
from distilvec.teachers.table_embedder import TableEmbedder
from distilvec.verbs.distill.words import PIECE

NEW_DOCUMENTS = 600
SEED = 0
CHUNK, STEP = 80, 50  # words of a chunk, and from one chunk to the next


@dataclass(frozen=True)
class Input:
    """Documents of one kind: `known` go into the run, `new` are searched for afterwards.

    `times`: how often the file is named; `options` of `distilvec.distill`.
    """

    title: str
    teacher: str
    known: list[str]
    new: list[str]
    times: int = 1
    options: dict[str, Any] = field(default_factory=dict)


def abstracts() -> Input:
    known, new = divided(texts_of("english_text/english_text.jsonl.gz", "scitldr-abstracts"), 300)
    return Input("300 abstracts", "minilm", known, new, options={"size": "5M"})


def docstring_texts() -> Input:
    known, new = divided((docstring.text for docstring in docstrings()), 1407)
    return Input("1,407 docstrings", "minilm", known, new, options={"size": "5M"})


def named_twice() -> Input:
    known, new = divided(texts_of("english_text/english_text.jsonl.gz", "ud-ewt"), 2000)
    return Input("2,000 sentences, their file named twice", "minilm", known, new, times=2, options={"size": "5M"})


def turkish_paragraphs() -> Input:
    known, new = divided(texts_of("turkish_text/paragraphs.jsonl.gz"), 800)
    return Input("800 Turkish paragraphs", "e5", known, new, options={"language": "tr", "epochs": 2})


def article_chunks() -> Input:
    """Long reviews stand for articles: no other open text at hand is as long."""
    known, new = divided((text for text in texts_of("imdb/imdb.jsonl.gz") if len(text.split()) > 250), 600)
    title = "a LanceDB index of overlapping chunks of 600 articles"
    return Input(title, "minilm", known, new, options={"epochs": 2})


INPUTS = {
    "abstracts": abstracts,
    "docstrings": docstring_texts,
    "twice": named_twice,
    "turkish": turkish_paragraphs,
    "chunks": article_chunks,
}


def main() -> None:
    parser = workspace_parser(__doc__, "--teachers")
    parser.add_argument("--inputs", nargs="+", choices=list(INPUTS), default=list(INPUTS))
    arguments = parser.parse_args()
    for name in arguments.inputs:
        source = INPUTS[name]()
        folder = arguments.workspace / name
        folder.mkdir(parents=True, exist_ok=True)
        teacher = str((arguments.teachers / source.teacher).resolve())
        measure = measure_index if name == "chunks" else measure_texts
        row = measure(source, teacher, folder)
        rows = earlier_results(arguments.json, {"rows": {}})["rows"] | {name: row}
        write_json(arguments.json, {"rows": {key: rows[key] for key in INPUTS if key in rows}})
    print(table(earlier_results(arguments.json, {"rows": {}})))


def texts_of(file: str, source: str | None = None) -> Iterable[str]:
    """Yield the texts of a file of $DISTILVEC_DATA, or those of one of its sources."""
    with gzip.open(Path(os.environ["DISTILVEC_DATA"]) / file, "rt", encoding="utf-8") as lines:
        for line in lines:
            row = json.loads(line)
            if source is None or row["source"] == source:
                yield row["text"]


def divided(texts: Iterable[str], known: int) -> tuple[list[str], list[str]]:
    """Return so many texts for the run, and up to NEW_DOCUMENTS others; one text of each origin, in random order."""
    documents = list(texts)
    random.Random(SEED).shuffle(documents)
    origins = origin_numbers(documents)
    first_rows = np.sort(np.unique(origins, return_index=True)[1])
    documents = [documents[row] for row in first_rows]
    return documents[:known], documents[known : known + NEW_DOCUMENTS]


def chunks_of(articles: Sequence[str]) -> tuple[list[str], list[int]]:
    """Return chunks of CHUNK words that overlap, and the number of the article of each."""
    chunks, numbers = [], []
    for number, article in enumerate(articles):
        words = article.split()
        for start in range(0, max(len(words) - CHUNK + STEP, 1), STEP):
            chunks.append(" ".join(words[start : start + CHUNK]))
            numbers.append(number)
    return chunks, numbers


def pieces_of(documents: Sequence[str]) -> tuple[list[str], list[int]]:
    """Return documents and their pieces, as a run adds them, and the number of the document of each."""
    texts, numbers = [], []
    for number, document in enumerate(documents):
        text = " ".join(document.split())
        for part in dict.fromkeys([text, *pieces(text, PIECE)]):
            texts.append(part)
            numbers.append(number)
    return texts, numbers


def measure_texts(source: Input, teacher: str, folder: Path) -> dict[str, Any]:
    """Distil a teacher on a file of texts; return the run's number and the independent one."""
    file = folder / "texts.txt"
    file.write_text("\n".join(" ".join(text.split()) for text in source.known), encoding="utf-8")
    run = distilvec.distill(teacher, [file] * source.times, out=folder / "run", **source.options)
    assert run is not None
    job = resolve(run.recipe, run.folder)
    rows = draw_rows(job, tokenize_corpus(job, job.corpus, run.student))
    candidates = None if rows is None else cached_vectors(job, rows.candidates)
    assert rows is not None and candidates is not None

    texts, documents = pieces_of(source.new)
    queries = open_embedder(teacher).embed(texts, "document")
    student = open_embedder(str(run.student_folder))
    student_queries = student.embed(texts, "document")
    student_candidates = embed_rows(job.corpus, rows.candidates, student)
    expected = nearest_rows(queries, candidates, NEIGHBOR_COUNT)
    numbers = np.array(documents)
    shares = find_overlap(expected, candidates, "cosine", student_queries, student_candidates, True, numbers)
    return row_of(source, run, shares)


def measure_index(source: Input, teacher: str, folder: Path) -> dict[str, Any]:
    """Distil an index of overlapping chunks; return the run's number and that of chunks of other articles."""
    index = folder / "index"
    if not index.exists():
        make_index(index, source.known, teacher)
    run = distilvec.distill(str(index / "chunks.lance"), similarity="cosine", out=folder / "run", **source.options)
    assert run is not None
    job = resolve(run.recipe, run.folder)
    with job.teacher.load("cpu") as table:
        assert isinstance(table, TableEmbedder) and run.recipe.evaluation.stored is not None
        texts, vectors = table.documents()
        searched = draw_stored(texts, table.origins, run.recipe.evaluation.stored, "index")[1]
    candidates = vectors[searched]

    texts, documents = chunks_of(source.new)
    queries = open_embedder(teacher).embed(texts, "document")
    student_queries = open_embedder(str(run.student_folder)).embed(texts, "document")
    expected = nearest_rows(queries, candidates, NEIGHBOR_COUNT)
    shares = find_overlap(expected, candidates, "cosine", student_queries, None, True, np.array(documents))
    return row_of(source, run, shares)


def make_index(folder: Path, articles: Sequence[str], teacher: str) -> None:
    """Write a LanceDB table of the articles' chunks and their vectors, as a program that fills one does."""
    texts, numbers = chunks_of(articles)
    vectors = open_embedder(teacher).embed(texts, "document")
    rows = []
    for row, (text, vector) in enumerate(zip(texts, vectors, strict=True)):
        rows.append({"id": row, "text": text, "vector": vector, "doc_id": f"article-{numbers[row]}"})
    lancedb.connect(folder).create_table("chunks", rows)


def row_of(source: Input, run: FinishedRun, new_shares: QueryOverlaps) -> dict[str, Any]:
    """Return the run's own overlap@10 and that of new texts, among the same candidates."""
    judgement = run.record.overlap
    assert judgement is not None
    return {
        "title": source.title,
        "teacher": source.teacher,
        "queries": judgement.queries,
        "query_origins": judgement.query_origins,
        "candidates": judgement.candidates,
        "run": judgement.to_json()["student"],
        "new_documents": len(source.new),
        "new": asdict(new_shares.summary()),
    }


def table(content: Mapping[str, Any]) -> str:
    """Return a line for each input: the run's overlap@10 and that of new texts, among the teacher's vectors."""
    head = [
        "input", "validation texts", "of documents", "the run's overlap@10", "half of its interval", "new documents",
        "overlap@10 of new texts", "within the run's interval",
    ]  # fmt: skip
    lines = []
    for row in content["rows"].values():
        told, new = row["run"]["among"], row["new"]["among"]
        lines.append(
            [
                row["title"],
                str(row["queries"]),
                str(row["query_origins"]),
                interval_text(told),
                f"{(told['high'] - told['low']) / 2:.3f}",
                str(row["new_documents"]),
                interval_text(new),
                "yes" if told["low"] <= new["mean"] <= told["high"] else "no",
            ]
        )
    return markdown_table(head, lines, columns="lrrrrrrl")


def interval_text(share: dict[str, float]) -> str:
    return f"{share['mean']:.3f} [{share['low']:.3f}, {share['high']:.3f}]"


if __name__ == "__main__":
    main()
