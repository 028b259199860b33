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
from distilvec.core.errors import DistilvecError, about
from distilvec.data.corpus import loose_key
from distilvec.data.corpus_files import clean_text

MAX_CHARACTERS = 10_000  # of one text


def read_prompt(kind: Kind, file: Path | None) -> str:
    """The prompt of a kind, or that of a file; `%s` is where the words are put.

    Errors: DistilvecError for a file that cannot be read or does not hold `%s` once.
    """
    path = file or Path(__file__).parent / "prompts" / f"{kind}.txt"
    with about("--prompt", path):
        prompt = path.read_text(encoding="utf-8-sig")
    count = prompt.count("%s")
    if count != 1:
        fix = "Put it once, where the words are inserted."
        raise DistilvecError(f"{path} holds %s {count} times.", fix, key="--prompt")
    return prompt


def fill_prompt(prompt: str, words: Sequence[str]) -> str:
    """The prompt with the words, one a line, in quotes as JSON has them."""
    lines = [json.dumps(word, ensure_ascii=False) for word in words]
    return prompt.replace("%s", "\n".join(lines))


def read_answer(content: str, words: Sequence[str]) -> dict[str, list[str]]:
    """Texts by word, of the words whose texts have the right form: a list of texts that are not empty.

    A model may write a word in another case or with outer spaces. Other words of the answer are passed over. Empty for
    an answer without a JSON object; prose around it is passed over.
    """
    answer = _json_object(content)
    respelled = {key.casefold().strip(): value for key, value in answer.items() if key not in words}
    texts_by_word = {}
    for word in words:
        texts = _texts(answer[word] if word in answer else respelled.get(word.casefold().strip()))
        if texts:
            texts_by_word[word] = texts
    return texts_by_word


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
    texts = [clean_text(value.replace("\0", " "), MAX_CHARACTERS + 1) for value in values]
    if any(not text or len(text) > MAX_CHARACTERS for text in texts):
        return []
    return texts


def distinct_texts(words: Iterable[str], answers: Mapping[str, Sequence[str]]) -> tuple[dict[str, list[str]], int]:
    """The answers in the order of the words, and the number of texts that were left out as repeats of earlier ones.

    Texts are the same if they differ in case and white space alone. Words without a text left are left out.
    """
    seen = set[bytes]()
    texts_by_word: dict[str, list[str]] = {}
    repeats = 0
    for word in words:
        for text in answers.get(word, ()):
            key = loose_key(text)
            if key in seen:
                repeats += 1
            else:
                seen.add(key)
                texts_by_word.setdefault(word, []).append(text)
    return texts_by_word, repeats
