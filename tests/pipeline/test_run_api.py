"""Whole commands with a teacher behind an API: `distilvec serve` with the tiny model, as a local teacher gives it."""

from __future__ import annotations

import json
import re

import numpy as np
import pytest
from jobs import filled
from labelled import write_task
from refusals import refused
from samples import make_texts
from servers import FaultyApi, serving
from test_run_teachers import odd

from distilvec.__main__ import run_command
from distilvec.config import recipe as recipes
from distilvec.config.yaml_dialect import load_yaml
from distilvec.core.errors import DistilvecError
from distilvec.core.run_folder import RunFolder
from distilvec.data.corpus import text_name
from distilvec.pipeline.resolve import resolve
from distilvec.teachers.api_embedder import _PROBE, AGAIN
from distilvec.verbs.serve.model import ServedModel

pytestmark = pytest.mark.usefixtures("loopback")

KEY = "sk-quite-Secret-4711"


@pytest.fixture
def suite(tmp_path):
    texts = make_texts(60, seed=3)
    rows = [{"sentence1": texts[n], "sentence2": texts[n + 1], "score": n % 6} for n in range(59)]
    (tmp_path / "sts.jsonl").write_text("\n".join(json.dumps({"split": "test", **row}) for row in rows))
    (tmp_path / "suite.yaml").write_text("- {name: mine, type: sts, path: sts.jsonl}\n")
    return tmp_path / "suite.yaml"


def api_recipe(tiny_recipe, tiny_model, address, api=None, **changes):
    section = {"base_url": f"{address}/v1", "key_variable": "SOME_KEY", "retry_seconds": 0.01, "price": 20.0}
    own = {"teacher": {"model": "tiny", "api": section | (api or {})}, "student__model": str(tiny_model)}
    return tiny_recipe(**{**own, "cache__dtype": "float32", **changes})


def test_a_run_gives_the_local_teacher_s_vectors_and_the_key_is_nowhere(
    tiny_recipe, tiny_model, suite, tmp_path, monkeypatch, capsys, no_pages
):
    monkeypatch.setenv("SOME_KEY", KEY)
    local = filled(tiny_recipe(cache__dtype="float32"), tmp_path / "local")
    with serving(ServedModel(str(tiny_model), "tiny"), key=KEY) as address:
        limits = {"most_tokens": 20_000, "requests_per_minute": 6000}
        recipe = api_recipe(tiny_recipe, tiny_model, address, limits, evaluation__suite=str(suite))
        (tmp_path / "api.yaml").write_text(recipes.dump(recipe))
        assert run_command(["plan", str(tmp_path / "api.yaml")]) == 0
        plan = capsys.readouterr().out
        assert run_command(["run", str(tmp_path / "api.yaml"), "--out", str(tmp_path / "run")]) == 0
        output = capsys.readouterr()
        job = resolve(recipe, tmp_path / "run")
        cache = filled(recipe, tmp_path / "run")
    for line in ("tokens to pay for", "  for evaluation", "requests", "cap", "20,000 tokens; 0 tokens spent"):
        assert line in plan
    keys = np.asarray(job.corpus.keys)
    assert cache.manifest.endpoint == "127.0.0.1" and len(cache) == len(local) + 60  # and the evaluation's texts
    np.testing.assert_allclose(
        cache.read(cache.positions(keys)), local.read(local.positions(keys)), atol=2e-6
    )  # local texts have no prompt either, so their keys are the same
    record = json.loads(RunFolder(tmp_path / "run").record.read_text())
    spent = record["teacher"]["api"]
    assert spent["host"] == "127.0.0.1" and spent["requests"] >= 4 and spent["retries"] == 0
    assert spent["cost"] == pytest.approx(spent["tokens"] * 20e-6) and spent["tokens"] > 200 * 3
    assert {"teacher", "student", "asymmetric"} <= set(record["scores"])
    assert 0 < record["overlap"]["student"]["among"]["mean"] <= 1  # among its cached vectors
    card = (tmp_path / "run" / "student" / "README.md").read_text(encoding="utf-8")
    assert "| `tiny` | an API: its provider's terms, which may forbid training on its vectors |" in card
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert len(files) > 20 and not [path for path in files if KEY.encode() in path.read_bytes()]
    assert KEY not in plan + output.out + output.err and "SOME_KEY" in (tmp_path / "run" / "recipe.yaml").read_text()
    assert run_command(["run", str(tmp_path / "api.yaml"), "--out", str(tmp_path / "run")]) == 0  # no server any more


