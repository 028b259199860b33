"""Answers that servers give, and keys: against a real HTTP server whose answers each test states."""

from __future__ import annotations

import base64
import gzip
import html
import json
import shutil
import socket
import ssl
import subprocess
import threading
import time
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from traceback import format_exception
from urllib.parse import quote

import httpx2
import numpy as np
import pytest
from refusals import refused_teacher as refused

from distilvec.config.endpoint import EndpointSection
from distilvec.config.schema import TeacherSection
from distilvec.core.errors import first_line
from distilvec.core.secrets import hide
from distilvec.data.public_download import download
from distilvec.teachers.api_embedder import ApiEmbedder

PROBE = ["a river", "two stones", "winter", "music"]
pytestmark = pytest.mark.usefixtures("loopback")
KEY = 'sk-Ab12/Cd34+Ef56=="&'


def vector(text):
    """Four numbers for a text."""
    return [float(len(text)), *(float(ord(text[k % len(text)])) for k in range(3))]


def answer(texts, first=0, **changes):
    """A right answer in OpenAI's form."""
    data = [{"index": first + number, "embedding": vector(text)} for number, text in enumerate(texts)]
    return {"data": data, "usage": {"total_tokens": 3}} | changes


@contextmanager
def server_of(reply):
    """The address of a server; `reply(body)` gives status, headers, and content or its pieces. Bodies, as they come."""
    bodies = []

    class Handler(BaseHTTPRequestHandler):
        def log_message(self, *_):
            pass

        def do_POST(self):
            body = json.loads(self.rfile.read(int(self.headers["content-length"])))
            bodies.append(body)
            status, headers, content = reply(body)
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name, value)
            self.end_headers()
            pieces = [content] if isinstance(content, bytes) else content
            try:
                for piece in pieces:
                    self.wfile.write(piece)
                    self.wfile.flush()
            except OSError:  # the client has gone
                pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}/v1", bodies
    finally:
        server.shutdown()
        server.server_close()


def embedder(address, **api):
    settings = {"base_url": address, "retries": 0, "retry_seconds": 0.001, "timeout": 20, "concurrency": 1, **api}
    return ApiEmbedder(TeacherSection(model="served", api=settings))


def ok(value):
    return 200, {}, (value if isinstance(value, bytes) else json.dumps(value).encode())


def failing(content, status=200, headers=None, **api):
    """The message for an answer."""
    with server_of(lambda body: (status, headers or {}, content)) as (address, _), embedder(address, **api) as teacher:
        with refused("teacher.api", "") as found:
            teacher.info()
        return str(found.value)


TEXTS = ["river", "a stone", "the winter", "music and more"]


def coded(texts):
    data = [
        {"index": number, "embedding": base64.b64encode(np.array(vector(text), "<f4").tobytes()).decode()}
        for number, text in enumerate(texts)
    ]
    return {"data": data}


@pytest.mark.parametrize(
    "form",
    [
        answer,
        coded,
        lambda texts: answer(texts, first=1),
        lambda texts: answer(texts, first=700),
        lambda texts: answer(texts) | {"data": answer(texts)["data"][::-1]},
        lambda texts: {"data": [{"embedding": vector(text)} for text in texts]},
        lambda texts: answer(texts, usage=None),
    ],
    ids=["numbers", "base64", "from 1", "from 700", "reversed", "no index", "no usage"],
)
def test_right_answers_in_many_forms(form):
    with server_of(lambda body: ok(form(body["input"]))) as (address, bodies), embedder(address) as teacher:
        found = teacher.embed(TEXTS)
        assert bodies[-1]["encoding_format"] == "float"
    np.testing.assert_allclose(found, [vector(text) for text in TEXTS])


def test_the_form_of_vectors_may_be_set():
    reply = lambda body: ok(coded(body["input"]) if body["encoding_format"] == "base64" else {})  # noqa: E731
    with server_of(reply) as (address, _), embedder(address, body={"encoding_format": "base64"}) as teacher:
        np.testing.assert_allclose(teacher.embed(TEXTS), [vector(text) for text in TEXTS])


