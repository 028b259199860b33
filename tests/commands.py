"""Commands in processes of their own, forked from a server that has imported the package: they start at once.

Only where the process is the point (signals, kills, two at once): every other test runs commands in its own process,
by `run_command`. A forked process shares the server's seed of Python's hashes; `python -m benchmarks.kills` starts
every command from scratch.
"""

from __future__ import annotations

import atexit
import gc
import multiprocessing
import os
import runpy
import subprocess
import sys
import tempfile
import time
from multiprocessing.forkserver import ensure_running
from pathlib import Path

import psutil
import pytest

SERVER = multiprocessing.get_context("forkserver")
SERVER.set_forkserver_preload(
    [
        "distilvec.__main__",
        "distilvec.api",
        "distilvec.pipeline.run",
        "distilvec.verbs.plan.plan",
        "distilvec.verbs.transplant.transplant",
        "transformers.models.bert.modeling_bert",
        "frozen",
    ]
)
run_program = subprocess.run  # also while it is replaced


class Command:
    """`python -m MODULE ARGUMENTS` while it runs and after, with the part of `subprocess.Popen` that tests need."""

    def __init__(
        self, *arguments: object, module: str = "distilvec", folder: Path | None = None, **environment: str
    ) -> None:
        self._output = tempfile.TemporaryDirectory(prefix="distilvec-command-")
        environment = {**os.environ, "OMP_NUM_THREADS": "1", **environment}
        work = (module, [*map(str, arguments)], str(folder or Path.cwd()), environment, self._output.name)
        _start_server()
        self._process = SERVER.Process(target=_run, args=work)
        self._process.start()
        self.pid = self._process.pid

    @property
    def returncode(self) -> int | None:
        """The exit status, negative for a signal; None while the command runs."""
        return self._process.exitcode

    poll = returncode.fget

    def send_signal(self, number: int) -> None:
        """Send a signal unless the command has ended."""
        if self.returncode is None:
            os.kill(self.pid, number)

    def wait(self) -> int:
        """Wait for the end; the exit status."""
        self._process.join()
        return self.returncode

    def communicate(self) -> tuple[str, str]:
        """Wait for the end; both outputs."""
        self.wait()
        return tuple((Path(self._output.name) / name).read_text(encoding="utf-8") for name in ("out", "err"))

    def wait_for(self, path: Path) -> None:
        """Wait for a file that the command makes."""
        while not path.exists():
            assert self.returncode is None, self.communicate()[1]
            time.sleep(0.01)

    def wait_for_work(self, seconds: float) -> None:
        """Wait until the processor has worked so long on the command, however slow the machine is."""
        process = psutil.Process(self.pid)
        while sum(process.cpu_times()[:2]) < seconds:
            assert self.returncode is None, self.communicate()[1]
            time.sleep(0.01)


def _start_server() -> None:
    """Start the server unless it runs. It ignores the path of this process, and finds `frozen` by the environment."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(Path(__file__).parent), prepend=os.pathsep)
        ensure_running()


def forked(
    line: list[str], check: bool = False, cwd: Path | None = None, **more: object
) -> subprocess.CompletedProcess:
    """`subprocess.run` of `python -m ...` or `python -P -m ...` with both outputs, and of other programs as it is."""
    if line[0] != sys.executable:  # matplotlib asks fc-list for fonts when it draws for the first time on a machine
        return run_program(line, check=check, cwd=cwd, **more)
    module, *arguments = line[line.index("-m") + 1 :]
    command = Command(*arguments, module=module, folder=cwd)
    done = subprocess.CompletedProcess(line, command.wait(), *command.communicate())
    if check:
        done.check_returncode()
    return done


def _run(module: str, arguments: list[str], folder: str, environment: dict[str, str], output: str) -> None:
    gc.freeze()  # no collection of garbage goes through what the server has imported
    atexit._clear()  # those of the server
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    for stream, name in ((sys.stdout, "out"), (sys.stderr, "err")):
        with (Path(output) / name).open("wb") as file:
            os.dup2(file.fileno(), stream.fileno())
    subprocess.run = _forked_here
    os.fsync = lambda handle: None  # as in tests/conftest.py
    sys.argv = [module, *arguments]
    try:
        runpy.run_module(module, run_name="__main__", alter_sys=True)
    finally:
        atexit._run_exitfuncs()  # as Python does, and multiprocessing does not


def _forked_here(line: list[str], check: bool = False, **more: object) -> subprocess.CompletedProcess:
    """`forked` without the server, inside a process that it has started."""
    if line[0] != sys.executable:
        return run_program(line, check=check, **more)
    with tempfile.TemporaryDirectory(prefix="distilvec-command-") as output:
        module, *arguments = line[line.index("-m") + 1 :]
        work = (module, arguments, str(Path.cwd()), dict(os.environ), output)
        process = multiprocessing.get_context("fork").Process(target=_run, args=work)
        process.start()
        process.join()
        outputs = [(Path(output) / name).read_text(encoding="utf-8") for name in ("out", "err")]
    done = subprocess.CompletedProcess(line, process.exitcode, *outputs)
    if check:
        done.check_returncode()
    return done