def test_a_cap_ends_a_run_and_a_higher_one_goes_on(tiny_recipe, tiny_model, tmp_path, monkeypatch, capsys, no_pages):
    monkeypatch.setenv("SOME_KEY", KEY)
    texts = [*make_texts(200), *_PROBE]
    draw = np.random.default_rng(0).standard_normal((len(texts), 32))
    with FaultyApi(dict(zip(texts, draw / np.linalg.norm(draw, axis=1, keepdims=True), strict=True))) as server:
        recipe = api_recipe(tiny_recipe, tiny_model, server.address.removesuffix("/v1"), {"batch_texts": 10})
        (tmp_path / "api.yaml").write_text(recipes.dump(recipe))
        words = ["run", str(tmp_path / "api.yaml"), "--out", str(tmp_path / "run")]
        assert run_command([*words, "teacher.api.most_tokens=900"]) == 2
        message = capsys.readouterr().err
        assert "[teacher.api.most_tokens] the cap of 900 tokens" in message and KEY not in message
        assert 900 - 300 < server.tokens < 900 + max(server.sizes)
        assert run_command(["plan", str(tmp_path / "api.yaml"), "teacher.api.most_tokens=950"]) == 0
        assert "The cap ends it before." in " ".join(capsys.readouterr().out.replace("│", " ").split())
        assert run_command([*words, "teacher.api.most_tokens=100000"]) == 0
        assert sum(server.given.values()) == 200 + AGAIN + 3 * len(_PROBE)
    spent = json.loads(RunFolder(tmp_path / "run").record.read_text())["teacher"]["api"]
    probe = sum(map(server.count_tokens, _PROBE))  # of the description, before there is a count
    assert spent["tokens"] == server.tokens - probe and spent["requests"] == server.requests - 1


def test_the_name_of_a_text_is_no_number_to_yaml():
    found = [text_name(f"text {number}") for number in range(2000)]
    assert load_yaml(f"[{', '.join(found)}]", "a value") == found
    digits = "t" + "1234567890123456" * 2
    assert load_yaml(f"[{digits}]", "a value") == [digits]


