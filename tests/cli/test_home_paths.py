"""Paths on the command line: `~` where a shell leaves it, and output files in folders that do not exist yet."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from refusals import refused

from distilvec.__main__ import run_command
from distilvec.cli.app import app
from distilvec.cli.options import App, with_home
from distilvec.config import recipe as recipes
from distilvec.core.files import check_output_file
from tests.report.comparison_sample import sample_comparison


@pytest.fixture
def home(tmp_path, monkeypatch):
    """The home folder; the current folder is another one."""
    current = tmp_path / "current"
    current.mkdir()
    monkeypatch.chdir(current)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    (tmp_path / "home").mkdir()
    return tmp_path / "home"


def test_every_command_expands_the_home_folder():
    assert isinstance(app, App)
    assert all(isinstance(group.typer_instance, App) for group in app.registered_groups)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (Path("~/a"), Path("{}/a")),
        ([Path("~/a"), Path("b")], [Path("{}/a"), Path("b")]),
        ("~/a", "{}/a"),
        (["x=~/a", "~a", "a~/b"], ["x=~/a", "~a", "a~/b"]),
        (Path("~nobody.here"), Path("~nobody.here")),
        (None, None),
        (True, True),
        (3, 3),
    ],
)
def test_values_of_options(home, value, expected):
    def filled(one):
        return type(one)(str(one).format(home)) if isinstance(one, (str, Path)) else one

    assert with_home(value) == ([filled(one) for one in expected] if isinstance(expected, list) else filled(expected))


def test_a_quoted_home_folder_is_read_and_written(home, capsys):
    (home / "runs").mkdir()
    assert run_command(["runs", "~/runs", "--json=~/listed/runs.json"]) == 0
    assert json.loads((home / "listed" / "runs.json").read_text()) == []
    assert run_command(["recipes", "copy", "talas", "--out", "~/mine/talas.yaml"]) == 0
    assert (home / "mine" / "talas.yaml").is_file()
    (home / "cache").mkdir()
    for words in (["cache", "inspect", "~/cache"], ["cache", "verify", "~/cache"]):
        capsys.readouterr()
        assert run_command(words) == 2
        assert f"{home}/cache is not a teacher cache" in capsys.readouterr().err


def test_texts_and_models_in_the_home_folder(home, tiny_model, capsys):
    (home / "texts.txt").write_text("a river\nan old bridge\n")
    (home / "model").symlink_to(tiny_model)
    models = ["--teacher", "~/model", "--student", "~/model"]
    assert run_command(["align", *models, "--texts", "~/texts.txt"]) == 0
    assert "texts" in capsys.readouterr().out
    assert run_command(["align", *models, "--texts", "~/none.txt"]) == 2
    assert f"{home}/none.txt does not exist" in capsys.readouterr().err


def test_a_recipe_may_name_models_and_its_output_in_the_home_folder(home):
    tree = {
        "name": "a",
        "teacher": {"model": "~/teacher"},
        "student": {"model": "~/student"},
        "corpus": {"sources": ["~/texts.txt"]},
        "method": {"name": "redact"},
        "output": "~/runs",
    }
    recipe = recipes.recipe_from(tree, {}, "a test")
    assert (recipe.teacher.model, recipe.student.model) == (f"{home}/teacher", f"{home}/student")
    assert recipe.output == home / "runs"


@pytest.mark.usefixtures("home")
def test_an_output_file_may_be_in_a_new_folder():
    check_output_file(Path("out/new/x.json"))
    assert not Path("out").exists()
    assert run_command(["runs", ".", "--json", "out/new/x.json"]) == 0
    assert json.loads(Path("out/new/x.json").read_text()) == []
    with refused("path", "Not a directory"):
        check_output_file(Path("out/new/x.json/y.json"))


@pytest.mark.usefixtures("home")
def test_tables_of_a_comparison_may_be_in_new_folders(monkeypatch):
    monkeypatch.setattr("distilvec.verbs.compare.compare.compare_runs", lambda *_, **__: sample_comparison())
    files = {"--markdown": "md/new/a.md", "--json": "json/a.json"}
    assert run_command(["compare", ".", *(word for pair in files.items() for word in pair)]) == 0
    assert all(Path(file).is_file() for file in files.values())
