"""The verb `transplant`: another vocabulary for a model, without training."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated, Optional

import typer


class Kind(StrEnum):
    """Where the vocabulary comes from."""

    trim = "trim"
    hybrid = "hybrid"
    bpe = "bpe"
    unigram = "unigram"
    wordpiece = "wordpiece"


class Compose(StrEnum):
    """What a new token's row is made of."""

    mean = "mean"
    weighted = "weighted"
    first = "first"
    last = "last"


class Letters(StrEnum):
    """Which letters of the old alphabet stay."""

    all = "all"
    seen = "seen"


def transplant(
    teacher: Annotated[str, typer.Argument(help="A SentenceTransformer folder or id.")],
    out: Annotated[Path, typer.Option(help="The new model's folder.")],
    texts: Annotated[
        Optional[list[str]],
        typer.Option(help="A file or folder of texts, as in a recipe's corpus, or LANGUAGE=FILE; may be given several times."),
    ] = None,
    kind: Annotated[
        Kind,
        typer.Option(
            help="trim: keep what the texts use; bpe, unigram, wordpiece: train a new tokenizer on them; hybrid: tokens of the target "
            "language's own, and of the old ones those that the other languages use most."
        ),
    ] = Kind.trim,
    vocab_size: Annotated[Optional[int], typer.Option(min=1, help="Tokens in all; with trim all that the texts use by default.")] = None,
    tokenizer: Annotated[
        Optional[str], typer.Option(help="A tokenizer that exists, instead: folder, id, tokenizer.json or SentencePiece .model.")
    ] = None,
    target: Annotated[Optional[str], typer.Option(help="With hybrid: the LANGUAGE that gets tokens of its own.")] = None,
    share: Annotated[Optional[int], typer.Option(min=1, help="With hybrid: how many.")] = None,
    letters: Annotated[Letters, typer.Option(help="Of the old alphabet: all letters, or those seen in the texts.")] = Letters.all,
    compose: Annotated[Compose, typer.Option(help="What the row of a new token is made of: the old pieces of its text.")] = Compose.mean,
    keep_norm: Annotated[bool, typer.Option(help="Bring composed rows to the mean norm of their pieces.")] = False,
    max_length: Annotated[Optional[int], typer.Option(min=1, help="Tokens that the model reads of a text; as before by default.")] = None,
    column: Annotated[Optional[list[str]], typer.Option(help="The column(s) with texts; found by name when left out.")] = None,
    limit: Annotated[Optional[int], typer.Option(min=1, help="Read only so many texts of each file.")] = None,
) -> None:
    """Give a model another vocabulary: rows are composed of the old ones, every other weight stays. Nothing is trained."""
    from distilvec.recipe import section_of
    from distilvec.report.vocabulary_report import show_tokenizers
    from distilvec.schema import VocabularySection
    from distilvec.surgery.job import read_texts, transplant_folder

    asked = {
        "kind": kind.value,
        "tokenizer": tokenizer,
        "size": vocab_size,
        "letters": letters.value,
        "target": target,
        "share": share,
        "compose": compose.value,
        "keep_norm": keep_norm,
    }
    section = section_of(VocabularySection, "transplant", asked)
    found = transplant_folder(teacher, section, read_texts(texts or [], column, limit), out, max_length)
    show_tokenizers(found["compared"])
    print(f"{out}: rows {', '.join(f'{count:,} {origin}' for origin, count in sorted(found['rows'].items()))}")
