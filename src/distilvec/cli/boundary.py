"""Turns errors and signals into exit codes: expected failures become one line, unexpected ones a log file.

| event                                           | standard error                          | exit status |
|---|---|---|
| DistilvecError, full disk, no permission, ...   | distilvec: [key] problem. Fix.          | 2           |
| an error of another library inside `about`      | distilvec: [key] cannot use NAME: ...   | 2           |
| wrong use of the command line                   | typer's own message                     | 2           |
| Ctrl-C, SIGTERM; of a running server: 0         | the same command goes on                | 130, 143    |
| the end of another process of the same run      | a short message                         | 3           |
| anything else                                   | a short message and the log file's path | 1           |
"""

from __future__ import annotations

import os
import signal
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import Any

import typer

try:
    from typer import TyperException as UsageProblem
except ImportError:  # before typer had its own copy of click
    from click import ClickException as UsageProblem  # type: ignore[assignment]

from distilvec.cli.layout import EVERYWHERE
from distilvec.cli.output import RED, coloured, json_alone
from distilvec.core.errors import DistilvecError, Interrupted, ProcessLost, Stopped, first_line, user_error
from distilvec.core.escape import visible
from distilvec.core.files import user_cache
from distilvec.core.log import Level, quiet_libraries, verbosity
from distilvec.core.secrets import hidden

LOST = 3  # exit status if another process of the run ended
DEBUG = "DISTILVEC_DEBUG"


def run_app(app: typer.Typer, arguments: Sequence[str]) -> int:
    """Run a command line; its exit status. The options of EVERYWHERE may be at any position.

    `--debug` or DISTILVEC_DEBUG=1 shows the traceback of an error.
    """
    words, options = take_options(arguments)
    debug = "--debug" in options or os.environ.get(DEBUG, "") not in ("", "0")
    try:
        with signals_raised(), verbosity(_level(options)), quiet_libraries(), _debugging(debug), json_alone(words):
            result = _commands(app)(args=words, prog_name="distilvec", standalone_mode=False)
        sys.stdout.flush()
        status = result if isinstance(result, int) else 0
        return _interrupted(signal.SIGINT) if status == 128 + signal.SIGINT else status  # typer's own for Ctrl-C
    except SystemExit as error:  # how typer ends shell completion
        return error.code if isinstance(error.code, int) else int(error.code is not None)
    except (Interrupted, KeyboardInterrupt, typer.Abort) as error:
        return _interrupted(error.number if isinstance(error, Interrupted) else signal.SIGINT)
    except Exception as error:
        return _failed(error, arguments, debug)


@cache
def _commands(app: typer.Typer) -> Any:
    """The commands of an app, from the signatures of their functions: read once a process, since it takes a while."""
    return typer.main.get_command(app)


def take_options(arguments: Sequence[str]) -> tuple[list[str], frozenset[str]]:
    """The command line without the options of EVERYWHERE, and those that it had. Words after "--" stay."""
    end = list(arguments).index("--") if "--" in arguments else len(arguments)
    words = [text for text in arguments[:end] if text not in EVERYWHERE]
    return [*words, *arguments[end:]], EVERYWHERE.intersection(arguments[:end])


def _level(options: frozenset[str]) -> Level:
    if {"--quiet", "--verbose"} <= options:
        raise DistilvecError("--quiet and --verbose cannot be combined.", key="--quiet")
    if "--quiet" in options:
        return Level.QUIET
    return Level.VERBOSE if "--verbose" in options else Level.NORMAL


@contextmanager
def _debugging(debug: bool) -> Iterator[None]:
    """Show the traceback of an error in the processes that are started inside as well."""
    before = os.environ.get(DEBUG)
    if debug:
        os.environ[DEBUG] = "1"
    try:
        yield
    finally:
        if before is None:
            os.environ.pop(DEBUG, None)
        else:
            os.environ[DEBUG] = before


@contextmanager
def signals_raised() -> Iterator[None]:
    """Ctrl-C and SIGTERM inside raise Interrupted, so that locks are freed and scratch files removed."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def end(number: int, frame: Any) -> None:
        raise Interrupted(number)

    before = {number: signal.signal(number, end) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _interrupted(number: int) -> int:
    _print_error("interrupted. Run the same command again to go on.")
    return 128 + number


def _failed(error: Exception, arguments: Sequence[str], debug: bool) -> int:
    """Print the failure; the exit status."""
    if isinstance(error, typer.Exit):
        return int(error.exit_code)
    if isinstance(error, UsageProblem):
        usage: Any = error  # those that are raised can show themselves
        _suggest_key(usage)
        usage.show()
        return int(usage.exit_code)
    if isinstance(error, BrokenPipeError):  # the reader of our output, such as `head`, has ended
        sys.stdout = open(os.devnull, "w", encoding="utf-8")  # noqa: PTH123, SIM115 - nothing is printed at exit
        return 128 + signal.SIGPIPE
    problem = user_error(error)
    if debug:
        print(hidden("".join(traceback.format_exception(error))), end="", file=sys.stderr)
    if problem is not None:
        if not isinstance(error, DistilvecError):
            _write_log(error, arguments)
        _print_error(str(problem))
        if isinstance(error, Stopped):
            return 128 + error.number
        return LOST if isinstance(error, ProcessLost) else 2
    _print_error(
        f"[internal] unexpected {type(error).__name__}: {first_line(error)}. Finished work is kept. Please report this "
        f"bug in distilvec with the log {_write_log(error, arguments)} (--debug shows it at once)."
    )
    return 1


def _suggest_key(error: Any) -> None:
    """Where an unknown option has the name of a recipe's key (--epochs), and the verb takes keys, name the key."""
    option = getattr(error, "option_name", None)
    takes_keys = error.ctx is not None and any(
        "KEY=VALUE" in (param.metavar or "") for param in error.ctx.command.params
    )
    if not isinstance(option, str) or not takes_keys:
        return
    from distilvec.config.base import keys_named
    from distilvec.config.schema import Recipe

    keys = keys_named(option.lstrip("-").replace("-", "_"), Recipe)
    if keys:
        error.possibilities = []
        error.message = f"No such option: {option}. Change the recipe's key instead: {keys[0]}=VALUE."


def _print_error(message: str) -> None:
    encoding = sys.stderr.encoding or "utf-8"
    # Messages quote servers and files: no secret and no escape sequence of theirs reaches the terminal
    line = f"distilvec: {visible(hidden(message))}".encode(encoding, "backslashreplace").decode(encoding)
    print(coloured(line, RED, sys.stderr), file=sys.stderr)


def _write_log(error: Exception, arguments: Sequence[str]) -> Path | None:
    """Write the traceback to the cache's root or, failing that, the temporary folder; return the file, if any."""
    name = f"{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}.log"
    text = f"{' '.join(map(repr, arguments))}\nPython {sys.version}\n\n{''.join(traceback.format_exception(error))}"
    folders = [Path(tempfile.gettempdir())]
    with suppress(DistilvecError):  # a user without a home folder
        folders.insert(0, user_cache() / "logs")
    for folder in folders:
        try:
            folder.mkdir(parents=True, exist_ok=True)
            (folder / name).write_text(hidden(text), encoding="utf-8", errors="backslashreplace")
        except OSError:
            continue
        return folder / name
    return None
