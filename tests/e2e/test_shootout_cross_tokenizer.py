"""The shootout across tokenizers: its members, and what its tables say."""

from __future__ import annotations

import json
import re
import statistics
from pathlib import Path

import pytest
from scipy.stats import ttest_rel

from experiments.cross_tokenizer import (
    MAIN,
    MOE_PAPER,
    MOE_PARTS,
    OF_EMO,
    OF_MOE,
    ONE_INPUT,
    PAPER,
    distillmoe_tables,
    emo_tables,
)
from experiments.readme import pages
from experiments.shootout import mark_of
from experiments.shootout_cross_tokenizer import (
    ALSO_ON,
    FORMS_ON,
    JOINT,
    METHODS,
    NO_LOGITS,
    SHORT,
    STEPS,
    SWEEPS,
    TASKS,
    TRAINED,
    Chosen,
    name_of,
    plan,
)

ROOT = Path(__file__).parents[2]


def members(task: str, folder: str = "/runs", sweep: str = "cross_tokenizer"):
    section = {**TASKS[task], "path": f"/data/{TASKS[task]['path']}"}
    return plan(
        task,
        section,
        Path(f"{folder}/start/run/student"),
        Path(f"{folder}/teacher-{task}/student"),
        Chosen([task], [sweep], False, []),
    )


FASTER = {"objective.projection": 20}
RATES = dict.fromkeys(
    ["emo", "emo-otis", "emo-all", "emo-light", "emo-special", "emo-strong", "emo-sharp", "emo-states"], FASTER
)
RATES["emo-fast"] = {"objective.projection": 100}
BY_NAME = {"seed": 0, "learning_rate_factors": {}, "max_steps": 1}  # what a member's name says


def test_the_members_differ_by_what_their_names_say_alone():
    for task in TASKS:
        found = members(task)
        names = {*OF_EMO} - {TRAINED} if task == FORMS_ON else {*METHODS, *ALSO_ON.get(task, ())} & {*OF_EMO}
        seeds = [0] if task in JOINT else [0, 1, 2]
        more = [TRAINED] if task in JOINT else []
        assert sorted(member.group for member in found) == sorted([*names] * len(seeds) + more)
        assert {member.recipe.train.seed for member in found} == {*seeds}
        same = [(m.recipe.task, m.recipe.train.model_copy(update=BY_NAME)) for m in found]
        assert all(pair == same[0] for pair in same)
        for member in found:
            train = member.recipe.train
            assert train.learning_rate_factors == RATES.get(member.group, {})
            assert train.max_steps == STEPS[task] // SHORT.get(member.group, 1)
        hidden = {m.group for m in found if m.recipe.method.options.get("on") == "hidden"}
        assert hidden == {name for name in names if name.endswith("-hidden") or ("stsb" in task and name in NO_LOGITS)}
    marks = [mark_of(member.recipe) for task in TASKS for member in members(task)]
    assert len(set(marks)) == len(marks) == 3 * (len(OF_EMO) - 1 + 7 + 2) + 2 * (7 + 1)
    again = [mark_of(member.recipe) for member in members("banking77", "/elsewhere/runs")]
    assert marks[: len(again)] == again


def test_the_second_sweep_is_trained_as_the_first_one():
    for task in TASKS:
        first, found = members(task)[0].recipe, members(task, sweep="distillmoe")
        names = {name_of(member.recipe) for member in found}
        assert (
            names < set(OF_MOE[15:])
            if task == FORMS_ON
            else names == {"distillmoe", *ALSO_ON.get(task, ())} - {*OF_EMO}
        )
        assert {m.recipe.train.seed for m in found} == {*range(1 if task in JOINT else 3)}
        for recipe in (member.recipe for member in found):
            assert recipe.train.model_copy(update={"seed": 0, "learning_rate_factors": {}}) == first.train
            slow = {"encoder.model.2.gate": 0.1, "encoder.model.2": 1}
            assert recipe.train.learning_rate_factors == (slow if name_of(recipe) == "gate-slow" else {})
            assert recipe.task == first.task and recipe.teacher == first.teacher
            assert recipe.student.model_copy(update={"experts": None}) == first.student
    also = len(ALSO_ON["stsb-separate"])
    marks = [mark_of(member.recipe) for sweep in SWEEPS for task in TASKS for member in members(task, sweep=sweep)]
    assert len(set(marks)) == len(marks) == 3 * (len(OF_EMO) - 1 + 14 + len(METHODS) + also) + 2 * (len(METHODS) + 1)


