"""Transplant: give a model another vocabulary, chosen or trained on texts; saved as a folder."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import transformers
import yaml
from huggingface_hub.constants import HF_HUB_CACHE
from sentence_transformers import SentenceTransformer

from distilvec.alignment.coverage import unicode_texts
from distilvec.config.schema import SourceSection, VocabularySection
from distilvec.core.errors import DistilvecError
from distilvec.core.files import check_output_folder
from distilvec.core.info import UNLIMITED
from distilvec.data.sources import read_source, source_files
from distilvec.formats.replace import check_replaceable, is_ours, real
from distilvec.formats.sentence_transformers import save_student
from distilvec.models.load import load_model, resolve_model
from distilvec.teachers.model import folder_of
from distilvec.vocabulary.choose import FIGURES, Texts, choose
from distilvec.vocabulary.compare import compare_tokenizers, parameter_counts
from distilvec.vocabulary.pieces import Pieces
from distilvec.vocabulary.transplant import Composition, check_length, transplant

TAGS = ("sentence-transformers", "feature-extraction", "sentence-similarity", "distilvec")
COMPARED = 2000  # texts of a language on which the tokenizers are compared


def read_texts(
    sources: Sequence[str], columns: Sequence[str] | None = None, limit: int | None = None
) -> dict[str, Texts]:
    """Return readers of texts by language, from FILE or LANGUAGE=FILE; a file without language goes by its name.

    Errors: DistilvecError for a missing source. Readers raise it for texts that cannot be read.
    """
    found: dict[str, list[SourceSection]] = {}
    for position, given in enumerate(sources):
        language, sign, path = given.partition("=") if not Path(given).exists() else ("", "", "")
        section = SourceSection(path=Path(path if sign else given), column=list(columns) if columns else None)
        source_files(section, position)
        found.setdefault(language if sign else section.label, []).append(section)

    def reader(sections: list[SourceSection]) -> Texts:
        def read() -> Iterator[str]:
            for number, section in enumerate(sections):
                yield from islice(
                    (text.strip() for text in unicode_texts(read_source(section, number), section) if text.strip()),
                    limit,
                )

        return read

    return {language: reader(sections) for language, sections in found.items()}


def check_target(out: Path, overwrite: bool, sources: Sequence[str], key: str = "--out") -> None:
    """DistilvecError for an `out` that is not empty, is one of the `sources`, or is in the hub's cache.

    `overwrite` allows a folder with a model that distilvec wrote.
    """
    target = real(out)
    if target.is_relative_to(real(Path(HF_HUB_CACHE))):
        raise DistilvecError(f"[{key}] {out} is in the cache of the hub ({HF_HUB_CACHE}). Choose another folder.")
    for name in sources:
        folder = _source_folder(name)
        if folder is not None and real(folder) == target:
            raise DistilvecError(f"[{key}] {out} is the folder of {name}, which is read. Choose another folder.")
    check_output_folder(out, key)
    if not overwrite and out.is_dir() and any(out.iterdir()):
        fix = ", or replace the model in it with --overwrite" if is_ours(out) else ""
        raise DistilvecError(f"[{key}] {out} exists and is not empty. Choose a new or empty folder{fix}.")
    check_replaceable(out, key)


def transplant_folder(
    name: str,
    section: VocabularySection,
    texts: dict[str, Texts],
    out: Path,
    max_length: int | None = None,
    *,
    overwrite: bool = False,
    trust_remote_code: bool = False,
) -> dict[str, Any]:
    """Choose the vocabulary on the texts, give it to the model `name`, save that as `out`, whole or not at all.

    Returns the content of vocabulary.json, which is saved with the model: options, counts of tokens and rows, tokens
    that had no piece in the old vocabulary, and both tokenizers compared on the first 2,000 texts of each language.
    Errors: DistilvecError for anything that cannot be read, chosen or saved, and as `check_target`; nothing is then
    written.
    """
    check_target(out, overwrite, [name, *([section.tokenizer] if section.tokenizer else [])])
    transformers.utils.logging.disable_progress_bar()
    model = load_model(name, "teacher", trust_remote_code=trust_remote_code)
    if not hasattr(model[0], "auto_model"):
        raise DistilvecError(
            f"[teacher] {name} begins with a {type(model[0]).__name__} module; expected a transformer with an "
            "embedding table. "
            "Take another model."
        )
    if max_length is not None:
        check_length(model[0], max_length)
    pieces = Pieces(model.tokenizer, f"the tokenizer of {name}", "teacher")
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
        "compared": _compare(
            model, changed, {language: list(islice(read(), COMPARED)) for language, read in texts.items()}
        ),
    }
    del model  # writing needs memory for another table
    save_student(
        changed,
        out,
        record,
        _card(name, record),
        extra_files=lambda folder: _write(folder / FIGURES, record),
        key="--out",
    )
    return record


def _source_folder(name: str) -> Path | None:
    """Return the local folder of a model or tokenizer; None if there is none."""
    path = Path(resolve_model(name))
    if path.exists():
        return path if path.is_dir() else path.parent
    try:
        return folder_of(str(path), None)[0]
    except (OSError, ValueError):  # no valid id: loading reports it
        return None


def _with_prompt(prompt: str, read: Texts) -> Texts:
    """Return a reader of the texts and of the prompt that is prepended to them."""

    def both() -> Iterator[str]:
        yield prompt
        yield from read()

    return both


def _without(made: Composition, tokenizer: Any) -> list[str]:
    """List the tokens without a piece in the old vocabulary: their rows are not composed."""
    missing = [number for number, origin in enumerate(made.origins) if origin == "missing"]
    return list(tokenizer.convert_ids_to_tokens(missing))


def _compare(before: SentenceTransformer, after: SentenceTransformer, texts: dict[str, list[str]]) -> dict[str, Any]:
    """Compare both tokenizers on the same texts, and both models' parameters."""
    length = before.max_seq_length
    limit = length if length is not None and length < UNLIMITED else None  # T5 has no limit: relative positions
    found = compare_tokenizers(before.tokenizer, after.tokenizer, texts, limit)
    for side, model in (("before", before), ("after", after)):
        found[side]["parameters"] = parameter_counts(model)
    return found


def _card(name: str, record: dict[str, Any]) -> str:
    """Write the model's README.md; names are escaped for YAML and Markdown."""
    front: dict[str, Any] = {
        "library_name": "sentence-transformers",
        "pipeline_tag": "sentence-similarity",
        "tags": list(TAGS),
    }
    if not Path(name).exists():
        front |= {"base_model": name, "base_model_relation": "finetune"}
    chosen, title = record["chosen"], re.sub(r"([\\`*_\[\]<>#|])", r"\\\1", " ".join(name.split()))
    return (
        f"---\n{yaml.safe_dump(front, sort_keys=False, allow_unicode=True)}---\n\n"
        f"# {title} with another vocabulary\n\nMade by `distilvec transplant`: {chosen['before']:,} tokens became "
        f"{chosen['tokens']:,}. "
        "Every weight but the embedding table is that of the original; nothing was trained. `vocabulary.json` has the "
        "details.\n"
    )


def _write(path: Path, content: dict[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
