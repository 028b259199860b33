"""The report page in headless Chromium, opened from disk: alone, legible, operable by keyboard, in both colour schemes."""  # noqa: E501

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path

import pytest
from axe import violations

from distilvec.core.run_folder import RunFolder
from distilvec.evaluation.overlap import Overlap, OverlapShare
from distilvec.report.figures import write_figure
from distilvec.report.html import render_page
from distilvec.report.tables import number
from distilvec.report.verdicts import make_verdict
from tests.report.comparison_sample import sample_comparison
from tests.report.report_sample import as_report, sample_judgement, sample_report

CHROMIUM = Path("/usr/bin/chromium")
ARGUMENTS = [
    "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync", "--renderer-process-limit=1",
    "--host-resolver-rules=MAP * ~NOTFOUND",
]  # fmt: skip
JOBS = {
    "index": "overlap_among",
    "corpus": "overlap_among",
    "labels": "task_score",
    "transplant": "megabytes",
}  # first tile
PAGES, WIDTHS, SCHEMES = ("report", "comparison"), (400, 1400), ("light", "dark")
LOOKS = [(page, *look) for page in PAGES for look in zip(WIDTHS, SCHEMES, strict=True)]  # widths have no colours
CONTRAST = Path(__file__).with_name("contrast.js").read_text(encoding="utf-8")
MISTAKES = {
    "wrong": 2, "rows": 90,
    "confused": [{"class": "card lost", "taken_for": "card <late>", "rows": 2}],
    "texts": [{"text": "where is it?", "class": "card lost", "taken_for": "card <late>", "probability": 0.9}],
    "classes": [],
}  # fmt: skip
OUTSIDE = """[...document.querySelectorAll('body *:not(svg *)')].filter(
    (part) => part.getBoundingClientRect().right > innerWidth + 1 && !part.closest('.scroll, pre, nav') && part.checkVisibility()
).map((part) => part.outerHTML.slice(0, 80))"""  # noqa: E501

CUT_TILES = """[...document.querySelectorAll('.tiles > div')].filter((tile) =>
    tile.getBoundingClientRect().right > tile.parentElement.getBoundingClientRect().right + 1
    || tile.scrollWidth > tile.clientWidth + 1
).map((tile) => tile.textContent)"""

if os.environ.get("DISTILVEC_REQUIRE_CHROMIUM") != "1":
    pytest.importorskip("playwright")
    pytest.importorskip("matplotlib")
    if not CHROMIUM.exists():
        pytest.skip(
            f"{CHROMIUM} is not installed; DISTILVEC_REQUIRE_CHROMIUM=1 makes this a failure", allow_module_level=True
        )


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """report.html with report.json and real figures, comparison.html."""
    from distilvec.report import comparison, write

    folder, report = tmp_path_factory.mktemp("pages"), as_report(sample_report())
    report.verdict = make_verdict(report.scores, report.intervals["student"], report.speed, report.record)
    report.verdict.vocabulary_tokens, report.verdict.vocabulary_tokens_before = (
        27_895,
        30_527,
    )  # with everything a verdict can have
    run = RunFolder(folder)
    run.make()
    report.write(run)
    with pytest.MonkeyPatch.context() as patch:
        for module in (write, comparison):
            patch.setattr(module, "write_figure", write_figure)
        write.draw_report(run, report)
        comparison.draw_comparison(folder / "comparison.html", sample_comparison())
    drawn = {}  # jobs have figures in common

    def draw(figure):
        if repr(figure) not in drawn:
            drawn[repr(figure)] = write_figure(figure, None)
        return drawn[repr(figure)]

    for name, job in jobs().items():
        page = render_page(job, draw)
        (folder / f"{name}.html").write_text(page, encoding="utf-8")
    return folder


