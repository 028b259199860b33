"""The HTTP server over a real socket: OpenAI's own client, limits, wrong requests, metrics, a load, the command."""

from __future__ import annotations

import argparse
import asyncio
import base64
import json
import re
import shutil
import signal
import socket
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

import httpx
import numpy as np
import pytest
from architectures import bert, sentence_transformer
from commands import Command
from openai import OpenAI
from refusals import refused
from samples import WORDS
from sentence_transformers import SentenceTransformer
from servers import serving
from starlette.requests import Request

from benchmarks.serve import measure
from distilvec.__main__ import run_command
from distilvec.formats.onnx import export_onnx
from distilvec.teachers.api_embedder import named_api
from distilvec.verbs.serve.app import Limits, RequestError, read_body
from distilvec.verbs.serve.model import ServedModel
from distilvec.verbs.serve.server import TimedProtocol, take_address

pytestmark = pytest.mark.usefixtures("loopback")
TEXTS = ["a small cat", "how do wings produce lift", "Grüße aus Köln, <b>çok</b> güzel", "long " * 20]
PATH = "/v1/embeddings"


@pytest.fixture(scope="module")
def served(tiny_model):
    return ServedModel(str(tiny_model), "tiny")


@pytest.fixture
def expected(tiny_model):
    return SentenceTransformer(str(tiny_model), device="cpu").encode(TEXTS)


@pytest.fixture
def client(served):
    with serving(served) as address, httpx.Client(base_url=address) as client:
        yield client


@pytest.mark.parametrize("path", ["", "/", "/v1", "/v1/", "/v1/embeddings", "/v1/embeddings/"])
def test_a_server_is_a_teacher_by_its_address_or_that_of_its_endpoint(served, path):
    with serving(served) as address:
        section = named_api(f"{address}{path}")
    assert (section.model, section.api.base_url) == ("tiny", f"{address}/v1")


def test_a_server_with_a_key_says_where_the_key_belongs(served, monkeypatch):
    with serving(served, key="secret") as address:
        with refused("", "Put the server's key into DISTILVEC_API_KEY"):
            named_api(address)
        monkeypatch.setenv("DISTILVEC_API_KEY", "another")
        with refused("", "Check the key in DISTILVEC_API_KEY"):
            named_api(address)
        monkeypatch.setenv("DISTILVEC_API_KEY", "secret")
        assert named_api(address).model == "tiny"


def test_openai_s_client_gets_encode_s_vectors(served, expected):
    with serving(served) as address, OpenAI(api_key="none", base_url=f"{address}/v1", max_retries=0) as client:
        found = client.embeddings.create(model="tiny", input=TEXTS)  # asks for base64
        assert np.array([entry.embedding for entry in found.data]) == pytest.approx(expected, abs=1e-5)
        assert [entry.index for entry in found.data] == [0, 1, 2, 3] and found.model == "tiny"
        assert found.usage.prompt_tokens == sum(served.measure(text)[1] for text in TEXTS) == found.usage.total_tokens
        short = client.embeddings.create(model="tiny", input=TEXTS[0], dimensions=8, encoding_format="float")
        cut = expected[0, :8] / np.linalg.norm(expected[0, :8])
        assert short.data[0].embedding == pytest.approx(cut, abs=1e-5)
        assert [model.id for model in client.models.list()] == ["tiny"]


def test_base64_and_numbers_are_the_same(client):
    plain, coded = (
        client.post(PATH, json={"input": TEXTS, "encoding_format": form}).json()["data"] for form in ("float", "base64")
    )
    for one, other in zip(plain, coded, strict=True):
        assert np.frombuffer(base64.b64decode(other["embedding"]), "<f4").tolist() == one["embedding"]


