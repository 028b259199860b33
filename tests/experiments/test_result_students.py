"""The table of the students for use: shares of the teacher, in the order of the recipe."""

from __future__ import annotations

from pathlib import Path

import pytest

from distilvec.verbs.run.sweep import expand_sweep
from experiments.result_students import TITLES, distances_table, students_table, tasks_table
from experiments.untouched import TITLE, Untouched

RECIPE = Path(__file__).parents[2] / "recipes" / "students.yaml"


def row(name: str, teacher: str = "mpnet", **scores: float) -> dict[str, object]:
    share = {"mean": 0.5, "low": 0.45, "high": 0.55}
    return {
        "name": name,
        "teacher": teacher,
        "teacher_parameters": 100_000_000,
        "parameters": 4_960_000,
        "overlap": {"student": {"among": share}},
        "scores": {
            "teacher": dict.fromkeys(scores, 80.0),
            "student": scores,
            "asymmetric": {task: value - 1 for task, value in scores.items()},
        },
        "averages": {
            "teacher": {"all": 80.0, "retrieval": 50.0},
            "student": {"all": 72.0, "retrieval": 40.0},
            "asymmetric": {"all": 70.0, "retrieval": 45.0},
        },
        "int8": {"megabytes": 4.96, "milliseconds": 1.24},
        "milliseconds": {"student": 3.0, "teacher": 60.4},
    }


def cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip("|").split("|")]


def test_a_line_has_shares_of_the_teacher():
    lines = students_table({"rows": [row("english-5m", stsb=70.0)]}).splitlines()
    assert len({line.count("|") for line in lines}) == 1
    found = dict(zip(cells(lines[0]), cells(lines[2]), strict=True))
    assert found["teacher"] == "mpnet, 100 M"
    assert found["parameters"] == "5.0 M"
    assert (found["average, %"], found["retrieval, %"], found["asymmetric, %"]) == ("90.0", "80.0", "90.0")
    assert (found["int8, MB"], found["int8, ms"], found["teacher, ms"]) == ("5", "1.2", "60")


def test_where_every_task_is_retrieval_its_average_is_that_of_all():
    only = row("ten-languages-30m", "e5", tquad=60.0)
    for averages in only["averages"].values():
        averages.pop("retrieval", None)
    lines = students_table({"rows": [only]}).splitlines()
    found = dict(zip(cells(lines[0]), cells(lines[2]), strict=True))
    assert found["retrieval, %"] == found["average, %"]


def test_tasks_of_some_students_stand_beside_their_teacher():
    found = {
        "rows": [row("english-5m", stsb=70.0), row("english-10m", stsb=75.0), row("turkish-20m", "e5", tquad=60.0)]
    }
    lines = [cells(line) for line in tasks_table(found, ("english-5m", "english-10m")).splitlines()]
    assert lines[2:] == [["stsb", "80.0", "70.0", "69.0", "75.0", "74.0"]]
    assert {len(line) for line in lines} == {6}


def test_the_untouched_small_model_stands_beside_students_of_mpnet_and_is_bold_where_it_wins():
    rival = Untouched({"cranfield": 51.0, "stsb": 69.0}, {"all": 71.0, "retrieval": 49.0})
    found = {"rows": [row("english-5m", cranfield=40.0, stsb=70.0), row("turkish-20m", "e5", tquad=60.0)]}
    lines = [cells(line) for line in students_table(found, rival).splitlines()]
    assert lines[3] == [TITLE, "", "22.7 M", "", "88.8", "**98.0**", "", "", "", ""]
    by_task = {line[0]: line[-1] for line in map(cells, tasks_table(found, ("english-5m",), rival).splitlines())}
    assert (by_task["task"], by_task["cranfield"], by_task["stsb"]) == (TITLE, "**51.0**", "69.0")


def test_distance_and_overlap_are_shown_before_and_after():
    student = row("english-5m", stsb=70.0)
    student["distance"] = {"start": 0.9, "student": 0.7}
    before, after = {"mean": 0.2}, {"mean": 0.5}
    student["overlap"] = {
        "start": {"alone": before, "among": before},
        "student": {"alone": after, "among": after},
    }
    line = cells(distances_table({"rows": [student]}, ("english-5m",)).splitlines()[2])
    assert line[2:5] == ["0.900 → 0.700", "0.200 → 0.500", "0.200 → 0.500"]
    assert line[5:] == ["90.0", "80.0", "90.0"]


@pytest.mark.parametrize("names", [(), ("english-23m",)])
def test_without_its_students_a_table_is_empty(names):
    found = {"rows": [row("english-5m", stsb=70.0)]}
    assert tasks_table(found, names) == distances_table(found, names) == ""


def test_every_student_of_the_recipe_has_a_title():
    members = expand_sweep(RECIPE, [])
    assert [member.name.split(",")[0] for member in members] == list(TITLES)
