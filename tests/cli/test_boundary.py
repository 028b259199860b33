"""Errors at the boundary of the command line: what was read, by whom, under the name of the option that set it."""

from __future__ import annotations

import multiprocessing
import os
import signal
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from pathlib import Path
from typing import Annotated

import pytest

from distilvec.cli.boundary import run_app
from distilvec.cli.options import App, names_by_key, option
from distilvec.config.base import Problems
from distilvec.core.errors import DistilvecError, about, each_about, looked_up, plain_errors, set_by, user_error
from distilvec.core.secrets import keep_secret


def rows():
    """Rows of a file whose third one is damaged."""
    yield "first"
    yield "second"
    raise ValueError("damaged")


def read_all(path):
    with about("corpus.sources.0.path", path):
        return list(rows())


@pytest.fixture
def ended(capsys):
    """Run a function as a command with the option --texts; its exit status and its line."""

    def run(work):
        app = App()

        @app.command()
        def read(texts: Annotated[Path, option("Texts.", key="corpus.sources")] = Path("rows.bin")) -> None:
            with set_by(names_by_key(read)):
                work()

        status = run_app(app, [])
        return status, capsys.readouterr().err

    return run


LINE = "distilvec: [--texts] cannot use rows.bin: ValueError: damaged.\n"


def test_a_lazy_reader(ended):
    assert ended(lambda: list(each_about(rows(), "corpus.sources.0.path", "rows.bin"))) == (2, LINE)


def test_a_thread(ended):
    with ThreadPoolExecutor(1) as threads:
        assert ended(lambda: threads.submit(read_all, "rows.bin").result()) == (2, LINE)


@pytest.mark.slow
def test_a_spawned_process(ended):
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as processes:
        assert ended(lambda: processes.submit(read_all, "rows.bin").result()) == (2, LINE)


@pytest.mark.slow
def test_a_ray_worker(ended):
    """Ray wraps what a worker raises; teachers/ray_workers.py raises the cause."""
    ray = pytest.importorskip("ray")

    def read_there():  # this module cannot be imported in a worker
        from distilvec.core.errors import about

        with about("corpus.sources.0.path", "rows.bin"):
            raise ValueError("damaged")

    def read():
        try:
            ray.get(ray.remote(read_there).remote())
        except ray.exceptions.RayTaskError as error:
            raise error.cause from None

    ray.init(num_cpus=1, include_dashboard=False, configure_logging=False, log_to_driver=False)
    try:
        status, screen = ended(read)
        assert status == 2 and screen.endswith(LINE)  # ray may print a notice before
    finally:
        ray.shutdown()


def test_the_innermost_of_nested_notes_is_told(ended):
    def read():
        with about("teacher", "model"), about("corpus.sources"), about(".0.path", "rows.bin"):
            raise ValueError("damaged")

    assert ended(read) == (2, LINE)


def test_a_bug_is_not_called_the_fault_of_the_user(ended, monkeypatch, tmp_path):
    monkeypatch.setenv("DISTILVEC_CACHE", str(tmp_path))

    def mistaken():
        with about("corpus.sources.0.path"):
            looked_up(None, {})

    status, printed = ended(mistaken)
    assert status == 1 and printed.startswith("distilvec: [internal] unexpected AttributeError")
    (log,) = tmp_path.glob("logs/*.log")
    assert "Traceback" in log.read_text() and str(log) in printed


def test_ctrl_c(ended):
    def interrupted():
        with about("corpus.sources.0.path"):
            os.kill(os.getpid(), signal.SIGINT)

    assert ended(interrupted) == (130, "distilvec: interrupted. Run the same command again to go on.\n")


def test_a_closed_pipe(ended, monkeypatch):
    monkeypatch.setattr("sys.stdout", None)  # replaced by the boundary, and restored here

    def write():
        raise BrokenPipeError

    assert ended(write) == (128 + signal.SIGPIPE, "")


def test_a_key_is_looked_up_by_its_longest_prefix():
    names = {"corpus.sources": "texts", "corpus.sources.1": "queries", "teacher": "teacher", "size": "--size"}
    for key, name in {
        "corpus.sources.0.path": "texts",
        "corpus.sources.1.path": "queries",
        "corpus.sources.10.path": "texts",
        "teacher": "teacher",
        "teacher.revision": "teacher.revision",  # a word alone names an argument, no section
        "size": "--size",
        "student.size": "student.size",
    }.items():
        assert looked_up(key, names) == name


def test_an_argument_is_named_once_and_then_its_option():
    """A Python function names its arguments, the command that calls it its options; both have a boundary."""

    @plain_errors()
    @set_by({"student.size": "size"})
    def distil():
        raise DistilvecError("is too small.", key="student.size")

    with pytest.raises(DistilvecError) as caught:
        distil()
    assert caught.value.key == "size"
    with pytest.raises(DistilvecError) as caught, set_by({"size": "--size"}):
        distil()
    assert user_error(caught.value).key == "--size"


def test_every_problem_of_a_list_is_named():
    problems = [DistilvecError("is wrong.", key="student.size"), DistilvecError("is wrong.", key="train.seed")]
    with pytest.raises(Problems) as caught, set_by({"student.size": "--size"}):
        raise Problems("a.yaml", problems, "recipe")
    assert (
        str(user_error(caught.value)) == "[recipe] a.yaml: 2 problems.\n  [--size] is wrong.\n  [train.seed] is wrong."
    )


def test_a_secret_is_hidden_in_every_foreign_sentence(ended):
    keep_secret("sk-0123456789")

    def refused():
        with about("corpus.sources.0.path", "server"):
            raise ValueError("wrong key sk-0123456789")

    status, printed = ended(refused)
    assert status == 2 and "sk-0123456789" not in printed and "wrong key ***" in printed
