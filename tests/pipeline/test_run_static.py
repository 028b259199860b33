"""Whole runs of static students: `student.layers: 0`."""

from __future__ import annotations

import json

import architectures
import numpy as np
import pytest
from commands import Command
from interrupted import interrupt
from refusals import refused
from safetensors.numpy import load_file
from samples import make_texts
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Normalize, StaticEmbedding

from distilvec.config import recipe as recipes
from distilvec.config.schema import PARTS
from distilvec.core.run_folder import RunFolder
from distilvec.evaluation.memory import measure_memory
from distilvec.models.load import load
from distilvec.pipeline.resolve import resolve
from distilvec.pipeline.run import run
from distilvec.pipeline.student import untrained_student
from distilvec.students.design import design_student
from distilvec.teachers.open import open_embedder
from distilvec.verbs.plan.plan import make_plan
from distilvec.verbs.serve.model import ServedModel

TEXTS = ["river stone bridge", "a letter from the captain of the island", "music"]


@pytest.fixture
def recipe(tiny_recipe, shared_cache):
    return tiny_recipe(student__layers=0, student__embedding={"rank": 16}, train__epochs=4, train__learning_rate=3e-4)


@pytest.fixture
def suite(tmp_path):
    texts = make_texts(40, seed=5)
    rows = [
        {"sentence1": one, "sentence2": other, "score": number % 6, "split": "test"}
        for number, (one, other) in enumerate(zip(texts[::2], texts[1::2], strict=True))
    ]
    (tmp_path / "sts.jsonl").write_text("\n".join(json.dumps(row) for row in rows))
    (tmp_path / "suite.yaml").write_text("- {name: sts, type: sts, path: sts.jsonl}\n")
    return tmp_path / "suite.yaml"


def test_a_whole_run_leaves_a_folder_that_loads_without_distilvec(recipe, suite, tmp_path, no_pages):
    changes = {"suite": suite, "parts": list(PARTS), "speed_seconds": 5.0}
    recipe = recipe.model_copy(update={"evaluation": recipe.evaluation.model_copy(update=changes)})
    result = run(recipe, tmp_path / "run")
    distance = result.validation
    assert distance["distance"] < distance["untrained_distance"]
    assert [score.task for score in result.scores["student"]] == ["sts"]
    report = result.report
    assert not report.failures
    assert {row.column for row in report.compression.rows} >= {"student"}
    sizes = report.speed.models["student"]
    assert sizes.parameters - sizes.embedding_parameters == 16 * 32  # the linear layer
    assert sizes.largest_batch_under_100_ms["query"] is not None
    assert result.record.overlap is not None

    folder = tmp_path / "run" / "student"
    record = json.loads((folder / "distillation.json").read_text())["student"]
    assert (record["layers"], record["hidden_width"], record["width"]) == (0, 16, 32)
    command = Command(tmp_path / "modules", json.dumps(TEXTS), folder, module="without_distilvec", folder=tmp_path)
    out, problems = command.communicate()
    assert command.returncode == 0, problems
    loaded = json.loads(out.strip().splitlines()[-1])
    assert loaded["refused"] == ""
    assert [kind.rpartition(".")[2] for kind in loaded["kinds"]] == ["StaticEmbedding", "Dense", "Normalize"]

    student = SentenceTransformer(str(folder), device="cpu")
    table = student[0].embedding.weight.detach().numpy()
    linear = student[1].linear.weight.detach().numpy()
    for text, vector in zip(TEXTS, loaded["vectors"], strict=True):
        ids = student.tokenizer.encode(text, add_special_tokens=False).ids
        expected = linear @ table[ids].mean(0)
        np.testing.assert_allclose(vector, expected / np.linalg.norm(expected), atol=1e-6)


def test_resume_ends_with_the_same_weights(recipe, tmp_path, monkeypatch, no_pages):
    run(recipe, tmp_path / "whole")
    interrupt(resolve(recipe, tmp_path / "stopped"), 15, monkeypatch)
    run(recipe, tmp_path / "stopped")
    for name in ("model.safetensors", "1_Dense/model.safetensors"):
        whole = load_file(RunFolder(tmp_path / "whole").last / name)
        stopped = load_file(RunFolder(tmp_path / "stopped").last / name)
        assert whole.keys() == stopped.keys()
        assert all((whole[key] == stopped[key]).all() for key in whole)
    assert run(recipe, tmp_path / "whole").verdict  # a finished run is read: nothing is built again


