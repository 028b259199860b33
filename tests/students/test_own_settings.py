"""A student's pooling, length and attention mask are its model's own; what it does not take over is said."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from architectures import TEXTS, bert, gemma3, mistral, sentence_transformer, t5
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Dense, Normalize, Pooling, Transformer

from distilvec.config.schema import TeacherSection
from distilvec.config.student import StudentSection
from distilvec.core.batch import TextBatch
from distilvec.core.info import UNLIMITED, TeacherInfo
from distilvec.core.outputs import OutputSpec
from distilvec.formats.sentence_transformers import save_student
from distilvec.students.build import (
    POOLINGS,
    build_student,
    build_with_notes,
    choose_pooling,
    load_source,
    student_notes,
)
from distilvec.students.encoder import Encoder
from distilvec.teachers.open import load_teacher

WIDTH = 32


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A random BERT as a plain model, and as a SentenceTransformer with each pooling."""
    root = tmp_path_factory.mktemp("models")
    plain = bert(root / "plain")
    return {"plain": plain} | {
        mode: sentence_transformer(root / mode, plain, f"{mode} normalize") for mode in (*POOLINGS,)
    }


def saved(folder: Path, *modules: torch.nn.Module, **settings: object) -> Path:
    model = SentenceTransformer(modules=list(modules), device="cpu", **settings)  # type: ignore[arg-type]
    model.save_pretrained(str(folder), create_model_card=False)
    return folder


def info(folder: Path | None = None, **changes: object) -> TeacherInfo:
    known = TeacherInfo(WIDTH, True, 64, model=None if folder is None else str(folder))
    return replace(known, **changes)  # type: ignore[arg-type]


def notes_of(section: StudentSection, teacher: TeacherInfo) -> tuple[str, ...]:
    return student_notes(section, load_source(section, teacher), teacher)


@pytest.mark.parametrize("mode", POOLINGS)
def test_a_model_keeps_its_pooling(folders: dict[str, Path], mode: str, tmp_path: Path) -> None:
    """As the teacher's layers, by name, and saved: with every layer the student's vectors are the teacher's."""
    teacher = SentenceTransformer(str(folders[mode]), device="cpu")
    for section in (StudentSection(model="teacher"), StudentSection(model=str(folders[mode]))):
        student = build_student(section, info(folders[mode]), seed=0)
        assert student[1].pooling_mode == mode and not notes_of(section, info(folders[mode]))
        assert np.array_equal(student.encode(TEXTS), teacher.encode(TEXTS))
    save_student(student, tmp_path / "saved", {"method": "none"}, "# card\n")
    again = build_student(StudentSection(model=str(tmp_path / "saved")), info(), seed=0)
    np.testing.assert_allclose(again.encode(TEXTS), teacher.encode(TEXTS), atol=1e-6)
    batch = TextBatch(
        torch.arange(len(TEXTS)),
        dict(student.tokenizer(TEXTS, padding=True, return_tensors="pt")),
        torch.zeros(len(TEXTS), dtype=torch.long),
    )
    with torch.no_grad():  # in training, too; and layers that a method pools as the student does
        found = Encoder(student)(batch, OutputSpec(embedding=True, vector=True, pooled_layers=(1, -1)))
    np.testing.assert_allclose(found.embedding, teacher.encode(TEXTS), atol=1e-6)
    torch.testing.assert_close(found.pooled_layers[-1], found.vector)


def test_a_stated_pooling_stands_and_replaces_the_models(folders: dict[str, Path]) -> None:
    section = StudentSection(model=str(folders["cls"]), pooling="mean")
    assert build_student(section, info(), seed=0)[1].pooling_mode == "mean"
    assert notes_of(section, info()) == ("pooling mean: student.pooling instead of cls",)
    assert notes_of(StudentSection(model=str(folders["cls"]), pooling="cls"), info()) == ()