def test_prompts_by_input_type(tiny_model, tmp_path):
    model = SentenceTransformer(str(tiny_model), device="cpu", prompts={"query": "query: ", "document": ""})
    model.save(str(tmp_path / "prompted"))
    expected = model.encode(TEXTS[:1], prompt_name="query")[0]
    with serving(ServedModel(str(tmp_path / "prompted"))) as address:
        found = [
            httpx.post(address + PATH, json={"input": TEXTS[0], **more}).json()["data"][0]["embedding"]
            for more in ({"input_type": "query"}, {"input_type": "document"}, {})
        ]
    assert found[0] == pytest.approx(expected, abs=1e-5)
    assert found[1] == found[2] and not np.allclose(found[0], found[1], atol=1e-3)


@pytest.mark.parametrize(
    ("body", "status", "field", "words"),
    [
        (b"", 400, None, "no JSON"),
        (b"{", 400, None, "no JSON"),
        (b"\xff\xfe{}", 400, None, "no JSON"),
        (b"[" * 100_000, 400, None, "no JSON"),
        (b"[]", 400, None, "Send a JSON object"),
        (b"{}", 400, "input", "Field required"),
        (b'{"input": []}', 400, "input", "The list is empty"),
        (b'{"input": ""}', 400, "input", "A text is empty"),
        (b'{"input": [3, 4]}', 400, "input", "token ids"),
        (b'{"input": [[3, 4]]}', 400, "input", "token ids"),
        (b'{"input": "  "}', 400, "input", "empty"),
        (b'{"input": ["a", ""]}', 400, "input", "empty"),
        (b'{"input": "\\ud800"}', 400, "input", "surrogate"),
        (b'{"input": "a", "dimensions": 33}', 400, "dimensions", "the model has 32"),
        (b'{"input": "a", "dimensions": 0}', 400, "dimensions", "greater than or equal to 1"),
        (b'{"input": "a", "encoding_format": "hex"}', 400, "encoding_format", "'float' or 'base64'"),
        (b'{"input": "a", "model": "<script>"}', 404, "model", "Name 'tiny'"),
        (b'{"input": "a", "model": "\\ud800"}', 404, "model", "Name 'tiny'"),
        (b'{"input": "a", "input_type": "passage"}', 400, "input_type", "'query' or 'document'"),
    ],
)
def test_wrong_requests_are_told_what_is_wrong(client, body, status, field, words):
    answer = client.post(PATH, content=body)
    error = answer.json()["error"]
    assert answer.status_code == status and error["param"] == field and words in error["message"]
    assert error["type"] == "invalid_request_error" and answer.headers["content-type"] == "application/json"
    assert client.post(PATH, json={"input": "a"}).status_code == 200  # the server goes on


def test_limits(served):
    long = "word " * 10_000
    with serving(served, limits=Limits(body=100_000, texts=3)) as address, httpx.Client(base_url=address) as client:
        assert client.post(PATH, json={"input": ["a"] * 3}).status_code == 200
        many = client.post(PATH, json={"input": ["a"] * 4})
        assert many.status_code == 400 and "at most 3" in many.json()["error"]["message"]
        large = client.post(PATH, json={"input": "a" * 100_001})
        assert large.status_code == 413 and "100,000 bytes" in large.json()["error"]["message"]
        chunks = client.post(PATH, content=(b" " * 1000 for _ in range(200)))  # no length is announced
        assert chunks.status_code == 413
        refused = client.post(PATH, json={"input": long})
        assert refused.status_code == 400 and "truncate=true" in refused.json()["error"]["message"]
        cut = client.post(PATH, json={"input": long, "truncate": True})
        assert cut.status_code == 200 and cut.json()["usage"]["prompt_tokens"] == served.max_length
    with serving(served, limits=Limits(truncate=True)) as address:
        assert httpx.post(address + PATH, json={"input": long}).status_code == 200


@pytest.mark.parametrize("field", ["model", "encoding_format", "dimensions", "input_type", "truncate", "user"])
def test_null_is_the_default(client, field):
    """Gateways send null for what their own clients leave out."""
    plain = client.post(PATH, json={"input": TEXTS[0]}).json()
    assert client.post(PATH, json={"input": TEXTS[0], field: None}).json() == plain
    missing = client.post(PATH, json={"input": None})
    assert missing.status_code == 400 and missing.json()["error"]["param"] == "input"


WORD, SPACES = f"{WORDS[0]} ", " " * 20


