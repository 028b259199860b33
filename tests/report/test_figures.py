import itertools
import re
import xml.etree.ElementTree as ElementTree

import numpy as np
import pytest

from distilvec.report import figure_text, figures
from distilvec.report.figure_data import compression_curves, history_series, length_series, retained
from distilvec.report.figure_style import (
    BLUE,
    GREEN,
    INK,
    PURPLE,
    VERMILLION,
    inline_svg,
    round_ticks,
    spread_ticks,
    standalone_svg,
    write_figure,
)
from tests.report.report_sample import TASKS, sample_report

pytest.importorskip("matplotlib")

NAMES = [
    "scores", "compression", "margin", "speed", "vocabulary", "training", "experts_training", "experts_gates", "experts", "sentences",
    "tokens", "token_planes",
]  # fmt: skip
RUNS = [
    {
        "name": "three layers",
        "retention": 99.04,
        "low": 98.6,
        "high": 99.4,
        "parameters": 17.4e6,
        "texts_per_second": 410,
    },
    {"name": "two layers", "retention": 97.12, "parameters": 15.6e6, "texts_per_second": 530},
    {"name": "failed", "retention": None, "parameters": 15.6e6},
]


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    return figures.all_figures(sample_report(), tmp_path_factory.mktemp("figures"))


def texts(svg):
    """Everything written in a figure."""
    return [
        "".join(node.itertext()).strip()
        for node in ElementTree.fromstring(svg).iter("{http://www.w3.org/2000/svg}text")
    ]


def panels(figure):
    """The panels by title."""
    return {axes.get_title() or axes.get_title(loc="left"): axes for axes in figure.axes}


# -- all of them ------------------------------------------------------------------------------------------------------


def test_every_part_of_a_report_is_drawn_in_order(written):
    assert [figure["name"] for figure in written] == NAMES
    for figure in written:
        assert set(figure) == {"name", "title", "description", "svg", "files"} and figure["title"]
        svg, png = figure["files"]
        assert svg.name == f"{figure['name']}.svg" and png.read_bytes().startswith(b"\x89PNG")
        ElementTree.fromstring(svg.read_text(encoding="utf-8"))


def test_inline_figures_live_together_in_a_page(written):
    ids = []
    for figure in written:
        root = ElementTree.fromstring(figure["svg"])
        assert root.get("role") == "img" and root.get("aria-label") == figure["description"]
        assert root.get("viewBox") and texts(figure["svg"])
        assert not re.search(
            r"<style|<metadata|<script|<!--|font-family|DejaVu|https?://(?!www\.w3\.org/)", figure["svg"]
        )
        assert INK not in figure["svg"].lower() and "currentColor" in figure["svg"]
        own = [node.get("id") for node in root.iter() if node.get("id")]
        used = re.findall(r'(?:url\(|href=")#([^")]+)', figure["svg"])
        assert set(used) <= set(own), "a reference to an id that is not there"
        ids += own
    assert len(ids) == len(set(ids))


def test_files_on_disk_have_a_ground_of_their_own(written):
    text = written[0]["files"][0].read_text(encoding="utf-8")
    assert text.startswith("<?xml") and 'fill="#ffffff"' in text and 'color="#1a1a1a"' in text


def test_the_same_report_gives_the_same_bytes(written, tmp_path):
    again = figures.all_figures(
        {"scores": sample_report()["scores"], "intervals": sample_report()["intervals"]}, tmp_path
    )
    assert again[0]["svg"] == written[0]["svg"]
    for ours, theirs in zip(again[0]["files"], written[0]["files"], strict=True):
        assert ours.read_bytes() == theirs.read_bytes()


@pytest.mark.parametrize(
    "report",
    [
        {},
        dict.fromkeys(("scores", "intervals", "compression", "margin", "speed", "history", "projections", "experts", "tokens")),
        {
            "scores": {}, "compression": {"rows": []}, "margin": {"points": [], "fits": {}}, "speed": {"rows": []}, "history": [],
            "projections": {"sentences": None, "tokens": []}, "experts": {}, "tokens": [],
        },
        {"history": [{"step": 1, "train/texts_per_second": 3.0}], "projections": {"sentences": {"teacher": [[0, 0], [1, 1], [2, 0]]}}},
    ],
)  # fmt: skip
def test_missing_parts_are_skipped(report, tmp_path):
    assert figures.all_figures(report, tmp_path) == []


