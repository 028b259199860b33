"""`--json FILE` and `--json -`: standard output is JSON alone; tables, messages and progress go to standard error."""

from __future__ import annotations

import json
from typing import get_args, get_type_hints

import pytest
from typer.main import get_command

from distilvec.__main__ import app, run_command
from distilvec.cli.output import json_alone
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
