"""Figures of a mixture of experts: points and tables are the report's numbers; names, few and many experts."""

from __future__ import annotations

import numpy as np
import pytest

from distilvec.evaluation.diagnostics import ExpertsReport
from distilvec.report.html import render_page
from distilvec.report.json_values import from_json
from distilvec.report.sections import experts as section
from distilvec.report.sections.experts import expert_names, gates_figure, routing_points
from distilvec.report.values import Report
from tests.report.expert_sample import FACETS, sample_experts
from tests.report.report_sample import as_report, sample_report

pytest.importorskip("matplotlib")


NAMES = [f"{number} {name}" for number, name in enumerate(FACETS, 1)]


def test_experts_are_called_by_what_they_learn():
    report = sample_report()
    assert expert_names(as_report(report)) == NAMES
    for numbers in ((0, 1), (1, 2)):  # as in the projections' names, and as logs had them before
        two = [{f"train/facet_{name}_{teacher}": 1.0 for teacher in numbers for name in FACETS[:2]} | {"step": 1}]
        four = as_report({"history": two, "experts": {**sample_experts(), "count": 4}})
        assert expert_names(four)[2] == "3 pointwise (teacher 2)"
    for line in report["history"]:  # a method that logs no facets, or other ones
        line.pop("train/facet_pairwise", None)
    plain = ["expert 1", "expert 2", "expert 3"]
    assert expert_names(as_report(report)) == plain and expert_names(as_report({"history": report["history"]})) == plain
    assert expert_names(Report()) == []


def test_gates_entropy_and_losses_over_training():
    history = sample_report()["history"]
    points = routing_points(history, NAMES)
    panels = {point.panel: [other[1:4] for other in points if other.panel == point.panel] for point in points}
    last = [line for line in history if "train/gate_1" in line][-1]
    assert [len({name for name, *_ in lines}) for lines in panels.values()] == [3, 1, 3]
    assert ("2 contrastive", last["step"], last["train/gate_2"]) in panels["mean gate"]
    assert panels["loss of each facet"][-1] == ("3 pairwise", last["step"], last["train/facet_pairwise"])


def test_points_and_table_are_the_gates():
    experts = sample_experts()
    figure = gates_figure(from_json(ExpertsReport, experts), NAMES)
    for axes, rows in zip(figure.draw().axes, (experts["groups"], experts["lengths"]), strict=True):
        drawn = np.array([container[0].get_xdata()[0] for container in axes.containers]).reshape(len(rows), 3)
        np.testing.assert_allclose(drawn, [row["gates"] for row in rows])
    labels = [label.get_text() for axes in figure.draw().axes for label in axes.get_yticklabels()]
    assert labels[:2] == ["stsb (100)", "banking77 (100)"] and labels[-1] == "33 to 60 tokens (80)"
    table = figure.table
    assert len(table.rows) == 8 and table.foot[0][0].text == "all"
    assert table.rows[0][2].value == experts["groups"][0]["gates"][0]


def test_kept_tokens_are_a_number_of_the_training():
    history = sample_report()["history"]
    values = [line["train/kept_tokens"] for line in history if "train/kept_tokens" in line]
    draw = lambda figure: "<svg></svg>"  # noqa: E731
    assert f"{np.mean(values[-12:]):.1f} teacher tokens" in render_page(as_report({"history": history}), draw)
    assert "DynamicCKA" not in render_page(as_report({"history": history[:1]}), draw)


def test_a_student_without_experts_has_no_section():
    assert section.section(as_report({"history": [{"step": 1, "train/loss": 1.0}]})) is None
