"""The report page as text: whole, escaped, without empty parts, with headings and anchors in order."""

from __future__ import annotations

import itertools
import json
import re
from dataclasses import replace
from html import escape, unescape
from html.parser import HTMLParser

import pytest

from distilvec.core.run_folder import RunFolder
from distilvec.evaluation.agreement import RankedQueries, RankedQuery
from distilvec.evaluation.overlap import Overlap, OverlapShare
from distilvec.report.comparison import Comparison, Row, draw_comparison, draw_sweep, render_comparison
from distilvec.report.html import render_page, tiles
from distilvec.report.scores import score_table
from distilvec.report.sections.queries import document_ids, query_table
from distilvec.report.tables import ABSENT, number, number_cell
from distilvec.report.values import Marks, Verdict
from distilvec.report.verdicts import make_verdict
from tests.report.comparison_sample import sample_comparison
from tests.report.report_sample import as_report, sample_judgement, sample_report

VOID = {"meta", "link", "br", "wbr", "hr", "img", "input"}
FIGURES = {
    "scores", "compression", "margin", "speed", "vocabulary", "training", "experts_training", "experts_gates", "texts",
}  # fmt: skip


def draw(figure):
    """An empty picture: these tests read the page."""
    return f'<svg viewBox="0 0 4 4" role="img" aria-label="{escape(figure.text)}"><path d="M0 0h4"/></svg>'


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


TITLES = [
    "Verdict", "Problems", "Scores", "overlap@10", "Use the student", "Search results side by side",
    "Texts that differ most", "Fewer dimensions, fewer bits", "Robustness margin", "Speed and size",
    "Vocabulary", "Experts", "Training", "Recipe and provenance",
]  # fmt: skip


def test_a_whole_report(report):
    page = check(render_page(as_report(report), draw))
    assert section_titles(page) == TITLES
    assert [text for attributes, text in page.all("a")[1:]] == TITLES
    drawn = {attributes["id"].removeprefix("figure-") for attributes, _ in page.all("figure")}
    assert drawn == FIGURES and len(page.all("figcaption")) == len(FIGURES)
    assert report["recipe"].strip() in [text for _, text in page.all("code")]


def test_every_figure_has_its_data_in_a_table_below_it(report):
    text = render_page(as_report(report), draw)
    for figure in re.findall(r"<figure .*?</figure>", text, flags=re.S):
        assert re.search(r'aria-label="[^"]{5,}\. The data is in the table below\."', figure)
        assert figure.index("<svg") < figure.index("<details>") < figure.index("<table") and figure.count("<tr>") > 2


@pytest.mark.parametrize("part", sorted(sample_report()))
@pytest.mark.parametrize("empty", ["missing", "null"])
def test_any_part_may_be_missing(report, part, empty):
    report.pop(part)
    if empty == "null":
        report[part] = None
    page = check(render_page(as_report(report), draw))
    gone = {"failures": "Problems", "scores": "Scores", "agreement": "Search results side by side", "verdict": "Verdict",  # noqa: E501
            "compression": "Fewer dimensions, fewer bits", "margin": "Robustness margin", "speed": "Speed and size",
            "record": "Use the student", "vocabulary": "Vocabulary", "overlap": "overlap@10",
            "texts": "Texts that differ most"}  # fmt: skip
    assert gone.get(part) not in section_titles(page)
    assert len(section_titles(page)) == len(TITLES) - (part in gone)


def test_an_empty_report():
    page = check(render_page(as_report({}), draw))
    assert section_titles(page) == [] and page.headings() == [(1, "student")]
    assert not page.all("nav") and not page.all("table")


def test_parts_of_parts_may_be_missing(report):
    report["scores"] = {"student": report["scores"]["student"]}
    report["intervals"] = {"student": {}}
    report["agreement"] = {"cranfield": {"models": {"student": {"overlap@10": 0.5, "kendall_tau": 0.4}}}}
    report["speed"] = {"rows": [], "models": {"student": {"parameters": 10}}, "ratio": {"query": None}}
    fit = {"teacher": 80.0, "slope": 1.0, "intercept": 0.0, "r2": 0.5, "p": 0.5}
    report["margin"] = {"points": [], "fits": {"average": fit}}
    report["compression"] = {"widths": [], "precisions": [], "rows": []}
    report["averages"] = {"student": {"all": 1.0}}
    report["record"] = {"teacher": {"name": "t"}}
    titles = section_titles(check(render_page(as_report(report), draw)))
    assert "Fewer dimensions, fewer bits" not in titles and "Use the student" not in titles
    assert "Robustness margin" in titles and "Speed and size" in titles


