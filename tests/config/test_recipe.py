"""Reading recipes: overrides, variants, values, relative paths, and errors that name the key."""

import copy
import os
from pathlib import Path

import pytest
import yaml
from refusals import refused

from distilvec.api import load_recipe
from distilvec.config import recipe
from distilvec.config.base import as_name, check_name
from distilvec.config.builtin import moved_text, recipe_file
from distilvec.config.schema import CorpusSection, SourceSection, TaskSection
from distilvec.config.yaml_dialect import dump_yaml
from distilvec.core.errors import DistilvecError, about
from distilvec.pipeline.claim import recipe_inputs
from distilvec.verbs.run.sweep import expand_sweep

MINIMAL = """
name: mini
teacher: {model: ./teacher}
student: {model: teacher}
corpus: {sources: [{path: data/texts.txt}]}
method: {name: redact}
train: {learning_rate: 1e-5}
variants:
  long: {student.max_length: 512, train.epochs: 3}
"""


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "mini.yaml"
    path.write_text(MINIMAL)
    return path


def test_numbers_paths_variants_overrides(file, tmp_path):
    loaded = recipe.load(file, "long", ["train.batch_size=8", "corpus.sources.0.limit=5"])
    assert loaded.train.learning_rate == 1e-5 and loaded.name == "mini-long"
    assert (loaded.student.max_length, loaded.train.epochs, loaded.train.batch_size) == (512, 3, 8)
    assert loaded.corpus.sources[0].path == tmp_path / "data" / "texts.txt" and loaded.corpus.sources[0].limit == 5
    assert loaded.teacher.model == str(tmp_path / "teacher") and loaded.student.model == "teacher"


@pytest.mark.parametrize(
    ("override", "message"),
    [
        (
            "train.lerning_rate=1",
            r"^\[train.lerning_rate\] unknown key; did you mean 'learning_rate'\? Known here: epochs, .*mini.yaml\.$",
        ),
        ("corpus.sources.0.pth=x", r"unknown key; did you mean 'path'"),
        ("studnet=1", r"did you mean 'student'"),
        ("train.epochs=-1", r"\[train.epochs\] .*greater than or equal to 0; found -1"),
        ("train.schedule.name=cyclic", r"train.schedule.name"),
        ("teacher.vectors=x.parquet", r"exactly one of 'model' and 'vectors'; found both.*whole section: {model: "),
        ("evaluation.marks={good: 80, fair: 90}", r"\[evaluation.marks\] .*fair, 90, is above good, 80"),
        ("train.batch_size", r"is not key=value"),
        ("name.x=1", r"'name' holds a value"),
        ("=1", r"^\[override\] .*key=value"),
        ("corpus.sources.-1.limit=5", r"number within it, from 0"),
        ("student.layers=x", r"^\[student.layers\] .*integer.*; found 'x'"),
        ("teacher.prompts={qeury: x}", r"^\[teacher.prompts.qeury\] .*'query' or 'document'"),
        ("corpus=null", r"^\[recipe\] give exactly one of 'corpus'"),
        ("a={[a]: b}", r"^\[a\] .*cannot be a key"),
        ("a=" + "[" * 200, r"^\[a\] .*more than 64"),
        ("corpus.sources.0.path=''", r"^\[corpus.sources.0.path\] the path is empty"),
        ("corpus.sources.0.path=~nobody.here/x", r"^\[corpus.sources.0.path\] .*not a valid path"),
    ],
)
def test_errors_name_the_key(file, override, message):
    with pytest.raises(DistilvecError, match=message):
        recipe.load(file, None, [override])


