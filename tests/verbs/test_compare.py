"""Comparing written run folders: rows over seeds, differences against brute force, what cannot be compared."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import numpy as np
import pytest
import yaml
from refusals import refused
from scipy.stats import spearmanr
from sklearn.metrics import f1_score

from distilvec.__main__ import run_command
from distilvec.core.errors import DistilvecError
from distilvec.core.files import write_json
from distilvec.core.run_folder import RunFolder
from distilvec.evaluation.evaluator import Sample
from distilvec.evaluation.overlap import Judgement, Overlap, OverlapShare
from distilvec.evaluation.significance import average_interval, difference_interval
from distilvec.report.comparison import differences_table, leaderboard
from distilvec.report.scores import complete_averages
from distilvec.report.verdicts import make_verdict
from distilvec.verbs.compare.compare import compare_runs
from distilvec.verbs.compare.results import finished_runs

ROWS = 60


def sts(quality: float, seed: int = 0, rows: int = ROWS) -> Sample:
    """Similarities that follow the gold scores, the closer the higher `quality`; the gold scores are always the same."""  # noqa: E501
    gold = np.random.default_rng(99).integers(0, 6, rows).astype(np.float64)
    noise = np.random.default_rng([seed, 1]).normal(size=rows)
    return Sample("sts", "spearman", quality * gold + noise, gold)


def classes(quality: float, seed: int = 0) -> Sample:
    gold = np.random.default_rng(98).integers(0, 3, ROWS)
    wrong = np.random.default_rng([seed, 2]).random(ROWS) > quality
    return Sample("classification", "macro_f1", np.where(wrong, (gold + 1) % 3, gold), gold)


def value(sample: Sample, rows=slice(None)) -> float:
    predicted, gold = sample.predicted[rows], sample.gold[rows]
    if sample.type == "retrieval":
        return 100 * float(np.mean(predicted))
    if sample.metric == "spearman":
        return 100 * float(spearmanr(predicted, gold).statistic)
    return 100 * float(f1_score(gold, predicted, average="macro", zero_division=0))


@pytest.fixture
def write_run(tmp_path):
    """Write a run folder with these samples in the student's column; the teacher has 80 points everywhere."""

    def write(
        place, samples, seed=0, name=None, kept=True, data="d", column="student", minutes=2.0, speed=None, recipe=None
    ):
        folder = tmp_path / place
        RunFolder(folder).make()
        tree = {
            "name": name or folder.name,
            "train": {"seed": seed, "epochs": 1},
            "student": {"model": "teacher"},
            **(recipe or {"x": place}),
        }
        scores = {
            task: {"task": task, "type": s.type, "metric": s.metric, "value": value(s)} for task, s in samples.items()
        }
        columns = {"teacher": [{**score, "value": 80.0} for score in scores.values()], column: list(scores.values())}
        record = {
            "name": tree["name"],
            "teacher": {"fingerprint": "t", "name": "big"},
            "data": {"fingerprint": data},
            "student": {"parameters": 17_000_000},
            "method": {"name": "redact"},
            "training": {"minutes": minutes, "texts": 1000, "steps": 30},
            "metrics": {"distance": 0.3 + seed / 100},
        }
        RunFolder(folder).recipe.write_text(yaml.safe_dump(tree))
        write_json(RunFolder(folder).record, record, sealed=True)
        write_json(RunFolder(folder).report, {"format": 3, "scores": columns, "speed": speed}, sealed=True)
        if kept:
            arrays = {
                f"{column}/{t}/{part}": getattr(s, part) for t, s in samples.items() for part in ("predicted", "gold")
            }
            np.savez(RunFolder(folder).samples, format=3, **arrays)
        return folder

    return write


def row_scores(folder, column):
    """The scores of a run's model as a report reads them."""
    return finished_runs([folder])[0].run.scores[column]


def row_of(comparison, name):
    return next(row for row in comparison.rows if row.run == name)


def difference_of(comparison, name, task):
    return next(item for item in comparison.differences if (item.run, item.task) == (name, task))


# -- rows ------------------------------------------------------------------------------------------------------------


