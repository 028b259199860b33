"""A teacher behind an API, against a real HTTP server that misbehaves on purpose."""

from __future__ import annotations

import json
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from email.utils import formatdate

import numpy as np
import pytest
from refusals import refused_teacher as refused
from samples import WORDS, make_texts
from servers import FAULTS, FaultyApi
from test_vectors import corpus_of, unit

from distilvec.config import recipe
from distilvec.config.endpoint import ApiSection
from distilvec.config.schema import TeacherSection
from distilvec.core.addresses import Address
from distilvec.core.errors import DistilvecError
from distilvec.evaluation.columns import score_columns
from distilvec.evaluation.evaluator import EmbeddingCache
from distilvec.evaluation.tasks import StsTask
from distilvec.remote.meter import Meter, RequestBatch, make_batches, read_counts, token_counter
from distilvec.teachers.api_embedder import _PROBE, AGAIN, ApiEmbedder
from distilvec.teachers.cache.store import TeacherCache

pytestmark = pytest.mark.usefixtures("loopback")

TEXTS = make_texts(300)
KEY = "sk-quite-Secret-4711"


def table_of(texts, dim=12, seed=0):
    """Vectors of texts, and of those that measure the dimensions."""
    texts = [*texts, *_PROBE]
    return dict(zip(texts, unit(len(texts), dim, seed), strict=True))


def teacher_of(server, counts=None, **api):
    section = {"base_url": server.address, "batch_texts": 20, "retry_seconds": 0.001, "timeout": 20, **api}
    return ApiEmbedder(TeacherSection(model="served", api=section), counts)


def cache_of(folder, teacher, rows=64):
    return TeacherCache.create_or_open(folder / "cache", teacher.manifest("float32"), rows)


def stored(cache, corpus):
    return cache.read(cache.positions(np.asarray(corpus.keys)))


def rows_of(corpus, table):
    return np.array([table[text] for text in corpus.stored(range(len(corpus)))])


def test_5000_texts_through_a_misbehaving_server(tmp_path):
    """Nothing is lost, nothing comes twice, and both ends count the same requests and tokens."""
    texts = [f"{WORDS[n % len(WORDS)]} {n}" for n in range(5000)]
    table = table_of(texts, 384)
    kinds, draw = [kind for kind in FAULTS if kind != "slow"], np.random.default_rng(0)
    faults = {n: str(draw.choice(kinds)) for n in range(1, 2000) if draw.random() < 0.35} | {40: "slow", 90: "slow"}
    corpus = corpus_of(tmp_path / "c", texts)
    with (
        FaultyApi(table, faults, slow=5.5) as server,
        teacher_of(server, tmp_path / "counts.json", timeout=5, retries=40) as teacher,
    ):
        cache, seen = cache_of(tmp_path, teacher, 2048), []
        seen += [step.done for step in teacher.fill_steps(cache, corpus)]
        assert set(server.seen) - {None} == set(FAULTS) - {"slow", "dropped"}
        assert (
            teacher.meter.counts["requests"]
            == server.requests
            == sum(server.seen.values()) + sum(faults.get(n) in ("slow", "dropped") for n in range(server.requests))
        )
        assert teacher.meter.counts["tokens"] == server.tokens > 5000
        assert teacher.meter.counts["retries"] == sum(n in faults for n in range(server.requests))
    assert server.given == dict.fromkeys(table, 1)  # every text's right answer was sent once
    assert len(cache) == 5000 and seen[-1] == 5000 and seen == sorted(seen)
    np.testing.assert_allclose(stored(cache, corpus), rows_of(corpus, table), atol=1e-7)
    assert read_counts(tmp_path / "counts.json") == teacher.meter.counts
    cache.close()
    assert not TeacherCache.verify_folder(cache.folder)