@pytest.mark.parametrize("text", [WORD * 100_000, SPACES * 10_000 + WORD * 400, (WORD + SPACES) * 20_000])
def test_a_long_text_has_the_vector_of_its_beginning(client, served, expected, tiny_model, text):
    """Only a beginning is tokenized, and it holds all that the model reads, however much white space there is."""
    whole = SentenceTransformer(str(tiny_model), device="cpu").encode(text)
    answer = client.post(PATH, json={"input": text, "truncate": True}).json()
    assert answer["data"][0]["embedding"] == pytest.approx(whole, abs=1e-5)
    assert answer["usage"]["prompt_tokens"] == served.max_length
    piece, _ = served.measure(text)
    assert len(piece) < len(text) or text.startswith(SPACES)


def test_the_end_of_a_long_text_for_a_tokenizer_that_cuts_the_beginning(tiny_model, tmp_path):
    model = SentenceTransformer(str(tiny_model), device="cpu")
    model.save(str(tmp_path / "left"))
    settings = tmp_path / "left" / "tokenizer_config.json"
    settings.write_text(json.dumps(json.loads(settings.read_text()) | {"truncation_side": "left"}))
    text = f"{WORDS[0]} " * 9000 + f"{WORDS[1]} " * 200
    served = ServedModel(str(tmp_path / "left"))
    piece, tokens = served.measure(text)
    assert len(piece) < len(text) and tokens > served.max_length
    found = served.embed([piece])[0]
    assert found == pytest.approx(served.embed([text])[0], abs=1e-6)
    assert not np.allclose(found, served.embed([f"{WORDS[0]} " * 300])[0], atol=1e-3)


def test_models_of_other_kinds_are_served(tmp_path):
    """What `evaluate` opens: bags of words, tokenizers that are written in Python."""
    from sentence_transformers.sentence_transformer.modules import BoW, Pooling, Transformer
    from transformers import CanineConfig, CanineModel, CanineTokenizer

    sizes = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}
    config = CanineConfig(max_position_embeddings=128, num_hash_buckets=64, local_transformer_stride=16, **sizes)
    CanineModel(config).save_pretrained(tmp_path / "canine")
    CanineTokenizer(model_max_length=100).save_pretrained(tmp_path / "canine")
    kinds = {"words": [BoW(vocab=["cat", "small"])], "letters": [Transformer(str(tmp_path / "canine")), Pooling(32)]}
    for name, modules in kinds.items():
        SentenceTransformer(modules=modules, device="cpu").save(str(tmp_path / name))
        expected = SentenceTransformer(str(tmp_path / name), device="cpu").encode(TEXTS[:2])
        with serving(ServedModel(str(tmp_path / name))) as address:
            found = httpx.post(address + PATH, json={"input": TEXTS[:2]}).json()["data"]
            long = httpx.post(address + PATH, json={"input": "cat " * 100})
        assert np.array([entry["embedding"] for entry in found]) == pytest.approx(expected, abs=1e-5)
        assert long.status_code == (200 if name == "words" else 400), long.text


def test_one_bad_text_does_not_fail_other_clients(served, monkeypatch):
    embed = served.embed

    def picky(texts):
        if any("bad" in text for text in texts):
            raise IndexError("an id beyond the table")
        time.sleep(0.05)
        return embed(texts)

    monkeypatch.setattr(served, "embed", picky)

    async def load(address):
        async with httpx.AsyncClient(base_url=address, timeout=60) as client:
            texts = ["one", "two", "bad", "three", "four"]
            return await asyncio.gather(*(client.post(PATH, json={"input": text}) for text in texts))

    with serving(served) as address:
        statuses = [answer.status_code for answer in asyncio.run(load(address))]
    assert statuses == [200, 200, 500, 200, 200]


