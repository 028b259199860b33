"""Texts of many requests in one batch: what arrives while the model works goes into the next batch."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Vectors = npt.NDArray[np.float32]  # [texts, dim]
Embed = Callable[[Sequence[str]], Vectors]


class Overloaded(Exception):
    """More texts wait than the server holds."""


@dataclass(frozen=True)
class _Request:
    texts: Sequence[str]
    answer: asyncio.Future[Vectors]


class Batcher:
    """Runs `embed` in a thread of its own, one batch at a time.

    A batch has at most `batch_texts` texts, or one request that is larger; `most_waiting` texts wait at most.
    `on_batch(texts)` is called with the size of every batch.
    """

    def __init__(
        self,
        embed: Embed,
        batch_texts: int = 256,
        most_waiting: int = 8192,
        on_batch: Callable[[int], None] = lambda texts: None,
    ) -> None:
        self.embed, self.batch_texts, self.most_waiting, self.on_batch = embed, batch_texts, most_waiting, on_batch
        self.waiting_texts = 0
        self._requests: deque[_Request] = deque()
        self._arrived = asyncio.Event()
        self._thread = ThreadPoolExecutor(1, "model")
        self._loop: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin to work; needs a running event loop."""
        self._loop = asyncio.create_task(self._work())

    async def stop(self) -> None:
        """Stop; requests that wait are cancelled."""
        if self._loop is not None:
            self._loop.cancel()
            await asyncio.gather(self._loop, return_exceptions=True)
        for request in self._requests:
            request.answer.cancel()
        self._thread.shutdown(cancel_futures=True)

    async def vectors(self, texts: Sequence[str]) -> Vectors:
        """Return the vectors of the texts, in their order. Errors: Overloaded; those of `embed`."""
        if self.waiting_texts and self.waiting_texts + len(texts) > self.most_waiting:
            raise Overloaded
        request = _Request(texts, asyncio.get_running_loop().create_future())
        self.waiting_texts += len(texts)
        self._requests.append(request)
        self._arrived.set()
        return await request.answer

    async def _work(self) -> None:
        while True:
            await self._arrived.wait()
            batch = self._next_batch()
            if not batch:  # every client has gone
                continue
            try:
                if await self._answer(batch):
                    continue
                for request in batch:  # alone, since a single bad text fails all texts of a batch
                    if not request.answer.done():
                        await self._answer([request])
            except asyncio.CancelledError:
                for request in batch:
                    request.answer.cancel()
                raise

    async def _answer(self, batch: list[_Request]) -> bool:
        """Embed the texts of these requests at once; return False if several of them have failed together."""
        texts = [text for request in batch for text in request.texts]
        self.on_batch(len(texts))
        try:
            vectors = await asyncio.get_running_loop().run_in_executor(self._thread, self.embed, texts)
        except Exception as error:
            if len(batch) > 1:
                return False
            if not batch[0].answer.done():
                batch[0].answer.set_exception(error)
            return True
        parts = np.split(vectors, np.cumsum([len(request.texts) for request in batch])[:-1])
        for request, part in zip(batch, parts, strict=True):
            if not request.answer.done():  # the client may have gone
                request.answer.set_result(part)
        return True

    def _next_batch(self) -> list[_Request]:
        """Take the oldest requests whose client is there, while they fit."""
        batch: list[_Request] = []
        taken = 0
        while self._requests and (not batch or taken + len(self._requests[0].texts) <= self.batch_texts):
            request = self._requests.popleft()
            self.waiting_texts -= len(request.texts)
            if not request.answer.done():
                batch.append(request)
                taken += len(request.texts)
        if not self._requests:
            self._arrived.clear()
        return batch
