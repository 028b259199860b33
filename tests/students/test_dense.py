"""Students that keep their model's pooling and linear layers (`dense: keep`)."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from architectures import TEXTS, bert, gemma3, sentence_transformer
from refusals import refused
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Dense, LayerNorm, Normalize, Pooling, Transformer
from torch.nn.functional import normalize

from distilvec.config.student import StudentSection
from distilvec.core.batch import TextBatch
from distilvec.core.errors import DistilvecError
from distilvec.core.outputs import OutputSpec
from distilvec.formats.sentence_transformers import save_student
from distilvec.students.build import TeacherInfo, build_student
from distilvec.students.encoder import Encoder
from distilvec.teachers.model_embedder import ModelEmbedder

MODULES = "mean dense:48 dense:32 normalize"


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """Teachers with two linear layers, as EmbeddingGemma has them, and their plain backbones."""
    root = tmp_path_factory.mktemp("models")
    plain = {"bert": bert(root / "bert"), "gemma3": gemma3(root / "gemma3")}
    made = {
        f"{name}-dense": sentence_transformer(root / f"{name}-dense", folder, MODULES, seed=3)
        for name, folder in plain.items()
    }
    return plain | made | {"cls": sentence_transformer(root / "cls", plain["bert"], "cls dense:32", seed=3)}


def info(folder, **changes):
    return replace(TeacherInfo(32, True, 64, model=str(folder)), **changes)


def kinds(student):
    return [type(module).__name__ for module in student]


@pytest.mark.parametrize("name", ["bert-dense", "gemma3-dense"])
def test_untrained_student_is_its_teacher_bit_for_bit(folders, name, tmp_path):
    teacher = SentenceTransformer(str(folders[name]), device="cpu")
    student = build_student(StudentSection(model="teacher", dense="keep"), info(folders[name]), seed=5)
    assert kinds(student) == kinds(teacher) == ["Transformer", "Pooling", "Dense", "Dense", "Normalize"]
    vectors = teacher.encode(TEXTS)
    assert np.array_equal(student.encode(TEXTS), vectors)
    assert np.array_equal(
        ModelEmbedder(student, "student").embed(TEXTS), ModelEmbedder(teacher, "teacher").embed(TEXTS)
    )
    save_student(student, tmp_path / "saved", {"method": "none"}, "# card\n")
    loaded = SentenceTransformer(str(tmp_path / "saved"), device="cpu")
    np.testing.assert_allclose(loaded.encode(TEXTS), vectors, atol=1e-6)


def test_fewer_layers_keep_the_linear_ones(folders):
    teacher = SentenceTransformer(str(folders["gemma3-dense"]), device="cpu")
    section = StudentSection(model="teacher", layers=2, dense="keep", dropout=0.0)
    student = build_student(section, info(folders["gemma3-dense"]), seed=0)
    assert student[0].auto_model.config.num_hidden_layers == 2
    assert all(torch.equal(student[number].linear.weight, teacher[number].linear.weight) for number in (2, 3))
    assert all(parameter.requires_grad for parameter in student.parameters())
    batch = TextBatch(
        torch.arange(6),
        dict(student.tokenizer(TEXTS, padding=True, return_tensors="pt")),
        torch.zeros(6, dtype=torch.long),
    )
    found = Encoder(student)(batch, OutputSpec(embedding=True, pre_dense=True))
    torch.testing.assert_close(
        found.embedding, normalize(student[3].linear(student[2].linear(found.pre_dense)), dim=-1)
    )


def test_pooling_is_the_models_own_and_the_end_the_teachers(folders):
    student = build_student(StudentSection(model=str(folders["cls"]), dense="keep"), info(folders["cls"]), seed=0)
    assert kinds(student) == ["Transformer", "Pooling", "Dense", "Normalize"] and student[1].pooling_mode == "cls"
    bare = build_student(
        StudentSection(model=str(folders["bert-dense"]), dense="keep"), info(folders["cls"], normalized=False), seed=0
    )
    assert kinds(bare) == ["Transformer", "Pooling", "Dense", "Dense"]
    with refused("student.pooling", "'cls'"):
        build_student(
            StudentSection(model=str(folders["cls"]), dense="keep", pooling="lasttoken"), info(folders["cls"]), seed=0
        )


def test_what_lies_between_is_kept(folders, tmp_path):
    layers = [Dense(32, 40, activation_function=torch.nn.Tanh()), LayerNorm(40), Dense(40, 32, bias=False)]
    model = SentenceTransformer(
        modules=[Transformer(str(folders["bert"])), Pooling(32, "mean"), *layers, Normalize()], device="cpu"
    )
    model.save_pretrained(str(tmp_path), create_model_card=False)
    student = build_student(StudentSection(model=str(tmp_path), dense="keep"), info(tmp_path), seed=0)
    assert kinds(student) == ["Transformer", "Pooling", "Dense", "LayerNorm", "Dense", "Normalize"]
    assert np.array_equal(student.encode(TEXTS), model.encode(TEXTS))
    save_student(student, tmp_path / "saved", {}, "")
    loaded = SentenceTransformer(str(tmp_path / "saved"), device="cpu")
    assert kinds(loaded) == kinds(student) and np.allclose(loaded.encode(TEXTS), model.encode(TEXTS), atol=1e-6)


def test_experts_stand_before_the_linear_layers(folders):
    section = StudentSection(model="teacher", dense="keep", experts={"count": 2, "width": 8})
    student = build_student(section, info(folders["bert-dense"]), seed=0)
    assert kinds(student) == ["Transformer", "Pooling", "Experts", "Dense", "Dense", "Normalize"]


def test_what_cannot_be_kept_is_refused(folders, tmp_path):
    with refused("student.dense", "nothing after its backbone"):
        build_student(StudentSection(model=str(folders["bert"]), dense="keep"), info(folders["bert-dense"]), seed=0)
    keep, narrow = StudentSection(model="teacher", dense="keep"), info(folders["bert-dense"], dim=20)
    with refused("student.dense", "to 32 dimensions"):
        build_student(keep, narrow, seed=0)
    own_space = build_student(keep, narrow, seed=0, compatible=False)
    assert own_space.get_embedding_dimension() == 32
    wide = [Transformer(str(folders["bert"])), Pooling(32, ("mean", "cls")), Dense(64, 32, bias=False), Normalize()]
    SentenceTransformer(modules=wide, device="cpu").save_pretrained(str(tmp_path), create_model_card=False)
    with pytest.raises(DistilvecError, match=r"^\[student.dense\] .* from 64 .* from 32"):
        build_student(StudentSection(model=str(tmp_path), dense="keep"), info(tmp_path), seed=0)
    with pytest.raises(ValueError, match="has no linear layers to keep"):
        StudentSection(config={"model_type": "bert"}, tokenizer="t", dense="keep")
