"""The answers of a language model on disk, a line each as they arrive: they are paid for, and no kill loses them."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from distilvec.core.errors import DistilvecError, about, creating, first_line


class Journal:
    """Answers by word, and how often each word was left unanswered; a file of JSON lines, the first one its settings.

    A line that a kill has left unfinished is removed. Errors: DistilvecError for a file of other settings and for a
    damaged file.
    """

    def __init__(self, path: Path, settings: Mapping[str, Any]) -> None:
        self.path = path
        self.settings = dict(settings)
        self.answers: dict[str, list[str]] = {}
        self.failures: Counter[str] = Counter()
        with creating("--out", path):
            size = self._read() if path.exists() else 0
            self._file = path.open("ab")
            self._file.truncate(size)
            if not size:
                self._write(self.settings)

    def __enter__(self) -> Journal:
        return self

    def __exit__(self, *error: object) -> None:
        self._file.close()

    def add(self, answers: Mapping[str, list[str]], failed: list[str]) -> None:
        """Store the texts of words, and the words that were asked for without success."""
        with about("--out", self.path):  # on the disk first: what is only in memory is lost by a kill
            self._write({"answers": answers, "failed": failed})
        self.answers.update(answers)
        self.failures.update(failed)

    def _write(self, line: Mapping[str, Any]) -> None:
        self._file.write((json.dumps(line, ensure_ascii=False) + "\n").encode())
        self._file.flush()
        os.fsync(self._file.fileno())

    def _read(self) -> int:
        """Read the file; the bytes of its whole lines, 0 if it has no answer and its settings are others."""
        settings: dict[str, Any] = {}
        size = 0
        with self.path.open("rb") as file:
            for number, text in enumerate(file, 1):
                if not text.endswith(b"\n"):  # the last line, which a kill has left unfinished
                    break
                size += len(text)
                try:
                    line = dict(json.loads(text))
                    if number == 1:
                        settings = line
                    else:
                        self.answers.update(line["answers"])
                        self.failures.update(line["failed"])
                except (ValueError, KeyError, TypeError) as error:
                    problem = f"line {number} is damaged ({first_line(error)})"
                    fix = "Remove the line, or move the file away to begin again."
                    raise DistilvecError(f"{self.path}: {problem}.", fix, key="--out") from None
        if size == 0 or settings == self.settings:
            return size
        if not self.answers:  # nothing that was paid for is lost
            self.failures.clear()
            return 0
        changed = " and ".join(name for name in self.settings if settings.get(name) != self.settings[name])
        raise DistilvecError(
            f"{self.path} was begun with another {changed}.", "Give the same, or another --out.", key="--out"
        )
