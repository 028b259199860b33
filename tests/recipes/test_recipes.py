"""The contract of every recipe and variant: it parses, resolves and trains two steps on tiny models."""

from __future__ import annotations

import functools
import inspect
import json
import shutil
from collections import Counter
from pathlib import Path

import architectures
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from jobs import train
from labelled import write_task
from refusals import refused
from samples import make_texts

from distilvec.config import recipe as recipes
from distilvec.config.builtin import recipe_files, recipe_folder
from distilvec.config.schema import TaskSection
from distilvec.config.yaml_dialect import load_yaml
from distilvec.core.registry import method_class
from distilvec.core.task_head import TaskHead
from distilvec.data.examples import build_examples
from distilvec.models.load import load
from distilvec.pipeline.resolve import resolve
from distilvec.pipeline.run import run
from distilvec.pipeline.texts import check_domains
from distilvec.students.task_head import save_head

TASKS = {"patent", "imdb", "banking77", "scitail", "control", "anli-r2", "stsb", "sts12", "sick"}
CLASSES = TASKS - {"stsb", "sts12", "sick"}
VALIDATED = TASKS - {"banking77", "sts12"}  # sets with an official validation split
TOKEN_LEVEL = [path for path in recipe_files() if len(TASKS & {*recipes.variants(path)}) > 2]


def cases():
    """Every recipe with each variant, and with the variants that its sweep combines."""
    for path in recipe_files():
        combined = [name for name in (recipes.read_tree(path).get("sweep") or {}).get("variants") or [] if "+" in name]
        yield from ((path, variant) for variant in [None, *recipes.variants(path), *combined])


CASES = list(cases())
load_case = functools.cache(recipes.load)  # a recipe is frozen


# settings that two steps on tiny models cannot tell apart
PACE = {
    *("epochs", "batch_size", "learning_rate", "final_learning_rate", "schedule", "weight_decay", "betas", "seed"),
    *("logging_steps", "checkpoint_minutes", "checkpoint_steps", "compile", "max_steps", "keep_students", "window"),
}


BATCH = 16  # rows of a batch of every tiny form


def leaves(tree, key=""):
    """The values of a tree of settings by dotted key, numbers that are no counts as whether they are zero."""
    if isinstance(tree, dict) and tree:
        for name, value in tree.items():
            yield from leaves(value, f"{key}.{name}")
    else:
        yield key, bool(tree) if isinstance(tree, float) else str(tree)


def tiny_form(recipe):
    """What of a recipe is left in its tiny form, as {(method, key, value)}: variants that differ in data, teacher,
    backbone, pace or a rate alone have the same.
    """
    student = recipe.student.model_dump(mode="json", exclude={"model", "config", "tokenizer", "revision", "max_length"})
    student["layers"] = tiny_layers(recipe)
    for part, sizes in (("experts", ["width"]), ("vocabulary", ["size", "share", "letters"]), ("embedding", ["rank"])):
        student[part] = student[part] and {**student[part], **dict.fromkeys(sizes)}
    student["intermediate_size"] = bool(student["intermediate_size"])
    tree = {
        "student": student,
        "train": recipe.train.model_dump(mode="json", exclude=PACE),
        "method": recipe.method.model_dump(mode="json"),
        "rest": recipe.model_dump(mode="json", include={"stages", "cache"}),
        "task": recipe.task and (recipe.task.type, recipe.task.encode),
        "teachers": (len(recipe.more_teachers), recipe.teacher.live),
    }
    return {(recipe.method.name, *leaf) for leaf in leaves(tree)}


def published_form(recipe):
    """What of a tiny form evaluation and publishing read, as {(key, value)}; weights, options and rates only change
    what is in it.
    """
    student = recipe.student.model_dump(mode="json", include={"pooling", "dense", "vocabulary", "attention", "lora"})
    vocabulary = student.pop("vocabulary")
    tree = {
        "method": recipe.method.name,
        "student": student,
        "vocabulary": vocabulary and vocabulary["kind"],
        "experts": bool(recipe.student.experts),
        "stages": bool(recipe.stages),
        "task": recipe.task and (recipe.task.type, recipe.task.encode),
        "teachers": (len(recipe.more_teachers), recipe.teacher.live),
    }
    return set(leaves(tree))