def test_seeds_of_one_recipe_become_one_row(write_run):
    samples = [{"a": sts(1.0, seed), "b": classes(0.8, seed)} for seed in range(3)]
    same = {"recipe": {"method": {"name": "redact"}}, "speed": SPEED}
    folders = [
        write_run(f"run{seed}", samples[seed], seed, name="mine", minutes=1.0 + seed, **same) for seed in range(3)
    ]
    comparison = compare_runs(folders)
    (row,) = comparison.rows
    values = {task: [value(one[task]) for one in samples] for task in ("a", "b")}
    averages = [np.mean(pair) for pair in zip(values["a"], values["b"], strict=True)]
    assert (row.run, row.seeds, row.method, row.parameters) == ("mine", 3, "redact", 17_000_000)
    for task, figures in {**values, "average": averages}.items():
        assert row.mean[task] == pytest.approx(np.mean(figures)) and row.std[task] == pytest.approx(
            np.std(figures, ddof=1)
        )
        assert row.retention[task] == pytest.approx(100 * np.mean(figures) / 80)
    assert row.distance == pytest.approx(0.31) and row.distance_std == pytest.approx(0.01)
    assert (row.minutes, row.texts, row.steps, row.texts_per_second) == (2.0, 1000, 30, 120)
    assert (row.megabytes, row.milliseconds) == (pytest.approx(11.2), 1.25)
    assert comparison.differences == [] and comparison.tasks == ["a", "b"]
    json.dumps(comparison.to_json(), allow_nan=False)


TIMES = [  # model, role, texts in a batch, texts a second
    ("student", "document", 1, 100),
    ("student", "document", 8, 120),
    ("teacher", "query", 1, 300),
    ("student", "query", 8, 900),
    ("student", "query", 1, 800),
    ("teacher", "document", 1, 999),
]
SPEED = {
    "rows": [
        {"model": model, "backend": "pytorch", "role": role, "batch_size": size, "texts_per_second": rate,
         "median_ms": 1000 * size / rate, "tokens": 16, "mean_ms": 1.0, "p99_ms": 1.0, "std_ms": 0.0}
        for model, role, size, rate in TIMES
    ],
    "models": {"teacher": {"megabytes": 90.4}, "student": {"megabytes": 11.2}},
}  # fmt: skip


def test_a_sweep_gives_its_groups(write_run, tmp_path):
    members = [(f"lr={rate},seed={seed}", f"lr={rate}", rate, seed) for rate in (1, 2) for seed in (0, 1)]
    for name, _, rate, seed in members:
        write_run(f"sweep/{name}", {"a": sts(rate, seed)}, seed, recipe={"x": rate})
    entries = [{"name": name, "group": group, "folder": name, "state": "finished"} for name, group, *_ in members]
    entries += [
        {"name": f"lr=3,seed={s}", "group": "lr=3", "folder": f"lr=3,seed={s}", "state": state}
        for s, state in ((0, "failed"), (1, "pending"))
    ]
    RunFolder(tmp_path / "sweep").make()
    RunFolder(tmp_path / "sweep").sweep.write_text(json.dumps({"members": entries}))
    comparison = compare_runs([tmp_path / "sweep"])
    assert [(row.run, row.seeds) for row in comparison.rows] == [("lr=2", 2), ("lr=1", 2)], "best average first"
    assert comparison.reference == "lr=1", "the first that was given"
    assert any("2 of 6" in note and "lr=3,seed=0, lr=3,seed=1" in note for note in comparison.notes)
    single = write_run("single", {"a": sts(0.5)})
    both = compare_runs([single, tmp_path / "sweep", tmp_path / "sweep" / "lr=1,seed=0"])
    assert {row.run: row.seeds for row in both.rows} == {"single": 1, "lr=1": 2, "lr=2": 2}
    assert any("from 1 to 2 seeds" in note for note in both.notes)
    alone = finished_runs([tmp_path / "sweep" / "lr=1,seed=1"])
    assert [(run.name, run.seed) for run in alone] == [("lr=1", 1)]


def test_jobs_with_a_folder_each_are_joined(write_run, tmp_path):
    """Two seeds of one sweep, of which each job has run one."""
    for seed in (0, 1):
        names = []
        for rate in (1, 2):
            name = f"lr={rate},seed={seed}"
            write_run(f"job{seed}/{name}", {"a": sts(rate, seed)}, seed, name=f"lr={rate}", recipe={"x": rate})
            names.append({"name": name, "group": f"lr={rate}", "folder": name, "state": "finished"})
        RunFolder(tmp_path / f"job{seed}").make()
        RunFolder(tmp_path / f"job{seed}").sweep.write_text(json.dumps({"members": names}))
    rows = compare_runs([tmp_path / "job0", tmp_path / "job1"]).rows
    assert {row.run: row.seeds for row in rows} == {"lr=1": 2, "lr=2": 2}


