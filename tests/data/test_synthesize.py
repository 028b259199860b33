"""Texts that a language model writes, against a real HTTP server that misbehaves on purpose."""

from __future__ import annotations

import json
import signal
import time

import numpy as np
import pytest
from commands import Command
from refusals import refused
from servers import BAD_ANSWERS, GOOD_FORMS, FaultyChat

from distilvec.__main__ import run_command
from distilvec.config.endpoint import TEXT_KINDS, SynthesisSection
from distilvec.config.recipe import section_of
from distilvec.config.schema import SourceSection
from distilvec.core.errors import DistilvecError
from distilvec.data.sources import read_source
from distilvec.data.synthesize import (
    _MAX_USELESS,
    AnswerJournal,
    _Writer,
    distinct_texts,
    fill_prompt,
    read_answer,
    read_prompt,
    read_words,
    synthesize,
    work_folder,
)
from distilvec.remote.meter import read_counts

pytestmark = pytest.mark.usefixtures("loopback")

WORDS = [f"word{n:03}" + "x" * (n % 3) for n in range(200)]
KEY = "sk-quite-Secret-4711"
HTTP = ["429", "500", "dropped", "cut", "partial", "page"]


def section_to(server, **changes):
    own = {"base_url": server.address, "model": "served", "retry_seconds": 0.001, "timeout": 20, "concurrency": 4}
    return SynthesisSection(**{**own, **changes})


def counts(out):
    return read_counts(work_folder(out) / "requests.json")


def test_200_words_through_a_misbehaving_server(tmp_path):
    """Every word has its texts once, nothing is paid for twice, and both ends count the same requests and tokens."""
    out, draw = tmp_path / "vocabulary.json", np.random.default_rng(0)
    kinds = [*HTTP, *BAD_ANSWERS, *GOOD_FORMS, "missing"]
    faults = dict(zip(draw.permutation(60).tolist(), kinds, strict=False))
    with FaultyChat(faults) as server:
        found = synthesize(WORDS, section_to(server, attempts=6, words=5), out)
        assert set(server.seen) == {None, *kinds} - {"dropped"}
        assert server.given == dict.fromkeys(WORDS, 1)  # each word's right texts were sent once
        spent = counts(out)
        assert spent["requests"] == server.requests and spent["tokens"] + spent["written"] == server.tokens
        assert spent["retries"] == len(HTTP)
        assert found.answered == found.words == 200 and found.unanswered == [] and found.repeats == 199
        before = server.requests
        assert synthesize(WORDS, section_to(server), out) == found and server.requests == before
    texts = json.loads(out.read_text())
    assert [*texts] == WORDS and texts[WORDS[0]] == server.texts(WORDS[0])
    assert texts[WORDS[1]] == server.texts(WORDS[1])[:1]  # without the repeat
    assert list(read_source(SourceSection(path=out), 0)) == [text for word in WORDS for text in texts[word]]


def test_words_without_a_usable_answer_are_asked_for_again_alone_and_then_listed(tmp_path):
    out, never = tmp_path / "v.json", [WORDS[3], WORDS[17], WORDS[18]]
    with FaultyChat(never=never) as server:
        found = synthesize(WORDS[:40], section_to(server, words=8, attempts=4), out)
        assert server.asked == {word: 4 if word in never else 1 for word in WORDS[:40]}
        assert server.requests == 5 + 1 + 2 + 3  # of 8, 4, 2 and 1 words
        assert found.unanswered == never and found.answered == 37
        assert (work_folder(out) / "unanswered.txt").read_text().split() == never
        synthesize(WORDS[:40], section_to(server, words=8, attempts=4), out)
        assert server.requests == 11
        server.never = {}
        assert synthesize(WORDS[:40], section_to(server, attempts=5), out).unanswered == []
        assert server.requests == 14 and set(server.given.values()) == {1}


@pytest.mark.parametrize("cap", [{"most_tokens": 12_000}, {"most_cost": 0.012, "price": 1.0, "answer_price": 1.0}])
def test_the_cap_is_exceeded_by_less_than_a_request_and_what_was_answered_is_in_the_result(cap, tmp_path):
    out = tmp_path / "v.json"
    with FaultyChat() as server:
        name = next(iter(cap))
        with refused(f"synthesize.{name}", "written"):
            synthesize(WORDS, section_to(server, answer_tokens=400, **cap), out)
        assert 12_000 - max(server.sizes) < server.tokens < 12_000 + max(server.sizes)
        assert [*json.loads(out.read_text())] == [word for word in WORDS if server.given[word]] != WORDS
        with pytest.raises(DistilvecError, match="the cap"):
            synthesize(WORDS, section_to(server, answer_tokens=400, **cap), out)
        synthesize(WORDS, section_to(server), out)
        assert server.given == dict.fromkeys(WORDS, 1) and [*json.loads(out.read_text())] == WORDS