def test_a_plain_model_has_the_teachers_pooling_a_published_one_or_the_mean(folders: dict[str, Path]) -> None:
    plain = folders["plain"]
    for section in (StudentSection(model=str(plain)), StudentSection(model=str(plain), layers=2)):
        assert build_student(section, info(folders["cls"]), seed=0)[1].pooling_mode == "mean"
        assert notes_of(section, info()) == (f"pooling mean: {plain} states none",)
    with load_teacher(TeacherSection(model=str(plain), pooling="cls", normalize=True), "cpu") as teacher:
        described = teacher.info()
    assert described.pooling == "cls"
    for section in (StudentSection(model="teacher"), StudentSection(model=str(plain))):
        assert build_student(section, described, seed=0)[1].pooling_mode == "cls" and not notes_of(section, described)
    source = replace(load_source(StudentSection(model=str(plain)), info()), name="BAAI/bge-m3")
    published = choose_pooling(StudentSection(model="BAAI/bge-m3"), source, info())
    assert (published.mode, published.origin) == ("cls", "as published for BAAI/bge-m3")
    fresh = {"model_type": "bert", "hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    student = build_student(StudentSection(config=fresh, tokenizer=str(plain)), info(folders["cls"]), seed=0)
    assert student[1].pooling_mode == "mean"


def test_poolings_side_by_side_become_the_mean(folders: dict[str, Path], tmp_path: Path) -> None:
    both = saved(tmp_path, Transformer(str(folders["plain"])), Pooling(WIDTH, ("mean", "max")), Normalize())
    section = StudentSection(model=str(both))
    student = build_student(section, info(both, dim=2 * WIDTH), seed=0)
    assert [type(module).__name__ for module in student] == ["Transformer", "Pooling", "Dense", "Normalize"]
    assert student[1].pooling_mode == "mean" and student.encode(TEXTS).shape[1] == 2 * WIDTH
    (note,) = notes_of(section, info(both))
    assert note.startswith("pooling mean: a student cannot have mean+max")


def test_a_prompt_that_the_model_left_out_is_pooled(folders: dict[str, Path], tmp_path: Path) -> None:
    """Student and teacher are trained on the prompt and the text as one: so the saved student reads them."""
    modules = [Transformer(str(folders["plain"])), Pooling(WIDTH, "mean", include_prompt=False)]
    linear = Dense(WIDTH, WIDTH, bias=False, activation_function=torch.nn.Identity())
    for name, dense, rest in (("plain", "auto", []), ("dense", "keep", [linear])):
        folder = saved(tmp_path / name, *modules, *rest, Normalize())
        teacher = info(prompts={"query": "query: ", "document": ""})
        student = build_student(StudentSection(model=str(folder), dense=dense), teacher, seed=0)
        assert student[1].include_prompt
        expected = student.encode([f"query: {text}" for text in TEXTS], prompt="")
        np.testing.assert_allclose(student.encode_query(TEXTS), expected, atol=1e-6)


def test_modules_and_prompts_that_are_not_taken_over_are_said(folders: dict[str, Path], tmp_path: Path) -> None:
    linear = Dense(WIDTH, WIDTH, activation_function=torch.nn.Tanh())
    prompts = {"query": "query: ", "document": "passage: "}
    modules = [Transformer(str(folders["plain"])), Pooling(WIDTH, "cls"), linear, Normalize()]
    model = saved(tmp_path / "model", *modules, prompts=prompts)
    dense, asked = notes_of(StudentSection(model=str(model)), info(folders["mean"]))
    assert dense.startswith(f"without Dense of {model}") and "student.dense=keep" in dense
    assert asked.startswith("prompts are the teacher's") and "query 'query: ', document 'passage: '" in asked
    same = info(folders["mean"], prompts=prompts)
    assert not build_with_notes(StudentSection(model=str(model), dense="keep"), same, seed=0)[1]
    assert not build_with_notes(StudentSection(model="teacher"), info(model, prompts=prompts), seed=0)[1]
    saved(tmp_path / "left", *modules[:2], Normalize())
    settings = json.loads((tmp_path / "left" / "tokenizer_config.json").read_text())
    (tmp_path / "left" / "tokenizer_config.json").write_text(json.dumps(settings | {"truncation_side": "left"}))
    (note,) = notes_of(StudentSection(model=str(tmp_path / "left")), same)
    assert note.startswith("long texts lose their end, not their beginning")


@pytest.mark.parametrize(
    ("model", "asked", "limit", "expected"),
    [
        ("teacher", None, 100, 100),  # a recipe may raise the teacher's limit above that of its files
        ("teacher", None, 40, 40),
        ("teacher", None, UNLIMITED, 64),
        ("mean", None, 100, 64),
        ("mean", None, 40, 40),
        ("mean", 90, 40, 90),
    ],
)
def test_the_length_is_the_teachers_for_its_own_layers(
    folders: dict[str, Path], tmp_path: Path, model: str, asked: int | None, limit: int, expected: int
) -> None:
    backbone = SentenceTransformer(str(folders["mean"]), device="cpu")
    backbone.max_seq_length = 64
    backbone.tokenizer.model_max_length = 64
    backbone.save_pretrained(str(tmp_path / "model"), create_model_card=False)
    name = "teacher" if model == "teacher" else str(tmp_path / "model")
    section = StudentSection(model=name, max_length=asked)
    assert build_student(section, info(tmp_path / "model", max_length=limit), seed=0).max_seq_length == expected


def test_a_lifted_mask_of_the_teacher_is_lifted_in_its_layers(tmp_path: Path) -> None:
    """A text's first state depends on what follows only without the causal mask."""
    folder = mistral(tmp_path / "mistral")
    section = TeacherSection(model=str(folder), pooling="mean", normalize=True, attention="bidirectional")
    with load_teacher(section, "cpu") as teacher:
        described, expected = teacher.info(), teacher.embed(TEXTS)
    student = build_student(StudentSection(model="teacher"), described, seed=0)
    np.testing.assert_allclose(student.encode(TEXTS), expected, atol=1e-5)
    causal = build_student(StudentSection(model=str(folder)), described, seed=0)
    assert np.abs(causal.encode(TEXTS) - expected).max() > 1e-3


@pytest.mark.parametrize(("make", "layers"), [(bert, 2), (bert, 0), (t5, 2), (gemma3, 2)])
def test_an_added_token_without_a_row_gets_one(make, layers: int, tmp_path: Path) -> None:
    """As Gemma 3's mark of an image, which its table lacks: the model can teach, and a student can be cut from it.

    T5's table is used twice.
    """
    model = SentenceTransformer(str(sentence_transformer(tmp_path / "model", make(tmp_path / "backbone"), "mean")))
    model.tokenizer.add_special_tokens({"additional_special_tokens": ["<image>"]})
    folder = saved(tmp_path / "marked", *model)
    student = build_student(StudentSection(model="teacher", layers=layers), info(folder), seed=0)
    plain = build_student(StudentSection(model="teacher", layers=layers), info(tmp_path / "model"), seed=0)
    np.testing.assert_allclose(student.encode(TEXTS), plain.encode(TEXTS), atol=1e-6)
    assert np.isfinite(student.encode(["a text with <image> in it"])).all()
    save_student(student, tmp_path / "saved", {"method": "none"}, "# card\n")
    loaded = SentenceTransformer(str(tmp_path / "saved"), device="cpu")
    marked = ["a text with <image> in it"]
    np.testing.assert_allclose(loaded.encode(marked), student.encode(marked), atol=1e-6)
