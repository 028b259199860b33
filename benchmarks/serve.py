"""The server under load: requests of one text by many clients at once, next to a plain loop over `encode`.

    python -m benchmarks.serve --json FILE [--model FOLDER] [--requests 2000] [--concurrency 32] [--peer LINE]

`distilvec serve` runs in a process of its own; one client keeps `--concurrency` requests in flight over 127.0.0.1.
Every vector is compared with `encode`'s. The loop encodes the same texts one after another, as a program would that has
no server. Memory is the server's own (RssAnon), after each quarter of the requests. Then a tenth as
many requests are malformed or too large: each must be refused with a message. At the end the server gets SIGTERM.
`--peer` is the command line of another server of the same API, with `{model}` and `{port}` in it. Both servers then
run, the same requests go to them in turn, a quarter each time. With an environment ENV of its own (`pip install
"infinity-emb[server,torch]" "transformers<4.49" "datasets<4.5" "pyarrow==21.*" "optimum<2"`):

    --peer "ENV/bin/infinity_emb v2 --engine torch --device cpu --no-bettertransformer --url-prefix /v1 \\
            --model-id {model} --port {port}"
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import re
import shlex
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import numpy as np
from sentence_transformers import SentenceTransformer

from benchmarks.memory import own_megabytes
from benchmarks.stopwatch import machine
from benchmarks.texts import sample_texts
from distilvec.core.files import write_json
from distilvec.models.load import resolve_model

PATH = "/v1/embeddings"
WRONG = {  # bodies that are refused, with their status
    400: [b"{", b"[" * 10_000, b'{"input": [1, 2]}', b'{"input": ""}', b'{"input": "a", "dimensions": 100000}'],
    404: [b'{"input": "a", "model": "another"}'],
    413: [b'{"input": "' + b"a" * 5_000_000 + b'"}'],
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, required=True)
    parser.add_argument("--model", default="all-MiniLM-L6-v2")
    parser.add_argument("--requests", type=int, default=2000)
    parser.add_argument("--concurrency", type=int, default=32)
    parser.add_argument("--peer", default=None, help="another server's command line, with {model} and {port}")
    parser.add_argument(
        "--data", type=Path, default=None, help="english_text.jsonl.gz; generated texts where it is absent"
    )
    arguments = parser.parse_args()
    result = measure(arguments)
    write_json(arguments.json, result)
    print(json.dumps(result, indent=1))


def measure(arguments: argparse.Namespace) -> dict[str, Any]:
    """Both sides, and what the server's memory did."""
    texts, origin = sample_texts(arguments.requests, arguments.data)
    model = SentenceTransformer(resolve_model(arguments.model), device="cpu")
    model.encode(texts[:8], show_progress_bar=False)
    expected, loop = [], []
    for text in texts:
        began = time.perf_counter()
        expected.append(model.encode(text, show_progress_bar=False))
        loop.append(time.perf_counter() - began)
    line = [sys.executable, "-m", "distilvec", "serve", arguments.model, "--port", "0", "--truncate"]
    beside: dict[str, Any] = {}
    with subprocess.Popen(line, stderr=subprocess.PIPE, text=True, env=os.environ | {"COLUMNS": "200"}) as process:
        try:
            assert process.stderr is not None
            address = re.search(r"http://\S+?:\d+", process.stderr.readline())
            assert address is not None, "the server printed no address"
            found = asyncio.run(load(address[0], process.pid, texts, arguments.concurrency))
            if arguments.peer:
                beside = {"peer": peer(arguments, address[0], texts, expected)}
        finally:
            process.terminate()
            log = process.stderr.read() if process.stderr is not None else ""
    found |= {"exit_status": process.returncode, "traceback": "Traceback" in log}
    pairs = zip(found.pop("vectors"), expected, strict=True)
    difference = max(float(np.abs(one - other).max()) for one, other in pairs)
    return {
        "model": arguments.model,
        "texts": origin,
        "machine": machine(),
        "concurrency": arguments.concurrency,
        "requests": len(texts),
        "largest_difference_to_encode": difference,
        "server": found,
        "encode_loop": {"texts_per_second": round(len(loop) / sum(loop), 1), **percentiles(loop)},
        **beside,
    }


