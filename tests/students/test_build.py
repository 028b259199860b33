"""The student as built: precision, head, layers, length, prompts, seeds, and a clear word for what does not fit."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from architectures import (
    ARCHITECTURES,
    TEXTS,
    bert,
    gpt2,
    gpt_neo,
    longformer,
    modernbert,
    opt,
    sentence_transformer,
    wordpiece,
    xlm_roberta,
    xlnet,
)
from refusals import refused
from samples import make_texts
from sentence_transformers import SentenceTransformer
from sentence_transformers.models import Dropout, Normalize, Pooling, Transformer
from transformers import AutoModel, AutoTokenizer

import distilvec
from distilvec.config.student import StudentSection
from distilvec.core.errors import DistilvecError
from distilvec.models.parts import position_limit
from distilvec.students.build import TeacherInfo, build_student
from distilvec.students.layers import layer_list

TEACHER = TeacherInfo(dim=48, normalized=True, max_length=64, prompts={"query": "query: ", "document": ""})

OTHERS = {make.__name__: make for make in (gpt2, gpt_neo, longformer, opt, xlnet)}


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("models")
    made = {name: make(root / name) for name, make in {**ARCHITECTURES, **OTHERS}.items()}
    made["teacher"] = sentence_transformer(root / "teacher", made["bert"], "cls dense:48 normalize", seed=3)
    return made


def kinds(student: SentenceTransformer) -> list[str]:
    return [type(module).__name__ for module in student]


@pytest.mark.parametrize("name", [*ARCHITECTURES, *OTHERS])
def test_every_architecture_becomes_a_student(name: str, folders: dict[str, Path]) -> None:
    student = build_student(StudentSection(model=str(folders[name]), layers=2), TEACHER, seed=0)
    assert kinds(student) == ["Transformer", "Pooling", "Dense", "Normalize"]
    assert student[0].auto_model.config.num_hidden_layers == 2
    vectors = student.encode(TEXTS)
    assert vectors.shape == (len(TEXTS), 48) and np.allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-6)
    alone = np.concatenate([student.encode([text]) for text in TEXTS])
    assert np.abs(alone - vectors).max() < 1e-5, "padding changes the vectors"


@pytest.mark.parametrize(
    ("width", "normalized", "dense", "expected"),
    [
        (32, True, "auto", ["Transformer", "Pooling", "Normalize"]),
        (32, False, "auto", ["Transformer", "Pooling"]),
        (48, False, "auto", ["Transformer", "Pooling", "Dense"]),
        (32, True, "always", ["Transformer", "Pooling", "Dense", "Normalize"]),
    ],
)
def test_head(width: int, normalized: bool, dense: str, expected: list[str], folders: dict[str, Path]) -> None:
    teacher = replace(TEACHER, dim=width, normalized=normalized)
    student = build_student(StudentSection(model=str(folders["bert"]), dense=dense, pooling="cls"), teacher, seed=0)
    assert kinds(student) == expected and student[1].pooling_mode == "cls"
    if "Dense" in expected:
        assert student[2].linear.bias is None and isinstance(student[2].activation_function, torch.nn.Identity)
    assert student.encode(TEXTS).shape[1] == width


def test_fp32_whatever_the_checkpoint_holds(folders: dict[str, Path], tmp_path: Path) -> None:
    AutoModel.from_pretrained(folders["xlm_roberta"], dtype=torch.bfloat16).save_pretrained(tmp_path)
    AutoTokenizer.from_pretrained(folders["xlm_roberta"]).save_pretrained(tmp_path)
    assert AutoModel.from_pretrained(tmp_path).dtype == torch.bfloat16
    student = build_student(StudentSection(model=str(tmp_path)), TEACHER, seed=0)
    assert {value.dtype for value in student.parameters()} == {torch.float32}


def test_seed(folders: dict[str, Path]) -> None:
    def weight(seed: int) -> torch.Tensor:
        return build_student(StudentSection(model=str(folders["bert"]), layers=[0, 3], dropout=0.1), TEACHER, seed)[
            2
        ].linear.weight

    torch.manual_seed(5)
    state = torch.get_rng_state()
    first, again, other = weight(1), weight(1), weight(2)
    assert torch.equal(first, again) and not torch.equal(first, other)
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_the_last_layers_start_afresh(name: str, folders: dict[str, Path]) -> None:
    def layers(seed: int, fresh: int | None) -> list[torch.nn.Module]:
        section = StudentSection(model=str(folders[name]), layers=3, reinitialize=fresh)
        return list(layer_list(build_student(section, TEACHER, seed)[0].auto_model)[1])

    def matrices(layer: torch.nn.Module) -> torch.Tensor:
        return torch.cat([value.flatten() for value in layer.parameters() if value.ndim == 2])

    kept, one, again, other = layers(0, None), layers(1, 2), layers(1, 2), layers(2, 2)
    assert torch.equal(matrices(kept[0]), matrices(one[0])) and torch.equal(matrices(kept[0]), matrices(other[0]))
    for number in (1, 2):
        fresh = matrices(one[number])
        assert torch.equal(fresh, matrices(again[number])) and not torch.equal(fresh, matrices(other[number]))
        assert torch.corrcoef(torch.stack([fresh, matrices(kept[number])]))[0, 1].abs() < 0.05
        assert 0.2 < fresh.std() < 0.4, "drawn by the backbone's own initialiser, whose standard deviation is 0.3"


def test_no_more_fresh_layers_than_there_are(folders: dict[str, Path]) -> None:
    with pytest.raises(DistilvecError, match=r"\[student.reinitialize\] found 3; .* 2"):
        build_student(StudentSection(model=str(folders["bert"]), layers=2, reinitialize=3), TEACHER, seed=0)
    whole = build_student(StudentSection(model=str(folders["bert"]), reinitialize=4), TEACHER, seed=0)
    assert np.isfinite(whole.encode(TEXTS)).all()


@pytest.mark.parametrize("name", ["bert", "distilbert", "modernbert", "qwen3", "gemma3"])
def test_dropout_reaches_every_module(name: str, folders: dict[str, Path]) -> None:
    for rate in (0.0, 0.25):
        student = build_student(StudentSection(model=str(folders[name]), dropout=rate), TEACHER, seed=0)
        backbone = student[0].auto_model
        rates = {module.p for module in backbone.modules() if isinstance(module, torch.nn.Dropout)}
        floats = {
            value for module in backbone.modules() for key, value in vars(module).items() if key == "attention_dropout"
        }
        assert rates | floats == {rate} or (rate == 0.0 and rates | floats == set())
        tokens = student.tokenizer(TEXTS, padding=True, return_tensors="pt", return_token_type_ids=False)
        backbone.train()
        with torch.no_grad():
            same = torch.equal(backbone(**tokens).last_hidden_state, backbone(**tokens).last_hidden_state)
        assert same == (rate == 0.0)
    plain = build_student(StudentSection(model=str(folders[name])), TEACHER, seed=0)
    assert np.array_equal(plain.encode(TEXTS), student.encode(TEXTS)), "the dropout rate must not touch the weights"


def test_prompts_tokenizer_and_similarity(folders: dict[str, Path]) -> None:
    student = build_student(StudentSection(model=str(folders["mistral"])), TEACHER, seed=0)
    assert student.prompts == {"query": "query: ", "document": ""} and student.default_prompt_name is None
    assert student.similarity_fn_name == "cosine"
    dot, section = replace(TEACHER, similarity="dot"), StudentSection(model=str(folders["bert"]))
    assert build_student(section, dot, seed=0).similarity_fn_name == "dot"
    assert build_student(section, dot, seed=0, compatible=False).similarity_fn_name == "cosine"  # a space of its own
    assert np.array_equal(student.encode_query(TEXTS), student.encode([f"query: {text}" for text in TEXTS]))
    assert student.tokenizer.pad_token == "</s>" and student.tokenizer.padding_side == "right"
    own = AutoTokenizer.from_pretrained(folders["mistral"])
    assert student.tokenizer(TEXTS)["input_ids"] == own(TEXTS)["input_ids"]
    qwen = build_student(StudentSection(model=str(folders["qwen3"])), TEACHER, seed=0)
    assert qwen.tokenizer.padding_side == "right", "a causal tokenizer that pads on the left must not"


@pytest.mark.parametrize(
    ("name", "asked", "teacher_length", "expected"),
    [
        ("bert", None, 64, 64),
        ("bert", None, 512, 128),
        ("bert", 128, 64, 128),
        ("xlm_roberta", None, 512, 128),
        ("xlm_roberta", 128, 512, 128),
        ("mpnet", None, 512, 128),
        ("qwen3", None, 512, 128),
        ("qwen3", 200, 512, 200),
        ("gpt2", 128, 512, 128),
        ("gpt_neo", None, 512, 128),
        ("opt", 128, 512, 128),
        ("xlnet", 200, 64, 200),
    ],
)
def test_length(name: str, asked: int | None, teacher_length: int, expected: int, folders: dict[str, Path]) -> None:
    section = StudentSection(model=str(folders[name]), max_length=asked)
    student = build_student(section, replace(TEACHER, max_length=teacher_length), seed=0)
    assert student.max_seq_length == expected
    long = student.encode([" ".join(TEXTS * 20)])
    assert np.isfinite(long).all()
    assert student.preprocess([" ".join(TEXTS * 20)])["input_ids"].shape[1] == expected


@pytest.mark.parametrize(
    ("name", "limit"),
    [
        ("bert", 128),
        ("xlm_roberta", 128),
        ("roberta", 128),
        ("mpnet", 128),
        ("qwen3", None),
        ("gpt2", 128),
        ("gpt_neo", 128),
        ("opt", 128),
        ("longformer", 128),
        ("xlnet", None),
    ],
)
def test_position_limit(name: str, limit: int | None, folders: dict[str, Path]) -> None:
    assert position_limit(AutoModel.from_pretrained(folders[name])) == limit


@pytest.mark.parametrize("name", ["bert", "xlm_roberta", "gpt2", "gpt_neo", "opt", "longformer"])
def test_too_long_is_refused(name: str, folders: dict[str, Path]) -> None:
    with pytest.raises(DistilvecError, match=r"\[student.max_length\] found 129; .* 128"):
        build_student(StudentSection(model=str(folders[name]), max_length=129), TEACHER, seed=0)


FRESH = {
    "model_type": "bert",
    "hidden_size": 24,
    "num_hidden_layers": 3,
    "num_attention_heads": 2,
    "intermediate_size": 48,
}


def test_fresh_student(folders: dict[str, Path]) -> None:
    section = StudentSection(
        config={**FRESH, "max_position_embeddings": 40}, tokenizer=str(folders["bert"]), layers=[0, 2]
    )
    student, again, other = (build_student(section, TEACHER, seed) for seed in (0, 0, 1))
    backbone = student[0].auto_model
    assert backbone.config.num_hidden_layers == 2 and student.max_seq_length == 40
    assert (
        backbone.config.vocab_size == len(student.tokenizer)
        and backbone.config.pad_token_id == student.tokenizer.pad_token_id
    )
    assert np.array_equal(student.encode(TEXTS), again.encode(TEXTS))
    assert not np.allclose(student.encode(TEXTS), other.encode(TEXTS), atol=1e-3)
    assert {value.dtype for value in student.parameters()} == {torch.float32}


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"hidden_sise": 24}, r"\[student.config.hidden_sise\].*did you mean 'hidden_size'"),
        ({"model_type": "bird"}, r"\[student.config.model_type\] found 'bird'"),
        ({"vocab_size": 10}, r"\[student.tokenizer\].*tokens.*10 rows"),
    ],
)
def test_bad_configs_are_named(changes: dict, words: str, folders: dict[str, Path]) -> None:
    with pytest.raises(DistilvecError, match=words):
        build_student(StudentSection(config={**FRESH, **changes}, tokenizer=str(folders["bert"])), TEACHER, seed=0)


def test_fresh_modernbert_takes_settings_as_the_hub_has_them(folders: dict[str, Path]) -> None:
    config = {
        **FRESH,
        "model_type": "modernbert",
        "num_hidden_layers": 4,
        "local_attention": 8,
        "global_attn_every_n_layers": 2,
    }
    student = build_student(StudentSection(config=config, tokenizer=str(folders["modernbert"])), TEACHER, seed=0)
    settings = student[0].auto_model.config
    assert settings.layer_types == ["full_attention", "sliding_attention"] * 2
    assert settings.cls_token_id == student.tokenizer.cls_token_id and np.isfinite(student.encode(TEXTS)).all()


def test_teacher_without_a_model() -> None:
    with pytest.raises(DistilvecError, match=r"\[student.model\] is 'teacher'"):
        build_student(StudentSection(model="teacher"), TEACHER, seed=0)


def test_missing_and_damaged_models_are_named(tmp_path: Path, folders: dict[str, Path]) -> None:
    with pytest.raises(DistilvecError, match=r"\[student.model\] cannot load "):
        build_student(StudentSection(model=str(tmp_path)), TEACHER, seed=0)
    damaged = bert(tmp_path / "damaged")
    (damaged / "model.safetensors").write_bytes(b"not weights")
    with refused("student.model", str(damaged)):
        build_student(StudentSection(model=str(damaged)), TEACHER, seed=0)


def test_tokenizer_of_another_model(tmp_path: Path) -> None:
    folder = xlm_roberta(tmp_path / "small", vocab_size=200)
    AutoTokenizer.from_pretrained(modernbert(tmp_path / "other")).save_pretrained(folder)
    with pytest.raises(DistilvecError, match=r"\[student.model\] the tokenizer of"):
        build_student(StudentSection(model=str(folder)), TEACHER, seed=0)
    assert len(wordpiece()) <= 200


@pytest.mark.parametrize(("dense", "expected"), [("auto", 32), ("always", 48)])
def test_a_student_in_a_space_of_its_own_keeps_its_width(dense: str, expected: int, folders: dict[str, Path]) -> None:
    section = StudentSection(model=str(folders["bert"]), dense=dense)
    assert build_student(section, TEACHER, seed=0, compatible=False).get_embedding_dimension() == expected
    assert build_student(section, TEACHER, seed=0).get_embedding_dimension() == 48


def test_a_dropout_behind_the_pooling_is_no_module_to_keep(tmp_path):
    modules = [Transformer(str(bert(tmp_path / "bert"))), Pooling(32, "mean"), Dropout(0.1), Normalize()]
    SentenceTransformer(modules=modules, device="cpu").save_pretrained(str(tmp_path / "t"), create_model_card=False)
    (tmp_path / "texts.txt").write_text("\n".join(make_texts(60)))
    plan = distilvec.plan(tmp_path / "t", tmp_path / "texts.txt", layers=2, out=tmp_path / "run")
    assert "Dense" not in str(plan)
