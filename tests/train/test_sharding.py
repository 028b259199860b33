"""Two processes that hold half of the weights each (FSDP) train as one process with whole weights does."""

from __future__ import annotations

import json
from types import SimpleNamespace

import architectures
import pytest
import torch
from commands import Command
from refusals import refused
from safetensors.torch import load_file
from sentence_transformers import SentenceTransformer
from several import finish, start, train_alone_and_in_two

from distilvec.config import recipe as recipes
from distilvec.config.training import TrainSection
from distilvec.core import processes
from distilvec.core.errors import DistilvecError, ProcessLost
from distilvec.core.run_folder import RunFolder
from distilvec.pipeline.job import training_fingerprint
from distilvec.pipeline.prepare import check_shards
from distilvec.pipeline.run import run
from distilvec.train.metrics import TEXTS, read_metrics

BATCHES = {"train__gradient_accumulation_steps": 3, "train__gradient_steps": 5, "train__max_grad_norm": 0.5}
LLM = {"student__model": "qwen3", "student__pooling": "lasttoken"}
CASES = {
    "bert": BATCHES,
    "lora": LLM | {"student__lora": {"r": 4, "dropout": 0.0}, "train__gradient_checkpointing": True},
    "emo": {"method__name": "emo", "teacher__model": "mistral", "teacher__live": True, "train__learning_rate": 1e-4},
    "one_to_two": LLM,
    "two_to_one": LLM,
}


@pytest.fixture(scope="module")
def root(tiny_model, tmp_path_factory):
    """Models and texts, and a cache of its own."""
    from samples import make_texts

    found = tmp_path_factory.mktemp("sharding")
    (found / "texts.txt").write_text("\n".join(make_texts(200)), encoding="utf-8")
    for name, make in (("qwen3", architectures.qwen3), ("mistral", architectures.mistral)):
        architectures.sentence_transformer(found / name, make(found / f"{name}-plain"), "lasttoken normalize")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DISTILVEC_CACHE", str(found / "cache"))
        yield found


@pytest.fixture(scope="module")
def make_recipe(root, tiny_model):
    """A recipe of 12 steps with shards, in which the names of the models may be used."""

    def make(name: str, **changes):
        tree = {
            "name": name,
            "teacher": {"model": str(tiny_model), "dtype": "float32"},
            "student": {"model": str(tiny_model), "layers": 2, "dropout": 0.0},
            "corpus": {"sources": [{"path": str(root / "texts.txt")}], "validation_rows": 21},
            "method": {"name": "redact"},
            "train": {"epochs": 30, "max_steps": 12, "batch_size": 7, "logging_steps": 5, "learning_rate": 1e-3}
            | {"precision": "fp32", "device": "cpu", "shard": True},
            "evaluation": {"speed_seconds": 0.01, "parts": []},
        }
        for key, value in changes.items():
            models = ("qwen3", "mistral")
            recipes.set_key(tree, key.replace("__", "."), str(root / value) if value in models else value)
        return recipes.validate(tree)

    return make


