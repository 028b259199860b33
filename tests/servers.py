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

from distilvec.verbs.serve.app import make_app
from distilvec.verbs.serve.server import server_config, take_address

FAULTS = ("429", "500", "dropped", "cut", "partial", "doubled", "dims", "nan", "slow", "page")


@contextmanager
def serving(model, **options):
    """The address of `distilvec serve` in a thread of this process."""
    with take_address("127.0.0.1", 0) as place:
        server = uvicorn.Server(server_config(make_app(model, **options), log_level="critical", log_config=None))
        place.listen()  # connections wait until the server has started
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
        self.keys = []  # of GET /models
        self.times, self.bodies, self.lock, self.order = [], [], threading.Lock(), np.random.default_rng(0)
        self.refusal = None
        self.unwanted = set()  # a request with one of these texts is refused, with this status
        self.unwanted_status = 400
        self.models = ["served"]  # of GET /models; None: there is no such path

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

    def answer(self, body, fault):
        """The content of an answer, its tokens, and the texts that it answers in full."""
        with self.lock:
            order = self.order.permutation(len(body["input"])).tolist()
        content, tokens = _answer(self, body["input"], order, fault)
        return content, tokens, body["input"] if fault is None else []

    def handle_error(self, request, client_address):
        """A client that has gone is no error."""


class FaultyChat(FaultyApi):
    """OpenAI's chat: two texts about each word that the prompt has on a line of its own, in quotes.

    `given` counts how often a word's texts were sent in the right form, `asked` how often they were asked for.
    `never` are words that get no answer.
    """

    def __init__(self, faults=None, never=(), **options):
        super().__init__({}, faults, tokens=lambda text: len(text) // 3, **options)
        self.never, self.asked = {*never}, Counter()

    @staticmethod
    def texts(word):
        """The texts about a word; the second one is the same for all words but for its case."""
        return [f"{word} is a thing of number {len(word)}.", "A COMMON text." if len(word) % 2 else "A common  text."]

    def answer(self, body, fault):
        """The content of an answer, its tokens, and the words that it answers in full."""
        words = [json.loads(line) for line in body["messages"][0]["content"].splitlines() if line.startswith('"')]
        found = {word: self.texts(word) for word in words if word not in self.never}
        with self.lock:
            self.asked.update(words)
        content, right = json.dumps(found, ensure_ascii=False), [*found]
        if fault in BAD_ANSWERS:
            content, right = BAD_ANSWERS[fault](found), []
        elif fault == "missing":
            right = right[:-1]
            content = json.dumps({word: found[word] for word in right} | {"another": ["x"]})
        elif fault in GOOD_FORMS:
            content = GOOD_FORMS[fault](found)
        read, written = self.count_tokens(body["messages"][0]["content"]), self.count_tokens(content or "")
        usage = {"prompt_tokens": read, "completion_tokens": written, "total_tokens": read + written}
        choice = {"index": 0, "message": {"role": "assistant", "content": content}, "finish_reason": "stop"}
        answer = {"object": "chat.completion", "model": "served", "choices": [choice], "usage": usage}
        if fault == "partial":
            answer["choices"] = []
        return json.dumps(answer).encode(), read + written, [] if fault in ("partial", "cut") else right


GOOD_FORMS = {
    "fence": lambda found: f"```json\n{json.dumps(found)}\n```",
    "around": lambda found: f"Sure, {{here}} it is:\n{json.dumps(found)}\n{{Anything}} else?",
    "case": lambda found: json.dumps({f" {word.upper()}": texts for word, texts in found.items()}),
}
BAD_ANSWERS = {
    "prose": lambda found: "Certainly! Here are some facts.",
    "length": lambda found: json.dumps(found)[:-20],
    "list": lambda found: json.dumps([*found]),
    "strings": lambda found: json.dumps({word: texts[0] for word, texts in found.items()}),
    "empty": lambda found: json.dumps({word: [*texts, " "] for word, texts in found.items()}),
    "numbers": lambda found: json.dumps({word: [1, *texts] for word, texts in found.items()}),
    "nothing": lambda found: json.dumps({word: [] for word in found}),
    "deep": lambda found: "[" * 100_000,
    "refusal": lambda found: None,
}


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def log_message(self, *_):
        pass

    def do_GET(self):
        api = self.server
        with api.lock:
            api.keys.append(self.headers["authorization"])
        if self.path != "/v1/models" or api.models is None:
            return self._send(404, b"no such path")
        return self._send(200, json.dumps({"object": "list", "data": [{"id": name} for name in api.models]}).encode())

    def do_POST(self):
        api = self.server
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        with api.lock:
            fault = api.faults(api.requests) if callable(api.faults) else api.faults.get(api.requests)
            api.requests += 1
            api.times.append(time.monotonic())
            api.bodies.append(body)
        if api.refusal is not None or fault in ("429", "500", "page"):
            return self._refuse(api, fault)
        if api.unwanted.intersection(body.get("input", [])):
            return self._send(
                api.unwanted_status, b'{"error": {"message": "the input has content that is not allowed"}}'
            )
        if fault in ("dropped", "slow"):
            time.sleep(api.slow if fault == "slow" else 0)
            self.close_connection = True
            self.connection.shutdown(socket.SHUT_RDWR)
            return None
        with api.lock:
            api.seen[fault] += 1
        content, tokens, right = api.answer(body, fault)
        if fault == "cut":
            self._send(200, content[: len(content) // 2], len(content))
            self.close_connection = True
            return None
        with api.lock:  # first, since the client may be done before this thread goes on
            api.tokens += tokens
            if right:
                api.given.update(right)
                api.sizes.append(tokens)
        return self._send(200, content)

    def _refuse(self, api, fault):
        """A refusal that repeats the key, as bad servers do."""
        status = api.refusal or {"page": 502}.get(fault) or int(fault)
        with api.lock:
            api.seen[fault] += 1
        pause = api.retry_after() if callable(api.retry_after) else api.retry_after
        more = {"Retry-After": pause} if status == 429 else {}
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
