"""The reason that a verdict gives is the one that the numbers show: of an index in `check`, of a training after one."""

from __future__ import annotations

import json
import shlex

import architectures
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from samples import make_texts

import distilvec
from distilvec.__main__ import run_command
from distilvec.core.run_folder import RunFolder
from distilvec.models.load import load
from distilvec.pipeline.run import run

TEXTS = make_texts(300)
IDS = [f"doc-{row}" for row in range(len(TEXTS))]
HEADING = "captain silver forest market bottle\n"


@pytest.fixture(scope="module")
def words_model(tmp_path_factory):
    """A model whose vectors are sums of the words' own: texts of the same words are near, as in a trained space."""
    folder = tmp_path_factory.mktemp("words")
    backbone = architectures.bert(folder / "backbone", num_hidden_layers=1, hidden_size=128, num_attention_heads=4)
    model = load(architectures.sentence_transformer(folder / "plain", backbone), device="cpu")
    torch.manual_seed(0)
    with torch.no_grad():
        for name, weight in model[0].auto_model.named_parameters():
            if "output.dense" in name or "position_embeddings" in name or "token_type" in name:
                weight.zero_()
            if "word_embeddings" in name:
                weight.normal_()
    model.save_pretrained(str(folder / "model"), create_model_card=False)
    return folder / "model"


@pytest.fixture(scope="module")
def stored(words_model):
    """The vectors of an index by its kind; the odd rows of some are other than the model's."""
    model, generator = load(words_model, device="cpu"), np.random.default_rng(0)
    plain = model.encode(TEXTS)
    odd = np.arange(len(TEXTS)) % 2 == 1
    random = generator.standard_normal(plain.shape).astype(np.float32)
    random /= np.linalg.norm(random, axis=1, keepdims=True)
    behind_heading = model.encode([HEADING + text for text in TEXTS])
    half_moved = plain.copy()
    half_moved[odd] = np.roll(plain[odd], 1, axis=0)
    return {
        "plain": plain,
        "heading": behind_heading,
        "metadata": model.encode([f"page {row % 90} of {TEXTS[row % 7]}\n{text}" for row, text in enumerate(TEXTS)]),
        "two models": np.where(odd[:, None], random, plain),
        "order": plain[::-1].copy(),
        "half in order": half_moved,
        "other space": random,
    }


def write_index(folder, vectors):
    """A table with a blank in its path."""
    path = folder / "my index.parquet"
    pq.write_table(pa.table({"id": IDS, "text": TEXTS, "vector": list(vectors)}), path)
    return path


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        ("plain", "fits"),
        ("heading", "heading"),
        ("metadata", "heading"),
        ("two models", "two models"),
        ("order", "order"),
        ("half in order", "order"),
        ("other space", "other space"),
    ],
)
def test_a_check_gives_the_reason_that_the_rows_show(kind, reason, words_model, stored, tmp_path):
    index = write_index(tmp_path, stored[kind])
    status = run_command(["check", str(words_model), str(index), "--json", str(tmp_path / "check.json")])
    found = json.loads((tmp_path / "check.json").read_text())
    assert (found["reason"], status) == (reason, 0 if found["fits"] else 1)
    agreement = found["judgement"]["agreement"]
    others = {int(name.removeprefix("doc-")) for name in agreement["other_ids"]}
    if kind in ("two models", "half in order"):
        assert agreement["near"] + agreement["far"] <= agreement["rows"] and agreement["near"] / agreement["rows"] > 0.3
        assert len(others) == 5 and all(row % 2 == 1 for row in others), "the rows to embed again"
    # A model that exists is not trained longer: another one is trained for the index, by a command that can be run
    assert "--epochs" not in found["advice"]
    if kind == "other space":
        assert shlex.join(["distilvec", "distill", str(index)]) in found["advice"]


def test_a_few_vectors_of_another_model_are_named_though_the_model_fits(words_model, stored, tmp_path):
    few = stored["plain"].copy()
    few[::9] = stored["other space"][::9]
    found = distilvec.check(words_model, write_index(tmp_path, few))
    assert found.fits and found.reason == "two models"
    assert all(int(name.removeprefix("doc-")) % 9 == 0 for name in found.judgement.agreement.other_ids)


@pytest.mark.parametrize("limit", [8, 16, 64])
def test_texts_that_the_model_cuts_are_counted(limit, words_model, stored, tmp_path):
    model = load(words_model, device="cpu")
    model.max_seq_length = limit
    found = distilvec.check(model, write_index(tmp_path, stored["plain"]))
    agreement = found.judgement.agreement
    lengths = [len(row) for row in model.tokenizer(TEXTS)["input_ids"]]
    share = np.mean(np.array(lengths) > limit)
    assert agreement.longer / agreement.rows == pytest.approx(share, abs=0.15) and agreement.max_length == limit
    assert found.reason == ("fits" if limit == 64 else "cut texts")