def jobs():
    """A report of each job but that of a suite, which is `sample_report`."""
    samples = {name: sample_report() for name in JOBS}
    index = {"origin": "index", "student": Overlap(among=OverlapShare(0.9, 0.85, 0.95), among_wider=1.0)}
    judgement = replace(sample_judgement(), start=None, gain=None, trained=None, sources=(), **index).to_json()
    samples["index"]["record"]["overlap"] = samples["index"]["overlap"] = judgement
    for part in ("scores", "intervals", "agreement", "compression"):
        del samples["corpus"][part]
    scores = {"student": {"accuracy": 0.978}, "teacher": {"accuracy": 0.981}}
    supervised = {"task": "intents", "type": "classification", "rows": 90, "scores": scores}
    samples["labels"]["record"]["supervised"] = supervised
    samples["labels"]["mistakes"] = MISTAKES
    for part in ("scores", "intervals", "overlap", "agreement", "compression", "margin"):
        samples["labels"].pop(part, None)
        samples["labels"]["record"].pop(part, None)
    samples["transplant"] = {"name": "turkish", "vocabulary": samples["transplant"]["vocabulary"]}
    reports = {name: as_report(sample) for name, sample in samples.items()}
    for name, report in reports.items():
        report.verdict = make_verdict(report.scores, None, report.speed, report.record, report.vocabulary)
        if name == "transplant":
            report.verdict.megabytes = 44.0
    return reports


