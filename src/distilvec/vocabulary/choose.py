"""From texts to a working tokenizer, as a recipe's `student.vocabulary` says; kept on disk with what it was chosen from."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from transformers import AutoTokenizer, PreTrainedTokenizerFast

from distilvec.config.schema import VocabularySection
from distilvec.core.artifacts import CHECKSUMS, FINGERPRINT, open_or_build
from distilvec.core.errors import DistilvecError, nearest
from distilvec.core.files import SEAL
from distilvec.vocabulary.counting import Words
from distilvec.vocabulary.load import read_tokenizer
from distilvec.vocabulary.pieces import Pieces
from distilvec.vocabulary.train import train_tokenizer
from distilvec.vocabulary.trim import Vocabulary, hybrid, trim

Texts = Callable[[], Iterator[str]]  # called again for every pass
FIGURES = "vocabulary.json"
_NEEDED = 20_000_000  # bytes that a large tokenizer takes


def choose(section: VocabularySection, pieces: Pieces, texts: Mapping[str, Texts]) -> Vocabulary:
    """The tokenizer that `section` asks for, `texts` by language; `pieces` is the tokenizer of the model that it is for.

    Errors: DistilvecError for sizes that cannot be had, a target language without texts, no texts at all; for a tokenizer that
    cannot be read, is a slow one, or whose ids have holes.
    """
    if section.tokenizer is not None:
        given = read_tokenizer(section.tokenizer, pieces)
        tokens = Pieces(given, f"the tokenizer of {section.tokenizer}").dense().tokens
        return Vocabulary(given, {"before": len(pieces.vocabulary), "tokens": len(tokens)})
    if not any(next(read(), None) is not None for read in texts.values()):
        raise DistilvecError("[student.vocabulary] there are no texts to choose a vocabulary from. Give some.")
    if section.kind in ("bpe", "unigram", "wordpiece"):
        assert section.size is not None
        everything = (text for read in texts.values() for text in read())
        made = train_tokenizer(everything, section.kind, section.size, pieces)
        return Vocabulary(made, {"before": len(pieces.vocabulary), "tokens": len(made)})
    words = {language: Words(read(), pieces) for language, read in texts.items()}
    if section.kind == "trim":
        return trim(pieces, words, section.size, section.letters)
    assert section.target is not None and section.share is not None and section.size is not None
    if section.target not in words:
        raise DistilvecError(
            f"[student.vocabulary.target] no texts of '{section.target}'{nearest(section.target, words) or '.'} "
            f"Languages of the texts: {', '.join(words)}."
        )
    others = {language: part for language, part in words.items() if language != section.target}
    return hybrid(
        pieces, words[section.target], texts[section.target](), others, section.share, section.size, section.letters
    )


def kept_vocabulary(folder: Path, make: Callable[[], Vocabulary]) -> tuple[PreTrainedTokenizerFast, dict[str, Any]]:
    """The tokenizer stored in `folder` and its figures; made by `make` where there is none, or a damaged one."""

    def build(place: Path) -> dict[str, Any]:
        made = make()
        made.tokenizer.save_pretrained(place)
        return made.figures

    def load(folder: Path) -> tuple[PreTrainedTokenizerFast, dict[str, Any]]:
        content = json.loads((folder / FIGURES).read_text(encoding="utf-8"))
        figures = {name: value for name, value in content.items() if name not in (FINGERPRINT, CHECKSUMS, SEAL)}
        return AutoTokenizer.from_pretrained(folder, trust_remote_code=False), figures

    return open_or_build(folder, folder.name, "vocabulary", _NEEDED, build, load, FIGURES)
