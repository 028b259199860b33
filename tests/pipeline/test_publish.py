"""The model card's metadata that a run publishes: ids, data and license of its models."""

from __future__ import annotations

import shutil
from dataclasses import replace

import pytest
from huggingface_hub import ModelCard

from distilvec.__main__ import run_command
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


@pytest.mark.parametrize(
    ("teacher_card", "terms", "pushed"),
    [
        ("license: gemma", "count a model trained on its outputs as a derivative", False),
        ("license: cc-by-nc-4.0", "cc-by-nc-4.0, no commercial use", False),
        ("library_name: sentence-transformers", "no license found in its card", False),
        ("license: apache-2.0", "apache-2.0", True),
    ],
)
def test_the_terms_of_the_teacher_are_on_the_card_and_push_asks_for_a_license(
    tiny_recipe, tiny_model, tmp_path, capsys, teacher_card, terms, pushed
):
    """The student begins with a free model; that says nothing about the teacher whose vectors it learns."""
    free, teacher = (shutil.copytree(tiny_model, tmp_path / name) for name in ("free", "big-teacher"))
    (free / "README.md").write_text("---\nlicense: apache-2.0\n---\n", encoding="utf-8")
    (teacher / "README.md").write_text(f"---\n{teacher_card}\n---\n", encoding="utf-8")
    recipe = tiny_recipe(teacher__model=str(teacher), student__model=str(free), train__max_steps=1)
    student = run(recipe, tmp_path / "run").folder / "student"
    card = ModelCard.load(student / "README.md")
    row = next(line for line in card.text.splitlines() if line.startswith("| `big-teacher` |"))
    assert (
        terms in row
        and "| `free` | apache-2.0 |" in card.text
        and card.data.license == ("apache-2.0" if pushed else None)
    )
    assert run_command(["push", str(student), "me/mine", "--dry-run"]) == (0 if pushed else 2)
    answer = capsys.readouterr()
    assert "big-teacher (" in (answer.out if pushed else answer.err)
    assert run_command(["push", str(student), "me/mine", "--dry-run", "--license", "mit"]) == 0


def test_push_asks_for_a_license_after_an_api_and_a_table(tiny_recipe, tiny_model, tmp_path):
    """Their names are no ids of the hub, and a free start of the student does not speak for them."""
    free = shutil.copytree(tiny_model, tmp_path / "free")
    (free / "README.md").write_text("---\nlicense: apache-2.0\n---\n", encoding="utf-8")
    api = {"model": "text-embedding-3-small", "api": {"base_url": "http://127.0.0.1:9/v1"}}
    for teacher in (api, {"vectors": "table.parquet"}):
        assert hub_record(tiny_recipe(teacher=teacher, student__model=str(free))) == {}
