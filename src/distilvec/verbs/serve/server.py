"""The socket and the loop of the HTTP server (uvicorn)."""

from __future__ import annotations

import socket
from contextlib import suppress

import uvicorn
from starlette.applications import Starlette

from distilvec.core.errors import DistilvecError, Interrupted, first_line


def take_address(host: str, port: int) -> socket.socket:
    """Take the address before a model is loaded; uvicorn listens there. Errors: DistilvecError if it cannot be had."""
    place = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
    place.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        place.bind((host, port))
        return place
    except OSError as error:
        place.close()
        raise DistilvecError(
            "--port", f"cannot listen on {host}, port {port}: {first_line(error)}.", "Choose another --port or --host."
        ) from error


def run_server(app: Starlette, place: socket.socket) -> None:
    """Serve until SIGINT or SIGTERM; requests that have begun are answered first, for ten seconds at most."""
    config = uvicorn.Config(app, log_level="warning", access_log=False, timeout_graceful_shutdown=10)
    with suppress(Interrupted, KeyboardInterrupt):  # uvicorn raises the signal again at its end
        uvicorn.Server(config).run(sockets=[place])