def test_what_users_wrote_is_escaped(report):
    evil = '<script>alert("x")</script>'
    report["name"] = report["recipe"] = report["verdict"]["text"] = evil
    report["failures"] = [{"task": evil, "column": evil, "message": evil}]
    report["agreement"]["patent_mini"]["queries"]["rows"][0]["query"] = evil
    listed = report["agreement"]["cranfield"]["queries"]
    listed["rows"][0]["query"] = listed["documents"]["100"] = evil
    report["verdict"]["advice"] = [evil]
    report["scores"]["student"][0]["task"] = report["record"]["teacher"]["name"] = evil
    text = render_page(as_report(report), draw)
    assert evil not in text and text.count("<script>") == 1 and text.count("</script>") == 1
    check(text)


def test_the_verdicts_numbers_are_the_reports(report):
    report["verdict"] |= {"documents_times_faster": 1.96, "within_interval": True, "tasks": 7}
    report["verdict"] |= {
        "megabytes": 69.6,
        "teacher_cost": 0.126,
        "teacher_tokens": 6_300_000,
        "teacher_requests": 410,
    }
    found = tiles(as_report(report).verdict, Marks())
    assert [[one.key for one in tile] for tile in found] == [
        ["retention", "asymmetric_retention"], ["times_faster", "documents_times_faster"],
        ["megabytes", "times_smaller"], ["worst_change"], ["teacher_cost"], ["teacher_tokens", "teacher_requests"],
    ]  # fmt: skip
    shown = {one.key: one for tile in found for one in tile}
    others = ("text", "worst_task", "within_interval", "tasks")
    assert {key: one.value for key, one in shown.items()} == {
        key: value for key, value in report["verdict"].items() if key not in others
    }
    assert shown["worst_change"].text == "\N{MINUS SIGN}3.5" and "cranfield" in shown["worst_change"].label
    assert shown["documents_times_faster"].text == "2.0" and tiles(Verdict(), Marks()) == []
    assert (shown["teacher_cost"].text, shown["teacher_tokens"].text) == ("0.13", "6,300,000")
    assert [[one.key for one in tile] for tile in tiles(Verdict(times_smaller=2.0), Marks())] == [["times_smaller"]]


def test_marks_are_those_of_the_recipe():
    verdict = Verdict(
        retention=93.0, retention_interval=(91.0, 95.0), overlap_among=0.85, overlap_among_interval=(0.7, 0.9)
    )

    def marked(marks):
        return {group[0].key: group[0].mark for group in tiles(verdict, marks)}

    assert marked(Marks())["retention"] == "fair: good if the interval is above 95%"
    assert marked(Marks(good=90, fair=70))["retention"] == "good: from 90% on"
    assert marked(Marks(good=99, fair=95))["retention"] == "poor: fair from 95% on"
    # "teacher-compatible" means the same for everyone
    assert marked(Marks(good=90, fair=70))["overlap_among"] == marked(Marks())["overlap_among"] != ""


def test_the_judgement_by_overlap(report):
    text = render_page(as_report(report), draw)
    section = text[text.index('<section id="overlap"') : text.index('<section id="use"')]
    shown = unescape(re.sub(r"<[^>]*>", "", section))
    start = "It finds 0.71 of the teacher's ten nearest among the teacher's vectors"
    assert f"Teacher-compatible: in part. {start}" in shown
    assert "its first 100 of 10,000 hold 98.7% of the teacher's top 10" in shown
    for words in ("[0.69, 0.73]", "+0.43", "[+0.41, +0.45]", "english_queries (120 queries)", "500 validation texts"):
        assert words in shown
    index = judgement(report, origin="index", student=Overlap(among=OverlapShare(0.9, 0.85, 0.95), among_wider=1.0))
    of_index = as_report(index)
    of_index.verdict = make_verdict(of_index.scores, record=of_index.record)
    shown = unescape(re.sub(r"<[^>]*>", "", render_page(of_index, draw)))
    assert "Use it: finds 0.90 of the index's ten nearest" in shown  # the decision comes first
    assert "500 stored texts that were not trained on" in shown and "in the index" in shown
    assert "Teacher-compatible: yes. It finds 0.90 of the index's ten nearest (overlap@10) [0.85, 0.95]" in shown
    alone = judgement(report, student=Overlap(alone=OverlapShare(0.5, 0.4, 0.6)), sources=(), trained=None)
    alone["record"]["teacher_compatible"] = False
    shown = unescape(re.sub(r"<[^>]*>", "", render_page(as_report(alone), draw)))
    assert "It finds 0.50 of the teacher's ten nearest with its own vectors (overlap@10) [0.40, 0.60]" in shown
    assert "Among the teacher's vectors" not in shown and "Trained texts" not in shown


