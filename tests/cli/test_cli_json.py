"""`--json FILE` and `--json -`: standard output is JSON alone; tables, messages and progress go to standard error."""

from __future__ import annotations

import json
import shutil
from typing import get_args, get_type_hints

import pytest
from typer.main import get_command

from distilvec.__main__ import app, run_command
from distilvec.cli.output import json_alone
from distilvec.config import builtin
from distilvec.verbs.export.command import export
from distilvec.verbs.export.export import FOLDERS, FORMS


def commands_with_json(command, words=()):
    """Every command that has --json, as words."""
    if any("--json" in parameter.opts for parameter in command.params):
        yield list(words)
    for name in getattr(command, "commands", {}):
        yield from commands_with_json(command.get_command(None, name), (*words, name))


def test_verbs_with_json():
    found = {" ".join(words) for words in commands_with_json(get_command(app))}
    assert found == {
        "align", "check", "classify", "compare", "data list", "distill", "doctor", "evaluate", "finetune",
        "plan", "quickstart", "recipes", "run", "runs", "speed",
    }  # fmt: skip


@pytest.fixture
def suite(tmp_path):
    (tmp_path / "sts.csv").write_text("sentence1,sentence2,score\nriver,stone,1\nbridge,river,3\nstone,stone,5\n")
    (tmp_path / "suite.yaml").write_text("- {name: mini, type: sts, path: sts.csv}\n")
    return str(tmp_path / "suite.yaml")


def json_of(capsys, words, status=0):
    """The JSON that a command gives on standard output, and what it gives on standard error."""
    capsys.readouterr()
    assert run_command(words) == status
    out, problems = capsys.readouterr()
    return json.loads(out), problems


def values(scores):
    """The scores without the seconds that they took."""
    return [score["value"] for score in scores["student"]], scores["averages"]