def test_bytes_that_wait_are_limited(served, monkeypatch):
    """Two bodies fit, announced or in chunks; a third one is refused until one of them is answered."""
    gate = threading.Event()
    embed = served.embed
    monkeypatch.setattr(served, "embed", lambda texts: (gate.wait(20), embed(texts))[1])
    body = json.dumps({"input": "a" * 40_000, "truncate": True}).encode()
    limits = Limits(waiting_bytes=100_000, batch_texts=1)  # of a shared batch no text waits
    with serving(served, limits=limits) as address, ThreadPoolExecutor(2) as pool:
        chunks = (body[start : start + 1000] for start in range(0, len(body), 1000))
        waiting = [pool.submit(httpx.post, address + PATH, content=content, timeout=60) for content in (body, chunks)]
        while "distilvec_waiting_texts 1.0" not in httpx.get(f"{address}/metrics").text:
            assert not any(future.done() for future in waiting)
        answer = httpx.post(address + PATH, content=body)
        assert answer.status_code == 503
        assert answer.headers["retry-after"] == "1"
        gate.set()
        assert [future.result().status_code for future in waiting] == [200, 200]
        assert httpx.post(address + PATH, content=body).status_code == 200


@pytest.mark.parametrize("way", ["announced", "in chunks", "no room"])
def test_a_client_that_still_sends_a_refused_body_gets_the_answer(served, way):
    """Megabytes, more than the network holds: on a closed connection they cannot be sent to their end."""
    large = b'{"input": "' + b"a" * 20_000_000 + b'"}'
    head = b"POST /v1/embeddings HTTP/1.1\r\nHost: localhost\r\n"
    request = head + b"Content-Length: %d\r\n\r\n" % len(large) + large
    if way == "in chunks":
        request = head + b"Transfer-Encoding: chunked\r\n\r\n%x\r\n" % len(large) + large + b"\r\n0\r\n\r\n"
    limits = Limits(body=50_000_000, waiting_bytes=100_000) if way == "no room" else Limits(body=100_000)
    with serving(served, limits=limits) as address:
        place = ("127.0.0.1", int(address.rpartition(":")[2]))
        with socket.create_connection(place) as other, socket.create_connection(place, timeout=20) as connection:
            other.sendall(head + b"Content-Length: 90000\r\n\r\n" + b" " * 50_000)  # holds room
            time.sleep(0.3)
            connection.sendall(request)
            assert connection.recv(100).startswith(b"HTTP/1.1 503" if way == "no room" else b"HTTP/1.1 413")


def test_what_is_dropped_of_a_refused_body_has_an_end(served):
    """In bytes, and in seconds: a client that announces much and sends little is not waited for."""
    limits = Limits(body=1000, rest=200_000, rest_seconds=0.5)
    with serving(served, limits=limits) as address:
        place = ("127.0.0.1", int(address.rpartition(":")[2]))
        head = b"POST /v1/embeddings HTTP/1.1\r\nHost: localhost\r\nContent-Length: 90000000\r\n"
        with socket.create_connection(place, timeout=5) as connection:
            began = time.monotonic()
            connection.sendall(head + b"\r\n{")
            assert connection.recv(100).startswith(b"HTTP/1.1 413")
            assert time.monotonic() - began < 3
        with socket.create_connection(place, timeout=5) as connection:
            connection.sendall(head + b"Expect: 100-continue\r\n\r\n")
            assert connection.recv(100).startswith(b"HTTP/1.1 413"), "nothing is asked for that is not read"
        with socket.create_connection(place, timeout=5) as connection, pytest.raises(OSError):
            connection.sendall(head + b"\r\n")
            for _ in range(80):
                connection.sendall(b"a" * 1_000_000)


def test_announced_bytes_take_no_place(served):
    """A client announces a body, or sends it in chunks with a false length, and others are answered meanwhile."""
    body = json.dumps({"input": "a" * 40_000, "truncate": True}).encode()
    with serving(served, limits=Limits(waiting_bytes=100_000)) as address:
        place = ("127.0.0.1", int(address.rpartition(":")[2]))
        with socket.create_connection(place) as connection:
            connection.sendall(b"POST /v1/embeddings HTTP/1.1\r\nHost: localhost\r\nContent-Length: 90000\r\n\r\n{")
            time.sleep(0.2)
            assert httpx.post(address + PATH, content=body).status_code == 200


