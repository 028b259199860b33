"""Real HTTP servers on this machine: `distilvec serve` in a thread, and an API that misbehaves on purpose."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections import Counter
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import numpy as np
import uvicorn

from distilvec.serving.app import make_app
from distilvec.serving.server import take_address

FAULTS = ("429", "500", "dropped", "cut", "partial", "doubled", "dims", "nan", "slow", "page")


@contextmanager
def serving(model, **options):
    """The address of `distilvec serve` in a thread of this process."""
    with take_address("127.0.0.1", 0) as place:
        server = uvicorn.Server(uvicorn.Config(make_app(model, **options), log_level="critical", log_config=None))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [place]})
        thread.start()
        try:
            yield f"http://127.0.0.1:{place.getsockname()[1]}"
        finally:
            server.should_exit = True
            thread.join(20)
            assert not thread.is_alive()


class FaultyApi(ThreadingHTTPServer):
    """OpenAI's embeddings from a table of vectors; entries of an answer come in any order.

    `faults` maps the number of a request, from 0, to a fault. `given` counts how often a text's right vector was sent.
    """

    daemon_threads = True

    def __init__(self, table, faults=None, retry_after="0.01", slow=1.5, tokens=lambda text: len(text.split()) + 2):
        super().__init__(("127.0.0.1", 0), _Handler)
        self.table, self.faults, self.retry_after, self.slow = table, faults or {}, retry_after, slow
        self.count_tokens = tokens
        self.requests, self.tokens, self.given, self.seen, self.sizes = 0, 0, Counter(), Counter(), []
        self.times, self.bodies, self.lock, self.order = [], [], threading.Lock(), np.random.default_rng(0)
        self.refusal = None

    @property
    def address(self):
        """The base URL for recipes."""
        return f"http://127.0.0.1:{self.server_address[1]}/v1"

    def __enter__(self):
        threading.Thread(target=self.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
        return self

    def __exit__(self, *error):
        self.shutdown()
        self.server_close()

    def handle_error(self, request, client_address):
        """A client that has gone is no error."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def log_message(self, *_):
        pass

    def do_POST(self):
        api = self.server
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        texts = body["input"]
        with api.lock:
            number, api.requests = api.requests, api.requests + 1
            api.times.append(time.monotonic())
            api.bodies.append(body)
        fault = api.faults(number) if callable(api.faults) else api.faults.get(number)
        if api.refusal is not None or fault in ("429", "500", "page"):
            return self._refuse(api, fault)
        if fault in ("dropped", "slow"):
            time.sleep(api.slow if fault == "slow" else 0)
            self.close_connection = True
            self.connection.shutdown(socket.SHUT_RDWR)
            return None
        with api.lock:
            api.seen[fault] += 1
            order = api.order.permutation(len(texts)).tolist()
        content, tokens = _answer(api, texts, order, fault)
        if fault == "cut":
            self._send(200, content[: len(content) // 2], len(content))
            self.close_connection = True
            return None
        with api.lock:  # first, since the client may be done before this thread goes on
            api.tokens += tokens
            if fault is None:
                api.given.update(texts)
                api.sizes.append(tokens)
        return self._send(200, content)

    def _refuse(self, api, fault):
        """A refusal that repeats the key, as bad servers do."""
        status = api.refusal or {"page": 502}.get(fault) or int(fault)
        with api.lock:
            api.seen[fault] += 1
        more = {"Retry-After": api.retry_after} if status == 429 else {}
        self._send(status, f"<p>refused {self.headers['authorization']}</p>".encode(), more=more)

    def _send(self, status, content, length=None, more=None):
        self.send_response(status)
        for name, value in {"Content-Type": "application/json", **(more or {})}.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(length or len(content)))
        self.end_headers()
        self.wfile.write(content)


def _answer(api, texts, order, fault):
    """The JSON of an answer, and its tokens."""
    vectors = [list(map(float, api.table[text])) for text in texts]
    entries = [{"object": "embedding", "index": row, "embedding": vectors[row]} for row in order]
    if fault == "partial":
        entries = entries[:-1]
    if fault == "doubled":
        entries = [*entries[:-1], entries[0]] if len(entries) > 1 else [*entries, entries[0]]
    if fault == "dims":
        entries[-1]["embedding"] = entries[-1]["embedding"][:-1]
    if fault == "nan":
        entries[-1]["embedding"] = [*entries[-1]["embedding"][:-1], float("nan")]
    tokens = sum(map(api.count_tokens, texts))
    usage = {"prompt_tokens": tokens, "total_tokens": tokens}
    return json.dumps({"object": "list", "data": entries, "model": "served", "usage": usage}).encode(), tokens
