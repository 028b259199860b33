"""The figures: every part of a report is drawn, files and pages hold the same picture, points are the report's numbers."""  # noqa: E501

from __future__ import annotations

import itertools
import re
import warnings
import xml.etree.ElementTree as ElementTree
from dataclasses import replace

import numpy as np
import pytest

from distilvec.evaluation.compression import CompressionScore
from distilvec.evaluation.significance import ChangeInterval
from distilvec.evaluation.speed import Speed
from distilvec.report import figures
from distilvec.report.comparison import Comparison, retention_figure
from distilvec.report.figures import (
    INK,
    SERIES,
    LineLook,
    LinePoint,
    figure_style,
    lines_figure,
    plain,
    write_figure,
)
from distilvec.report.html import render_page
from distilvec.report.json_values import from_json
from distilvec.report.record import StageRecord, TrainingRecord
from distilvec.report.sections import compression, margin, speed, training
from distilvec.report.sections import scores as scores_section
from distilvec.report.sections.compression import mean_rows
from distilvec.report.sections.scores import retained
from tests.report.report_sample import TASKS, as_report, sample_report

pytest.importorskip("matplotlib")

NAMES = [
    "scores", "texts", "compression", "margin", "speed", "vocabulary", "experts_training", "experts_gates", "training",
]  # fmt: skip
RUNS = [
    {"run": "three layers", "retention": {"average": 99.04}, "parameters": 17.4e6, "texts_per_second": 410},
    {"run": "two layers", "retention": {"average": 97.12}, "parameters": 15.6e6, "texts_per_second": 530},
    {"run": "failed", "retention": {}, "parameters": 15.6e6},
]


def draw_all(report, folder):
    """The figures' `<svg>` elements by name, drawn and written by the page."""
    found = {}
    render_page(as_report(report), lambda figure: found.setdefault(figure.name, write_figure(figure, folder)))
    return found


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("figures")


@pytest.fixture(scope="module")
def written(folder):
    return draw_all(sample_report(), folder)


def comparison_of(rows):
    return from_json(Comparison, {"rows": rows})


def texts(svg):
    """Everything written in a figure."""
    return [
        "".join(node.itertext()).strip()
        for node in ElementTree.fromstring(svg).iter("{http://www.w3.org/2000/svg}text")
    ]


def drawn(section, **parts):
    """The matplotlib figures of a section, by name."""
    found = section(as_report(sample_report() | parts))
    blocks = [] if found is None else list(found.blocks)
    for block in found.blocks if found is not None else ():
        blocks += block.content if block.kind == "details" else ()
    return {figure.name: figure.draw() for block in blocks if block.kind == "figures" for figure in block.content}


def panels(figure):
    """The panels by title."""
    return {axes.get_title() or axes.get_title(loc="left"): axes for axes in figure.axes}


def points(axes):
    """The points of the lines with error bars, by label."""
    return [container[0].get_xydata() for container in axes.containers]


# -- all of them ------------------------------------------------------------------------------------------------------


def test_every_part_of_a_report_is_drawn_in_order(written, folder):
    assert list(written) == NAMES
    assert {path.name for path in folder.iterdir()} == {
        f"{name}.{ending}" for name in NAMES for ending in ("svg", "png")
    }
    for name in NAMES:
        assert (folder / f"{name}.png").read_bytes().startswith(b"\x89PNG")
        text = (folder / f"{name}.svg").read_text(encoding="utf-8")
        assert texts(text) == texts(written[name]) and 'fill="#ffffff"' in text and INK in text


def test_inline_figures_live_together_in_a_page(written):
    ids = []
    for svg in written.values():
        root = ElementTree.fromstring(svg)
        assert root.get("role") == "img" and root.get("aria-label").endswith("The data is in the table below.")
        assert root.get("viewBox") and texts(svg)
        assert not re.search(r"<style|<metadata|<script|<!--|https?://(?!www\.w3\.org/)", svg)
        assert INK not in svg.lower() and "currentColor" in svg
        own = [node.get("id") for node in root.iter() if node.get("id")]
        used = re.findall(r'(?:url\(|href=")#([^")]+)', svg)
        assert set(used) <= set(own), "a reference to an id that is not there"
        ids += own
    assert len(ids) == len(set(ids))


