"""The report page as text: whole, escaped, without empty parts, with headings and anchors in order."""

from __future__ import annotations

import itertools
import re
from html.parser import HTMLParser

import pytest

from distilvec.core.errors import DistilvecError
from distilvec.report.page import comparison_verdict, render_comparison, render_page, tiles, write_page
from distilvec.report.page_cells import figure, number
from distilvec.report.page_tables import scores_table
from distilvec.report.plain_tables import ABSENT
from tests.report.comparison_sample import sample_comparison
from tests.report.report_sample import sample_report

VOID = {"meta", "link", "br", "wbr", "hr", "img", "input"}
SVG = '<svg viewBox="0 0 4 4" role="img" aria-label="x"><path d="M0 0h4"/></svg>'
NAMES = ("scores", "compression", "margin_stsb", "speed", "training", "experts_gates", "sentences", "strange")
FIGURES = [
    {"name": name, "title": f"Title of {name}", "description": f"What {name} shows: a < b.", "svg": SVG}
    for name in NAMES
]


class Page(HTMLParser):
    """Tags in order with their attributes; fails on a tag that is closed wrongly."""

    def __init__(self, text):
        super().__init__()
        self.open, self.tags, self.texts = [], [], []
        self.feed(text)
        assert not self.open

    def handle_starttag(self, tag, attributes):
        self.tags.append((tag, dict(attributes)))
        self.texts.append("")
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attributes):
        self.tags.append((tag, dict(attributes)))
        self.texts.append("")

    def handle_endtag(self, tag):
        assert self.open.pop() == tag, (tag, self.getpos())

    def handle_data(self, data):
        if self.texts:
            self.texts[-1] += data

    def all(self, tag):
        return [
            (attributes, text.strip())
            for (name, attributes), text in zip(self.tags, self.texts, strict=True)
            if name == tag
        ]

    def headings(self):
        names = [name for name, _ in self.tags]
        return [
            (int(name[1]), text.strip())
            for name, text in zip(names, self.texts, strict=True)
            if re.fullmatch("h[1-6]", name)
        ]


def check(text):
    """What holds for every page, however little is in it."""
    page = Page(text)
    assert text.startswith("<!DOCTYPE html>") and page.all("html")[0][0]["lang"] == "en"
    ids = [attributes["id"] for _, attributes in page.tags if "id" in attributes]
    assert len(ids) == len(set(ids))
    links = [attributes["href"] for attributes, _ in page.all("a")]
    assert all(link.removeprefix("#") in ids for link in links) and links[0] == "#content"
    for _, attributes in page.tags:
        assert all(name in ids for name in attributes.get("aria-labelledby", "").split())
    levels = [level for level, _ in page.headings()]
    assert levels[0] == 1 and levels.count(1) == 1
    assert all(after <= before + 1 for before, after in itertools.pairwise(levels))
    assert all(text for _, text in page.headings())
    assert (
        not re.search(r'(?:src|href|action|data)="(?!#|data:)', text) and "@import" not in text and "url(" not in text
    )
    assert [len(page.all(tag)) for tag in ("main", "header", "footer")] == [1, 1, 1]
    return page


def section_titles(page):
    return [text for level, text in page.headings() if level == 2]


@pytest.fixture
def report():
    return sample_report()


def test_a_whole_report(report):
    page = check(render_page(report, FIGURES))
    assert section_titles(page) == [
        "Verdict", "What failed", "Use the student", "Scores", "In and out of domain", "Search results side by side",
        "Fewer dimensions, fewer bits", "Robustness margin", "Speed and size", "Vocabulary", "Experts", "Pictures of what was learnt",
        "Training", "Recipe", "Provenance",
    ]  # fmt: skip
    contents = [text for attributes, text in page.all("a")[1:]]
    assert contents == section_titles(page)[1:]
    pictures = [attributes["aria-label"] for attributes, _ in page.all("div") if attributes.get("role") == "img"]
    assert sorted(pictures) == sorted(figure["description"] for figure in FIGURES) and len(
        page.all("figcaption")
    ) == len(FIGURES)
    assert [text for _, text in page.all("code")][-2] == report["recipe"].strip()


@pytest.mark.parametrize("part", sorted(sample_report()))
@pytest.mark.parametrize("empty", ["missing", "null"])
def test_any_part_may_be_missing(report, part, empty):
    report.pop(part)
    if empty == "null":
        report[part] = None
    page = check(render_page(report, []))
    gone = {"failures": "What failed", "scores": "Scores", "averages": "In and out of domain", "agreement": "Search results side by side",
            "compression": "Fewer dimensions, fewer bits", "margin": "Robustness margin", "speed": "Speed and size",
            "record": "Use the student", "experts": "Experts", "vocabulary": "Vocabulary",
            "recipe": "Recipe", "verdict": "Verdict"}  # fmt: skip
    assert gone.get(part) not in section_titles(page)
    assert len(section_titles(page)) == 14 - (part in gone)


def test_an_empty_report():
    page = check(render_page({}, []))
    assert (
        section_titles(page) == []
        and page.headings() == [(1, "student")]
        and not page.all("nav")
        and not page.all("table")
    )


def test_parts_of_parts_may_be_missing(report):
    report["scores"] = {"student": report["scores"]["student"]}
    report["intervals"] = {"student": {"stsb": None}}
    report["agreement"] = {"cranfield": {"student": {"overlap@10": 0.5}}}
    report["speed"] = {"rows": [], "models": {"student": {"parameters": 10}, "teacher": None}, "ratio": {"query": None}}
    report["margin"] = {"points": [], "fits": {"average": {"margin": None}}}
    report["compression"] = {"widths": [], "precisions": [], "rows": []}
    report["averages"] = {"student": {"all": 1.0}}
    report["record"] = {"student": {}, "teacher": {"name": "t"}}
    page = check(render_page(report, []))
    titles = section_titles(page)
    assert (
        "Fewer dimensions, fewer bits" not in titles
        and "In and out of domain" not in titles
        and "Use the student" not in titles
    )
    assert "Robustness margin" in titles and "Speed and size" in titles