@pytest.mark.parametrize("place", ["sweep", "."])
def test_seeds_of_another_recipe_or_other_code_are_no_repetitions(write_run, tmp_path, place):
    """A method's file that was edited, or a key that was changed, between two commands."""
    own = {"method": {"name": "/home/me/mine.py"}}
    folders = [
        write_run(f"{place}/mine,seed={seed}", {"a": sts(1, seed)}, seed, name="mine", recipe=recipe)
        for seed, recipe in enumerate([own, own, own, {**own, "student": {"layers": 2}}])
    ]
    for folder, code in zip(folders, ("c1", "c1", "c2", "c1"), strict=True):
        record = json.loads(RunFolder(folder).record.read_text())
        record["method"]["code"] = code
        write_json(RunFolder(folder).record, record, sealed=True)
    if place == "sweep":
        entries = [{"name": f.name, "group": "mine", "folder": f.name, "state": "finished"} for f in folders]
        RunFolder(tmp_path / "sweep").make()
        RunFolder(tmp_path / "sweep").sweep.write_text(json.dumps({"members": entries}))
        folders = [tmp_path / "sweep"]
    rows = compare_runs(folders).rows
    assert sorted(row.seeds for row in rows) == [1, 1, 2] and len({row.run for row in rows}) == 3


def test_a_run_without_newer_keys_is_in_the_group_of_its_recipe(write_run, tiny_recipe):
    full = tiny_recipe().model_dump(mode="json")
    older = {**full, "train": {key: value for key, value in full["train"].items() if key != "optimizer"}}
    folders = [write_run(name, {"a": sts(1)}, name="mine") for name in ("older", "newer")]
    for seed, (folder, tree) in enumerate(zip(folders, (older, full), strict=True)):
        RunFolder(folder).recipe.write_text(yaml.safe_dump({**tree, "train": {**tree["train"], "seed": seed}}))
    assert [row.seeds for row in compare_runs(folders).rows] == [2]


def test_one_teacher_with_more_outputs_is_no_other_teacher(write_run):
    folders = [write_run(name, {"a": sts(1)}, seed) for seed, name in enumerate(("states", "plain"))]
    for folder, mark in zip(folders, ("t1", "t2"), strict=True):
        record = json.loads(RunFolder(folder).record.read_text())
        record["teacher"] |= {"fingerprint": mark, "embeddings": "same"}
        write_json(RunFolder(folder).record, record, sealed=True)
    assert not any("Different teachers" in note for note in compare_runs(folders).notes)


def test_what_is_not_one_group(write_run):
    recipe = {"method": {"name": "redact"}}
    first = write_run("a/first", {"a": sts(1)}, 0, name="mine", recipe=recipe)
    again = write_run("a/again", {"a": sts(1)}, 0, name="mine", recipe=recipe)
    other_data = write_run("a/data", {"a": sts(1)}, 1, name="mine", recipe=recipe, data="other")
    comparison = compare_runs([first, first, again, other_data])
    assert {row.run for row in comparison.rows} == {"mine (first)", "mine (again)", "mine (data)"}
    assert any("Different corpora" in note for note in comparison.notes) and any(
        "One seed a row" in note for note in comparison.notes
    )


def set_record(folder, section, **values):
    """Change values of a section of a run's record."""
    record = json.loads(RunFolder(folder).record.read_text())
    record[section] = record.get(section, {}) | values
    write_json(RunFolder(folder).record, record, sealed=True)
    return folder


def add_column(folder, column, **values):
    """Score a further model of a run on its tasks."""
    report = json.loads(RunFolder(folder).report.read_text())
    report["scores"][column] = [
        {**score, "value": values[score["task"]]} for score in report["scores"]["student"] if score["task"] in values
    ]
    write_json(RunFolder(folder).report, report, sealed=True)
    return folder


def test_the_teacher_and_the_students_before_training_stand_below_the_runs(write_run):
    folders = [write_run(name, {"a": sts(1), "b": classes(0.8)}) for name in ("first", "second", "third")]
    for folder in folders[:2]:
        add_column(folder, "untrained", a=40.0, b=20.0)
    comparison = compare_runs(folders)
    rows = {row.run: (row.mean["average"], row.retention["average"]) for row in comparison.baselines}
    assert rows == {"big (teacher)": (80.0, 100.0), "before training": (30.0, 37.5)}
    table = leaderboard(comparison)
    assert [line[0] for line in table.lines][3:] == ["big (teacher)", "before training"]
    assert len(table.rows) == 3 and len(table.foot) == 2 and all(cell.kind != "best" for cell in table.foot[0])

    add_column(folders[1], "untrained", a=40.0, b=30.0)  # students of two kinds
    names = [row.run for row in compare_runs(folders).baselines]
    assert names == ["big (teacher)", "first: before training", "second: before training"]
    add_column(folders[1], "untrained", a=40.0)  # not scored on every task
    assert [row.run for row in compare_runs(folders).baselines] == ["big (teacher)", "before training"]
    assert [row.run for row in compare_runs(folders[:1], column="untrained").baselines] == ["big (teacher)"]
    assert [row.run for row in compare_runs(folders[:1], column="teacher").baselines] == []


