"""The command that a run ends with: the first way on that is open, and never one that is not."""

from __future__ import annotations

import shlex

import pytest
import yaml

from distilvec.report.next_step import next_step
from tests.report.report_sample import as_report

SHARE = {"mean": 0.4, "low": 0.38, "high": 0.42}
START = {"among": {"mean": 0.3, "low": 0.28, "high": 0.32}}
GAIN = {"among": {"mean": 0.1, "low": 0.08, "high": 0.12}}
INDEX = {
    "origin": "index", "queries": 500, "candidates": 5500, "texts": 6000, "similarity": "cosine",
    "student": {"among": SHARE}, "start": START, "gain": GAIN,
}  # fmt: skip
FITS = {"student": {"among": {"mean": 0.9, "low": 0.88, "high": 0.92}}}
UNCHANGED = {"gain": {"among": {"mean": 0.01, "low": -0.01, "high": 0.03}}}
STUDENT = {"base_model": "all-MiniLM-L6-v2", "layers": 6, "parameters": 22_700_000}
IMPROVING = [
    {"step": step, "eval/distance": value, "watched": "distance", "better": "lower"}
    for step, value in ((0, 0.9), (10, 0.6), (20, 0.5), (30, 0.4))
]


def step_of(judgement=None, student=None, training=None, recipe=None, history=()):
    """What the run of an index says; by default all rows, layers and texts were used."""
    teacher = {"vectors": "mydb/docs.lance", "columns": {"text": "content"}}
    stated = {"teacher": teacher, "student": {}, "train": {"epochs": "auto"}}
    for section, keys in (recipe or {}).items():
        stated[section] = stated[section] | keys
    record = {
        "student": STUDENT | (student or {}),
        "training": {"texts": 100_000, "epochs": 10, "steps": 300, "best_step": 300} | (training or {}),
        "overlap": INDEX | (judgement or {}),
    }
    content = {"record": record, "overlap": record["overlap"], "recipe": yaml.safe_dump(stated)}
    report = as_report(content | {"history": list(history)})
    report.folder = "runs/queries"
    step = next_step(report)
    assert shlex.split(step.command)[0] == "distilvec"
    return step


@pytest.mark.parametrize(
    ("changes", "why", "words"),
    [
        ({"recipe": {"train": {"max_steps": 38}}, "training": {"texts": 1216}}, "1,216 texts", "train.max_steps=null"),
        ({"recipe": {"train": {"epochs": 2}}, "training": {"texts": 6000}}, "6,000 texts", "train.epochs=auto"),
        ({"recipe": {"train": {"minutes": 3.0}}, "training": {"texts": 6000}}, "in 3 minutes. In so",
         "recipe.yaml student.size=null student.layers=0 --out runs/queries-static"),
        ({"recipe": {"train": {"minutes": 3.0}, "student": {"lora": {"r": 4}}}, "training": {"texts": 6000}}, "6,000",
         "train.minutes=null"),
        ({"recipe": {"train": {"minutes": 30.0}}, "training": {"texts": 6000}}, "6,000", "train.minutes=null"),
        ({"recipe": {"train": {"minutes": 3.0}, "student": {"layers": 0}}, "training": {"texts": 350_000},
          "student": {"layers": 0, "parameters": 8e6}}, "8.0M", "student.layers=null train.minutes=null"),
        ({"recipe": {"train": {"minutes": 1.0}}, "training": {"texts": 896}, "judgement": UNCHANGED},
         "896 texts", "train.minutes=null"),
        ({"judgement": UNCHANGED}, "", "report runs/queries --open"),
        ({"history": IMPROVING}, "still improved", "train.epochs=20"),
        ({"recipe": {"teacher": {"limit": 6000}}, "judgement": {"all_rows": 20_000}}, "6,000 of 20,000", "limit=20000"),
        ({"recipe": {"student": {"size": "5M"}}, "student": {"parameters": 5e6}}, "5.0M", "student.size=null"),
        ({}, "another student", "distill mydb/docs.lance --column text=content --student intfloat"),
        ({"student": {"base_model": "intfloat/multilingual-e5-small"}}, "", "report runs/queries --open"),
        ({"judgement": FITS}, "", "--to onnx-int8"),
        ({"training": {"fitted": True}}, "", "recipe.yaml train.epochs=auto --out runs/queries"),
        ({"training": {"best_step": 0, "learning_rate": 4e-4, "stages": [
            {"name": "only", "method": "redact", "trained": "all", "learning_rate": 4e-4, "steps": 9, "texts": 9,
             "minutes": 1.0, "dropped": True}]}}, "", "train.learning_rate=1.0e-04 --out runs/queries-slower"),
        ({"training": {"best_step": 0, "learning_rate": 3e-4, "texts": 1280}, "recipe": {"train": {"minutes": 2.0}}},
         "1,280 texts", "recipe.yaml train.minutes=null --out runs/queries-longer"),
        ({"training": {"best_step": 0, "learning_rate": 3e-2, "texts": 1280},
          "recipe": {"train": {"minutes": 2.0, "learning_rate": 3e-2}}}, "", "train.learning_rate=7.5e-03"),
        ({"training": {"best_step": 0, "learning_rate": 4e-4}, "judgement": FITS}, "untrained", "--size 5M"),
        ({"training": {"best_step": 0, "learning_rate": 4e-4}, "judgement": FITS,
          "recipe": {"student": {"size": "5M"}}}, "", "--to onnx-int8"),
    ],
)  # fmt: skip
def test_the_first_way_that_is_open(changes, why, words):
    step = step_of(**changes)
    assert why in step.why and (step.why == "") == (why == ""), step
    assert words in step.command, step


def test_a_length_that_is_enough_is_not_prolonged():
    step = step_of(recipe={"train": {"epochs": 30}}, training={"texts": 180_000})
    assert "train.epochs" not in step.command


def test_a_static_student_is_served():
    assert step_of(judgement=FITS, student={"layers": 0}).command == "distilvec serve runs/queries/student"
