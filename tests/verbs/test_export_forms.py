"""`distilvec.export`: every form is compared with PyTorch, refused out of tolerance, and recorded."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from architectures import bert, sentence_transformer
from refusals import refused
from samples import make_texts
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Dense, StaticEmbedding

from distilvec.core.errors import DistilvecError
from distilvec.core.extras import PACKAGES
from distilvec.core.task_head import TaskHead, TaskInfo
from distilvec.evaluation import parity
from distilvec.evaluation.parity import equal_labels
from distilvec.formats.onnx import OUTPUTS, OnnxEmbedder, check_onnx_place, graph_inputs
from distilvec.formats.openvino import OpenvinoEmbedder
from distilvec.formats.sentence_transformers import finish_student, save_student
from distilvec.report.exports import read_exports
from distilvec.report.json_values import from_json
from distilvec.report.model_card import model_card
from distilvec.report.record import RunRecord
from distilvec.students.task_head import TaskModel, save_head
from distilvec.teachers.open import open_embedder
from distilvec.verbs.export.command import export
from distilvec.verbs.export.export import FORMS, export_model

pytest.importorskip("onnxruntime")


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """A model of distilvec's and a suite: find a text of two halves by its first half."""
    texts, folder = make_texts(120), tmp_path / "model"
    made = sentence_transformer(
        tmp_path / "plain",
        bert(tmp_path / "bert", num_hidden_layers=2, intermediate_size=256, initializer_range=0.1),
        "mean",
    )
    monkeypatch.setattr(parity, "TIMING", parity.Timing(1, 5, 1.0))
    model = SentenceTransformer(str(made), device="cpu")
    record = {"format": 1, "name": "tiny"}
    save_student(model, folder, record, model_card(from_json(RunRecord, record)))
    task = tmp_path / "task"
    task.mkdir()
    rows = [(f"d{number}", text) for number, text in enumerate(texts)]
    (task / "corpus.jsonl").write_text("".join(json.dumps({"id": i, "title": "", "text": t}) + "\n" for i, t in rows))
    halves = [(i.replace("d", "q"), t[: len(t) // 2]) for i, t in rows]
    (task / "queries.jsonl").write_text("".join(json.dumps({"id": i, "text": t}) + "\n" for i, t in halves))
    judged = "".join(f"q{number}\td{number}\t1\n" for number in range(len(rows)))
    (task / "qrels.tsv").write_text("query-id\tcorpus-id\tscore\n" + judged)
    (tmp_path / "suite.yaml").write_text("- {name: halves, type: retrieval, path: task}\n")
    return SimpleNamespace(folder=folder, model=model, suite=tmp_path / "suite.yaml", texts=texts)


@pytest.mark.parametrize("to", [form for form in FORMS if not form.startswith("openvino")])
def test_a_form_matches_pytorch_and_is_recorded(to: str, world: SimpleNamespace) -> None:
    is_int8 = to == "onnx-int8"  # how near it comes is the processor's
    found = export_model(str(world.folder), to, suite=world.suite, force=is_int8)
    row = found.forms[to]
    assert found.path == world.folder / FORMS[to].file and row.task == "halves" and row.latency_ms > 0
    assert row.mean_cosine > (0.9 if is_int8 else 0.999) and (is_int8 or not row.out_of_tolerance)
    session = OnnxEmbedder(found.path)
    assert tuple(entry.name for entry in session.session.get_outputs()) == OUTPUTS
    tokens = graph_inputs(world.model, world.texts[:3])
    vectors, states = session.run(tokens, OUTPUTS)
    expected = world.model.encode(world.texts[:3])
    assert (
        np.mean([a @ b / np.linalg.norm(a) / np.linalg.norm(b) for a, b in zip(vectors, expected, strict=True)]) > 0.9
    )
    assert states.shape == (3, tokens["input_ids"].shape[1], 32)
    assert [file.name for file in found.path.parent.iterdir()] == [found.path.name], "no scratch files stay"
    assert read_exports(world.folder) == {to: row}
    card = (world.folder / "README.md").read_text()
    assert "## Exported files" in card and FORMS[to].file in card


def test_int8_files_hold_weights_and_tables_in_a_byte_each(world: SimpleNamespace) -> None:
    import onnx

    path = export_model(str(world.folder), "onnx-int8", suite=world.suite, force=True).path
    graph = onnx.load(str(path)).graph
    tensors = [tensor for tensor in graph.initializer if tensor.data_type == onnx.TensorProto.INT8]
    stored = sum(int(np.prod(tensor.dims)) for tensor in tensors if len(tensor.dims) == 2)  # others are zero points
    weights = sum(value.numel() for value in world.model.parameters() if value.ndim == 2)
    pooler = sum(
        value.numel() for name, value in world.model.named_parameters() if "pooler" in name and value.ndim == 2
    )
    assert stored == weights - pooler
    products = [node for node in graph.node if node.op_type == "MatMulInteger"]
    assert len(products) == 2 * 5, "query, key, value, output and the first feed-forward layer"


def test_a_damaged_student_is_refused_with_the_numbers_unless_forced(world: SimpleNamespace) -> None:
    """A table of numbers that half a float rounds to a few; a layer norm makes them large again."""
    embeddings = world.model[0].auto_model.embeddings
    for table in (embeddings.word_embeddings, embeddings.position_embeddings, embeddings.token_type_embeddings):
        with torch.no_grad():
            table.weight *= 1e-6
    record = {"format": 1, "name": "damaged"}
    save_student(world.model, world.folder, record, model_card(from_json(RunRecord, record)))
    assert export_model(str(world.folder), suite=world.suite).forms["onnx"].mean_cosine > 0.9999
    with refused("--to", "mean cosine 0."):
        export_model(str(world.folder), "onnx-fp16", suite=world.suite)
    assert [file.name for file in (world.folder / "onnx").iterdir()] == ["model.onnx"]
    found = export_model(str(world.folder), "onnx-fp16", suite=world.suite, force=True)
    assert found.path.is_file() and found.forms["onnx-fp16"].out_of_tolerance
    assert list(read_exports(world.folder)) == ["onnx", "onnx-fp16"]


def test_a_suite_of_few_documents_is_searched_among_more(world: SimpleNamespace, tmp_path: Path) -> None:
    """Among a dozen documents the ten nearest are nearly all, whatever the vectors."""
    for name, lines in (("corpus.jsonl", 12), ("queries.jsonl", 12), ("qrels.tsv", 13)):
        file = tmp_path / "task" / name
        file.write_text("".join(file.read_text().splitlines(keepends=True)[:lines]))
    row = export_model(str(world.folder), suite=world.suite).forms["onnx"]
    assert row.queries == 12 and row.documents >= 100 and row.task.startswith("halves and ")
    assert row.overlap == 1 and not row.out_of_tolerance


def test_openvino_gives_the_same_vectors_under_the_names_that_readers_expect(world: SimpleNamespace) -> None:
    pytest.importorskip("openvino")
    found = export_model(str(world.folder), "openvino", suite=world.suite)
    assert sorted(file.name for file in (world.folder / "openvino").iterdir()) == [
        "openvino_model.bin",
        "openvino_model.xml",
    ]
    assert found.forms["openvino"].min_cosine > 0.99999 and found.forms["openvino"].overlap > 0.99


def test_openvino_int8_has_a_text_alone_and_in_a_batch_alike_and_a_byte_for_each_weight(world: SimpleNamespace) -> None:
    pytest.importorskip("nncf")
    found = export_model(str(world.folder), "openvino-int8", suite=world.suite)
    row = found.forms["openvino-int8"]
    assert found.path.name == "openvino_model_qint8_quantized.xml"  # as sentence-transformers looks for it
    assert row.mean_cosine > 0.99 and not row.out_of_tolerance
    weights = sum(value.numel() for name, value in world.model.named_parameters() if "pooler" not in name)
    assert found.path.with_suffix(".bin").stat().st_size < 1.5 * weights
    embedder = OpenvinoEmbedder(found.path)
    [together] = embedder.run(graph_inputs(world.model, world.texts[:8]))
    for text, vector in zip(world.texts[:8], together, strict=True):
        [[alone]] = embedder.run(graph_inputs(world.model, [text]))
        assert alone @ vector / np.linalg.norm(alone) / np.linalg.norm(vector) > 0.9995


@pytest.mark.parametrize("to", ["onnx", "onnx-int8", "openvino", "openvino-int8"])
def test_a_static_model_has_every_form(world: SimpleNamespace, to: str) -> None:
    """A mean of table rows, before a linear layer; a text without a token has the vector of the layer's bias."""
    for package in PACKAGES[FORMS[to].extra]:
        pytest.importorskip(package)
    tokenizer = world.model[0].tokenizer.backend_tokenizer
    tokenizer.post_processor = None
    rows = np.random.default_rng(0).normal(size=(tokenizer.get_vocab_size(), 16)).astype(np.float32)
    modules = [StaticEmbedding(tokenizer, embedding_weights=rows), Dense(16, 24, activation_function=torch.nn.Tanh())]
    model = SentenceTransformer(modules=modules, prompts={"query": "find: "}, device="cpu")
    record = {"format": 1, "name": "static"}
    save_student(model, world.folder, record, model_card(from_json(RunRecord, record)))
    found = export_model(str(world.folder), to, suite=world.suite)
    assert found.forms[to].mean_cosine > 0.999 and not found.forms[to].out_of_tolerance
    embedder, texts = open_embedder(str(found.path)), [*world.texts[:5], world.texts[0] * 300, "☃", ""]
    difference = np.abs(embedder.embed(texts, "query") - model.encode_query(texts)).max()
    assert difference < (0.05 if "int8" in to else 1e-5)


def test_exports_send_no_events(world: SimpleNamespace, tmp_path: Path) -> None:
    """OpenVINO and NNCF look for the address of Google Analytics when they are imported, unless a file says no."""
    program = (
        "import socket, sys\n"
        "def look_up(*arguments, **_):\n"
        "    print('looked for', arguments, file=sys.stderr)\n"
        "    raise OSError\n"
        "socket.getaddrinfo = look_up\n"
        "import distilvec\n"
        f"distilvec.export({str(world.folder)!r}, 'openvino-int8', suite={str(world.suite)!r}, force=True)\n"
    )
    outside_ci = {name: value for name, value in os.environ.items() if name not in ("CI", "TF_BUILD", "JENKINS_URL")}
    home = tmp_path / "home"
    home.mkdir()  # where the id would be kept; without a home nothing is sent
    environment = {**outside_ci, "HOME": str(home), "DISTILVEC_CACHE": str(tmp_path / "cache")}
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True)
    assert done.returncode == 0 and "looked for" not in done.stderr, done.stderr
    assert not (home / "intel").exists()


@pytest.mark.parametrize("to", list(FORMS))
def test_a_form_is_written_again_over_its_own_file_and_over_no_other(world: SimpleNamespace, to: str) -> None:
    for package in PACKAGES[FORMS[to].extra]:
        pytest.importorskip(package)
    place = world.folder / FORMS[to].file
    for _ in range(2):
        assert export_model(str(world.folder), to, suite=world.suite, force=True).path == place
    content = place.read_bytes()
    for other in (b"<html><net>a page</net></html>", b"notes of mine"):
        place.write_bytes(other)
        with refused("--out", "exists and is not"):
            export_model(str(world.folder), to, suite=world.suite, force=True)
        assert place.read_bytes() == other
    place.write_bytes(content)


def test_the_head_of_a_classifier_is_an_output(world: SimpleNamespace) -> None:
    torch.manual_seed(0)
    save_head(world.folder, TaskHead(32, TaskInfo("classification", 3)), ["x", "y", "z"])
    exported = export_model(str(world.folder), "onnx", suite=world.suite)
    assert exported.forms["onnx"].labels == 1.0
    session = OnnxEmbedder(exported.path)
    logits = session.run(graph_inputs(world.model, world.texts), ["logits"])[0]
    found_labels = [["x", "y", "z"][row] for row in logits.argmax(axis=1)]
    assert found_labels == TaskModel(world.folder).predict(world.texts)


def test_the_head_of_several_classes_is_an_output(world: SimpleNamespace) -> None:
    """Each text has a set of classes, which is compared whole."""
    save_head(world.folder, TaskHead(32, TaskInfo("multilabel", 3)), ["x", "y", "z"])
    found = export_model(str(world.folder), "onnx", suite=world.suite)
    assert found.forms["onnx"].labels == 1.0
    assert equal_labels(np.array([[1.0, -1], [2, 3]]), np.array([[0.5, -2], [2, -3]]), several=True) == 0.5
    assert equal_labels(np.array([[1.0, -1], [2, 3]]), np.array([[0.5, -2], [-9, -3]]), several=False) == 1.0


def test_a_head_of_pairs_is_left_out(world: SimpleNamespace) -> None:
    save_head(world.folder, TaskHead(32, TaskInfo("pair", 2)), ["no", "yes"])
    found = export_model(str(world.folder), suite=world.suite)
    assert found.forms["onnx"].labels is None
    assert len(OnnxEmbedder(found.path).session.get_outputs()) == 2


def test_refusals_before_the_model_is_loaded(world: SimpleNamespace, tmp_path: Path) -> None:
    (world.folder / "model.safetensors").write_bytes(b"damaged: it must not be read")
    with refused("--to", "did you mean"):
        export_model(str(world.folder), "onnx-int9")
    (tmp_path / "empty.yaml").write_text("[]")
    with pytest.raises(DistilvecError, match="expected a list of tasks"):
        export_model(str(world.folder), "onnx-int8", suite=tmp_path / "empty.yaml")


def test_a_card_changed_by_hand_and_exports_of_other_weights_are_kept_out(world: SimpleNamespace) -> None:
    card = world.folder / "README.md"
    card.write_text(card.read_text() + "my own notes\n")
    export_model(str(world.folder), suite=world.suite)
    assert "my own notes" in card.read_text() and "Exported files" not in card.read_text()
    with torch.no_grad():
        world.model[0].auto_model.embeddings.word_embeddings.weight[5] += 1
    record = {"format": 1, "name": "other"}
    save_student(world.model, world.folder, record, model_card(from_json(RunRecord, record)))
    assert read_exports(world.folder) == {}


def test_a_card_with_exports_is_the_students_own_in_the_next_save(world: SimpleNamespace) -> None:
    export_model(str(world.folder), suite=world.suite)
    record = from_json(RunRecord, {"format": 1, "name": "evaluated again"})
    card = model_card(record, exports=read_exports(world.folder))
    finish_student(world.folder, world.model, record.to_json(), card)
    assert (world.folder / "README.md").read_text() == card and "## Exported files" in card
    assert not list(world.folder.glob("README.md.*")), "nobody has changed the card by hand"
    assert list(read_exports(world.folder)) == ["onnx"]


def test_exports_stay_known_where_a_card_changed_by_hand_is_kept(world: SimpleNamespace) -> None:
    export_model(str(world.folder), suite=world.suite)
    (world.folder / "README.md").write_text("My own card.\n")
    record = from_json(RunRecord, {"format": 1, "name": "evaluated again"})
    finish_student(world.folder, world.model, record.to_json(), model_card(record))
    assert (world.folder / "README.md.yours").read_text() == "My own card.\n"
    assert list(read_exports(world.folder)) == ["onnx"]


def test_what_is_at_the_place_stays_unless_it_is_onnx(tmp_path: Path) -> None:
    (tmp_path / "none").write_bytes(b"")
    (tmp_path / "ours.onnx").write_bytes(b"\x08\x08\x12\x07pytorch")
    for name in ("none", "ours.onnx", "absent.onnx", "new/model.onnx"):
        check_onnx_place(tmp_path / name)
    (tmp_path / "notes.onnx").write_text("mine")
    with pytest.raises(DistilvecError, match="is not an ONNX file"):
        check_onnx_place(tmp_path / "notes.onnx")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["none", "notes.onnx", "ours.onnx"]


def test_an_id_needs_a_place() -> None:
    with pytest.raises(DistilvecError, match="--out"):
        export("org/model")


@pytest.mark.parametrize(("to", "name"), [("openvino", "model.bin"), ("openvino", "model"), ("onnx", "model.xml")])
def test_a_name_that_says_another_format_is_refused(to: str, name: str, world: SimpleNamespace, tmp_path) -> None:
    pytest.importorskip("openvino")
    with refused("--out", name):
        export_model(str(world.folder), to, out=tmp_path / "new" / name, suite=world.suite)
    assert not (tmp_path / "new").exists()