def test_the_same_report_gives_the_same_bytes(written, folder, tmp_path):
    again = draw_all({key: sample_report()[key] for key in ("scores", "intervals")}, tmp_path)
    assert again["scores"] == written["scores"]
    for ending in ("svg", "png"):
        assert (folder / f"scores.{ending}").read_bytes() == (tmp_path / f"scores.{ending}").read_bytes()


@pytest.mark.parametrize(
    "report",
    [
        {},
        dict.fromkeys(("scores", "intervals", "compression", "margin", "speed", "history", "experts")),
        {
            "scores": {}, "compression": {"rows": []}, "margin": {"points": [], "fits": {}}, "speed": {"rows": []},
            "history": [],
        },
        {"history": [{"step": 1, "train/wait": 3.0}]},
    ],
)  # fmt: skip
def test_missing_parts_are_skipped(report, tmp_path):
    assert draw_all(report, tmp_path) == {}


def test_small_parts_are_drawn(tmp_path):
    report = sample_report()
    rows = [row for row in report["compression"]["rows"] if row["width"] == 384 and row["column"] == "student"]
    timings = [row for row in report["speed"]["rows"] if row["model"] == "student" and row["role"] == "query"]
    experts = report["experts"] | {key: report["experts"][key][:1] for key in ("groups", "lengths")}
    few = {
        "scores": {column: found[:1] for column, found in report["scores"].items() if column != "asymmetric"},
        "compression": {"rows": rows},
        "margin": {"points": report["margin"]["points"][:2], "fits": {}},
        "speed": {"rows": timings},
        "history": [line for line in report["history"] if "train/loss" in line][:2],
        "experts": experts,
    }
    # one task: no figure of scores
    names = ["compression", "margin", "speed", "experts_training", "experts_gates", "training"]
    assert list(draw_all(few, tmp_path)) == names


def test_no_matplotlib_setting_is_left_changed(tmp_path):
    import matplotlib

    before = dict(matplotlib.rcParams)
    draw_all({"history": sample_report()["history"]}, tmp_path)
    assert dict(matplotlib.rcParams) == before


def test_names_with_markup_stay_text(tmp_path):
    rows = [{"run": '<b>"& $x$', "retention": {"average": 90.0}, "parameters": 2e6}, RUNS[0]]
    assert '<b>"& $x$' in texts(write_figure(retention_figure(comparison_of(rows), "parameters"), tmp_path))


def test_a_page_as_large_as_the_quickstarts_is_below_400_kb():
    """Two tasks with 300 queries each, whose rankings name 300 documents."""
    report = sample_report()
    for part in ("experts", "margin", "vocabulary"):
        del report[part]
    report["history"] = [
        {key: value for key, value in line.items() if not key.startswith(("train/gate", "train/facet"))}
        for line in report["history"]
    ]
    report["speed"]["rows"] = [row for row in report["speed"]["rows"] if row["batch_size"] in (1, 8)]
    documents = {f"d{number}": "a document of some length " * 6 for number in range(300)}
    models = ("teacher", "student", "asymmetric")
    rows = []
    for number in range(300):
        found = {model: [f"d{(number + place) % 300}" for place in range(10)] for model in models}
        scores = {"teacher": 90.0, "student": 80.0 - 0.1 * number, "asymmetric": 85.0}
        rows.append({"query": f"query {number} of some words", "scores": scores, "overlap": {}, "found": found})
    queries = {"count": 300, "rows": rows, "documents": documents}
    for task in report["agreement"].values():
        task["queries"] = queries
    page = render_page(as_report(report), lambda figure: write_figure(figure, None))
    assert 100_000 < len(page.encode()) < 400_000