@pytest.fixture(scope="module")
def trained(root, make_recipe):
    """All cases trained by one process, and by two in one launch; the numbers of weights that each of the two held."""
    found = {name: make_recipe(name, **changes) for name, changes in CASES.items()}
    outputs = train_alone_and_in_two(found, root)
    return [dict(zip(CASES, map(json.loads, output.splitlines()), strict=True)) for output in outputs]


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_weights_state_and_metrics_are_those_of_whole_weights(trained, root, name):
    one, two = (load_file(RunFolder(root / count / name).checkpoint) for count in ("one", "two"))
    assert one.keys() == two.keys()
    for key, value in one.items():
        if not key.startswith("loop/") and "key.bias" not in key:  # whose gradient is 0, but for rounding
            torch.testing.assert_close(two[key], value, atol=2e-5, rtol=1e-4, msg=f"{key}: {{}}".format)
    first, second = (read_metrics(RunFolder(root / count / name).metrics) for count in ("one", "two"))
    assert first[0] == second[0] and [line["step"] for line in first] == [line["step"] for line in second]
    for one_line, two_line in zip(first, second, strict=True):
        same = {key: value for key, value in one_line.items() if "_per_second" not in key and "wait" not in key}
        for text in set(TEXTS) & set(same):
            assert two_line[text] == same.pop(text)
        assert {key: two_line[key] for key in same} == pytest.approx(same, rel=1e-3, abs=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_each_process_holds_half_of_the_weights_of_the_optimizers_state_and_of_a_live_teacher(trained, name):
    counts = [ranks[name] for ranks in trained]
    for part in (0, 1, 2) if name == "emo" else (0, 1):
        own, total = zip(*(count[part] for count in counts), strict=True)
        assert sum(own) == total[0] == total[1] > 0 and max(own) < 0.52 * total[0]


@pytest.mark.slow
def test_a_run_saves_the_plain_student_of_one_process(root, make_recipe):
    """Adapters are merged into whole weights, as the best student, the last one, and along the way."""
    file = root / "run.yaml"
    changes = {**LLM, "student__lora": {"r": 4, "dropout": 0.0}, "train__keep_students": 2, "teacher__live": True}
    changes["train__keep_checkpoint"] = True
    file.write_text(recipes.dump(make_recipe("run", **changes)))
    one = Command("run", file, "--out", root / "whole", "train.shard=false")
    two = start("run", file, "--out", root / "shards", module="distilvec")
    finish([one])
    finish(two)
    for name in ("student", "details/last", "students/step-6", "students/step-12"):
        whole, shards = (SentenceTransformer(str(root / run / name)) for run in ("whole", "shards"))
        assert shards.state_dict().keys() == whole.state_dict().keys() and not any(
            "lora" in k for k in whole.state_dict()
        )
        torch.testing.assert_close(shards.state_dict(), whole.state_dict(), atol=2e-5, rtol=1e-4)


def test_one_process_and_what_cannot_be_sharded_are_refused(make_recipe, tmp_path):
    with refused("train.shard", "--processes"):
        run(make_recipe("alone"), tmp_path / "run")
    assert not (tmp_path / "run").exists()
    for key, value in (("train__update", {"name": "asam"}), ("train__compile", True)):
        with pytest.raises(DistilvecError, match=r"\[train.shard\] .*shard=false"):
            make_recipe("refused", **{key: value})
    stages = [{"name": "a", "set": {"train.shard": False}}, {"name": "b", "set": {}}]
    with refused("stages.a.train.shard"):
        make_recipe("stages", stages=stages)


@pytest.mark.parametrize(("key", "value"), [("quantize", "4bit"), ("device_map", "auto")])
def test_only_live_teachers_have_to_be_shardable(make_recipe, monkeypatch, key, value):
    recipe = make_recipe("quantized", **{f"teacher__{key}": value})
    monkeypatch.setattr(processes, "world_size", lambda: 2)
    check_shards(SimpleNamespace(recipe=recipe, teachers=[SimpleNamespace(live=False, section=recipe.teacher)]))
    live = SimpleNamespace(key="more_teachers.0", live=True, section=recipe.teacher)
    with refused(f"more_teachers.0.{key}", "train.shard=false"):
        check_shards(SimpleNamespace(recipe=recipe, teachers=[live]))


def test_the_key_leaves_fingerprints_as_they_are(make_recipe):
    marks = {training_fingerprint(make_recipe("mark", train__shard=on), (), "v", "c", "s") for on in (False, True)}
    assert len(marks) == 1 and not TrainSection().shard


def test_a_lost_connection_within_a_step_is_one_error():
    with pytest.raises(ProcessLost, match="another process"), processes.exchange(only=False):
        raise RuntimeError("[/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:537] Connection closed by peer")
    with pytest.raises(RuntimeError, match="shapes"), processes.exchange(only=False):
        raise RuntimeError("shapes do not fit")