@pytest.mark.parametrize("cap", [{"most_tokens": 3000}, {"most_cost": 6.0, "price": 2000.0}])
def test_the_cap_is_exceeded_by_less_than_a_batch_and_nothing_is_lost(cap, tmp_path):
    """The server counts four times the tokens that the client estimates."""
    table, corpus = table_of(TEXTS), corpus_of(tmp_path / "c", TEXTS)
    with FaultyApi(table, tokens=lambda text: 1 + len(text)) as server:
        faults = {3: "nan", 7: "partial"}  # paid for, too
        server.faults = faults
        with teacher_of(server, tmp_path / "n.json", **cap) as teacher:
            cache = cache_of(tmp_path, teacher)
            words = "the cap of 3,000 tokens is" if "most_tokens" in cap else "the cap of a cost of 6 is"
            with refused(f"teacher.api.{next(iter(cap))}", words):
                list(teacher.fill_steps(cache, corpus))
        assert 3000 - max(server.sizes) < server.tokens <= 3000 + max(server.sizes)
        assert read_counts(tmp_path / "n.json")["tokens"] == server.tokens
        first = len(cache)
        assert 0 < first == sum(server.given.values()) - len(_PROBE) < 300
        with teacher_of(server, tmp_path / "n.json", **cap) as teacher, pytest.raises(DistilvecError, match="the cap"):
            list(teacher.fill_steps(TeacherCache.open(cache.folder), corpus))  # what was spent before counts
        assert server.tokens <= 3000 + max(server.sizes)
        given = dict(server.given)
        with teacher_of(server, tmp_path / "n.json", most_tokens=10**6) as teacher:
            list(teacher.fill_steps(cache, corpus))
        new = [text for text in TEXTS if server.given[text] > given.get(text, 0)]
        assert len(new) == 300 - first + AGAIN and len(cache) == 300
    np.testing.assert_allclose(stored(cache, corpus), rows_of(corpus, table), atol=1e-7)


def test_two_processes_count_together(tmp_path):
    """Each has read the file before the other one wrote."""
    section = ApiSection(most_tokens=2000)
    first, second = (Meter(section, tmp_path / "n.json") for _ in range(2))
    first.add(tokens=1000)
    second.add(tokens=900, written=50)
    first.add(retries=1)
    assert first.counts == read_counts(tmp_path / "n.json")
    assert first.counts == {"requests": 0, "retries": 1, "tokens": 1900, "written": 50}
    with refused("teacher.most_tokens"), second.request(RequestBatch(0, 1, tokens=60, most=60)):
        pass


def test_many_meters_add_at_once(tmp_path):
    """A lock is of an open file: to the system threads with meters of their own are like processes."""

    def work(_):
        meter = Meter(ApiSection(), tmp_path / "n.json")
        for _ in range(25):
            meter.add(tokens=1)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(work, range(4)))
    assert read_counts(tmp_path / "n.json")["tokens"] == 100


def test_a_server_that_stays_broken_ends_the_work_and_what_was_answered_is_kept(tmp_path):
    table, corpus = table_of(TEXTS), corpus_of(tmp_path / "c", TEXTS)
    with FaultyApi(table, lambda number: "500" if number > 9 else None) as server:
        with teacher_of(server, retries=2, concurrency=1) as teacher:
            cache = cache_of(tmp_path, teacher)
            with refused("teacher.api", "after 2 retries"):
                list(teacher.fill_steps(cache, corpus))
        assert 0 < len(cache) == sum(server.given.values()) - len(_PROBE) < 300 and server.requests == 13
        server.faults = {}
        with teacher_of(server) as teacher:
            list(teacher.fill_steps(TeacherCache.open(cache.folder), corpus))
        assert sum(server.given.values()) == 300 + AGAIN + 2 * len(_PROBE)
    np.testing.assert_allclose(stored(TeacherCache.open(cache.folder), corpus), rows_of(corpus, table), atol=1e-7)


@pytest.mark.parametrize(("status", "faults"), [(413, {}), (400, {}), (413, {5: "dropped"})])
def test_parts_of_a_request_that_are_answered_are_kept(status, faults, tmp_path):
    """One text is refused, or the connection breaks, after a part of the request of 121 texts was answered."""
    texts = TEXTS[:121]
    table, corpus = table_of(texts), corpus_of(tmp_path / "c", texts)
    with FaultyApi(table, faults) as server:
        server.unwanted, server.unwanted_status = {texts[100]}, status
        with teacher_of(server, batch_texts=121, retries=0) as teacher:
            cache = cache_of(tmp_path, teacher)
            with refused("teacher.api"):
                list(teacher.fill_steps(cache, corpus))
        answered = sum(server.given.values()) - len(_PROBE)
        assert 60 <= answered < 121 and len(TeacherCache.open(cache.folder)) == answered
        server.faults, server.unwanted = {}, set()
        with teacher_of(server) as teacher:
            list(teacher.fill_steps(TeacherCache.open(cache.folder), corpus))
        assert sum(server.given.values()) == 121 + AGAIN + 2 * len(_PROBE)
    np.testing.assert_allclose(stored(TeacherCache.open(cache.folder), corpus), rows_of(corpus, table), atol=1e-7)