def test_tasks_made_of_an_index_count_in_no_average(write_run):
    """As in the report of a run: they have scores, differences and leads of their own."""
    samples = [{"index-known-item": sts(5.0, seed), "mine": sts(1.0, seed), "b": classes(0.8, seed)} for seed in (0, 1)]
    folders = [write_run(f"run{number}", of_run) for number, of_run in enumerate(samples)]
    comparison = compare_runs(folders)
    without = [write_run(f"plain{n}", {t: s[t] for t in ("mine", "b")}) for n, s in enumerate(samples)]
    expected = compare_runs(without)
    for number, of_run in enumerate(samples):
        row, plain = row_of(comparison, f"run{number}"), row_of(expected, f"plain{number}")
        assert row.mean["index-known-item"] == pytest.approx(value(of_run["index-known-item"]))
        scores = {"student": row_scores(folders[number], "student"), "teacher": row_scores(folders[number], "teacher")}
        assert row.mean["average"] == pytest.approx(complete_averages(scores)["student"]["all"])
        assert row.retention["average"] == pytest.approx(make_verdict(scores).retention)
        for name in ("average", "average by type"):
            assert row.mean[name] == pytest.approx(plain.mean[name])
            assert row.retention[name] == pytest.approx(plain.retention[name])
    average, plain = difference_of(comparison, "run1", "average"), difference_of(expected, "plain1", "average")
    assert average.difference == pytest.approx(plain.difference)
    assert average.high - average.low == pytest.approx(plain.high - plain.low, rel=0.1)


def test_runs_with_tasks_of_an_index_alone_have_no_average(write_run):
    folders = [write_run(f"run{seed}", {"index-known-item": sts(1.0, seed)}) for seed in range(2)]
    comparison = compare_runs(folders)
    assert comparison.leads.keys() == {"index-known-item"}
    assert "average" not in comparison.rows[0].mean
    assert "run0" in str(comparison) and "average" not in leaderboard(comparison).header


def test_students_of_an_index_are_ranked_by_what_they_find_in_it(write_run):
    """Their scores are beside the stored documents, and their tasks count in no average."""
    folders = []
    for name, share, distance in (("near", 0.5, 0.4), ("better", 0.9, 0.5)):
        folder = write_run(name, {"index-known-item": sts(1.0)}, column="asymmetric")
        record = json.loads(RunFolder(folder).record.read_text())
        record["overlap"] = Judgement(
            "index", 50, 500, 600, "cosine", Overlap(among=OverlapShare(share, share - 0.05, share + 0.05))
        ).to_json()
        record["metrics"]["distance"] = distance
        write_json(RunFolder(folder).record, record, sealed=True)
        folders.append(folder)
    comparison = compare_runs(folders)
    assert comparison.column == "asymmetric"
    assert [row.run for row in comparison.rows] == ["better", "near"]
    assert comparison.verdict.startswith("better finds most") and "among the index's vectors" in comparison.verdict
    assert leaderboard(comparison).caption == "Runs, best overlap@10 first"


def test_runs_of_one_name_are_told_apart_by_their_methods(write_run):
    """A variant of two sweeps, once with a method of one's own."""
    shared = {"name": "redact", "recipe": {"x": "same"}}
    first = write_run("methods/redact", {"a": sts(1)}, **shared)
    own = set_record(write_run("own/redact", {"a": sts(0.9)}, name="redact"), "method", name="mine")
    assert {row.run for row in compare_runs([first, own]).rows} == {"redact", "mine"}
    short = set_record(write_run("a/short", {"a": sts(1)}), "method", name="mine")
    other = write_run("b/short", {"a": sts(0.9)})
    assert {row.run for row in compare_runs([short, other]).rows} == {"short, mine", "short, redact"}
    third = write_run("c/redact", {"a": sts(0.8)}, name="redact")  # the same method in another recipe
    assert {row.run for row in compare_runs([first, own, third]).rows} == {
        f"redact ({folder})" for folder in (first, own, third)
    }


