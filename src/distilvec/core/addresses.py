"""Passwords in addresses: an address with one would end up in recipes, reports and logs.

So may be a setting with a name that is not known, such as a misspelt password: only known ones are taken.
"""

from __future__ import annotations

import re
from urllib.parse import parse_qsl, unquote, urlsplit

# scheme://user:password@, of which a Path has one slash. The user may be an e-mail address.
_USER = re.compile(r":/+[^/?#\s]*:[^/?#\s]*@")
# The same where the password has a / ? or # that should have been escaped: for a parser the address ends there
_UNESCAPED = re.compile(r":/+[^/?#\s@]*:\S*@")
# No password, though what follows may have an @, as models of LM Studio do: http://localhost:1234/v1#model@q8_0
_PORT = re.compile(r"https?:/+([^/?#\s@:]*|\[[^\]@]*\]):\d{1,5}[/?#]", re.IGNORECASE)
_SECRET = re.compile(r"(password|passwd|passfile|pwd|secret|token|key)\s*=", re.IGNORECASE)

# Settings of libpq that may follow the ? in an address. None of them is a secret, or a path to one; what the user alone
# decides, such as require_auth, is left to the environment
_SETTINGS = frozenset({
    "host", "hostaddr", "port", "user", "dbname", "service", "connect_timeout", "options", "application_name",
    "target_session_attrs", "load_balance_hosts", "keepalives", "keepalives_idle", "keepalives_interval",
    "keepalives_count", "tcp_user_timeout", "sslmode", "sslnegotiation", "sslcert", "sslcertmode", "sslrootcert",
    "sslcrl", "sslcrldir", "sslsni", "ssl_min_protocol_version", "ssl_max_protocol_version", "channel_binding",
    "requirepeer", "gssencmode", "krbsrvname", "gsslib", "gssdelegation",
})  # fmt: skip
_KNOWN_SETTINGS = {"postgresql": _SETTINGS, "postgres": _SETTINGS, "qdrant": frozenset[str]()}


def has_password(address: str) -> bool:
    """Return whether an address has a password before its host, or sets a password or key behind a ? or #.

    An @ in a path or name behind `host:port` is taken for the end of a password, except with http and https. Written as
    %40 it never is.
    """
    if _USER.search(address) or (_UNESCAPED.search(address) and not _PORT.search(address)):
        return True
    settings = re.split("[?#]", address, maxsplit=1)[1:]
    return "://" in address and any(map(sets_secret, settings))


def unknown_setting(address: str) -> str | None:
    """Return what an index's address has behind its ? that is not a known setting, without the value; None for nothing.

    The value may be a secret whose name is misspelt. So may be a text without a name, which is not returned either.
    """
    known = _KNOWN_SETTINGS.get(address.partition(":/")[0])  # a Path has one slash
    if known is None:
        return None
    parts = urlsplit(address)
    if parts.fragment:
        return "a text behind #"
    for name, value in parse_qsl(parts.query, keep_blank_values=True):
        if name not in known:
            return f"the setting '{name[:40]}'" if value else "a setting without a value"
    return None


def sets_secret(text: str) -> bool:
    """Return whether a text sets a password or key (`password=...`), however often it is escaped as in URLs."""
    while (plain := unquote(text)) != text:
        text = plain
    return _SECRET.search(text) is not None
