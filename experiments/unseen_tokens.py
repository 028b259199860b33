"""Tokens for the words of new texts, where a size has room for more than its texts use: which ones, and what they save.

    python -m experiments.unseen_tokens --teachers FOLDER --json results/unseen_tokens.json        about 20 minutes

multilingual-e5-small and EmbeddingGemma are cut to as many tokens as stated, on a few hundred texts of a language, once
with the further tokens in the order of the vocabulary, once in that of `likely_unseen`. Measured on other texts of the
language: the share of their tokens that is lost, the cosine to the teacher's vectors, and the share of the teacher's
ten nearest training texts that is found, paired by text. No weight is trained.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sentence_transformers import SentenceTransformer

from benchmarks.markdown import markdown_table
from benchmarks.results import earlier_results
from benchmarks.stopwatch import machine
from distilvec.config.student import VocabularySection
from distilvec.core.files import write_json
from distilvec.core.model_name import ModelName
from distilvec.evaluation.overlap import overlap_by_query
from distilvec.evaluation.significance import mean_interval
from distilvec.models.load import load_model
from distilvec.verbs.transplant.transplant import readers_by_language, transplant_folder
from distilvec.vocabulary import trim
from distilvec.vocabulary.pieces import Pieces
from distilvec.vocabulary.trim import likely_unseen, unseen
from experiments.paper_teacher import mixed_up, read

NEW = 500
TEACHERS = {"e5": "multilingual-e5-small", "gemma": "EmbeddingGemma"}


def in_order(pieces: Pieces, used: set[int], tokens: set[int]) -> list[int]:
    """Return the tokens that new texts may use by their probability in a Unigram model, else by their number."""
    numbers = unseen(pieces, used, tokens)
    model = pieces.state["model"]
    if model["type"] != "Unigram":
        return numbers
    return sorted(numbers, key=lambda number: -model["vocab"][number][1])


ORDERS = {"vocabulary": in_order, "letters": likely_unseen}


@dataclass(frozen=True)
class Cut:
    """A teacher, the language it is cut to, the tokens that stay, and the texts that it is cut on."""

    teacher: str
    language: str
    tokens: int
    texts: int

    @property
    def name(self) -> str:
        """Of the row."""
        return f"{TEACHERS[self.teacher]}, {self.language}"


CUTS = [
    Cut("e5", "tr", 14_000, 1_500),
    Cut("e5", "de", 14_000, 500),
    Cut("gemma", "tr", 23_000, 1_500),
    Cut("gemma", "de", 23_000, 500),
]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--teachers", type=Path, required=True)
    parser.add_argument("--json", type=Path, required=True)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    results = earlier_results(arguments.json, {"machine": machine(), "rows": {}})
    for cut in CUTS:
        if cut.name not in results["rows"]:
            results["rows"][cut.name] = measured(cut, str(arguments.teachers.resolve() / cut.teacher))
            write_json(arguments.json, results)
    print(table(results))


def sentences(language: str) -> list[str]:
    """Return distinct sentences of a language (docs/data.md)."""
    if language == "tr":
        return mixed_up([row["text"] for row in read("turkish_text/sentences.jsonl.gz")])
    rows = read("multilingual/lingua_sentences.jsonl.gz")
    return mixed_up([row["text"] for row in rows if row["lang"] == language])


def measured(cut: Cut, teacher: str) -> dict[str, Any]:
    """Return what each order of the further tokens loses and keeps."""
    texts = sentences(cut.language)
    new, known = texts[:NEW], texts[NEW : NEW + cut.texts]
    whole = load_model(ModelName(teacher))
    vectors, searched = whole.encode(new), whole.encode(known)
    row: dict[str, Any] = {"tokens": cut.tokens, "texts": len(known), "new_texts": len(new)}
    shares = {}
    for order in ORDERS:
        student = trimmed(teacher, known, cut, order)
        own = student.encode(new)
        shares[order] = overlap_by_query(vectors, searched, own, searched)
        cosines = (own * vectors).sum(1) / np.linalg.norm(own, axis=1) / np.linalg.norm(vectors, axis=1)
        lost = share_lost(whole, student, new)
        row[order] = {"lost": lost, "cosine": float(cosines.mean()), "overlap": float(shares[order].mean())}
        print(cut.name, order, row[order], flush=True)
    gain = mean_interval(shares["letters"] - shares["vocabulary"], least=-1)
    return {**row, "overlap_gain": [float(number) for number in gain]}


def trimmed(teacher: str, texts: list[str], cut: Cut, order: str) -> SentenceTransformer:
    """Return the teacher with the tokens of the texts and others up to the number that stays."""
    vars(trim)["likely_unseen"] = ORDERS[order]
    section = VocabularySection(kind="trim", letters="seen", size=cut.tokens)
    with tempfile.TemporaryDirectory() as name:
        file, folder = Path(name) / "texts.txt", Path(name) / "model"
        file.write_text("\n".join(texts), encoding="utf-8")
        transplant_folder(teacher, section, readers_by_language([f"{cut.language}={file}"]), folder)
        return load_model(ModelName(str(folder)))


def share_lost(whole: SentenceTransformer, student: SentenceTransformer, texts: list[str]) -> float:
    """Return the share of the texts' tokens, as the whole vocabulary has them, that the student's lacks."""
    kept = student.tokenizer.get_vocab()
    names = [whole.tokenizer.convert_ids_to_tokens(row) for row in whole.tokenizer(texts)["input_ids"]]
    return float(np.mean([token not in kept for row in names for token in row]))


def table(results: Mapping[str, Any]) -> str:
    """Return a line for each model and language."""
    head = [
        "model, language",
        "texts",
        "tokens",
        "tokens of new texts that are lost, %",
        "cosine",
        "overlap@10",
        "gain",
    ]
    lines = []
    for name, row in results["rows"].items():
        sides = [row[order] for order in ORDERS]
        cells = [f"{row['texts']:,}", f"{row['tokens']:,}"]
        cells.append(" → ".join(f"{100 * side['lost']:.1f}" for side in sides))
        cells += [" → ".join(f"{side[key]:.3f}" for side in sides) for key in ("cosine", "overlap")]
        cells.append("{:+.3f} [{:+.3f}, {:+.3f}]".format(*row["overlap_gain"]))
        lines.append([name, *cells])
    return markdown_table(head, lines, columns="l" + "r" * (len(head) - 1))


if __name__ == "__main__":
    main()
