"""Errors have one form, "[key] problem. Fix.", and failures of the system become one."""

from __future__ import annotations

import ast
import errno
from pathlib import Path

import pytest

from distilvec.core.errors import DistilvecError, explain, explained

SOURCES = sorted((Path(__file__).parents[2] / "src" / "distilvec").rglob("*.py"))


def _beginnings(path):
    """(line, first characters) of every message where a DistilvecError is made; "" where it begins with a value."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if (
            isinstance(node, ast.Call)
            and getattr(node.func, "id", None) in ("DistilvecError", "Stopped", "Busy")
            and node.args
        ):
            first = node.args[0].values[0] if isinstance(node.args[0], ast.JoinedStr) else node.args[0]
            if isinstance(first, ast.Constant):
                yield node.lineno, str(first.value)


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(SOURCES[0].parent)))
def test_every_message_begins_with_a_key(path):
    assert [line for line, text in _beginnings(path) if not text.startswith("[")] == []


@pytest.mark.parametrize(
    "number", [errno.ENOSPC, errno.EACCES, errno.EROFS, errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.EBUSY]
)
def test_errors_of_the_file_system_name_key_and_path(number):
    message = explain(OSError(number, "reason", "/some/file"), "--out")
    assert message.startswith("[--out] ") and "/some/file" in message and message.endswith(".")


def test_what_is_not_expected_stays_as_it_is():
    assert explain(KeyError("x")) is None
    with pytest.raises(KeyError), explained("--out"):
        raise KeyError("x")
    with pytest.raises(DistilvecError, match=r"^\[mine\] "), explained("--out"):
        raise DistilvecError("[mine] stays.")
