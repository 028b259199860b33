"""What is saved is read back: a folder that gives a stranger other vectors does not count, and the old one stays."""

from __future__ import annotations

import json

import numpy as np
import pytest
from architectures import TEXTS, bert, gpt2, sentence_transformer
from refusals import refused
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Normalize, StaticEmbedding
from transformers import BertModel
from transformers.core_model_loading import WeightRenaming

from distilvec.core.run_folder import RunFolder
from distilvec.formats.sentence_transformers import save_router, save_student
from distilvec.pipeline.run import run


@pytest.fixture
def model(tmp_path):
    return SentenceTransformer(str(sentence_transformer(tmp_path / "model", bert(tmp_path / "backbone"))), device="cpu")


def misname(model):
    """Let transformers save the weights under other names, as after an adapter of transformers 5.24."""
    backbone = model[0].auto_model
    backbone._weight_conversions = [WeightRenaming("base_model.model.encoder", "encoder")]


def test_weights_under_other_names_do_not_replace_the_earlier_model(model, tmp_path):
    folder = tmp_path / "out"
    save_student(model, folder, {"n": 1}, "")
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    misname(model)
    with refused("", "cosine"):
        save_student(model, folder, {"n": 2}, "")
    assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == before
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []


def test_a_save_leaves_every_part_in_its_mode(model, tmp_path):
    """A model just loaded: the whole is in training mode, and its backbone is not."""
    model.train()
    model[0].auto_model.eval()
    save_student(model, tmp_path / "out", {}, "")
    assert model.training and not model[0].auto_model.encoder.training


def test_settings_of_the_folder_count_too(model, tmp_path):
    """A pooling of another kind, other prompts, vectors of another length, and a folder that cannot be opened."""

    def change(file, **settings):
        def write(folder):
            content = json.loads((folder / file).read_text()) if file.endswith(".json") else None
            (folder / file).write_text(json.dumps({**(content or {}), **settings}))

        return write

    def drop_normalize(folder):
        modules = json.loads((folder / "modules.json").read_text())
        (folder / "modules.json").write_text(json.dumps(modules[:-1]))

    cases = {
        "pooling": change("1_Pooling/config.json", pooling_mode_mean_tokens=False, pooling_mode_cls_token=True),
        "prompts": change("config_sentence_transformers.json", prompts={"query": "find it: ", "document": ""}),
        "length": drop_normalize,
        "tokens": change("sentence_bert_config.json", max_seq_length=3),
        "damage": lambda folder: (folder / "tokenizer.json").write_text("{"),
    }
    for name, damage in cases.items():
        with refused("", "sentence-transformers"):
            save_student(model, tmp_path / name, {}, "", extra_files=damage)
        assert not (tmp_path / name).exists()
        save_student(model, tmp_path / name, {}, "", extra_files=damage, texts=None)  # a training that goes on


def test_vectors_of_length_zero_and_numbers_that_are_none_are_compared(tmp_path):
    """An empty text has no tokens in a static model, and in one whose tokenizer adds none."""
    tokenizer = SentenceTransformer(str(sentence_transformer(tmp_path / "b", bert(tmp_path / "bert")))).tokenizer
    static = StaticEmbedding(tokenizer.backend_tokenizer, embedding_dim=16)
    save_student(SentenceTransformer(modules=[static, Normalize()], device="cpu"), tmp_path / "static", {}, "")
    causal = sentence_transformer(tmp_path / "causal", gpt2(tmp_path / "gpt2"), "lasttoken normalize")
    save_student(SentenceTransformer(str(causal), device="cpu"), tmp_path / "out", {}, "", texts=TEXTS)
    assert (tmp_path / "out" / "modules.json").exists()


def test_both_towers_of_a_router_are_read_back(model, tmp_path):
    other = SentenceTransformer(str(sentence_transformer(tmp_path / "o", bert(tmp_path / "ob", seed=1))), device="cpu")
    save_router(model, other, tmp_path / "router", {}, "")
    routed = SentenceTransformer(str(tmp_path / "router"), device="cpu")
    np.testing.assert_allclose(routed.encode_query(TEXTS), model.encode(TEXTS), atol=1e-5)
    misname(other)
    with refused("", "cosine"):
        save_router(model, other, tmp_path / "again", {}, "")


@pytest.mark.parametrize("first", [True, False])
def test_a_run_with_a_student_that_a_stranger_reads_otherwise_does_not_finish(
    first, tiny_recipe, tmp_path, monkeypatch
):
    """As where a new version of transformers saves weights under other names: seen before the training, and after."""
    save = BertModel.save_pretrained

    def save_misnamed(backbone, folder):
        if first or files.student.exists():
            backbone._weight_conversions = [WeightRenaming("base_model.model.encoder", "encoder")]
        save(backbone, folder)

    recipe = tiny_recipe(train__max_steps=2, method__name="offline_cosine", train__learning_rate=1e-9)
    files = RunFolder(tmp_path / "run")
    with monkeypatch.context() as patch:
        patch.setattr(BertModel, "save_pretrained", save_misnamed)
        with refused("student", "cosine"):
            run(recipe, files.path)
    assert not files.record.exists() and not files.training_result.exists()
    assert files.student.exists() == (not first)
    result = run(recipe, files.path, restart=not first)
    strange = SentenceTransformer(str(files.student), device="cpu")
    np.testing.assert_allclose(result.student.encode(TEXTS), strange.encode(TEXTS), atol=1e-6)