@pytest.mark.parametrize(
    "changed",
    [
        {"data": [{"index": number == 1, "embedding": [1.0]} for number in range(4)]},
        {"data": [{"index": -1 - number, "embedding": [1.0]} for number in range(4)]},
        {"data": [{"index": [0, 1, 1, 3][number], "embedding": [1.0]} for number in range(4)]},
        {"data": [{"embedding": [1.0], **({"index": 0} if number == 0 else {})} for number in range(4)]},
        {"data": [{"index": number, "embedding": "AAA"} for number in range(4)]},
        {"data": [{"index": number, "embedding": [True]} for number in range(4)]},
        {"data": [{"index": number, "embedding": []} for number in range(4)]},
        *({"usage": {"total_tokens": count}} for count in (10**400, -5, True, "7", 1.5, 1e300)),
        {"usage": {"completion_tokens": 10**400}},
    ],
)
def test_wrong_answers_are_not_as_expected(changed):
    assert "not as expected" in failing(json.dumps(answer(PROBE) | changed).encode())


@pytest.mark.parametrize(
    ("error", "shown", "requests"),
    [
        ({"message": "No endpoints found for model m"}, "No endpoints found for model m", 3),
        ("No endpoints found for model m", "No endpoints found for model m", 3),
        ({"message": "Provider returned error", "code": 502}, "status 502", 3),
        ({"message": "No endpoints found for model m", "code": 404}, "No endpoints found for model m", 1),
        ({"message": KEY}, "***", 3),
    ],
)
def test_an_error_with_status_200_is_shown(error, shown, requests, monkeypatch):
    """Where its code is that of a refusal, it is not repeated. Nothing was paid."""
    monkeypatch.setenv("SOME_KEY", KEY)
    with (
        server_of(lambda body: ok({"error": error})) as (address, bodies),
        embedder(address, retries=2, key_variable="SOME_KEY") as teacher,
    ):
        with refused("teacher.api", shown) as found:
            teacher.info()
        assert len(bodies) == requests and teacher.meter.counts["tokens"] == 0
        assert "model's name" in str(found.value) or "502" in shown
        assert "Ab12" not in str(found.value)


def test_an_error_that_is_null_is_none():
    with server_of(lambda body: ok(answer(body["input"], error=None))) as (address, _), embedder(address) as teacher:
        assert teacher.info().dim == 4 and teacher.meter.counts["tokens"] > 0


@pytest.mark.parametrize("content", [b"<html>Sign in to the proxy</html>", b'{"detail": "Sign in to the proxy"}'])
def test_the_beginning_of_an_answer_that_is_not_as_expected_is_shown(content):
    text = failing(content)
    assert "Sign in to the proxy" in text and "Check the address" in text


@pytest.mark.parametrize(
    ("indices", "words"),
    [([0, 0, 0, 0], "repeat: [0, 0, 0, 0]"), ([0, 1, 2, 9], "gaps: [0, 1, 2, 9]"), ([0, 1, 2], "3 vectors for 4")],
)
def test_wrong_indices_are_shown(indices, words):
    assert words in failing(json.dumps({"data": [{"index": index, "embedding": [1.0]} for index in indices]}).encode())


def test_an_infinite_count_is_not_as_expected():
    content = json.dumps(answer(PROBE)).replace('"total_tokens": 3', '"total_tokens": 1e999').encode()
    assert "not as expected" in failing(content)


def test_an_answer_that_drips_ends_with_the_timeout():
    def drip():
        while True:
            time.sleep(0.1)
            yield b" "

    began = time.monotonic()
    text = failing(drip(), timeout=1)
    assert "timed out" in text and "Raise the timeout" in text
    assert time.monotonic() - began < 8


@pytest.mark.parametrize("packed", [False, True], ids=["plain", "gzip"])
def test_an_answer_without_end_is_not_read_whole(packed):
    sent = []

    def endless():
        for _ in range(4000):
            sent.append(1)
            yield b" " * 100_000

    if packed:
        content, headers = gzip.compress(b" " * 300_000_000, 1), {"Content-Encoding": "gzip"}
    else:
        content, headers = endless(), {}
    assert "bytes" in failing(content, headers=headers)
    assert len(sent) < 1000


@pytest.mark.parametrize("charset", ["no-such-charset", "utf-16", "idna", "rot13"])
def test_any_charset_of_an_error(charset):
    text = failing("grün \u2028 x".encode(), 404, {"Content-Type": f"text/plain; charset={charset}"})
    assert "status 404: grün x" in text