def test_the_price_of_answers_counts(tmp_path, capsys):
    with FaultyChat() as server:
        synthesize(WORDS, section_to(server, price=2.0, answer_price=10.0), tmp_path / "v.json", limit=50)
    spent = counts(tmp_path / "v.json")
    cost = (spent["tokens"] * 2 + spent["written"] * 10) / 1e6
    messages = " ".join(capsys.readouterr().err.split())
    assert f"cost {cost:.4f}" in messages and f"at this rate 200 words take about {spent['tokens'] * 4:,}" in messages
    assert f"cost {cost * 4:.4f}" in messages


def test_killed_and_run_again_nothing_stored_is_paid_for_twice(tmp_path):
    (tmp_path / "words.txt").write_text("\n".join([*WORDS, WORDS[0], "", " "]))
    out = tmp_path / "vocabulary.json"
    with FaultyChat(lambda number: "slow" if number > 12 else None, slow=30) as server:
        words = ["corpus", "synthesize", tmp_path / "words.txt", "--model", "served", "--base-url", server.address]
        words += ["--out", out, "--concurrency", 3, "--words-per-request", 4]
        first = Command(*words)
        journal, deadline = work_folder(out) / "answers.jsonl", time.monotonic() + 120
        # The settings and 13 answers are stored. The server has three more requests, and answers no more.
        while not journal.exists() or journal.read_bytes().count(b"\n") < 14 or server.requests < 16:
            assert first.returncode is None and time.monotonic() < deadline
            time.sleep(0.02)
        first.send_signal(signal.SIGKILL)
        first.wait()
        assert not out.exists() and sum(server.given.values()) == 52
        journal.write_bytes(journal.read_bytes()[:-5])  # as if it was killed while it wrote the last line
        server.faults = {}
        assert run_command(list(map(str, words))) == 0
    assert set(server.given) == {*WORDS} and sum(server.given.values()) == 200 + 4
    assert [*json.loads(out.read_text())] == WORDS