def test_interrupted_the_answers_on_their_way_are_kept(tmp_path):
    table, corpus = table_of(TEXTS), corpus_of(tmp_path / "c", TEXTS)

    with FaultyApi(table) as server, teacher_of(server) as teacher:
        cache = cache_of(tmp_path, teacher, 300)
        with pytest.raises(KeyboardInterrupt), closing(teacher.fill_steps(cache, corpus)) as steps:
            for step in steps:
                if step.done >= 100:
                    raise KeyboardInterrupt
        assert 100 <= len(cache) == sum(server.given.values()) - len(_PROBE)


def test_a_changed_model_is_refused_at_the_next_start(tmp_path):
    table, corpus = table_of(TEXTS), corpus_of(tmp_path / "c", TEXTS)
    half = corpus_of(tmp_path / "half", TEXTS[:150])
    with FaultyApi(table) as server:
        with teacher_of(server) as teacher:
            cache = cache_of(tmp_path, teacher)
            list(teacher.fill_steps(cache, half))
            assert sum(server.given.values()) == 150 + len(_PROBE)
        server.table = table_of(TEXTS, seed=1)
        with (
            teacher_of(server) as teacher,
            refused("teacher.api", "of 32 cached"),
        ):
            list(teacher.fill_steps(TeacherCache.open(cache.folder), corpus))
        assert len(TeacherCache.open(cache.folder)) == 150
        server.table = {text: vector + 1e-4 for text, vector in table.items()}  # another machine's rounding
        with teacher_of(server) as teacher:
            list(teacher.fill_steps(TeacherCache.open(cache.folder), corpus))
            before = server.requests
            list(teacher.fill_steps(TeacherCache.open(cache.folder), corpus))
            assert server.requests == before  # a whole cache needs no request


@pytest.mark.parametrize(
    ("status", "words"), [(401, "Check the key (SOME_KEY)"), (400, "Check the address, the model"), (307, "307")]
)
def test_what_cannot_help_is_not_repeated_and_no_message_holds_the_key(status, words, monkeypatch):
    monkeypatch.setenv("SOME_KEY", KEY)
    with FaultyApi(table_of(TEXTS)) as server, teacher_of(server, key_variable="SOME_KEY") as teacher:
        server.refusal = status
        with refused("teacher.api", words) as found:
            teacher.info()
        assert server.requests == 1 and KEY not in str(found.value) and "Bearer ***" in str(found.value)
        assert KEY not in repr(vars(teacher.client)["_client"].headers)


@pytest.mark.parametrize(
    ("fault", "words"),
    [("429", "status 429"), ("page", "status 502"), ("dropped", "disconnected"), ("cut", "closed"), ("nan", "NaN"),
     ("partial", "3 vectors for 4"), ("doubled", "indices of the vectors repeat"),
     ("slow", "Raise the timeout"), ("dims", "as expected")],
)  # fmt: skip
def test_a_failure_is_named_after_the_last_retry(fault, words):
    wait = 0.1 if fault == "slow" else 20
    with (
        FaultyApi(table_of([]), lambda number: fault, slow=1) as server,
        teacher_of(server, retries=1, timeout=wait) as teacher,
    ):
        with refused("teacher.api", words):
            teacher.info()
        deadline = time.monotonic() + 20
        while server.requests < 2 and time.monotonic() < deadline:  # a late thread of the server
            time.sleep(0.01)
        assert server.requests == 2


def test_nobody_listens():
    with FaultyApi({}) as server:
        address = server.address
    teacher = ApiEmbedder(TeacherSection(model="m", api={"base_url": address, "retry_seconds": 60}))
    with refused("teacher.api", "refuses the connection"):  # at once
        teacher.info()
    assert teacher.meter.counts["retries"] == 0