@pytest.mark.parametrize("status", [200, 400, 401, 500])
def test_escape_sequences_stay_with_the_server(status):
    text = failing(b"\x1b]0;title\x07\x1b[31mred\x9b1m \xe2\x80\xae", status)
    assert not any(ord(letter) < 32 or ord(letter) in (0x9B, 0x202E) for letter in text)


@pytest.mark.parametrize(
    "sent", [b"\\" * 20_000, b"%" + b"25" * 20_000, b"&amp;#" + b"0" * 20_000, b"&#x" + b"0" * 20_000]
)
def test_a_key_is_looked_for_in_any_answer_at_once(sent, monkeypatch):
    monkeypatch.setenv("SOME_KEY", KEY)
    began = time.process_time()
    text = failing(sent + KEY.encode(), 400, key_variable="SOME_KEY")
    assert time.process_time() - began < 1 and "Ab12" not in text


def test_a_key_that_is_cut_is_hidden(monkeypatch):
    """A message is read up to a length, and an error up to a number of bytes, in the middle of a key."""
    monkeypatch.setenv("SOME_KEY", KEY)
    usage = json.dumps(answer(PROBE, usage={"total_tokens": "x" * 32 + KEY})).encode()
    assert "sk-Ab" not in failing(usage, key_variable="SOME_KEY")
    for size in (20_000, 100_000):
        for spelled in (KEY, "".join(f"\\u{ord(letter):04x}" for letter in KEY)):
            filled = b" " * (size - len(spelled) // 2) + spelled.encode()
            text = failing(filled, 400, key_variable="SOME_KEY")
            assert "sk-" not in text and "u0073" not in text


def test_an_answer_that_is_whole_counts_after_the_deadline(monkeypatch):
    """It is paid for. One without a stated length may go on."""
    content = json.dumps(answer(PROBE)).encode()

    def late():
        yield content[:10]
        time.sleep(0.6)
        yield content[10:]

    for headers, is_whole in (({"Content-Length": str(len(content))}, True), ({}, False)):
        with server_of(lambda body, headers=headers: (200, headers, late())) as (address, bodies):
            teacher = embedder(address, timeout=0.5)
            monkeypatch.setattr(teacher.client._client, "timeout", 20)  # of a piece; the deadline is the answer's
            with teacher:
                if is_whole:
                    teacher.info()
                else:
                    with refused("teacher.api", "timed out"):
                        teacher.info()
            assert len(bodies) == 1


@pytest.mark.parametrize(
    "pause",
    ["1e400", "nan", "-1", ".", "soon", "Mon, 01 Jan 99999 00:00:00 GMT", "Mon, 01 Jan 9999999999999 00:00:00 GMT",
     "Mon, 01 Jan 0001 00:00:00 +2359", "Mon, 01 Jan 2024 00:00:00 +99999999999999"],
)  # fmt: skip
def test_a_pause_that_is_none_is_passed_over(pause):
    replies = iter([(429, {"Retry-After": pause}, b"later")])
    reply = lambda body: next(replies, None) or ok(answer(body["input"]))  # noqa: E731
    with server_of(reply) as (address, bodies), embedder(address, retries=1) as teacher:
        teacher.info()
        assert len(bodies) == 2


@pytest.mark.parametrize(
    ("code", "retries", "word"),
    [(socket.EAI_NONAME, 0, "not known"), (socket.EAI_AGAIN, 2, "2 retries"), (socket.EAI_FAIL, 2, "2 retries")],
)
def test_a_name_that_the_resolver_does_not_know_is_refused_at_once(code, retries, word, monkeypatch):
    """A resolver that has no answer for now is asked again a little: a machine without a network has none either."""

    def resolve(*_, **__):
        raise socket.gaierror(code, "from the resolver")

    monkeypatch.setattr(socket, "create_connection", resolve)
    with embedder("https://api.opnai.example/v1", retries=8) as teacher:
        with refused("teacher.api", word) as found:
            teacher.info()
        assert "api.opnai.example" in str(found.value)
        assert teacher.meter.counts["retries"] == retries
        with refused("teacher", "api.opnai.example"):
            teacher.client.models()


def test_a_server_that_has_answered_may_be_away_for_a_moment(monkeypatch):
    """A port that is closed after an answer is a server that starts again: such requests are repeated."""
    with server_of(lambda body: ok(answer(body["input"]))) as (address, _), embedder(address, retries=3) as teacher:
        teacher.info()
        connect, refusals = socket.create_connection, []

        def restarting(*arguments, **options):
            if len(refusals) < 2:
                refusals.append(arguments)
                raise ConnectionRefusedError(111, "Connection refused")
            return connect(*arguments, **options)

        monkeypatch.setattr(socket, "create_connection", restarting)
        np.testing.assert_allclose(teacher.embed(TEXTS), [vector(text) for text in TEXTS])
        assert len(refusals) == teacher.meter.counts["retries"] == 2


def test_a_certificate_that_nobody_trusts_and_a_port_without_tls_are_refused_at_once(tmp_path, monkeypatch):
    openssl = shutil.which("openssl")
    if openssl is None:
        pytest.skip("openssl is not installed")
    words = ["req", "-x509", "-newkey", "rsa:2048", "-nodes", "-subj", "/CN=elsewhere", "-keyout", "key", "-out", "pem"]
    subprocess.run([openssl, *words], cwd=tmp_path, check=True, capture_output=True)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tmp_path / "pem", tmp_path / "key")
    server = ThreadingHTTPServer(("127.0.0.1", 0), BaseHTTPRequestHandler)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
    try:
        with embedder(f"https://127.0.0.1:{server.server_address[1]}/v1", retries=8) as teacher:
            with refused("teacher.api", "certificate"):
                teacher.info()
            assert teacher.meter.counts["retries"] == 0
    finally:
        server.shutdown()
        server.server_close()
    with (
        server_of(lambda body: ok(answer(body["input"]))) as (address, _),
        embedder(address.replace("http:", "https:"), retries=8) as teacher,
    ):
        with refused("teacher.api", "TLS"):
            teacher.info()
        assert teacher.meter.counts["retries"] == 0