def peer(arguments: argparse.Namespace, address: str, texts: list[str], expected: list[np.ndarray]) -> dict[str, Any]:
    """Another server next to ours: the same texts, a quarter of them at a time, the servers in turn."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    line = arguments.peer.format(model=resolve_model(arguments.model), port=port)
    with subprocess.Popen(shlex.split(line), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        try:
            sides = {"ours": address, "theirs": f"http://127.0.0.1:{port}"}
            found = asyncio.run(in_turn(sides, texts, expected, arguments.concurrency))
            return {"command": Path(shlex.split(line)[0]).name, **found, "megabytes": own_megabytes(process.pid)}
        finally:
            process.terminate()


async def in_turn(
    sides: dict[str, str], texts: list[str], expected: list[np.ndarray], concurrency: int
) -> dict[str, Any]:
    """For each server: the median of its rates over the quarters, latencies, and the distance to `encode`'s vectors."""
    rates: dict[str, list[float]] = {name: [] for name in sides}
    seconds: dict[str, list[float]] = {name: [] for name in sides}
    error = dict.fromkeys(sides, 0.0)
    quarter = len(texts) // 4
    for start in range(0, 4 * quarter, quarter):
        for name, address in sides.items():
            async with connected(address, concurrency) as client:
                sender = Sender(client, concurrency)
                await sender.one(texts[0])
                sender.seconds.clear()
                began = time.perf_counter()
                vectors = await asyncio.gather(*(sender.one(text) for text in texts[start : start + quarter]))
                rates[name].append(quarter / (time.perf_counter() - began))
                seconds[name] += sender.seconds
            pairs = zip(vectors, expected[start : start + quarter], strict=True)
            error[name] = max(error[name], *(float(np.abs(one - other).max()) for one, other in pairs))
    return {
        name: {
            "texts_per_second": round(statistics.median(rates[name]), 1),
            **percentiles(seconds[name]),
            "largest_difference_to_encode": error[name],
        }
        for name in sides
    }


class Sender:
    """Requests of one text each, a bounded number of them in flight.

    `seconds` has the time of each answer; `after` is called with the number of answers.
    """

    def __init__(
        self, client: httpx.AsyncClient, concurrency: int, after: Callable[[int], None] = lambda count: None
    ) -> None:
        self.client, self.free, self.after = client, asyncio.Semaphore(concurrency), after
        self.seconds: list[float] = []

    async def one(self, text: str) -> np.ndarray:
        """The vector of one text; an answer that is no success raises."""
        async with self.free:
            began = time.perf_counter()
            answer = await self.client.post(PATH, json={"input": text})
            self.seconds.append(time.perf_counter() - began)
            self.after(len(self.seconds))
        answer.raise_for_status()
        return np.array(answer.json()["data"][0]["embedding"], dtype=np.float32)

    async def refused(self, status: int, body: bytes) -> bool:
        """Whether a wrong request is answered with this status and a message."""
        async with self.free:
            answer = await self.client.post(PATH, content=body)
        return answer.status_code == status and bool(answer.json()["error"]["message"])


@asynccontextmanager
async def connected(address: str, concurrency: int) -> AsyncIterator[httpx.AsyncClient]:
    """A client of a server that listens; waits for it up to two minutes."""
    limits = httpx.Limits(max_connections=concurrency, max_keepalive_connections=concurrency)
    async with httpx.AsyncClient(base_url=address, timeout=120, limits=limits) as client:
        for _ in range(2400):
            try:
                await client.get("/health")
                break
            except httpx.ConnectError:
                await asyncio.sleep(0.05)
        yield client


async def load(address: str, process: int, texts: list[str], concurrency: int) -> dict[str, Any]:
    """Send every text, then wrong requests; what came back and how long it took."""
    memory: list[float] = []
    wrong = [(status, body) for status, bodies in WRONG.items() for body in bodies]

    def note(answers: int) -> None:
        if answers % (len(texts) // 4) == 0 and len(memory) < 4:
            memory.append(own_megabytes(process))

    async with connected(address, concurrency) as client:
        sender = Sender(client, concurrency, note)
        jobs: list[Any] = [sender.one(text) for text in texts]
        checks = [sender.refused(*wrong[i % len(wrong)]) for i in range(len(texts) // 10)]
        began = time.perf_counter()
        vectors = await asyncio.gather(*jobs)
        spent = time.perf_counter() - began
        refusals = await asyncio.gather(*checks)
        await asyncio.gather(*(sender.one(text) for text in texts[:concurrency]))  # it still answers
        metrics = (await client.get("/metrics")).text
    batches = re.search(r"distilvec_batch_texts_count (\S+)", metrics)
    assert batches is not None
    return {
        "vectors": vectors,
        "answered": len(vectors),
        "refused_with_a_message": f"{sum(refusals)} of {len(refusals)}",
        "texts_per_second": round(len(texts) / spent, 1),
        **percentiles(sender.seconds[: len(texts)]),
        "mean_batch": round((len(texts) + min(concurrency, len(texts))) / float(batches[1]), 2),
        "megabytes_after_each_quarter": [round(value, 1) for value in memory],
    }


def percentiles(seconds: list[float]) -> dict[str, float]:
    """The median and the 99th percentile, in milliseconds."""
    return {
        "p50_ms": round(1000 * statistics.median(seconds), 2),
        "p99_ms": round(1000 * float(np.quantile(seconds, 0.99)), 2),
    }


if __name__ == "__main__":
    main()
