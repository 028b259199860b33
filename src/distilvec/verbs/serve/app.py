"""The HTTP server: OpenAI's /v1/embeddings and /v1/models, /health, and /metrics for Prometheus.

Errors have OpenAI's shape, {"error": {"message", "type", "param", "code"}}, and a 4xx status for a wrong request.
"""

from __future__ import annotations

import asyncio
import base64
import hmac
import ipaddress
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Any, Literal, TypeVar
from urllib.parse import urlsplit

import numpy as np
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from pydantic import BaseModel, Field, ValidationError, model_validator
from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from distilvec.config.endpoint import is_this_machine
from distilvec.config.schema import Role
from distilvec.core.escape import visible
from distilvec.core.vectors import first_dims
from distilvec.verbs.serve.model import Batcher, Overloaded, ServedModel, TokenWithoutVector, Vectors

TEXTS = "Send one text, or a list of texts."
TOKEN_IDS = "Send texts, not token ids (LangChain: check_embedding_ctx_length=False)."


@dataclass(frozen=True)
class Limits:
    """Limits of one request, and of what waits."""

    body: int = 4_000_000  # bytes
    body_seconds: float = 60.0  # until a body has arrived whole
    rest: int = 64_000_000  # bytes of a refused body that are read and dropped, so that its client gets the answer
    rest_seconds: float = 10.0
    texts: int = 2048  # in one request
    batch_texts: int = 256  # texts of all requests that the model is given together
    waiting: int = 8192  # texts of all requests that have not begun
    waiting_bytes: int = 64_000_000  # bodies of all requests that are not answered yet
    truncate: bool = False  # cut texts that are too long; else they are refused


class RequestError(Exception):
    """A request that is refused: status, the field that is wrong, and a message."""

    def __init__(self, status: int, message: str, field: str | None = None) -> None:
        super().__init__(message)
        self.status, self.field = status, field


class EmbeddingsRequest(BaseModel):
    """The body of POST /v1/embeddings; other fields (`user`) are ignored.

    Two fields are not OpenAI's: `input_type` chooses the model's prompt, `truncate` cuts texts that are too long.
    """

    input: str | list[str]
    model: str | None = None
    encoding_format: Literal["float", "base64"] = "float"
    dimensions: int | None = Field(None, ge=1)
    input_type: Role = "document"
    truncate: bool | None = None

    @model_validator(mode="before")
    @classmethod
    def drop_nulls(cls, fields: Any) -> Any:
        """Take null, which gateways send for what their own clients leave out, as a field that is not there."""
        if not isinstance(fields, dict):
            return fields
        return {name: value for name, value in fields.items() if value is not None or name == "input"}

    @property
    def texts(self) -> list[str]:
        """The texts, one or several."""
        return [self.input] if isinstance(self.input, str) else self.input


def refusal(status: int, message: str, field: str | None = None) -> JSONResponse:
    """An error in OpenAI's shape."""
    kind = "invalid_request_error" if status < 500 else "server_error"
    text = visible(message)  # a request's own words may hold half of a surrogate pair, which no answer can
    return JSONResponse({"error": {"message": text, "type": kind, "param": field, "code": None}}, status)


def check_key(request: Request, key: str | None) -> None:
    """RequestError 401 for a wrong or missing bearer token, where the server has a key."""
    if key is None:
        return
    # Bytes as they were sent: clients write letters beyond ASCII as UTF-8, some as Latin-1
    sent = request.headers.get("authorization", "").encode("latin-1")
    expected = f"Bearer {key}"
    is_right = hmac.compare_digest(sent, expected.encode("utf-8", "surrogateescape"))
    if not is_right and not hmac.compare_digest(sent, expected.encode("latin-1", "backslashreplace")):
        raise RequestError(401, "The key is missing or wrong. Send 'Authorization: Bearer KEY'.")


def check_source(request: Request, hosts: Sequence[str] | None, origins: Sequence[str]) -> None:
    """RequestError 403 for requests that a web page of another site makes in a browser on this machine.

    A page can name this server by a domain of its own that leads to 127.0.0.1 (DNS rebinding): the header Host then
    has that domain. `hosts` are further names of this server; with None any name in Host is fine. Origin, which only
    browsers send, must name one of `origins` or this machine.
    """
    host = request.headers.get("host", "")
    if host and hosts is not None and not _is_allowed(f"http://{host}", hosts, any_address=True):
        message = f"This server is not called '{host[:200]}'. Start it with --allow-host NAME if it is."
        raise RequestError(403, message)
    origin = request.headers.get("origin")
    if origin is not None and not _is_allowed(origin, origins, any_address=False):
        message = (
            f"Requests from pages of '{origin[:200]}' are refused. Start the server with --allow-host NAME for them."
        )
        raise RequestError(403, message)


