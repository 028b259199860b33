"""REDACT's recipe has the paper's texts (section 3.1) and what its figures need; short sources are reported."""

from __future__ import annotations

import pytest

from distilvec.config import recipe as recipes
from distilvec.config.builtin import recipe_file
from distilvec.pipeline.resolve import resolve
from distilvec.verbs.plan.plan import make_plan


def test_the_papers_sources():
    recipe = recipes.load(recipe_file("redact"))
    limits: dict[str, int] = {}
    for source in recipe.corpus.sources:
        name = (source.dataset or source.name).partition("/")[0] if source.name is None else source.name.split("-20")[0]
        limits[name] = limits.get(name, 0) + (source.limit or 0)
    assert (
        limits["cc-news"] == 900_000 and limits["vocabulary"] == 800_000 and limits["sentence-transformers"] == 979_000
    )
    assert limits["HuggingFaceFW"] == 3_000_000 and limits["microsoft"] == 502_000 and limits["mandarjoshi"] == 73_000
    assert sum(source.tokenizer is not None for source in recipe.corpus.sources) == 1
    assert [source.split for source in recipe.corpus.sources if source.dataset == "colbertv2/lotte"] == [
        f"{kind}_{part}" for kind in ("search", "forum") for part in ("dev", "test")
    ]


@pytest.mark.parametrize("name", ["minilm", "tinybert", "distilbert"])
def test_rows_of_table_4_have_the_same_texts(name):
    """REDACT's table 4 compares add-ons on one corpus."""
    assert recipes.load(recipe_file(name)).corpus == recipes.load(recipe_file("redact")).corpus


def test_margin_and_quantized_vectors_come_out_of_the_run():
    recipe = recipes.load(recipe_file("redact"))
    assert recipe.train.keep_students and recipe.evaluation.suite.name == "english.yaml"
    assert {"margin", "compression"} <= set(recipe.evaluation.parts)


def test_a_source_below_its_limit_is_reported_by_prepare_and_plan(tiny_recipe, tmp_path, capsys):
    (source,) = tiny_recipe().model_dump(mode="json")["corpus"]["sources"]
    sources = [source | {"limit": 900, "name": "news"}]
    job = resolve(tiny_recipe(corpus__sources=sources), tmp_path / "run")
    line = "news has 200 distinct texts, fewer than its limit of 900"
    assert f"warning: {line}" in " ".join(capsys.readouterr().err.split())
    assert ["  warning", line] in make_plan(job).lines
    resolve(tiny_recipe(corpus__sources=[source | {"limit": 150}]), tmp_path / "run")
    assert "warning" not in capsys.readouterr().err
    (tmp_path / "some.txt").write_text("\n".join(["again"] * 10 + [f"text {i}" for i in range(200)]))
    first = {"path": str(tmp_path / "some.txt"), "limit": 90, "sample": "first", "name": "some"}
    resolve(tiny_recipe(corpus__sources=[first]), tmp_path / "run")
    assert "some gives 81 distinct texts, fewer than its limit of 90: the others of its first texts" in " ".join(
        capsys.readouterr().err.split()
    )