def test_the_server_s_pause_is_kept_by_all(tmp_path):
    corpus = corpus_of(tmp_path / "c", TEXTS[:100])
    for asked in ("0.4", lambda: formatdate(time.time() + 2, usegmt=True)):
        with (
            FaultyApi(table_of(TEXTS), {1: "429"}, retry_after=asked) as server,
            teacher_of(server, concurrency=1) as one,
        ):
            one.signals(corpus.prompted(range(100)))
            pause = server.times[2] - server.times[1]
            assert 0.39 <= pause < 5 and server.requests == 7


def test_a_pause_of_hours_is_an_error():
    with FaultyApi(table_of(TEXTS), {0: "429"}, retry_after="7200") as server, teacher_of(server) as teacher:
        with refused("teacher.api", "pause of 120 minutes"):
            teacher.info()
        assert server.requests == 1


@pytest.mark.parametrize("rate", [{"requests_per_minute": 1200}, {"tokens_per_minute": 1200 * 200}])
def test_rates_space_the_requests(rate):
    texts = [f"{number:03}" + "x" * 76 for number in range(80)]  # 20 tokens each: 200 in a batch of 10
    with FaultyApi(table_of(texts)) as server, teacher_of(server, batch_texts=10, **rate) as teacher:
        teacher.dim  # noqa: B018
        began = time.monotonic()
        teacher.signals(texts)
        times = sorted(server.times[1:])
        assert len(times) == 8 and all(time >= began + number * 0.05 for number, time in enumerate(times))


def test_requests_overlap_up_to_the_concurrency():
    with FaultyApi(table_of(TEXTS), dict.fromkeys(range(1, 5), "slow"), slow=1) as server:
        with teacher_of(server, concurrency=4) as teacher:
            teacher.dim  # noqa: B018
            began = time.monotonic()
            teacher.signals(TEXTS[:80])
        assert time.monotonic() - began < 4


def test_batches_keep_to_both_limits():
    counts = [3, 3, 3, 50, 1, 1, 1, 1, 4, 4]
    spans = [(one.start, one.end, one.tokens) for one in make_batches(["é"] * 10, counts, 8, 3)]
    assert spans == [(0, 2, 6), (2, 3, 3), (3, 4, 50), (4, 7, 3), (7, 9, 5), (9, 10, 4)]
    assert make_batches([], [], 8, 3) == []
    assert all(one.most >= 2 * (one.end - one.start) for one in make_batches(["é"] * 10, counts, 8, 3))


def test_tokens_are_estimated_by_bytes_or_a_tokenizer(tiny_model):
    assert token_counter(ApiSection())(["abcd" * 10, "é" * 10, ""]) == [11, 6, 1]
    found = token_counter(ApiSection(tokenizer=str(tiny_model)))(["river stone", "a"])
    assert found[0] > found[1] >= 3  # with special tokens


def test_requests_have_the_recipe_s_fields_prompts_and_key(monkeypatch):
    monkeypatch.setenv("SOME_KEY", f" {KEY}\n")
    table = {f"q: {text}": vector for text, vector in table_of(TEXTS).items()} | table_of(TEXTS)
    body = {"truncate": "END", "user": "me"}
    with FaultyApi(table) as server, teacher_of(server, key_variable="SOME_KEY", dimensions=12, body=body) as teacher:
        teacher = ApiEmbedder(teacher.section.model_copy(update={"prompts": {"query": "q: "}, "truncate_dim": 8}))
        found = teacher.embed(TEXTS[:3], "query")
        assert server.bodies[-1] == {"model": "served", "input": [f"q: {text}" for text in TEXTS[:3]], "dimensions": 12,
                                     "encoding_format": "float", **body}  # fmt: skip
    wanted = np.array([table[f"q: {text}"][:8] for text in TEXTS[:3]])
    np.testing.assert_allclose(found, wanted / np.linalg.norm(wanted, axis=1, keepdims=True), atol=1e-6)