def judgement(report, **changes):
    """The report with another judgement."""
    found = replace(sample_judgement(), start=None, gain=None, **changes).to_json()
    return {**report, "overlap": found, "record": {**report["record"], "overlap": found}}


def test_the_tiles_of_a_run_without_a_suite(report):
    found = tiles(make_verdict({}, record=as_report(report).record), Marks())
    assert [[one.key for one in tile] for tile in found] == [
        ["overlap_among", "overlap_alone"], ["megabytes", "times_smaller"],
    ]  # fmt: skip
    assert (found[0][0].text, found[0][1].text) == ("0.71", "0.58")
    assert found[0][0].label == "overlap@10 among the teacher's vectors"


def test_a_run_on_labels_alone_names_no_teacher(report):
    """Accuracy comes first, and nothing is compared with a model that nothing was learned from."""
    record = report["record"]
    record["teacher"]["unread"] = True
    scores = {"student": {"accuracy": 0.978}}
    record["supervised"] = {"task": "intents", "type": "classification", "rows": 9, "scores": scores}
    for part in ("scores", "intervals", "speed", "overlap"):
        report.pop(part, None)
        record.pop(part, None)
    shown = as_report({**report, "recipe": ""})
    shown.verdict = make_verdict({}, record=shown.record)
    (first, *_), *rest = tiles(shown.verdict, Marks())
    assert (first.text, first.label) == ("97.8", "accuracy on intents")
    assert [one.key for tile in rest for one in tile] == ["megabytes"]
    text = render_page(shown, draw)
    assert shown.verdict.text == "97.8% right on intents"
    assert '<p class="origin">method: redact, 2026-11-21</p>' in text
    section = text[text.index('<section id="record"') :]
    assert "all-MiniLM-L6-v2</dd>" not in section.replace("sentence-transformers/all-MiniLM-L6-v2</dd>", "")


def test_the_scores_table(report):
    shown = as_report(report)
    table = score_table(shown.scores, shown.intervals)
    assert list(table.header) == [
        "Task", "Metric", "teacher", "untrained", "student", "student, change", "asymmetric", "asymmetric, change",
    ]  # fmt: skip
    change = table.rows[0][5]
    assert (change.text, change.kind, round(change.value, 9)) == ("\N{MINUS SIGN}1.11*", "loss", -1.11)
    low, high, _ = report["intervals"]["student"]["stsb"]
    assert change.note == f"[{number(low, sign=True)}, {number(high, sign=True)}]"
    assert table.rows[3][5].kind == "same" and table.rows[3][5].text == "+0.32"
    assert [row[0].text for row in table.foot] == [
        *(f"{row}{domain}" for domain in (" in domain", " out of domain") for row in ("average", "% of teacher")),
        *(
            "average by type",
            "% of teacher, by type",
            "retrieval",
            "% of teacher, retrieval",
            "average",
            "% of teacher",
        ),
    ]
    assert table.foot[6][4].value == pytest.approx((45.56 + 59.94) / 2)
    assert table.foot[7][6].value == pytest.approx(100 * (46.48 + 60.71) / (47.21 + 61.18))
    for row, domain in zip([*table.foot[:4:2], table.foot[-2]], ("in", "out", "all"), strict=True):
        assert row[4].value == pytest.approx(report["averages"]["student"][domain], abs=1e-3)
    assert table.foot[-1][4].text == f"{report['verdict']['retention']:.1f}"
    del report["scores"]["student"][2]
    less = score_table(as_report(report).scores)
    assert less.rows[2][4].text == ABSENT == less.foot[-2][4].text and "student, change" not in less.header