def _is_allowed(address: str, hosts: Sequence[str], any_address: bool) -> bool:
    try:
        parts = urlsplit(address)
    except ValueError:
        return False
    if "@" in parts.netloc or parts.path:  # neither is in a header that a browser writes
        return False
    name = (parts.hostname or "").removesuffix(".")
    if is_this_machine(name) or name in [host.lower().removesuffix(".") for host in hosts]:
        return True
    return any_address and _is_number(name)


def _is_number(host: str) -> bool:
    """Whether a host is an IP address."""
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


async def read_body(request: Request, limits: Limits, hold: Callable[[int], None]) -> bytes:
    """The body; RequestError 413 as soon as it is too large, 408 if it is not there in time.

    `hold` is told the bytes as they come: a client that announces many and sends none takes nobody's place.
    """
    # A body in chunks has the length of its chunks, whatever Content-Length says
    announced = 0 if "transfer-encoding" in request.headers else int(request.headers.get("content-length", 0))
    parts = request.stream()
    body = bytearray()
    try:
        if announced > limits.body:
            raise _too_large(limits)
        async with asyncio.timeout(limits.body_seconds):
            async for part in parts:
                body += part
                if len(body) > limits.body:
                    raise _too_large(limits)
                hold(len(part))
    except TimeoutError:
        raise RequestError(408, f"The body was not here after {limits.body_seconds:g} seconds.") from None
    except (RequestError, Overloaded):
        if "expect" not in request.headers:  # else the client waits for a word before it sends anything
            await _drop_rest(parts, limits)
        raise
    return bytes(body)


async def _drop_rest(parts: AsyncIterator[bytes], limits: Limits) -> None:
    """Read what a client still sends of a refused body.

    On a connection that is closed before, it would see an error of the network instead of the answer.
    """
    dropped = 0
    with suppress(TimeoutError, ClientDisconnect):
        async with asyncio.timeout(limits.rest_seconds):
            async for part in parts:
                dropped += len(part)
                if dropped > limits.rest:
                    return


def _too_large(limits: Limits) -> RequestError:
    return RequestError(413, f"The body has more than {limits.body:,} bytes. Send fewer texts in a request.")


def parse(body: bytes, model: ServedModel, limits: Limits) -> EmbeddingsRequest:
    """The request that a body holds; RequestError with the field that is wrong."""
    try:
        request = EmbeddingsRequest.model_validate(json.loads(body), strict=True)
    except ValidationError as error:
        first = error.errors()[0]
        field = str(first["loc"][0]) if first["loc"] else None
        fix = {"input": f"{TEXTS} {TOKEN_IDS}", None: "Send a JSON object with 'input'."}.get(field, "Correct it.")
        raise RequestError(400, f"[{field or 'body'}] {first['msg']}. {fix}", field) from None
    except (ValueError, RecursionError):
        raise RequestError(400, "[body] This is no JSON in UTF-8. Send a JSON object with 'input'.") from None
    texts = request.texts
    if not texts:
        raise RequestError(400, f"[input] The list is empty. {TEXTS}", "input")
    if not all(text.strip() for text in texts):
        raise RequestError(400, "[input] A text is empty. Leave it out.", "input")
    try:
        "".join(texts).encode()
    except UnicodeEncodeError:
        raise RequestError(400, "[input] A text holds half of a surrogate pair. Send valid Unicode.", "input") from None
    if len(texts) > limits.texts:
        message = f"[input] {len(texts):,} texts; a request holds at most {limits.texts:,}. Send several requests."
        raise RequestError(400, message, "input")
    if request.model not in (None, model.name):
        raise RequestError(404, f"[model] '{request.model}' is not served here. Name '{model.name}', or none.", "model")
    if request.dimensions is not None and request.dimensions > model.dim:
        message = f"[dimensions] found {request.dimensions}; the model has {model.dim}. Ask for at most that."
        raise RequestError(400, message, "dimensions")
    return request