@pytest.mark.parametrize("page", ["docs/papers/emo.md", "docs/papers/distillmoe.md"])
def test_the_pages_hold_what_the_rows_give(page):
    text = (ROOT / page).read_text(encoding="utf-8")
    for name in ("emo", "cross", "one_input") if "emo" in page else ("experts", "moe"):
        part = pages()[page][name]
        assert part and part in text


@pytest.mark.parametrize(("member", "left_out"), [("emo-ira", "otis"), ("emo-otis", "ira")])
def test_the_page_names_the_part_that_a_member_leaves_out(member, left_out):
    """Against the rows of the result file, read here once more, and scipy's paired test."""
    rows = json.loads((ROOT / "results" / "shootout_cross_tokenizer.json").read_text())["rows"]
    (line,) = [
        line
        for line in (ROOT / "docs" / "papers" / "emo.md").read_text().splitlines()
        if line.startswith(f"| {member} (")
    ]
    name, *cells = line.strip("|").split("|")
    assert name.strip() == f"{member} (without {left_out})"
    for task, cell in zip(MAIN, map(str.strip, cells), strict=False):
        own, whole = (
            {row["seed"]: row["scores"][MAIN[task]] for row in rows if (row["task"], row["method"]) == (task, method)}
            for method in (member, "emo")
        )
        if not (seeds := sorted(own.keys() & whole.keys())):
            assert cell == ""
            continue
        mean, *limits = (float(figure) for figure in re.findall(r"[+-][\d.]+", cell))
        assert mean == pytest.approx(statistics.mean(own[seed] - whole[seed] for seed in seeds), abs=0.0051)
        if len(seeds) > 2:
            test = ttest_rel([own[seed] for seed in seeds], [whole[seed] for seed in seeds])
            assert limits == pytest.approx([*test.confidence_interval(0.95)], abs=0.0051)


def test_tables_and_words():
    rows = [
        {
            "task": task,
            "method": method,
            "seed": seed,
            "train_seconds": 10.0,
            "scores": {MAIN[task]: value + seed, "macro_f1": 1.0, "pearson": 2.0},
        }
        for task in ("banking77", "stsb-separate")
        for method, value in (("task", 70.0), ("emo", 60.0))
        for seed in (0, 1)
    ]
    teachers = {task: {MAIN[task]: 90.0, "macro_f1": 89.0, "pearson": 88.0} for task in ("banking77", "stsb-separate")}
    text = emo_tables(
        report := {
            "rows": rows,
            "teachers": teachers,
            "steps": {"banking77": 1400, "stsb-separate": 400},
            "batch_size": 32,
            "learning_rate": 5e-4,
            "machine": "here",
        }
    )
    assert "| task | 2 | **70.50** ± 0.71 |" in text and "| 90.00 |" in text and "mrpc" not in text
    gap = PAPER["stsb-separate"]["emo"] - PAPER["stsb-separate"]["task"]
    words = f"task above emo (by 10.00; in the paper {gap:.2f} below)"
    assert f"stsb-separate: Pairs of rows in the paper's order: 0 of 1. Reversed: {words}" in text
    shorter = emo_tables({**report, "rows": rows[:-1]})
    assert "| task | 2 |" in shorter and "| emo | 2 / 1 |" in shorter
    assert distillmoe_tables(report) == ""
    rows.append(
        {
            "task": "stsb-separate",
            "method": "distillmoe",
            "seed": 0,
            "train_seconds": 9.0,
            "scores": {"spearman": 75.0, "pearson": 2.0},
        }
    )
    text = distillmoe_tables(report)
    assert "| distillmoe | 1 |" in text
    assert "stsb-separate, methods: Pairs of rows in the paper's order: 1 of 1." in text


@pytest.mark.parametrize("task", [task for task in TASKS if task not in JOINT])
def test_the_paper_s_rows_are_members(task):
    assert ONE_INPUT.keys() == {*JOINT} and MAIN.keys() == TASKS.keys() - JOINT
    assert set(PAPER[task]) <= set(OF_EMO) and {*MOE_PAPER[task], *MOE_PARTS[task]} <= set(OF_MOE)