def test_small_parts_are_drawn(tmp_path):
    report = sample_report()
    one = {column: found[:1] for column, found in report["scores"].items() if column != "asymmetric"}
    few = {
        "scores": one,
        "compression": {
            "rows": [row for row in report["compression"]["rows"] if row["width"] == 384 and row["column"] == "student"]
        },
        "margin": {"points": report["margin"]["points"][:2]},
        "speed": {
            "rows": [row for row in report["speed"]["rows"] if row["model"] == "student" and row["role"] == "query"]
        },
        "history": [line for line in report["history"] if "train/loss" in line][:2],
        "experts": report["experts"]
        | {"plane": None, "groups": report["experts"]["groups"][:1], "lengths": report["experts"]["lengths"][:1]},
        "projections": {
            "tokens": [report["projections"]["tokens"][0] | {"student_tokens": ["x", "y"], "student": [[0, 0], [1, 1]]}]
        },
    }
    found = {figure["name"]: figure for figure in figures.all_figures(few, tmp_path)}
    assert list(found) == [
        "scores",
        "compression",
        "margin",
        "speed",
        "training",
        "experts_training",
        "experts_gates",
        "tokens",
    ]
    assert "2 of the student" in found["tokens"]["description"]


def test_no_matplotlib_setting_is_left_changed(tmp_path):
    import matplotlib

    before = dict(matplotlib.rcParams)
    figures.all_figures({"history": sample_report()["history"]}, tmp_path)
    assert dict(matplotlib.rcParams) == before


def test_names_with_markup_stay_text(tmp_path):
    runs = [
        {"name": '<b>"& $x$', "retention": 90.0, "parameters": 2e6},
        {"name": "plain", "retention": 80.0, "parameters": 4e6},
    ]
    figure = write_figure(figures.leaderboard_figure(runs), tmp_path, "runs", figure_text.describe_leaderboard(runs))
    assert '<b>"& $x$' in texts(figure["svg"]) and '<b>"& $x$ keeps 90.0 %' in ElementTree.fromstring(
        figure["svg"]
    ).get("aria-label")


# -- what they show ---------------------------------------------------------------------------------------------------


def test_scores_are_shares_of_the_teacher_with_intervals():
    report = sample_report()
    rows = {(row["column"], row["task"]): row for row in retained(report["scores"], report["intervals"])}
    teacher, _, student, _ = TASKS["cranfield"][4:]
    low, high, _ = report["intervals"]["student"]["cranfield"]
    found = rows["student", "cranfield"]
    assert found["value"] == pytest.approx(100 * student / teacher)
    assert (found["low"], found["high"]) == pytest.approx(
        (100 * (teacher + low) / teacher, 100 * (teacher + high) / teacher)
    )
    assert rows["student", "average"]["value"] == pytest.approx(report["verdict"]["retention"], abs=1e-3)
    assert rows["untrained", "stsb"]["low"] is None


def test_scores_figure_writes_what_is_off_the_axis():
    report = sample_report()
    figure = figures.scores_figure(report["scores"], report["intervals"])
    (axes,) = figure.axes
    assert [label.get_text() for label in axes.get_yticklabels()] == [*TASKS, "average"]
    assert "◂18" in [text.get_text() for text in axes.texts]
    description = figure_text.describe_scores(report["scores"], report["intervals"])
    assert (
        "The student column reaches 99.0 % of the teacher's score (95 % interval 98.4 to 99.6) on average"
        in description
    )
    assert "from 96.5 % on cranfield to 100.3 % on banking77" in description


def test_scores_without_a_teacher_are_the_scores():
    scores = {"student": sample_report()["scores"]["student"]}
    assert retained(scores, {})[0]["value"] == scores["student"][0]["value"]
    assert figures.scores_figure(scores).axes[0].get_xlabel() == "score (x 100)"
    assert "reaches 72.3 as its score" in figure_text.describe_scores(scores)