def test_what_users_wrote_is_escaped(report):
    evil = '<script>alert("x")</script>'
    report["name"] = report["recipe"] = report["verdict"]["text"] = evil
    report["failures"] = [{"task": evil, "column": evil, "message": evil}]
    report["agreement"]["cranfield"]["examples"][0]["query"] = evil
    report["scores"]["student"][0]["task"] = report["record"]["teacher"]["name"] = evil
    figures = [{**FIGURES[0], "title": evil, "description": f'"{evil}'}]
    text = render_page(report, figures)
    assert evil not in text and text.count("<script>") == 1 and text.count("</script>") == 1
    check(text)


def test_the_verdicts_numbers_are_the_reports(report):
    report["verdict"] |= {"document_speedup": 1.96, "within_interval": True, "tasks": 7}
    shown = {tile["key"]: (tile["value"], tile["shown"], tile["label"]) for tile in tiles(report["verdict"])}
    assert {key: value for key, (value, *_) in shown.items()} == {
        key: value
        for key, value in report["verdict"].items()
        if key not in ("text", "worst_task", "within_interval", "tasks")
    }
    assert (
        shown["worst_change"][1:] == ("\N{MINUS SIGN}3.5", "largest loss, on cranfield")
        and shown["document_speedup"][1] == "2.0"
    )
    assert tiles({"worst_change": 0.4, "worst_task": "stsb"})[0]["label"] == "worst change, on stsb"
    assert tiles({"retention": None}) == []


def test_the_scores_table(report):
    table = scores_table(report["scores"], report["intervals"])
    assert list(table.header) == [
        "Task",
        "teacher",
        "student",
        "student, change",
        "asymmetric",
        "asymmetric, change",
        "untrained",
    ]
    change = table.rows[0][3]
    assert (change.text, change.kind, round(change.value, 9)) == ("\N{MINUS SIGN}1.11*", "loss", -1.11)
    low, high, _ = report["intervals"]["student"]["stsb"]
    assert change.note == f"{number(low, sign=True)} to {number(high, sign=True)}"
    assert table.rows[3][3].kind == "same" and table.rows[3][3].text == "+0.32"
    assert [row[0].text for row in table.foot] == ["average", "% of the teacher"]
    assert table.foot[0][2].value == pytest.approx(report["averages"]["student"]["all"])
    assert table.foot[1][2].text == f"{report['verdict']['retention']:.1f}"
    del report["scores"]["student"][2]
    less = scores_table(report["scores"], {})
    assert less.rows[2][2].text == ABSENT == less.foot[0][2].text


def test_numbers():
    assert [number(value) for value in (1234.5, -0.2, -0.001, 0)] == ["1,234.50", "\N{MINUS SIGN}0.20", "0.00", "0.00"]
    assert [number(value, 1, True) for value in (2, -2, 0.01)] == ["+2.0", "\N{MINUS SIGN}2.0", "0.0"]
    assert [figure(value).value for value in (None, float("nan"), float("inf"))] == [None] * 3


def test_a_comparison():
    comparison = sample_comparison()
    text = render_comparison(comparison, FIGURES[:1])
    page = check(text)
    assert section_titles(page) == ["Verdict", "Leaderboard", "Figures", "Differences", "Notes"]
    assert page.headings()[0] == (1, "4 runs compared")
    assert "english &lt;two&gt;" in text and "english <two>" not in text
    board = text[text.index('id="leaderboard"') : text.index('id="figures-title"')]
    assert (
        board.count("<tr>") == 5
        and "± 0.21" in board
        and 'class="number best"' in board
        and "3 seeds, reference" in board
    )
    check(render_comparison({"rows": comparison["rows"][:1]}, []))
    plain = [{**row, "retention": row["retention"]["average"]} for row in comparison["rows"]]
    assert render_comparison({**comparison, "rows": plain}, FIGURES[:1]) == text  # retention may be the average's alone


def test_the_verdict_on_a_comparison():
    comparison = sample_comparison()
    assert comparison_verdict(comparison) == "best on average: cosine with 72.9, +0.50 points against english three"
    for item in comparison["differences"]:
        item["p"] = 0.3
    assert comparison_verdict(comparison).endswith("english three, which may be chance")
    comparison["rows"] = [row for row in comparison["rows"] if row["run"] != "cosine"]
    next(item for item in comparison["differences"] if (item["a"], item["task"]) == ("talas", "average"))["p"] = 0.01
    assert (
        comparison_verdict(comparison)
        == "best on average: english three with 72.4, +0.50 points against talas (p < 0.05)"
    )
    assert comparison_verdict({"rows": [{"run": "x", "mean": {}}]}) == ""


def test_a_figure_needs_a_description(report):
    with pytest.raises(DistilvecError, match="'scores' has no description"):
        render_page(report, [{**FIGURES[0], "description": " "}])


def test_writing(report, tmp_path):
    path = tmp_path / "new" / "report.html"
    assert write_page(report, FIGURES, path) == path and path.read_text(encoding="utf-8") == render_page(
        report, FIGURES
    )
    write_page(sample_comparison(), [], path)
    assert "4 runs compared" in path.read_text(encoding="utf-8") and list(path.parent.iterdir()) == [path]
