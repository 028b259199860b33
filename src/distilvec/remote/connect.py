"""HTTP clients with the environment's proxies and certificates, whose mistakes become errors that show no password."""

from __future__ import annotations

import os
from typing import Any

import httpx2

from distilvec.core.errors import DistilvecError, first_line


def http_client(key: str, connections: int, direct: bool = False, **options: Any) -> httpx2.Client:
    """Return a client, with `direct` one without a proxy.

    Errors: DistilvecError with `key` for a proxy or a file of certificates that cannot be used.
    """
    limits = httpx2.Limits(max_connections=connections)
    try:
        # A transport that is passed ignores HTTP_PROXY and its kind; unlike with trust_env=False, SSL_CERT_FILE is read
        transport = httpx2.HTTPTransport(limits=limits) if direct else None
        return httpx2.Client(limits=limits, transport=transport, **options)
    except OSError as error:  # it names no file
        file = os.environ.get("SSL_CERT_FILE")
        if not file:
            raise
        problem = f"the certificates in {file} (SSL_CERT_FILE) cannot be read: {error.strerror or first_line(error)}."
        raise DistilvecError(problem, "Correct SSL_CERT_FILE, or remove it.", key=key) from None
    except ImportError as error:
        reason = first_line(error)  # a kind of proxy that needs another package
    except (ValueError, httpx2.InvalidURL):
        # Not quoted: of a password with an unescaped '#' or '/' the message has a piece as the "port"
        reason = "its address is not valid"
    raise DistilvecError(
        f"the proxy that the environment names cannot be used: {reason}.",
        "Correct HTTPS_PROXY, HTTP_PROXY or ALL_PROXY ('#', '/' and '@' of a password are written as %23, %2F and "
        "%40), or name this host in NO_PROXY.",
        key=key,
    )