def readable_texts(model: ServedModel, prompted: list[str], truncate: bool) -> tuple[list[str], int]:
    """The texts as far as the model reads them, and their tokens.

    RequestError if one is too long and must not be cut, or has a token without a vector.
    """
    texts = []
    total = 0
    for text in prompted:
        try:
            text, tokens = model.measure(text)
        except TokenWithoutVector as error:
            message = f"[input] A text has the token '{error}', for which the model has no vector. Remove it."
            raise RequestError(400, message, "input") from None
        if not truncate and tokens > model.max_length:
            problem = f"A text has more tokens than the model reads, {model.max_length:,}"
            raise RequestError(400, f"[input] {problem}. Split it, or send truncate=true.", "input")
        texts.append(text)
        total += min(tokens, model.max_length)
    return texts, total


def answer(vectors: Vectors, request: EmbeddingsRequest, model: ServedModel, tokens: int) -> Response:
    """The response: vectors as numbers, or as little-endian float32 in base64."""
    vectors = first_dims(vectors, request.dimensions or model.dim, model.normalized)

    def coded(vector: np.ndarray) -> Any:
        if request.encoding_format == "base64":
            return base64.b64encode(vector.astype("<f4").tobytes()).decode("ascii")
        return vector.tolist()

    data = [{"object": "embedding", "index": i, "embedding": coded(vector)} for i, vector in enumerate(vectors)]
    usage = {"prompt_tokens": tokens, "total_tokens": tokens}
    return JSONResponse({"object": "list", "data": data, "model": model.name, "usage": usage})


Endpoint = Callable[[Request], Awaitable[Response]]
Outcome = TypeVar("Outcome")


def make_app(
    model: ServedModel,
    limits: Limits | None = None,
    key: str | None = None,
    hosts: Sequence[str] | None = (),
    origins: Sequence[str] = (),
) -> Starlette:
    """Return the ASGI application. With a `key`, /v1 requires it as bearer token.

    `hosts` and `origins`: see `check_source`.
    """
    server = _Endpoints(model, limits or Limits(), key, hosts, origins)
    routes = [
        Route("/v1/embeddings", server.counted(server.guarded(server.embeddings)), methods=["POST"]),
        Route("/v1/models", server.guarded(server.models)),
        Route("/health", server.guarded(server.health, open_to_all=True)),
        Route("/metrics", server.guarded(server.report, open_to_all=True)),
    ]
    handlers = {Exception: broken, 404: unknown, 405: unknown}
    return Starlette(routes=routes, lifespan=server.lifespan, exception_handlers=handlers)


