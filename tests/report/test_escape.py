"""Hostile text in every format: what a reader sees is the text, and nothing in it takes effect."""

from __future__ import annotations

import json

import pytest

from distilvec.core import escape
from distilvec.core.run_folder import RunFolder

HOSTILE = [
    "a | b",
    "`code` ``more``",
    "<script>alert(1)</script>",
    "[x](javascript:alert(1))",
    "![x](http://example.org/x.png)",
    "# heading #",
    "---",
    "- item",
    "12. item",
    "two\nlines\r\nand\u2028a third",
    "=cmd|' /C calc'!A0",
    "+1",
    "-1",
    "@x",
    "\tx",
    "&lt;b&gt;",
    "__bold__ *and* ~~gone~~ $x$",
    "back\\slash\\",
    "\u202eright to left",
    "\x1b[31mred\x07",
    "[red]text[/red]",
    "\ud800",
]


def shown(markdown_text: str) -> str:
    """What a reader sees of inline Markdown, by the parser that rich uses."""
    from markdown_it import MarkdownIt

    parser = MarkdownIt("commonmark").enable(["strikethrough", "table"])
    tokens = parser.parse(markdown_text)
    assert [token.type for token in tokens] == ["paragraph_open", "inline", "paragraph_close"], [
        token.type for token in tokens
    ]
    assert {child.type for child in tokens[1].children} <= {"text", "text_special"}, tokens[1].children
    return "".join(child.content for child in tokens[1].children)


@pytest.mark.parametrize("text", HOSTILE, ids=ascii)
def test_markdown_shows_the_text(text):
    assert shown(escape.markdown(text)) == escape.one_line(text)
    assert shown("before " + escape.markdown(text)) == "before " + escape.one_line(text)


@pytest.mark.parametrize("text", HOSTILE, ids=ascii)
def test_a_table_keeps_its_cells(text):
    from markdown_it import MarkdownIt

    cells = [escape.markdown_cell(text), escape.code_span(text, cell=True), "last"]
    html = (
        MarkdownIt("commonmark").enable(["table", "strikethrough"]).render(f"| {' | '.join(cells)} |\n|---|---|---|\n")
    )
    assert html.count("<th>") == 3 and "<th>last</th>" in html
    for tag in ("<script", "<a ", "<img", "<strong", "<em", "<s>", "<h1", "<hr", "<li"):
        assert tag not in html, html


@pytest.mark.parametrize("text", HOSTILE, ids=ascii)
def test_code_shows_the_text(text):
    from markdown_it import MarkdownIt

    (_, inline, _) = MarkdownIt("commonmark").parse("x " + escape.code_span(text))
    assert [child.type for child in inline.children] == ["text", "code_inline"] and inline.children[
        1
    ].content == escape.one_line(text)
    (fence,) = MarkdownIt("commonmark").parse(escape.code_block(f"{text}\n```\n# x", "python"))
    assert fence.type == "fence" and fence.info == "python" and fence.content.endswith("\n```\n# x\n")


def test_what_cannot_be_seen_is_written_out():
    assert escape.visible("a\u202eb\x1b[2J\tc\nd\r\ne\rf\ud800") == "a\\u202eb\\x1b[2J\tc\nd\ne\\rf\\ud800"
    assert escape.visible("\ufffe\uffff\ufffd") == "\\ufffe\\uffff\ufffd"
    assert escape.one_line(" a\t b\r\nc\x85d ") == "a b c d"
    assert escape.visible("Ünïcode, 中文, עברית") == "Ünïcode, 中文, עברית"


def test_quoted_reads_back():
    for text in ['say "hi"', "two\nlines", "```", "back\\slash"]:
        assert json.loads(escape.quoted(text)) == text
    assert eval(escape.quoted("a\u202eb\x7f")) == "a\u202eb\x7f"


def test_pictures_and_pages_of_hostile_names(tmp_path, figures):
    """Every SVG is well-formed, no page runs a script or hides a direction, in a run's report and in a comparison."""
    from xml.etree import ElementTree

    from distilvec.report.comparison import draw_comparison
    from distilvec.report.write import draw_report
    from tests.report.comparison_sample import sample_comparison
    from tests.report.report_sample import as_report, sample_report

    evil = '<script>alert(1)</script>]]>&"\x1b\u202e\ud800\ufffe\uffff $x$\nb'
    report = json.loads(json.dumps(sample_report()).replace("stsb", json.dumps(evil)[1:-1] + "stsb")) | {"name": evil}
    comparison = sample_comparison()
    for number, row in enumerate(comparison.rows):
        row.run = evil + str(number)
    comparison.reference, comparison.differences, comparison.notes = evil + "0", [], [evil]
    draw_report(RunFolder(tmp_path), as_report(report))
    draw_comparison(tmp_path / "comparison.html", comparison)
    pictures = list(tmp_path.rglob("*.svg"))
    assert len(pictures) > 10
    for path in pictures:
        ElementTree.parse(path)
    for path in [*pictures, tmp_path / "report.html", tmp_path / "comparison.html"]:
        text = path.read_text(encoding="utf-8")
        assert "<script>alert" not in text and "\u202e" not in text and "\x1b" not in text
