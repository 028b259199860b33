"""Addresses of indexes and remote folders, without passwords: one would end up in recipes, reports and logs.

So would a setting with a name that is not known, such as a misspelt password: only known ones are taken.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import SplitResult, parse_qsl, unquote, urlsplit

# scheme://user:password@, of which a Path has one slash. The user may be an e-mail address.
_USER = re.compile(r":/+[^/?#\s]*:[^/?#\s]*@")
# The same where the password has a / ? or # that should have been escaped: for a parser the address ends there
_UNESCAPED = re.compile(r":/+[^/?#\s@]*:\S*@")
# No password, though what follows may have an @, as models of LM Studio do: http://localhost:1234/v1#model@q8_0
_PORT = re.compile(r"https?:/+([^/?#\s@:]*|\[[^\]@]*\]):\d{1,5}[/?#]", re.IGNORECASE)
_SECRET = re.compile(r"(password|passwd|passfile|pwd|secret|token|key)\s*=", re.IGNORECASE)
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+(?=:/)")

# Settings that may follow the ? in an address of an index: those of libpq, of which none is a secret, or a path to one.
# What the user alone decides, such as require_auth, is left to the environment. The last two are Chroma's
_SETTINGS = frozenset({
    "host", "hostaddr", "port", "user", "dbname", "service", "connect_timeout", "options", "application_name",
    "target_session_attrs", "load_balance_hosts", "keepalives", "keepalives_idle", "keepalives_interval",
    "keepalives_count", "tcp_user_timeout", "sslmode", "sslnegotiation", "sslcert", "sslcertmode", "sslrootcert",
    "sslcrl", "sslcrldir", "sslsni", "ssl_min_protocol_version", "ssl_max_protocol_version", "channel_binding",
    "requirepeer", "gssencmode", "krbsrvname", "gsslib", "gssdelegation", "tenant", "database",
})  # fmt: skip


@dataclass(frozen=True)
class Address:
    """An address, scheme://USER@HOST:PORT/PATH?SETTINGS, or a path. It cannot hold a password.

    `text` is the address as it was given, without all that may be a password or key; `had_secret`: something was.
    """

    text: str
    had_secret: bool = False

    @classmethod
    def parse(cls, text: str | Path) -> Address:
        """Read an address, and take out a password before its host, and what follows ? or # if it sets one there.

        An @ in a path or name behind `host:port` is taken for the end of a password, except with http and https.
        Written as %40 it never is.
        """
        text = str(text)
        address = text
        if _USER.search(text) or (_UNESCAPED.search(text) and not _PORT.search(text)):
            address = f"{text.partition(':')[0]}://{text.rpartition('@')[2]}"
        place, *settings = re.split("[?#]", address, maxsplit=1)
        if "://" in address and any(map(_sets_secret, settings)):
            address = place
        return cls(address, address != text)

    @classmethod
    def of_index(cls, text: str | Path) -> Address:
        """The same for an index. Libpq's other form, host=... password=..., is nothing but a secret."""
        address = cls.parse(text)
        if "://" not in address.text and _sets_secret(address.text) and not Path(address.text).exists():
            return cls("", had_secret=True)
        return address

    def __str__(self) -> str:
        return self.text

    @property
    def scheme(self) -> str:
        """What is before ://; empty for a path."""
        scheme, separator, _ = self.text.partition("://")
        return scheme if separator else ""

    @property
    def path(self) -> Path | None:
        """The file or folder; None for an address with a scheme."""
        return None if self.scheme else Path(self.text)

    @property
    def parts(self) -> SplitResult:
        """Host, port, path and settings of an address with a scheme."""
        return urlsplit(self.text)

    @property
    def name(self) -> str:
        """Short name in reports: that of the file, table or collection."""
        if self.path is not None:
            return self.path.stem
        return unquote(self.parts.path).rpartition("/")[2]

    def unknown_setting(self) -> str | None:
        """Return what follows the ? of an index's address and is not a known setting, without its value.

        The value may be a secret whose name is misspelt. So may be a text without a name, which is not returned either.
        """
        if not _SCHEME.match(self.text):  # a Path has one slash behind it
            return None
        parts = self.parts
        if parts.fragment:
            return "a text behind #"
        for name, value in parse_qsl(parts.query, keep_blank_values=True):
            if name not in _SETTINGS:
                return f"the setting '{name[:40]}'" if value else "a setting without a value"
        return None


def _sets_secret(text: str) -> bool:
    """Whether a text sets a password or key (`password=...`), however many times it is escaped as in URLs."""
    while (plain := unquote(text)) != text:
        text = plain
    return _SECRET.search(text) is not None