@pytest.mark.parametrize("proxy", ["socks9://127.0.0.1:1", "ftp://127.0.0.1:1"])
def test_a_proxy_of_no_known_kind_is_refused(proxy, monkeypatch):
    monkeypatch.setenv("HTTPS_PROXY", proxy)
    with refused("teacher.api", "proxy"):
        embedder("https://far.example/v1")


@pytest.mark.parametrize(
    "proxy",
    ["http://me:hunter2#x@proxy:3128", "http://me:hunter2/x@proxy:3128", "me:hunter2?x@proxy:3128",
     "http://me:hunter2\t@proxy:3128", " http://me:hunter2@proxy:3128", "hunter2://proxy:3128"],
)  # fmt: skip
def test_a_proxy_s_password_is_not_shown(proxy, monkeypatch, tmp_path):
    """Not in the errors of the hub's library either."""
    monkeypatch.setenv("HTTPS_PROXY", proxy)
    for key, work in (
        ("teacher.api", lambda: embedder("https://far.example/v1")),
        ("data", lambda: download("https://far.example/x", tmp_path / "x")),
    ):
        with refused(key, "HTTPS_PROXY") as found:
            work()
        traceback = "".join(format_exception(found.value.with_traceback(None)))
        assert "hunter2" not in traceback
    assert "hunter2" not in first_line(httpx2.InvalidURL("Invalid port: 'hunter2'"))


@pytest.mark.parametrize("name", ["absent.pem", "notes.txt", "folder"])
@pytest.mark.parametrize("address", ["https://far.example/v1", "https://localhost/v1"])
def test_certificates_that_cannot_be_read_are_named(name, address, tmp_path, monkeypatch):
    (tmp_path / "notes.txt").write_text("no certificate")
    (tmp_path / "folder").mkdir()
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / name))
    for key, work in (
        ("teacher.api", lambda: embedder(address)),
        ("data", lambda: download(address, tmp_path / "x")),
    ):
        with refused(key, str(tmp_path / name)) as found:
            work()
        assert "SSL_CERT_FILE" in str(found.value)


