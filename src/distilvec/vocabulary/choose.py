"""A recipe's `student.vocabulary`: from texts to a working tokenizer, stored with the counts of its tokens."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from itertools import chain
from pathlib import Path
from typing import Any

from transformers import AutoTokenizer

from distilvec.config.student import VocabularySection
from distilvec.core.artifacts import CHECKSUMS, FINGERPRINT, open_or_build, open_stored
from distilvec.core.errors import DistilvecError, about, nearest
from distilvec.core.files import SEAL
from distilvec.vocabulary.load import OPTION, read_tokenizer
from distilvec.vocabulary.pieces import Pieces
from distilvec.vocabulary.train import train_tokenizer
from distilvec.vocabulary.trim import ChosenVocabulary, Words, hybrid, size_notes, trim

Texts = Callable[[], Iterator[str]]  # called again for every pass
FIGURES = "vocabulary.json"
_NEEDED = 20_000_000  # bytes of a large tokenizer


def choose(section: VocabularySection, pieces: Pieces, texts: Mapping[str, Texts]) -> ChosenVocabulary:
    """Make the tokenizer of `section` for the model with the tokenizer `pieces`; `texts` by language.

    A size is a wish: where the texts or the tokenizer do not allow it, the nearest one is taken, with a note.
    """
    before = len(pieces.vocabulary)
    if section.tokenizer is not None:
        existing = read_tokenizer(section.tokenizer, pieces)
        with about(OPTION):
            tokens = Pieces(existing, f"the tokenizer of {section.tokenizer}").dense().tokens
        return ChosenVocabulary(existing, {"before": before, "tokens": len(tokens)})
    if not any(next(read(), None) is not None for read in texts.values()):
        raise DistilvecError("there are no texts to choose a vocabulary from.", "Give some.", key="student.vocabulary")
    if section.kind in ("bpe", "unigram", "wordpiece"):
        assert section.size is not None

        def all_texts() -> Iterator[str]:
            return chain.from_iterable(read() for read in texts.values())

        trained = train_tokenizer(all_texts, section.kind, section.size, pieces)
        notes = size_notes(section.size, len(trained))
        return ChosenVocabulary(trained, {"before": before, "tokens": len(trained)}, notes)
    words = {language: Words(read(), pieces) for language, read in texts.items()}
    if section.kind == "trim":
        return trim(pieces, words, section.size, section.letters)
    target = section.target
    share = section.share
    size = section.size
    assert target is not None and share is not None and size is not None
    if target not in words:
        raise DistilvecError(
            f"no texts of '{target}'{nearest(target, words) or '.'} Languages of the texts: {', '.join(words)}.",
            key="student.vocabulary.target",
        )
    return hybrid(pieces, words.pop(target), texts[target], words, share, size, section.letters)


def kept_vocabulary(folder: Path, fingerprint: str, make: Callable[[], ChosenVocabulary]) -> ChosenVocabulary:
    """Return the vocabulary stored in `folder` under `fingerprint`. `make` makes a missing or damaged one."""

    def build(target: Path) -> dict[str, Any]:
        vocabulary = make()
        vocabulary.tokenizer.save_pretrained(target)
        return {**vocabulary.figures, "notes": list(vocabulary.notes)}

    return open_or_build(folder, fingerprint, "vocabulary", _NEEDED, build, _load, FIGURES)


def stored_vocabulary(folder: Path, fingerprint: str) -> ChosenVocabulary | None:
    """Return the vocabulary that `kept_vocabulary` stored in `folder`; None if there is none, or another one."""
    return open_stored(folder, fingerprint, "vocabulary", _load, FIGURES)


def _load(folder: Path) -> ChosenVocabulary:
    content = json.loads((folder / FIGURES).read_text(encoding="utf-8"))
    notes = tuple(content.pop("notes"))
    counts = {name: value for name, value in content.items() if name not in (FINGERPRINT, CHECKSUMS, SEAL)}
    return ChosenVocabulary(AutoTokenizer.from_pretrained(folder, trust_remote_code=False), counts, notes)
