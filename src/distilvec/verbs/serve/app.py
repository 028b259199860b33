"""The HTTP server: OpenAI's /v1/embeddings and /v1/models, /health, and /metrics for Prometheus.

Errors have OpenAI's shape, {"error": {"message", "type", "param", "code"}}, and a 4xx status for a wrong request.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from typing import Any, TypeVar

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from distilvec.verbs.serve.batcher import Batcher, Overloaded, Vectors
from distilvec.verbs.serve.model import ServedModel
from distilvec.verbs.serve.requests import (
    Limits,
    RequestError,
    answer,
    check_key,
    check_source,
    check_type,
    parse,
    read_body,
    read_texts,
    refusal,
)

Endpoint = Callable[[Request], Awaitable[Response]]
Result = TypeVar("Result")


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
        check_type(request)
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
            asked = parse(await read_body(request, self.limits, hold), self.model, self.limits)
            model = self.model.queries if asked.input_type == "query" else self.model
            prompted = [model.prompts[asked.input_type] + text for text in asked.texts]
            truncate = self.limits.truncate if asked.truncate is None else asked.truncate
            vectors, tokens = await while_connected(request, self.embed(model, prompted, truncate))
            response: Response = await self.aside(answer, vectors, asked, model, tokens)
        finally:
            self.held_bytes -= held
        self.metrics.texts.inc(len(prompted))
        self.metrics.tokens.inc(tokens)
        self.metrics.seconds.observe(time.perf_counter() - began)
        return response

    async def embed(self, model: ServedModel, prompted: list[str], truncate: bool) -> tuple[Vectors, int]:
        """The vectors of texts, and their tokens."""
        texts, tokens = await self.aside(read_texts, model, prompted, truncate)
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


async def while_connected(request: Request, work: Coroutine[Any, Any, Result]) -> Result:
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
    known = "POST /v1/embeddings, GET /v1/models, GET /health, GET /metrics"
    return refusal(getattr(error, "status_code", 404), f"No such path or verb. There are: {known}.")
