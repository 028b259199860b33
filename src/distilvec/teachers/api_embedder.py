"""A model behind an HTTP API as an embedder and a teacher: OpenAI's embeddings, as many servers offer them.

What is paid for is stored even if a later request fails, and no text is paid for twice.
"""

from __future__ import annotations

import base64
import os
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import numpy as np

from distilvec.config.endpoint import ApiSection, check_endpoint, is_this_machine
from distilvec.config.recipe import section_of
from distilvec.config.schema import Role, TeacherSection
from distilvec.core.batch import Text
from distilvec.core.errors import DistilvecError, about
from distilvec.core.escape import one_line
from distilvec.core.hashing import combine
from distilvec.core.info import TeacherInfo
from distilvec.core.log import log
from distilvec.core.similarity import Similarity
from distilvec.core.vectors import cosine_pairs, evenly_spread, first_dims
from distilvec.data.corpus import Corpus, text_name
from distilvec.remote.client import KEY_VARIABLE, MOST_BYTES, BatchRefused, Client
from distilvec.remote.meter import RequestBatch, make_batches, one_batch, token_counter
from distilvec.teachers.cache.evaluation_vectors import PromptedTexts
from distilvec.teachers.cache.fill import (
    Batches,
    FillSteps,
    Unfinished,
    compute_vectors,
    count_missing,
    fill_cache,
    fill_steps,
    key_chunks,
)
from distilvec.teachers.cache.manifest import Manifest
from distilvec.teachers.cache.signals import Array
from distilvec.teachers.cache.store import TeacherCache
from distilvec.teachers.embedder import kept_dims
from distilvec.teachers.encode import BATCH_TOKENS, EmbeddedBatch, Vectors, collect
from distilvec.teachers.sources import OPENAI, Kind

TRUSTED = "DISTILVEC_API_TRUSTED"  # allows that key over http to another machine
MOST_LISTED = 20  # models in an error
SAMPLE = 512  # texts of an estimate
AGAIN, SAME = 32, 0.999  # cached texts that are embedded again, and the smallest cosine to the cached vectors
_PROBE = ("a river", "two stones", "winter", "music")
_MOST_DIMS = 100_000  # of vectors whose dimensions are not known yet
_NUMBER_BYTES = 40  # of a number in JSON
_TOLERANCE = 1e-3  # of vectors of length 1


class _Measured(NamedTuple):
    """What a server's vectors show: dimensions, whether they have length 1, and a mark of the model that made them.

    Servers of this machine often share a model's name and differ in their port, which a restart changes too. The mark
    is the place and the sign of the largest component of two vectors, which survives rounding.
    """

    dim: int
    normalized: bool
    signature: list[tuple[int, bool]]


