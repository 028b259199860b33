"""The answers of a language model on disk, a line each as they arrive: they are paid for, and no kill loses them."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from distilvec.core.errors import DistilvecError, explained, first_line


class Journal:
    """Answers by word, and how often each word was left unanswered; a file of JSON lines, the first one its settings.

    A line that a kill has left unfinished is removed. Errors: DistilvecError for a file of other settings, a damaged
    file, and a full disk.
    """

    def __init__(self, path: Path, settings: Mapping[str, Any]) -> None:
        self.path, self.settings = path, dict(settings)
        self.answers: dict[str, list[str]] = {}
        self.failures: Counter[str] = Counter()
        with explained("--out", path):
            whole = self._read() if path.exists() else 0
            self._file = path.open("ab")
            self._file.truncate(whole)
            if not whole:
                self._write(self.settings)

    def __enter__(self) -> Journal:
        return self

    def __exit__(self, *error: object) -> None:
        self._file.close()

    def add(self, answers: Mapping[str, list[str]], failed: list[str]) -> None:
        """Keep the texts of words, and the words that were asked for without success."""
        with explained("--out", self.path):
            self._write({"answers": answers, "failed": failed})
        self._take(answers, failed)

    def _take(self, answers: Mapping[str, list[str]], failed: list[str]) -> None:
        self.answers |= answers
        self.failures.update(failed)

    def _write(self, line: Mapping[str, Any]) -> None:
        self._file.write((json.dumps(line, ensure_ascii=False) + "\n").encode())
        self._file.flush()
        os.fsync(self._file.fileno())

    def _read(self) -> int:
        """Read the file; the number of bytes to keep: its whole lines, none if it has no answer to these settings."""
        lines = []
        with self.path.open("rb") as file:
            for number, text in enumerate(file, 1):
                if text.endswith(b"\n"):
                    lines.append((len(text), self._parse(text, number)))
        if not lines or lines[0][1] == self.settings:
            return sum(size for size, _ in lines)
        if not self.answers:
            self.failures.clear()
            return 0
        other = " and ".join(name for name in self.settings if lines[0][1].get(name) != self.settings[name])
        raise DistilvecError(
            "--out", f"{self.path} was begun with another {other}.", "Give the same, or another --out."
        )

    def _parse(self, text: bytes, number: int) -> dict[str, Any]:
        """A line's content, taken over; of the first one as it is. DistilvecError for a damaged line."""
        try:
            line: dict[str, Any] = dict(json.loads(text))
            if number > 1:
                self._take(line["answers"], line["failed"])
        except (ValueError, KeyError, TypeError) as error:
            problem = f"line {number} is damaged ({first_line(error)})"
            fix = "Remove the line, or move the file away to begin again."
            raise DistilvecError("--out", f"{self.path}: {problem}.", fix) from None
        return line if number == 1 else {}
