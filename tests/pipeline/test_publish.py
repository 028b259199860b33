"""The model card's metadata that a run publishes: ids, data and license of its models."""

from __future__ import annotations

import shutil
from dataclasses import replace

import pytest
from huggingface_hub import ModelCard

from distilvec.evaluation.speed import Speed, SpeedRow
from distilvec.pipeline.publish import _speed_record, hub_record
from distilvec.pipeline.run import run
from distilvec.report.record import SpeedRecord

pytestmark = pytest.mark.usefixtures("no_pages")


def test_base_models_and_data_are_ids(tiny_recipe):
    """The student's base first, then the teachers; folders and other kinds of sources are left out."""
    sources = [{"dataset": "org/texts"}, {"dataset": "."}, {"builtin": "python-docstrings"}]
    recipe = tiny_recipe(corpus__sources=sources, teacher__model="org/large", student__model="org/small")
    assert hub_record(recipe) == {"base_model": ["org/small", "org/large"], "datasets": ["org/texts"]}
    recipe = tiny_recipe(teacher__model="org/large", teacher__adapters=["org/adapter"])
    assert hub_record(recipe) == {"base_model": ["org/large", "org/adapter"]}
    fresh = {"config": {"model_type": "bert"}, "tokenizer": "org/tokenizer"}
    assert hub_record(tiny_recipe(teacher__model="all-MiniLM-L6-v2", student=fresh)) == {
        "base_model": ["sentence-transformers/all-MiniLM-L6-v2"]
    }
    table = tiny_recipe(teacher={"vectors": "table.parquet"}, student__model="org/small")
    assert hub_record(table) == {"base_model": ["org/small"]}


def test_the_speed_of_the_card_is_that_of_one_query():
    """Time and ratio are of the same batch: over larger ones a small student is faster or slower than for one query."""
    rows = [
        SpeedRow(model, backend, "query", size, 16, 9.0, median, 9.0, 0.0, 1.0)
        for model, backend, size, median in [
            ("teacher", "pytorch", 1, 6.0), ("teacher", "pytorch", 8, 40.0), ("teacher", "onnx", 1, 5.0),
            ("student", "pytorch", 1, 4.0), ("student", "pytorch", 8, 5.0), ("student", "onnx", 1, 1.0),
        ]
    ]  # fmt: skip
    speed = Speed(rows=rows, ratio={"query": 3.5})
    assert _speed_record(speed) == SpeedRecord(4.0, 16, 1.5)
    alone = replace(speed, rows=[row for row in rows if row.model == "student"])
    assert _speed_record(alone) == SpeedRecord(4.0, 16, None)
    assert _speed_record(replace(speed, rows=rows[:3])) is None


def test_the_card_keeps_the_origin_of_models_that_are_gone(tiny_recipe, tiny_model, tmp_path):
    """The student is the teacher's own backbone: its base model is no "teacher" and no path."""
    own = shutil.copytree(tiny_model, tmp_path / "own")
    (own / "README.md").write_text("---\nbase_model: org/base\nlicense: mit\n---\n", encoding="utf-8")
    recipe = tiny_recipe(teacher__model=str(own), train__max_steps=1, student__layers=[0, 2])
    student = run(recipe, tmp_path / "run").folder / "student"
    text = (student / "README.md").read_text(encoding="utf-8")
    card = ModelCard(text)
    assert (card.data.base_model, card.data.license, str(card)) == (["org/base"], "mit", text)
    assert "of `own`)" in text and str(tmp_path) not in text
    (own / "README.md").unlink()
    run(recipe, tmp_path / "run")
    assert (student / "README.md").read_text(encoding="utf-8") == text