class ApiEmbedder:
    """A model behind an API as a Teacher (teachers/open.py); the first request measures its vectors.

    `meter` counts requests and tokens, in the file `counts` if one is given.
    """

    kind: ClassVar[Kind] = "api"

    def __init__(self, section: TeacherSection, counts: Path | None = None) -> None:
        assert section.api is not None
        self.section = section
        self.api = section.api
        self.name = section.name or str(section.model)
        self._can_leave_out = False
        self.prompts: dict[Role, str] = {"query": "", "document": "", **(section.stated_prompts or {})}
        self.similarity: Similarity = section.similarity or "cosine"
        with about(".api"):
            self.client = Client(section.api, counts)
        self.meter = self.client.meter
        self._store: tuple[TeacherCache, Corpus] | None = None
        self._checked = False
        self._most_texts = self.api.batch_texts  # in one request; less once the server has refused more

    def __enter__(self) -> ApiEmbedder:
        return self

    def __exit__(self, *error: object) -> None:
        """Close the connections."""
        self.client.close()

    @property
    def dim(self) -> int:
        """Dimensions of an embedding, after `truncate_dim`."""
        return self.section.truncate_dim or self._measured.dim

    @property
    def normalized(self) -> bool:
        """Whether vectors have length 1."""
        return self._measured.normalized

    @cached_property
    def count(self) -> Callable[[Sequence[str]], list[int]]:
        """The function that estimates the tokens of each text."""
        with about(".api"):
            return token_counter(self.api)

    def info(self) -> TeacherInfo:
        """The vectors; nothing is known of the model's layers and tokenizer."""
        return TeacherInfo(
            self.dim,
            self.normalized,
            prompts=self.prompts,
            name=self.name,
            weight=self.section.weight,
            similarity=self.similarity,
        )

    def manifest(self, store_dtype: str = "float16", pre_dense: bool = False) -> Manifest:
        """Settings that the vectors depend on: model, server, dimensions, prompts and further fields of requests."""
        assert not pre_dense
        request_fields: dict[str, Any] = {
            "model": self.section.model,
            "dimensions": self.api.dimensions,
            **self.api.body,
        }
        request_fields.pop("encoding_format", None)  # the same vectors in another spelling
        if is_this_machine(self.api.host):
            request_fields["probe"] = self._measured.signature
        if self.api.by_role is not None:
            request_fields["by_role"] = self.api.by_role
        return Manifest(
            model=str(self.section.model),
            weights=combine((name, repr(value)) for name, value in sorted(request_fields.items())),
            prompts=self.prompts,
            normalized=self.normalized,
            width=self.dim,
            truncate_dim=self.section.truncate_dim,
            compute_dtype="unknown",
            backend="api",
            store_dtype=store_dtype,
            endpoint=self.api.place,
        )

    def estimate(self, corpus: Corpus, texts: int) -> int:
        """Tokens of n texts like those of the corpus, from a sample of 512."""
        rows = np.random.default_rng(0).choice(len(corpus), min(SAMPLE, len(corpus)), replace=False)
        return round(texts * float(np.mean(self.count([str(text) for text in corpus.prompted(np.sort(rows))]))))

    def fill_steps(self, cache: TeacherCache, corpus: Corpus) -> FillSteps:
        """Embed the rows that the cache lacks; what is answered is stored even if a later request fails.

        Errors: DistilvecError for a model that no longer gives the cached vectors, for the cap, and for a server that
        refuses a request or fails `retries` times.
        """
        missing = count_missing(cache, corpus)
        if not missing:
            return
        tokens = self.estimate(corpus, missing)
        log(f"{self.name}: {missing:,} texts, about {tokens:,} tokens{self.api.cost_note(tokens)}")
        self._check_same(cache, corpus)
        self._can_leave_out = "left_out" in corpus.report  # of sources, not of a labelled task
        try:
            with closing(fill_steps(cache, corpus, partial(compute_vectors, cache.manifest, corpus, self))) as steps:
                for step in steps:
                    yield replace(step, note=self.meter.note)
        finally:
            self._can_leave_out = False
        log(f"{self.name}: {self.meter.note}")

    def embed(self, texts: Sequence[str], role: Role = "document") -> Array:
        """float32 [n, dim] in the order of the texts, with the role's prompt prepended."""
        prompted_texts: Any = PromptedTexts(texts, self.prompts[role])
        if self._store is None:
            return self._whole(prompted_texts.prompted(range(len(texts))))
        cache, corpus = self._store
        if count_missing(cache, prompted_texts):
            self._check_same(cache, corpus)
            fill_cache(cache, prompted_texts, self)
        return cache.read(cache.positions(prompted_texts.keys))

    def embed_prompted(self, prompted: Sequence[str]) -> Array:
        """Return float32 [n, dim] of texts that have their prompts."""
        return self._whole(prompted)

    def embed_batches(self, texts: Sequence[str], role: Role = "document") -> Iterator[EmbeddedBatch]:
        """Embed request by request. With `store_in` all vectors come in the last batch, from the cache.

        The batches before have no rows then: they tell the work that is done.
        """
        prompted_texts: Any = PromptedTexts(texts, self.prompts[role])
        if self._store is None:
            yield from self._paid(prompted_texts.prompted(range(len(texts))))
            return
        cache, corpus = self._store
        done = 0.0
        if count_missing(cache, prompted_texts):
            self._check_same(cache, corpus)
            with closing(
                fill_steps(cache, prompted_texts, partial(compute_vectors, cache.manifest, prompted_texts, self))
            ) as steps:
                for step in steps:
                    work = step.work / len(texts)
                    yield EmbeddedBatch(np.arange(0), {"embedding": np.empty((0, self.dim))}, work - done)
                    done = work
        stored = cache.read(cache.positions(prompted_texts.keys))
        yield EmbeddedBatch(np.arange(len(texts)), {"embedding": stored}, 1 - done)

    def store_in(self, cache: TeacherCache, corpus: Corpus) -> None:
        """From now on keep the texts of `embed` in the corpus's cache, so that none is paid for twice."""
        self._store = cache, corpus

    def signals(self, prompted: Sequence[Text]) -> Vectors:
        """ "embedding" float32 [n, dim] of texts with prompts."""
        return {"embedding": self._whole(prompted)}

    def batches(self, prompted: Sequence[Text], pre_dense: bool = False) -> Batches:
        """Embed texts with prompts in several requests at a time; yield the answers as they come.

        Errors: Unfinished with the vectors until then, its cause the error; also if it is closed before its end.
        """
        assert not pre_dense
        full = self._measured.dim
        texts = [str(text) for text in prompted]
        embedded = np.zeros((len(texts), full), dtype=np.float32)
        done = np.zeros(len(texts), dtype=bool)
        tokens = np.array(self.count(texts))

        try:
            for role, rows in self._rows_by_role(texts):
                sent_texts = [self._sent(texts[row], role) for row in rows]
                counts = tokens[rows].tolist()
                planned = make_batches(
                    sent_texts, counts, self.section.batch_tokens or BATCH_TOKENS, self.api.batch_texts
                )

                def work(
                    batch: RequestBatch, rows: Any = rows, sent_texts: list[str] = sent_texts,
                    counts: list[int] = counts, role: Role = role,
                ) -> None:  # fmt: skip
                    chosen = slice(batch.start, batch.end)
                    for part, vectors in self._in_parts(sent_texts[chosen], counts[chosen], full, role):
                        # At once: what is answered is kept even if a later part is refused
                        embedded[rows[chosen][part]] = vectors
                        done[rows[chosen][part]] = True

                with closing(self.client.ask_all(planned, work, lambda batch, answer: None)) as answered:
                    for batch in answered:
                        chosen = rows[batch.start : batch.end]
                        share = float(tokens[chosen].sum() / max(1, tokens.sum()))
                        yield EmbeddedBatch(chosen, {"embedding": self._cut(embedded[chosen])}, share)
        except BaseException as error:
            finished = np.flatnonzero(done)
            raise Unfinished(finished, {"embedding": self._cut(embedded[finished])}) from error

    def _rows_by_role(self, texts: Sequence[str]) -> list[tuple[Role, Any]]:
        """Return the rows of documents and of queries; one request has texts of one role where the server asks for it.

        A text's prompt says its role. Without `by_role` all texts go together.
        """
        if self.api.by_role is None:
            return [("document", np.arange(len(texts)))]
        query, document = self.prompts["query"], self.prompts["document"]
        is_query = np.array([_begins_with(text, query, document) for text in texts], dtype=bool)
        groups: list[tuple[Role, Any]] = [("document", np.flatnonzero(~is_query)), ("query", np.flatnonzero(is_query))]
        return [(role, rows) for role, rows in groups if len(rows)]

    def _sent(self, text: str, role: Role) -> str:
        """Return a text as it is sent: without its prompt where the server prepends it."""
        return text if self.api.by_role is None else text.removeprefix(self.prompts[role])

    @cached_property
    def _measured(self) -> _Measured:
        """The vectors of a few words: the first request."""
        self.meter.stopping.clear()
        counts = self.count(_PROBE)
        try:
            vectors = self._vectors(list(_PROBE), one_batch(_PROBE, counts), self.api.dimensions, "document")
        except BatchRefused as error:
            if not error.is_limit:
                raise
            parts = self._in_parts(list(_PROBE), counts, self.api.dimensions, "document")
            vectors = np.concatenate([vectors for _, vectors in parts])
        full = vectors.shape[1]
        kept_dims(self.section.truncate_dim, full)  # refused before texts are paid for
        normalized = bool((np.abs(np.linalg.norm(vectors, axis=1) - 1) <= _TOLERANCE).all())
        largest = np.abs(vectors[:2]).argmax(axis=1)
        signature = [(int(place), bool(vectors[row, place] > 0)) for row, place in enumerate(largest)]
        return _Measured(full, normalized, signature)

    def _in_parts(
        self, texts: list[str], counts: list[int], dims: int | None, role: Role
    ) -> Iterator[tuple[slice, Array]]:
        """Yield which texts are answered and their vectors, float32 [part, dims], in order; `counts` are their tokens.

        The texts were meant for one request. One that the server refuses is halved. Where it says that there are too
        many texts, later requests are as small. Errors: DistilvecError with the text that is refused alone.
        """
        waiting = deque([slice(0, len(texts))])
        while waiting:
            part = waiting.popleft()
            size = self._most_texts  # another thread may make it smaller meanwhile
            if part.stop - part.start > size:
                starts = range(part.start, part.stop, size)
                waiting.extendleft(slice(start, min(start + size, part.stop)) for start in reversed(starts))
                continue
            try:
                vectors = self._vectors(texts[part], one_batch(texts[part], counts[part]), dims, role)
            except BatchRefused as error:
                waiting.extendleft(reversed(self._halves(texts, part, error)))
                continue
            yield part, vectors

    def _halves(self, texts: list[str], part: slice, error: BatchRefused) -> list[slice]:
        """Return the halves of a request that was refused. Errors: DistilvecError for one of a single text."""
        count = part.stop - part.start
        if count == 1:
            text = texts[part.start]
            self.meter.stopping.set()  # before this thread takes another batch
            raise DistilvecError(
                f"{error.problem.rstrip('.')}. The request had one text, of {len(text):,} characters: "
                f"{one_line(text)[:80]!r}.",
                f"Shorten it, {self._leaving_out(text)}or check the address and the model's name.",
                key=error.key,
            ) from None
        half = (count + 1) // 2
        if error.is_limit and half < self._most_texts:
            self._most_texts = half
            log(f"{self.api.host} refuses {count} texts in a request; from now on at most {half} (batch_texts)")
        return [slice(part.start, part.start + half), slice(part.start + half, part.stop)]

    def _leaving_out(self, sent: str) -> str:
        """Return how a recipe leaves out a text that was sent; "" for a text of an evaluation or a labelled task."""
        if not self._can_leave_out:
            return ""
        text = sent
        if self.api.by_role is None:  # sent with its prompt
            prompts = sorted(self.prompts.values(), key=len, reverse=True)
            text = sent.removeprefix(next(prompt for prompt in prompts if sent.startswith(prompt)))
        return f"leave it out of the corpus (corpus.leave_out=[{text_name(text)}]), "

    def _vectors(self, texts: list[str], batch: RequestBatch, dims: int | None, role: Role) -> Array:
        """float32 [n, dims] of one request's texts."""
        of_role = (self.api.by_role or {}).get(role, {})
        body: dict[str, Any] = {"model": self.section.model, "input": texts, "encoding_format": "float"}
        body |= {**self.api.body, **of_role}
        if self.api.dimensions is not None:
            body["dimensions"] = self.api.dimensions
        most_bytes = MOST_BYTES + len(texts) * (dims or _MOST_DIMS) * _NUMBER_BYTES

        def read(answer: Any) -> Array:
            if isinstance(answer, list) or ("data" not in answer and ("embeddings" in answer or "embedding" in answer)):
                raise DistilvecError(
                    f"{self.api.base_url}/embeddings answers in another form than OpenAI's: with a list, as "
                    "llama.cpp's own path does, or with 'embeddings', as Ollama's /api/embed and Cohere's own /embed "
                    "do.",
                    "Name the path with OpenAI's interface: http://HOST:8080/v1 of llama.cpp, http://HOST:11434/v1 of "
                    "Ollama, https://api.cohere.ai/compatibility/v1 of Cohere.",
                )
            return _read(answer["data"], len(texts), dims)

        with about(".api"):
            return self.client.ask("/embeddings", body, batch, read, most_bytes)

    def _whole(self, prompted: Sequence[Text]) -> Array:
        """float32 [n, dim]; errors as `_paid`."""
        return collect(self._paid(prompted), len(prompted), self.dim)

    def _paid(self, prompted: Sequence[Text]) -> Iterator[EmbeddedBatch]:
        """Yield the batches of `batches`. Errors: the cause of Unfinished, since nothing stores the answers."""
        try:
            with closing(self.batches(prompted)) as batches:
                yield from batches
        except Unfinished as part:
            raise part.__cause__ or part from None

    def _cut(self, vectors: Array) -> Array:
        return first_dims(vectors, self.dim, self.normalized)

    def _check_same(self, cache: TeacherCache, corpus: Corpus) -> None:
        """Embed 32 of the corpus's cached texts again, once; DistilvecError if their vectors have changed."""
        if self._checked:
            return
        self._checked = True
        stored = [start + np.flatnonzero(cache.positions(keys) >= 0) for start, keys in key_chunks(corpus)]
        rows = np.concatenate(stored) if stored else np.empty(0, dtype=np.int64)
        rows = rows[evenly_spread(len(rows), AGAIN)]
        if not len(rows):
            return
        new = self._whole(corpus.prompted(rows))
        old = cache.read(cache.positions(np.asarray(corpus.keys[rows])))
        cosines = cosine_pairs(new, old)
        if (changed := cosines < SAME).any():
            raise DistilvecError(
                f"{self.name} at {self.api.host} has changed since {cache.folder} was begun: of {len(rows)} cached "
                f"texts that were embedded again, {int(changed.sum())} have other vectors (smallest cosine "
                f"{cosines.min():.4f}, expected {SAME} or more).",
                "Use the model of that time, or another cache.path.",
                key=".api",
            )