def test_missing_and_broken_files(tmp_path, file):
    (tmp_path / "dangling.yaml").symlink_to(tmp_path / "nothing")
    for path, message in (
        (tmp_path / "absent.yaml", "No such file"),
        (tmp_path, "is a folder"),
        (tmp_path / "dangling.yaml", "No such file"),
    ):
        with refused("recipe", message):
            recipe.load(path)
    with refused("variant", "'long'?"):
        recipe.load(file, "lng")
    for content, message in (
        (b"\xff\xfe\x00", "UTF-8"),
        (b"a: [", "YAML"),
        (b"- 1", "expected a mapping"),
        (b"name: a\nname: b", "is repeated"),
    ):
        file.write_bytes(content)
        with refused("recipe", message):
            recipe.load(file)


@pytest.mark.skipif(os.name != "posix" or os.geteuid() == 0, reason="permissions do not hold for this user")
def test_an_unreadable_file(file):
    file.chmod(0)
    with refused("recipe", "permission denied"):
        recipe.load(file)


def test_several_problems_come_in_one_message(file):
    with pytest.raises(DistilvecError) as caught:
        recipe.load(file, None, ["train.lr=1", "train.epochs=-1"])
    first, *others = str(caught.value).splitlines()
    assert first == f"[recipe] {file}: 2 problems."
    assert others[0].startswith("  [train.epochs] ") and others[1].startswith("  [train.lr] unknown key")


def test_no_message_prints_a_whole_value(file):
    lines = ["x0: &x0 [aaaaaaaaaa, aaaaaaaaaa]", *(f"x{n}: &x{n} [*x{n - 1}, *x{n - 1}]" for n in range(1, 12))]
    file.write_text(MINIMAL + "\n".join([*lines, "method: *x11"]).replace("method: ", "more_teachers: "))
    with pytest.raises(DistilvecError) as caught:
        recipe.load(file)
    assert len(str(caught.value)) < 3000 and str(caught.value).count("aaaaaaaaaa") < 200


def test_variants_are_combined_in_their_order(file):
    file.write_text(
        MINIMAL.partition("variants:")[0]
        + """variants:
  a: {train.epochs: 2, train.schedule: {name: cosine}, method.weights: {x: 1}}
  b: {train.epochs: 3, train.schedule.warmup: 5}
"""
    )
    found = recipe.load(file, "a+b")
    assert (found.train.epochs, found.train.schedule.name, found.train.schedule.warmup) == (3, "cosine", 5)
    assert recipe.load(file, "b+a").train.epochs == 2 and recipe.load(file, "b+a").train.schedule.warmup == 0.05
    assert found.name.endswith("-a+b") and found.method.weights == {"x": 1}
    with pytest.raises(DistilvecError, match=r"^\[variant\] no variant 'c'"):
        recipe.load(file, "a+c")


def test_a_teacher_is_named_after_the_task(file):
    tree = yaml.safe_load(MINIMAL.partition("variants:")[0])
    del tree["corpus"]
    tree["teacher"] = {"model": "./teachers/{task}/student"}
    for task, name in (({"name": "intents"}, "intents"), ({}, "rows"), ({"path": ".rows.jsonl"}, "rows")):
        tree["task"] = {"type": "classification", "path": "rows.jsonl.gz", **task}
        file.write_text(dump_yaml(tree))
        found = recipe.load(file)
        assert found.teacher.model == str(file.parent.resolve() / "teachers" / name / "student")


@pytest.mark.parametrize("variants", ["[a]", "{a: 1}", "{a: [b]}", "{a: {1: 2}}", "x"])
def test_variants_are_changes_by_name(file, variants):
    file.write_text(MINIMAL.partition("variants:")[0] + f"variants: {variants}\n")
    with pytest.raises(DistilvecError, match=r"^\[variants(\.a)?\] found .*dotted keys"):
        recipe.load(file)


NAMES = ["../x", "/x", "", " ", ".", "..", ".hidden", "a/b", "a\\b", "a\nb", "a\x1bb", "\u2028", "x" * 201, "ü" * 101]


