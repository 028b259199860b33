"""A student of another family before any training: as it is, behind a random linear layer, behind a fitted one.

    python -m experiments.linear_layer TEACHER... --student all-MiniLM-L6-v2 --json results/linear_layer.json

TEACHERs are folders or ids. Texts are 5,000 short ones of english_text (docs/data.md), 500 of them the queries. A row
has the mean distance of the student's vectors to the teacher's, and the share of the teacher's ten nearest neighbours
that the student finds: alone, and among the teacher's vectors. Fitted layers read 1,000 texts, 2,000, and all others.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.markdown import markdown_table
from distilvec.core.files import write_json
from distilvec.core.model_name import ModelName
from distilvec.data.readers import read_rows
from distilvec.evaluation.overlap import overlap_by_query
from distilvec.evaluation.significance import mean_interval
from distilvec.models.load import load_model
from distilvec.students.regression import mean_distance, ridge

TEXTS, QUERIES, LONGEST = 5000, 500, 300  # the longest in characters
FITTED = (1000, 2000, TEXTS - QUERIES)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("teachers", nargs="+")
    parser.add_argument("--student", default="all-MiniLM-L6-v2")
    parser.add_argument("--json", type=Path, required=True)
    arguments = parser.parse_args()
    texts = english_texts(TEXTS)
    student = embed(arguments.student, texts)
    rows = []
    for teacher in arguments.teachers:
        for row in measure(student, embed(teacher, texts)):
            rows.append({"teacher": Path(teacher).name, "student": Path(arguments.student).name, **row})
            print(rows[-1])
    write_json(arguments.json, {"texts": TEXTS, "queries": QUERIES, "rows": rows})


def english_texts(count: int) -> list[str]:
    """Return `count` short texts of english_text, drawn by a fixed seed."""
    path = Path(os.environ.get("DISTILVEC_DATA", "data")) / "english_text" / "english_text.jsonl.gz"
    texts = dict.fromkeys(str(row["text"]) for _, row in read_rows(path) if isinstance(row, Mapping))
    short = [text for text in texts if len(text) < LONGEST]
    chosen = np.random.default_rng(0).choice(len(short), count, replace=False)
    return [short[number] for number in chosen]


def embed(name: str, texts: list[str]) -> torch.Tensor:
    """Return a model's vectors of the texts as documents, [texts, dim]."""
    model = load_model(ModelName(name))
    return torch.as_tensor(model.encode_document(texts, batch_size=64, show_progress_bar=True)).float()


def measure(student: torch.Tensor, teacher: torch.Tensor) -> Iterator[dict[str, Any]]:
    """Yield a row for each linear layer; the last texts are the queries."""
    known, queries = slice(0, -QUERIES), slice(-QUERIES, None)
    if student.shape[1] == teacher.shape[1]:
        yield {"layer": "none", **shares(student, teacher, known, queries)}
    generator = torch.Generator().manual_seed(0)
    random = torch.randn(teacher.shape[1], student.shape[1], generator=generator) / student.shape[1] ** 0.5
    yield {"layer": "random", **shares(student @ random.T, teacher, known, queries)}
    for count in FITTED:
        weight = ridge(student[known][:count], teacher[known][:count]).weight.float()
        yield {"layer": "ridge", "fitted": count, **shares(student @ weight.T, teacher, known, queries)}


def shares(student: torch.Tensor, teacher: torch.Tensor, known: slice, queries: slice) -> dict[str, Any]:
    """Return distance and overlap@10 of the queries."""
    theirs, ours = teacher.numpy(), student.numpy()
    alone = overlap_by_query(theirs[queries], theirs[known], ours[queries], ours[known])
    among = overlap_by_query(theirs[queries], theirs[known], ours[queries], theirs[known])
    return {
        "distance": mean_distance(student[queries], teacher[queries]),
        "alone": mean_interval(alone),
        "among": mean_interval(among),
    }


LAYERS = {"none": "no layer, as it is", "random": "random layer", "ridge": "fitted to {fitted:,} texts"}


def layers_table(report: Mapping[str, Any]) -> str:
    """Return a line for each teacher and layer: distance, and overlap@10."""
    head = ["teacher", "all-MiniLM-L6-v2 before training", "distance", "overlap@10 alone", "among the teacher's"]
    lines = []
    for row in report["rows"]:
        layer = LAYERS[row["layer"]].format(**row)
        cells = [row["teacher"], layer, f"{row['distance']:.3f}", f"{row['alone'][0]:.3f}", f"{row['among'][0]:.3f}"]
        lines.append(cells)
    return markdown_table(head, lines, columns="llrrr")


if __name__ == "__main__":
    main()