def named_api(source: str, settings: Mapping[str, Any] | None = None) -> TeacherSection:
    """Return the section of an API that is named by `openai:MODEL`, or by a URL with #MODEL behind it.

    A URL without a path gets /v1, and one of the endpoint is that of its server. Without #MODEL the server is asked for
    its models, with further `settings` of `teacher.api`; one that has several is refused.
    """
    if source.startswith(OPENAI):
        model = source.removeprefix(OPENAI)
        if not model:
            raise DistilvecError(f"{source} names no model.", "Name one: openai:text-embedding-3-small.")
        return section_of(TeacherSection, "teacher", {"model": model, "api": {"key_variable": "OPENAI_API_KEY"}})
    address, _, model = source.partition("#")
    try:
        check_endpoint(address)
    except ValueError as error:
        raise DistilvecError(f"{error}.") from None
    address = address.rstrip("/").removesuffix("/embeddings")  # what a server prints is often its endpoint
    if not address.partition("://")[2].partition("/")[2]:
        address = f"{address.rstrip('/')}/v1"
    api: dict[str, Any] = {"base_url": address}
    if os.environ.get(KEY_VARIABLE):
        api["key_variable"] = KEY_VARIABLE
    if os.environ.get(TRUSTED, "") not in ("", "0"):
        api["trusted"] = True
    if not model:
        model = _only_model(section_of(ApiSection, "teacher.api", {**api, **(settings or {})}))
    return section_of(TeacherSection, "teacher", {"model": model, "api": api})