@pytest.mark.parametrize("name", NAMES)
def test_names_stay_inside_their_folder(file, name):
    tree = recipe.resolved_tree(file)
    source = {**tree["corpus"]["sources"][0], "name": name}
    for key, changed in (
        ("name", {**tree, "name": name}),
        ("corpus.sources.0.name", {**tree, "corpus": {"sources": [source]}}),
        ("task.name", {**tree, "corpus": None, "task": {"type": "sts", "path": "x", "name": name}}),
        ("stages.0.name", {**tree, "stages": [{"name": name}, {"name": "all"}]}),
    ):
        with pytest.raises(DistilvecError, match=rf"^\[{key}\] "):
            recipe.validate(changed)
    with refused("name"):
        expand_sweep({**tree, "name": name, "sweep": {"seeds": [0]}})


@pytest.mark.parametrize("text", [*NAMES, "\ud800"])
def test_any_text_becomes_a_name(text):
    assert check_name(as_name(text, "default"))


def test_a_hidden_file_has_a_label(tmp_path):
    path = tmp_path / ".texts.txt"
    assert SourceSection(path=path).label == "texts"
    assert TaskSection(type="sts", path=path).label == "texts"


def test_members_of_sweeps_stay_inside_their_folder(file):
    tree = {**recipe.resolved_tree(file), "sweep": {"grid": {"method.options.a/../../b": ["../x", "/y"]}}}
    assert [member.name for member in expand_sweep(tree)] == ["-b=x", "-b=y"]
    long = expand_sweep({**tree, "name": "n" * 200})[0].recipe.name
    assert len(long) == 200 and long.startswith("nnn")


@pytest.mark.parametrize(
    ("key", "value"),
    [
        *(("train.batch_size", value) for value in (True, [True], float("nan"), 10**7)),
        *(("train.learning_rate", value) for value in (True, float("nan"), "nan", float("inf"), ".inf")),
        *(("train.seed", value) for value in (-1, 2**63, True, 0.5)),
        *(("corpus.seed", value) for value in (-1, 2**63)),
        *(("train.betas", value) for value in ([0.9, 1.0], [-0.1, 0.9], [True, 0.9], [0.9, float("nan")])),
        *(("train.learning_rate_factors", value) for value in ({"a": -1}, {"a": True}, {"a": float("inf")})),
        *(("method.weights", value) for value in ({"l2": True}, {"l2": float("nan")})),
        *(("method.options", value) for value in ({"a": {"b": [float("inf")]}}, {"a": float("nan")})),
        *(("student.layers", value) for value in (True, [0, True])),
        ("student.experts", {"count": 10**6}),
        ("student.experts", {"width": 10**9}),
        ("student.vocabulary", {"size": 10**9}),
        ("student.config", {"a": float("nan")}),
        ("teacher.batch_tokens", 10**12),
        ("evaluation.speed_seconds", 10**6),
        ("cache.shard_rows", 10**9),
        *((f"train.{key}", 10**12) for key in ("epochs", "window", "max_tokens", "keep_students")),
    ],
    ids=str,
)
def test_values_that_no_run_can_have(file, key, value):
    tree = recipe.resolved_tree(file)
    recipe.set_key(tree, key, value)
    with pytest.raises(DistilvecError, match=rf"^(\[recipe\] .*\n  )?\[{key}"):
        recipe.validate(tree)


def test_rows_are_chosen_by_booleans_too():
    chosen = CorpusSection.model_validate({"sources": [{"path": "x", "where": {"a": True, "b": [False, "c"], "d": 2}}]})
    assert chosen.sources[0].where == {"a": 1, "b": [0, "c"], "d": 2}, "as before, so that fingerprints stay"


# -- relative paths --------------------------------------------------------------------------------------------------

PATHS = {  # a value of each path key, {} being a relative path
    "teacher.model": "./{}",
    "student.model": "../{}",
    "corpus.sources.0.path": "{}",
    "cache.path": "{}",
    "cache.root": "{}",
    "evaluation.suite": "{}",
    "method.name": "{}.py",
    "student.vocabulary.tokenizer": "./{}",
}


