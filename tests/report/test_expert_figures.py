"""Pictures of a mixture of experts: what they draw and say, names, few and many experts, the tokens that are kept."""

from __future__ import annotations

import numpy as np
import pytest

from distilvec.report import expert_figures, figures
from distilvec.report.expert_figures import describe_kept_tokens, expert_names, gates_table, routing_lines
from distilvec.report.page import render_page
from tests.report.expert_sample import FACETS, sample_experts
from tests.report.report_sample import sample_report

pytest.importorskip("matplotlib")
NAMES = [f"{number} {name}" for number, name in enumerate(FACETS, 1)]


def test_experts_are_called_by_what_they_learn():
    report = sample_report()
    assert expert_names(report) == NAMES
    two = [{f"train/facet_{name}_{teacher}": 1.0 for teacher in (1, 2) for name in FACETS[:2]} | {"step": 1}]
    assert expert_names({"history": two, "experts": {"count": 4}})[2] == "3 pointwise (teacher 2)"
    for line in report["history"]:  # a method that says nothing of facets, or of other ones
        line.pop("train/facet_pairwise", None)
    assert expert_names(report) == ["expert 1", "expert 2", "expert 3"]
    assert expert_names({"history": report["history"]}) == ["expert 1", "expert 2", "expert 3"], (
        "from the gates that were logged"
    )
    assert expert_names({}) == []


def test_gates_entropy_and_losses_over_training():
    history = sample_report()["history"]
    panels = routing_lines(history, NAMES)
    last = [line for line in history if "train/gate_1" in line][-1]
    assert [len(lines) for lines in panels.values()] == [3, 1, 3]
    assert panels["mean gate"]["2 contrastive"][-1] == (last["step"], last["train/gate_2"])
    assert panels["loss of each expert's facet"]["3 pairwise"][-1] == (last["step"], last["train/facet_pairwise"])
    figure = expert_figures.routing_figure(history, NAMES)
    assert [axes.get_title(loc="left") for axes in figure.axes] == list(panels)
    assert [text.get_text() for text in figure.legends[0].get_texts()] == NAMES
    text = expert_figures.describe_routing(history, NAMES)
    assert (
        f"1 pointwise from 0.35 to {last['train/gate_1']:.2f}" in text
        and f"equal gates from 1.00 to {last['train/gate_entropy']:.2f}" in text
    )


def test_bars_are_the_gates_and_add_up():
    experts = sample_experts()
    figure = expert_figures.gates_figure(experts, NAMES)
    tasks, lengths = figure.axes
    assert [label.get_text() for label in tasks.get_yticklabels()][:2] == ["stsb (100)", "banking77 (100)"]
    assert [label.get_text() for label in lengths.get_yticklabels()] == [
        "1 to 8 (40)",
        "9 to 16 (160)",
        "17 to 32 (120)",
        "33 to 60 (80)",
    ]
    for axes, rows in ((tasks, experts["groups"]), (lengths, experts["lengths"])):
        drawn = np.array([[bar.get_width() for bar in container] for container in axes.containers])
        np.testing.assert_allclose(drawn.T, [row["gates"] for row in rows])
    text = expert_figures.describe_gates(experts, NAMES)
    least = min(experts["groups"], key=lambda row: row["gates"][1])
    assert "Mean gates over 400 texts" in text and f"2 contrastive {least['gates'][1]:.2f} ({least['name']}) to" in text
    table = gates_table(experts, NAMES)
    assert (
        len(table.rows) == 8
        and table.foot[0][0].text == "all"
        and table.rows[0][2].value == experts["groups"][0]["gates"][0]
    )


@pytest.mark.parametrize("count", [2, 3, 9])
def test_every_expert_and_the_mixture_have_a_panel(count):
    experts = sample_experts()
    plane = experts["plane"] | {"experts": [experts["plane"]["mixture"]] * count, "likeness": [0.5] * (count + 1)}
    names = [f"expert {number}" for number in range(1, count + 1)]
    figure = expert_figures.experts_figure(plane, names)
    shown = [axes for axes in figure.axes if axes.axison]
    assert [axes.get_title() for axes in shown] == [*names, "mixture"] and shown[0].get_xlabel() == "likeness 0.50"
    joins = shown[0].get_lines()[: len(plane["teacher"])]
    assert np.allclose(joins[5].get_xydata(), [plane["teacher"][5], plane["experts"][0][5]])
    wide = experts | {"groups": [row | {"gates": [1 / count] * count} for row in experts["groups"]]}
    wide |= {"lengths": [row | {"gates": [1 / count] * count} for row in experts["lengths"]]}
    assert len(expert_figures.gates_figure(wide, names).axes[0].containers) == count
    text = expert_figures.describe_experts(plane, names)
    assert "48 texts" in text and "mixture 0.50" in text and "9 widest axes (52 % of the teacher's variance)" in text


def test_titles_and_labels_are_not_cut_off_and_do_not_overlap():
    plane = sample_experts()["plane"]
    for figure in (expert_figures.experts_figure(plane, NAMES), expert_figures.gates_figure(sample_experts(), NAMES)):
        figure.draw_without_rendering()
        parts = [
            part
            for axes in figure.axes
            for part in (axes.title, axes._left_title, axes.xaxis.label, *axes.get_yticklabels())
        ]
        boxes = [part.get_window_extent() for part in parts if part.get_text()]
        whole = figure.bbox.padded(1)
        assert all(
            whole.x0 <= box.x0 and box.x1 <= whole.x1 and whole.y0 <= box.y0 and box.y1 <= whole.y1 for box in boxes
        )
        assert not any(
            one.shrunk(0.98, 0.9).overlaps(other.shrunk(0.98, 0.9))
            for place, one in enumerate(boxes)
            for other in boxes[place + 1 :]
        )


def test_token_planes_name_sentence_models_and_likeness():
    rows = sample_report()["tokens"]
    figure = figures.token_planes_figure(rows)
    assert [axes.get_xlabel() for axes in figure.axes] == [
        "teacher", "student (0.81)", "untrained (0.32)", "teacher", "student (0.81)", "untrained",
    ]  # fmt: skip
    assert [axes.get_title(loc="left") for axes in figure.axes[::3]] == [row["text"] for row in rows]
    assert [text.get_text() for text in figure.axes[2].texts] == rows[0]["untrained"]["tokens"]
    text = figures.describe_token_planes(rows)
    assert (
        "tokens 6 of the teacher, 6 of the student, 7 of the untrained; likeness student 0.81, untrained 0.32." in text
    )


def test_kept_tokens_are_a_number_of_the_training():
    history = sample_report()["history"]
    values = [line["train/kept_tokens"] for line in history if "train/kept_tokens" in line]
    text = describe_kept_tokens(history)
    assert f"takes {np.mean(values[-12:]):.1f} tokens" in text and f"after {values[0]:.1f} at step 40" in text
    assert text in render_page({"history": history}, []) and "DynamicCKA" not in render_page(
        {"history": history[:1]}, []
    )
