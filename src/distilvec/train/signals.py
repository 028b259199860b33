"""Ctrl-C and SIGTERM during training: the step is finished and a checkpoint written before the run stops."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from distilvec.core.errors import Interrupted


@contextmanager
def stop_on_signals(ask: Callable[[int], None]) -> Iterator[None]:
    """The first signal inside calls `ask` with its number, a second one leaves at once (Interrupted)."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    asked = False

    def handle(number: int, frame: Any) -> None:
        nonlocal asked
        if asked:
            raise Interrupted(number)
        asked = True
        ask(number)

    before = {number: signal.signal(number, handle) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
