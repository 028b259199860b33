"""--quiet and --verbose, and what other libraries may show while a command runs."""

from __future__ import annotations

import importlib.util
import json
import logging
import os
import subprocess
import sys
import warnings

import pytest
import typer
from rich.console import Console
from safetensors.torch import load_file, save_file

from distilvec.__main__ import run_command
from distilvec.cli.boundary import run_app, take_options
from distilvec.core import log
from distilvec.core.errors import about
from distilvec.core.log import Level, level, quiet_libraries, verbosity

PROGRESS = "evaluating: 1/1 tasks"


@pytest.fixture
def suite(tmp_path):
    (tmp_path / "sts.csv").write_text("sentence1,sentence2,score\nriver,stone,1\nbridge,river,3\nstone,stone,5\n")
    (tmp_path / "suite.yaml").write_text("- {name: mini, type: sts, path: sts.csv}\n")
    return str(tmp_path / "suite.yaml")


def outputs(capsys, *arguments, status=0):
    assert run_command(arguments) == status
    return capsys.readouterr()


# -- levels ------------------------------------------------------------------------------------------------------------


def test_levels_of_say_and_progress(capsys):
    shown = {}
    for chosen in Level:
        with verbosity(chosen):
            log.log("a line")
            with log.progress("work", 2, "steps") as advance:
                advance(1, "")
                advance(2, "done")
        shown[chosen] = capsys.readouterr().err.splitlines()
    assert level() is Level.NORMAL
    assert shown[Level.QUIET] == []
    assert shown[Level.NORMAL][0] == "a line" and shown[Level.NORMAL][1].startswith("work: 2/2 steps")
    assert [line[9:15] for line in shown[Level.VERBOSE]] == ["a line", "work: "] and shown[Level.VERBOSE][0][2] == ":"


def test_verbose_progress_is_lines_also_on_a_terminal(capsys, monkeypatch):
    terminal = Console(stderr=True, force_terminal=True)
    monkeypatch.setattr(log, "console", lambda: terminal)
    with verbosity(Level.VERBOSE), log.progress("work", 1, "steps") as advance:
        advance(1, "")
    assert capsys.readouterr().err.count("\n") == 1


def test_verbose_progress_has_more_lines(capsys, monkeypatch):
    for chosen, count in ((Level.NORMAL, 2), (Level.VERBOSE, 4)):  # the first and the last; every one
        clock = iter(range(0, 1000, 5))
        monkeypatch.setattr(log.time, "monotonic", lambda clock=clock: next(clock))
        with verbosity(chosen), log.progress("work", 4, "steps") as advance:
            for done in range(1, 5):
                advance(done, "")
        assert len(capsys.readouterr().err.splitlines()) == count


@pytest.mark.parametrize("position", [0, 1, 4])
def test_quiet_anywhere(position, tiny_model, suite, capsys):
    words = ["evaluate", str(tiny_model), "--suite", suite]
    words.insert(position, "--quiet")
    found = outputs(capsys, *words)
    assert found.err == "" and "mini" in found.out


def test_quiet_still_shows_errors(capsys):
    assert "did you mean 'redact'" in outputs(capsys, "run", "redcat", "--quiet", status=2).err


def test_verbose_and_quiet_together_are_refused(capsys):
    assert "[--quiet] --quiet and --verbose" in outputs(capsys, "--verbose", "recipes", "--quiet", status=2).err


def test_words_after_two_dashes_are_not_options():
    assert take_options(["run", "--debug", "r", "--", "--quiet"]) == (["run", "r", "--", "--quiet"], {"--debug"})


def test_levels_end_with_the_command(tiny_model, suite, capsys):
    before = dict(os.environ), logging.getLogger().level, logging.getLogger("transformers").level, warnings.showwarning
    outputs(capsys, "evaluate", str(tiny_model), "--suite", suite, "--quiet")
    assert (
        dict(os.environ),
        logging.getLogger().level,
        logging.getLogger("transformers").level,
        warnings.showwarning,
    ) == before
    assert PROGRESS in outputs(capsys, "evaluate", str(tiny_model), "--suite", suite).err


# -- other libraries ---------------------------------------------------------------------------------------------------


