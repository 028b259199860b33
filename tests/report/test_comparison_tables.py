"""Comparisons as CSV, Markdown and LaTeX."""

from __future__ import annotations

import csv
import io
from html import unescape

import pytest

from distilvec.core.escape import one_line
from distilvec.report.comparison import (
    Comparison,
    Lead,
    comparison_csv,
    comparison_html,
    comparison_text,
    comparison_verdict,
    leaderboard,
)
from distilvec.report.json_values import from_json
from distilvec.report.tables import ABSENT, to_latex, to_markdown


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
    header, *rows = csv.reader(io.StringIO(comparison_csv(comparison)))
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


def test_csv_reads_back(comparison):
    rows = list(csv.DictReader(io.StringIO(comparison_csv(comparison))))
    assert [row["run"] for row in rows] == ["50%_mix|b,c", "base", "{odd}\\~^&#$"] and [
        row["reference"] for row in rows
    ] == ["0", "1", "0"]
    assert float(rows[0]["sts_b"]) == 81.256 and float(rows[0]["sts_b std"]) == 0.5 and rows[0]["sts_b mark"] == "*"
    assert (
        rows[1]["sts_b std"] == "" == rows[1]["texts_per_second"] == rows[2]["minutes"]
        and float(rows[2]["parameters"]) == 17_400_000
    )
    assert float(rows[0]["average % of teacher"]) == pytest.approx(81.256 / 0.9)


def test_csv_has_what_the_teachers_documents_give(comparison):
    comparison.rows[0].asymmetric = {"sts_b": 97.5, "average": 98.25}
    rows = list(csv.DictReader(io.StringIO(comparison_csv(comparison))))
    assert float(rows[0]["sts_b % of teacher, asymmetric"]) == 97.5
    assert [row["average % of teacher, asymmetric"] for row in rows] == ["98.25", "", ""]


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
    assert comparison_verdict(comparison) == text
    assert text in comparison_text(comparison).splitlines()
    assert text in unescape(comparison_html(comparison))
    bold = r"\textbf{81.26}" in to_latex(leaderboard(comparison), [])
    assert bold == found.clear, "nor does a bold figure name one"


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


def test_latex(comparison):
    comparison.leads = dict.fromkeys(("sts_b", "average"), lead(True, 0.4, 2.0))
    text = to_latex(leaderboard(comparison), comparison.notes)
    lines = [line for line in text.splitlines() if not line.startswith("%")]
    assert lines[0] == r"\begin{tabular}{llrrrrrrrr}" and lines[-1] == r"\end{tabular}"
    assert [line for line in lines if line.endswith("rule")] == [r"\toprule", r"\midrule", r"\bottomrule"]
    assert all(line.count(" & ") == 9 and line.endswith(r" \\") for line in lines if " & " in line)
    assert lines[2].startswith(r"Run & Method & Seeds & sts\_b & average & \% of teacher")
    first, base, odd = lines[4:7]
    assert first.startswith(
        r"50\%\_mix\textbar{}b,c & redact & 3 & \textbf{81.26{*}} $\pm$ 0.50 & \textbf{81.26} $\pm$ 0.50 & "
        r"\textbf{90.3}"
    )
    assert first.endswith(r"\textbf{0.2500} \\") and r"\textbf{2.5}" not in first + base, "equal costs have no best"
    assert (
        odd.startswith(r"\{odd\}\textbackslash{}\textasciitilde{}\textasciicircum{}\&\#\$ & redact")
        and " & -- & " in odd
    )
    assert "31" in first and r"\textbf{31}" not in text, "more steps are neither better nor worse"


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
    assert "average" not in comparison_csv(comparison) and r"\textbf{0.2500}" in to_latex(
        leaderboard(comparison), comparison.notes
    )


def test_one_row_has_no_best(comparison):
    comparison.rows = [row for row in comparison.rows if row.run == "base"]
    assert (
        r"\textbf" not in to_latex(leaderboard(comparison), comparison.notes)
        and leaderboard(comparison).lines[0][0] == "base"
    )


@pytest.mark.parametrize(
    "name", ["=cmd|' /C calc'!A0", "+1", "@x", "-2", "\t=1", "a\n%\\input{x}", "[1ex]", "\u202e<script>|`x`"]
)
def test_hostile_names(comparison, name):
    for row in comparison.rows[:1]:
        row.run = row.method = name
    comparison.notes.append(f"about {name}")
    comparison.tasks = [name]
    first = list(csv.reader(io.StringIO(comparison_csv(comparison))))
    assert len({len(row) for row in first}) == 1 and not any(
        cell.startswith(tuple("=+@\t")) for row in first for cell in row
    )
    assert first[1][0].removeprefix("'") == one_line(name) and first[1][2] == "3"
    lines = to_latex(leaderboard(comparison), comparison.notes).splitlines()
    code = [line for line in lines if not line.startswith("%")]
    assert len(lines) == 3 + 9 and len(code) == 9
    assert not any(line.startswith(("[", "*")) or r"\input" in line for line in code)
    lines = to_markdown(leaderboard(comparison), comparison.notes).splitlines()
    assert len(lines) == 5 + 3 and len({line.replace("\\|", "").count("|") for line in lines[:5]}) == 1
    assert not any("\u202e" in line or " <script" in line for line in lines)
