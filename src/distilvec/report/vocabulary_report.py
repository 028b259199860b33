"""Two tokenizers side by side (vocabulary/compare.py) as a picture, in words, as tables of the page, on a terminal and in Markdown."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from distilvec.core.escape import markdown
from distilvec.report.figure_style import BLUE, INK, figure_style, new_figure, shortened
from distilvec.report.page_cells import Cell, Table, figure, number, words
from distilvec.report.plain_tables import to_markdown

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Part = Mapping[str, Any]
SIDES = ("before", "after")
MOST_DRAWN = 24  # languages in the picture: those with most text
_BY_LANGUAGE = (
    ("tokens a word", "fertility", 2, 1),
    ("characters a token", "characters_per_token", 2, 1),
    ("length", "mean_length", 1, 1),
)
_SHARES = (("unknown, %", "unknown", 2, 100), ("bytes, %", "byte_tokens", 2, 100), ("cut, %", "cut", 1, 100))
_SAVED = {"tokens": "fewer tokens, %", "length": "shorter, %", "attention": "attention saved, %"}
_VOCABULARY = (
    ("tokens", "size", 0, 1), ("special tokens", "special", 0, 1), ("added tokens", "added", 0, 1), ("begin a word, %", "initial", 1, 100),
    ("go on a word, %", "inner", 1, 100), ("used by the texts, %", "used", 1, 100), ("whole words there, %", "whole_words", 1, 100),
)  # fmt: skip
_PARAMETERS = {
    "embedding": "token embeddings, millions",
    "backbone": "transformer without them, millions",
    "other": "other modules, millions",
    "total": "in all, millions",
}


def names(content: Part) -> dict[str, str]:
    """What to call the two tokenizers."""
    return dict(content.get("names") or {side: side for side in SIDES})


# -- in words and as tables ------------------------------------------------------------------------------------------


def note(content: Part) -> str:
    """By how much sequences got shorter, over all languages; "" without texts."""
    before, after = (_tokenizer(content, side) for side in SIDES)
    known = {
        name: found["saved"]["length"]
        for name, found in content["languages"].items()
        if found["saved"]["length"] is not None
    }
    if not known:
        return ""
    mean = float(np.mean(list(known.values())))
    text = f"With {after} sequences are {_shorter(mean)} than with {before}"
    if len(known) > 1:
        low, high = min(known, key=known.__getitem__), max(known, key=known.__getitem__)
        ends = f"from {_shorter(known[low])} ({low}) to {_shorter(known[high])} ({high})"
        text += f" on average over {len(known)} languages or sources, {ends}"
    limit = content.get("max_length")
    text += f". Lengths count special tokens{f' and end at {limit:,} tokens' if limit else ''}; attention costs their square."
    return " ".join([text, *(content.get("notes") or ())])


def tables(content: Part) -> dict[str, Table]:
    """The tables that have something to show: "lengths" and "shares" by language, "vocabulary", "parameters"."""
    found = {
        "lengths": _by_language(content, "length-table", "Tokens by language", _BY_LANGUAGE, _SAVED),
        "shares": _by_language(
            content, "token-share-table", "Unknown tokens, bytes and texts that are cut", _SHARES, {}
        ),
        "vocabulary": _side_by_side(content, "vocabulary-table", "The two vocabularies", "vocabulary", _VOCABULARY),
        "parameters": _parameter_table(content),
    }
    return {name: table for name, table in found.items() if table.rows}


def markdown_table(content: Part) -> str:
    """All tables in Markdown, one below the other, with the notes."""
    parts = [to_markdown(text_rows(content, table)) for table in tables(content).values()]
    return "\n".join([*parts, *(f"{markdown(text)}\n" for text in (content.get("notes") or ()))])


def text_rows(content: Part, table: Table) -> list[list[str]]:
    """A table as text, header first; what stands before and after by language is one column."""
    before = f", {names(content)['before']}"
    rows = [list(table.header), *([cell.text for cell in row] for row in table.rows)]
    for place in reversed([place for place, title in enumerate(table.header) if title.endswith(before)]):
        for row in rows:
            row[place : place + 2] = [
                row[place].removesuffix(before) if row is rows[0] else f"{row[place]} → {row[place + 1]}"
            ]
    return rows


def _by_language(content: Part, name: str, caption: str, measures: Any, saved: Mapping[str, str]) -> Table:
    """One row a language: each measure before and after, those that no language has left out."""
    languages, called = content["languages"], names(content)
    shown = [
        m for m in measures if any(found[side][m[1]] is not None for found in languages.values() for side in SIDES)
    ]
    rows = [
        [
            *words(language), figure(found["before"]["texts"], 0),
            *(figure(_times(found[side][key], scale), digits) for _, key, digits, scale in shown for side in SIDES),
            *(figure(found["saved"][key], 1) for key in saved),
        ]
        for language, found in languages.items()
    ]  # fmt: skip
    header = [
        "Language",
        "texts",
        *(f"{title}, {called[side]}" for title, *_ in shown for side in SIDES),
        *saved.values(),
    ]
    return Table(name, caption, header, rows)


def _side_by_side(content: Part, name: str, caption: str, part: str, measures: Any) -> Table:
    """One row a measure, one column a tokenizer."""
    rows = []
    for title, key, digits, scale in measures:
        values = [_times((content[side].get(part) or {}).get(key), scale) for side in SIDES]
        if any(value is not None for value in values):
            rows.append([*words(title), *(figure(value, digits) for value in values)])
    return Table(name, caption, ["Measure", *names(content).values()], rows)


def _parameter_table(content: Part) -> Table:
    """The paper's table 4: where the parameters are, and how many fewer."""
    before, after = (content[side].get("parameters") or {} for side in SIDES)
    rows = []
    for key, title in {"vocabulary": "vocabulary (rows of the table)", **_PARAMETERS}.items():
        values = [found[key] for found in (before, after) if found.get(key) is not None]
        if len(values) < 2 or not any(values):
            continue
        change = 100 * (values[1] / values[0] - 1) if values[0] else None
        cells = [
            figure(value, 0) if key == "vocabulary" else figure(value / 1e6, 1 if value >= 1e6 else 3)
            for value in values
        ]
        rows.append(
            [*words(title), *cells, figure(None) if change is None else Cell(number(change, 1, sign=True), change)]
        )
    return Table("parameter-table", "Parameters", ["Measure", *names(content).values(), "change, %"], rows)


