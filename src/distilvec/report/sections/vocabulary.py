"""Two tokenizers compared (vocabulary/compare.py): tokens by language, the vocabularies, the parameters."""

from __future__ import annotations

from typing import Any

from distilvec.report.figures import DotPoint, dots_figure
from distilvec.report.section import Figure, PageSection, make_section
from distilvec.report.tables import Table, lookup, make_table, number
from distilvec.report.values import Report, VocabularyChange

SIDES = ("before", "after")
MOST_DRAWN = 24  # languages in the figure: those with most text
BY_LANGUAGE: dict[str, tuple[str, int, float]] = {
    "tokens per word": ("fertility", 2, 1), "characters per token": ("characters_per_token", 2, 1),
    "tokens per text": ("mean_length", 1, 1), "unknown, %": ("unknown", 2, 100), "bytes, %": ("byte_tokens", 2, 100),
    "truncated, %": ("cut", 1, 100),
}  # fmt: skip
SAVED: dict[str, Any] = {
    "fewer tokens, %": ("language.saved.tokens", 1), "shorter, %": ("language.saved.length", 1),
    "attention saved, %": ("language.saved.attention", 1),
}  # fmt: skip
MEASURES: dict[str, Any] = {
    "Measure": "name", "tokens": ("side.vocabulary.size", 0), "special tokens": ("side.vocabulary.special", 0),
    "added tokens": ("side.vocabulary.added", 0), "initial tokens, %": ("side.vocabulary.initial", 1, 100),
    "continuation tokens, %": ("side.vocabulary.inner", 1, 100),
    "used by the texts, %": ("side.vocabulary.used", 1, 100),
    "whole words, %": ("side.vocabulary.whole_words", 1, 100),
    "rows of the embedding table": ("side.parameters.vocabulary", 0),
    "token embeddings, millions": ("side.parameters.embedding", 3, 1e-6),
    "transformer without token embeddings, millions": ("side.parameters.backbone", 3, 1e-6),
    "other modules, millions": ("side.parameters.other", 3, 1e-6),
    "parameters, millions": ("side.parameters.total", 3, 1e-6),
}  # fmt: skip


def section(report: Report) -> PageSection | None:
    """Return the figure and the tables of a student whose tokenizer is not its teacher's."""
    vocabulary = report.vocabulary
    if vocabulary is None or not vocabulary.languages:
        return None
    figure, tables_shown = vocabulary_figure(vocabulary), tokenizer_tables(vocabulary)
    if figure is not None:  # its data is the table by language
        tables_shown = tables_shown[-1:]
    return make_section("Vocabulary", note(vocabulary), figure, *tables_shown)


def tokenizer_tables(vocabulary: VocabularyChange) -> list[Table]:
    """Return the table by language, if there are texts, and the table of vocabularies and parameters."""
    names = vocabulary.names
    sides = [
        {"name": names["before"], "side": vocabulary.before},
        {"name": names["after"], "side": vocabulary.after},
    ]
    measures = make_table("vocabulary-table", "Vocabularies and parameters", sides, MEASURES, across=True)
    if not vocabulary.languages:
        return [measures]
    if len(vocabulary.languages) == 1:
        return [_one_language(vocabulary), measures]
    rows = [{"name": name, "language": language} for name, language in vocabulary.languages.items()]
    columns: dict[str, Any] = {"Language": "name", "texts": ("language.before.texts", 0)}
    for title, (key, digits, factor) in BY_LANGUAGE.items():
        for side in SIDES:
            columns[f"{title}, {names[side]}"] = (f"language.{side}.{key}", digits, factor)
    return [make_table("length-table", "Tokens by language", rows, columns | SAVED), measures]


def _one_language(vocabulary: VocabularyChange) -> Table:
    """Return the tokens of a single language: a row for each measure, a column for each tokenizer."""
    ((name, language),) = vocabulary.languages.items()
    sides = [{"name": vocabulary.names[side], "side": getattr(language, side)} for side in SIDES]
    columns: dict[str, Any] = {"Measure": "name", "tokens": ("side.tokens", 0)}
    for title, (key, digits, factor) in BY_LANGUAGE.items():
        columns[title] = (f"side.{key}", digits, factor)
    caption = f"Tokens of {language.before.texts:,} texts ({name})"
    return make_table("length-table", caption, sides, columns, across=True)


def note(vocabulary: VocabularyChange) -> str:
    """Return the change of the sequences' mean length over all languages; "" without texts."""
    lengths = [language.saved.length for language in vocabulary.languages.values()]
    saved = [length for length in lengths if length is not None]
    if not saved:
        return ""
    mean, low, high = (number(value, 1) for value in (sum(saved) / len(saved), min(saved), max(saved)))
    limit = f", at most {vocabulary.max_length:,} tokens" if vocabulary.max_length else ""
    shorter = sum(saved) >= 0
    if not shorter:
        mean, low, high = (number(-value, 1) for value in (sum(saved) / len(saved), max(saved), min(saved)))
    over = f" on average over {len(saved)} languages or sources ({low}% to {high}%)" if len(saved) > 1 else ""
    change = f"The texts are {mean}% {'shorter' if shorter else 'longer'} in tokens{over}."
    sentences = [change, f"Lengths include special tokens{limit}."]
    return " ".join([*sentences, *vocabulary.notes])


def vocabulary_figure(vocabulary: VocabularyChange) -> Figure | None:
    """Return the tokens per word, or per text where words are not defined everywhere; None for fewer than two."""
    languages = {
        name: language for name, language in vocabulary.languages.items() if language.before.mean_length is not None
    }
    if len(languages) < 2:
        return None
    most = sorted(languages, key=lambda name: -languages[name].before.characters)[:MOST_DRAWN]
    key, label = "fertility", "tokens per word"
    if any(lookup(languages[name], f"{side}.fertility") is None for name in most for side in SIDES):
        key, label = "mean_length", "tokens per text"
    points = []
    for name, language in languages.items():
        if name in most:
            for side in SIDES:
                points.append(DotPoint("", name, vocabulary.names[side], lookup(language, f"{side}.{key}")))
    return dots_figure("vocabulary", "Tokens by language", points, label, tokenizer_tables(vocabulary)[0])