@pytest.fixture
def elsewhere(tmp_path, monkeypatch):
    """Another folder, which is the current one."""
    folder = tmp_path / "current" / "folder"
    folder.mkdir(parents=True)
    monkeypatch.chdir(folder)
    return folder


@pytest.mark.parametrize("key", PATHS)
def test_paths_begin_where_they_were_written(file, tmp_path, elsewhere, key):
    text = PATHS[key].format("x")

    def value(found):
        for part in key.split("."):
            found = found[int(part)] if isinstance(found, list) else getattr(found, part)
        return str(found)

    ours, theirs = str((tmp_path / text).resolve()), str((elsewhere / text).resolve())
    assert value(recipe.load(file, None, [f"{key}={text}"])) == theirs
    tree = recipe.read_tree(file)
    if key != "student.model":
        tree["stages"] = [{"name": "a", "set": {key: text}}, {"name": "b"}] if key.startswith("method") else []
    tree["variants"] = {"v": {key: text}}
    file.write_text(dump_yaml(tree))
    loaded = recipe.load(file, "v")
    assert value(loaded) == ours
    if tree.get("stages"):
        assert recipe.stage_recipes(loaded)["a"].method.name == ours
    file.write_text(dump_yaml({**tree, "variants": {}, "sweep": {"grid": {key: [text]}}}))
    assert value(expand_sweep(file)[0].recipe) == ours
    assert value(expand_sweep(file, [f"sweep={{grid: {{{key}: [{text}]}}}}"])[0].recipe) == theirs
    recipe.set_key(tree, key, text)
    file.write_text(dump_yaml({**tree, "variants": {}}))
    assert value(recipe.load(file)) == ours
    parent, _, last = key.rpartition(".")
    if parent not in ("student", "corpus.sources.0", "teacher"):
        assert value(recipe.load(file, None, [f"{parent}={{{last}: {text}}}"])) == theirs
    assert value(recipe.load(file, None, [f"{key}={tmp_path / 'absolute.py'}"])) == str(tmp_path / "absolute.py")


def test_what_is_no_path_stays_as_it_is(file, elsewhere):
    loaded = recipe.load(
        file, None, ["teacher.model=runs/x", "student.model=teacher", "method.name=talas", "output=out"]
    )
    assert (loaded.teacher.model, loaded.student.model, loaded.method.name, str(loaded.output)) == (
        "runs/x",
        "teacher",
        "talas",
        "out",
    )
    tree = {**recipe.read_tree(file), "output": "here"}
    file.write_text(dump_yaml(tree))
    assert str(recipe.load(file).output) == "here", "relative to the current folder, wherever it was written"
    sources = recipe.load(
        file, None, ["corpus.sources=[{path: near.txt}, {dataset: ./saved}, {dataset: a/b}]"]
    ).corpus.sources
    assert sources[0].path == elsewhere / "near.txt" and [s.dataset for s in sources[1:]] == [
        str(elsewhere / "saved"),
        "a/b",
    ]