def _only_model(api: ApiSection) -> str:
    """Return the name of the model that a server has; DistilvecError if it lists none or several."""
    client = Client(api)
    try:
        models = client.models()
    finally:
        client.close()
    if len(models) == 1:
        return models[0]
    listed = ", ".join(models[:MOST_LISTED]) or "none"
    more = f" and {len(models) - MOST_LISTED} more" if len(models) > MOST_LISTED else ""
    raise DistilvecError(
        f"{api.base_url} has {len(models)} models: {listed}{more}.",
        f"Name one behind the address: {api.base_url}#{models[0] if models else 'MODEL'}.",
    )


def _begins_with(text: str, prompt: str, other_prompt: str) -> bool:
    """Return whether a text has this prompt and not the other; of two that both fit, it is the longer one."""
    if not text.startswith(prompt):
        return False
    return not text.startswith(other_prompt) or len(prompt) > len(other_prompt)


def _read(data: Any, texts: int, dims: int | None) -> Array:
    """float32 [texts, dims] in the order of the entries' indices. ValueError for an answer that is not whole.

    Indices may begin at another number than 0, or all be missing: the entries are in order then.
    """
    order = [entry.get("index") for entry in data]
    if all(index is None for index in order):
        order = list(range(len(data)))
    if not all(type(index) is int for index in order):  # a boolean is an int, too
        raise ValueError(f"an index is no number: {order[:5]}")
    if len(data) != texts:
        raise ValueError(f"{len(data)} vectors for {texts} texts")
    if len(set(order)) < texts:
        raise ValueError(f"the indices of the vectors repeat: {order[:5]}")
    first = min(order)
    if first < 0 or max(order) != first + texts - 1:
        raise ValueError(f"the indices of the vectors are negative or have gaps: {order[:5]}")
    rows = [_numbers(entry["embedding"]) for entry in data]
    if len({len(row) for row in rows}) != 1 or len(rows[0]) != (dims or len(rows[0])) or len(rows[0]) == 0:
        raise ValueError(f"vectors of {sorted({len(row) for row in rows})} dimensions; expected {dims or 'one number'}")
    vectors = np.stack(rows)
    if not np.isfinite(vectors).all() or not vectors.any(axis=1).all():
        raise ValueError("a vector has NaN, infinity, or only zeros")
    in_order = np.empty_like(vectors)
    in_order[np.array(order) - first] = vectors
    return in_order


def _numbers(value: Any) -> Array:
    """float32 [dims] of a list of numbers, or of base64 of little-endian float32. ValueError for anything else."""
    if isinstance(value, str):
        return np.frombuffer(base64.b64decode(value, validate=True), dtype="<f4").astype(np.float32)
    if not isinstance(value, list) or not all(type(number) in (int, float) for number in value):
        raise ValueError("an embedding is neither a list of numbers nor base64")
    return np.array(value, dtype=np.float32)
