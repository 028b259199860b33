"""Comparisons as tables: the leaderboard, Markdown, one flat row per run."""

from __future__ import annotations

from html import unescape

import pytest

from distilvec.report.comparison import (
    Comparison,
    Difference,
    comparison_html,
    comparison_text,
    differences_table,
    flat_rows,
    leaderboard,
)
from distilvec.report.json_values import from_json
from distilvec.report.tables import ABSENT, to_markdown
from distilvec.report.verdicts import Lead


@pytest.mark.parametrize("tasks", [["distance", "steps"], ["Method", "Run", "% of teacher", "run"], ["a", "a std"]])
def test_a_task_may_have_the_name_of_a_column(comparison, tasks):
    for number, row in enumerate(comparison.rows):
        row.mean = {task: 50.0 + 10 * number + place for place, task in enumerate(tasks)} | {"average": 60.0}
    comparison.tasks = tasks
    table = leaderboard(comparison)
    for place, task in enumerate(tasks):
        scores = [row.mean[task] for row in comparison.rows]
        columns = [number for number, title in enumerate(table.header) if title == task]
        assert scores in [[row[column].value for row in table.rows] for column in columns]
        assert f"{50 + place:.2f}" in comparison_text(comparison)
    costs = table.header.index("minutes")
    assert [row[costs].value for row in table.rows] == [2.5, 2.5, None]
    assert [str(row[1]) for row in table.rows] == ["redact"] * 3
    header, *rows = flat_rows(comparison)
    assert len(set(header)) == len(header)
    assert float(rows[0][header.index("distance")]) == 0.25
    taken = {"distance", "steps", "run", "a std"}  # by other columns
    for task in tasks:
        name = f"task {task}" if task in taken else task
        assert float(rows[1][header.index(name)]) == comparison.rows[1].mean[task]


@pytest.fixture
def comparison():
    def row(run, mean, std, mark="", **changes):
        return {
            "run": run,
            "method": "redact",
            "seeds": 1 if std is None else 3,
            "mean": {"sts_b": mean, "average": mean},
            "std": {"sts_b": std, "average": std},
            "retention": {"sts_b": mean / 0.9, "average": mean / 0.9},
            "parameters": 17_400_000,
            "texts_per_second": None,
            "minutes": 2.5,
            "texts": 1000,
            "steps": 31.0,
            "marks": {"sts_b": mark, "average": ""} if run != "base" else {},
            "distance": 0.3,
            "distance_std": None,
            **changes,
        }

    rows = [
        row("50%_mix|b,c", 81.256, 0.5, "*", distance=0.25),
        row("base", 80.0, None),
        row("{odd}\\~^&#$", 79.0, 0.25, "***", minutes=None),
    ]
    notes = ["Differences are to base:\n95% ± x_1."]
    content = {"rows": rows, "tasks": ["sts_b"], "reference": "base", "notes": notes}
    return from_json(Comparison, content)


def test_leaderboard(comparison):
    header, (first, base, odd) = leaderboard(comparison).header, leaderboard(comparison).lines
    assert header == [
        "Run",
        "Method",
        "Seeds",
        "sts_b",
        "average",
        "% of teacher",
        "parameters (M)",
        "minutes",
        "steps",
        "distance",
    ]
    assert first == [
        "50%_mix|b,c",
        "redact",
        "3",
        "81.26* ± 0.50",
        "81.26 ± 0.50",
        "90.3",
        "17.4",
        "2.5",
        "31",
        "0.2500",
    ]
    assert base[0] == "base (reference)" and base[3] == "80.00" and odd[7] == ABSENT


def kinds(comparison):
    """What the cells of each column of the leaderboard are marked as, by its title."""
    table = leaderboard(comparison)
    return {title: [row[place].kind for row in table.rows] for place, title in enumerate(table.header)}


def by_title(comparison):
    header, *rows = flat_rows(comparison)
    return [dict(zip(header, row, strict=True)) for row in rows]


def test_a_flat_row_has_every_number(comparison):
    rows = by_title(comparison)
    assert [row["run"] for row in rows] == ["50%_mix|b,c", "base", "{odd}\\~^&#$"]
    assert [row["reference"] for row in rows] == [0, 1, 0]
    assert rows[0]["sts_b"] == 81.256 and rows[0]["sts_b std"] == 0.5 and rows[0]["sts_b mark"] == "*"
    assert rows[1]["sts_b std"] is rows[1]["texts_per_second"] is rows[2]["minutes"] is None
    assert rows[2]["parameters"] == 17_400_000
    assert rows[0]["average % of teacher"] == pytest.approx(81.256 / 0.9)


def test_a_flat_row_has_what_the_teachers_documents_give(comparison):
    comparison.rows[0].asymmetric = {"sts_b": 97.5, "average": 98.25}
    rows = by_title(comparison)
    assert rows[0]["sts_b % of teacher, asymmetric"] == 97.5
    assert [row["average % of teacher, asymmetric"] for row in rows] == [98.25, None, None]


