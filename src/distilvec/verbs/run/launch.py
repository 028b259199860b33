"""One command line in several processes of this machine (`--processes`): reports of the first one, one exit status."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from distilvec.cli.boundary import LOST
from distilvec.core.errors import Interrupted
from distilvec.core.level import Level, level

GRACE = 10.0  # seconds to end by itself, for a process that lost another one


def launch(count: int, arguments: Sequence[str]) -> int:
    """Run `distilvec arguments` in `count` processes; return the exit status of the first that failed, else 0.

    Signals go on to all processes: each finishes its step, the first writes a checkpoint. If a process fails, the
    others end too. Standard error of the others is shown only if one of them fails and the first one did not.
    """
    flag = {Level.QUIET: ["--quiet"], Level.VERBOSE: ["--verbose"]}.get(level(), [])
    # -P: without it Python imports a yaml.py or typer.py of the current folder instead of the library
    line = [sys.executable, "-P", "-m", "distilvec", *arguments, *flag]
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    shared = {"WORLD_SIZE": count, "LOCAL_WORLD_SIZE": count, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    threads = os.environ.get("OMP_NUM_THREADS", max(1, (os.cpu_count() or 1) // count))
    with tempfile.TemporaryDirectory(prefix="distilvec-run-") as folder:
        outputs = [Path(folder) / str(rank) for rank in range(count)]
        children = []
        for rank, output in enumerate(outputs):
            own = {"RANK": rank, "LOCAL_RANK": rank, "OMP_NUM_THREADS": threads}
            environment = os.environ | {name: str(value) for name, value in {**shared, **own}.items()}
            with output.open("wb") as file:
                to = {} if rank == 0 else {"stdin": subprocess.DEVNULL, "stdout": file, "stderr": file}
                # sessions of their own: Ctrl-C reaches them through this process alone, once
                children.append(subprocess.Popen(line, env=environment, start_new_session=True, **to))  # type: ignore[call-overload]
        failed = _wait(children)
        return _report(children, failed, outputs)


def _wait(children: Sequence[subprocess.Popen[bytes]]) -> list[int]:
    """Wait for the end of all processes; return the numbers of those that failed by themselves, the first one first.

    If one fails, the others have `GRACE` seconds. After a signal they have the time that they need.
    """
    failed: list[int] = []
    since, asked = 0.0, False
    while any(child.poll() is None for child in children):
        try:
            time.sleep(0.05)
            failed += [number for number, child in enumerate(children) if child.poll() and number not in failed]
            since = since or (time.monotonic() if failed and not asked else 0.0)
            if since and time.monotonic() - since > GRACE:
                _send(children, signal.SIGKILL)
        except Interrupted as signaled:
            asked = True
            _send(children, signaled.number)
    return failed + [number for number, child in enumerate(children) if child.returncode and number not in failed]


def _send(children: Sequence[subprocess.Popen[bytes]], number: int) -> None:
    for child in children:
        if child.poll() is None:
            child.send_signal(number)


def _report(children: Sequence[subprocess.Popen[bytes]], failed: Sequence[int], outputs: Sequence[Path]) -> int:
    """Show the error of the process that failed first, unless the first process has shown its own; its exit status."""
    causes = [number for number in failed if children[number].returncode != LOST] or list(failed)
    if not causes:
        return 0
    cause = causes[0] if children[0].returncode in (0, LOST, -signal.SIGKILL) else 0
    status = int(children[cause].returncode)
    if cause != 0:
        sys.stderr.write(outputs[cause].read_text(encoding="utf-8", errors="backslashreplace")[-3000:])
    if status < 0:
        name = signal.Signals(-status).name
        print(
            f"distilvec: [processes] process {cause} of {len(children)} ended by {name}; the others were stopped. Run "
            "the same command again to go on from the last checkpoint.",
            file=sys.stderr,
        )
    return status if status >= 0 else 128 - status
