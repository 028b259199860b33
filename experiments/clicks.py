"""What clicks bring to the query side of an index, where the whole truth is known.

    DISTILVEC_DATA=FOLDER python -m experiments.clicks english --maker MODEL --out FOLDER --json results/clicks.json
    DISTILVEC_DATA=FOLDER python -m experiments.clicks turkish --maker MODEL --out FOLDER --json results/clicks.json

Judged searches become a log. An old search, the index's own model, shows ten documents; people ask popular questions
more often (Zipf), look at position p with the chance p^-0.7, and click a relevant document that they see, or, in one of
five clicks, any that they see. A student is distilled from the stored vectors alone. Then the stage `clicks` goes on
from it with three files: the judgements themselves, the log, and the log with the true chances of the positions. Each
is judged on the full judgements of questions that are in no file: about paragraphs that are in it, and about paragraphs
that are not. Rows of RESULT stay; each step resumes.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.markdown import markdown_table
from distilvec.config import recipe as recipes
from distilvec.core.files import write_json
from distilvec.core.model_name import ModelName
from distilvec.core.run_folder import RunFolder
from distilvec.data.judgements import judgements_file, read_judgements, texts_by_id
from distilvec.data.readers import read_rows
from distilvec.evaluation.pairs import scores_by_query
from distilvec.evaluation.search import top_k
from distilvec.evaluation.significance import difference_interval
from distilvec.models.load import load_model
from distilvec.pipeline.run import run

SIZE = 800  # documents of an index
# Judged collections, and other texts that fill the index
COLLECTIONS = {
    "english": (("xquad/en",), "english_text/english_passages.jsonl.gz", SIZE),
    "turkish": (("tquad_retrieval_dev",), "turkish_text/paragraphs.jsonl.gz", SIZE),
}
FILES = ("judgements", "clicks", "weighted clicks")
UNSEEN, TESTED = 0.25, 0.2  # shares of documents that no file knows, and of other documents' questions
SHOWN, LOOK, SEEN_CLICK, NOISE = 10, 0.7, 0.8, 0.2
SEARCHES = 4  # for each question, on average

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Judged:
    """Questions and their relevant documents: `judged` int64 [pairs, 2] are rows of `questions` and of the index.

    `part` of each question: 0 in the files, 1 tested about documents of the files, 2 tested about others.
    """

    ids: list[str]
    questions: list[str]
    judged: Array
    part: Array


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("collection", choices=COLLECTIONS)
    parser.add_argument(
        "--maker", required=True, help="the model that made the index, and whose layers the student takes"
    )
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--passes", type=int, default=6, help="of the distillation")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--json", type=Path, required=True)
    arguments = parser.parse_args()
    folder = arguments.out / arguments.collection
    folder.mkdir(parents=True, exist_ok=True)

    maker = load_model(ModelName(arguments.maker))
    ids, texts, questions, judged = read_collection(arguments.collection)
    index = folder / "index.parquet"
    if not index.exists():
        vectors = np.asarray(maker.encode_document(texts, batch_size=16, show_progress_bar=True), dtype=np.float32)
        pq.write_table(pa.table({"id": ids, "text": texts, "embedding": list(vectors)}), index)
    vectors = np.array(pq.read_table(index)["embedding"].to_pylist(), dtype=np.float32)
    data = Judged(ids, questions, judged, split(judged, len(questions)))
    asked = np.asarray(maker.encode_query(questions, batch_size=16), dtype=np.float32)
    del maker
    write_files(data, asked, vectors, folder)

    base = base_student(arguments, index, folder)
    report = json.loads(arguments.json.read_text()) if arguments.json.exists() else {"rows": []}
    for name in FILES:
        if any((row["collection"], row["file"]) == (arguments.collection, name) for row in report["rows"]):
            continue
        row = measure(name, base, index, folder, data, asked, vectors)
        report["rows"].append(
            {"collection": arguments.collection, "documents": len(ids), "maker": Path(arguments.maker).name, **row}
        )
        write_json(arguments.json, report)
        print(report["rows"][-1])
    print(clicks_table(report))


def read_collection(name: str) -> tuple[list[str], list[str], list[str], Array]:
    """Return ids and texts of the index, the questions, and their relevant documents as rows of both."""
    judged_folders, other_texts, size = COLLECTIONS[name]
    root = Path(os.environ.get("DISTILVEC_DATA", "data"))
    rows: dict[str, int] = {}  # of a text
    ids: list[str] = []
    questions: list[str] = []
    judged: list[tuple[int, int]] = []
    for folder in judged_folders:
        row_of_id = {}
        for key, (_, text) in texts_by_id(root / folder, "corpus").items():
            if text:
                row_of_id[key] = rows.setdefault(text, len(rows))
                if row_of_id[key] == len(ids):
                    ids.append(f"{folder}-{key}")
        question_of_id = {}
        for key, (_, text) in texts_by_id(root / folder, "queries").items():
            question_of_id[key] = len(questions)
            questions.append(text)
        for (query, document), score in read_judgements(judgements_file(root / folder, "test", None)):
            if score > 0 and document in row_of_id:
                judged.append((question_of_id[query], row_of_id[document]))
    others = [str(row["text"]).strip() for _, row in read_rows(root / other_texts)]
    others = [text for text in dict.fromkeys(others) if 100 < len(text) < 500 and text not in rows]
    for number in np.random.default_rng(0).permutation(len(others))[: size - len(rows)]:
        ids.append(f"other-{number}")
        rows[others[number]] = len(rows)
    return ids, list(rows), questions, np.array(judged, dtype=np.int64)


def split(judged: Array, questions: int) -> Array:
    """Draw documents that no file knows, then questions about the others that are tested: a part for each question."""
    generator = np.random.default_rng(1)
    documents = np.unique(judged[:, 1])
    unseen = generator.choice(documents, int(UNSEEN * len(documents)), replace=False)
    part = np.where(generator.random(questions) < TESTED, 1, 0)
    # With several relevant documents: unseen where most of them are
    share = np.bincount(judged[:, 0], np.isin(judged[:, 1], unseen), minlength=questions)
    counts = np.bincount(judged[:, 0], minlength=questions)
    part[share > counts / 2] = 2
    return part


def write_files(data: Judged, asked: Array, vectors: Array, folder: Path) -> None:
    """Write the judgements of the questions in part 0, and a simulated log of searches for them."""
    relevant: dict[int, set[int]] = {}
    for question, document in data.judged.tolist():
        relevant.setdefault(question, set()).add(document)
    # Unseen documents are in no file, also where a question has others
    unseen = set(data.judged[data.part[data.judged[:, 0]] == 2, 1].tolist())
    trained = [question for question in np.flatnonzero(data.part == 0).tolist() if relevant.get(question)]
    with (folder / "judgements.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["query", "id"])
        for question in trained:
            for document in sorted(relevant[question] - unseen):
                writer.writerow([data.questions[question], data.ids[document]])

    generator = np.random.default_rng(2)
    popularity = 1 / (1 + generator.permutation(len(trained)))
    searched = generator.choice(len(trained), SEARCHES * len(trained), p=popularity / popularity.sum())
    shown = top_k(asked[trained], vectors, SHOWN)[0]
    chances = (1 + np.arange(SHOWN)) ** -LOOK
    clicks: dict[tuple[int, int, int], int] = {}
    for number in searched.tolist():
        is_seen = generator.random(SHOWN) < chances
        for position in np.flatnonzero(is_seen).tolist():
            document = int(shown[number, position])
            if document not in relevant[trained[number]] or generator.random() > SEEN_CLICK:
                continue
            if generator.random() < NOISE:
                position = int(generator.choice(np.flatnonzero(is_seen)))
                document = int(shown[number, position])
            click = trained[number], document, position + 1
            if document not in unseen:
                clicks[click] = clicks.get(click, 0) + 1
    with (folder / "clicks.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["query", "id", "position", "count"])
        for (question, document, place), count in clicks.items():
            writer.writerow([data.questions[question], data.ids[document], place, count])


def base_student(arguments: argparse.Namespace, index: Path, folder: Path) -> Path:
    """Return the student of the stored vectors alone."""
    tree = index_recipe("base", index) | {"method": {"name": "redact"}}
    tree["student"] = {"model": str(Path(arguments.maker).resolve()), "layers": arguments.layers, "max_length": 128}
    tree["train"] = {"epochs": arguments.passes}
    run(recipes.validate(tree), folder / "base")
    return RunFolder(folder / "base").student


def index_recipe(name: str, index: Path) -> dict[str, Any]:
    """Return the keys that all recipes share."""
    return {
        "name": name,
        "teacher": {"vectors": str(index)},
        "corpus": {"sources": [{"builtin": "teacher"}], "exclude_evaluation": False},
        "evaluation": {"parts": [], "columns": ["asymmetric"]},
    }


def measure(
    name: str, base: Path, index: Path, folder: Path, data: Judged, asked: Array, vectors: Array
) -> dict[str, Any]:
    """Train the stage on a file and score base, the stage's student and the old search on the full judgements."""
    stem = "judgements" if name == "judgements" else "clicks"
    run_folder = folder / name.replace(" ", "-")
    tree = index_recipe("clicks", index) | {"method": {"name": "clicks"}, "student": {"model": str(base.resolve())}}
    tree["pairs"] = {"path": str((folder / f"{stem}.csv").resolve())}
    if name == "weighted clicks":
        tree["pairs"]["propensity"] = [float(chance) for chance in (1 + np.arange(SHOWN)) ** -LOOK]
    tree["train"] = {"epochs": 5, "learning_rate": 1e-4, "keep_checkpoint": True}
    run(recipes.validate(tree), run_folder)
    files = RunFolder(run_folder)
    decision = json.loads(files.training_result.read_text())["pairs"]

    tested = {}
    models = {"base": base, "stage": files.last}
    found = {
        key: np.asarray(load_model(ModelName(str(path))).encode_query(data.questions)) for key, path in models.items()
    }
    for part, label in ((1, "seen"), (2, "unseen")):
        rows = np.flatnonzero(data.part == part)
        judged = data.judged[np.isin(data.judged[:, 0], rows)]
        scores = {key: scores_by_query(queries, vectors, judged, "cosine")[rows] for key, queries in found.items()}
        interval = difference_interval([scores["stage"] - scores["base"]])
        assert interval is not None
        tested[label] = {
            "questions": len(rows),
            "maker": float(scores_by_query(asked, vectors, judged, "cosine")[rows].mean()),
            **{key: float(values.mean()) for key, values in scores.items()},
            "difference": [interval.difference / 100, interval.low / 100, interval.high / 100],
        }
    kept = decision["low"] > 0 and decision["overlap_before"] - decision["overlap_after"] <= 0.02
    return {"file": name, "kept": kept, "decision": decision, "tested": tested}


def clicks_table(report: dict[str, Any]) -> str:
    """Return a line for each file: nDCG@10 on tested questions before and after, overlap@10, and the decision."""
    head = ["index", "trained on", "documents in the file", "others", "overlap@10", "the stage is"]
    lines = []
    for row in report["rows"]:
        cells = [row["collection"], row["file"]]
        for part in ("seen", "unseen"):
            tested = row["tested"][part]
            cells.append(f"{tested['base']:.3f} → {tested['stage']:.3f} {shown_interval(tested['difference'])}")
        decision = row["decision"]
        cells.append(f"{decision['overlap_before']:.3f} → {decision['overlap_after']:.3f}")
        lines.append([*cells, "kept" if row["kept"] else "dropped"])
    return markdown_table(head, lines, columns="llrrrl")


def shown_interval(difference: Sequence[float]) -> str:
    """Return the bounds of a difference."""
    return f"[{difference[1]:+.3f}, {difference[2]:+.3f}]"


if __name__ == "__main__":
    main()