# -- what they show ---------------------------------------------------------------------------------------------------


def test_scores_are_shares_of_the_teacher_with_intervals():
    report = as_report(sample_report())
    rows = {(row.model, row.task): row for row in retained(report.scores, report.intervals)}
    teacher, _, student, _ = TASKS["cranfield"][4:]
    low, high, _ = report.intervals["student"]["cranfield"]
    found = rows["student", "cranfield"]
    assert found.value == pytest.approx(100 * student / teacher)
    assert (found.low, found.high) == pytest.approx((100 * (teacher + low) / teacher, 100 * (teacher + high) / teacher))
    assert rows["student", "average"].value == pytest.approx(report.verdict.retention, abs=1e-3)
    assert rows["untrained", "stsb"].low is None
    (axes,) = drawn(scores_section.section)["scores"].axes
    assert [label.get_text() for label in axes.get_yticklabels()] == [
        *TASKS, "average by type", "average retrieval", "average",
    ]  # fmt: skip


def test_an_interval_of_every_average():
    report = as_report(sample_report())
    for name in ("average by type", "average retrieval"):
        report.intervals["student"][name] = ChangeInterval(-1.0, 1.0, 0.5)
    rows = {(row.model, row.task): row for row in retained(report.scores, report.intervals)}
    for task, teacher in (("average retrieval", (47.21 + 61.18) / 2), ("average by type", None)):
        found = rows["student", task]
        middle = (found.low + found.high) / 2
        assert middle == pytest.approx(100) and found.value < 100
        assert teacher is None or found.high - 100 == pytest.approx(100 / teacher)


def test_scores_without_a_teacher_are_the_scores():
    scores = {"student": sample_report()["scores"]["student"]}
    assert retained(as_report({"scores": scores}).scores, {})[0].value == scores["student"][0]["value"]
    assert drawn(scores_section.section, scores=scores)["scores"].axes[0].get_xlabel() == "score (x 100)"


def mean(rows, column, precision, width):
    (row,) = (
        row
        for row in mean_rows(from_json(list[CompressionScore], rows))
        if (row.column, row.precision, row.width) == (column, precision, width)
    )
    return row.value


def test_compression_has_a_panel_a_model_and_a_line_a_precision():
    rows = sample_report()["compression"]["rows"]
    chosen = ("student", 64, "int8")
    wanted = np.mean([row["value"] for row in rows if (row["column"], row["width"], row["precision"]) == chosen])
    assert mean(rows, "student", "int8", 64) == pytest.approx(wanted)
    found = panels(drawn(compression.section)["compression"])
    assert {"teacher", "student", "asymmetric"} <= set(found)
    assert len(points(found["teacher"])) == 5 and dict(points(found["student"])[2])[64] == pytest.approx(wanted)


def test_compression_averages_only_tasks_that_are_complete():
    rows = [row for row in sample_report()["compression"]["rows"] if (row["task"], row["width"]) != ("mrpc", 32)]
    chosen = ("student", 384, "int8")
    whole = [row["value"] for row in rows if (row["column"], row["width"], row["precision"]) == chosen]
    assert mean(rows, "student", "int8", 384) == pytest.approx((whole[0] + whole[2]) / 2)


def test_compression_averages_all_tasks_though_only_retrieval_is_rescored():
    rows = [
        row
        for row in sample_report()["compression"]["rows"]
        if row["precision"] != "binary_rescored" or row["task"] == "cranfield"
    ]
    chosen = ("student", 384, "int8")
    whole = [row["value"] for row in rows if (row["column"], row["width"], row["precision"]) == chosen]
    assert len(whole) > 1 and mean(rows, "student", "int8", 384) == pytest.approx(np.mean(whole))
    means = mean_rows(from_json(list[CompressionScore], rows))
    assert not any(row.precision == "binary_rescored" for row in means)