def test_compression_has_a_panel_a_column_and_a_line_a_precision():
    compression = sample_report()["compression"]
    curves = compression_curves(compression)
    mean = np.mean(
        [
            row["value"]
            for row in compression["rows"]
            if (row["column"], row["width"], row["precision"]) == ("student", 64, "int8")
        ]
    )
    assert curves["student"]["int8"][64] == pytest.approx(mean)
    found = panels(figures.compression_figure(compression))
    line = found["student"].get_lines()[2]
    assert line.get_label() == "int8" and dict(zip(*line.get_data(), strict=True))[64] == pytest.approx(mean)
    assert len(found["teacher"].get_lines()) == 5
    description = figure_text.describe_compression(compression)
    assert f"Student: {curves['student']['float32'][384]:.1f} at 384 dimensions in float32" in description
    assert f"{curves['student']['binary'][32]:.1f} in binary" in description


def test_compression_averages_only_tasks_that_are_complete():
    compression = sample_report()["compression"]
    compression["rows"] = [row for row in compression["rows"] if (row["task"], row["width"]) != ("mrpc", 32)]
    whole = [
        row["value"]
        for row in compression["rows"]
        if (row["column"], row["width"], row["precision"]) == ("student", 384, "int8")
    ]
    assert compression_curves(compression)["student"]["int8"][384] == pytest.approx((whole[0] + whole[2]) / 2)


def test_compression_averages_all_tasks_though_only_retrieval_is_rescored():
    compression = sample_report()["compression"]
    for column in ("teacher", "student", "asymmetric"):
        extra = [
            {**row, "precision": "binary_rescored"}
            for row in compression["rows"]
            if (row["task"], row["precision"], row["column"]) == ("cranfield", "binary", column)
        ]
        compression["rows"] = [
            row for row in compression["rows"] if (row["precision"], row["column"]) != ("binary_rescored", column)
        ] + extra
    curves = compression_curves(compression)["student"]
    whole = [
        row["value"]
        for row in compression["rows"]
        if (row["column"], row["width"], row["precision"]) == ("student", 384, "int8")
    ]
    assert len(whole) > 1 and curves["int8"][384] == pytest.approx(sum(whole) / len(whole))
    assert (
        "binary_rescored" not in curves and "binary_rescored" in compression_curves(compression, "cranfield")["student"]
    )


def test_margin_shows_checkpoints_fit_and_margin():
    margin = sample_report()["margin"]
    (axes,) = figures.margin_figure(margin).axes
    assert {"checkpoints", "linear fit", "95 % band", "teacher", "robustness margin"} == set(
        axes.get_legend_handles_labels()[1]
    )
    description = figure_text.describe_margin(margin)
    assert "10 checkpoints" in description and "distance of 0.342, the robustness margin" in description
    assert f"loses {-margin['fits']['average']['slope'] / 10:.2f} points for each 0.1" in description
    assert "robustness margin" not in figures.margin_figure(margin, "cranfield").axes[0].get_legend_handles_labels()[1]
    assert "No distance was reached" in figure_text.describe_margin(margin, "cranfield")


def test_speed_shows_batches_by_role_and_lengths():
    speed = sample_report()["speed"]
    found = panels(figures.speed_figure(speed))
    assert {"query, 16 tokens", "document, 128 tokens", "by length, 1 text a batch"} <= set(found)
    axes = found["query, 16 tokens"]
    assert axes.get_xscale() == axes.get_yscale() == "log"
    size, rows = length_series(speed)
    assert (size, len({row["tokens"] for row in rows})) == (1, 5)
    description = figure_text.describe_speed(speed)
    first = next(
        row
        for row in speed["rows"]
        if (row["model"], row["backend"], row["role"], row["batch_size"]) == ("student", "onnx", "query", 32)
    )
    assert f"{first['mean_ms']:.1f} ms at 32 texts a batch" in description
    assert (
        "2.1 times as fast on a query and 2.0 times as fast on a document" in description
        and "none for a document" in description
    )