def test_a_body_in_chunks_has_the_length_of_its_chunks(served):
    sent = []

    async def receive():
        sent.append(1)
        return {"type": "http.request", "body": b"x" * 1000, "more_body": len(sent) < 200}

    headers = [(b"content-length", b"10"), (b"transfer-encoding", b"chunked")]
    held = []
    request = Request({"type": "http", "method": "POST", "headers": headers}, receive)
    with pytest.raises(RequestError) as caught:
        asyncio.run(read_body(request, Limits(body=50_000), held.append))
    assert caught.value.status == 413 and sum(held) == 50_000
    large = [(b"content-length", b"60000"), (b"transfer-encoding", b"chunked")]
    sent[:] = [1] * 199
    request = Request({"type": "http", "method": "POST", "headers": large}, receive)
    assert len(asyncio.run(read_body(request, Limits(body=50_000), held.append))) == 1000


def test_one_body_alone_may_be_larger_than_what_waits(served):
    """In chunks as well: its own first bytes are nobody else's."""
    body = json.dumps({"input": "a" * 40_000, "truncate": True}).encode()
    chunks = (body[start : start + 1000] for start in range(0, len(body), 1000))
    with serving(served, limits=Limits(waiting_bytes=10_000)) as address:
        assert httpx.post(address + PATH, content=chunks).status_code == 200


def test_a_student_is_served_by_the_name_of_its_run(tiny_model, tmp_path):
    """As docs/serve.md says, for clients that must name a model."""
    student = tmp_path / "mine" / "student"
    shutil.copytree(tiny_model, student)
    with serving(ServedModel(str(student))) as address, httpx.Client(base_url=address) as client:
        assert client.post(PATH, json={"input": "a cat", "model": "mine"}).status_code == 200
        refused = client.post(PATH, json={"input": "a cat", "model": "student"})
        assert refused.status_code == 404 and "Name 'mine', or none." in refused.json()["error"]["message"]


def test_a_token_without_a_vector_is_named(tiny_model, tmp_path):
    """Marks of images are tokens that some models have no row for: a text may hold one all the same."""
    model = SentenceTransformer(str(tiny_model), device="cpu")
    model.tokenizer.add_tokens(["<image>"])
    model.save(str(tmp_path / "model"))
    with serving(ServedModel(str(tmp_path / "model"))) as address, httpx.Client(base_url=address) as client:
        refused = client.post(PATH, json={"input": ["a cat", "an <image> of it"]})
        assert refused.status_code == 400 and "'<image>'" in refused.json()["error"]["message"]
        assert client.post(PATH, json={"input": "a cat"}).status_code == 200


@pytest.mark.parametrize("key", ["", "  "])
def test_a_key_of_nothing_is_refused(key, tiny_model, monkeypatch, capsys):
    monkeypatch.setenv("DISTILVEC_SERVE_KEY", key)
    assert run_command(["serve", str(tiny_model), "--port", "0"]) == 2
    assert "[DISTILVEC_SERVE_KEY]" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("line", "hosts", "origins"),
    [
        ([], ["127.0.0.1"], []),
        (["--host", "localhost.", "--allow-host", "a.test"], ["localhost.", "a.test"], ["a.test"]),
        (["--host", "0.0.0.0", "--allow-host", "a.test"], None, ["a.test"]),
    ],
)
def test_hosts_are_checked_where_the_server_is_for_this_machine(line, hosts, origins, tiny_model, monkeypatch):
    """--allow-host for a page must not lock the clients of other machines out."""
    made = []
    monkeypatch.setattr("distilvec.verbs.serve.server.run_server", lambda app, place: None)
    monkeypatch.setattr("distilvec.verbs.serve.server.take_address", lambda host, port: take_address("127.0.0.1", 0))
    monkeypatch.setattr("distilvec.verbs.serve.app.make_app", lambda *values, **options: made.append((values, options)))
    assert run_command(["serve", str(tiny_model), "--port", "0", *line]) == 0
    ((values, options),) = made
    assert values[3] == hosts and options["origins"] == origins