def test_every_query_has_its_loss_and_both_rankings(report):
    del report["agreement"]["patent_mini"]
    listed = {"cranfield": as_report(report).agreement["cranfield"].queries}
    table, found = query_table(listed), document_ids(listed)
    assert list(table.header) == [
        "Query", "Task", "Result", "teacher", "student", "asymmetric", "student, change", "shared of 10",
    ]  # fmt: skip
    assert [(row[2].text, row[6].text, row[6].kind, row[7].text) for row in table.rows] == [
        ("lost", "\N{MINUS SIGN}40.0", "loss", "8"), ("same", "0.0", "same", "8"), ("gained", "+10.0", "gain", "8"),
    ]  # fmt: skip
    assert len(found["rows"]) == len(table.rows) and found["rows"][2] is None  # the last one has no ranking
    for one in found["rows"][:2]:
        assert list(one["found"]) == ["teacher", "student", "asymmetric"] and len(one["found"]["student"]) == 10
        assert {name for names in one["found"].values() for name in names} <= set(found["documents"][one["task"]])
    text = render_page(as_report(report), draw)
    assert "The 3 of 185 queries of cranfield that lose most" in text and "data-rankings='{&#39" not in text
    box = next(attributes for _, attributes in Page(text).tags if "data-rankings" in attributes)
    assert json.loads(box["data-rankings"]) == json.loads(json.dumps(document_ids(listed)))


def test_equal_queries_have_their_own_rankings():
    rows = [
        RankedQuery("same", {"teacher": 60, "student": score}, {}, found, [])
        for score, found in ((50, {"student": ["a"]}), (40, {"student": ["b"]}))
    ]
    found = document_ids({"task": RankedQueries(2, rows, {"a": "A", "b": "B"})})
    assert [row["found"]["student"] for row in found["rows"]] == [["b"], ["a"]]


def test_numbers():
    assert [number(value) for value in (1234.5, -0.2, -0.001, 0)] == ["1,234.50", "\N{MINUS SIGN}0.20", "0.00", "0.00"]
    assert [number(value, 1, True) for value in (2, -2, 0.01)] == ["+2.0", "\N{MINUS SIGN}2.0", "0.0"]
    assert [number(value, None) for value in (0.0001, -3)] == ["0.0001", "\N{MINUS SIGN}3"]
    assert [number_cell(value).value for value in (None, float("nan"), float("inf"))] == [None] * 3


def test_a_comparison():
    comparison = sample_comparison()
    text = render_comparison(comparison, draw)
    page = check(text)
    assert section_titles(page) == ["Verdict", "Leaderboard", "Figures", "Differences", "Notes"]
    assert page.headings()[0] == (1, "Comparison of 4 runs")
    assert "english &lt;two&gt;" in text and "english <two>" not in text
    board = text[text.index('id="leaderboard"') : text.index('id="figures-title"')]
    assert (
        board.count("<tr>") == 10
        and "Size, speed and training" in board
        and "± 0.21" in board
        and 'class="number best"' in board
        and "(reference)" in board
    )
    check(render_comparison(Comparison(comparison.rows[:1]), draw))
    assert "No winner yet: cosine leads english three by 0.50 points [\N{MINUS SIGN}0.20, 1.20]." in unescape(text)
    assert Comparison([Row("x")]).verdict == ""


def test_a_sweep_has_its_page(tmp_path, figures):
    assert (page := draw_sweep(RunFolder(tmp_path), sample_comparison())) == tmp_path / "comparison.html"
    assert "Pareto front" in page.read_text(encoding="utf-8") and RunFolder(tmp_path).figures.is_dir()


def test_writing(tmp_path, figures):
    path = tmp_path / "new" / "comparison.html"
    assert draw_comparison(path, sample_comparison()) == path and "Comparison of 4 runs" in path.read_text(
        encoding="utf-8"
    )
    assert {found.name for found in (tmp_path / "new" / "comparison-figures").iterdir()} == {
        f"{name}.{ending}" for name in ("megabytes", "milliseconds") for ending in ("svg", "png")
    }