def needed(forms):
    """The cases without those of whose form every part is in another one's, too."""
    kept = dict(forms)
    found = Counter(part for form in kept.values() for part in form)
    for case, form in reversed(forms.items()):
        if all(found[part] > 1 for part in form):
            found.subtract(kept.pop(case))
    return list(kept)


def chosen_forms():
    """Cases that have every setting of every method, and every recipe; and which of them are published."""
    loaded = {case: load_case(*case) for case in CASES}
    trained = needed({case: {case[0], *tiny_form(recipe)} for case, recipe in loaded.items()})
    published = needed({case: published_form(loaded[case]) for case in trained})
    return [(*case, case in published) for case in trained]


def tiny_layers(recipe):
    """The layers of the tiny student, which has as many as the recipe's but at most two, or four by number."""
    layers = recipe.student.layers
    return min(layers, 2) if isinstance(layers, int) else layers and list(range(min(len(layers), 4)))


def tiny_vocabulary(recipe):
    """Overrides that ask for as many tokens as a few texts give."""
    section = recipe.student.vocabulary
    if section and section.kind == "hybrid":
        return [f"student.vocabulary.{key}" for key in ("size=85", "share=20", "letters=seen")]
    size = {"bpe": 290, "unigram": 320, "wordpiece": 90}
    return [f"student.vocabulary.size={size.get(section.kind, 'null')}"] if section else []


def names(cases):
    return [f"{path.stem}-{variant}" for path, variant, *_ in cases]


def tiny_corpus(recipe, folder):
    """Overrides that put a few generated texts in the place of the recipe's."""
    section = recipe.student.vocabulary
    languages = ["tr", "en"] if section and section.kind == "hybrid" else ["en"]
    texts = make_texts(len(languages) * max(3 * BATCH, 400 * (len(languages) - 1)))
    folder = folder / f"{len(languages)} languages"
    folder.mkdir(exist_ok=True)
    for number, language in enumerate(languages):
        part = texts[number :: len(languages)]
        (folder / f"{language}.txt").write_text("\n".join(part), encoding="utf-8")
    sources = ", ".join(f"{{path: {folder / name}.txt, language: {name}}}" for name in languages)
    return [f"corpus.sources=[{sources}]", f"corpus.validation_rows={BATCH}"]


def tiny_index(model, folder):
    """Overrides that name an index of generated texts, and clicks on it."""
    path, clicks = folder / "index.parquet", folder / "clicks.csv"
    texts = make_texts(150)
    pq.write_table(pa.table({"text": texts, "embedding": list(load(model, device="cpu").encode(texts))}), path)
    rows = [f"query {number},{number}" for number in range(2 * BATCH)]
    clicks.write_text("\n".join(["query,id", *rows]))
    return [f"teacher={{vectors: {path}}}", f"pairs={clicks}", f"corpus.validation_rows={BATCH}"]


def tiny_student(recipe, model):
    """Overrides that put a tiny backbone in the place of the recipe's, a fresh one if it is one."""
    if recipe.student.config is None:
        return [f"student.model={model}"]
    sizes = "hidden_size: 32, num_hidden_layers: 3, num_attention_heads: 2, intermediate_size: 32"
    return [f"student.config={{model_type: bert, {sizes}}}", f"student.tokenizer={model}"]


def tiny_task(recipe, model, folder):
    """Overrides that put a generated task in the place of the recipe's, and a teacher with a head for it; every task
    of a kind is made once.
    """
    folder = folder / f"{recipe.task.type} {recipe.task.encode} {model.parent.name}"
    path, teacher = folder / "task.jsonl", folder / "teacher"
    if not folder.exists():
        folder.mkdir()
        write_task(path, recipe.task.type, 3 * BATCH + 10, 10)
        section = TaskSection(type=recipe.task.type, path=path, encode=recipe.task.encode)
        examples = build_examples(section, {}, folder / "examples")
        save_head(shutil.copytree(model, teacher), TaskHead(32, examples.info), examples.classes, examples.scale)
    overrides = [
        f"task.path={path}",
        "task.limit=null",
        "task.validation_split=null",
        "task.train_split=train",
        "task.test_split=test",
    ]
    return overrides, teacher