def test_texts_of_clients_that_have_gone_are_not_embedded(served, monkeypatch):
    gate, seen = threading.Event(), []
    embed = served.embed
    monkeypatch.setattr(served, "embed", lambda texts: (seen.extend(texts), gate.wait(20), embed(texts))[2])
    with serving(served) as address, ThreadPoolExecutor(1) as pool:
        first = pool.submit(httpx.post, address + PATH, json={"input": "first"}, timeout=60)
        while not seen:
            time.sleep(0.01)
        with pytest.raises(httpx.ReadTimeout):
            httpx.post(address + PATH, json={"input": "gone"}, timeout=0.3)
        while 'requests_total{status="499"} 1.0' not in httpx.get(f"{address}/metrics").text:
            time.sleep(0.01)
        gate.set()
        assert first.result().status_code == 200
        assert httpx.post(address + PATH, json={"input": "last"}).status_code == 200
    assert seen == ["first", "last"]


@pytest.mark.parametrize(
    "sent",
    [
        b"",
        b"GET /health HT",
        b"POST /v1/embeddings HTTP/1.1\r\nHost: 127.0.0.1\r\n",
        b"POST /v1/embeddings HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 100\r\n\r\n{",
        b"GET /health HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 100\r\n\r\n{",
        b"GET /health HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\nGET /hea",
    ],
    ids=["nothing", "line", "headers", "body", "body that no path reads", "second request"],
)
def test_half_requests_are_closed(served, monkeypatch, sent):
    monkeypatch.setattr(TimedProtocol, "half_seconds", 0.2)
    with serving(served, limits=Limits(body_seconds=0.3)) as address:
        with socket.create_connection(("127.0.0.1", int(address.rpartition(":")[2]))) as connection:
            connection.settimeout(10)
            connection.sendall(sent)
            while connection.recv(10_000):
                pass
        assert httpx.post(address + PATH, json={"input": "a"}).status_code == 200


def test_a_slow_answer_is_no_half_request(served, monkeypatch):
    monkeypatch.setattr(TimedProtocol, "half_seconds", 0.1)
    embed = served.embed
    monkeypatch.setattr(served, "embed", lambda texts: (time.sleep(0.6), embed(texts))[1])
    with serving(served) as address, httpx.Client(base_url=address) as client:
        assert client.post(PATH, json={"input": "a"}).status_code == 200
        assert client.get("/health").status_code == 200


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"host": "evil.example:8000"}, 403),
        ({"host": "localhost.evil.example"}, 403),
        ({"host": "127.0.0.1.evil.example"}, 403),
        ({"host": "evil.example@127.0.0.1:8000"}, 403),
        ({"host": "LOCALHOST:8000"}, 200),
        ({"host": "[::1]:8000"}, 200),
        ({"host": "student.test"}, 200),
        ({"host": "student.test."}, 200),
        ({"host": "localhost.:8000"}, 200),
        ({"origin": "http://evil.example"}, 403),
        ({"origin": "null"}, 403),
        ({"origin": "http://93.184.216.34"}, 403),
        ({"origin": "http://localhost:3000"}, 200),
        ({"origin": "https://student.test"}, 200),
        ({"content-type": "text/plain"}, 415),
        ({"content-type": "Text/Plain; charset=utf-8"}, 415),
        ({"content-type": "application/x-www-form-urlencoded"}, 415),
        ({"content-type": "multipart/form-data; boundary=x"}, 415),
        ({"content-type": "application/json; charset=utf-8"}, 200),
    ],
)
def test_pages_of_other_sites_are_refused(served, headers, status):
    """In a browser a page's own domain may lead to 127.0.0.1; text/plain is sent without asking first."""
    with serving(served, hosts=["student.test"], origins=["Student.test."]) as address:
        answer = httpx.post(address + PATH, content=b'{"input": "a"}', headers=headers)
        assert answer.status_code == status, answer.text
        if status == 403:
            for path in ("/health", "/metrics", "/v1/models"):
                assert httpx.get(address + path, headers=headers).status_code == 403
    if "host" in headers and status == 403:
        with serving(served, hosts=None, origins=["student.test"]) as address:  # for other machines: any name
            assert httpx.post(address + PATH, json={"input": "a"}, headers=headers).status_code == 200