@pytest.mark.parametrize(("steps", "words"), [((18, 17), "not full"), ((18, 40), "18 to 40 steps"), ((18, 18), None)])
def test_different_numbers_of_steps_are_stated(write_run, steps, words):
    folders = [write_run(f"run{number}", {"a": sts(1)}) for number in range(2)]
    for folder, count in zip(folders, steps, strict=True):
        set_record(folder, "training", steps=count, epochs=1)
    notes = [note for note in compare_runs(folders).notes if "steps" in note]
    assert len(notes) == (0 if words is None else 1)
    if words is not None:
        assert words in notes[0] and ("not full" in notes[0]) == (words == "not full")


def test_scores_of_the_record_serve_where_there_is_no_report(write_run):
    folder = write_run("run", {"a": sts(1)})
    scores = json.loads(RunFolder(folder).report.read_text())["scores"]
    RunFolder(folder).report.unlink()
    record = json.loads(RunFolder(folder).record.read_text())
    write_json(RunFolder(folder).record, {**record, "scores": scores}, sealed=True)
    assert compare_runs([folder]).rows[0].mean["a"] == pytest.approx(value(sts(1)))


# -- differences -----------------------------------------------------------------------------------------------------


def test_one_seed_equals_the_interval_of_the_samples(write_run):
    ours, theirs = {"a": sts(0.6, 1), "b": classes(0.7, 1)}, {"a": sts(0.5, 2), "b": classes(0.75, 2)}
    comparison = compare_runs([write_run("theirs", theirs), write_run("ours", ours)])
    expected = {
        "a": average_interval([(ours["a"], theirs["a"])]),
        "average": average_interval([(ours[task], theirs[task]) for task in ("a", "b")]),
    }
    for task, interval in expected.items():
        found = difference_of(comparison, "ours", task)
        assert (found.difference, found.low, found.high, found.p) == pytest.approx(
            (interval.difference, interval.low, interval.high, interval.p)
        )
        assert found.reference == "theirs" == comparison.reference


def test_the_lead_is_tested_against_every_other_run(write_run):
    """Brute force for two runs; of three, one that is far behind does not make a winner of the first."""
    near, level, far = {"a": sts(0.52, 1)}, {"a": sts(0.5, 2)}, {"a": sts(0.02, 3)}
    folders = [write_run(name, side) for name, side in (("level", level), ("near", near))]
    lead = compare_runs(folders).leads["average"]
    first, second = ("near", near), ("level", level)
    if value(near["a"]) < value(level["a"]):
        first, second = second, first
    interval = average_interval([(first[1]["a"], second[1]["a"])])
    assert (lead.run, lead.over) == (first[0], second[0])
    assert (lead.difference, lead.low, lead.high) == pytest.approx((interval.difference, interval.low, interval.high))
    assert interval.low < 0 < interval.high and not lead.clear

    with_far = [*folders, write_run("far", far)]
    lead = compare_runs(with_far).leads["average"]
    assert lead.over == second[0] and not lead.clear
    assert lead.low < interval.low and lead.high > interval.high, "wider, to hold for two comparisons together"

    lead = compare_runs([folders[0], with_far[2]]).leads["a"]
    assert lead.clear and lead.low > 0 and (lead.run, lead.over) == ("level", "far")
    without = write_run("without samples", far, kept=False)
    assert lead.every_seed
    lead = compare_runs([folders[0], without]).leads["a"]
    assert lead.low is None and not lead.clear


def test_a_lead_that_one_seed_turns_round_names_no_winner(write_run):
    """The interval over test rows is far above 0; the two rows are compared seed by seed, whatever their order."""
    qualities = {"steady": {0: 0.3, 1: 0.3, 2: 0.3}, "lucky": {2: 0.9, 0: 0.9, 1: 0.2}}
    folders = {
        name: [
            write_run(f"{name}-{seed}", {"a": sts(quality, 5)}, seed=seed, name=name, recipe={"method": name})
            for seed, quality in by_seed.items()
        ]
        for name, by_seed in qualities.items()
    }
    lead = compare_runs([*folders["steady"], *folders["lucky"]]).leads["average"]
    assert (lead.run, lead.over) == ("lucky", "steady") and lead.low > 0
    assert not lead.every_seed and not lead.clear
    lead = compare_runs([*folders["steady"], *folders["lucky"][:2]]).leads["average"]
    assert lead.every_seed and lead.clear, "seed 1 is in one of the rows alone"


def search(seed: int) -> Sample:
    values = np.random.default_rng([seed, 3]).random(ROWS)
    return Sample("retrieval", "ndcg@10", values, np.ones(ROWS))


