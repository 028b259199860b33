"""What report.json holds of a student whose tokenizer is not its teacher's: figures of a believable size, the same
every time.
"""

from __future__ import annotations

from typing import Any

LANGUAGES = {"tr": (2.35, 1.52), "en": (1.31, 1.36), "de": (1.72, 1.93)}  # tokens a word before and after
WORDS, TEXTS, LIMIT = 30_000, 2000, 128


def side(fertility: float, letters: int) -> dict[str, Any]:
    tokens, length = int(WORDS * fertility), 2 + WORDS * fertility / TEXTS
    return {
        "texts": TEXTS, "words": WORDS, "characters": letters * WORDS, "tokens": tokens, "fertility": tokens / WORDS,
        "characters_per_token": letters * WORDS / tokens, "unknown": 0.0001, "byte_tokens": 0.0021, "mean_length": length,  # noqa: E501
        "attention_cost": 1.4 * length**2, "cut": 0.004,
    }  # fmt: skip


def sample_vocabulary() -> dict[str, Any]:
    """A fresh copy that a test may change."""
    languages = {}
    for number, (name, values) in enumerate(LANGUAGES.items()):
        before, after = (side(value, 6 + number) for value in values)
        lengths = (("tokens", "tokens"), ("length", "mean_length"), ("attention", "attention_cost"))
        saved = {key: 100 * (1 - after[field] / before[field]) for key, field in lengths}
        languages[name] = {"before": before, "after": after, "saved": saved}
    shares = {"initial": 0.61, "inner": 0.39, "used": 0.54, "whole_words": 0.31}
    sizes = {"before": (262_144, 196_600_000), "after": (131_072, 100_663_296)}
    found: dict[str, Any] = {}
    for name, (size, embedding) in sizes.items():
        parameters = {"vocabulary": size, "embedding": embedding, "backbone": 100_000_000, "other": 4_718_592}
        parameters["total"] = embedding + 104_718_592
        found[name] = {"vocabulary": {"size": size, "special": 4, "added": 12, **shares}, "parameters": parameters}
    return {
        **found,
        "languages": languages,
        "max_length": LIMIT,
        "notes": [],
        "names": {"before": "teacher", "after": "student"},
    }
