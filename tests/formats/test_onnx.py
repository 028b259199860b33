"""Exporting to ONNX: the same vectors as PyTorch at any batch size and length, for every architecture, or nothing at
all.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from architectures import ARCHITECTURES, TEXTS, WIDTH, sentence_transformer
from refusals import refused
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Dense, LayerNorm, Pooling, Transformer

from distilvec.config.student import StudentSection
from distilvec.core.errors import DistilvecError
from distilvec.formats import onnx as export
from distilvec.formats.onnx import OnnxEmbedder, export_copy, export_onnx, parity
from distilvec.models.experts import Experts
from distilvec.models.parts import max_length
from distilvec.students.attention import NAME
from distilvec.students.build import TeacherInfo, build_student
from distilvec.students.encoder import Encoder
from distilvec.teachers.fast_linear import pack_linears
from distilvec.teachers.model_embedder import ModelEmbedder

pytest.importorskip("onnxruntime")
FEWER = {"gemma3": {"num_hidden_layers": 2, "layer_types": ["sliding_attention", "full_attention"]}}
MODULES = {"qwen3": "lasttoken normalize", "mistral": "lasttoken dense:24 normalize", "modernbert": "cls normalize"}


def loaded(folder: Path, name: str = "bert", modules: str | None = None) -> SentenceTransformer:
    backbone = ARCHITECTURES[name](folder / "backbone", **FEWER.get(name, {}))
    made = sentence_transformer(folder / "model", backbone, modules or MODULES.get(name, "mean dense:24 normalize"))
    return SentenceTransformer(str(made), device="cpu")


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.slow) if name == "gemma3" else name for name in ARCHITECTURES]
)  # Gemma 3 needs torch's newer exporter, which takes seconds a layer
def test_same_vectors_as_encode(name: str, tmp_path: Path) -> None:
    model = loaded(tmp_path, name)
    path = export_onnx(model, tmp_path / "out" / "model.onnx")
    assert path == tmp_path / "out" / "model.onnx" and [file.name for file in path.parent.iterdir()] == ["model.onnx"]
    session = OnnxEmbedder(path)
    assert session.inputs == ("input_ids", "attention_mask") and session.output == "sentence_embedding"
    assert parity(model, session, TEXTS) < 1e-5
    together = " ".join(TEXTS)  # longer than any window or traced example
    for texts in ([TEXTS[2]], TEXTS[1:2], [together]) + (() if name == "mistral" else (TEXTS, [TEXTS[2], together])):
        length = min(max_length(model), 128)
        tokens = model[0].tokenizer(
            texts, padding=len(texts) > 1, truncation=True, max_length=length, return_tensors="pt"
        )
        with torch.no_grad():
            expected = model({key: tokens[key] for key in ("input_ids", "attention_mask")})[
                "sentence_embedding"
            ].numpy()
        found = session.encode_tokens(tokens)
        assert found.dtype == np.float32 and found.shape == (len(texts), model.get_embedding_dimension())
        assert np.abs(found - expected).max() < 1e-5


def test_a_factorized_table_is_part_of_the_file(tmp_path: Path) -> None:
    section = StudentSection(model=str(ARCHITECTURES["bert"](tmp_path / "bert")), embedding={"rank": 8})
    student = build_student(section, TeacherInfo(WIDTH, normalized=True, max_length=64), seed=0, texts=TEXTS)
    assert parity(student, OnnxEmbedder(export_onnx(student, tmp_path / "model.onnx")), TEXTS) < 1e-5


def test_the_teachers_modules_after_the_pooling_are_part_of_the_file(tmp_path: Path) -> None:
    backbone = ARCHITECTURES["bert"](tmp_path / "bert")
    later = [Dense(WIDTH, 48), LayerNorm(48), Dense(48, 96, activation_function=None), Dense(96, 24)]
    teacher = SentenceTransformer(modules=[Transformer(str(backbone)), Pooling(WIDTH, "mean"), *later], device="cpu")
    teacher.save_pretrained(str(tmp_path / "teacher"), create_model_card=False)
    info = TeacherInfo(24, normalized=False, max_length=64, model=str(tmp_path / "teacher"))
    student = build_student(StudentSection(model="teacher", layers=2), info, seed=0)
    assert [type(module).__name__ for module in student][2:] == ["Dense", "LayerNorm", "Dense"]
    assert parity(student, OnnxEmbedder(export_onnx(student, tmp_path / "model.onnx")), TEXTS) < 1e-5


@pytest.mark.parametrize("gate_width", [None, 7])
def test_a_mixture_of_experts_is_part_of_the_file(gate_width: int | None, tmp_path: Path) -> None:
    model = loaded(tmp_path)
    model.insert(2, Experts(WIDTH, 3, 24, gate_width).eval())
    session = OnnxEmbedder(export_onnx(model, tmp_path / "model.onnx"))
    assert session.inputs == ("input_ids", "attention_mask") and parity(model, session, TEXTS) < 1e-5
    model[2] = Experts(WIDTH, 3, 24, gate_width).eval()
    assert parity(model, session, TEXTS) > 1e-2, "other experts give other vectors"


@pytest.mark.parametrize("normalize", [True, False])
def test_a_model_that_cuts_its_vectors_is_exported_with_the_cut(normalize: bool, tmp_path: Path) -> None:
    whole = SentenceTransformer(str(sentence_transformer(tmp_path / "model", ARCHITECTURES["bert"](tmp_path / "b"))))
    modules = [module for module in whole if normalize or type(module).__name__ != "Normalize"]
    model = SentenceTransformer(modules=modules, device="cpu", truncate_dim=8)
    vectors = OnnxEmbedder(export_onnx(model, tmp_path / "model.onnx")).encode_tokens(export.graph_inputs(model, TEXTS))
    expected = model.encode(TEXTS)  # which cuts last: of length 1 no more
    assert np.linalg.norm(expected, axis=1).max() < 1 or not normalize
    np.testing.assert_allclose(vectors, expected, atol=1e-4)
    np.testing.assert_allclose(ModelEmbedder(model, "cut").embed(TEXTS), expected, atol=1e-4)


def test_a_model_in_use_by_an_encoder_exports_and_stays_as_it_is(tmp_path: Path) -> None:
    model = loaded(tmp_path)
    expected = model.encode(TEXTS)
    Encoder(model)
    pack_linears(model[0].auto_model)
    model.train()
    session = OnnxEmbedder(export_onnx(model, tmp_path / "model.onnx"))
    assert model.training and model[0].auto_model.config._attn_implementation == NAME
    assert np.abs(session.encode_tokens(model.preprocess(TEXTS)) - expected).max() < 1e-5


def test_plain_copy_shares_weights_and_restores_stock_attention(tmp_path: Path) -> None:
    model = loaded(tmp_path)
    Encoder(model)
    copied = export_copy(model)
    backbone = copied[0].auto_model
    assert backbone.config._attn_implementation == "sdpa" and model[0].auto_model.config._attn_implementation == NAME
    assert backbone.get_input_embeddings().weight is model[0].auto_model.get_input_embeddings().weight
    half = export_copy(model.bfloat16())
    assert {weight.dtype for weight in half.parameters()} == {torch.float32}
    assert {weight.dtype for weight in model.parameters()} == {torch.bfloat16}


def test_a_half_precision_model_is_exported_in_fp32(tmp_path: Path) -> None:
    model = loaded(tmp_path).bfloat16()
    session = OnnxEmbedder(export_onnx(model, tmp_path / "model.onnx"))
    assert parity(export_copy(model), session, TEXTS) < 1e-5


def test_vectors_that_differ_are_refused_and_leave_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = loaded(tmp_path)
    monkeypatch.setattr(export, "TOLERANCE", 0.0)
    before = sorted(tmp_path.iterdir())
    monkeypatch.setattr(
        export, "_write_graph", lambda model, path, dynamo, write=export._write_graph: write(model, path, False)
    )
    with refused("model", "differ from PyTorch's"):
        export_onnx(model, tmp_path / "model.onnx")
    assert sorted(tmp_path.iterdir()) == before


def test_parity_sees_changed_weights_and_nan(tmp_path: Path) -> None:
    model = loaded(tmp_path)
    session = OnnxEmbedder(export_onnx(model, tmp_path / "model.onnx"))
    with torch.no_grad():
        model[2].linear.weight[0, 0] += 0.5
    assert parity(model, session, TEXTS) > 1e-3
    with torch.no_grad():
        model[2].linear.weight[0] = float("nan")
    assert np.isnan(parity(model, session, TEXTS))


def test_threads_and_missing_inputs(tmp_path: Path) -> None:
    session = OnnxEmbedder(export_onnx(loaded(tmp_path), tmp_path / "model.onnx"), threads=1)
    options = session.session.get_session_options()
    assert options.intra_op_num_threads == 1 and options.inter_op_num_threads == 1
    with pytest.raises(ValueError, match="attention_mask"):
        session.encode_tokens({"input_ids": np.ones((1, 3), dtype=np.int64)})


def test_refusals(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = loaded(tmp_path)
    (tmp_path / "broken.onnx").write_bytes(b"not a model")
    with refused("broken.onnx"):
        OnnxEmbedder(tmp_path / "broken.onnx")
    (tmp_path / "file").write_text("")
    with refused("--out", "file"):
        export_onnx(model, tmp_path / "file" / "model.onnx")
    model.prompts, model[1].include_prompt = {"query": "q: ", "document": ""}, False
    with pytest.raises(DistilvecError, match="leaves its prompt's tokens out"):
        export_onnx(model, tmp_path / "prompts.onnx")
    monkeypatch.setattr(export, "LARGEST", 1000)
    model[1].include_prompt = True
    with pytest.raises(DistilvecError, match="one ONNX file holds at most"):
        export_onnx(model, tmp_path / "large.onnx")
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with refused("--to onnx", "[onnx]"):
        export_onnx(model, tmp_path / "model.onnx")


def test_onnxruntime_writes_no_id_and_sends_no_events(tmp_path: Path) -> None:
    """In a process of its own, since the choice is made once; CI variables would switch the telemetry off, too."""
    onnx = pytest.importorskip("onnx")
    value = onnx.helper.make_tensor_value_info
    nodes = [onnx.helper.make_node("Identity", ["x"], ["y"])]
    graph = onnx.helper.make_graph(nodes, "same", [value("x", 1, [1])], [value("y", 1, [1])])
    onnx.save(
        onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=8),
        tmp_path / "same.onnx",
    )
    line = "import sys, distilvec.formats, onnxruntime; onnxruntime.InferenceSession(sys.argv[1])"
    home = tmp_path / "home"
    home.mkdir()
    kept = {name: os.environ[name] for name in ("PATH", "PYTHONPATH") if name in os.environ}
    subprocess.run([sys.executable, "-c", line, tmp_path / "same.onnx"], env={**kept, "HOME": str(home)}, check=True)
    assert list(home.rglob("*")) == []
