"""The whole of `distilvec transplant`: a model, texts, a folder with the model under its new vocabulary."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from itertools import islice
from pathlib import Path
from typing import Any

import transformers
from sentence_transformers import SentenceTransformer

from distilvec.data.readers import read_source
from distilvec.errors import DistilvecError
from distilvec.export.portable import save_student
from distilvec.loading import load
from distilvec.schema import SourceSection, VocabularySection
from distilvec.students.positions import UNLIMITED
from distilvec.surgery.analysis import compare_tokenizers, parameter_figures
from distilvec.surgery.choose import FIGURES, Texts, choose
from distilvec.surgery.surfaces import Pieces
from distilvec.surgery.transplant import Composition, transplant
from distilvec.teachers.local import resolve_model

COMPARED = 2000  # texts of a language on which the tokenizers are compared


def read_texts(sources: Sequence[str], columns: Sequence[str] | None = None, limit: int | None = None) -> dict[str, Texts]:
    """Readers of the texts by language, from FILE or LANGUAGE=FILE; a file without language is one of its own by its name."""
    found: dict[str, list[SourceSection]] = {}
    for given in sources:
        language, sign, path = given.partition("=") if not Path(given).exists() else ("", "", "")
        section = SourceSection(path=Path(path if sign else given), column=list(columns) if columns else None)
        found.setdefault(language if sign else section.label, []).append(section)

    def reader(sections: list[SourceSection]) -> Texts:
        def read() -> Iterator[str]:
            for place, section in enumerate(sections):
                yield from islice((text.strip() for text in read_source(section, place) if text.strip()), limit)

        return read

    return {language: reader(sections) for language, sections in found.items()}


def transplant_folder(
    name: str, section: VocabularySection, texts: dict[str, Texts], out: Path, max_length: int | None = None
) -> dict[str, Any]:
    """Choose the vocabulary on the texts, give it to the model `name`, save that as `out`, whole or not at all.

    Beside the model lies vocabulary.json, whose content comes back: what was asked for, what was chosen, how the rows were made, with
    the tokens that had no piece of their own, and both tokenizers compared on the first 2,000 texts of each language.
    Errors: DistilvecError for what cannot be read, chosen or saved; nothing is then written.
    """
    transformers.utils.logging.disable_progress_bar()
    model = load(resolve_model(name), device="cpu")
    if not hasattr(model[0], "auto_model"):
        raise DistilvecError(f"{name} begins with a {type(model[0]).__name__} module; expected a transformer with an embedding table.")
    pieces = Pieces(model.tokenizer, f"the tokenizer of {name}")
    for prompt in {prompt for prompt in (model.prompts or {}).values() if prompt}:
        texts = {language: _with_prompt(prompt, read) for language, read in texts.items()}
    chosen = choose(section, pieces, texts)
    del pieces  # those of a large tokenizer take much memory
    changed, made = transplant(model, chosen.tokenizer, section.compose, section.keep_norm, max_length)
    record = {
        "teacher": name,
        "vocabulary": section.model_dump(mode="json", exclude_none=True),
        "chosen": chosen.figures,
        "rows": made.counts,
        "without_pieces": _without(made, changed.tokenizer),
        "compared": _compare(model, changed, {language: list(islice(read(), COMPARED)) for language, read in texts.items()}),
    }
    del model  # writing needs memory for another table
    save_student(changed, out, record, _card(name, record), beside=lambda folder: _write(folder / FIGURES, record))
    return record


def _with_prompt(prompt: str, read: Texts) -> Texts:
    """The texts and a prompt that stands before them when they are encoded."""

    def both() -> Iterator[str]:
        yield prompt
        yield from read()

    return both


def _without(made: Composition, tokenizer: Any) -> list[str]:
    """Tokens whose text has no piece in the old vocabulary: their rows are not composed."""
    missing = [number for number, origin in enumerate(made.origins) if origin == "missing"]
    return list(tokenizer.convert_ids_to_tokens(missing))


def _compare(before: SentenceTransformer, after: SentenceTransformer, texts: dict[str, list[str]]) -> dict[str, Any]:
    """Both models' tokenizers on the same texts, and where their parameters are."""
    length = before.max_seq_length
    limit = length if length is not None and length < UNLIMITED else None  # relative positions: T5's tokenizers state no limit
    found = compare_tokenizers(before.tokenizer, after.tokenizer, texts, limit)
    for side, model in (("before", before), ("after", after)):
        found[side]["parameters"] = asdict(parameter_figures(model))
    return found


def _card(name: str, record: dict[str, Any]) -> str:
    chosen = record["chosen"]
    return (
        f"# {name} with another vocabulary\n\nMade by `distilvec transplant`: {chosen['before']:,} tokens became {chosen['tokens']:,}. "
        "Every weight but the embedding table is that of the original; nothing was trained. How it was made stands in `vocabulary.json`.\n"
    )


def _write(path: Path, content: dict[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
