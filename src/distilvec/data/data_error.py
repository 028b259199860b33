"""The error of a data file that cannot be used, before it is known under which key the file was named."""

from __future__ import annotations

from distilvec.core.errors import DistilvecError


class DataError(DistilvecError):
    """`text` says "FILE, line N: problem. Fix."; the message puts a key in front, [suite] unless the caller knows better."""

    def __init__(self, text: str, key: str = "suite") -> None:
        super().__init__(f"[{key}] {text}")
        self.text = text
