"""Passwords in addresses: an address with one would end up in recipes, reports and logs."""

from __future__ import annotations

import re
from urllib.parse import unquote

# scheme://user:password@, of which a Path has one slash. The user may be an e-mail address.
_USER = re.compile(r":/+[^/?#\s]*:[^/?#\s]*@")
# The same where the password has a / ? or # that should have been escaped: for a parser the address ends there
_UNESCAPED = re.compile(r":/+[^/?#\s@]*:\S*@")
# No password, though what follows may have an @, as models of LM Studio do: http://localhost:1234/v1#model@q8_0
_PORT = re.compile(r"https?:/+([^/?#\s@:]*|\[[^\]@]*\]):\d{1,5}[/?#]", re.IGNORECASE)
_SECRET = re.compile(r"(password|passwd|passfile|pwd|secret|token|key)\s*=", re.IGNORECASE)


def has_password(address: str) -> bool:
    """Return whether an address has a password before its host, or sets a password or key behind a ? or #.

    An @ in a path or name behind `host:port` is taken for the end of a password, except with http and https. Written as
    %40 it never is.
    """
    if _USER.search(address) or (_UNESCAPED.search(address) and not _PORT.search(address)):
        return True
    settings = re.split("[?#]", address, maxsplit=1)[1:]
    return "://" in address and any(map(sets_secret, settings))


def sets_secret(text: str) -> bool:
    """Return whether a text sets a password or key (`password=...`), however often it is escaped as in URLs."""
    while (plain := unquote(text)) != text:
        text = plain
    return _SECRET.search(text) is not None