@pytest.mark.parametrize("address", ["ftp://far.example/v1", "http://far..example/v1", f"http://{'a' * 64}.example/v1"])
def test_what_is_no_address_of_a_server_is_refused_with_the_recipe(address):
    with pytest.raises(ValueError, match="expected an address"):
        EndpointSection(base_url=address)


def test_what_goes_to_this_machine_goes_to_no_proxy(monkeypatch):
    monkeypatch.setenv("SOME_KEY", KEY)
    reply = lambda body: ok(answer(body["input"]))  # noqa: E731
    with server_of(reply) as (proxy, seen), server_of(reply) as (address, bodies):
        for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
            monkeypatch.setenv(name, proxy.removesuffix("/v1"))
        for name in ("NO_PROXY", "no_proxy"):
            monkeypatch.delenv(name, raising=False)
        with embedder(address, key_variable="SOME_KEY") as teacher:
            teacher.info()
        assert len(bodies) == 1 and not seen


def test_a_redirect_names_the_address_without_its_password():
    place = "https://me:hidden@other.example:8443/v1/embeddings?token=hidden"
    text = failing(b"", 307, {"Location": place})
    assert "https://other.example:8443/v1/embeddings" in text and "hidden" not in text


@pytest.mark.parametrize(
    "content",
    [
        {"embeddings": [[1.0]] * 4},
        {"id": "x", "embeddings": {"float": [[1.0]] * 4}},
        [{"index": number, "embedding": [[1.0]]} for number in range(4)],  # llama.cpp's
        [[1.0]] * 4,  # of Text Embeddings Inference
    ],
)
def test_the_own_paths_of_other_servers_are_named(content):
    """At once: another answer is not to be expected."""
    reply = lambda body: ok(content)  # noqa: E731
    with server_of(reply) as (address, bodies), embedder(address, retries=8) as teacher:
        with refused("teacher.api", "llama.cpp") as found:
            teacher.info()
        assert len(bodies) == 1 and "Ollama" in str(found.value) and "Cohere" in str(found.value)


@pytest.mark.parametrize(
    "content",
    [
        answer(PROBE, usage={"total_tokens": -5}),
        answer(PROBE[:3]),
        {"data": [{"index": number, "embedding": [[1.0]]} for number in range(4)]},
        {"data": None},
        "text",
        7,
        None,
    ],
)
def test_an_answer_that_is_always_wrong_is_asked_for_four_times(content):
    with server_of(lambda body: ok(content)) as (address, bodies), embedder(address, retries=8) as teacher:
        with refused("teacher.api", "not as expected"):
            teacher.info()
        assert len(bodies) == 4


def test_an_answer_that_is_wrong_twice_is_asked_for_again():
    reply = lambda body: ok(answer(body["input"]) if len(bodies) > 2 else {})  # noqa: E731
    with server_of(reply) as (address, bodies), embedder(address, retries=8) as teacher:
        assert teacher.info().dim == 4 and len(bodies) == 3


@pytest.mark.parametrize(
    ("status", "words"),
    [(413, b""), (400, b"batch size is invalid, it should not be larger than 10"), (422, b"maximum allowed batch size"),
     (400, b"too many inputs: 48")],
)  # fmt: skip
def test_a_batch_that_is_too_large_is_halved_and_the_size_remembered(status, words):
    reply = lambda body: ok(answer(body["input"])) if len(body["input"]) <= 10 else (status, {}, words)  # noqa: E731
    texts = [f"text {number}" for number in range(300)]
    with server_of(reply) as (address, bodies), embedder(address, batch_texts=48) as teacher:
        np.testing.assert_allclose(teacher.embed(texts), [vector(text) for text in texts])
    sizes = [len(body["input"]) for body in bodies]
    assert sizes[:4] == [4, 48, 24, 12] and sum(size > 10 for size in sizes) == 3


@pytest.mark.parametrize("status", [400, 422, 413])
def test_a_single_bad_text_is_found_and_named(status):
    def reply(body):
        return (status, {}, b"no") if any("bad" in text for text in body["input"]) else ok(answer(body["input"]))

    texts = [f"text {number}" for number in range(40)]
    texts[23] = "a bad \x1b one"
    with server_of(reply) as (address, bodies), embedder(address, batch_texts=40) as teacher:
        with refused("teacher.api", r"a bad") as found:
            teacher.embed(texts)
        assert "\x1b" not in str(found.value) and len(bodies) < 16


