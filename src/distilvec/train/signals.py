"""Ctrl-C and SIGTERM during training: finish the step and write a checkpoint before the run stops."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from distilvec.core.errors import Interrupted


@contextmanager
def stop_on_signals(ask: Callable[[int], None]) -> Iterator[None]:
    """Call `ask` with the number of the first signal; a second one stops at once (Interrupted)."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    asked = False

    def handle(number: int, stack: Any) -> None:
        nonlocal asked
        if asked:
            raise Interrupted(number)
        asked = True
        ask(number)

    previous = {number: signal.signal(number, handle) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