def test_averages_by_type_and_of_retrieval_against_a_loop(write_run):
    """Every average has its mean, its retention and an interval from the same resamples of its tasks."""
    sides = [
        {"a": sts(q, s), "b": search(s), "c": search(s + 10), "d": search(s + 20)} for q, s in ((0.6, 1), (0.5, 2))
    ]
    retrieval = ("b", "c", "d")

    def means(of):
        found = float(np.mean([of(task) for task in retrieval]))
        return {"average retrieval": found, "average by type": (of("a") + found) / 2}

    folders = [write_run(name, side) for name, side in (("ours", sides[0]), ("theirs", sides[1]))]
    for folder in folders:
        report = json.loads(RunFolder(folder).report.read_text())
        report["scores"]["asymmetric"] = [{**s, "value": 40.0} for s in report["scores"]["student"]]
        write_json(RunFolder(folder).report, report, sealed=True)
    comparison = compare_runs(folders, reference="theirs")
    ours = row_of(comparison, "ours")
    pairs = {task: (sample, sides[1][task]) for task, sample in sides[0].items()}
    weights = {
        "average retrieval": {"b": 1, "c": 1, "d": 1},
        "average by type": {"a": 1, "b": 1 / 3, "c": 1 / 3, "d": 1 / 3},
    }
    for name, expected in means(lambda task: value(sides[0][task])).items():
        assert ours.mean[name] == pytest.approx(expected)
        assert ours.retention[name] == pytest.approx(100 * expected / 80)
        assert ours.asymmetric[name] == pytest.approx(50.0)
        interval = average_interval([pairs[task] for task in weights[name]], list(weights[name].values()))
        found = difference_of(comparison, "ours", name)
        assert (found.low, found.high, found.p) == pytest.approx((interval.low, interval.high, interval.p))
    assert {"average by type", "average retrieval", "retrieval, %", "retrieval, %, asymmetric"} <= {
        *leaderboard(comparison).header
    }
    assert any(task == "average retrieval" for task in (row[2].text for row in differences_table(comparison).rows))


def test_several_seeds_are_averaged_row_by_row(write_run):
    ours, theirs = [classes(0.7, seed) for seed in (1, 2, 3)], [classes(0.8, seed) for seed in (4, 5)]
    folders = [write_run(f"ours{s}", {"b": x}, s, name="ours", recipe={"y": 1}) for s, x in enumerate(ours)]
    folders += [write_run(f"theirs{s}", {"b": x}, s, name="theirs", recipe={"y": 2}) for s, x in enumerate(theirs)]
    found = difference_of(compare_runs(folders, reference="theirs"), "ours", "b")
    means = [np.mean([sample.row_values for sample in seeds], axis=0) for seeds in (ours, theirs)]
    interval = difference_interval([means[0] - means[1]])
    assert (found.low, found.high, found.p) == pytest.approx((interval.low, interval.high, interval.p))
    assert found.difference == pytest.approx(np.mean([value(x) for x in ours]) - np.mean([value(x) for x in theirs]))


def test_marks_after_holm(write_run):
    folders = [
        write_run(name, {"a": sts(quality, 3)})
        for name, quality in (("good", 3.0), ("twin", 3.0), ("bad", 0.1), ("worse", 0.0))
    ]
    comparison = compare_runs(folders)
    assert [row.run for row in comparison.rows][:2] == ["good", "twin"]
    twin, bad = difference_of(comparison, "twin", "a"), difference_of(comparison, "bad", "a")
    assert (twin.difference, twin.p, twin.mark, twin.differing) == (0, 1, "", 0) and twin.low < 0 < twin.high
    assert bad.high < 0 and bad.p < 0.001 and bad.mark == "***" == row_of(comparison, "bad").marks["a"]
    assert row_of(comparison, "good").marks == {} and any("Holm for 3 comparison" in note for note in comparison.notes)


def test_one_worse_run_of_sixty_is_marked_after_holm(write_run):
    folders = [write_run(f"run{number}", {"a": sts(3.0, 3)}) for number in range(59)]
    comparison = compare_runs([*folders, write_run("bad", {"a": sts(0.1, 3)})])
    assert difference_of(comparison, "bad", "a").mark == "***"


def few_queries(values) -> Sample:
    return Sample("retrieval", "ndcg@10", np.array(values), np.arange(len(values)))