def test_only_our_own_lines_are_shown(tiny_model, suite, tmp_path):
    """In a process of its own, where no library has been imported yet."""
    (tmp_path / "texts.txt").write_text("a river\na stone bridge\n" * 50)
    commands = [
        ["transplant", tiny_model, "--texts", tmp_path / "texts.txt", "--out", tmp_path / "small"],
        ["evaluate", tiny_model, "--suite", suite],
    ]
    if all(importlib.util.find_spec(name) for name in ("onnx", "onnxruntime")):
        (tmp_path / "search").mkdir()
        documents = ({"_id": name, "text": name} for name in ("river", "stone"))
        (tmp_path / "search" / "corpus.jsonl").write_text("".join(json.dumps(one) + "\n" for one in documents))
        (tmp_path / "search" / "queries.jsonl").write_text('{"_id": "q", "text": "river"}\n')
        (tmp_path / "search" / "qrels.tsv").write_text("query-id\tcorpus-id\tscore\nq\triver\t1\n")
        (tmp_path / "search.yaml").write_text("- {name: search, type: retrieval, path: search}\n")
        search = ["--suite", tmp_path / "search.yaml"]  # by default all docstrings of Python, which takes seconds
        commands.append(["export", tiny_model, "--out", tmp_path / "model.onnx", *search])
    code = (
        "import json, sys; from distilvec.__main__ import run_command; "
        "sys.exit(any([run_command(words) for words in json.loads(sys.argv[1])]))"
    )
    line = [sys.executable, "-c", code, json.dumps(commands, default=str)]
    environment = {
        name: text
        for name, text in os.environ.items()
        if not name.startswith(("TRANSFORMERS_", "HF_HUB_DIS", "TQDM_", "TOKENIZERS_"))
    }
    shown = subprocess.run(line, capture_output=True, text=True, check=True, env=environment).stderr.splitlines()
    assert len(shown) == 2 and shown[0].startswith("embedding with ") and shown[1].startswith(PROGRESS), shown


def test_missing_weights_are_refused_without_a_report_of_another_library(tiny_model, suite, tmp_path, capsys):
    """transformers' load report is hidden; what would be random is an error of ours."""
    import shutil

    folder = shutil.copytree(tiny_model, tmp_path / "model")
    file = next(folder.rglob("model.safetensors"))
    weights = load_file(file)
    lost = [name for name in weights if "layer.3.output.dense" in name or "pooler." in name]
    save_file(
        {name: value for name, value in weights.items() if name not in lost} | {"unknown": weights[lost[0]]},
        file,
        {"format": "pt"},
    )
    found = outputs(capsys, "evaluate", str(folder), "--suite", suite, status=2).err
    assert "does not have 2 of the 71 weights" in found and "layer.3.output.dense" in found
    assert "LOAD REPORT" not in found and "pooler" not in found and "unknown" not in found


def other_library(app_level):
    """A command that warns as libraries do."""
    app = typer.Typer()

    @app.command()
    def warn() -> None:
        logging.getLogger("a_library").warning("a warning of a logger")
        logging.getLogger("transformers.tokenization_utils_base").warning("a warning of transformers")
        warnings.warn("a warning of Python's", UserWarning, stacklevel=1)
        warnings.warn_explicit("our own warning", UserWarning, log.__file__, 1)

    return run_app(app, app_level)


def test_warnings_of_other_libraries_are_shown_by_verbose_alone(capfd, caplog):
    assert other_library([]) == 0
    assert capfd.readouterr().err == "warning: our own warning\n" and not caplog.records
    assert other_library(["--verbose"]) == 0
    shown = capfd.readouterr().err
    assert "UserWarning (test_cli_output.py): a warning of Python's" in shown and "our own warning" in shown
    assert "a warning of a logger" in caplog.text


def test_variables_that_the_user_has_set_stay(monkeypatch):
    monkeypatch.setenv("TRANSFORMERS_VERBOSITY", "info")
    monkeypatch.delenv("TQDM_DISABLE", raising=False)
    with quiet_libraries():
        assert os.environ["TRANSFORMERS_VERBOSITY"] == "info" and os.environ["TQDM_DISABLE"] == "1"
    assert os.environ["TRANSFORMERS_VERBOSITY"] == "info" and "TQDM_DISABLE" not in os.environ


@pytest.mark.parametrize("own", [None, "0", "1"])
def test_processes_that_a_command_starts_know_of_debug(monkeypatch, own):
    monkeypatch.delenv("DISTILVEC_DEBUG", raising=False)
    if own is not None:
        monkeypatch.setenv("DISTILVEC_DEBUG", own)
    app, found = typer.Typer(), []

    @app.command()
    def start() -> None:
        line = [sys.executable, "-c", "import os; print(os.environ.get('DISTILVEC_DEBUG'))"]
        found.append(subprocess.run(line, capture_output=True, text=True).stdout.strip())

    assert run_app(app, ["--debug"]) == run_app(app, []) == 0
    assert found == ["1", str(own)] and os.environ.get("DISTILVEC_DEBUG") == own


def test_whatever_is_raised_while_a_file_is_read_is_about_that_file(capsys, tmp_path):
    """Libraries raise any kind of error for a damaged file: the line names the file, and is no bug of ours at first."""
    app = typer.Typer()

    @app.command()
    def read():
        with about("--texts", tmp_path / "texts.bin"):
            raise ZeroDivisionError("no heads")

    assert run_app(app, []) == 2
    shown = capsys.readouterr().err
    assert f"[--texts] cannot use {tmp_path / 'texts.bin'}: ZeroDivisionError: no heads." in shown
    assert "[internal]" not in shown and "Traceback" not in shown
