"""The contract of every recipe and variant: it parses, resolves and trains two steps on tiny models."""

from __future__ import annotations

import json
import shutil

import architectures
import pytest
import yaml
from labelled import write_task
from samples import make_texts

from distilvec.config import recipe as recipes
from distilvec.config.builtin import recipe_files
from distilvec.config.schema import TaskSection
from distilvec.core.registry import method_class
from distilvec.core.task_head import TaskHead
from distilvec.data.labeled import build_examples
from distilvec.evaluation.suite import read_suite
from distilvec.models.load import load
from distilvec.pipeline.run import run
from distilvec.students.task_head import save_head

CASES = [(path, variant) for path in recipe_files() for variant in [None, *recipes.variants(path)]]


# settings that two steps on tiny models cannot tell apart
PACE = {
    *("epochs", "batch_size", "learning_rate", "final_learning_rate", "schedule", "weight_decay", "betas", "seed"),
    *("logging_steps", "checkpoint_minutes", "checkpoint_steps", "compile"),
}


def tiny_form(recipe):
    """What of a recipe is left in its tiny form: variants that differ in data, teacher, backbone, pace or a rate alone
    have the same.
    """
    student = recipe.student.model_dump(mode="json", exclude={"model", "config", "tokenizer", "revision", "max_length"})
    if student["experts"]:
        del student["experts"]["width"]
    if student["vocabulary"]:
        student["vocabulary"] |= {"size": None, "share": None, "letters": None}
    task = recipe.task and (recipe.task.type, recipe.task.encode)
    rest = recipe.model_dump(mode="json", include={"stages", "cache"})
    options = {
        name: bool(value) if isinstance(value, float) else value for name, value in recipe.method.options.items()
    }
    method = recipe.method.name, options, {name: bool(value) for name, value in recipe.method.weights.items()}
    train = recipe.train.model_dump(mode="json", exclude=PACE)
    return recipes.fingerprint(method, rest, train, student, task, len(recipe.more_teachers), recipe.teacher.live)


def distinct_forms():
    """The first case of every tiny form."""
    first = {}
    for path, variant in CASES:
        first.setdefault(tiny_form(recipes.load(path, variant)), (path, variant))
    return list(first.values())


def tiny_vocabulary(recipe):
    """Overrides that ask for as many tokens as a few texts give."""
    section = recipe.student.vocabulary
    if section and section.kind == "hybrid":
        return [f"student.vocabulary.{key}" for key in ("size=85", "share=20", "letters=seen")]
    size = {"bpe": 290, "unigram": 320, "wordpiece": 90}
    return [f"student.vocabulary.size={size.get(section.kind, 'null')}"] if section else []


def names(cases):
    return [f"{path.stem}-{variant}" for path, variant in cases]


def tiny_corpus(recipe, folder):
    """Overrides that put a few generated texts in the place of the recipe's."""
    section = recipe.student.vocabulary
    languages = ["tr", "en"] if section and section.kind == "hybrid" else ["en"]
    texts = make_texts(len(languages) * max(3 * recipe.train.batch_size, 400 * (len(languages) - 1)))
    for number, language in enumerate(languages):
        part = texts[number :: len(languages)]
        (folder / f"{language}.txt").write_text("\n".join(part), encoding="utf-8")
    sources = ", ".join(f"{{path: {folder / name}.txt, language: {name}}}" for name in languages)
    return [f"corpus.sources=[{sources}]", "corpus.holdout_batches=1"]


def tiny_student(recipe, model):
    """Overrides that put a tiny backbone in the place of the recipe's, a fresh one if it is one."""
    if recipe.student.config is None:
        return [f"student.model={model}"]
    sizes = "hidden_size: 32, num_hidden_layers: 1, num_attention_heads: 2, intermediate_size: 32"
    return [f"student.config={{model_type: bert, {sizes}}}", f"student.tokenizer={model}"]


def tiny_task(recipe, model, folder):
    """Overrides that put a generated task in the place of the recipe's, and a teacher with a head for it."""
    path = write_task(folder / "task.jsonl", recipe.task.type, 3 * recipe.train.batch_size + 10, 10)
    overrides = [
        f"task.path={path}",
        "task.limit=null",
        "task.validation_split=null",
        "task.train_split=train",
        "task.test_split=test",
    ]
    section = TaskSection(type=recipe.task.type, path=path, encode=recipe.task.encode)
    examples = build_examples(section, {}, folder / "examples")
    teacher = shutil.copytree(model, folder / "teacher")
    save_head(teacher, TaskHead(32, examples.info), examples.classes, examples.scale)
    return overrides, teacher


@pytest.mark.parametrize(("path", "variant"), CASES, ids=names(CASES))
def test_says_what_it_is_and_survives_its_own_dump(path, variant):
    recipe = recipes.load(path, variant)
    assert recipe.description and method_class(recipe.method.name)
    assert recipes.validate(yaml.safe_load(recipes.dump(recipe))) == recipe


@pytest.mark.parametrize(("path", "variant"), CASES, ids=names(CASES))
def test_documents_of_its_suite_are_in_no_corpus(path, variant):
    """What recipes meant before `documents` was a value of its own, so that their corpora and caches stay."""
    recipe = recipes.load(path, variant)
    suite = recipe.evaluation.suite
    retrieval = recipe.evaluation.builtin or (suite and any(task.type == "retrieval" for task in read_suite(suite)))
    assert not retrieval or recipe.corpus is None or recipe.corpus.exclude_evaluation == "documents"


FORMS = distinct_forms()


@pytest.fixture(scope="module")
def dense_model(tmp_path_factory):
    """The tiny model with two linear layers behind its pooling, for students that keep such."""
    folder = tmp_path_factory.mktemp("dense")
    return architectures.sentence_transformer(
        folder / "model", architectures.bert(folder / "backbone"), "mean dense:48 dense:32 normalize"
    )


@pytest.mark.parametrize(("path", "variant"), FORMS, ids=names(FORMS))
def test_trains_on_tiny_models(path, variant, tiny_model, dense_model, tmp_path, monkeypatch):
    monkeypatch.setattr(
        "distilvec.report.write.draw_report", lambda folder, found: None
    )  # pages have tests of their own
    recipe = recipes.load(path, variant)
    tiny_model = dense_model if recipe.student.dense == "keep" else tiny_model
    data, teacher = (
        (tiny_corpus(recipe, tmp_path), tiny_model) if recipe.task is None else tiny_task(recipe, tiny_model, tmp_path)
    )
    layers = recipe.student.layers
    tiny = recipes.load(
        path,
        variant,
        [
            f"teacher={{model: {teacher}, max_length: 32, live: {recipe.teacher.live}}}",
            *([f"more_teachers=[{{model: {tiny_model}, max_length: 32}}]"] if recipe.more_teachers else []),
            *tiny_student(recipe, tiny_model),
            f"student.layers={min(layers, 2) if isinstance(layers, int) else list(range(min(len(layers), 4))) if layers else 'null'}",  # noqa: E501
            "student.max_length=32",
            *tiny_vocabulary(recipe),
            *data,
            "train.max_steps=2",
            "train.device=cpu",
            "train.compile=false",  # takes longer than all else here; tests/train/test_compile.py has it
            "evaluation={}",
        ],
    )
    result = run(tiny, tmp_path / "run")
    assert result.state.step == 2 and result.state.finished
    assert load(tmp_path / "run" / "student", device="cpu").encode(["a text"]).shape == (1, 32)
    assert json.loads((tmp_path / "run" / "student" / "distillation.json").read_text())["name"] == tiny.name