def test_a_server_that_prepends_the_prompts_gets_texts_without_them(tmp_path):
    """Documents and queries go in requests of their own, each with the fields of its role."""
    fields = {"query": {"input_type": "query"}, "document": {"input_type": "passage"}}
    prompts = {"query": "query: ", "document": "passage: "}
    texts = [*TEXTS[:30], "query: of a reader"]
    corpus = corpus_of(tmp_path / "c", texts, prompts=prompts, queries=TEXTS[30:50])
    with FaultyApi(table_of([*TEXTS, *texts])) as server:
        section = TeacherSection(
            model="served", prompts=prompts, api={"base_url": server.address, "batch_texts": 8, "by_role": fields}
        )
        with ApiEmbedder(section) as teacher:
            cache = cache_of(tmp_path, teacher)
            list(teacher.fill_steps(cache, corpus))
            np.testing.assert_allclose(stored(cache, corpus), rows_of(corpus, server.table), atol=1e-6)
            sent = {"query": set(), "passage": set()}
            for body in server.bodies:
                sent[body["input_type"]] |= {*body["input"]}
            assert sent == {"query": {*TEXTS[30:50]}, "passage": {*texts, *_PROBE}}
            np.testing.assert_allclose(teacher.embed(TEXTS[50:60], "query"), [server.table[t] for t in TEXTS[50:60]],
                                       atol=1e-6)  # fmt: skip
            assert server.bodies[-1]["input_type"] == "query"


def test_texts_of_evaluation_are_paid_for_once(tmp_path):
    corpus = corpus_of(tmp_path / "c", TEXTS[:100])
    with FaultyApi(table_of(TEXTS)) as server:
        with teacher_of(server) as teacher:
            cache = cache_of(tmp_path, teacher)
            list(teacher.fill_steps(cache, corpus))
        for new in (30 + AGAIN + len(_PROBE), 0):
            before = sum(server.given.values())
            with teacher_of(server) as teacher:
                teacher.store_in(TeacherCache.open(cache.folder), corpus)
                found = teacher.embed([*TEXTS[90:130], TEXTS[90]])  # ten of them are in the corpus
            np.testing.assert_allclose(found, [server.table[text] for text in [*TEXTS[90:130], TEXTS[90]]], atol=1e-7)
            assert sum(server.given.values()) - before == new
        server.table = table_of(TEXTS, seed=1)
        with teacher_of(server) as teacher, pytest.raises(DistilvecError, match="has changed"):
            teacher.store_in(TeacherCache.open(cache.folder), corpus)
            teacher.embed(TEXTS[150:160])


def test_the_manifest_changes_with_model_dimensions_prompts_host_and_fields():
    def manifest(host="127.0.0.1", **changes):
        api = {"base_url": server.address.replace("127.0.0.1", host), **changes.pop("api", {})}
        return ApiEmbedder(TeacherSection(**{"model": "served", "api": api, **changes})).manifest()

    with FaultyApi(table_of([])) as server:
        first = manifest()
        assert (first.model, first.width, first.endpoint, first.backend) == ("served", 12, "127.0.0.1", "api")
        changes = [{"model": "other"}, {"prompts": {"query": "q: "}}, {"truncate_dim": 6}]
        changes += [{"api": {"body": {"x": 1}}}, {"api": {"dimensions": 12}}]
        roles = {"query": {"input_type": "query"}}
        changes += [{"api": {"by_role": roles}, "prompts": {"query": "q: ", "document": "d: "}}]
        assert len({first.fingerprint, *(manifest(**change).fingerprint for change in changes)}) == 7
        assert manifest(api={"concurrency": 2, "price": 1.0, "timeout": 9}).fingerprint == first.fingerprint
        assert json.loads(first.to_json())["manifest"]["endpoint"] == "127.0.0.1"


def test_two_servers_of_one_machine_are_told_apart_by_their_vectors():
    """Two ports with the same model's name; the same model at another port, after rounding, keeps its cache."""
    found = []
    for seed, rounding in ((0, 0.0), (0, 1e-4), (1, 0.0)):
        table = {text: vector + rounding for text, vector in table_of([], 64, seed).items()}
        with FaultyApi(table) as server, teacher_of(server) as teacher:
            found.append(teacher.manifest().fingerprint)
    assert found[0] == found[1] != found[2]