def test_a_folder_named_like_an_id_is_the_model(file, tmp_path, elsewhere):
    """Libraries take the folder, too. A recipe has its absolute path, so that a run can be opened from anywhere."""
    for folder in (tmp_path / "models" / "both", tmp_path / "models" / "near", elsewhere / "models" / "both"):
        folder.mkdir(parents=True)
    (elsewhere / "models" / "here" / "tuned-news").mkdir(parents=True)
    (elsewhere / "teacher").mkdir()
    beside, here = tmp_path / "models", elsewhere / "models"

    def models(**changes):
        tree = recipe.read_tree(file)
        for key, value in changes.items():
            recipe.set_key(tree, key.replace("__", "."), value)
        changed = file.with_name("changed.yaml")
        changed.write_text(dump_yaml(tree))
        return recipe.load(changed)

    loaded = models(teacher__model="models/both", student__model="models/near/")
    assert (loaded.teacher.model, loaded.student.model) == (str(beside / "both"), str(beside / "near"))
    loaded = models(teacher__model="models/here", teacher__adapters=["models/near", "a/b"], student__model="teacher")
    assert (loaded.teacher.model, loaded.student.model) == (str(here / "here"), "teacher")
    assert loaded.teacher.adapters == [str(beside / "near"), "a/b"]
    loaded = recipe.load(file, None, ["teacher.model=models/both", "student.model=models/near"])
    assert (loaded.teacher.model, loaded.student.model) == (str(here / "both"), "models/near")

    task = {"type": "classification", "path": "news.jsonl"}
    loaded = models(teacher__model="models/here/tuned-{task}", corpus=None, task=task, method={"name": "task"})
    assert loaded.teacher.model == str(here / "here" / "tuned-news")
    assert here / "here" / "tuned-news" in recipe_inputs(loaded)
    api = {"base_url": "http://127.0.0.1:1/v1"}
    loaded = models(teacher={"model": "models/both", "api": api})
    assert loaded.teacher.model == "models/both", "a name of the server"
    assert Path("models/both").exists() and Path("models/both").resolve() not in recipe_inputs(loaded)
    (source,) = models(corpus={"sources": [{"dataset": "models/near"}]}).corpus.sources
    assert (source.dataset, source.label) == (str(beside / "near"), "near")


def test_dump_reads_back(file):
    loaded = recipe.load(file)
    file.write_text(recipe.dump(loaded))
    assert recipe.load(file) == loaded


def test_fingerprint_changes_with_content():
    assert recipe.fingerprint({"a": 1}) == recipe.fingerprint({"a": 1}) != recipe.fingerprint({"a": 2})


def test_on_and_off_are_words():
    values = recipe.read_overrides(["method.options={on: hidden, off: no}", "a=true", "b=False", "teacher.live=yes"])
    assert values == {"method.options": {"on": "hidden", "off": "no"}, "a": True, "b": False, "teacher.live": "yes"}


def test_an_unknown_key_where_several_types_are_allowed():
    with refused("student.layers.coun", "'count'"):
        recipe.validate({"name": "x", "teacher": {"model": "t"}, "student": {"model": "t", "layers": {"coun": 2}}})


@pytest.mark.parametrize("name", ["redact", "talas"])
def test_a_named_student_stays_whole(name, capsys):
    """The variant cuts the teacher's own layers; another model is not the recipe's to cut."""
    path, given = recipe_file(name), ["teacher.model=runs/large"]
    assert recipe.load(path, "local", given).student.layers == 3
    assert "stays whole" not in capsys.readouterr().err
    named = recipe.load(path, "local", [*given, "student.model=runs/small"]).student
    assert (named.model, named.layers, named.reinitialize) == ("runs/small", None, None)
    assert "student.layers=3 cuts the teacher's own layers: runs/small stays whole" in capsys.readouterr().err
    stated = recipe.load(path, "local", [*given, "student.model=runs/small", "student.layers=2"]).student
    assert stated.layers == 2  # what the user states
    assert recipe.load(path, "local", [*given, "student.model=teacher"]).student.layers == 3
    python = load_recipe("redact", "local", {"student.model": "runs/small"})
    assert python.student.layers is None


def test_a_named_student_of_every_run_of_a_sweep_stays_whole(file, capsys):
    tree = {**recipe.read_tree(file), "student": {"model": "teacher", "layers": 2}}
    tree["sweep"] = {"seeds": [0, 1], "grid": {"train.batch_size": [8, 16]}}
    file.write_text(dump_yaml({**tree, "variants": {}}))
    members = expand_sweep(file, ["student.model=runs/small"])
    assert [(one.recipe.student.model, one.recipe.student.layers) for one in members] == [("runs/small", None)] * 4
    assert {one.recipe.train.batch_size for one in members} == {8, 16}


