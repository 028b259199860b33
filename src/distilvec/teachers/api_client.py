"""Requests to an endpoint with OpenAI's embeddings: answers are checked, and repeated where that can help.

The key comes from an environment variable. No message holds it, not even where a server repeats it.
"""

from __future__ import annotations

import os
import time
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import Any

import numpy as np

from distilvec.config.schema import TeacherSection
from distilvec.core.errors import DistilvecError
from distilvec.core.extras import require_extra
from distilvec.teachers.api_meter import Batch, Ended, Meter
from distilvec.teachers.cache.signals import Array

_REPEATED = (408, 409, 425, 429)  # statuses, and those of broken servers, from 500 on
_LONGEST_PAUSE, _LONGEST_RETRY = 600.0, 60.0  # seconds: asked by the server, and of our own


class _Again(Exception):
    """A request that may be repeated."""


class ApiClient:
    """Vectors of single batches, from any number of threads; `meter` counts, paces and caps the requests."""

    def __init__(self, section: TeacherSection, counts: Path | None = None) -> None:
        assert section.api is not None
        require_extra("api", "teacher.api")
        import httpx2

        self.model, self.api, self.meter = section.model, section.api, Meter(section.api, counts)
        self._secret = _secret(self.api.key_variable)
        headers = {"Authorization": f"Bearer {self._secret}"} if self._secret else {}
        limits = httpx2.Limits(max_connections=self.api.concurrency)
        self._client = httpx2.Client(headers=headers, timeout=self.api.timeout, limits=limits)
        self._failure = httpx2.RequestError

    def close(self) -> None:
        """Close the connections."""
        self._client.close()

    def vectors(self, texts: list[str], batch: Batch, dims: int | None) -> Array:
        """float32 [n, dims] in the order of the texts; the request is repeated until its answer is whole.

        Errors: DistilvecError for the cap, for a refused request, and after the last retry.
        """
        import tenacity

        stopping = self.meter.stopping
        attempts = tenacity.Retrying(
            retry=tenacity.retry_if_exception_type(_Again),
            stop=tenacity.stop_after_attempt(self.api.retries + 1) | tenacity.stop_when_event_set(stopping),
            wait=tenacity.wait_random_exponential(multiplier=self.api.retry_seconds, max=_LONGEST_RETRY),
            sleep=tenacity.sleep_using_event(stopping),
            before_sleep=lambda state: self.meter.add(retries=1),
            reraise=True,
        )
        try:
            return attempts(self._ask, texts, batch, dims)
        except (_Again, DistilvecError) as error:
            stopping.set()  # before this thread takes another batch
            if isinstance(error, DistilvecError):
                raise
            failed = Ended if attempts.statistics["attempt_number"] <= self.api.retries else DistilvecError
            raise failed(
                f"[teacher.api] {self.api.host} has not answered in full after {self.api.retries} retries; the last "
                f"time: {error}. All vectors until now are kept. Run the same command again to go on."
            ) from None

    def _ask(self, texts: list[str], batch: Batch, dims: int | None) -> Array:
        """One request. Errors: _Again where a repetition can help, else DistilvecError."""
        asked = {"model": self.model, "input": texts, **self.api.body}
        asked |= {} if self.api.dimensions is None else {"dimensions": self.api.dimensions}
        with self.meter.request(batch):
            try:
                response = self._client.post(f"{self.api.base_url}/embeddings", json=asked)
            except self._failure as error:
                raise _Again(self._shown(f"{type(error).__name__}: {error}")) from None
            if response.status_code != 200:
                raise self._refusal(response)
            try:
                answer = response.json()
                usage = answer.get("usage") or {}
                self.meter.add(tokens=int(usage.get("total_tokens") or usage.get("prompt_tokens") or batch.tokens))
                return _read(answer["data"], len(texts), dims)
            except (AttributeError, KeyError, TypeError, ValueError) as error:
                raise _Again(self._shown(f"the answer is not as expected ({error})")) from None

    def _refusal(self, response: Any) -> Exception:
        """The error for another status than 200; pauses all requests if the server asks for it."""
        status = response.status_code
        problem = f"status {status}: {self._shown(response.text)}"
        if status not in _REPEATED and status < 500:
            variable = self.api.key_variable or "teacher.api.key_variable"
            fix = f"Check the key ({variable})." if status in (401, 403) else "Check teacher.model and teacher.api."
            return DistilvecError(f"[teacher.api] {self.api.host} has refused a request with {problem}. {fix}")
        pause = _seconds(response.headers.get("retry-after"))
        if pause > _LONGEST_PAUSE:
            asks = f"asks for a pause of {pause / 60:,.0f} minutes ({problem})"
            return DistilvecError(f"[teacher.api] {self.api.host} {asks}. Run the same command again after that.")
        self.meter.pause(pause)
        return _Again(problem)

    def _shown(self, text: str) -> str:
        """The beginning of a server's words, on one line, without the key."""
        text = " ".join((text.replace(self._secret, "***") if self._secret else text).split())
        return text if len(text) <= 200 else text[:200] + "…"


def _read(data: Any, texts: int, dims: int | None) -> Array:
    """float32 [texts, dims] in the order of the entries' indices. ValueError for an answer that is not whole."""
    order = [entry.get("index", row) for row, entry in enumerate(data)]
    if sorted(order) != list(range(texts)):
        raise ValueError(f"{len(data)} vectors for {texts} texts")
    vectors = np.array([entry["embedding"] for entry in data], dtype=np.float32)
    if vectors.ndim != 2 or vectors.shape[1] != (dims or vectors.shape[1]):
        raise ValueError(f"vectors of shape {vectors.shape[1:]}; expected {dims} dimensions")
    if not np.isfinite(vectors).all() or not vectors.any(axis=1).all():
        raise ValueError("a vector has NaN, infinity, or only zeros")
    found = np.empty_like(vectors)
    found[order] = vectors
    return found


def _seconds(text: str | None) -> float:
    """The header Retry-After, in seconds or as a date; 0 if there is none."""
    try:
        return max(0.0, float(text or 0))
    except ValueError:
        pass
    try:
        return max(0.0, parsedate_to_datetime(str(text)).timestamp() - time.time())
    except ValueError:
        return 0.0


def _secret(variable: str | None) -> str:
    """The key in an environment variable; DistilvecError if it is not set, or cannot be sent."""
    found = os.environ.get(variable, "").strip() if variable else ""
    if variable and not found:
        raise DistilvecError(f"[teacher.api.key_variable] {variable} is not set. Set that environment variable.")
    if not found.isascii() or not found.isprintable():
        raise DistilvecError(f"[teacher.api.key_variable] {variable} holds characters that no key has. Set it again.")
    return found
