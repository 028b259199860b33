"""Ctrl-C and SIGTERM during training: finish the step and write a checkpoint before the run stops."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from distilvec.core.errors import Interrupted, Stopped, user_error


@contextmanager
def stop_on_signals(ask: Callable[[int], None]) -> Iterator[None]:
    """Call `ask` with the number of the first signal; a second one stops at once (Interrupted).

    What fails after the first signal, such as a checkpoint on a full disk, is raised as Stopped with the failure's
    text: no other work begins after it, such as a sweep's next run.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    signal_number: int | None = None

    def handle(number: int, stack: Any) -> None:
        nonlocal signal_number
        if signal_number is not None:
            raise Interrupted(number)
        signal_number = number
        ask(number)

    previous = {number: signal.signal(number, handle) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    except Exception as error:
        failure = user_error(error)
        if signal_number is None or failure is None:  # no signal, or a bug, which is shown as one
            raise
        raise Stopped(failure.problem, failure.fix, key=failure.key, number=signal_number) from error
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