def test_compression_counts_no_tasks_made_of_an_index():
    plain = [row for row in sample_report()["compression"]["rows"] if row["task"] == "mrpc"]
    of_an_index = [{**row, "task": "index-known-item", "value": 100.0} for row in plain]
    assert mean([*plain, *of_an_index], "student", "int8", 384) == mean(plain, "student", "int8", 384)
    section = compression.section(as_report({"compression": {"rows": of_an_index}}))
    assert [block.kind for block in section.blocks] == ["text", "table"], "no figure of means"


@pytest.mark.parametrize("section", [compression.section, margin.section])
def test_averages_over_fewer_tasks_than_the_scores_say_so(section):
    def texts(scores):
        content = section(replace(report, scores={"student": scores})).blocks
        return " ".join(block.content for block in content if block.kind == "text")

    report = as_report(sample_report())
    tasks = {row.task for row in report.compression.rows} & report.margin.fits.keys()
    scored = [score for score in report.scores["student"] if score.task in tasks]
    assert "Averages are over" not in texts(scored)
    assert "without topics." in texts([*scored, replace(scored[0], task="topics", type="classification")])


def test_a_larger_batch_of_another_backend_alone_was_not_tried():
    found = from_json(Speed, sample_report()["speed"])
    rows = [row for row in found.rows if row.backend == "pytorch" or row.batch_size <= 4]
    assert speed.largest_batch_text(found.models["student"], rows, "student", "query") == "32 or more"
    less = [row for row in found.rows if row.backend == "onnx" or row.batch_size <= 8]
    size = replace(found.models["student"], largest_batch_under_100_ms={"query": 8})
    assert speed.largest_batch_text(size, less, "student", "query") == "8 or more"
    assert speed.largest_batch_text(size, found.rows, "student", "query") == "8"


def test_every_score_of_a_validation_is_in_the_table_of_evaluations():
    watched = {"watched": "f1", "better": "higher"}
    history = [{"step": step, "epoch": 1.0, "eval/f1": 0.5 + step / 100} | watched for step in (1, 2)]
    page = render_page(as_report({"history": history}), lambda figure: "<svg></svg>")
    assert "0.5200" in page[page.index("Every evaluation") :]


def test_margin_shows_checkpoints_fit_and_margin():
    figure = drawn(margin.section)["margin"]
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["checkpoints"]
    names = {text.get_text() for text in figure.axes[0].texts}
    assert names == {"linear fit", "95% band, low", "95% band, high", "teacher", "robustness margin"}
    assert len(points(figure.axes[0])[0]) == 10


def test_margin_says_its_interval_and_what_weakens_it():
    report = sample_report()
    text = str(margin.section(as_report(report)).blocks[0])
    assert "a distance of 0.342." in text
    assert "The line itself meets the teacher's score at 0.321 [0.295, 0.342]." in text
    assert "first epochs" in text and "steps 80, 160." in text and "8 or more" not in text
    report["margin"]["points"] = report["margin"]["points"][:7]
    report["margin"]["left_out"] = []
    text = str(margin.section(as_report(report)).blocks[0])
    assert "Fitted to 7 checkpoints, which widens the margin: save 8 or more" in text and "first epochs" not in text
    report["margin"]["fits"]["average"] |= {"margin": None, "crossing": -0.1, "crossing_low": -0.3}
    text = str(margin.section(as_report(report)).blocks[0])
    assert "not reached" in text and "meets" not in text


def test_speed_shows_batches_by_role_and_lengths():
    found = panels(drawn(speed.section)["speed"])
    assert {"query, 16 tokens", "document, 128 tokens", "by length, batch of 1"} <= set(found)
    axes = found["query, 16 tokens"]
    assert axes.get_xscale() == axes.get_yscale() == "log"
    assert len(points(found["by length, batch of 1"])[0]) == 5