@pytest.mark.parametrize(("path", "variant"), CASES, ids=names(CASES))
def test_says_what_it_is_and_survives_its_own_dump(path, variant):
    recipe = load_case(path, variant)
    assert recipe.description and method_class(recipe.method.name)
    assert recipes.validate(load_yaml(recipes.dump(recipe), "a dump")) == recipe


@pytest.mark.parametrize(("path", "variant"), CASES, ids=names(CASES))
def test_documents_are_left_out_where_a_paper_is_repeated_and_nowhere_else(path, variant):
    """A user's own texts, and his documents, are trained on. quickstart's texts and suite are one set, split in two."""
    recipe = load_case(path, variant)
    if recipe.corpus is not None and recipe.corpus.exclude_evaluation == "documents":
        assert path.stem == "quickstart" or (recipe.paper and variant not in ("local", "scores"))


@pytest.mark.parametrize(("path", "variant"), CASES, ids=names(CASES))
def test_a_local_variant_states_nothing_that_a_teacher_of_ones_own_has(path, variant):
    """Prompts, pooling and lengths of a paper's teacher would be those of any teacher that is named at the end."""
    recipe = load_case(path, variant)
    if recipe.corpus is not None and variant == "local" and recipe.student.model == "teacher":
        assert recipe.teacher.prompts is None and recipe.student.pooling is None and recipe.student.max_length is None


@pytest.mark.parametrize("path", TOKEN_LEVEL, ids=lambda path: path.stem)
def test_token_level_recipes_have_the_tasks_of_the_papers(path):
    found = {*recipes.variants(path)}
    assert found >= CLASSES | {"tinybert-4l", "tinybert-6l", "local"} and TASKS & found in (CLASSES, TASKS)
    assert path.stem == "task" or found >= {"bge-m3", "qwen3"}
    for task in TASKS & found:
        recipe = load_case(path, task)
        assert recipe.task.validation_split == ("validation" if task in VALIDATED else None)
        assert recipe.task.name == task and (path.stem == "task" or Path(recipe.teacher.model).parts[-2] == task)


def test_the_token_level_recipes_are_those_of_the_papers():
    baselines = {"uld", "mined", "dskd", "multilevel_ot", "cdm", "task"}
    assert {path.stem for path in TOKEN_LEVEL} == {"emo", "distillmoe", *baselines}


@pytest.mark.parametrize("path", TOKEN_LEVEL, ids=lambda path: path.stem)
def test_task_teacher_and_student_combine(path):
    if path.stem == "task":
        return
    recipe = recipes.load(path, "imdb+qwen3+tinybert-4l")
    assert recipe.teacher.model.endswith("runs/teachers/imdb_qwen3/student") and recipe.task.name == "imdb"
    assert recipe.student.model == "huawei-noah/TinyBERT_General_4L_312D"


@pytest.mark.parametrize("path", TOKEN_LEVEL, ids=lambda path: path.stem)
def test_local_students_have_never_seen_the_teacher(path):
    student = load_case(path, "local").student
    assert student.model is None and student.config and student.vocabulary.kind == "bpe"


def test_local_distillmoe_has_the_setting_that_the_sweep_measured():
    """The defaults of the method fill in what one of the two files leaves out."""
    folder = recipe_folder()
    found = [load_case(folder / "distillmoe.yaml", variant) for variant in ("local", "local+printed")]
    measured = [load_case(folder / "sweeps" / "distillmoe.yaml", name) for name in ("gate-held-residual", "distillmoe")]
    settings = inspect.signature(method_class("distillmoe").__init__).parameters.values()
    defaults = {setting.name: setting.default for setting in settings if setting.default is not setting.empty}
    defaults["distillation_weight"] = 0.5
    for ours, theirs in zip(found, measured, strict=True):
        assert {**defaults, **ours.method.options} == {**defaults, **theirs.method.options}
        assert ours.student.experts == theirs.student.experts