def test_two_servers_of_another_machine_are_told_apart_by_port_and_path():
    def place(address):
        return ApiSection(base_url=address).place

    addresses = ["https://a.example/v1", "https://a.example:8443/v1", "https://b.example/v1", "https://a.example/x/v1"]
    assert len({place(address) for address in addresses}) == 4
    assert place("https://a.example:443/v1/") == place("https://A.example./v1") == place(addresses[0])
    assert place("http://localhost:1/v1") == place("http://localhost:2/v1")  # told apart by their vectors


def test_tokens_are_counted_once(monkeypatch):
    with FaultyApi(table_of(TEXTS)) as server, teacher_of(server) as teacher:
        teacher.dim  # noqa: B018
        count, counted = teacher.count, []
        monkeypatch.setattr(teacher, "count", lambda texts: (counted.extend(texts), count(texts))[1])
        teacher.signals(TEXTS[:100])
        assert sorted(counted) == sorted(TEXTS[:100])


@pytest.mark.parametrize("name", ["eos_token", "bosToken", "pad_token", "mask-token", "stop_token", "stop_tokens",
                                  "max_tokens", "maxTokens", "tokens", "token_type", "keywords", "monkey"])  # fmt: skip
def test_fields_of_tokens_are_no_keys(name):
    assert ApiSection(body={name: "x"}).body == {name: "x"}


@pytest.mark.parametrize("name", ["accessToken", "clientSecret", "bearerToken", "apiKey", "APIKey", "api-key", "key",
                                  "X-API-Key", "secretAccessKey", "refresh_token", "Token", "accesstoken", "apikey",
                                  "api_key_2", "userPassword"])  # fmt: skip
def test_fields_of_keys_are_refused(name):
    with pytest.raises(ValueError, match="field for a key"):
        ApiSection(body={"outer": [{name: KEY}]})


