"""Prompts for texts about words, and checks of the answers.

The first of KINDS has the prompt of listing 1 of REDACT ("Knowledge Distillation of Text Embedding Models with
Teacher-Aligned Representations", appendix C); the others have its form.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from distilvec.config.synthesis import Kind
from distilvec.core.errors import DistilvecError, explained
from distilvec.data.corpus import loose_key
from distilvec.data.corpus_files import clean_text

LONGEST_TEXT = 10_000  # characters of one text


def read_prompt(kind: Kind, file: Path | None) -> str:
    """The prompt of a kind, or that of a file; `%s` is where the words are put.

    Errors: DistilvecError for a file that cannot be read or does not hold `%s` once.
    """
    path = file or Path(__file__).parent / "prompts" / f"{kind}.txt"
    with explained("--prompt", path):
        prompt = path.read_text(encoding="utf-8-sig")
    if (found := prompt.count("%s")) != 1:
        raise DistilvecError(
            "--prompt", f"{path} holds %s {found} times.", "Put it once, where the words are inserted."
        )
    return prompt


def fill_prompt(prompt: str, words: Sequence[str]) -> str:
    """The prompt with the words, one a line, in quotes as JSON has them."""
    return prompt.replace("%s", "\n".join(json.dumps(word, ensure_ascii=False) for word in words))


def read_answer(content: str, words: Sequence[str]) -> dict[str, list[str]]:
    """Texts by word, of the words whose texts have the right form: a list of texts that are not empty.

    Words are found as they were asked for, else by their letters without case and outer spaces. Other words of the
    answer are passed over. Empty for an answer without a JSON object; prose around it is passed over.
    """
    found = _json_object(content)
    loose = {key.casefold().strip(): value for key, value in found.items() if key not in words}
    given = {word: found.get(word, loose.get(word.casefold().strip())) for word in words}
    return {word: texts for word, values in given.items() if (texts := _texts(values))}


def _json_object(content: str) -> dict[str, Any]:
    """The first JSON object in a text that has a list for some key; empty if there is none."""
    decoder = json.JSONDecoder()
    start = content.find("{")
    while start >= 0:
        try:
            value, end = decoder.raw_decode(content, start)
        except (ValueError, RecursionError):
            end = start + 1
        else:
            if any(isinstance(texts, list) for texts in value.values()):
                return dict(value)
        start = content.find("{", end)
    return {}


def _texts(values: Any) -> list[str]:
    """The texts of a word, cleaned; empty for another form, and if one of them is not a text."""
    if not isinstance(values, list) or not all(isinstance(value, str) for value in values):
        return []
    clean = [clean_text(value.replace("\0", " "), LONGEST_TEXT + 1) for value in values]
    return [] if any(not text or len(text) > LONGEST_TEXT for text in clean) else clean


def distinct(words: Iterable[str], answers: Mapping[str, Sequence[str]]) -> tuple[dict[str, list[str]], int]:
    """The answers in the order of the words, and the number of texts that were left out as repeats of earlier ones.

    Texts are the same if they differ in case and white space alone. Words without a text left are left out.
    """
    seen, found, repeats = set[bytes](), dict[str, list[str]](), 0
    for word in words:
        for text in answers.get(word, ()):
            key = loose_key(text)
            repeats += key in seen
            if key not in seen:
                seen.add(key)
                found.setdefault(word, []).append(text)
    return found, repeats
