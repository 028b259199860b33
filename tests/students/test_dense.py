"""Students that keep their model's pooling and the modules after it: by default those of the teacher."""

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
    section = StudentSection(model=str(folders["cls"]), dense="keep", pooling="lasttoken")
    with refused("student.dense", "the pooling cls, not of lasttoken"):
        build_student(section, info(folders["cls"]), seed=0)


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
    keep, wide = StudentSection(model="teacher", dense="keep"), info(folders["bert-dense"], dim=40)
    with refused("student.dense", "to 32 dimensions"):
        build_student(keep, wide, seed=0)
    own_space = build_student(keep, wide, seed=0, compatible=False)
    assert own_space.get_embedding_dimension() == 32
    both = [Transformer(str(folders["bert"])), Pooling(32, ("mean", "cls")), Dense(64, 32, bias=False), Normalize()]
    SentenceTransformer(modules=both, device="cpu").save_pretrained(str(tmp_path), create_model_card=False)
    with refused("student.dense", "from 64"):
        build_student(StudentSection(model=str(tmp_path), dense="keep"), info(tmp_path), seed=0)
    anew = build_student(StudentSection(model="teacher"), info(tmp_path), seed=0)
    assert kinds(anew) == ["Transformer", "Pooling", "Dense", "Normalize"], "a new layer, though the widths are equal"
    assert anew[2].in_features == 32
    with pytest.raises(ValueError, match="has no modules to keep"):
        StudentSection(config={"model_type": "bert"}, tokenizer="t", dense="keep")


# -- the teacher's own modules, by default -----------------------------------------------------------------------------

LINEAR, TANH = torch.nn.Identity(), torch.nn.Tanh()


def dense(width, dim, activation=LINEAR, **settings):
    return Dense(width, dim, activation_function=activation, **settings)


# what a teacher has after its pooling, what its student has, and the weights of that
BEHIND = {
    "two linear, as EmbeddingGemma": (
        lambda: [dense(32, 128, bias=False), dense(128, 32, bias=False)],
        ["Dense"],
        32 * 32,
    ),
    "with biases": (lambda: [dense(32, 128), dense(128, 64, bias=False), dense(64, 48)], ["Dense"], 32 * 48 + 48),
    "Tanh, as LaBSE": (lambda: [dense(32, 32, TANH)], ["Dense"], 32 * 32 + 32),
    "linear into Tanh": (lambda: [dense(32, 128), dense(128, 32, TANH)], ["Dense"], 32 * 32 + 32),
    "GELU between": (
        lambda: [dense(32, 64, torch.nn.GELU()), dense(64, 32)],
        ["Dense", "Dense"],
        32 * 64 + 64 + 64 * 32 + 32,
    ),
    "norms between": (
        lambda: [LayerNorm(32), dense(32, 40, bias=False), Normalize(), dense(40, 32, bias=False)],
        ["LayerNorm", "Dense", "Normalize", "Dense"],
        64 + 2 * 32 * 40,
    ),
    "a residual": (
        lambda: [dense(32, 32, bias=False, use_residual=True), dense(32, 32, bias=False)],
        ["Dense", "Dense"],
        2 * 32 * 32,
    ),
    "none": (list, [], 0),
}


@pytest.fixture(scope="module", params=BEHIND)
def teacher_with(request, folders, tmp_path_factory):
    """A teacher's folder, with orthogonal matrices, and what its student should have."""
    make, expected, weights = BEHIND[request.param]
    torch.manual_seed(4)
    later = make()
    for module in later:
        if isinstance(module, Dense):
            torch.nn.init.orthogonal_(module.linear.weight)
    modules = [Transformer(str(folders["bert"])), Pooling(32, "mean"), *later, Normalize()]
    folder = tmp_path_factory.mktemp("teacher")
    SentenceTransformer(modules=modules, device="cpu").save_pretrained(str(folder), create_model_card=False)
    return folder, expected, weights


def distance(student, teacher):
    return float(np.linalg.norm(student.encode(TEXTS) - teacher.encode(TEXTS), axis=1).mean())


def test_a_student_of_all_layers_is_its_teacher(teacher_with, tmp_path):
    """The table of D10: before, the distance was 1.4 with every one but the last."""
    folder, expected, weights = teacher_with
    teacher = SentenceTransformer(str(folder), device="cpu")
    about = info(folder, dim=teacher.get_embedding_dimension())
    student = build_student(StudentSection(model="teacher"), about, seed=5)
    assert kinds(student)[2:-1] == expected
    assert sum(weight.numel() for module in list(student)[2:] for weight in module.parameters()) == weights
    assert distance(student, teacher) < 1e-5

    save_student(student, tmp_path / "saved", {"method": "none"}, "# card\n")
    assert distance(SentenceTransformer(str(tmp_path / "saved"), device="cpu"), teacher) < 1e-5

    fewer = build_student(StudentSection(model="teacher", layers=2), about, seed=5)
    assert kinds(fewer) == kinds(student)
    left_out = build_student(StudentSection(model="teacher", dense="never"), about, seed=5)
    assert kinds(left_out) == ["Transformer", "Pooling", "Normalize"]


def test_cut_vectors_are_the_first_dimensions(teacher_with):
    """teacher.truncate_dim: the last matrix loses its rows."""
    folder, expected, _ = teacher_with
    if not expected:
        return  # the layer is then fitted: test_start
    teacher = SentenceTransformer(str(folder), device="cpu", truncate_dim=20)
    student = build_student(StudentSection(model="teacher"), info(folder, dim=20), seed=5)
    vectors = normalize(torch.tensor(teacher.encode(TEXTS)), dim=-1)
    torch.testing.assert_close(torch.tensor(student.encode(TEXTS)), vectors, atol=1e-5, rtol=0)


def test_a_layer_with_an_input_of_its_own_stays_as_it_is(folders, tmp_path):
    named = dense(32, 16, bias=False, module_output_name="other")
    modules = [Transformer(str(folders["bert"])), Pooling(32, "mean"), named, dense(32, 24, bias=False), Normalize()]
    SentenceTransformer(modules=modules, device="cpu").save_pretrained(str(tmp_path), create_model_card=False)
    teacher = SentenceTransformer(str(tmp_path), device="cpu")
    student = build_student(StudentSection(model="teacher"), info(tmp_path, dim=24), seed=5)
    assert kinds(student) == kinds(teacher) and distance(student, teacher) < 1e-5
