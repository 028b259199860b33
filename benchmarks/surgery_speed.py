"""Tokenizer surgery's speed: counting tokens in texts, and giving a model of the paper's size another vocabulary.

    python -m benchmarks.surgery_speed --json FILE

Counting: english_text.jsonl.gz (generated texts where the data folder is absent) with the tokenizer of
all-MiniLM-L6-v2; next to it the tokenizer on whole texts in batches, in the same run, with equal counts. Transplant: a
model of one layer with a table of 262,144 rows of 768 and a Unigram vocabulary of made-up words gets 131,072 others,
half of them old ones: from folder to folder, so that loading, cutting every token into old pieces, composing and saving
count. Memory is the most that the process grew by, over that of both tables. Medians of three rounds.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Normalize, Pooling
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from benchmarks.memory import Peak
from benchmarks.stopwatch import machine, settled_megabytes
from benchmarks.texts import sample_texts
from distilvec.config.student import StudentSection, VocabularySection
from distilvec.core.files import write_json
from distilvec.core.model_name import ModelName
from distilvec.models.load import load_tokenizer
from distilvec.students.build import fresh_transformer
from distilvec.verbs.transplant.transplant import transplant_folder
from distilvec.vocabulary.pieces import Pieces
from distilvec.vocabulary.trim import Words

NEW, WIDTH = 131_072, 768  # the old table has twice as many rows
ROUNDS = 3
MARKS = {"megabytes_per_second": 5.0, "seconds": 60.0, "memory_of_tables": 2.0}
LETTERS = "abcdefghijklmnopqrstuvwxyz"
SPECIAL = {"pad_token": "<pad>", "unk_token": "<unk>", "cls_token": "<s>", "sep_token": "</s>"}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, required=True)
    parser.add_argument("--texts", type=int, default=1_000_000, help="at most so many, for counting")
    parser.add_argument("--rows", type=int, default=NEW, help="of the new table; the old one has twice as many")
    arguments = parser.parse_args()
    report = {
        "machine": machine(),
        "marks": MARKS,
        "counting": counting(arguments.texts),
        "transplant": transplanting(arguments.rows),
    }
    write_json(arguments.json, report)
    print(json.dumps(report, indent=1))


def counting(most: int) -> dict[str, Any]:
    """Megabytes of text a second, by distinct words and on whole texts; both give the same counts."""
    texts, origin = sample_texts(most)
    size = sum(len(text.encode()) for text in texts) / 1e6
    pieces = Pieces(load_tokenizer(ModelName("all-MiniLM-L6-v2")))
    seconds: dict[str, list[float]] = {"words": [], "whole": []}
    for _ in range(ROUNDS):
        began = time.perf_counter()
        counts = Words(texts, pieces).tokens(pieces)
        seconds["words"].append(time.perf_counter() - began)
        began = time.perf_counter()
        whole = np.zeros_like(counts)
        for first in range(0, len(texts), 8192):
            for encoding in pieces.plain.encode_batch_fast(texts[first : first + 8192], add_special_tokens=False):
                np.add.at(whole, encoding.ids, 1)
        seconds["whole"].append(time.perf_counter() - began)
        if not np.array_equal(counts, whole):
            raise SystemExit("words and whole texts do not have the same tokens")
    rates = {name: round(size / statistics.median(values), 2) for name, values in seconds.items()}
    return {"texts": f"{len(texts):,} texts, {origin}", "megabytes": round(size, 1), "megabytes_per_second": rates}


def transplanting(rows: int) -> dict[str, Any]:
    """Seconds and memory from a folder to a folder."""
    words = made_up(3 * rows)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        unigram(words[: 2 * rows]).save_pretrained(folder / "old")
        unigram(words[rows : rows + rows // 2] + words[2 * rows : 2 * rows + rows - rows // 2]).save_pretrained(
            folder / "new"
        )
        save_model(folder / "old", folder / "model")
        before, seconds = settled_megabytes("cpu"), []
        with Peak() as peak:
            for _ in range(ROUNDS):
                began = time.perf_counter()
                found = transplant_folder(
                    str(folder / "model"),
                    VocabularySection(tokenizer=str(folder / "new")),
                    {},
                    folder / "out",
                    overwrite=True,
                )
                seconds.append(time.perf_counter() - began)
        grown = (peak.megabytes - before) * 1.048576
    tables = 3 * rows * WIDTH * 4 / 1e6
    return {
        "rows": [found["chosen"]["before"], found["chosen"]["tokens"]],
        "width": WIDTH,
        "seconds": round(statistics.median(seconds), 2),
        "megabytes": round(grown),
        "memory_of_tables": round(grown / tables, 2),
    }


def made_up(count: int) -> list[str]:
    """So many distinct words of three to nine letters, some of which begin a word."""
    generator, found = np.random.default_rng(0), dict[str, None]()
    while len(found) < count:
        lengths = generator.integers(3, 10, count)
        letters = generator.integers(0, len(LETTERS), int(lengths.sum()))
        ends = np.cumsum(lengths)
        for end, length in zip(ends.tolist(), lengths.tolist(), strict=True):
            word = "".join(LETTERS[letter] for letter in letters[end - length : end])
            found["\u2581" * (length % 2) + word] = None
    return list(found)[:count]


def unigram(words: list[str]) -> PreTrainedTokenizerFast:
    """A SentencePiece-like tokenizer of these words and the letters; as many tokens as words."""
    always = [*SPECIAL.values(), "\u2581", *LETTERS]
    pieces = [(token, -20.0) for token in always] + [(word, -10.0) for word in words[: len(words) - len(always)]]
    tokenizer = Tokenizer(models.Unigram(pieces, 1, False))
    tokenizer.pre_tokenizer, tokenizer.decoder = pre_tokenizers.Metaspace(), decoders.Metaspace()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, **SPECIAL)


def save_model(tokenizer: Path, folder: Path) -> None:
    """A random model of one layer with a table for this tokenizer."""
    config = {
        "model_type": "bert",
        "hidden_size": WIDTH,
        "num_hidden_layers": 1,
        "num_attention_heads": 12,
        "intermediate_size": WIDTH,
    }
    first = fresh_transformer(StudentSection(config=config, tokenizer=str(tokenizer)))
    SentenceTransformer(modules=[first, Pooling(WIDTH), Normalize()], device="cpu").save(str(folder))


if __name__ == "__main__":
    main()
