"""Two tokenizers side by side: bars, words, tables on the page, in Markdown and on a terminal; scripts without words,
many languages.
"""

from __future__ import annotations

import pytest

from distilvec.cli.terminal import show_tokenizers
from distilvec.report.comparison import draw_comparison
from distilvec.report.html import render_page
from distilvec.report.json_values import from_json
from distilvec.report.sections import vocabulary as shown
from distilvec.report.values import VocabularyChange
from tests.report.comparison_sample import sample_comparison
from tests.report.report_sample import as_report, sample_report
from tests.report.test_page import check, draw, section_titles
from tests.report.vocabulary_sample import LANGUAGES, sample_vocabulary

pytest.importorskip("matplotlib")


def note(content):
    return shown.note(from_json(VocabularyChange, content))


def tables(content):
    return shown.tokenizer_tables(from_json(VocabularyChange, content))


def vocabulary_figure(content):
    return shown.vocabulary_figure(from_json(VocabularyChange, content))


@pytest.fixture
def content():
    return sample_vocabulary()


def without_words(content):
    """The same with a language whose script has no words."""
    for side in ("before", "after"):
        content["languages"]["de"][side] |= {"words": None, "fertility": None}
    return {**content, "notes": ["Tokens a word are not defined for de."]}


def drawn(content):
    """The figure's axes: name of its x axis, labels of its rows, and x by tokenizer."""
    (axes,) = vocabulary_figure(content).draw().axes
    return (
        axes.get_xlabel(),
        [label.get_text() for label in axes.get_yticklabels()],
        [c[0].get_xdata()[0] for c in axes.containers],
    )


def test_points_are_the_tokens_a_word(content):
    label, languages, values = drawn(content)
    assert label == "tokens per word" and languages == list(LANGUAGES)
    assert values == [
        content["languages"][name][side]["fertility"] for name in LANGUAGES for side in ("before", "after")
    ]


def test_without_words_points_are_tokens_a_text(content):
    label, _, values = drawn(without_words(content))
    assert label == "tokens per text" and values[0] == pytest.approx(37.25)
    row = next(row for row in tables(content)[0].rows if row[0].text == "de")
    assert [cell.text for cell in row[2:4]] == ["–", "–"]  # noqa: RUF001
    assert note(without_words(content)).endswith("Tokens a word are not defined for de.")


def test_many_languages_are_cut_to_those_with_most_text(content):
    one = content["languages"]["tr"]
    many = {
        f"language {number}": {**one, "before": {**one["before"], "characters": 100 + number}} for number in range(30)
    }
    assert drawn({**content, "languages": many})[1] == [f"language {number}" for number in range(6, 30)]
    assert len(vocabulary_figure({**content, "languages": many}).table.rows) == 30


def test_tables(content):
    lengths, measures = tables(content)
    assert lengths.header[:4] == ["Language", "texts", "tokens per word, teacher", "tokens per word, student"]
    assert lengths.header[-3:] == ["fewer tokens, %", "shorter, %", "attention saved, %"]
    turkish = [cell.text for cell in lengths.rows[0]]
    assert turkish[:8] == ["tr", "2,000", "2.35", "1.52", "2.55", "3.95", "37.2", "24.8"] and turkish[-3:] == [
        "35.3",
        "33.4",
        "55.7",
    ]
    rows = {row[0].text: [cell.text for cell in row[1:]] for row in measures.rows}
    assert rows["tokens"] == rows["rows of the embedding table"] == ["262,144", "131,072"]
    assert rows["parameters, millions"] == ["301.319", "205.382"] and rows["initial tokens, %"][0] == "61.0"


def test_what_is_not_known_is_left_out(content):
    del content["names"], content["before"]["parameters"], content["after"]["parameters"]
    for found in content["languages"].values():
        for side in ("before", "after"):
            found[side]["cut"] = None
    lengths, measures = tables({**content, "max_length": None})
    assert not any("truncated" in title for title in lengths.header) and measures.header == [
        "Measure",
        "before",
        "after",
    ]
    assert not any("parameters" in row[0].text for row in measures.rows)
    empty = {**content, "languages": {}}
    assert [table.name for table in tables(empty)] == ["vocabulary-table"]
    assert vocabulary_figure(empty) is None and note(empty) == "" and "6.2% shorter" in note(content)


def test_on_a_terminal(content, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    show_tokenizers(from_json(VocabularyChange, content))
    printed = capsys.readouterr().out
    assert all(text in printed for text in ("301.319", "attention", "2.35", "33.4%"))


def test_the_page_has_a_section(content):
    report = {**sample_report(), "vocabulary": content}
    page = render_page(as_report(report), draw)
    titles = section_titles(check(page))
    assert titles[titles.index("Vocabulary") - 1 :][:3] == ["Speed and size", "Vocabulary", "Experts"]
    part = page[page.index('<section id="vocabulary"') : page.index('<section id="experts"')]
    assert all(text in part for text in ("length-table", "figure-vocabulary", "vocabulary-table", note(content)))


def test_an_empty_part_draws_nothing(content):
    for empty in (None, {**content, "languages": {}}):
        assert shown.section(as_report({"vocabulary": empty})) is None


def test_a_sweep_over_vocabularies_is_drawn_against_parameters(tmp_path, figures):
    comparison, sizes = sample_comparison(), (8192, 16_384, 32_768, 65_536)
    for row, size in zip(comparison.rows, sizes, strict=True):
        row.run, row.parameters, row.megabytes = f"size={size}", 14e6 + 384 * size, None
    page = draw_comparison(tmp_path / "sweep.html", comparison).read_text(encoding="utf-8")
    svg = (tmp_path / "sweep-figures" / "parameters.svg").read_text(encoding="utf-8")
    assert (
        all(f"size={size}" in svg for size in sizes) and "parameters, millions" in svg and "figure-parameters" in page
    )
