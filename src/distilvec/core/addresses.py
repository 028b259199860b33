"""Passwords in addresses: an address with one would end up in recipes, reports and logs."""

from __future__ import annotations

import re
from urllib.parse import unquote

_USER = re.compile(r":/+[^/?#\s@]*:[^/?#\s]*@")  # scheme://user:password@; a Path has one slash
_SECRET = re.compile(r"(password|passwd|passfile|pwd|secret|token|key)\s*=", re.IGNORECASE)


def has_password(address: str) -> bool:
    """Return whether an address has a password before its host, or sets a password or key behind a ? or #."""
    if _USER.search(address):
        return True
    settings = re.split("[?#]", address, maxsplit=1)[1:]
    return "://" in address and any(map(sets_secret, settings))


def sets_secret(text: str) -> bool:
    """Return whether a text sets a password or key (`password=...`), however often it is escaped as in URLs."""
    while (plain := unquote(text)) != text:
        text = plain
    return _SECRET.search(text) is not None