TABLE = {"teacher": {"vectors": "t.parquet"}}
TOKENIZER = {"corpus": {"sources": [{"tokenizer": "bert"}]}}
DOCSTRINGS = {"corpus": {"sources": [{"builtin": "python-docstrings"}]}}


@pytest.mark.parametrize(
    ("tree", "key", "value"),
    [
        (TABLE, "teacher.live", True),
        (TABLE, "teacher.pooling", "cls"),
        (TABLE, "teacher.normalize", True),
        (TABLE, "teacher.max_length", 32),
        (TABLE, "teacher.dtype", "bfloat16"),
        (TABLE, "teacher.attention", "bidirectional"),
        (TABLE, "teacher.adapters", ["a"]),
        (TABLE, "teacher.quantize", "8bit"),
        (TABLE, "teacher.device_map", "auto"),
        (TABLE, "teacher.trust_remote_code", True),
        (TABLE, "teacher.preset", "e5-mistral"),
        (TABLE, "teacher.batch_tokens", 64),
        ({}, "teacher.limit", 5),
        ({}, "teacher.columns", {"text": "body"}),
        ({}, "teacher.repeats", "first"),
        ({}, "teacher.refresh", True),
        ({}, "teacher.texts", "texts.txt"),
        ({}, "teacher.made_by", "m"),
        ({"teacher": {"model": "m", "api": {}}}, "teacher.limit", 5),
        ({}, "corpus.sources.0.split", "test"),
        ({}, "corpus.sources.0.config", "en"),
        ({}, "corpus.sources.0.revision", "v1"),
        ({}, "corpus.sources.0.streaming", True),
        ({"corpus": {"sources": [{"url": "s3://bucket/texts"}]}}, "corpus.sources.0.split", "test"),
        (TOKENIZER, "corpus.sources.0.column", "text"),
        (DOCSTRINGS, "corpus.sources.0.column", "text"),
        (DOCSTRINGS, "corpus.sources.0.split", "test"),
        ({}, "student.tokenizer", "bert"),
    ],
)
def test_keys_that_would_not_be_read_are_refused(tree, key, value):
    """A `split` of a file is the worst of them: its test rows would be trained on."""
    tree = copy.deepcopy({**yaml.safe_load(MINIMAL), **tree})
    del tree["variants"]
    recipe.validate(tree)
    recipe.set_key(tree, key, value)
    with refused(key):
        recipe.validate(tree)


def test_keys_of_the_kind_are_read():
    tree = yaml.safe_load(MINIMAL)
    del tree["variants"]
    table = {"vectors": "t.parquet", "revision": "v1", "limit": 5, "repeats": "drop", "made_by": "m"}
    data_set = {"dataset": "some/set", "config": "en", "split": "dev", "streaming": True, "revision": "v1"}
    read = recipe.validate({**tree, "teacher": table, "corpus": {"sources": [data_set]}})
    assert (read.teacher.revision, read.teacher.limit, read.teacher.repeats) == ("v1", 5, "drop")
    (source,) = read.corpus.sources
    assert (source.split, source.config, source.streaming, source.revision) == ("dev", "en", True, "v1")


def test_a_name_that_an_override_changes_may_leave_the_settings_of_the_first(file):
    """`train.schedule.name=cosine` needs no second override for the cycles of the recipe."""
    settings = "{update: {name: asam, eta: 0.1}, schedule: {name: cycles, cycles: 3}}"
    file.write_text(MINIMAL.replace("train: {learning_rate: 1e-5}", f"train: {settings}"))
    train = recipe.load(file, None, ["train.schedule.name=cosine", "train.update.name=plain"]).train
    assert (train.schedule.name, train.update.name) == ("cosine", "plain")


