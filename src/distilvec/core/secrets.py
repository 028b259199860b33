"""Keys of servers and other secrets of this process: hidden in every spelling in which servers repeat them.

Whoever reads a secret registers it (`keep_secret`). The boundary (core/errors.py, cli/boundary.py) and the log pass
every text through `hidden`, so that no sentence of a server or a library shows it.
"""

from __future__ import annotations

import base64
import html
import re
from functools import cache

_secrets: set[str] = set()
_SHORTEST = 8  # characters: a shorter text stands in other words as well
_NAMED = {'"': "quot", "&": "amp", "'": "apos", "<": "lt", ">": "gt", "+": "plus", "/": "sol", "=": "equals"}


def keep_secret(secret: str | None) -> None:
    """Hide a text in all errors and log lines of this process from now on; not a short one, such as "EMPTY"."""
    if secret and len(secret) >= _SHORTEST:
        _secrets.add(secret)


def hidden(text: str) -> str:
    """Return a text with *** for every secret of this process."""
    for secret in sorted(_secrets, key=len, reverse=True):  # one may be a part of another
        text = hide(text, secret)
    return text


def hide(text: str, secret: str) -> str:
    """The text with *** for the secret: as it is, with escapes of JSON, URLs and HTML, in base64 and in hex."""
    if not secret:
        return text
    for pattern in _patterns(secret):
        text = pattern.sub("***", text)
    return text


@cache
def _patterns(secret: str) -> list[re.Pattern[str]]:
    """Patterns of a secret as it is, in base64 and in hex."""
    patterns = []
    for form in (secret, *_base64_forms(secret), secret.encode().hex()):
        patterns.append(re.compile("".join(map(_spellings, form)), 0 if form == secret else re.IGNORECASE))
    return patterns


def _spellings(letter: str) -> str:
    """A pattern of the ways to write one letter; percent signs and backslashes may be escaped themselves.

    Repeats are bounded: without a bound the time grows with the square of a run of backslashes.
    """
    number = ord(letter)
    names = [f"&{name};" for name in [_NAMED.get(letter)] if name]
    ways = [
        rf"\\{{0,8}}{re.escape(letter)}",
        rf"\\{{1,8}}(?i:u00{number:02x}|x{number:02x})",
        rf"%(?:25){{0,4}}(?i:{number:02x})",
        rf"&(?:amp;)?\#0{{0,8}}{number};",
        rf"&(?:amp;)?\#[xX]0{{0,8}}(?i:{number:x});",
        *map(re.escape, {*names, html.escape(letter)} - {letter}),
    ]
    return f"(?:{'|'.join(ways)})"


def _base64_forms(secret: str) -> list[str]:
    """What stands in base64 of any text around the secret: three positions, of the usual and the URL's letters."""
    forms = []
    for offset in range(3):
        data = b"\0" * offset + secret.encode()
        coded = base64.b64encode(data).decode().rstrip("=")
        # Letters at both ends share bits with the neighbours
        inner = coded[(0, 2, 3)[offset] : None if len(data) % 3 == 0 else -1]
        if len(inner) >= 6:
            forms += [inner, inner.replace("+", "-").replace("/", "_")]
    return list(dict.fromkeys(forms))