def test_the_model_that_made_half_of_an_index_is_told_so(words_model, stored, tmp_path, no_pages, capsys):
    """And the advice after the training is about the training; it does not name the command that has just ended."""
    index = write_index(tmp_path, stored["two models"])
    words = ["distill", str(index), "--student", str(words_model), "--made-by", str(words_model)]
    words += ["--out", str(tmp_path / "run"), "train.max_steps=4", "train.learning_rate=1e-4", "train.device=cpu"]
    assert run_command(words) == 0
    assert "doc-" in capsys.readouterr().err, "the ids of rows that another model made"
    verdict = json.loads(RunFolder(tmp_path / "run").report.read_text())["verdict"]
    assert verdict["reason"] in ("in part", "too short", "not learned", "brought nothing")
    assert not any("distilvec distill" in line for line in verdict["advice"])


def test_a_student_far_from_its_index_is_advised_on_its_training(tiny_model, stored, tmp_path, no_pages):
    """Texts that are not those of the vectors, and a start without anything of the index's model."""
    words = ["distill", str(write_index(tmp_path, stored["order"])), "--student", str(tiny_model)]
    words += ["--out", str(tmp_path / "run"), "train.max_steps=8", "train.device=cpu"]
    assert run_command(words) == 0
    report = json.loads(RunFolder(tmp_path / "run").report.read_text())
    assert report["verdict"]["reason"] in ("not learned", "brought nothing")
    assert not any("distilvec distill" in line for line in report["verdict"]["advice"])
    card = (tmp_path / "run" / "student" / "README.md").read_text()
    assert "distilvec distill INDEX" not in card


def test_a_training_that_brought_nothing_says_so_first(tiny_model, tmp_path, capsys):
    """On screen and page, with the rate; nothing is exported before it was tried again with a lower one."""
    (tmp_path / "texts.txt").write_text("\n".join(make_texts(200)))
    words = ["distill", str(tiny_model), str(tmp_path / "texts.txt"), "--student", str(tiny_model)]
    settings = ["train.learning_rate=0.03", "train.epochs=1", "train.device=cpu", "corpus.validation_rows=32"]
    assert run_command([*words, "--out", str(tmp_path / "run"), *settings]) == 0
    printed = capsys.readouterr().out
    report = json.loads(RunFolder(tmp_path / "run").report.read_text())
    assert report["record"]["training"]["best_step"] == 0
    assert report["verdict"]["reason"] == "brought nothing"
    first = report["verdict"]["advice"][0]
    assert first == report["record"]["training"]["shipped"] and first.partition(" (")[0] in printed
    page = (tmp_path / "run" / "report.html").read_text()
    assert first.partition(" (")[0] in page
    assert "distilvec export" not in printed and not any("export" in line for line in report["verdict"]["advice"])
    again = shlex.split(printed.partition("next: ")[2].splitlines()[0])
    assert again[:2] == ["distilvec", "run"] and run_command([*again[1:], "train.max_steps=1"]) == 0


def test_a_stage_that_was_dropped_is_named(tiny_recipe, tmp_path, no_pages):
    stages = [
        {"name": "too-high", "set": {"train.learning_rate": 0.05, "train.epochs": 4}},
        {"name": "second", "set": {"train.learning_rate": 1e-12, "train.epochs": 1}},
    ]
    whole = {"student__layers": None, "student__model": "teacher"}
    result = run(tiny_recipe(stages=stages, **whole), tmp_path / "run")
    training = result.record.training
    assert [stage.dropped for stage in training.stages] == [True, training.best_step == 0]
    assert result.verdict.advice[0] == training.shipped
    assert ("too-high" in training.shipped) != (result.verdict.reason == "brought nothing")


def test_a_classification_that_brought_nothing_says_so(tiny_recipe, tmp_path, no_pages):
    """The start is a logistic regression."""
    from labelled import write_task

    write_task(tmp_path / "task.jsonl", "classification")
    task = {"type": "classification", "path": str(tmp_path / "task.jsonl")}
    changes = {"student__head": {"start": "logistic"}, "train__learning_rate": 1e-12, "train__max_steps": 2}
    result = run(tiny_recipe(corpus=None, task=task, method={"name": "task"}, **changes), tmp_path / "run")
    assert result.record.training.best_step == 0 and result.verdict.reason == "brought nothing"
    assert result.verdict.advice[0] == result.record.training.shipped