def test_the_key_is_in_no_file_and_no_message(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("SOME_KEY", KEY)
    (tmp_path / "words.txt").write_text("river\nstone\n")
    with FaultyChat({0: "429", 1: "500"}, retry_after="0.3") as server:
        words = ["corpus", "synthesize", str(tmp_path / "words.txt"), "--model", "served", "--base-url", server.address]
        words += ["--key-variable", "SOME_KEY", "--body", "{temperature: 0.5}", "--kind", "questions"]
        assert run_command([*words, "--out", str(tmp_path / "a.json")]) == 0
        assert server.times[1] - server.times[0] >= 0.29  # Retry-After
        body = server.bodies[-1]
        assert body["temperature"] == 0.5 and body["max_tokens"] == 4096 and body["model"] == "served"
        assert 'search engine about the following terms:\n\n"river"\n"stone"\n\n' in body["messages"][0]["content"]
        server.refusal = 401
        assert run_command([*words, "--out", str(tmp_path / "b.json")]) == 2
    shown = capsys.readouterr()
    assert "[--base-url] 127.0.0.1 has refused" in shown.err and "Check the key (SOME_KEY)." in shown.err
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert len(files) >= 7 and not [path for path in files if KEY.encode() in path.read_bytes()]
    assert KEY not in shown.out + shown.err and not (tmp_path / "b.json").exists()
    monkeypatch.delenv("SOME_KEY")
    assert run_command([*words, "--out", str(tmp_path / "b.json")]) == 2
    assert "[--key-variable] SOME_KEY is not set" in capsys.readouterr().err


@pytest.mark.parametrize("kind", ["prose", "list", "strings", "nothing", "refusal", "deep"])
def test_no_usable_answer_is_an_error(kind, tmp_path, capsys):
    """Fewer requests than end the work early: there is no result all the same."""
    (tmp_path / "words.txt").write_text("river\nstone\n")
    with FaultyChat(lambda number: kind) as server:
        words = ["corpus", "synthesize", str(tmp_path / "words.txt"), "--model", "served", "--base-url", server.address]
        assert run_command([*words, "--out", str(tmp_path / "v.json")]) == 2
    shown = capsys.readouterr()
    assert "distilvec: [--model] no answer about 2 words" in shown.err and "v.json" not in shown.out
    assert not (tmp_path / "v.json").exists()


def test_a_model_that_never_writes_json_ends_the_work(tmp_path):
    with FaultyChat(lambda number: "prose") as server:
        with refused("--model", "'Certainly!"):
            synthesize(WORDS, section_to(server, words=1, concurrency=2), tmp_path / "v.json")
        assert _MAX_USELESS <= server.requests <= _MAX_USELESS + 4
        server.faults = {}
        synthesize(WORDS, section_to(server, model="better"), tmp_path / "v.json")  # nothing there to be mixed with
        for change, words in [({"model": "served"}, "model"), ({"model": "better", "kind": "texts"}, "prompt")]:
            with refused("--out", words):
                synthesize(WORDS, section_to(server, **change), tmp_path / "v.json")


def test_answers_that_are_stored_slowly_do_not_pile_up(tmp_path, monkeypatch):
    """Requests run ahead of what has read their answers by a few: useless ones end the work as soon."""
    store = _Writer._store
    monkeypatch.setattr(_Writer, "_store", lambda *values: (time.sleep(0.05), store(*values))[1])
    with FaultyChat(lambda number: "prose") as server:
        with refused("--model", "Certainly!"):
            synthesize(WORDS, section_to(server, words=1, concurrency=2), tmp_path / "v.json")
        assert _MAX_USELESS <= server.requests <= _MAX_USELESS + 4


def test_a_damaged_journal_names_the_line(tmp_path):
    with AnswerJournal(tmp_path / "j", {"model": "a"}) as journal:
        journal.add({"a": ["b"]}, ["c"])
        journal.add({}, ["c"])
    with AnswerJournal(tmp_path / "j", {"model": "a"}) as again:
        assert again.answers == {"a": ["b"]} and again.failures == {"c": 2}
    lines = (tmp_path / "j").read_bytes().splitlines(keepends=True)
    (tmp_path / "j").write_bytes(lines[0] + b'{"answers": 3}\n' + lines[2])
    with pytest.raises(DistilvecError, match=r"^\[--out\] .*line 2 is damaged"):
        AnswerJournal(tmp_path / "j", {"model": "a"})


def test_answers_are_read_strictly():
    words = ["Abipon", "abipon", "1080"]
    full = {"Abipon": ["A people."], "abipon": ["A language."], "1080": ["A \0number.\ud800"]}
    assert read_answer(json.dumps(full), words) == {**full, "1080": ["A  number.�"]}
    assert read_answer(json.dumps({"Abipon": ["A people."]}), words) == {"Abipon": ["A people."]}
    assert read_answer(json.dumps({"ABIPON ": ["x"]}), ["Abipon"]) == {"Abipon": ["x"]}
    assert read_answer("```\n" + json.dumps(full) + "\n```", ["Abipon"]) == {"Abipon": ["A people."]}
    for wrong in ({"1080": "x"}, {"1080": [["x"]]}, {"1080": {"x": "y"}}, {"1080": None}, {"1080": ["x" * 10_001]}):
        assert read_answer(json.dumps(wrong), words) == {}
    found, repeats = distinct_texts(["b", "a", "c"], {"a": ["One  text", "two"], "b": ["one TEXT"], "c": ["Two"]})
    assert found == {"b": ["one TEXT"], "a": ["two"]} and repeats == 2


def test_prompts_have_one_gap_for_words(tmp_path):
    for kind in TEXT_KINDS:
        filled = fill_prompt(read_prompt(kind, None), ['a "b"', "%s"])
        assert '\n\n"a \\"b\\""\n"%s"\n\n' in filled
    assert read_prompt("facts", None).startswith("Please provide ALL the definitions and, if available, important")
    (tmp_path / "p.txt").write_text("Write about %s and %s.")
    with pytest.raises(DistilvecError, match=r"^\[--prompt\] .*holds %s 2 times"):
        read_prompt("facts", tmp_path / "p.txt")


def test_words_of_tables(tmp_path):
    (tmp_path / "w.csv").write_text('word,n\n" big  river ",1\nstone,2\nstone,3\n')
    assert read_words(tmp_path / "w.csv", "word") == ["big river", "stone"]
    with refused("corpus.sources.0.column"):
        read_words(tmp_path / "w.csv")


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"answer_price": 2.0}, r"^\[synthesize.answer_price\] needs the price"),
        ({"most_cost": 2.0}, r"^\[synthesize.most_cost\] needs the price"),
        ({"body": {"messages": []}}, r"^\[synthesize.body\] found 'messages'"),
        ({"key_variable": KEY}, r"^\[synthesize.key_variable\] expected the name"),
        ({"kind": "poems"}, r"^\[synthesize.kind\]"),
    ],
)
def test_settings_that_are_refused(changes, words):
    with pytest.raises(DistilvecError, match=words) as found:
        section_of(SynthesisSection, "synthesize", {"model": "m", **changes})
    assert KEY not in str(found.value)


def test_commands_that_are_refused_ask_nothing(tmp_path, capsys):
    (tmp_path / "words.txt").write_text("\n")
    with FaultyChat() as server:
        words = ["corpus", "synthesize", str(tmp_path / "words.txt"), "--model", "m", "--base-url", server.address]
        for out, more, expected in [
            ("v.jsonl", [], "[--out]"), ("v.json", [], "[words] the list is empty"),
            ("v.json", ["--most-cost", "3"], "[--most-cost] needs the price"),
            ("v.json", ["--body", "{a: "], "[--body]"), ("v.json", ["--column", "x"], "[--column]"),
        ]:  # fmt: skip
            assert run_command([*words, "--out", str(tmp_path / out), *more]) == 2
            assert expected in capsys.readouterr().err
        assert server.requests == 0 and not (tmp_path / "v.json").exists()
