"""Costs of an API teacher: estimates of tokens, batches, rates, counts that outlive the process, and the cap."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from threading import Condition, Event

from distilvec.config.api_teacher import ApiSection
from distilvec.core.errors import DistilvecError
from distilvec.core.files import read_json, write_json
from distilvec.models.load import load_tokenizer

COUNTS = ("requests", "retries", "tokens")
_BYTES = 4  # of UTF-8 in a token of English, for estimates
_SPECIAL = 16  # more tokens of a text than its bytes, at most: special ones


class Ended(DistilvecError):
    """A request that was not sent, or not repeated, since another one has failed."""


@dataclass(frozen=True)
class Batch:
    """Texts of one request: rows `start` to `end`, their estimated tokens, and the most that they can have."""

    start: int
    end: int
    tokens: int
    most: int


def token_counter(section: ApiSection) -> Callable[[Sequence[str]], list[int]]:
    """A function that estimates the tokens of each text: by `tokenizer`, else one for every four bytes of UTF-8."""
    if section.tokenizer is None:
        return lambda texts: [1 + len(_utf8(text)) // _BYTES for text in texts]
    tokenizer = load_tokenizer(section.tokenizer, "teacher.api.tokenizer")
    return lambda texts: [len(ids) for ids in tokenizer(list(texts))["input_ids"]] if len(texts) else []


def make_batches(texts: Sequence[str], counts: Sequence[int], most_tokens: int, most_texts: int) -> list[Batch]:
    """Split texts, in their order, into batches of at most `most_tokens` estimated tokens; a longer text is alone."""
    ends, tokens = list[int](), 0
    for row, count in enumerate(counts):
        if row and (tokens + count > most_tokens or row - (ends[-1] if ends else 0) >= most_texts):
            ends.append(row)
            tokens = 0
        tokens += count
    spans = zip([0, *ends], [*ends, len(texts)], strict=True)
    return [
        Batch(a, b, sum(counts[a:b]), sum(len(_utf8(text)) + _SPECIAL for text in texts[a:b]))
        for a, b in spans
        if a < b
    ]


class Meter:
    """Counts requests, retries and tokens in `file`, and holds requests back by rates, pauses and the cap.

    Shared by the threads of one teacher. Without a `file` the counts end with the process. `stopping` ends every wait.
    """

    def __init__(self, section: ApiSection, file: Path | None = None) -> None:
        self.section, self.file, self.stopping = section, file, Event()
        self.counts = dict.fromkeys(COUNTS, 0) | read_counts(file)
        self._changed = Condition()
        self._next = 0.0  # time.monotonic() of the next request
        self._open: list[int] = []  # the most tokens of each request on its way

    @property
    def note(self) -> str:
        """The counts in words, with their cost."""
        found = self.counts
        line = f"{found['requests']:,} requests ({found['retries']:,} repeated), {found['tokens']:,} tokens"
        return line + cost_note(self.section, found["tokens"])

    @contextmanager
    def request(self, batch: Batch) -> Iterator[None]:
        """Wait for the turn of a request, and count it.

        Requests go out together while the cap holds even with a token for every byte, and one at a time after that: so
        that the cap is exceeded by less than one batch. Errors: DistilvecError if the estimate exceeds the cap.
        """
        cap = self.section.cap
        with self._changed:
            while cap is not None and self._open and self.counts["tokens"] + sum(self._open) + batch.most > cap:
                self._changed.wait()
            if cap is not None and self.counts["tokens"] + batch.tokens > cap:
                raise DistilvecError(
                    f"[teacher.api.{'most_tokens' if cap == self.section.most_tokens else 'most_cost'}] the cap of "
                    f"{cap:,} tokens{cost_note(self.section, cap)} is reached: {self.note}. All vectors until now are "
                    "kept. Raise the cap and run the same command again to go on."
                )
            self._open.append(batch.most)
        try:
            self._pace(batch.tokens)
            if self.stopping.is_set():
                raise Ended("[teacher.api] another request has failed. Run the same command again.")
            self.add(requests=1)
            yield
        finally:
            with self._changed:
                self._open.remove(batch.most)
                self._changed.notify_all()

    def add(self, **counts: int) -> None:
        """Add to the counts, and write them down."""
        with self._changed:
            self.counts |= {name: self.counts[name] + number for name, number in counts.items()}
            if self.file is not None:
                self.file.parent.mkdir(parents=True, exist_ok=True)
                write_json(self.file, self.counts, sealed=True, key="teacher.api")

    def pause(self, seconds: float) -> None:
        """Hold the next requests back, as the server has asked."""
        with self._changed:
            self._next = max(self._next, time.monotonic() + seconds)

    def _pace(self, tokens: int) -> None:
        """Wait for the next turn by requests and tokens a minute, and until a pause is over."""
        rates = ((1, self.section.requests_per_minute), (tokens, self.section.tokens_per_minute))
        with self._changed:
            turn = max(time.monotonic(), self._next)
            self._next = turn + max(60 * amount / rate if rate else 0.0 for amount, rate in rates)
        while (left := turn - time.monotonic()) > 0 and not self.stopping.is_set():
            self.stopping.wait(left)


def read_counts(file: Path | None) -> dict[str, int]:
    """The counts in a meter's file; empty if there is none."""
    if file is None or not file.exists():
        return {}
    found = read_json(file, "Delete it to count from 0.", "teacher.api")
    return {name: int(found[name]) for name in COUNTS}


def cost_note(section: ApiSection, tokens: int) -> str:
    """The cost of tokens as ", cost 0.0123"; empty without a price."""
    return "" if section.price is None else f", cost {tokens * section.price / 1e6:.4f}"


def _utf8(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")