def test_a_run_goes_on_from_a_static_student(recipe, tmp_path, no_pages):
    first = run(recipe, tmp_path / "first")
    saved = SentenceTransformer(str(tmp_path / "first" / "student"), device="cpu")
    tree = recipe.model_dump(exclude_unset=True) | {"student": {"model": str(tmp_path / "first" / "student")}}
    tree["train"] = tree["train"] | {"learning_rate": 1e-4}
    further = recipes.validate(tree)
    start = untrained_student(resolve(further, tmp_path / "further"))
    np.testing.assert_allclose(start.encode(TEXTS), saved.encode(TEXTS), atol=1e-6)
    result = run(further, tmp_path / "further")
    assert result.validation["untrained_distance"] == pytest.approx(first.validation["distance"], rel=1e-3)
    assert result.validation["distance"] <= result.validation["untrained_distance"]
    # A method with a space of its own leaves the modules behind the table out, and says so
    (note,) = resolve(recipes.validate(tree | {"method": {"name": "rkd"}}), tmp_path / "own").student.notes
    assert note.startswith("without Dense of") and "student.dense=keep" in note
    # Opened again from what it recorded
    again = run(further, tmp_path / "further")
    assert again.validation == result.validation


def test_a_static_model_of_another_space_gets_a_fitted_layer(recipe, tmp_path, no_pages):
    tokenizer = SentenceTransformer(recipe.teacher.model, device="cpu").tokenizer.backend_tokenizer
    rows = np.random.default_rng(0).standard_normal((tokenizer.get_vocab_size(), 32)).astype(np.float16)
    other = SentenceTransformer(modules=[StaticEmbedding(tokenizer, embedding_weights=rows), Normalize()])
    other.save_pretrained(str(tmp_path / "other"))
    tree = recipe.model_dump(exclude_unset=True) | {"student": {"model": str(tmp_path / "other")}}
    result = run(recipes.validate(tree), tmp_path / "run")
    student = SentenceTransformer(str(tmp_path / "run" / "student"), device="cpu")
    assert [type(module).__name__ for module in student] == ["StaticEmbedding", "Dense", "Normalize"]
    assert result.validation["distance"] < result.validation["untrained_distance"]
    cut = recipes.validate(tree | {"student": {"model": str(tmp_path / "other"), "max_length": 5}})
    assert resolve(cut, tmp_path / "cut").student_length == 5
    assert resolve(recipes.validate(tree), tmp_path / "run").student_length == 128, "as the teacher"
    for name, value in {"size": "50%", "layers": 1, "embedding": {"rank": 4}, "lora": {}}.items():
        section = {"student": {"model": str(tmp_path / "other"), name: value}}
        with refused(f"student.{name}", "static"):
            resolve(recipes.validate(tree | section), tmp_path / "refused")


def test_no_smaller_student_is_cut_from_a_static_teacher(recipe, tmp_path, no_pages):
    run(recipe, tmp_path / "first")
    tree = recipe.model_dump(exclude_unset=True) | {"teacher": {"model": str(tmp_path / "first" / "student")}}
    for student in ({"model": "teacher", "size": "25%"}, {"model": "teacher", "layers": 1}):
        with refused("student.model", "static"):
            resolve(recipes.validate(tree | {"student": student}), tmp_path / "run")


def test_a_trimmed_vocabulary_has_fewer_rows(tiny_recipe, tmp_path, shared_cache):
    recipe = tiny_recipe(student__layers=0, student__vocabulary={"kind": "trim", "letters": "seen"})
    job = resolve(recipe, tmp_path / "run")
    whole = resolve(tiny_recipe(student__layers=0), tmp_path / "whole")
    assert job.student.layers == 0
    assert job.student.hidden_size == whole.student.hidden_size == 32  # no wider than the teacher's vectors
    assert job.student.tokenizer != whole.student.tokenizer


@pytest.mark.parametrize("method", ["tinybert", "minilm", "talas", "simcse", "distillmoe", "emo"])
def test_methods_that_read_layers_are_refused(tiny_recipe, tmp_path, method, shared_cache):
    weights = {"moe": 0, "diversity": 0} if method == "distillmoe" else {}  # it has no experts either
    recipe = tiny_recipe(student__layers=0, method={"name": method, "weights": weights})
    with refused("student.layers", "static"):
        resolve(recipe, tmp_path / "run")