@pytest.mark.parametrize("queries", [1, 3, 5])
def test_too_few_queries_name_no_winner(write_run, queries):
    """No test of three queries can give a p below 0.25, however large the lead."""
    folders = [write_run("c", {"a": few_queries([0.9, 1.0, 1.0, 0.8, 0.9][:queries])})]
    folders.append(write_run("d", {"a": few_queries([0.4, 0.5, 0.63, 0.2, 0.3][:queries])}))
    comparison = compare_runs(folders)
    lead, difference = comparison.leads["average"], difference_of(comparison, "d", "a")
    assert (lead.run, lead.clear, lead.too_few, lead.differing) == ("c", False, True, queries)
    assert lead.low <= 0 and difference.p >= min(1, 2 / 2**queries) and difference.mark == ""
    text = comparison.verdict
    assert text.startswith("No winner yet") and f"({queries})" in text and f"{2 / 2**queries:.2g}" in text
    assert not any(comparison.wins(row, "a") for row in comparison.rows)


def test_a_large_lead_on_enough_queries_is_named(write_run):
    better = [0.9, 1.0, 1.0, 0.8, 0.9, 1.0, 0.95, 1.0]
    folders = [write_run("c", {"a": few_queries(better)}), write_run("d", {"a": few_queries([x / 2 for x in better])})]
    comparison = compare_runs(folders)
    assert comparison.leads["average"].clear and comparison.verdict.startswith("c leads d by")


def test_two_that_are_equal_on_every_row_have_no_leader(write_run):
    folders = [write_run(name, {"a": few_queries([0.9, 0.2, 1.0, 0.5] * 5)}) for name in ("c", "d")]
    assert compare_runs(folders).verdict == "No winner: c and d are equal on every test row."


def test_rows_that_do_not_match_have_no_interval(write_run):
    base = write_run("base", {"a": sts(1), "b": classes(0.8)})
    longer = write_run("longer", {"a": sts(1, rows=80), "b": classes(0.7)})
    bare = write_run("bare", {"a": sts(1), "b": classes(0.9)}, kept=False)
    comparison = compare_runs([base, longer, bare])
    found = {(item.run, item.task): item.low is not None for item in comparison.differences}
    assert found == {
        **{("longer", task): task == "b" for task in ("a", "b", "average", "average by type")},
        **{("bare", task): False for task in ("a", "b", "average", "average by type")},
    }
    assert all(np.isfinite(item.difference) for item in comparison.differences)
    assert any("longer: a; bare: a, b" in note for note in comparison.notes)
    without = compare_runs([bare, base])
    assert all(item.p is None and item.mark == "" for item in without.differences)


def test_the_reference_by_name_folder_or_mistake(write_run):
    folders = [write_run(f"runs/{name}", {"a": sts(1)}, name=f"{name}-run") for name in ("first", "second")]
    assert compare_runs(folders).reference == "first-run"
    for name in ("second-run", "second", str(folders[1])):
        assert compare_runs(folders, reference=name).reference == "second-run"
    with refused("reference", "'second-run'"):
        compare_runs(folders, reference="secnd-run")


# -- what cannot be compared -----------------------------------------------------------------------------------------


def test_other_suites_share_tasks_or_are_refused(write_run):
    one, two = write_run("one", {"a": sts(1), "b": classes(0.8)}), write_run("two", {"c": sts(1), "a": sts(2)})
    three = write_run("three", {"c": sts(1)})
    comparison = compare_runs([one, two])
    assert (
        comparison.tasks == ["a"]
        and comparison.notes[0] == "Compared on the tasks that all runs share; left out: b, c."
    )
    assert row_of(comparison, "one").mean == pytest.approx({"a": value(sts(1)), "average": value(sts(1))})
    with refused("run folder", "one: a, b"):
        compare_runs([one, three])
    other_metric = write_run("metric", {"a": classes(0.5)})
    with pytest.raises(DistilvecError, match="share no task"):
        compare_runs([three, other_metric])


def test_columns(write_run):
    asymmetric = write_run("asymmetric", {"a": sts(1)}, column="asymmetric", speed=SPEED)
    plain = write_run("plain", {"a": sts(1)})
    assert compare_runs([asymmetric], column="asymmetric").rows[0].texts_per_second == 900, (
        "only queries are the student's"
    )
    with pytest.raises(DistilvecError, match=r"^\[column\] .*'asymmetric': .*plain\."):
        compare_runs([asymmetric, plain], column="asymmetric")
    with pytest.raises(DistilvecError, match=r"^\[column\] .*'asymmetric'.* Choose teacher or student"):
        compare_runs([plain], column="asymmetric")
    with pytest.raises(DistilvecError, match=r"^\[column\] .*did you mean 'student'"):
        compare_runs([plain], column="studnt")