def test_a_stated_suite_replaces_the_built_in_one(file, capsys):
    file.write_text(MINIMAL + "  docstrings: {evaluation.builtin: python-docstrings}\n")
    evaluation = recipe.load(file, "docstrings", ["evaluation.suite=mine.yaml"]).evaluation
    assert (evaluation.suite.name, evaluation.builtin) == ("mine.yaml", None)
    assert "evaluation.builtin is left out" in capsys.readouterr().err
    assert recipe.load(file, "docstrings", ["evaluation.suite=null"]).evaluation.builtin == "python-docstrings"
    both = ["evaluation={suite: a.yaml, builtin: python-docstrings}"]
    for changes in (both, ["evaluation.suite=mine.yaml", "evaluation.builtin=python-docstrings"]):
        with refused("evaluation.suite", "builtin"):
            recipe.load(file, None, changes)


@pytest.mark.parametrize(
    ("first", "second", "key"),
    [
        ("train.epochs=1", "train.epochs=2", "train.epochs"),
        ("train={epochs: 1}", "train.epochs=2", "train.epochs"),
        ("train.epochs=2", "train={batch_size: 8}", "train"),
        ("corpus.sources=[{path: a.txt}]", "corpus.sources.0.path=b.txt", "corpus.sources.0.path"),
    ],
)
def test_a_key_is_set_once(first, second, key):
    with refused(key, "twice"):
        recipe.read_overrides([first, second])


def test_a_section_may_have_further_keys():
    changes = ["train={epochs: 1, seed: null}", "train.batch_size=8", "train.seed=2", "corpus.sources.0.role=query"]
    assert len(recipe.read_overrides(changes)) == 4


@pytest.mark.parametrize(
    ("stated", "paths"),
    [
        ("data/texts.txt", ["data/texts.txt"]),
        ("[data/texts.txt, more.txt]", ["data/texts.txt", "more.txt"]),
        ("[data/texts.txt, {path: more.txt, role: query}]", ["data/texts.txt", "more.txt"]),
    ],
)
def test_a_file_is_short_for_a_source(stated, paths, tmp_path, monkeypatch):
    """In a file, in a variant and on the command line; the saved recipe has one form."""
    text = MINIMAL.replace("[{path: data/texts.txt}]", stated)
    (tmp_path / "mine.yaml").write_text(text)
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "texts.txt").write_text("a text")
    monkeypatch.chdir(tmp_path)
    loaded = recipe.load(tmp_path / "mine.yaml")
    assert [source.path for source in loaded.corpus.sources] == [tmp_path / path for path in paths]
    (tmp_path / "plain.yaml").write_text(f"{MINIMAL}  short: {{corpus.sources: {stated}}}\n")
    in_variant = recipe.load(tmp_path / "plain.yaml", "short")
    overridden = recipe.load(tmp_path / "plain.yaml", None, [f"corpus.sources={stated}"])
    assert in_variant.corpus == overridden.corpus == loaded.corpus
    (tmp_path / "saved.yaml").write_text(recipe.dump(loaded))
    assert f"path: {tmp_path / 'data' / 'texts.txt'}" in recipe.dump(loaded)
    assert recipe.load(tmp_path / "saved.yaml") == loaded
    assert str(tmp_path / "data" / "texts.txt") in moved_text(tmp_path / "mine.yaml")


def test_a_section_that_is_null_can_be_set_by_its_keys():
    tree = {"student": {"vocabulary": None}, "teacher": {}, "train": 3}
    recipe.set_key(tree, "student.vocabulary.kind", "trim")
    recipe.set_key(tree, "teacher.prompts.query", "find: ")
    assert tree["student"] == {"vocabulary": {"kind": "trim"}} and tree["teacher"] == {"prompts": {"query": "find: "}}
    with refused("train.epochs"):
        recipe.set_key(tree, "train.epochs", 1)


@pytest.mark.parametrize("key", [".", ".train.epochs", "..student"])
def test_a_key_that_begins_with_a_dot_is_named_as_it_was_typed_and_not_below_another(key):
    with pytest.raises(DistilvecError, match=r"^\[\?") as caught, about("recipe"):
        recipe.read_overrides([f"{key}=1", f"{key}=2"])
    assert not caught.value.key.startswith("recipe")