def test_a_key_with_letters_beyond_ascii(served):
    with serving(served, key="schlüssel-ß") as address:
        for spelling in ("utf-8", "latin-1"):
            header = {"authorization": "Bearer schlüssel-ß".encode(spelling)}
            assert httpx.post(address + PATH, json={"input": "a"}, headers=header).status_code == 200
        wrong = {"authorization": "Bearer schlussel-ß".encode()}
        assert httpx.post(address + PATH, json={"input": "a"}, headers=wrong).status_code == 401
    with serving(served, key="ключ") as address:
        for sent, status in (("ключ", 200), ("????", 401)):
            header = {"authorization": f"Bearer {sent}".encode()}
            assert httpx.post(address + PATH, json={"input": "a"}, headers=header).status_code == status


def test_unknown_paths_and_verbs(client):
    assert client.get("/v1/embeddings").status_code == 405
    missing = client.get("/v2/embeddings")
    assert missing.status_code == 404 and "POST /v1/embeddings" in missing.json()["error"]["message"]


def test_a_key_is_asked_for(served):
    with serving(served, key="secret") as address, httpx.Client(base_url=address) as client:
        for header in ({}, {"authorization": "Bearer wrong"}, {"authorization": "secret"}, {"authorization": b"\xff"}):
            answer = client.post(PATH, json={"input": "a"}, headers=header)
            assert answer.status_code == 401 and "secret" not in answer.text
        assert client.get("/health").status_code == 200
        assert client.post(PATH, json={"input": "a"}, headers={"authorization": "Bearer secret"}).status_code == 200


def test_a_fault_of_ours_shows_no_inner_text(served, monkeypatch):
    def broken(texts):
        raise RuntimeError("weights at /secret/path")

    monkeypatch.setattr(served, "embed", broken)
    with serving(served) as address:
        answer = httpx.post(address + PATH, json={"input": "a"})
        assert answer.status_code == 500 and "RuntimeError" in answer.text and "secret" not in answer.text
        assert 'distilvec_requests_total{status="500"} 1.0' in httpx.get(f"{address}/metrics").text


def test_health_and_metrics(client):
    assert client.get("/health").json() == {"status": "ok", "model": "tiny", "dimensions": 32, "max_tokens": 128}
    client.post(PATH, json={"input": ["a cat", "a dog"]})
    client.post(PATH, content=b"{")
    text = client.get("/metrics").text
    assert 'distilvec_requests_total{status="200"} 1.0' in text and 'distilvec_requests_total{status="400"} 1.0' in text
    assert "distilvec_texts_total 2.0" in text and "distilvec_waiting_texts 0.0" in text
    assert re.search(r"distilvec_request_seconds_count 1.0", text)


def test_many_clients_lose_nothing(served, tiny_model):
    """200 requests of 16 clients: each gets its own vectors, and batches are shared."""
    texts = [f"text number {i}" for i in range(200)]
    expected = SentenceTransformer(str(tiny_model), device="cpu").encode(texts)

    async def load(address):
        limit = asyncio.Semaphore(16)

        async def one(client, text):
            async with limit:
                return (await client.post(PATH, json={"input": text})).json()["data"][0]["embedding"]

        async with httpx.AsyncClient(base_url=address, timeout=60) as client:
            found = await asyncio.gather(*(one(client, text) for text in texts))
            return np.array(found), (await client.get("/metrics")).text

    with serving(served) as address:
        found, metrics = asyncio.run(load(address))
    assert found == pytest.approx(expected, abs=1e-5)
    assert float(re.search(r"distilvec_batch_texts_count (\S+)", metrics)[1]) < 200
    assert "distilvec_texts_total 200.0" in metrics


