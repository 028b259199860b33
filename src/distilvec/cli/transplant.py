"""The verb `transplant`: another vocabulary for a model, without training."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated, Optional

import typer

from distilvec.cli.model_options import TrustRemoteCode, named_options
from distilvec.core.errors import DistilvecError

_OPTIONS = {
    "student.vocabulary": "--texts",
    "student.vocabulary.kind": "--kind",
    "student.vocabulary.size": "--vocab-size",
    "student.vocabulary.tokenizer": "--tokenizer",
    "student.vocabulary.target": "--target",
    "student.vocabulary.share": "--share",
    "student.model": "teacher",
    "max_length": "--max-length",
}


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
        typer.Option(
            help="A file or folder of texts, as in a recipe's corpus, or LANGUAGE=FILE; may be given several times."
        ),
    ] = None,
    kind: Annotated[
        Kind,
        typer.Option(
            help="trim: keep what the texts use; bpe, unigram, wordpiece: train a new tokenizer on them; hybrid: tokens of the target "
            "language's own, and of the old ones those that the other languages use most."
        ),
    ] = Kind.trim,
    vocab_size: Annotated[
        Optional[int], typer.Option(min=1, help="Tokens in all; with trim all that the texts use by default.")
    ] = None,
    tokenizer: Annotated[
        Optional[str],
        typer.Option(help="A tokenizer that exists, instead: folder, id, tokenizer.json or SentencePiece .model."),
    ] = None,
    target: Annotated[
        Optional[str], typer.Option(help="With hybrid: the LANGUAGE that gets tokens of its own.")
    ] = None,
    share: Annotated[Optional[int], typer.Option(min=1, help="With hybrid: how many.")] = None,
    letters: Annotated[
        Letters, typer.Option(help="Of the old alphabet: all letters, or those seen in the texts.")
    ] = Letters.all,
    compose: Annotated[
        Compose, typer.Option(help="What the row of a new token is made of: the old pieces of its text.")
    ] = Compose.mean,
    keep_norm: Annotated[bool, typer.Option(help="Bring composed rows to the mean norm of their pieces.")] = False,
    max_length: Annotated[
        Optional[int], typer.Option(min=1, help="Tokens that the model reads of a text; as before by default.")
    ] = None,
    column: Annotated[
        Optional[list[str]], typer.Option(help="The column(s) with texts; found by name when left out.")
    ] = None,
    limit: Annotated[Optional[int], typer.Option(min=1, help="Read only so many texts of each file.")] = None,
    overwrite: Annotated[
        bool,
        typer.Option(
            "--overwrite",
            help="Replace the model that distilvec wrote to the folder of --out; files of others there stay.",
        ),
    ] = False,
    trust_remote_code: TrustRemoteCode = False,
) -> None:
    """Give a model another vocabulary: rows are composed of the old ones, every other weight stays. Nothing is trained."""
    _check_options(kind, tokenizer, vocab_size, target, share, texts)

    from distilvec.cli.terminal import show_tokenizers
    from distilvec.config.recipe import section_of
    from distilvec.config.schema import VocabularySection
    from distilvec.core.extras import require_extra
    from distilvec.models.unreadable import check_place
    from distilvec.pipeline.transplant import check_target, read_texts, transplant_folder

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
    with named_options(_OPTIONS):
        section = section_of(VocabularySection, "student.vocabulary", asked)
        check_place(teacher, "teacher")
        check_target(out, overwrite, [teacher, *([tokenizer] if tokenizer else [])])
        if tokenizer is not None and tokenizer.endswith(".model"):
            require_extra("sentencepiece", "--tokenizer")
        sources = read_texts(texts or [], column, limit)
        for read in sources.values():
            next(read(), None)  # so that a file that cannot be read is reported before the model is loaded
        found = transplant_folder(
            teacher, section, sources, out, max_length, overwrite=overwrite, trust_remote_code=trust_remote_code
        )
    show_tokenizers(found["compared"])
    print(f"{out}: rows {', '.join(f'{count:,} {origin}' for origin, count in sorted(found['rows'].items()))}")


def _check_options(
    kind: Kind, tokenizer: str | None, size: int | None, target: str | None, share: int | None, texts: list[str] | None
) -> None:
    """DistilvecError for options that do not go together, by the option that is missing or too many."""
    given = {
        "--vocab-size": size,
        "--target": target,
        "--share": share,
        "--kind": None if kind is Kind.trim else kind.value,
    }
    if tokenizer is not None:
        if extra := [option for option, value in given.items() if value is not None]:
            raise DistilvecError(
                f"[--tokenizer] is a tokenizer that exists; {', '.join(extra)} is for a new one. Leave out one of both."
            )
        return
    if not texts:
        raise DistilvecError("[--texts] there are no texts to choose a vocabulary from. Give some, or --tokenizer.")
    if kind is not Kind.trim and size is None:
        raise DistilvecError(f"[--vocab-size] --kind {kind.value} needs it. Give a number of tokens.")
    for option, value in (("--target", target), ("--share", share)):
        if kind is Kind.hybrid and value is None:
            raise DistilvecError(f"[{option}] --kind hybrid needs it. Give --target and --share.")
        if kind is not Kind.hybrid and value is not None:
            raise DistilvecError(
                f"[{option}] belongs to --kind hybrid; found --kind {kind.value}. Leave it out or change --kind."
            )