# -- the picture -----------------------------------------------------------------------------------------------------


@figure_style()
def vocabulary_figure(content: Part) -> Figure:
    """Tokens a word, or tokens a text where words are not defined everywhere: two bars a language, before and after."""
    from matplotlib.colors import to_rgba

    languages, key, label = _drawn(content)
    picture = new_figure(0.95 + 0.36 * len(languages))
    axes = picture.subplots()
    places, called = np.arange(len(languages)), names(content)
    for side, offset, colour, hatch in (("before", -0.2, to_rgba(INK, 0.45), ""), ("after", 0.2, BLUE, "///")):
        values = [found[side][key] for found in languages.values()]
        bars = axes.barh(
            places + offset,
            values,
            height=0.36,
            label=called[side],
            color=colour,
            linewidth=0,
            hatch=hatch,
            edgecolor=to_rgba(INK, 0.45),
        )
        axes.bar_label(
            bars, [f"{value:.2f}" if key == "fertility" else f"{value:.1f}" for value in values], padding=2, fontsize=8
        )
    axes.set_yticks(places, [shortened(language, 24) for language in languages])
    axes.set(ylim=(len(languages) - 0.45, -0.55), xlabel=label)
    axes.margins(x=0.12)
    axes.grid(axis="y", visible=False)
    axes.tick_params(axis="y", length=0)
    picture.legend(loc="outside upper center", ncols=2)
    return picture


def describe_vocabulary(content: Part) -> str:
    """The same in words, with what is saved."""
    languages, key, label = _drawn(content)
    digits, parts = 2 if key == "fertility" else 1, []
    for language, found in languages.items():
        before, after = (f"{found[side][key]:.{digits}f}" for side in SIDES)
        parts.append(f"{language} from {before} to {after} (sequences {_shorter(found['saved']['length'] or 0.0)})")
    before, after = (_tokenizer(content, side) for side in SIDES)
    text = f"{label.capitalize()} with {before} and with {after}: {'; '.join(parts)}."
    left = sum(_length(found) is not None for found in content["languages"].values()) - len(languages)
    return text + (f" {left} further languages are in the table." if left else "")


def drawable(content: Part) -> bool:
    """Whether there is a language with texts."""
    return bool(_drawn(content)[0])


def _drawn(content: Part) -> tuple[dict[str, Part], str, str]:
    """The languages of the picture, the figure that is drawn and what to call it."""
    there = {
        language: found for language, found in (content.get("languages") or {}).items() if _length(found) is not None
    }
    most = sorted(there, key=lambda language: -there[language]["before"]["characters"])[:MOST_DRAWN]
    drawn = {language: found for language, found in there.items() if language in most}
    if all(found[side]["fertility"] is not None for found in drawn.values() for side in SIDES):
        return drawn, "fertility", "tokens a word"
    limit = content.get("max_length")
    return drawn, "mean_length", f"tokens a text, at most {limit:,}" if limit else "tokens a text"


def _length(found: Part) -> float | None:
    length: float | None = found["before"]["mean_length"]
    return length


def _tokenizer(content: Part, side: str) -> str:
    unnamed = {"before": "the old tokenizer", "after": "the new one"}
    return f"the {content['names'][side]}'s tokenizer" if content.get("names") else unnamed[side]


def _shorter(saved: float) -> str:
    return f"{saved:.1f} % shorter" if saved >= 0 else f"{-saved:.1f} % longer"


def _times(value: float | None, scale: float) -> float | None:
    return None if value is None else value * scale
