"""Two tokenizers side by side: bars, words, tables on the page, in Markdown and on a terminal; scripts without words, many languages."""

from __future__ import annotations

import pytest

from distilvec.cli.terminal import show_tokenizers
from distilvec.report import figures, vocabulary_report
from distilvec.report.page import render_page
from distilvec.report.vocabulary_report import describe_vocabulary, markdown_table, note, tables, vocabulary_figure
from distilvec.report.write import draw_comparison
from tests.report.comparison_sample import sample_comparison
from tests.report.report_sample import sample_report
from tests.report.test_page import check, section_titles
from tests.report.vocabulary_sample import LANGUAGES, sample_vocabulary

pytest.importorskip("matplotlib")


@pytest.fixture
def content():
    return sample_vocabulary()


def without_words(content):
    """The same with a language whose script has no words."""
    for side in ("before", "after"):
        content["languages"]["de"][side] |= {"words": None, "fertility": None}
    return {**content, "notes": ["Tokens a word are not defined for de."]}


def test_bars_are_the_tokens_a_word(content):
    figure = vocabulary_figure(content)
    (axes,) = figure.axes
    drawn = [[bar.get_width() for bar in container] for container in axes.containers]
    assert drawn == [
        [content["languages"][name][side]["fertility"] for name in LANGUAGES] for side in ("before", "after")
    ]
    assert [label.get_text() for label in axes.get_yticklabels()] == list(
        LANGUAGES
    ) and axes.get_xlabel() == "tokens a word"
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["teacher", "student"]
    assert [text.get_text() for text in axes.texts] == ["2.35", "1.31", "1.72", "1.52", "1.36", "1.93"]
    text = describe_vocabulary(content)
    assert (
        "tr from 2.35 to 1.52 (sequences 33.4 % shorter)" in text
        and "en from 1.31 to 1.36 (sequences 3.5 % longer)" in text
    )


def test_without_words_bars_are_tokens_a_text(content):
    (axes,) = vocabulary_figure(without_words(content)).axes
    assert axes.get_xlabel() == "tokens a text, at most 128" and axes.containers[0][0].get_width() == pytest.approx(
        37.25
    )
    table = tables(content)["lengths"]
    row = next(row for row in table.rows if row[0].text == "de")
    assert [cell.text for cell in row[2:4]] == ["–", "–"]  # noqa: RUF001
    assert note(without_words(content)).endswith("Tokens a word are not defined for de.")


def test_many_languages_are_cut_to_those_with_most_text(content):
    one = content["languages"]["tr"]
    many = {
        f"language {number}": {**one, "before": {**one["before"], "characters": 100 + number}} for number in range(30)
    }
    (axes,) = vocabulary_figure({**content, "languages": many}).axes
    assert [label.get_text() for label in axes.get_yticklabels()] == [f"language {number}" for number in range(6, 30)]
    assert describe_vocabulary({**content, "languages": many}).endswith("6 further languages are in the table.")
    assert len(tables({**content, "languages": many})["lengths"].rows) == 30


def test_nothing_is_cut_off_or_overlaps(content):
    for found in (content, without_words(sample_vocabulary())):
        figure = vocabulary_figure(found)
        figure.draw_without_rendering()
        (axes,) = figure.axes
        parts = [axes.xaxis.label, *axes.get_yticklabels(), *axes.texts, *figure.legends[0].get_texts()]
        boxes, whole = [part.get_window_extent() for part in parts], figure.bbox.padded(1)
        assert all(
            whole.x0 <= box.x0 and box.x1 <= whole.x1 and whole.y0 <= box.y0 and box.y1 <= whole.y1 for box in boxes
        )
        assert not any(
            one.shrunk(0.98, 0.9).overlaps(other) for place, one in enumerate(boxes) for other in boxes[place + 1 :]
        )


