"""Two tokenizers compared (evaluation/vocabulary.py): tokens by language, the vocabularies, the parameters."""

from __future__ import annotations

from typing import Any

from distilvec.report.figures import dots_figure
from distilvec.report.section import Figure, Section, get, make_section
from distilvec.report.tables import Part, Table, make_table, number

SIDES = {"before": "before", "after": "after"}
MOST_DRAWN = 24  # languages in the figure: those with most text
BY_LANGUAGE: dict[str, tuple[str, int, float]] = {
    "tokens per word": ("fertility", 2, 1), "characters per token": ("characters_per_token", 2, 1),
    "length": ("mean_length", 1, 1), "unknown, %": ("unknown", 2, 100), "bytes, %": ("byte_tokens", 2, 100),
    "truncated, %": ("cut", 1, 100),
}  # fmt: skip
SAVED: dict[str, Any] = {
    "fewer tokens, %": ("saved.tokens", 1), "shorter, %": ("saved.length", 1),
    "attention saved, %": ("saved.attention", 1),
}  # fmt: skip
MEASURES: dict[str, Any] = {
    "Measure": "name", "tokens": ("vocabulary.size", 0), "special tokens": ("vocabulary.special", 0),
    "added tokens": ("vocabulary.added", 0), "initial tokens, %": ("vocabulary.initial", 1, 100),
    "continuation tokens, %": ("vocabulary.inner", 1, 100), "used by the texts, %": ("vocabulary.used", 1, 100),
    "whole words, %": ("vocabulary.whole_words", 1, 100), "rows of the embedding table": ("parameters.vocabulary", 0),
    "token embeddings, millions": ("parameters.embedding", 3, 1e-6),
    "transformer without token embeddings, millions": ("parameters.backbone", 3, 1e-6),
    "other modules, millions": ("parameters.other", 3, 1e-6), "parameters, millions": ("parameters.total", 3, 1e-6),
}  # fmt: skip


def section(report: Part) -> Section | None:
    """Return the figure and the tables of a student whose tokenizer is not its teacher's."""
    content = get(report, "vocabulary")
    if not content.get("languages"):
        return None
    figure, found = vocabulary_figure(content), tables(content)
    return make_section("Vocabulary", note(content), figure, *(found if figure is None else found[-1:]))


def tables(content: Part) -> list[Table]:
    """Return the table by language and the table of vocabularies and parameters."""
    names = content.get("names") or SIDES
    rows = [{"language": name, **found} for name, found in content["languages"].items()]
    columns: dict[str, Any] = {"Language": "language", "texts": ("before.texts", 0)}
    for title, (key, digits, factor) in BY_LANGUAGE.items():
        columns |= {f"{title}, {names[side]}": (f"{side}.{key}", digits, factor) for side in SIDES}
    found = make_table("length-table", "Tokens by language", rows, columns | SAVED)
    sides = [{**content[side], "name": names[side]} for side in SIDES]
    measures = make_table("vocabulary-table", "Vocabularies and parameters", sides, MEASURES, across=True)
    return [found, measures] if rows else [measures]


def note(content: Part) -> str:
    """Return the change of the sequences' mean length over all languages; "" without texts."""
    changes = (found["saved"]["length"] for found in content["languages"].values())
    saved = [change for change in changes if change is not None]
    if not saved:
        return ""
    mean, low, high = (number(value, 1) for value in (sum(saved) / len(saved), min(saved), max(saved)))
    limit = f", at most {content['max_length']:,} tokens" if content.get("max_length") else ""
    over = f" on average over {len(saved)} languages or sources ({low} % to {high} %)" if len(saved) > 1 else ""
    text = f"Sequences are shorter by {mean} %{over}."
    return " ".join([text, f"Lengths include special tokens{limit}.", *(content.get("notes") or ())])


def vocabulary_figure(content: Part) -> Figure | None:
    """Return the tokens per word, or per text where words are not defined everywhere; None for fewer than two."""
    languages = get(content, "languages")
    there = {name: found for name, found in languages.items() if found["before"]["mean_length"] is not None}
    if len(there) < 2:
        return None
    most = sorted(there, key=lambda name: -there[name]["before"]["characters"])[:MOST_DRAWN]
    words_known = all(there[name][side]["fertility"] is not None for name in most for side in SIDES)
    key, label = ("fertility", "tokens per word") if words_known else ("mean_length", "tokens per text")
    names = content.get("names") or SIDES
    points = [("", name, names[side], there[name][side][key]) for name in there if name in most for side in SIDES]
    return dots_figure("vocabulary", "Tokens by language", points, label, tables(content)[0])