def test_standard_output_is_json_alone(tiny_model, suite, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    command = ["evaluate", str(tiny_model), "--suite", suite]
    found, problems = json_of(capsys, [*command, "--json", "-"])
    assert {"student", "averages"} <= found.keys() and "mini" in problems and "evaluating" in problems
    again, quiet = json_of(capsys, ["--quiet", *command, "--json=-"])
    assert values(again) == values(found) and "evaluating" not in quiet
    assert not (tmp_path / "-").exists(), "no file of that name"
    assert run_command([*command, "--json", "scores.json"]) == 0
    assert values(json.loads((tmp_path / "scores.json").read_text())) == values(found)
    assert "mini" in capsys.readouterr().out, "with a file, tables stay where they were"


def test_lists(capsys):
    recipes, text = json_of(capsys, ["recipes", "--json", "-"])
    redact = next(recipe for recipe in recipes if recipe["name"] == "redact")
    assert "local" in redact["variants"] and redact["path"].endswith("redact.yaml") and "redact" in text
    sets, _ = json_of(capsys, ["data", "list", "--json", "-"])
    assert {"name", "about", "licence", "megabytes", "present", "by_hand"} == sets[0].keys() and len(sets) > 5


def test_plan_and_run(tiny_model, tmp_path, capsys, monkeypatch, no_pages):
    from samples import make_texts

    monkeypatch.chdir(tmp_path)
    (tmp_path / "texts.txt").write_text("\n".join(make_texts(200)))
    words = ["redact", "--variant", "local", f"teacher.model={tiny_model}", "teacher.max_length=null"]
    words += ["student.layers=2", "corpus.sources=[{path: texts.txt}]", "corpus.validation_rows=16"]
    words += ["train.max_steps=1", "--json", "-"]
    plan, problems = json_of(capsys, ["plan", *words])
    assert plan["name"] == "redact-local" and any("texts" in row["value"] for row in plan["rows"])
    result, problems = json_of(capsys, ["run", *words, "--out", "run"])
    assert result["folder"] == "run" and result["validation"]["distance"] > 0
    assert result["record"]["training"]["steps"] == 1 and "training" in problems
    compared, _ = json_of(capsys, ["compare", "run", "--json", "-"])
    assert compared["rows"][0]["run"] == "redact-local"


# Commands by the option that names their output, and the inputs that would be lost under that name
READING = {
    ("align", "--teacher", "m", "--student", "m2", "--texts", "texts.txt"): "m/config.json m2/new.json texts.txt",
    ("cache", "export", "mine.yaml"): "mine.yaml texts.txt m/config.json",
    ("check", "m", "index.parquet", "--texts", "texts.txt", "--test", "suite.yaml"): (
        "m/config.json index.parquet texts.txt suite.yaml sts.csv"
    ),
    ("classify", "rows.csv", "--test", "sts.csv", "--teacher", "m", "--student", "m2", "teacher.adapters=[./m3]"): (
        "rows.csv sts.csv m/config.json m2/config.json m3/config.json"
    ),
    ("compare", "run"): "run/recipe.yaml run/student/config.json run/details/metrics.jsonl",
    ("corpus", "synthesize", "words.json", "--model", "x", "--prompt", "texts.txt"): "words.json texts.txt",
    ("distill", "m", "texts.txt", "more*.txt", "--student", "m2", "--test", "suite.yaml", "--queries", "rows.csv",
     "--method", "own.py", "teacher.adapters=[./m3]"): (
        "texts.txt more1.txt m/config.json m/new.json m2/config.json suite.yaml sts.csv rows.csv own.py m3/config.json"
    ),
    ("distill", "index.parquet", "folder", "--made-by", "m"): (
        "index.parquet folder/a.txt folder/new.json m/config.json"
    ),
    ("evaluate", "m", "--suite", "suite.yaml", "--teacher", "m2"): "m/config.json suite.yaml sts.csv m2/config.json",
    ("finetune", "m", "--task", "rows.csv", "--type", "sts", "--out", "new", "teacher.adapters=[./m3]"): (
        "rows.csv m/config.json m3/config.json"
    ),
    ("plan", "mine.yaml", "evaluation.suite=suite.yaml"): "mine.yaml texts.txt m/config.json suite.yaml sts.csv",
    ("plan", "table.yaml"): "table.yaml index.parquet link/config.json",
    ("quickstart", "evaluation.suite=suite.yaml"): "suite.yaml sts.csv recipes/quickstart.yaml",
    ("recipes",): "recipes/redact.yaml",
    ("run", "mine.yaml", "sweep.grid={student.model: [./m2, ./m3]}"): (
        "mine.yaml texts.txt m2/config.json m3/config.json"
    ),
    ("runs", "."): "run/recipe.yaml run/student/config.json",
    ("speed", "m", "m2"): "m/config.json m2/config.json",
}  # fmt: skip
OUT = {"cache", "corpus"}  # write a file that is not JSON, or not the result


@pytest.fixture
def inputs(suite, tmp_path, monkeypatch):
    """A folder of inputs for every command; content is not read, but for recipes and suites."""
    monkeypatch.chdir(tmp_path)
    shutil.copytree(builtin.recipe_folder(), "recipes")
    monkeypatch.setattr(builtin, "recipe_folder", lambda: tmp_path / "recipes")
    for name in ("m", "m2", "m3", "folder", "run/student", "run/details"):
        (tmp_path / name).mkdir(parents=True)
    files = "texts.txt more1.txt words.json index.parquet own.py run/recipe.yaml run/details/metrics.jsonl folder/a.txt"
    for name in [*files.split(), *(f"{model}/config.json" for model in ("m", "m2", "m3", "run/student"))]:
        (tmp_path / name).write_text(f"{name}\n")
    (tmp_path / "rows.csv").write_text("text,label\n" + "a river,water\na stone,rock\n" * 20)
    (tmp_path / "link").symlink_to("m2")
    recipe = {
        "name": "mine",
        "teacher": {"model": "./m"},
        "student": {"model": "teacher"},
        "corpus": {"sources": "texts.txt"},
        "method": {"name": "redact"},
    }
    (tmp_path / "mine.yaml").write_text(json.dumps(recipe))
    table = {**recipe, "teacher": {"vectors": "index.parquet"}, "student": {"model": "m2"}}
    (tmp_path / "table.yaml").write_text(json.dumps(table))
    return tmp_path


def contents(folder):
    """Every file with its bytes."""
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_every_verb_with_inputs_is_tried():
    without = {"data list", "doctor"}  # read no file of the user's
    verbs = {" ".join(words) for words in commands_with_json(get_command(app))} - without
    assert {words[0] for words in READING} == verbs | OUT


@pytest.mark.parametrize(("words", "name"), [(words, name) for words in READING for name in READING[words].split()])
def test_no_output_replaces_an_input(words, name, inputs, capsys):
    before = contents(inputs)
    option = "--out" if words[0] in OUT else "--json"
    assert run_command([*words, option, name]) == 2
    assert f"[{option}]" in capsys.readouterr().err
    assert contents(inputs) == before


@pytest.mark.parametrize("words", [("distill", "m", "texts.txt"), ("classify", "rows.csv", "--teacher", "m")])
@pytest.mark.parametrize("name", ["plan.json", "-"])
def test_a_dry_run_has_no_result_to_write(words, name, inputs, capsys):
    assert run_command([*words, "--dry-run", "--json", name]) == 2
    out, problems = capsys.readouterr()
    assert out == "" and "[--json]" in problems and not (inputs / name).exists()


def test_a_new_file_beside_the_inputs_is_fine(inputs, capsys):
    assert run_command(["runs", ".", "--json", "list.json"]) == 0
    assert run_command(["recipes", "--json", "redact.json"]) == 0
    assert (inputs / "list.json").exists() and (inputs / "redact.json").exists()


def test_an_error_leaves_standard_output_empty(capsys):
    assert run_command(["evaluate", "nothing", "--suite", "nothing.yaml", "--json", "-"]) == 2
    out, problems = capsys.readouterr()
    assert out == "" and problems.startswith("distilvec: [")


@pytest.mark.parametrize(
    ("words", "alone"),
    [
        (["a", "--json", "-"], True),
        (["--json=-", "a"], True),
        (["a", "--json", "file"], False),
        (["a", "-"], False),
        (["a", "--", "--json", "-"], False),
    ],
)
def test_when_json_is_alone(words, alone, capsys):
    with json_alone(words):
        print("a table")
    out, problems = capsys.readouterr()
    assert (out, problems) == (("", "a table\n") if alone else ("a table\n", ""))


def test_help_offers_no_form_that_is_always_refused():
    choices, _ = get_args(get_type_hints(export, include_extras=True)["to"])
    assert {*get_args(choices)} == {*FORMS, *FOLDERS}