@pytest.mark.parametrize("prompt", ["", "passage: "])
def test_texts_that_the_server_refuses_are_left_out_by_name(
    prompt, tiny_recipe, tiny_model, tmp_path, monkeypatch, capsys, no_pages
):
    monkeypatch.setenv("SOME_KEY", KEY)
    texts = [prompt + text for text in make_texts(200)]
    draw = np.random.default_rng(0).standard_normal((200 + len(_PROBE), 32))
    with FaultyApi(dict(zip([*texts, *_PROBE], draw, strict=True))) as server:
        server.unwanted = {texts[17], texts[150]}
        recipe = api_recipe(tiny_recipe, tiny_model, server.address.removesuffix("/v1"), {"batch_texts": 10})
        (tmp_path / "api.yaml").write_text(recipes.dump(recipe))
        words = ["run", str(tmp_path / "api.yaml"), "--out", str(tmp_path / "run"), "train.max_steps=1"]
        words.append(f"teacher.prompts={{document: '{prompt}'}}")
        names = []
        for _ in server.unwanted:
            assert run_command([*words, f"corpus.leave_out=[{','.join(names)}]"]) == 2
            message = capsys.readouterr().err
            assert "not allowed" in message and "The request had one text" in message
            names += re.findall(r"corpus.leave_out=\[(\w+)\]", message)
        assert run_command([*words, f"corpus.leave_out=[{','.join(names)}]"]) == 0
    assert "2 named in corpus.leave_out" in capsys.readouterr().err
    assert len(set(names)) == 2 and not server.given.keys() & server.unwanted
    paid = [server.given[text] for text in texts if text not in server.unwanted]
    # Each later start embeds a few again, to check them; and the rest of a request with a refused text.
    assert min(paid) == 1 and sum(paid) <= 198 + 2 * (AGAIN + 10)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"method__name": "minilm"}, r"^\[method.name\] .*layers, but a table of vectors or an API has no layers"),
        (
            {"method__name": "OutputSpec(vector=True)"},
            r"^\[teacher.api\] tiny is behind an API; .* from inside the model",
        ),
        ({"student__model": "teacher"}, r"^\[student.model\] is 'teacher', but .* or an API"),
        ({"cache__pre_dense": True}, r"^\[teacher\] tiny has no vectors from before a Dense layer"),
    ],
)
def test_what_an_api_cannot_give_is_refused(changes, words, tiny_recipe, tiny_model, tmp_path, monkeypatch):
    monkeypatch.setenv("SOME_KEY", KEY)
    if "(" in changes.get("method__name", ""):
        changes = {"method__name": odd(tmp_path, changes["method__name"])}
    with serving(ServedModel(str(tiny_model), "tiny"), key=KEY) as address:
        recipe = api_recipe(tiny_recipe, tiny_model, address, **changes)
        with pytest.raises(DistilvecError, match=words):
            resolve(recipe, tmp_path / "run")


@pytest.mark.parametrize("encode", ["joint", "separate"])
def test_pairs_are_embedded_as_two_texts_only(encode, tiny_recipe, tiny_model, tmp_path, monkeypatch):
    monkeypatch.setenv("SOME_KEY", KEY)
    write_task(tmp_path / "task.jsonl", "pair", 60, 10)
    task = {"type": "pair", "path": str(tmp_path / "task.jsonl"), "encode": encode}
    method = {"method": {"name": "distillmoe", "weights": {"dynamic_cka": 0}}, "student__experts": {"width": 8}}
    with serving(ServedModel(str(tiny_model), "tiny"), key=KEY) as address:
        recipe = api_recipe(tiny_recipe, tiny_model, address, corpus=None, task=task, **method)
        if encode == "separate":
            assert len(filled(recipe, tmp_path / "run")) > 60
            return
        with refused("task.encode"):
            resolve(recipe, tmp_path / "run")


def test_a_wrong_key_ends_before_the_corpus_is_read(tiny_recipe, tiny_model, tmp_path, monkeypatch):
    monkeypatch.setenv("SOME_KEY", "wrong-key-8765")
    with serving(ServedModel(str(tiny_model), "tiny"), key=KEY) as address:
        with refused("teacher.api", "(SOME_KEY)") as found:
            resolve(api_recipe(tiny_recipe, tiny_model, address), tmp_path / "run")
        assert "wrong-key" not in str(found.value)


def test_a_refused_text_of_the_evaluation_is_not_sent_to_the_corpus_s_list(
    tiny_recipe, tiny_model, suite, tmp_path, monkeypatch, capsys, no_pages
):
    monkeypatch.setenv("SOME_KEY", KEY)
    asked = make_texts(60, seed=3)
    texts = [*make_texts(200), *asked, *_PROBE]
    draw = np.random.default_rng(0).standard_normal((len(texts), 32))
    with FaultyApi(dict(zip(texts, draw, strict=True))) as server:
        server.unwanted = {asked[5]}
        recipe = api_recipe(tiny_recipe, tiny_model, server.address.removesuffix("/v1"), evaluation__suite=str(suite))
        (tmp_path / "api.yaml").write_text(recipes.dump(recipe))
        assert (
            run_command(["run", str(tmp_path / "api.yaml"), "--out", str(tmp_path / "run"), "train.max_steps=1"]) == 2
        )
    message = capsys.readouterr().err
    assert "[teacher.api]" in message and "The request had one text" in message and "leave_out" not in message
