"""The contract of every recipe and variant: it parses, resolves and trains two steps on tiny models."""

from __future__ import annotations

import json

import pytest
from samples import make_texts
from sentence_transformers import SentenceTransformer

from distilvec import recipe as recipes
from distilvec.builtin import recipe_files
from distilvec.objective import method_class
from distilvec.run import Run

CASES = [(path, variant) for path in recipe_files() for variant in [None, *recipes.variants(path)]]


@pytest.mark.parametrize(("path", "variant"), CASES, ids=[f"{path.stem}-{variant}" for path, variant in CASES])
def test_trains_on_tiny_models(path, variant, tiny_model, tmp_path):
    recipe = recipes.load(path, variant)
    assert recipe.description and method_class(recipe.method.name)
    assert recipes.validate(__import__("yaml").safe_load(recipes.dump(recipe))) == recipe

    texts = tmp_path / "texts.txt"
    texts.write_text("\n".join(make_texts(3 * recipe.train.batch_size)), encoding="utf-8")
    layers = recipe.student.layers
    tiny = recipes.load(
        path,
        variant,
        [
            f"teacher.model={tiny_model}",
            "teacher.max_length=32",
            f"student.model={tiny_model}",
            f"student.layers={min(layers, 2) if isinstance(layers, int) else list(range(min(len(layers), 4))) if layers else 'null'}",
            "student.max_length=32",
            f"corpus.sources=[{{path: {texts}}}]",
            "corpus.holdout_batches=1",
            "train.max_steps=2",
            "train.device=cpu",
            "evaluation={}",
        ],
    )
    result = Run(tiny, tmp_path / "run").execute()
    assert result.state.step == 2 and result.state.finished
    assert SentenceTransformer(str(tmp_path / "run" / "student"), device="cpu").encode(["a text"]).shape == (1, 32)
    assert json.loads((tmp_path / "run" / "student" / "distillation.json").read_text())["name"] == tiny.name