@pytest.mark.parametrize(
    ("teacher", "words"),
    [
        ({"api": {}}, r"^\[teacher\] give exactly one"),
        ({"vectors": "t.parquet", "api": {}}, r"^\[teacher.api\] .*Name it: teacher.model"),
        ({"model": "m", "api": {}, "dtype": "bfloat16"}, r"^\[teacher.dtype\] found 'bfloat16'; .* behind teacher.api"),
        ({"model": "m", "api": {}, "pooling": "cls"}, r"^\[teacher.pooling\]"),
        ({"model": "m", "api": {}, "live": True}, r"^\[teacher.live\]"),
        ({"model": "m", "api": {}, "adapters": ["a"]}, r"^\[teacher.adapters\]"),
        ({"model": "m", "api": {}, "trust_remote_code": True}, r"^\[teacher.trust_remote_code\]"),
        ({"model": "m", "api": {"key_variable": KEY}}, r"^\[teacher.api.key_variable\] .*environment variable"),
        ({"model": "m", "api": {"key_variable": "abcSecret4711"}}, r"^\[teacher.api.key_variable\]"),
        (
            {"model": "m", "api": {"api_key": KEY}},
            r"^\[teacher.api.api_key\] unknown key.*Known here: base_url, key_variable",
        ),
        ({"model": "m", "api": {"base_url": f"https://me:{KEY}@host/v1"}}, r"^\[teacher.api.base_url\] .*password"),
        ({"model": "m", "api": {"base_url": f"https://me:{KEY}#x@host/v1"}}, r"^\[teacher.api.base_url\] .*password"),
        ({"model": "m", "api": {"base_url": f"https://me:12/{KEY}@host/v1"}}, r"^\[teacher.api.base_url\] .*password"),
        ({"model": f"https://me:{KEY}/x@host/v1"}, r"^\[teacher.model\] .*password"),
        ({"model": f"https://me@host:{KEY}@host/v1"}, r"^\[teacher.model\] .*password"),
        ({"vectors": f"postgresql://me:12/{KEY}@host/db/t"}, r"^\[teacher.vectors\] .*password"),
        ({"model": "m", "api": {"base_url": f"https://host/v1?key={KEY}"}}, r"^\[teacher.api.base_url\]"),
        ({"vectors": "t.parquet", "made_by": f"http://me:{KEY}@host/v1#m"}, r"^\[teacher.made_by\] .*password"),
        ({"vectors": "t.parquet", "made_by": f"https://{KEY}@host/v1#m"}, r"^\[teacher.made_by\] .*password"),
        ({"vectors": "t.parquet", "made_by": f"HTTP://host/v1?x={KEY}#m"}, r"^\[teacher.made_by\] .*'\?'"),
        ({"vectors": f"postgresql://me:{KEY}@host/db/t"}, r"^\[teacher.vectors\] .*password"),
        ({"vectors": f"qdrant://host/c?api_key={KEY}"}, r"^\[teacher.vectors\] .*password"),
        ({"vectors": f"host=h password={KEY}"}, r"^\[teacher.vectors\] .*password"),
        ({"model": f"http://me:{KEY}@host/v1"}, r"^\[teacher.model\] .*password"),
        ({"model": "m", "api": {"body": {"x": [f"http://me:{KEY}@host"]}}}, r"^\[teacher.api.body\] .*password"),
        ({"model": "m", "api": {"base_url": "host:8000"}}, r"^\[teacher.api.base_url\] .*an address such as"),
        ({"model": "m", "api": {"body": {"input": []}}}, r"^\[teacher.api.body\] found 'input'"),
        ({"model": "m", "api": {"body": {"api_key": KEY}}}, r"^\[teacher.api.body\] .*key_variable"),
        ({"model": "m", "api": {"body": {"extra": [{"apiKey": KEY}]}}}, r"^\[teacher.api.body\]"),
        ({"model": "m", "api": {"body": {"headers": {"Authorization": KEY}}}}, r"^\[teacher.api.body\]"),
        ({"model": "m", "api": {"by_role": {"query": {"input": []}}}}, r"^\[teacher.api.by_role\] found 'input'"),
        ({"model": "m", "api": {"by_role": {"query": {"x": 1}}}}, r"^\[teacher.prompts\] api.by_role tells"),
        ({"model": "m", "api": {"by_role": {"query": {"api_key": KEY}}}}, r"^\[teacher.api.by_role\]"),
        ({"model": "m", "api": {"most_cost": 2.0}}, r"^\[teacher.api.most_cost\] needs the price"),
    ],
)
def test_sections_that_are_refused(teacher, words):
    tree = {"name": "x", "teacher": teacher, "student": {"model": "m"}, "method": {"name": "redact"}}
    tree["corpus"] = {"sources": [{"path": "texts.txt"}]}
    with pytest.raises(DistilvecError, match=words) as found:
        recipe.validate(tree)
    assert KEY not in str(found.value) and "Secret" not in str(found.value)


@pytest.mark.parametrize(
    "address",
    ["http://localhost:1234/v1#embed@q8_0", "http://[::1]:1234#embed@q8_0", "https://host/v1#@cf/embed",
     "hf://datasets/me/texts@main/a:b.txt", "postgresql://me@host:5432/db/t"],
)  # fmt: skip
def test_a_port_and_a_version_are_no_password(address):
    """LM Studio has an @ in its models' names."""
    assert not Address.parse(address).had_secret


@pytest.mark.parametrize("value", ["", "  ", "schlüssel", "a\x01b"])
def test_a_key_that_cannot_be_sent(value, monkeypatch):
    monkeypatch.setenv("SOME_KEY", value)
    with refused("teacher.api.key_variable", "SOME_KEY") as found:
        ApiEmbedder(TeacherSection(model="m", api={"key_variable": "SOME_KEY"}))
    assert "schl" not in str(found.value)


def test_a_server_that_fails_ends_an_evaluation_at_once():
    """Not once for every task, with all retries each time."""
    names = ("first", "second", "third")
    tasks = [StsTask(name, TEXTS[:20], TEXTS[20:40], np.arange(20.0) % 3) for name in names]
    with FaultyApi(table_of(TEXTS), faults=lambda request: "500" if request else None) as server:
        with teacher_of(server, retries=1, concurrency=2) as teacher, refused("teacher.api", "500"):
            score_columns(tasks, {"teacher": (teacher, teacher)}, EmbeddingCache(), [])
        assert server.requests <= 1 + 2 * 2  # the one that measures, then two at a time, each sent twice
