"""The cost of requests: token estimates, batches, rates, caps, and counts that outlive the process."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from threading import Condition, Event

from distilvec.config.endpoint import EndpointSection
from distilvec.core.errors import DistilvecError, about
from distilvec.core.files import acquire_lock, read_json, write_json
from distilvec.core.model_name import ModelName
from distilvec.models.load import load_tokenizer

COUNTS = ("requests", "retries", "tokens")  # and "written", once a model has written some
BYTES = 4  # of UTF-8 in a token of English, for estimates
_SPECIAL = 16  # special tokens of a text, at most


class Ended(DistilvecError):
    """A request that was not sent, or not repeated, because another one failed."""


@dataclass(frozen=True)
class RequestBatch:
    """Texts of one request: rows `start` to `end`, their estimated tokens, and the most that they can have.

    `answer` is the most tokens that the model may write; 0 for vectors.
    """

    start: int
    end: int
    tokens: int
    most: int
    answer: int = 0


def token_counter(section: EndpointSection) -> Callable[[Sequence[str]], list[int]]:
    """A function that estimates the tokens of each text: by `tokenizer`, else one for every four bytes of UTF-8."""
    if section.tokenizer is None:
        return lambda texts: [1 + len(_utf8(text)) // BYTES for text in texts]
    with about(".tokenizer", section.tokenizer):
        tokenizer = load_tokenizer(ModelName(section.tokenizer))
    return lambda texts: [len(ids) for ids in tokenizer(list(texts))["input_ids"]] if len(texts) else []


def make_batches(texts: Sequence[str], counts: Sequence[int], most_tokens: int, most_texts: int) -> list[RequestBatch]:
    """Split texts, in their order, into batches of at most `most_tokens` estimated tokens; a longer text is alone."""
    batches: list[RequestBatch] = []
    start = tokens = 0

    def add_batch(end: int) -> None:
        if start < end:
            most = sum(map(most_tokens_of, texts[start:end]))
            batches.append(RequestBatch(start, end, sum(counts[start:end]), most))

    for row, count in enumerate(counts):
        if row > start and (tokens + count > most_tokens or row - start >= most_texts):
            add_batch(row)
            start, tokens = row, 0
        tokens += count
    add_batch(len(texts))
    return batches


def one_batch(texts: Sequence[str], counts: Sequence[int]) -> RequestBatch:
    """The batch of all texts, whose estimated tokens are `counts`."""
    return RequestBatch(0, len(texts), sum(counts), sum(map(most_tokens_of, texts)))


def most_tokens_of(text: str) -> int:
    """The most tokens that a text can have: one a byte, and special ones."""
    return len(_utf8(text)) + _SPECIAL


class Meter:
    """Counts requests, retries and tokens in `file`, and delays requests to keep the rates, pauses and caps.

    Shared by the threads of one client; processes with the same `file` count together, and each keeps the rates for
    itself. Without a `file` the counts end with the process. `stopping` ends every wait.
    """

    def __init__(self, section: EndpointSection, file: Path | None = None) -> None:
        self.section = section
        self.file = file
        self.stopping = Event()
        self.counts = dict.fromkeys(COUNTS, 0) | read_counts(file)
        self._changed = Condition()
        self._next = 0.0  # time.monotonic() of the next request
        self._open: list[RequestBatch] = []  # requests on their way

    @property
    def note(self) -> str:
        """The counts in words, with their cost."""
        counts = self.counts
        line = f"{counts['requests']:,} requests ({counts['retries']:,} repeated), {counts['tokens']:,} tokens"
        if "written" in counts:
            line += f" read, {counts['written']:,} written"
        return line + self.section.cost_note(*self._spent)

    @contextmanager
    def request(self, batch: RequestBatch) -> Iterator[None]:
        """Wait until a request may be sent, and count it.

        Requests go out together while the caps hold even with a token for every byte and the longest answers, and one
        at a time after that: a cap is exceeded by less than one batch, of each process that sends. Errors:
        DistilvecError if the estimate exceeds a cap.
        """
        with self._changed:
            if self.section.cap is not None:
                self.counts |= read_counts(self.file)  # another process may have spent some
            while self._open and self._exceeded(*[(sent.most, sent.answer) for sent in (*self._open, batch)]):
                self._changed.wait()
            if (cap := self._exceeded((batch.tokens, 0))) is not None:
                raise DistilvecError(
                    f"the cap of {self.section.cap} is reached: {self.note}. All answers until now are kept.",
                    "Raise the cap and run the same command again to go on.",
                    key=f".{cap}",
                )
            self._open.append(batch)
        try:
            self._pace(batch.tokens + batch.answer)
            if self.stopping.is_set():
                raise Ended("another request has failed.", "Run the same command again.")
            self.add(requests=1)
            yield
        finally:
            with self._changed:
                self._open.remove(batch)
                self._changed.notify_all()

    def add(self, **counts: int) -> None:
        """Add to the counts, and to those in the file, which another process may have changed."""
        with self._changed:
            if self.file is None:
                self._add(counts)
                return
            self.file.parent.mkdir(parents=True, exist_ok=True)
            lock = self.file.with_name(f".{self.file.name}.lock")
            with acquire_lock(lock, str(self.file), wait=True):
                self.counts = dict.fromkeys(COUNTS, 0) | read_counts(self.file)
                self._add(counts)
                write_json(self.file, self.counts, sealed=True)

    def _add(self, counts: dict[str, int]) -> None:
        for name, number in counts.items():
            self.counts[name] = self.counts.get(name, 0) + number

    @property
    def _spent(self) -> tuple[int, int]:
        """Tokens read and written."""
        return self.counts["tokens"], self.counts.get("written", 0)

    def _exceeded(self, *more: tuple[int, int]) -> str | None:
        """The key of the cap that the counts exceed with more tokens, read and written."""
        return self.section.exceeded(*(sum(numbers) for numbers in zip(self._spent, *more, strict=True)))

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
    counts = read_json(file, "Delete it to count from 0.")
    return {name: int(counts[name]) for name in (*COUNTS, "written") if name in counts}


def _utf8(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")