def test_training_shows_terms_rate_and_distance():
    history = sample_report()["history"]
    found = training.training_points(history)
    assert list(dict.fromkeys(point.panel for point in found)) == [
        "loss", "learning rate", "texts per second", "validation distance",
    ]  # fmt: skip
    assert list(dict.fromkeys(point.line for point in found))[:3] == ["loss", "distance", "relations"]
    assert LinePoint("validation distance", "validation distance", 0, 0.9712) in found
    single = [{key: value for key, value in line.items() if key != "train/loss_relations"} for line in history]
    assert {point[1] for point in training.training_points(single) if point[0] == "loss"} == {"loss"}, (
        "a single term is the loss"
    )
    assert set(panels(drawn(training.section)["training"])) == {point[0] for point in found}
    short = [history[0], *(line for line in history if "train/loss" in line)][:2]
    assert not [point for point in training.training_points(short) if point.panel != "validation distance"]


def test_the_time_axis_ends_with_the_minutes_of_the_record():
    rates = [(100, 50.0), (200, 50.0), (300, 25.0)]
    lines = [{"step": step, "train/texts_per_second": rate} for step, rate in rates]
    top = training.time_axis(lines, TrainingRecord(minutes=8.0))
    assert top.title == "minutes" and top.points == [(0, 0), (100, 2.0), (200, 4.0), (300, 8.0)]
    stage = StageRecord("one", "redact", "all", 1e-4, 300, 9600, 8.0)
    staged = TrainingRecord(minutes=8.0, stages=[stage])
    assert training.time_axis(lines, TrainingRecord()) is training.time_axis(lines, staged) is None
    figure = drawn(training.section, record={"training": {"minutes": 8.0}})["training"]
    figure.draw_without_rendering()
    (top,) = panels(figure)["loss"].child_axes
    assert top.get_xlabel() == "minutes" and top.get_xlim()[1] > 8.0 - 0.5


def test_runs_without_a_number_are_left_out():
    figure = retention_figure(comparison_of(RUNS), "texts_per_second")
    assert [row[0].text for row in figure.table.rows] == ["three layers", "two layers"]
    (axes,) = figure.draw().axes
    assert [found.tolist() for found in points(axes)] == [[[410.0, 99.04]], [[530.0, 97.12]]]
    assert retention_figure(comparison_of(RUNS[2:]), "parameters").table.rows == []
    alike = [run | {"parameters": 17_400_000} for run in RUNS[:2]]
    assert retention_figure(comparison_of(alike), "parameters").table.rows == []


# -- small parts ------------------------------------------------------------------------------------------------------


def test_labels_do_not_overlap():
    places = [LinePoint("", f"run {number}", 1 + 0.1 * number, 90 + 0.1 * number) for number in range(5)]
    look = LineLook(y="score", dots=[point.line for point in places])
    with figure_style():
        figure = figures.draw_lines(places, "size", look)
        figure.draw_without_rendering()
        boxes = [text.get_window_extent() for text in figure.axes[0].texts]
    pairs = itertools.combinations(boxes, 2)
    assert len(boxes) == 5 and not any(one.shrunk(0.98, 0.9).overlaps(other.shrunk(0.98, 0.9)) for one, other in pairs)


@pytest.mark.parametrize("name", ["scores", "experts_gates", "vocabulary"])
def test_titles_and_labels_are_not_cut_off_and_do_not_overlap(name):
    figures = {}
    render_page(as_report(sample_report()), lambda figure: figures.setdefault(figure.name, figure).text)
    with figure_style():
        figure = figures[name].draw()
        figure.draw_without_rendering()
        parts = [
            p for axes in figure.axes for p in (axes.title, axes._left_title, axes.xaxis.label, *axes.get_yticklabels())
        ]
        parts += figure.legends[0].get_texts()
        boxes, whole = [part.get_window_extent() for part in parts if part.get_text()], figure.bbox.padded(1)
    assert all(whole.x0 <= box.x0 and box.x1 <= whole.x1 and whole.y0 <= box.y0 and box.y1 <= whole.y1 for box in boxes)
    pairs = itertools.combinations(boxes, 2)
    assert not any(one.shrunk(0.98, 0.9).overlaps(other.shrunk(0.98, 0.9)) for one, other in pairs)


