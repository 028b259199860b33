"""The socket and the loop of the HTTP server (uvicorn)."""

from __future__ import annotations

import asyncio
import socket
from contextlib import suppress
from typing import Any

import uvicorn
from starlette.applications import Starlette
from uvicorn.protocols.http.h11_impl import H11Protocol

from distilvec.core.errors import Interrupted, about


def take_address(host: str, port: int) -> socket.socket:
    """Take the address before a model is loaded; uvicorn listens there."""
    place = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
    place.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    with about("--port", f"{host}, port {port}"):
        place.bind((host, port))
    return place


_NOT_WAITING = object()  # the state of a connection that waits for no rest of a request


class TimedProtocol(H11Protocol):
    """HTTP/1.1 of uvicorn that closes connections on which half a request has arrived for a while.

    uvicorn itself waits for ever for the rest of the headers, and for a body that no path reads.
    """

    half_seconds = 30.0  # a connection is closed after one to two times as long

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begin to watch."""
        super().connection_made(transport)
        self._watch: asyncio.TimerHandle | None = None
        self._look(before=_NOT_WAITING)

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop watching."""
        if self._watch is not None:
            self._watch.cancel()
        super().connection_lost(exc)

    def _look(self, before: object) -> None:
        """Close the connection if it waits for the same request as when this was called `before`."""
        is_answering = self.cycle is not None and not self.cycle.response_complete
        is_idle = self.timeout_keep_alive_task is not None  # uvicorn closes it
        state = _NOT_WAITING if is_answering or is_idle else self.cycle
        if state is before and state is not _NOT_WAITING:
            self.transport.close()
            return
        self._watch = self.loop.call_later(self.half_seconds, self._look, state)


def server_config(app: Starlette, **options: Any) -> uvicorn.Config:
    """The settings of the HTTP server."""
    return uvicorn.Config(app, http=TimedProtocol, ws="none", access_log=False, **options)


def run_server(app: Starlette, place: socket.socket) -> None:
    """Serve until SIGINT or SIGTERM; requests that have begun are answered first, for ten seconds at most."""
    config = server_config(app, log_level="warning", timeout_graceful_shutdown=10)
    with suppress(Interrupted, KeyboardInterrupt):  # uvicorn raises the signal again at its end
        uvicorn.Server(config).run(sockets=[place])
