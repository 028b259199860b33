"""The table of task students: its data, its commands, its words."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

from experiments.intents import CLASSES, ROWS, RUNS, command, intents_table, write_task


def test_the_task_has_the_chosen_classes_and_rows(tmp_path):
    rows = [
        {"split": split, "text": f"{split} {number}", "label": f"class {number % 25:02}"}
        for split, count in (("train", 2_500), ("test", 100))
        for number in range(count)
    ]
    with gzip.open(tmp_path / "data.jsonl.gz", "wt", encoding="utf-8") as lines:
        lines.writelines(json.dumps(row) + "\n" for row in rows)
    folder = write_task(tmp_path / "data.jsonl.gz", tmp_path / "task")
    train, test = (
        [json.loads(line) for line in (folder / f"{name}.jsonl").read_text().splitlines()] for name in ("train", "test")
    )
    assert len(train) == ROWS and len(test) == 100 * CLASSES // 25
    assert (
        {row["label"] for row in train} == {row["label"] for row in test} == {f"class {n:02}" for n in range(CLASSES)}
    )


def test_students_of_a_teacher_have_the_teacher_of_the_first_seed():
    for words in RUNS.values():
        line = command(words, Path("task"), Path("1-0/student"), Path("out"), 2)
        assert line[-3:] == ["train.seed=2", "--out", "out"] and not any("{teacher}" in word for word in line)
        assert ("teacher.model=1-0/student" in line) == ("mined" in line)


def test_means_and_deviations_over_seeds():
    rows = [
        {"run": name, "seed": seed, "accuracy": 90 + 2 * seed, "parameters": 5e6} for name in RUNS for seed in (0, 1)
    ]
    lines = intents_table({"rows": rows}).splitlines()
    assert lines[0] == "| run | parameters | accuracy (2 seeds) |" and len(lines) == 2 + len(RUNS)
    assert all(line.endswith("| 5.0 M | 91.0 ± 1.4 |") for line in lines[2:])
    assert "(1 seed)" in intents_table({"rows": rows[::2]})