def spellings(key):
    yield key
    yield json.dumps(key)[1:-1].replace("/", "\\/")
    yield "".join(f"\\u{ord(letter):04x}" for letter in key)
    yield "".join(letter if letter.isalnum() else f"\\u{ord(letter):04X}" for letter in key)
    yield quote(key, safe="")
    yield quote(quote(key, safe=""), safe="")
    yield html.escape(key)
    yield "".join(f"&#{ord(letter)};" for letter in key)
    yield "".join(f"&#x{ord(letter):X};" for letter in key)
    yield json.dumps(json.dumps(key))
    for before in ("", "u", "us", "Bearer "):
        yield base64.b64encode(f"{before}{key}".encode()).decode()
        yield base64.urlsafe_b64encode(f"{before}{key}:".encode()).decode()
    yield key.encode().hex()


def test_the_key_is_shown_in_no_spelling(monkeypatch):
    monkeypatch.setenv("SOME_KEY", KEY)
    for spelling in spellings(KEY):
        for status in (200, 401, 400, 503):
            text = failing(f"bad: {spelling} !".encode(), status, key_variable="SOME_KEY")
            assert "Ab12" not in text and "Cd34" not in text and spelling not in text, (spelling, text)
        shown = hide(f"bad: {spelling} !", KEY)
        assert "***" in shown and len(shown) < 40, (spelling, shown)


@pytest.mark.parametrize(
    ("api", "key"),
    [
        ({"base_url": "http://far.example/v1", "key_variable": "SOME_KEY"}, "teacher.api.base_url"),
        ({"base_url": "http://10.0.0.7/v1", "key_variable": "SOME_KEY"}, "teacher.api.base_url"),
        ({"base_url": "https://far.example/v1", "key_variable": "AWS_SECRET_ACCESS_KEY"}, "teacher.api.key_variable"),
        ({"base_url": "https://amazonaws.com.far.example/v1", "key_variable": "AWS_X"}, "teacher.api.key_variable"),
        ({"base_url": "https://far.example/v1", "key_variable": "PGPASSWORD"}, "teacher.api.key_variable"),
        ({"base_url": "https://far.example/v1", "key_variable": "HF_TOKEN"}, "teacher.api.key_variable"),
        ({"base_url": "https://far.example/v1", "key_variable": "SOME_KEY"}, None),
        ({"base_url": "https://far.example/v1", "key_variable": "PGVECTOR_KEY"}, None),
        ({"base_url": "https://api.openai.com./v1", "key_variable": "OPENAI_API_KEY"}, None),
        ({"base_url": "http://localhost.:1/v1", "key_variable": "SOME_KEY"}, None),
        ({"base_url": "http://far.example/v1"}, None),
        ({"base_url": "http://far.example/v1", "key_variable": "SOME_KEY", "trusted": True}, None),
        ({"base_url": "http://localhost:1/v1", "key_variable": "SOME_KEY"}, None),
        ({"base_url": "https://api.openai.com/v1", "key_variable": "OPENAI_API_KEY"}, None),
        ({"base_url": "https://x.openai.azure.com/openai/v1", "key_variable": "AZURE_OPENAI_API_KEY"}, None),
    ],
)
def test_where_a_key_may_go(api, key, monkeypatch):
    monkeypatch.setenv(api.get("key_variable", "SOME_KEY"), KEY)
    if key is None:
        ApiEmbedder(TeacherSection(model="m", api=api))
    else:
        with refused(key, "") as found:
            ApiEmbedder(TeacherSection(model="m", api=api))
        assert KEY not in str(found.value)


def test_host_and_variable_are_named_before_the_first_request(monkeypatch, capsys):
    monkeypatch.setenv("SOME_KEY", KEY)
    shown = []

    def reply(body):
        shown.append(capsys.readouterr().err)
        return ok(answer(body["input"]))

    with server_of(reply) as (address, _), embedder(address, key_variable="SOME_KEY") as teacher:
        teacher.embed(TEXTS)
    first = " ".join(shown[0].split())
    assert address in first and "SOME_KEY" in first and KEY not in first
