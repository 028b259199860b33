"""`distilvec.load`: any model; experts by our own class, never by code from the folder; damage is named."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from architectures import TEXTS, bert, mistral, sentence_transformer
from sentence_transformers import SentenceTransformer

import distilvec
from distilvec.config.schema import TeacherSection
from distilvec.config.student import ExpertsSection, StudentSection
from distilvec.core.errors import DistilvecError
from distilvec.core.model_name import ModelName
from distilvec.core.task_head import TaskHead, TaskInfo
from distilvec.formats.sentence_transformers import save_student
from distilvec.models.experts import Experts
from distilvec.models.load import EXPERTS_FILE, load, load_model, load_with_settings
from distilvec.models.settings import ModelSettings
from distilvec.students.build import TeacherInfo, build_student
from distilvec.students.task_head import predict, save_head
from distilvec.teachers.cache.manifest import hash_folder
from distilvec.teachers.open import load_teacher

FACTS = TeacherInfo(dim=48, normalized=True, max_length=60, prompts={"query": "query: "})


@pytest.fixture(scope="module")
def student(tmp_path_factory: pytest.TempPathFactory) -> SentenceTransformer:
    folder = bert(tmp_path_factory.mktemp("loading") / "bert")
    return build_student(
        StudentSection(model=str(folder), layers=2, experts=ExpertsSection(width=24, gate_width=5)), FACTS, seed=0
    )


@pytest.fixture
def folder(student: SentenceTransformer, tmp_path: Path) -> Path:
    save_student(student, tmp_path / "student", {"name": "tiny"}, "# Tiny\n")
    return tmp_path / "student"


def poison(path: Path) -> Path:
    """Python code that leaves a trace where it runs."""
    trace = path.parent / "it-ran"
    path.write_text(
        f"open({str(trace)!r}, 'w').close()\n" + path.read_text()
        if path.exists()
        else f"open({str(trace)!r}, 'w').close()\n"
    )
    return trace


def test_a_decoder_without_a_padding_token_reads_texts_together_as_alone(tmp_path: Path) -> None:
    folder = sentence_transformer(tmp_path / "decoder", mistral(tmp_path / "backbone"))
    assert SentenceTransformer(str(folder), device="cpu").tokenizer.pad_token is None
    model = load_model(ModelName(str(folder)))
    alone = np.concatenate([model.encode([text]) for text in TEXTS])
    assert np.abs(model.encode(TEXTS) - alone).max() < 1e-5


def test_a_plain_model_is_loaded_as_ever(tiny_model: Path) -> None:
    ours, theirs = load(tiny_model, device="cpu"), SentenceTransformer(str(tiny_model), device="cpu")
    assert type(ours) is SentenceTransformer and [type(module) for module in ours] == [
        type(module) for module in theirs
    ]
    assert np.array_equal(ours.encode(TEXTS), theirs.encode(TEXTS))
    half = load(tiny_model, device="cpu", model_kwargs={"dtype": torch.bfloat16})
    assert half.dtype == torch.bfloat16


def test_experts_are_built_by_our_class_and_give_the_same_bits(student: SentenceTransformer, folder: Path) -> None:
    loaded = distilvec.load(folder, device="cpu")
    assert [type(module) for module in loaded] == [type(module) for module in student] and type(loaded[2]) is Experts
    assert np.array_equal(loaded.encode(TEXTS), student.encode(TEXTS))
    assert np.array_equal(loaded.encode_query(TEXTS), student.encode_query(TEXTS))
    assert loaded.prompts == student.prompts and loaded.similarity_fn_name == "cosine" and loaded.max_seq_length == 60
    assert loaded.get_embedding_dimension() == 48 and not loaded[2].training
    half = load(folder, device="cpu", model_kwargs={"dtype": torch.bfloat16})
    assert {weight.dtype for weight in half.parameters()} == {torch.bfloat16}


def test_code_in_the_folder_is_never_run(student: SentenceTransformer, folder: Path) -> None:
    trace = poison(folder / EXPERTS_FILE)
    assert np.array_equal(load(folder, device="cpu").encode(TEXTS), student.encode(TEXTS))
    assert np.array_equal(load(folder, device="cpu", trust_remote_code=True).encode(TEXTS), student.encode(TEXTS))
    assert not trace.exists()


def test_modules_of_others_are_refused_as_ever(folder: Path) -> None:
    trace = poison(folder / "foreign.py")
    entries = json.loads((folder / "modules.json").read_text())
    (folder / "modules.json").write_text(
        json.dumps([*entries, {"idx": 5, "name": "5", "path": "", "type": "foreign.Thing"}])
    )
    with pytest.raises(ValueError, match="not part of Sentence Transformers") as caught:
        load(folder, device="cpu")
    assert (
        f"at {folder}.\nPlease pass the argument `trust_remote_code=True`" in str(caught.value) and not trace.exists()
    )
    with pytest.raises(DistilvecError, match="set trust_remote_code=true"):
        load_teacher(TeacherSection(model=str(folder)), "cpu")


def other_width(folder: Path) -> None:
    Experts(16, 3, 24).save(str(folder))


DAMAGE = {
    "no weights": (lambda folder: (folder / "model.safetensors").unlink(), "FileNotFoundError"),
    "weights truncated": (lambda folder: (folder / "model.safetensors").write_bytes(b"\x10\x00"), "SafetensorError"),
    "other sizes": (
        lambda folder: (folder / "config.json").write_text('{"dim": 32, "width": 20}'),
        "size mismatch|Missing key|RuntimeError",
    ),
    "foreign settings": (lambda folder: (folder / "config.json").write_text('{"hidden": 32}'), "TypeError.*hidden"),
    "no JSON": (lambda folder: (folder / "config.json").write_text("{"), "JSONDecodeError"),
    "no folder": (lambda folder: shutil.rmtree(folder), "a missing folder"),
    "of another model": (other_width, "dim 16, .* dim 32"),
}


@pytest.mark.parametrize("kind", DAMAGE)
def test_damage_is_named(kind: str, folder: Path) -> None:
    harm, words = DAMAGE[kind]
    harm(folder / "2_Experts")
    with pytest.raises(DistilvecError, match=words) as caught:
        load(folder, device="cpu")
    assert str(caught.value).startswith("[model] ") and "copy the whole" in str(caught.value).lower()
    assert kind == "no folder" or str(folder) in str(caught.value)


def test_a_model_that_sentence_transformers_saved(student: SentenceTransformer, tmp_path: Path) -> None:
    student.save_pretrained(str(tmp_path / "theirs"), create_model_card=False)
    assert np.array_equal(load(tmp_path / "theirs", device="cpu").encode(TEXTS), student.encode(TEXTS))


def test_a_model_of_the_hub(student: SentenceTransformer, folder: Path, tmp_path: Path) -> None:
    """In the cache, as a download leaves it: links to files that have other names."""
    home, commit = tmp_path / "hub" / "models--org--tiny", "0123456789abcdef0123456789abcdef01234567"
    for number, path in enumerate(path for path in folder.rglob("*") if path.is_file()):
        link, blob = home / "snapshots" / commit / path.relative_to(folder), home / "blobs" / str(number)
        for place in (link, blob):
            place.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, blob)
        link.symlink_to(blob)
    (home / "refs").mkdir()
    (home / "refs" / "main").write_text(commit)
    loaded = load("org/tiny", device="cpu", cache_folder=str(tmp_path / "hub"))
    assert np.array_equal(loaded.encode(TEXTS), student.encode(TEXTS)) and type(loaded[2]) is Experts


def test_folders_that_hold_no_model_are_sentence_transformers_to_refuse(tmp_path: Path) -> None:
    (tmp_path / "modules.json").write_text("{")
    with pytest.raises(ValueError, match="Expecting property name"):
        load(tmp_path, device="cpu")
    with pytest.raises(OSError):
        load(tmp_path / "absent", device="cpu")


def test_a_teacher_a_starting_point_and_a_head_may_have_experts(student: SentenceTransformer, folder: Path) -> None:
    teacher = load_teacher(TeacherSection(model=str(folder)), "cpu")
    assert np.abs(teacher.embed(TEXTS, "query") - student.encode_query(TEXTS)).max() < 1e-6
    again = build_student(StudentSection(model=str(folder)), FACTS, seed=1)
    assert [type(module).__name__ for module in again] == ["Transformer", "Pooling", "Dense", "Normalize"]
    head = TaskHead(32, TaskInfo("classification", 3))
    save_head(folder, head, ["x", "y", "z"])
    features = student.preprocess(TEXTS)
    with torch.no_grad():
        for module in list(student)[:3]:
            features = module(features)
        expected = head(features["sentence_embedding"]).argmax(1).tolist()
    assert predict(folder, TEXTS) == [["x", "y", "z"][number] for number in expected]


def test_vectors_do_not_depend_on_the_copied_file(folder: Path) -> None:
    before = hash_folder(folder)
    (folder / EXPERTS_FILE).write_text("# another release\n")
    assert hash_folder(folder) == before


def test_load_is_a_function_of_the_package() -> None:
    assert distilvec.load is load and not hasattr(distilvec, "nothing")


@pytest.mark.parametrize("plain", [False, True])
def test_a_model_keeps_its_weights_where_their_file_is_written_over(
    tiny_model: Path, tmp_path: Path, plain: bool
) -> None:
    """As `cp new old` does: the file is first cut to nothing, then written."""
    folder = tmp_path / "model"
    shutil.copytree(tiny_model, folder)
    settings = ModelSettings(pooling="mean") if plain else ModelSettings()
    if plain:
        (folder / "modules.json").unlink()
    model = load_with_settings(ModelName(str(folder)), settings, "cpu")
    before = model.encode(["a text"])
    weights = (folder / "model.safetensors").read_bytes()
    with (folder / "model.safetensors").open("r+b") as file:
        file.truncate(0)
        file.write(bytes(len(weights)))
    np.testing.assert_array_equal(model.encode(["a text"]), before)
