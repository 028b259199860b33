"""The model that a server holds: vectors as `SentenceTransformer.encode` gives them, and the lengths of texts."""

from __future__ import annotations

import asyncio
import copy
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from transformers import PreTrainedTokenizerBase

from distilvec.core.errors import about
from distilvec.models.load import model_name
from distilvec.models.parts import is_static, loses_space_unseen, text_tokenizer, tokens_without_row
from distilvec.teachers.graph_embedder import GraphEmbedder, model_folder
from distilvec.teachers.model_embedder import CHARACTERS_A_TOKEN, ModelEmbedder, RoutedEmbedder
from distilvec.teachers.open import expect_kind, open_embedder

Vectors = npt.NDArray[np.float32]  # [texts, dim]
Embed = Callable[[Sequence[str]], Vectors]


class Overloaded(Exception):
    """More texts wait than the server holds."""


@dataclass(frozen=True)
class _Waiting:
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
        self._requests: deque[_Waiting] = deque()
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
        request = _Waiting(texts, asyncio.get_running_loop().create_future())
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

    async def _answer(self, batch: list[_Waiting]) -> bool:
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

    def _next_batch(self) -> list[_Waiting]:
        """Take the oldest requests whose client is there, while they fit."""
        batch: list[_Waiting] = []
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


FIRST_CHARACTERS = 16  # of a text for each token that the model reads: a text of words has four a token


class TokenWithoutVector(Exception):
    """A token of a text, such as the mark of an image, whose id is beyond the model's table: no vector can be made."""


class ServedModel:
    """A model folder, hub id or exported file, loaded once. One thread at a time calls `embed`, any `measure`.

    A Router is the model of its documents, and `queries` that of its queries; any other model reads both.
    """

    def __init__(
        self, model: str, name: str | None = None, device: str = "auto", trust_remote_code: bool = False
    ) -> None:
        with about("model"):
            expect_kind(model, ("model", "export"))
            embedder = open_embedder(model, device=device, trust_remote_code=trust_remote_code)
        if name is None:
            exported = isinstance(embedder, GraphEmbedder)
            name = model_name(str(model_folder(Path(model)) if exported else model))
        self.name = name
        self.queries = self
        if isinstance(embedder, RoutedEmbedder):
            self._take(embedder.document)
            self.queries = copy.copy(self)
            self.queries._take(embedder.query)
        else:
            assert isinstance(embedder, (ModelEmbedder, GraphEmbedder))
            self._take(embedder)

    def _take(self, embedder: ModelEmbedder | GraphEmbedder) -> None:
        self.dim = embedder.dim
        self.normalized = embedder.normalized
        self.prompts = embedder.prompts
        self.max_length = embedder.max_length
        self._embedder = embedder
        tokenizer = getattr(embedder.model[0], "tokenizer", None)
        self._from_left = getattr(tokenizer, "truncation_side", "right") == "left"
        self._token_ids = _tokenizer(embedder)
        self._tokens_without_vector = tokens_without_row(embedder.model)
        self.loses_space_unseen = isinstance(embedder, ModelEmbedder) and loses_space_unseen(embedder.model)

    def embed(self, prompted: Sequence[str]) -> Vectors:
        """Return float32 [n, dim] of texts that have their prompts; longer ones are cut."""
        return self._embedder.embed_prompted(prompted)

    def measure(self, prompted: str) -> tuple[str, int]:
        """Return a beginning of the text that holds all that the model reads, and its tokens, special ones counted.

        A text of megabytes is not tokenized whole: a piece with twice the tokens that the model reads has the same
        first half. Models whose own code cuts texts into tokens are estimated, and never above their limit.

        Errors: TokenWithoutVector.
        """
        if self._token_ids is None:
            return prompted, min(len(prompted) // CHARACTERS_A_TOKEN + 1, self.max_length)
        characters = FIRST_CHARACTERS * self.max_length
        while True:
            whole = characters >= len(prompted)
            start = len(prompted) - characters if self._from_left and not whole else 0
            piece = prompted if whole else prompted[start : start + characters]
            ids = self._token_ids(piece)
            if whole or len(ids) >= 2 * self.max_length:
                self._check_ids(ids)
                return piece, len(ids)
            characters *= 4  # white space, or words that are one token

    def _check_ids(self, ids: Sequence[int]) -> None:
        for number, token in self._tokens_without_vector.items():
            if number in ids:
                raise TokenWithoutVector(token)


def _tokenizer(embedder: ModelEmbedder | GraphEmbedder) -> Callable[[str], Sequence[int]] | None:
    """Return a function from a text to its token ids, for any threads; None where a model's own code makes tokens."""
    tokenizer = getattr(embedder.model[0], "tokenizer", None)
    if not is_static(embedder.model) and not isinstance(tokenizer, PreTrainedTokenizerBase):
        return None
    tokenizer = text_tokenizer(embedder.model)
    if not hasattr(tokenizer, "backend_tokenizer"):  # one that is written in Python
        return lambda text: tokenizer(text)["input_ids"]
    counter: Any = copy.deepcopy(tokenizer.backend_tokenizer)
    counter.no_truncation()
    counter.no_padding()
    return lambda text: counter.encode_batch_fast([text])[0].ids