@pytest.fixture(scope="module")
def browser():
    """Chromium; Playwright talks to it through pipes, so no socket is needed."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=ARGUMENTS, timeout=600_000)
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def context(browser):
    """What pages with scripts are opened in: a new one would start a process."""
    return browser.new_context(offline=True, permissions=["clipboard-read", "clipboard-write"])


@pytest.fixture
def opened(browser, context, folder):
    """Opens a page; at the end no message was on the console, nothing failed, and nothing but files and data was asked
    for.
    """
    pages, said, asked = [], [], []

    def open_page(name="report", width=1400, scheme="light", motion="no-preference", script=True):
        page = (context if script else browser.new_context(offline=True, java_script_enabled=False)).new_page()
        page.set_default_timeout(600_000)  # ms; the default, 30 s, is short where other work runs
        pages.append(page)
        page.set_viewport_size({"width": width, "height": 900})
        page.emulate_media(color_scheme=scheme, reduced_motion=motion)
        page.on("console", lambda message: said.append(message.text))
        page.on("pageerror", lambda error: said.append(str(error)))
        page.on("request", lambda request: asked.append(request.url))
        page.goto((folder / f"{name}.html").as_uri())
        return page

    yield open_page
    for page in pages:
        page.close()
    assert said == [] and asked
    assert [url for url in asked if not url.startswith(("file:", "data:"))] == []


def unfold(page):
    page.evaluate("document.querySelectorAll('details').forEach((part) => { part.open = true; })")


@pytest.mark.parametrize(("name", "width", "scheme"), LOOKS)
def test_it_fits_and_is_legible(opened, name, width, scheme):
    page = opened(name, width, scheme)
    for _ in range(2):  # folded, then unfolded
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        assert page.evaluate(OUTSIDE) == []
        found = page.evaluate(CONTRAST)
        assert len(found) > 40 and [entry for entry in found if entry["ratio"] < 4.5] == []
        unfold(page)
    ground = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert (sum(int(part) for part in ground[4:-1].split(",")) > 600) == (scheme == "light")


@pytest.mark.parametrize("name", ["report", *JOBS])
def test_no_figure_of_the_verdict_is_cut(opened, name):
    """Seven of them stood in one row, and the last was outside of it below 1,300 pixels."""
    page = opened(name)
    count = page.locator(".tiles > div").count()
    assert count == (7 if name == "report" else count) and count > 0
    for width in (400, 800, 1024, 1200, 1400):
        page.set_viewport_size({"width": width, "height": 900})
        assert page.evaluate(CUT_TILES) == [], width


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("name", [*PAGES, *JOBS])
def test_axe_finds_nothing(opened, name, scheme):
    page = opened(name, scheme=scheme)
    unfold(page)
    page.evaluate("document.querySelectorAll('tr:nth-child(n + 9)').forEach((row) => row.remove())")  # more of the same
    assert violations(page, of_colours=scheme == "dark") == []


@pytest.mark.parametrize("name", JOBS)
def test_a_job_fits_a_phone_and_begins_with_what_it_is_about(opened, name):
    page = opened(name, width=400)
    assert page.evaluate("document.documentElement.scrollWidth") <= 400
    assert page.evaluate(OUTSIDE) == []
    assert page.locator("#verdict dl data").first.get_attribute("data-key") == JOBS[name]


@pytest.mark.parametrize("name", PAGES)
def test_every_picture_has_a_text(opened, name):
    page = opened(name)
    labels = page.eval_on_selector_all(
        "img, svg, [role=img]", "(all) => all.map((one) => one.getAttribute('aria-label') || one.alt || '')"
    )
    figures = page.locator("figure")
    assert figures.count() == len(labels) == (9 if name == "report" else 2) and all(len(label) > 10 for label in labels)
    for number_ in range(figures.count()):
        assert figures.nth(number_).locator("figcaption strong").inner_text().strip()
        assert figures.nth(number_).locator("svg").bounding_box()["width"] > 250
        figures.nth(number_).locator("summary").click()
        assert figures.nth(number_).locator("tbody tr").first.is_visible()


def test_the_verdicts_numbers_are_report_jsons(opened, folder):
    page, verdict = opened(), json.loads(RunFolder(folder).report.read_text(encoding="utf-8"))["verdict"]
    shown = page.locator("#verdict data")
    keys = [shown.nth(place).get_attribute("data-key") for place in range(shown.count())]
    assert set(keys) == {
        "megabytes",
        "retention",
        "asymmetric_retention",
        "retrieval",
        "asymmetric_retrieval",
        "times_faster",
        "documents_times_faster",
        "times_smaller",
        "worst_change",
        "overlap_among",
        "overlap_alone",
        "vocabulary_tokens",
        "vocabulary_tokens_before",
    }
    for place, key in enumerate(keys):
        assert float(shown.nth(place).get_attribute("value")) == verdict[key]
        digits = 2 if key.startswith("overlap") else 0 if key.startswith("vocabulary") else 1
        assert shown.nth(place).inner_text() == number(verdict[key], digits, sign=key == "worst_change")
    first, rest = verdict["text"].split("; ", 1)
    assert page.locator("p.verdict").inner_text() == first[0].upper() + first[1:] + "."
    assert page.locator("p.verdict + p").inner_text() == rest[0].upper() + rest[1:] + "."
    box = page.locator("#verdict").bounding_box()
    assert box["y"] + box["height"] < 900
    assert verdict["worst_task"] in page.locator("#verdict dl").inner_text()


def column(page, table, place):
    return page.eval_on_selector_all(
        f"#{table} tbody tr", f"(rows) => rows.map((row) => row.cells[{place}].innerText.split('\\n')[0])"
    )


def test_sorting_by_click_and_by_keyboard(opened):
    page = opened()
    header, foot = page.locator("#score-table thead th"), column(page, "score-table", 0)
    student = [score["value"] for score in sample_report()["scores"]["student"]]
    assert page.locator("#score-table [aria-sort]").count() == 0
    header.nth(4).locator("button").click()
    assert header.nth(4).get_attribute("aria-sort") == "descending"
    assert [float(text) for text in column(page, "score-table", 4)] == sorted(student, reverse=True)
    assert page.locator("#status").inner_text() == "Sorted by student, descending."
    header.nth(4).locator("button").click()
    assert header.nth(4).get_attribute("aria-sort") == "ascending"
    assert [float(text) for text in column(page, "score-table", 4)] == sorted(student)
    header.nth(0).locator("button").focus()
    page.keyboard.press("Enter")
    assert (
        header.nth(0).get_attribute("aria-sort") == "ascending"
        and page.locator("#score-table [aria-sort]").count() == 1
    )
    assert column(page, "score-table", 0) == sorted(foot)
    page.keyboard.press("Tab")
    page.keyboard.press("Space")
    assert header.nth(1).get_attribute("aria-sort") == "ascending"
    assert page.eval_on_selector_all("#score-table tfoot tr", "(rows) => rows.map((row) => row.cells[0].innerText)")[-2:] == [  # noqa: E501
        "average", "% of teacher",
    ]  # fmt: skip


def test_what_is_not_known_is_sorted_last(opened):
    page = opened("comparison")
    titles = page.locator("#cost-table thead th").all_inner_texts()
    place = titles.index("texts/s")
    for _ in range(2):
        page.locator("#cost-table thead button").nth(place).click()
        assert column(page, "cost-table", place)[-1] == "–"  # noqa: RUF001 - the dash for "no value"
    minus = page.locator("#difference-table thead button").nth(3)
    minus.click()
    minus.click()
    values = [float(text.replace("\N{MINUS SIGN}", "-").rstrip("*")) for text in column(page, "difference-table", 3)]
    assert values == sorted(values) and values[0] < 0 < values[-1]


def test_copying(opened, folder):
    page = opened()
    page.locator('[data-copy="code-recipe"]').click()
    page.wait_for_function("document.getElementById('status').textContent === 'Copied.'")
    assert page.evaluate("navigator.clipboard.readText()") == sample_report()["recipe"]


def test_search_filter_and_rankings(opened):
    page = opened()
    rows, bar = page.locator("#text-table tbody tr:visible"), page.locator("#texts .filter")
    bar.locator("input").fill("text 1")
    assert rows.count() == 11 and page.locator("#status").inner_text() == "11 of 20 rows"
    bar.locator("select").select_option("<qa>")
    assert rows.count() == 6
    box = page.locator("#queries .explore")
    assert box.locator(".panel h3").inner_text() == "listed query 1?"
    box.locator("tbody button").nth(2).focus()  # both tasks have a first query
    page.keyboard.press("Enter")
    assert (
        box.locator(".panel h3").inner_text() == "listed query 2?" and box.locator("[aria-pressed=true]").count() == 1
    )
    assert box.locator(".panel h4").all_inner_texts() == ["teacher", "student", "asymmetric"]
    assert box.locator(".panel ol").nth(1).locator("li").count() == 10 and box.locator(".relevant").count() > 0


def test_dimensions_and_precision(opened):
    page, report = opened(), sample_report()
    task, width, precision = (page.locator("#compression .figures > .filter select").nth(place) for place in range(3))
    task.select_option("stsb")
    width.select_option("128")
    precision.select_option("int8 vectors")
    row = next(
        row for row in report["compression"]["rows"]
        if (row["task"], row["column"], row["width"], row["precision"]) == ("stsb", "student", 128, "int8")
    )  # fmt: skip
    shown = page.locator("#compression output").inner_text()
    assert shown.startswith(f"Score {row['value']:.1f}, ") and "128 bytes a vector instead of 1,536" in shown


def test_dimensions_of_a_student_narrower_than_its_teacher(browser, tmp_path):
    from distilvec.report.write import draw_report

    report = sample_report()
    rows = report["compression"]["rows"]
    report["compression"]["widths"].append(1024)
    report["compression"]["rows"] += [
        {**row, "width": 1024} for row in rows if row["width"] == 384 and row["column"] == "teacher"
    ]
    draw_report(RunFolder(tmp_path), as_report(report))
    page = browser.new_page()
    page.goto((tmp_path / "report.html").as_uri())
    shown = page.locator("#compression output").inner_text()
    assert shown.startswith("Score ") and "instead of 1,536" in shown and "% of the teacher's" in shown


def test_keyboard_and_focus(opened):
    page = opened()
    page.keyboard.press("Tab")
    skip = page.locator(":focus")
    assert skip.inner_text() == "Skip to the content" and skip.bounding_box()["y"] >= 0
    page.keyboard.press("Enter")
    assert page.evaluate("document.activeElement.id") == "content"
    seen = set()
    for _ in range(25):
        page.keyboard.press("Tab")
        seen.add(
            page.evaluate(
                "document.activeElement.tagName + ' ' + getComputedStyle(document.activeElement).outlineStyle"
            )
        )
    assert {"BUTTON solid", "PRE solid", "DIV solid"} <= seen and all(entry.endswith(" solid") for entry in seen)


def test_without_script_nothing_is_dead(opened):
    page = opened(script=False)
    assert page.locator("button:visible").count() == 0 and page.locator("#score-table tbody tr").count() == 7
    assert "%" in page.locator("p.verdict").inner_text()
    assert page.locator("#query-table tbody tr").count() == 6  # of two tasks
    assert page.locator("input:visible, select:visible").count() == 0


def test_on_paper_and_without_motion(opened):
    page = opened(scheme="dark", motion="reduce")
    assert page.evaluate("getComputedStyle(document.documentElement).scrollBehavior") == "auto"
    page.emulate_media(media="print")
    assert not page.locator("nav").is_visible()
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