def test_training_shows_terms_rate_and_distance():
    history = sample_report()["history"]
    series = history_series(history)
    assert list(series["loss"]) == ["loss", "distance", "relations"]
    found = panels(figures.training_figure(history))
    assert list(found) == ["loss", "learning rate", "held-out distance"]
    assert "held-out distance falls from 0.971 at step 0 to 0.304 at step 2,400" in figure_text.describe_training(
        history
    )
    single = [{key: value for key, value in line.items() if key != "train/loss_relations"} for line in history]
    assert list(history_series(single)["loss"]) == ["loss"], "a single term is the loss itself"


def test_sentences_join_equal_texts():
    sentences = sample_report()["projections"]["sentences"]
    axes = panels(figures.sentences_figure(sentences))["student"]
    joins = axes.get_lines()[: len(sentences["teacher"])]
    assert np.allclose(joins[4].get_xydata(), [sentences["teacher"][4], sentences["student"][4]])
    description = figure_text.describe_sentences(sentences)
    assert (
        "45 texts of stsb, banking77 and cranfield" in description and "student from the teacher 0.061" in description
    )
    assert "0.688 after alignment; drawn aligned" in description


def test_tokens_are_labelled(written):
    labels = texts(written[-2]["svg"])
    assert {"flutters", "guitar", "teacher", "student"} <= set(labels)
    assert "“a man plays a guitar”: 5 tokens" in written[-2]["description"]


def test_leaderboard_leaves_out_what_has_no_figure():
    (axes,) = figures.leaderboard_figure(RUNS, "texts_per_second").axes
    assert [text.get_text() for text in axes.texts] == ["three layers", "two layers"]
    text = figure_text.describe_leaderboard(RUNS)
    assert (
        text
        == "2 runs: three layers keeps 99.0 % with 17.4 M parameters; two layers keeps 97.1 % with 15.6 M parameters."
    )


def test_many_runs_get_a_legend_and_equal_sizes_stand_side_by_side():
    runs = [
        {"name": f"run {place}", "retention": 95 + place, "parameters": 2e7 if place < 4 else 4e7} for place in range(8)
    ]
    figure = figures.leaderboard_figure(runs)
    assert not figure.axes[0].texts and [text.get_text() for text in figure.legends[0].get_texts()] == [
        run["name"] for run in runs
    ]
    places = [float(line.get_xdata()[0]) for line in figure.axes[0].get_lines()[:8]]
    assert len(set(places)) == 8 and places == pytest.approx([run["parameters"] for run in runs], rel=0.05)


# -- small parts ------------------------------------------------------------------------------------------------------


def test_labels_do_not_overlap():
    runs = [
        {"name": f"run number {place}", "retention": 95 + 0.1 * place, "parameters": 2e7 * (1 + 0.02 * place)}
        for place in range(4)
    ]
    figure = figures.leaderboard_figure(runs)
    figure.draw_without_rendering()
    boxes = [text.get_window_extent() for text in figure.axes[0].texts]
    assert not any(
        one.shrunk(0.98, 0.9).overlaps(other.shrunk(0.98, 0.9)) for one, other in itertools.combinations(boxes, 2)
    )


def test_ticks():
    assert round_ticks(2, 900) == [3, 10, 30, 100, 300]
    assert spread_ticks([1, 2, 4, 8, 16, 24, 32]) == [1, 2, 4, 8, 16, 32]
    assert spread_ticks([5]) == [5]


def luminance(colour):
    channels = [int(colour[place : place + 2], 16) / 255 for place in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return float(np.dot([0.2126, 0.7152, 0.0722], linear))


@pytest.mark.parametrize("colour", [BLUE, VERMILLION, GREEN, PURPLE])
@pytest.mark.parametrize("ground", ["#ffffff", "#111111"])
def test_the_first_colours_stand_out_on_both_grounds(colour, ground):
    """WCAG 2.2, 1.4.11: graphics need 3 : 1."""
    dark, light = sorted([luminance(colour), luminance(ground)])
    assert (light + 0.05) / (dark + 0.05) >= 3


def test_inline_and_standalone_hold_the_same_picture():
    figure = figures.leaderboard_figure(RUNS)
    svg = inline_svg(figure, "runs", "two runs")
    assert texts(svg) == texts(standalone_svg(svg).partition("\n")[2])