def test_folders_that_are_no_runs(write_run, tmp_path):
    RunFolder(tmp_path / "empty").make()
    for place in ("empty", "absent"):
        with pytest.raises(DistilvecError, match=rf"^\[run folder\] .*{place}: neither"):
            finished_runs([tmp_path / place])
    with refused("run folder"):
        compare_runs([])
    (tmp_path / "empty" / "recipe.yaml").write_text("name: x")
    with pytest.raises(DistilvecError, match="has not finished"):
        finished_runs([tmp_path / "empty"])
    entry = {"name": "a", "group": "a", "folder": "a", "state": "pending"}
    RunFolder(tmp_path / "empty").sweep.write_text(json.dumps({"members": [entry]}))
    with pytest.raises(DistilvecError, match=r"^\[run folder\] .*none of the sweep's 1 "):
        finished_runs([tmp_path / "empty"])


def test_damaged_files_are_named(write_run):
    folder, other = write_run("run", {"a": sts(1)}), write_run("other", {"a": sts(2)})
    RunFolder(folder).samples.write_bytes(RunFolder(folder).samples.read_bytes()[:200])
    with refused("samples.npz"):
        compare_runs([folder, other])
    for content in ("{", "[]", "[" * 100_000):
        RunFolder(folder).report.write_text(content)
        with refused("report.json"):
            compare_runs([folder])


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("report.json", {"scores": []}),
        ("report.json", {"scores": {"student": [{"task": "a"}]}}),
        ("report.json", {"scores": {"student": [{"task": "a", "type": "sts", "metric": "spearman", "value": "81"}]}}),
        (
            "report.json",
            {"scores": {"student": [{"task": "a", "type": "sts", "metric": "spearman", "value": float("nan")}]}},
        ),
        ("report.json", {"speed": {"rows": [{"model": "student"}]}}),
        ("report.json", {"speed": {"models": {"student": {"megabytes": "11"}}}}),
        ("report.json", {"speed": {"rows": [{"texts_per_second": 1.0, "median_ms": "slow"}]}}),
        ("record.json", {"teacher": "big"}),
        ("record.json", {"training": {"minutes": "two"}}),
        ("record.json", {"metrics": {"distance": True}}),
        ("record.json", {"student": {"parameters": []}}),
    ],
)
def test_files_of_another_shape_are_named(write_run, name, change):
    folder = write_run("run", {"a": sts(1)})
    path = RunFolder(folder).details / name
    content = json.loads(path.read_text()) | change
    write_json(path, content, sealed=True)
    key = next(iter(change))
    with pytest.raises(DistilvecError, match=rf"^\[{name}\] .*{name}: {key}.* Delete it"):
        compare_runs([folder])


@pytest.mark.parametrize(
    "arrays",
    [
        {"predicted": np.zeros((3, 2)), "gold": np.zeros(3)},
        {"predicted": np.zeros(3), "gold": np.zeros(4)},
        {"predicted": np.full(ROWS, np.nan), "gold": np.zeros(ROWS)},
        {"predicted": np.array(["a"] * ROWS), "gold": np.zeros(ROWS)},
        {"predicted": np.array([{}] * 3, dtype=object), "gold": np.zeros(3)},
    ],
)
def test_samples_that_do_not_fit(write_run, arrays):
    folder, other = write_run("run", {"a": sts(1)}), write_run("other", {"a": sts(2)})
    np.savez(RunFolder(folder).samples, **{f"student/a/{name}": values for name, values in arrays.items()})
    with refused("samples.npz"):
        compare_runs([folder, other])


# -- the command -----------------------------------------------------------------------------------------------------


def test_the_command_says_who_leads_and_then_where_all_numbers_are(write_run, tmp_path, monkeypatch, capsys):
    """Without a page the next command writes it; with a page it is that of the best run."""
    monkeypatch.chdir(tmp_path)
    for number, quality in enumerate((0.5, 20.0, 1.5, 1.0, 0.7)):
        write_run(f"run {number}", {"a": sts(quality, number)})
    assert run_command(["compare", *(f"run {number}" for number in range(5)), "--reference", "run 1"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) <= 6 and max(map(len, lines[:-1])) <= 80
    assert lines[0].startswith("run 1 leads every other run; the next one, run 2, by ")
    assert [line.split("   ")[0] for line in lines if "average" in line] == ["run 1", "run 2"]
    assert "and 3 more: run 3, run 4, run 0" in lines
    words = shlex.split(lines[-1].removeprefix("next: "))
    assert words[-2:] == ["--out", "comparison.html"] and run_command(words[1:]) == 0
    assert "Differences" in Path("comparison.html").read_text()
    *_, page, last = capsys.readouterr().out.splitlines()
    assert page == "report: comparison.html" and last == "next: distilvec export 'run 1/student' --to onnx-int8"