def test_a_size_decides_on_the_table_of_a_static_student(tiny_recipe, tmp_path, shared_cache):
    recipe = tiny_recipe(student__layers=0, student__size="6k")
    job = resolve(recipe, tmp_path / "run")
    assert job.recipe.student.is_static
    assert job.recipe.student.size is None
    assert job.student.layers == 0
    assert job.student.hidden_size == job.recipe.student.embedding.rank == 32
    parameters = sum(weight.numel() for weight in untrained_student(job).parameters())
    assert parameters <= 6000


def test_a_static_student_is_as_wide_as_its_teachers_cut_vectors(tiny_recipe, tmp_path, shared_cache):
    """A wider table would be cut, and its tokens had been left out for it."""
    recipe = tiny_recipe(teacher__truncate_dim=8, student__layers=0, student__size="1.2k")
    job = resolve(recipe, tmp_path / "run")
    parameters = sum(weight.numel() for weight in untrained_student(job).parameters())
    assert job.recipe.student.vocabulary is None or parameters > 1000
    assert parameters <= 1200


@pytest.mark.parametrize(
    ("changes", "key"),
    [
        ({"lora": {"r": 4}}, "student.intermediate_size"),
        ({"vocabulary": {"kind": "unigram", "size": 90}}, "student.size"),
    ],
)
def test_what_does_not_go_with_a_size_is_named(tiny_recipe, tmp_path, shared_cache, changes, key):
    with refused(key):
        resolve(tiny_recipe(student={"model": "teacher", "size": "50%", **changes}), tmp_path / "run")


@pytest.mark.parametrize(
    ("method", "width", "model", "changes"),
    [
        ("offline_cosine", 24, "teacher", {}),
        ("offline_cosine", 24, "teacher", {"layers": 0}),
        ("offline_cosine", 24, "small", {"dense": "keep"}),
        ("offline_cosine", 24, "small", {"layers": 0}),
        ("offline_cosine", 32, "small", {}),
        ("simcse", 20, "small", {}),
    ],
)
def test_a_size_counts_the_linear_layer(tiny_recipe, tiny_model, tmp_path, monkeypatch, method, width, model, changes):
    """Of models of 32 hidden dimensions with a Dense module behind, in the teacher's space and in one of their own."""
    designs = []

    def design(*arguments, **options):
        designs.append(design_student(*arguments, **options))
        return designs[-1]

    monkeypatch.setattr("distilvec.pipeline.decide.design_student", design)
    small = architectures.sentence_transformer(tmp_path / "small", tiny_model, "mean dense:24 normalize")
    teacher = architectures.sentence_transformer(tmp_path / "large", tiny_model, f"mean dense:{width} normalize")
    student = {"model": str(small) if model == "small" else "teacher", "size": "50%", **changes}
    job = resolve(tiny_recipe(teacher__model=str(teacher), student=student, method={"name": method}), tmp_path / "run")
    built = sum(weight.numel() for weight in untrained_student(job).parameters())
    assert [made.parts.total for made in designs] == [built]


@pytest.mark.parametrize("name", ["gradient_checkpointing", "shard"])
def test_ways_to_train_layers_are_refused(tiny_recipe, tmp_path, name, shared_cache):
    with refused(f"train.{name}", "static"):
        resolve(tiny_recipe(student__layers=0, **{f"train__{name}": True}), tmp_path / "run")


def test_a_plan_says_what_the_student_is(tiny_recipe, tmp_path, shared_cache):
    lines = dict(make_plan(resolve(tiny_recipe(student__layers=0), tmp_path / "run")).lines)
    assert "static" in lines["student"]


def test_a_saved_student_is_served_and_embeds(recipe, tmp_path, no_pages):
    folder = tmp_path / "run" / "student"
    run(recipe, tmp_path / "run")
    student = load(folder, device="cpu")
    served = ServedModel(str(folder), device="cpu")
    np.testing.assert_allclose(served.embed(TEXTS), student.encode(TEXTS), atol=1e-6)
    counts = [len(student.tokenizer.encode(text, add_special_tokens=False).ids) for text in TEXTS]
    assert [served.measure(text)[1] for text in TEXTS] == counts
    np.testing.assert_allclose(open_embedder(str(folder)).embed(TEXTS), student.encode(TEXTS), atol=1e-6)
    assert measure_memory(folder, 2, 8, 1)["memory_mb"] > 0