class _Metrics:
    """Figures for Prometheus."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        made = {"registry": self.registry, "namespace": "distilvec"}
        self.requests = Counter("requests", "Requests to /v1/embeddings by status", ["status"], **made)  # type: ignore[arg-type]
        self.texts = Counter("texts", "Texts embedded", **made)  # type: ignore[arg-type]
        self.tokens = Counter("tokens", "Tokens embedded", **made)  # type: ignore[arg-type]
        self.seconds = Histogram("request_seconds", "Time of a request that was answered with vectors", **made)  # type: ignore[arg-type]
        sizes = [2.0**power for power in range(12)]
        self.batches = Histogram("batch_texts", "Texts the model was given together", buckets=sizes, **made)  # type: ignore[arg-type]
        self.waiting = Gauge("waiting_texts", "Texts that wait for the model", **made)  # type: ignore[arg-type]


class _Endpoints:
    """Work of each path."""

    def __init__(
        self, model: ServedModel, limits: Limits, key: str | None, hosts: Sequence[str] | None, origins: Sequence[str]
    ) -> None:
        self.model, self.limits, self.key, self.metrics = model, limits, key, _Metrics()
        self.hosts, self.origins = hosts, origins
        self.held_bytes = 0  # of bodies whose requests are not answered yet
        self.batchers = {}
        for served in {model, model.queries}:
            self.batchers[served] = Batcher(
                served.embed, limits.batch_texts, limits.waiting, self.metrics.batches.observe
            )
        self.threads = ThreadPoolExecutor(2, "requests")  # few: each thread keeps memory of its own
        self.metrics.waiting.set_function(lambda: sum(batcher.waiting_texts for batcher in self.batchers.values()))

    @asynccontextmanager
    async def lifespan(self, app: Starlette) -> AsyncIterator[None]:
        """Run the batchers while the server runs."""
        for batcher in self.batchers.values():
            batcher.start()
        yield
        for batcher in self.batchers.values():
            await batcher.stop()
        self.threads.shutdown(cancel_futures=True)

    async def aside(self, work: Callable[..., Any], *values: Any) -> Any:
        """Run work of a request in a thread, so that the loop stays free."""
        return await asyncio.get_running_loop().run_in_executor(self.threads, work, *values)

    async def embeddings(self, request: Request) -> Response:
        """Answer POST /v1/embeddings."""
        began = time.perf_counter()
        # The types that a page of any site may send without asking first
        kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        if kind in ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data"):
            raise RequestError(415, f"The body is {kind}. Send it with 'Content-Type: application/json'.")
        held = 0

        def hold(size: int) -> None:
            """Count bytes of this body until it is answered: many large ones at once would fill the memory."""
            nonlocal held
            of_others = self.held_bytes - held
            if of_others and self.held_bytes + size > self.limits.waiting_bytes:
                raise Overloaded
            self.held_bytes += size
            held += size

        try:
            wanted = parse(await read_body(request, self.limits, hold), self.model, self.limits)
            model = self.model.queries if wanted.input_type == "query" else self.model
            prompted = [model.prompts[wanted.input_type] + text for text in wanted.texts]
            truncate = self.limits.truncate if wanted.truncate is None else wanted.truncate
            vectors, tokens = await while_connected(request, self.embed(model, prompted, truncate))
            response: Response = await self.aside(answer, vectors, wanted, model, tokens)
        finally:
            self.held_bytes -= held
        self.metrics.texts.inc(len(prompted))
        self.metrics.tokens.inc(tokens)
        self.metrics.seconds.observe(time.perf_counter() - began)
        return response

    async def embed(self, model: ServedModel, prompted: list[str], truncate: bool) -> tuple[Vectors, int]:
        """The vectors of texts, and their tokens."""
        texts, tokens = await self.aside(readable_texts, model, prompted, truncate)
        return await self.batchers[model].vectors(texts), tokens

    async def models(self, request: Request) -> Response:
        """List the one model."""
        entry = {"id": self.model.name, "object": "model", "created": 0, "owned_by": "distilvec"}
        return JSONResponse({"object": "list", "data": [entry]})

    async def health(self, request: Request) -> Response:
        """Report that the server is ready, and what it serves."""
        facts = {"model": self.model.name, "dimensions": self.model.dim, "max_tokens": self.model.max_length}
        return JSONResponse({"status": "ok", **facts})

    async def report(self, request: Request) -> Response:
        """Give the metrics in Prometheus' text format."""
        return Response(generate_latest(self.metrics.registry), media_type="text/plain; version=0.0.4")

    def guarded(self, work: Endpoint, open_to_all: bool = False) -> Endpoint:
        """Check where a request comes from and, unless `open_to_all`, its key; answer what is refused."""

        async def handle(request: Request) -> Response:
            try:
                check_source(request, self.hosts, self.origins)
                if not open_to_all:
                    check_key(request, self.key)
                return await work(request)
            except RequestError as error:
                response = refusal(error.status, str(error), error.field)
                if error.status in (408, 413):
                    response.headers["Connection"] = "close"  # the rest of the body is not read
                return response
            except Overloaded:
                response = refusal(503, "Too many requests wait. Send the request again later.")
                response.headers["Retry-After"] = "1"
                response.headers["Connection"] = "close"
                return response
            except ClientDisconnect:
                return refusal(499, "The client closed the connection.")

        return handle

    def counted(self, work: Endpoint) -> Endpoint:
        """Count the answers by status; 500 where the work raises."""

        async def handle(request: Request) -> Response:
            status = 500
            try:
                response = await work(request)
                status = response.status_code
            finally:
                self.metrics.requests.labels(status).inc()
            return response

        return handle


async def while_connected(request: Request, work: Coroutine[Any, Any, Outcome]) -> Outcome:
    """The result of `work`, which is cancelled when the client goes. Errors: ClientDisconnect; those of `work`."""
    working = asyncio.ensure_future(work)
    leaving = asyncio.ensure_future(request.receive())  # the body is read: the next message is the end
    try:
        await asyncio.wait({working, leaving}, return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            raise ClientDisconnect
        return working.result()
    finally:
        working.cancel()
        leaving.cancel()


async def broken(request: Request, error: Exception) -> Response:
    """The answer to a fault of ours: its kind, no inner text."""
    return refusal(500, f"The server failed ({type(error).__name__}). Its log has the reason.")


async def unknown(request: Request, error: Exception) -> Response:
    """The answer to a path or verb that does not exist."""
    paths = "POST /v1/embeddings, GET /v1/models, GET /health, GET /metrics"
    return refusal(getattr(error, "status_code", 404), f"No such path or verb. There are: {paths}.")