def lead(clear, low, high, over="base", every_seed=True):
    return Lead("50%_mix|b,c", over, 1.256, low, high, every_seed, clear)


@pytest.mark.parametrize(
    ("found", "rows", "text"),
    [
        (lead(False, -1.8, 7.7), 3, "No winner yet: 50%_mix|b,c leads base by 1.26 points [\N{MINUS SIGN}1.80, 7.70]."),
        (lead(False, None, None), 3, "No winner yet: 50%_mix|b,c leads base by 1.26 points, which cannot be tested."),
        (
            lead(False, 0.4, 2.0, every_seed=False),
            3,
            "No winner yet: 50%_mix|b,c leads base by 1.26 points [0.40, 2.00], but not with every seed.",
        ),
        (lead(True, 0.4, 2.0), 2, "50%_mix|b,c leads base by 1.26 points [0.40, 2.00]."),
        (
            lead(True, 0.4, 2.0),
            3,
            "50%_mix|b,c leads every other run; the next one, base, by 1.26 points [0.40, 2.00].",
        ),
    ],
)
def test_verdict_names_a_winner_only_outside_of_the_interval(comparison, found, rows, text):
    comparison.rows, comparison.leads = comparison.rows[:rows], {"average": found}
    assert comparison.verdict == text
    assert text in comparison_text(comparison).splitlines()
    assert text in unescape(comparison_html(comparison))
    assert ("best" in kinds(comparison)["average"]) == found.clear, "nor does a bold figure name one"


def test_a_small_cost_is_not_0_and_equal_costs_have_no_best(comparison):
    for row, minutes in zip(comparison.rows, (0.031, 2.5, None), strict=True):
        row.minutes = minutes
    lines = leaderboard(comparison)
    place = lines.header.index("minutes")
    assert [line[place] for line in lines.lines] == ["0.03", "2.50", ABSENT]
    assert [row[place].kind for row in lines.rows] == ["best", "", ""]
    place = lines.header.index("parameters (M)")
    assert {row[place].kind for row in lines.rows} == {""}


def test_markdown(comparison):
    text = to_markdown(leaderboard(comparison), comparison.notes)
    lines = text.splitlines()
    assert lines[1].startswith("| --- | --- | ---: |") and lines[2].startswith(
        "| 50%\\_mix\\|b,c | redact | 3 | 81.26\\* ± 0.50 |"
    )
    assert len({line.replace("\\|", "").count("|") for line in lines[:5]}) == 1
    assert lines[-1] == "- Differences are to base: 95% ± x_1."


def test_the_best_scores_and_costs_are_bold(comparison):
    comparison.leads = dict.fromkeys(("sts_b", "average"), lead(True, 0.4, 2.0))
    best = kinds(comparison)
    assert best["sts_b"] == best["average"] == best["distance"] == ["best", "", ""]
    assert set(best["minutes"]) == {""}, "equal costs have no best"
    assert set(best["steps"]) == {""}, "more steps are neither better nor worse"


def test_runs_without_scores(comparison):
    for row in comparison.rows:
        row.mean, row.std, row.retention, row.marks = {}, {}, {}, {}
    comparison.tasks = []
    assert leaderboard(comparison).header == [
        "Run",
        "Method",
        "Seeds",
        "parameters (M)",
        "minutes",
        "steps",
        "distance",
    ]
    assert "average" not in flat_rows(comparison)[0] and kinds(comparison)["distance"] == ["best", "", ""]


def test_runs_named_by_their_methods_have_no_second_column_of_names(comparison):
    for row, method in zip(comparison.rows, ("redact", "base", "rkd"), strict=True):
        row.run = row.method = method
    assert leaderboard(comparison).header[:2] == ["Run", "Seeds"]


def test_no_p_value_is_zero(comparison):
    comparison.differences = [Difference("rkd", "base", "sts_b", 2.0, p=p) for p in (0.0002, 0.04)]
    assert [line[-1] for line in differences_table(comparison).lines] == ["<0.001", "0.040"]


def test_one_row_has_no_best(comparison):
    comparison.rows = [row for row in comparison.rows if row.run == "base"]
    assert leaderboard(comparison).lines[0][0] == "base"
    assert {kind for column in kinds(comparison).values() for kind in column} == {""}


@pytest.mark.parametrize(
    "name", ["=cmd|' /C calc'!A0", "+1", "@x", "-2", "\t=1", "a\n%\\input{x}", "[1ex]", "\u202e<script>|`x`"]
)
def test_hostile_names(comparison, name):
    for row in comparison.rows[:1]:
        row.run = row.method = name
    comparison.notes.append(f"about {name}")
    comparison.tasks = [name]
    lines = to_markdown(leaderboard(comparison), comparison.notes).splitlines()
    assert len(lines) == 5 + 3 and len({line.replace("\\|", "").count("|") for line in lines[:5]}) == 1
    assert not any("\u202e" in line or " <script" in line for line in lines)