MANDARIN, HINDI = "\N{CJK UNIFIED IDEOGRAPH-4E2D}\N{CJK UNIFIED IDEOGRAPH-6587}", "\N{DEVANAGARI LETTER HA}"
FOREIGN = lines_figure("foreign", "", [LinePoint(MANDARIN + HINDI, "", step, step) for step in (1.0, 2.0)])


def test_characters_that_no_font_has_are_one_line_of_all_figures(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(figures, "OTHER_SCRIPTS", ())
    monkeypatch.setattr(figures, "_logged_glyphs", [])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for folder in (tmp_path / "first", tmp_path / "second"):
            write_figure(FOREIGN, folder)
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("figures: no installed font has") and MANDARIN[0] in line


def test_other_warnings_of_a_figure_are_still_seen():
    with pytest.warns(UserWarning, match="another"), figure_style():
        warnings.warn("another", UserWarning, stacklevel=1)


def font_of(characters, family, path):
    """Write a font that draws these characters as squares."""
    from fontTools.fontBuilder import FontBuilder
    from fontTools.pens.ttGlyphPen import TTGlyphPen

    pen = TTGlyphPen(None)
    pen.moveTo((0, 0))
    for corner in ((0, 700), (700, 700), (700, 0)):
        pen.lineTo(corner)
    pen.closePath()
    names = {ord(character): f"u{ord(character):04X}" for character in characters}
    order = [".notdef", *names.values()]
    font = FontBuilder(1000)
    font.setupGlyphOrder(order)
    font.setupCharacterMap(names)
    font.setupGlyf(dict.fromkeys(order, pen.glyph()))
    font.setupHorizontalMetrics(dict.fromkeys(order, (750, 0)))
    font.setupHorizontalHeader(ascent=800, descent=-200)
    font.setupNameTable({"familyName": family, "styleName": "Regular"})
    font.setupOS2()
    font.setupPost()
    font.save(path)


def test_an_installed_font_draws_what_dejavu_lacks(tmp_path, monkeypatch, capsys):
    from matplotlib.font_manager import fontManager

    monkeypatch.setattr(figures, "_logged_glyphs", [])
    monkeypatch.setattr(fontManager, "ttflist", [*fontManager.ttflist])
    font_of(MANDARIN + HINDI, "Noto Sans CJK SC", tmp_path / "font.ttf")
    fontManager.addfont(tmp_path / "font.ttf")
    page = write_figure(FOREIGN, tmp_path / "drawn")
    assert not capsys.readouterr().err
    assert "Noto" not in page and MANDARIN in page  # a page has the same bytes whatever fonts there are

    monkeypatch.setattr(figures, "OTHER_SCRIPTS", ())
    write_figure(FOREIGN, tmp_path / "boxes")
    assert (tmp_path / "drawn" / "foreign.png").read_bytes() != (tmp_path / "boxes" / "foreign.png").read_bytes()


def test_numbers_of_an_axis():
    assert [plain(value) for value in (1234.0, 0.00012, 12.5)] == ["1,234", "0.00012", "12.5"]


def luminance(colour):
    channels = [int(colour[place : place + 2], 16) / 255 for place in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return float(np.dot([0.2126, 0.7152, 0.0722], linear))


@pytest.mark.parametrize("colour", SERIES[:4])
@pytest.mark.parametrize("ground", ["#ffffff", "#111111"])
def test_the_first_colours_stand_out_on_both_grounds(colour, ground):
    """WCAG 2.2, 1.4.11: graphics need 3 : 1."""
    dark, light = sorted([luminance(colour), luminance(ground)])
    assert (light + 0.05) / (dark + 0.05) >= 3