class Server(Command):
    """`python -m distilvec serve`, forked, with the part of `subprocess.Popen` that benchmarks/serve.py needs."""

    def __init__(self, line, env=None, **streams):
        super().__init__(*line[3:], module=line[2], **(env or {}))

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self.wait()

    def terminate(self):
        self.send_signal(signal.SIGTERM)

    @property
    def stderr(self):
        return self

    def readline(self):
        """The server's message with its address."""
        file = Path(self._output.name) / "err"
        while not file.exists() or not re.search(r"http://\S+:\d+/", file.read_text()):
            assert self.poll() is None, self.communicate()[1]
            time.sleep(0.01)
        return file.read_text()

    def read(self):
        return self.communicate()[1]


@pytest.mark.slow
def test_the_command_under_load(tiny_model, monkeypatch):
    """benchmarks/serve.py starts `distilvec serve`, sends texts and wrong requests, and stops it."""
    monkeypatch.setattr("benchmarks.serve.subprocess", SimpleNamespace(Popen=Server, PIPE=None, DEVNULL=None))
    peer = f"{sys.executable} -m distilvec serve {{model}} --port {{port}} --truncate"
    arguments = argparse.Namespace(model=str(tiny_model), requests=40, concurrency=8, data=Path("absent"), peer=peer)
    found = measure(arguments)
    for side in ("ours", "theirs"):
        assert found["peer"][side]["largest_difference_to_encode"] < 1e-5
        assert found["peer"][side]["texts_per_second"] > 0
    assert found["largest_difference_to_encode"] < 1e-5
    server = found["server"]
    assert server["answered"] == 40 and server["refused_with_a_message"] == "4 of 4"
    assert server["exit_status"] == 0 and not server["traceback"]
    assert server["p50_ms"] <= server["p99_ms"] and len(server["megabytes_after_each_quarter"]) == 4


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_the_server_with_status_0(tiny_model, number):
    process = Server([sys.executable, "-m", "distilvec", "serve", str(tiny_model), "--port", "0"])
    address = re.search(r"http://\S+:\d+/", process.readline())[0]
    while not answers(f"{address}health"):
        assert process.poll() is None, process.communicate()[1]
        time.sleep(0.05)
    process.send_signal(number)
    _, messages = process.communicate()
    assert process.returncode == 0 and messages.splitlines()[-1].startswith("stopped serving"), messages


def answers(address):
    """Whether a server is there."""
    try:
        return httpx.get(address).status_code == 200
    except httpx.TransportError:
        return False


def test_an_exported_file_is_served(tmp_path):
    """Its vectors are those of the file for a text alone, whatever else is in the batch; names are the folder's."""
    folder = sentence_transformer(tmp_path / "small", bert(tmp_path / "backbone"))
    model = SentenceTransformer(str(folder), device="cpu", prompts={"query": "query: ", "document": ""})
    model.save(str(folder))
    (folder / "onnx").mkdir()
    served = ServedModel(str(export_onnx(model, folder / "onnx" / "model.onnx")))
    with serving(served) as address, httpx.Client(base_url=address) as client:
        assert client.get("/health").json() == {
            "status": "ok", "model": "small", "dimensions": model.get_embedding_dimension(),
            "max_tokens": served.max_length,
        }  # fmt: skip
        found = client.post(PATH, json={"input": TEXTS[:3], "input_type": "query"}).json()["data"]
    expected = model.encode(TEXTS[:3], prompt_name="query")
    assert np.array([entry["embedding"] for entry in found]) == pytest.approx(expected, abs=1e-4)
    assert np.array_equal(served.embed(TEXTS[:2])[:1], served.embed(TEXTS[:1]))


def test_a_port_in_use_is_named_before_the_model_is_loaded(tiny_model):

    with take_address("127.0.0.1", 0) as place:
        place.listen()
        with refused("--port", "127.0.0.1"):
            take_address("127.0.0.1", place.getsockname()[1])


def test_an_answer_is_json_of_openai_s_shape(client):
    answer = client.post(PATH, content=json.dumps({"input": "a", "user": "someone"}))
    assert set(answer.json()) == {"object", "data", "model", "usage"}
    assert set(answer.json()["data"][0]) == {"object", "index", "embedding"}
