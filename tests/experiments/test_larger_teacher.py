"""Tables over seeds: each member against the one that it differs from by one key, means, and paired intervals."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import norm, sem

from distilvec.evaluation.evaluator import Sample
from experiments.larger_teacher import DISTILLMOE, EMO, RECIPE, TASKS, emo_table, packed, plan
from experiments.real_teachers import contrast_line, mean_of


def member(method, seed, accuracy):
    return {"task": "mrpc", "method": method, "seed": seed, "steps": 600, "scores": {"accuracy": accuracy}}


def test_each_member_is_compared_with_the_one_that_it_differs_from(tmp_path):
    rows = [member("task", seed, 70.0 + seed) for seed in range(3)]
    rows += [member("emo", seed, 72.0 + seed) for seed in range(3)]
    rows += [member("emo-states", 0, 75.0)]
    report = {"steps": {"mrpc": 600}, "test_rows": {"mrpc": 8}, "teachers": {"mrpc": {"accuracy": 80.0}}, "rows": rows}
    lines = {line.split("|")[1].strip(): line for line in emo_table(report).splitlines() if line.startswith("|")}
    assert "+2.00 [+2.00, +2.00]" in lines["emo"] and "`task`" in lines["emo"]
    assert "+3.00" in lines["emo-states"] and "`emo`" in lines["emo-states"]
    assert "emo-ira" not in lines, "members that were not run are left out"


def test_one_seed_has_an_interval_over_the_test_rows():
    """Against scipy's normal interval of the paired differences."""
    right = {name: np.random.default_rng(number).random(500) < 0.8 for number, name in enumerate(("task", "emo"))}
    gold = np.ones(500, dtype=np.int64)
    rows = [
        {**member(name, 0, 100 * found.mean()), "right": packed(Sample("classification", "accuracy", found * 1, gold))}
        for name, found in right.items()
    ]
    report = {
        "steps": {"mrpc": 600},
        "test_rows": {"mrpc": 500},
        "teachers": {"mrpc": {"accuracy": 80.0}},
        "rows": rows,
    }
    change = 100.0 * (right["emo"] * 1.0 - right["task"])
    low, high = norm.interval(0.95, change.mean(), sem(change))
    assert f"{change.mean():+.2f} [{low:+.2f}, {high:+.2f}]" in emo_table(report)


def test_every_member_of_the_sweep_is_in_a_table():
    members = plan("mrpc", TASKS["mrpc"], RECIPE.parent, [0], None)
    assert {part.group for part in members} == {"task", *EMO, *DISTILLMOE}
    assert {*EMO.values(), *DISTILLMOE.values()} <= {part.group for part in members}


def start(run, seed, among, score):
    shares = {"alone": {"mean": 0.5}, "among": {"mean": among}}
    scores = {"student": {"xquad-en": score}, "asymmetric": {"xquad-en": score - 1}}
    row = {"run": run, "seed": seed, "steps": 9, "distance": {"start": 1.0, "student": 0.5}, "shipped": None}
    return {**row, "overlap": {"start": shares, "student": shares}, "scores": scores}


def test_seeds_have_means_and_starts_a_paired_difference():
    rows = [start("mpnet-ridge", seed, 0.6 + seed / 100, 90.0 + seed) for seed in range(3)]
    merged = mean_of(rows)
    assert merged["overlap"]["student"]["among"]["mean"] == pytest.approx(0.61)
    assert merged["scores"]["asymmetric"]["xquad-en"] == pytest.approx(90.0) and merged["steps"] == 9
    drawn = [start("mpnet-random", seed, 0.55 + seed / 100, 88.0 + seed) for seed in range(3)]
    line = contrast_line({"rows": [*rows, *drawn]})
    assert "overlap@10 among the teacher's +5.00 [+5.00, +5.00]" in line and "xquad-en +2.00 [+2.00, +2.00]" in line
    assert contrast_line({"rows": [*rows, *drawn[:2]]}) == "", "two seeds have no interval"