def test_forms_that_the_pages_advise():
    folder = recipe_folder()
    ours, theirs = (
        load_case(folder / "emo.yaml", "states"),
        load_case(folder / "sweeps/cross_tokenizer.yaml", "emo-states"),
    )
    assert ours.method.options["cost"] == theirs.method.options["cost"] == "cosine"
    assert recipes.load(folder / "emo.yaml", "local+states").method.options["cost"] == "cosine"
    updates = {variant: load_case(folder / "talas.yaml", variant).train.update for variant in (None, "local")}
    assert updates[None].name == "asam" and updates[None].rho == 0.05 and updates["local"].name == "plain"


@pytest.mark.parametrize(("path", "variant"), CASES, ids=names(CASES))
def test_no_task_out_of_domain_is_trained_on(path, variant):
    check_domains(load_case(path, variant))


@pytest.mark.parametrize("name", ["banking77", "tweeteval_sentiment", "mrpc"])
def test_a_wrong_domain_is_refused(name, tmp_path):
    suite = (recipe_folder() / "suites" / "out_of_domain.yaml").read_text(encoding="utf-8")
    suite = suite.replace("../../../shared", str(recipe_folder().resolve().parents[1] / "shared"))
    wrong = tmp_path / "suite.yaml"
    wrong.write_text(
        suite.replace(f"name: {name}, type", f"name: {name}, domain: out, type")
        .replace("domain: out, type: classification, domain: in", "domain: out, type: classification")
        .replace("domain: out, type: pair, domain: in", "domain: out, type: pair")
    )
    path = next(path for path in recipe_files() if path.stem == "out_of_domain")
    recipe = recipes.load(path, "dskd", [f"evaluation.suite={wrong}"])
    with refused("evaluation.suite", f"'{name}'"):
        check_domains(recipe)


FORMS = chosen_forms()


@pytest.fixture(scope="module")
def dense_model(tmp_path_factory):
    """The tiny model with two linear layers behind its pooling, for students that keep such."""
    folder = tmp_path_factory.mktemp("dense")
    return architectures.sentence_transformer(
        folder / "model", architectures.bert(folder / "backbone"), "mean dense:48 dense:32 normalize"
    )


@pytest.fixture(scope="module")
def shared(tmp_path_factory):
    """Texts, tasks, teachers and the cache of every form: what two of them have in common is computed once."""
    return tmp_path_factory.mktemp("shared")


@pytest.mark.parametrize(("path", "variant", "published"), FORMS, ids=names(FORMS))
def test_trains_on_tiny_models(
    path, variant, published, tiny_model, dense_model, shared, tmp_path, no_pages, sizes_of_the_real_model
):
    """Those that are published run to their end, the others to the end of their training."""
    recipe = load_case(path, variant)
    tiny_model = dense_model if recipe.student.dense == "keep" else tiny_model
    data, teacher = (
        (tiny_corpus(recipe, shared), tiny_model) if recipe.task is None else tiny_task(recipe, tiny_model, shared)
    )
    sources = [f"teacher={{model: {teacher}, max_length: 32, live: {recipe.teacher.live}}}", *data]
    if recipe.pairs is not None:
        sources = tiny_index(tiny_model, shared)
    tiny = recipes.load(
        path,
        variant,
        [
            *sources,
            *([f"more_teachers=[{{model: {tiny_model}, max_length: 32}}]"] if recipe.more_teachers else []),
            *tiny_student(recipe, tiny_model),
            f"student.layers={tiny_layers(recipe) or 'null'}",
            "student.max_length=32",
            *tiny_vocabulary(recipe),
            *(["student.embedding.rank=8"] if recipe.student.embedding else []),
            *(["student.intermediate_size=8"] if recipe.student.intermediate_size else []),
            f"cache.root={shared / 'cache'}",
            f"train.batch_size={BATCH}",
            "train.max_steps=2",
            "train.device=cpu",
            "train.compile=false",  # takes longer than all else here; tests/train/test_compile.py has it
            "evaluation={}",
        ],
    )
    folder = tmp_path / "run"
    if published:
        training = run(tiny, folder).record.training
        steps = training.stages[-1].steps if training.stages else training.steps
        assert json.loads((folder / "student" / "distillation.json").read_text())["name"] == tiny.name
    else:
        steps = train(resolve(tiny, folder)).state.step
    assert steps == 2
    assert load(folder / "student", device="cpu").encode(["a text"]).shape == (1, 32)