def test_tables(content):
    found = tables(content)
    assert list(found) == ["lengths", "shares", "vocabulary", "parameters"]
    lengths = found["lengths"]
    assert lengths.header[:4] == ["Language", "texts", "tokens a word, teacher", "tokens a word, student"]
    assert lengths.header[-3:] == ["fewer tokens, %", "shorter, %", "attention saved, %"]
    turkish = [cell.text for cell in lengths.rows[0]]
    assert turkish == ["tr", "2,000", "2.35", "1.52", "2.55", "3.95", "37.2", "24.8", "35.3", "33.4", "55.7"]
    assert [cell.text for cell in found["shares"].rows[0]] == [
        "tr",
        "2,000",
        "0.01",
        "0.01",
        "0.21",
        "0.21",
        "0.4",
        "0.4",
    ]
    parameters = [[cell.text for cell in row] for row in found["parameters"].rows]
    assert parameters[0][1:] == ["262,144", "131,072", "−50.0"] and parameters[1][1:] == ["196.6", "100.7", "−48.8"]  # noqa: RUF001
    assert parameters[-1] == ["in all, millions", "301.3", "205.4", "−31.8"]  # noqa: RUF001
    assert found["vocabulary"].rows[3][1].text == "61.0"


def test_what_is_not_known_is_left_out(content):
    del content["names"], content["before"]["parameters"], content["after"]["parameters"]
    for found in content["languages"].values():
        for side in ("before", "after"):
            found[side]["cut"] = None
    found = tables({**content, "max_length": None})
    assert "parameters" not in found and not any("cut" in title for title in found["shares"].header)
    assert found["vocabulary"].header == ["Measure", "before", "after"]
    empty = {**content, "languages": {}}
    assert (
        list(tables(empty)) == ["vocabulary"]
        and not vocabulary_report.drawable(empty)
        and not vocabulary_report.drawable({})
    )
    assert note(empty) == "" and note(content).startswith(
        "With the new one sequences are 6.2 % shorter than with the old tokenizer on"
    )


def test_markdown_and_terminal(content, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    text = markdown_table(without_words(content))
    assert (
        "| Language | texts | tokens a word | characters a token | length |" in text
        and "| tr | 2,000 | 2.35 → 1.52 |" in text
    )
    assert "| in all, millions | 301.3 |" in text and text.count("| --- |") == 4
    assert text.endswith("Tokens a word are not defined for de.\n")
    assert note(sample_vocabulary()).startswith(
        "With the student's tokenizer sequences are 6.2 % shorter than with the teacher's tokenizer on"
    )
    show_tokenizers(sample_vocabulary())
    printed = capsys.readouterr().out
    assert (
        "196.6" in printed
        and "attention saved" in printed
        and "2.35 → 1.52" in printed
        and "33.4 % shorter (tr)" in printed
    )


def test_the_page_has_a_section(content, tmp_path):
    report = {**sample_report(), "vocabulary": content}
    drawn = figures.all_figures({"vocabulary": content}, tmp_path)
    assert [figure["name"] for figure in drawn] == ["vocabulary"]
    titles = section_titles(check(render_page(report, [])))
    assert titles[titles.index("Vocabulary") - 1 :][:3] == ["Speed and size", "Vocabulary", "Experts"]
    page = render_page(report, drawn)
    section = page[page.index('<section id="vocabulary"') : page.index('<section id="experts"')]
    for part in (
        "length-table",
        "parameter-table",
        "figure-vocabulary",
        "vocabulary-table",
        "token-share-table",
        note(content),
    ):
        assert part in section.replace("&#39;", "'")


@pytest.mark.parametrize("empty", [None, {}, {"languages": {}, "before": {}, "after": {}}])
def test_an_empty_part_draws_nothing(empty, tmp_path):
    assert figures.all_figures({"vocabulary": empty}, tmp_path) == []
    assert "<svg" not in render_page({"vocabulary": empty}, [])


def test_a_sweep_over_vocabularies_is_drawn_against_parameters(tmp_path):
    comparison, sizes = sample_comparison(), (8192, 16_384, 32_768, 65_536)
    for row, size in zip(comparison["rows"], sizes, strict=True):
        row |= {"run": f"size={size}", "parameters": 14e6 + 384 * size}
    page = draw_comparison(tmp_path / "sweep.html", comparison).read_text(encoding="utf-8")
    svg = (tmp_path / "sweep-figures" / "parameters.svg").read_text(encoding="utf-8")
    assert (
        all(f"size={size}" in svg for size in sizes) and "parameters, millions" in svg and "figure-parameters" in page
    )
