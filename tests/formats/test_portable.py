"""Saving a student: the files' layout, the same vectors after loading, and whole or not at all."""

from __future__ import annotations

import errno
import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from architectures import ARCHITECTURES, TEXTS
from refusals import refused
from safetensors import safe_open
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Dense, LayerNorm

from distilvec.config.student import StudentSection
from distilvec.core.batch import TextBatch
from distilvec.core.errors import DistilvecError
from distilvec.core.outputs import OutputSpec
from distilvec.formats import sentence_transformers as portable
from distilvec.formats.sentence_transformers import portable_config, recover_student, save_student
from distilvec.students.build import TeacherInfo, build_student
from distilvec.students.encoder import Encoder

FACTS = TeacherInfo(dim=48, normalized=True, max_length=60, prompts={"query": "query: "})


@pytest.fixture(scope="module")
def backbones(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("backbones")
    return {name: make(root / name) for name, make in ARCHITECTURES.items()}


def student_of(folder: Path, **options) -> SentenceTransformer:
    return build_student(StudentSection(model=str(folder), **options), FACTS, seed=0)


def read(path: Path) -> dict:
    return json.loads(path.read_text(encoding="utf-8"))


def record(folder: Path) -> dict:
    """What was handed over as the record: without the list of files."""
    return {name: value for name, value in read(folder / "distillation.json").items() if name != "files"}


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_reload_gives_the_same_vectors(name: str, backbones: dict[str, Path], tmp_path: Path) -> None:
    student = student_of(backbones[name], layers=[0, 3])
    expected = student.encode(TEXTS), student.encode_query(TEXTS)
    folder = tmp_path / "student"
    save_student(student, folder, {"name": "tiny"}, "# Tiny\n")
    loaded = SentenceTransformer(str(folder), device="cpu")
    assert np.abs(loaded.encode(TEXTS) - expected[0]).max() < 1e-6
    assert np.abs(loaded.encode_query(TEXTS) - expected[1]).max() < 1e-6
    assert loaded.max_seq_length == 60 and loaded.similarity_fn_name == "cosine"
    assert loaded.prompts == {"query": "query: ", "document": ""} and loaded.default_prompt_name is None
    assert loaded.preprocess([" ".join(TEXTS * 20)])["input_ids"].shape[1] == 60
    assert record(folder) == {"name": "tiny"}
    assert (folder / "README.md").read_text() == "# Tiny\n"


@pytest.mark.parametrize(("dim", "width"), [(16, 16), (100, 48)])
def test_a_model_that_keeps_its_first_dims_keeps_them(
    dim: int, width: int, backbones: dict[str, Path], tmp_path: Path
) -> None:
    """Versions before 6 do not read the setting. More dims than the model has are all of them."""
    student = student_of(backbones["bert"], layers=[0, 3])
    student.truncate_dim = dim
    expected = student.encode(TEXTS)
    for number in range(2):  # a loaded one is not cut again
        save_student(student, tmp_path / str(number), {"name": "tiny"}, "# Tiny\n")
        assert "truncate_dim" not in read(tmp_path / str(number) / "config_sentence_transformers.json")
        student = SentenceTransformer(str(tmp_path / str(number)), device="cpu")
        assert student.encode(TEXTS).shape == (len(TEXTS), width)
        assert np.abs(student.encode(TEXTS) - expected).max() < 1e-6


@pytest.mark.parametrize("name", ["bert", "gemma3", "modernbert"])
def test_saving_a_loaded_student_changes_nothing(name: str, backbones: dict[str, Path], tmp_path: Path) -> None:
    save_student(student_of(backbones[name]), tmp_path / "once", {}, "")
    save_student(SentenceTransformer(str(tmp_path / "once"), device="cpu"), tmp_path / "twice", {}, "")
    files = [path.relative_to(tmp_path / "once") for path in (tmp_path / "once").rglob("*") if path.is_file()]
    assert files and all(
        (tmp_path / "once" / file).read_bytes() == (tmp_path / "twice" / file).read_bytes() for file in files
    )


def test_files_are_of_the_old_layout(backbones: dict[str, Path], tmp_path: Path) -> None:
    save_student(student_of(backbones["bert"]), tmp_path / "s", {}, "")
    folder = tmp_path / "s"
    assert read(folder / "modules.json") == [
        {"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.models.Transformer"},
        {"idx": 1, "name": "1", "path": "1_Pooling", "type": "sentence_transformers.models.Pooling"},
        {"idx": 2, "name": "2", "path": "2_Dense", "type": "sentence_transformers.models.Dense"},
        {"idx": 3, "name": "3", "path": "3_Normalize", "type": "sentence_transformers.models.Normalize"},
    ]
    pooling = read(folder / "1_Pooling" / "config.json")
    assert pooling["word_embedding_dimension"] == 32 and pooling["pooling_mode_mean_tokens"] is True
    assert [flag for flag, value in pooling.items() if value is True] == ["pooling_mode_mean_tokens", "include_prompt"]
    assert read(folder / "2_Dense" / "config.json") == {
        "in_features": 32,
        "out_features": 48,
        "bias": False,
        "activation_function": "torch.nn.modules.linear.Identity",
    }
    assert (folder / "3_Normalize").is_dir()
    assert read(folder / "sentence_bert_config.json") == {"max_seq_length": 60, "do_lower_case": False}
    settings = read(folder / "config_sentence_transformers.json")
    assert settings["prompts"] == {"query": "query: ", "document": ""} and settings["default_prompt_name"] is None
    assert settings["similarity_fn_name"] == "cosine" and "sentence_transformers" in settings["__version__"]
    tokenizer = read(folder / "tokenizer_config.json")
    assert tokenizer["tokenizer_class"] == "PreTrainedTokenizerFast" and tokenizer["model_max_length"] == 60
    assert tokenizer["cls_token"] == "[CLS]" and tokenizer["pad_token"] == "[PAD]"
    # fastembed before 0.9 refuses a folder without it
    tokens = {key: value for key, value in tokenizer.items() if key.endswith("_token")}
    assert read(folder / "special_tokens_map.json") == tokens and len(tokens) >= 5
    assert read(folder / "tokenizer.json")["truncation"] is None
    assert read(folder / "config.json")["torch_dtype"] == "float32"
    assert len({path.stat().st_mode for path in folder.rglob("*") if path.is_file()}) == 1, (
        "whoever can read one can read all"
    )
    everything = "".join(path.read_text() for path in folder.rglob("*.json"))
    assert (
        "TokenizersBackend" not in everything and "auto_map" not in everything and "trust_remote_code" not in everything
    )


@pytest.mark.parametrize(("name", "inputs"), [("bert", 3), ("distilbert", 2), ("modernbert", 2), ("qwen3", 2)])
def test_tokenizer_gives_only_what_the_model_takes(
    name: str, inputs: int, backbones: dict[str, Path], tmp_path: Path
) -> None:
    save_student(student_of(backbones[name]), tmp_path / "s", {}, "")
    assert len(read(tmp_path / "s" / "tokenizer_config.json")["model_input_names"]) == inputs


def test_saved_in_fp32_from_a_model_in_training(backbones: dict[str, Path], tmp_path: Path) -> None:
    student = student_of(backbones["bert"], dropout=0.1)
    expected = student.encode(TEXTS)
    encoder = Encoder(student).train()
    ids = torch.tensor([[2, 9, 10, 3]])
    encoder(
        TextBatch(rows=torch.tensor([0]), tokens={"input_ids": ids}, sources=torch.tensor([0])),
        OutputSpec(embedding=True),
    )
    save_student(student, tmp_path / "s", {}, "")
    assert "distilvec" not in (tmp_path / "s" / "config.json").read_text()
    assert student.training, "saving must leave the model in training"
    assert np.abs(SentenceTransformer(str(tmp_path / "s"), device="cpu").encode(TEXTS) - expected).max() < 1e-6
    save_student(student.bfloat16(), tmp_path / "half", {}, "")
    for file in (tmp_path / "half").rglob("*.safetensors"):
        with safe_open(file, "pt") as weights:
            assert {weights.get_tensor(name).dtype for name in weights.keys()} == {torch.float32}  # noqa: SIM118
    assert {value.dtype for value in student.parameters()} == {torch.bfloat16}, "the model itself keeps its precision"


def test_replaces_an_earlier_student(backbones: dict[str, Path], tmp_path: Path) -> None:
    folder = tmp_path / "student"
    save_student(student_of(backbones["bert"]), folder, {"n": 1}, "")
    (folder / "distillation.json").write_text('{"n": 1}')
    (folder / "notes.txt").write_text("mine")
    other = student_of(backbones["xlm_roberta"])
    save_student(other, folder, {"n": 2}, "")
    assert record(folder) == {"n": 2}
    assert (folder / "notes.txt").read_text() == "mine"
    assert np.abs(SentenceTransformer(str(folder), device="cpu").encode(TEXTS) - other.encode(TEXTS)).max() < 1e-6
    assert [path.name for path in tmp_path.iterdir()] == ["student"]


def test_what_others_put_into_the_folder_stays(backbones: dict[str, Path], tmp_path: Path) -> None:
    """An ONNX file, notes, a link, and a card that was changed by hand; a file of the earlier model goes."""
    folder, student = tmp_path / "student", student_of(backbones["bert"])
    save_student(student, folder, {"n": 1}, "# One\n", extra_files=lambda new: (new / "head.json").write_text("{}"))
    assert sorted(read(folder / "distillation.json")["files"]) == [
        "1_Pooling/config.json",
        "2_Dense/config.json",
        "2_Dense/model.safetensors",
        "README.md",
        "config.json",
        "config_sentence_transformers.json",
        "head.json",
        "model.safetensors",
        "modules.json",
        "sentence_bert_config.json",
        "special_tokens_map.json",
        "tokenizer.json",
        "tokenizer_config.json",
    ]
    (folder / "onnx").mkdir()
    (folder / "onnx" / "model.onnx").write_bytes(b"onnx")
    (folder / "notes.md").symlink_to("/nowhere/notes.md")
    (folder / "README.md").write_text("# Mine\n")
    for n in (2, 3):
        save_student(student, folder, {"n": n}, f"# {n}\n")
        assert (folder / "onnx" / "model.onnx").read_bytes() == b"onnx" and (folder / "notes.md").is_symlink()
        assert (folder / "README.md").read_text() == f"# {n}\n" and (
            folder / "README.md.yours"
        ).read_text() == "# Mine\n"
        assert not (folder / "head.json").exists()
        assert sorted(path.name for path in folder.iterdir() if path.name.startswith("README")) == [
            "README.md",
            "README.md.yours",
        ]


def test_an_exported_file_is_named_where_the_model_changed(
    backbones: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, student = tmp_path / "student", student_of(backbones["bert"])
    save_student(student, folder, {"n": 1}, "# Card\n")
    for name in ("onnx/model.onnx", "openvino/openvino_model.xml"):
        (folder / name).parent.mkdir()
        (folder / name).write_bytes(b"exported")
    save_student(student, folder, {"n": 2}, "# Card\n")  # as a run that was interrupted in its evaluation
    assert "earlier model" not in capsys.readouterr().err
    with torch.no_grad():
        next(student.parameters()).add_(1)
    save_student(student, folder, {"n": 3}, "# Card\n")
    assert "kept, of the earlier model: onnx/model.onnx, openvino/openvino_model.xml in" in capsys.readouterr().err


def test_nothing_is_written_where_nothing_changes(backbones: dict[str, Path], tmp_path: Path) -> None:
    folder, student = tmp_path / "student", student_of(backbones["bert"])
    save_student(student, folder, {"n": 1}, "# One\n")
    (folder / "README.md").write_text("# Mine\n")
    before = {path: (path.stat().st_mtime_ns, path.stat().st_ino) for path in folder.rglob("*") if path.is_file()}
    save_student(student, folder, {"n": 1}, "# One\n")
    assert {
        path: (path.stat().st_mtime_ns, path.stat().st_ino) for path in folder.rglob("*") if path.is_file()
    } == before
    (folder / "config.json").unlink()
    save_student(student, folder, {"n": 1}, "# One\n")
    assert (folder / "config.json").exists() and (folder / "README.md.yours").read_text() == "# Mine\n"


def test_a_link_to_the_folder_stays(backbones: dict[str, Path], tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir()
    (tmp_path / "student").symlink_to("disk")
    for n in (1, 2):
        save_student(student_of(backbones["bert"]), tmp_path / "student", {"n": n}, "")
        assert (tmp_path / "student").is_symlink() and record(tmp_path / "disk") == {"n": n}
        assert sorted(path.name for path in tmp_path.iterdir()) == ["disk", "student"]
    (tmp_path / "gone").symlink_to("nowhere")
    with pytest.raises(DistilvecError, match="link"):
        save_student(student_of(backbones["bert"]), tmp_path / "gone", {}, "")


@pytest.mark.parametrize("place", ["write_modules", "_sync_tree"])
def test_no_room_keeps_the_earlier_student(
    place: str, backbones: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "student"
    student = student_of(backbones["bert"])
    save_student(student, folder, {"n": 1}, "")

    def full(*arguments: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(portable, place, full)
    with refused("", "is kept"):
        save_student(student, folder, {"n": 2}, "")
    assert record(folder) == {"n": 1}
    assert [path.name for path in tmp_path.iterdir()] == ["student"]


def test_killed_at_any_move(backbones: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The earlier student until the new one has its name, the new one from there on; never a mixture of both."""
    folder = tmp_path / "student"
    student = student_of(backbones["bert"])
    moves = {"rename": Path.rename, "replace": Path.replace}
    allowed = 0
    finished = False
    while not finished:
        shutil.rmtree(folder, ignore_errors=True)
        save_student(student, folder, {"n": 1}, "# One\n", extra_files=lambda new: (new / "head.json").write_text("{}"))
        (folder / "README.md").write_text("# Mine\n")
        (folder / "notes.txt").write_text("mine")

        done = []
        for name, move in moves.items():

            def limited(path, target, move=move, done=done, allowed=allowed):
                if len(done) == allowed:
                    raise KeyboardInterrupt
                done.append(path)
                return move(path, target)

            monkeypatch.setattr(Path, name, limited)
        try:
            save_student(student, folder, {"n": 2}, "# Two\n")
            finished = True
        except KeyboardInterrupt:
            if (folder / "modules.json").exists():  # then all files are of one model
                one_model = record(folder) == {"n": 1} if allowed < 3 else not (folder / "head.json").exists()
                assert one_model, allowed
        for name, move in moves.items():
            monkeypatch.setattr(Path, name, move)

        for _ in range(2):
            recover_student(folder)
            cards = {path.name: path.read_text() for path in folder.glob("README*")}
            if allowed == 0:
                assert record(folder) == {"n": 1} and cards == {"README.md": "# Mine\n"}
            else:
                assert record(folder) == {"n": 2} and cards == {"README.md": "# Two\n", "README.md.yours": "# Mine\n"}
            assert (folder / "head.json").exists() == (allowed == 0)
            assert (folder / "notes.txt").read_text() == "mine" and (folder / "modules.json").exists()
            assert [path.name for path in tmp_path.iterdir()] == ["student"]
        allowed += 1
    assert allowed > 12


def test_foreign_folders_are_never_replaced(backbones: dict[str, Path], tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    with refused(""):
        save_student(student_of(backbones["bert"]), tmp_path, {}, "")
    assert (tmp_path / "notes.txt").read_text() == "mine"
    SentenceTransformer(modules=list(student_of(backbones["bert"])), device="cpu").save_pretrained(
        str(tmp_path / "theirs")
    )
    with refused(""):
        save_student(student_of(backbones["bert"]), tmp_path / "theirs", {}, "")
    (tmp_path / ".empty.new").mkdir()
    (tmp_path / ".empty.new" / "notes.txt").write_text("mine")
    (tmp_path / "empty").mkdir()
    with pytest.raises(DistilvecError, match="cannot write"):
        save_student(student_of(backbones["bert"]), tmp_path / "empty", {}, "")
    assert (tmp_path / ".empty.new" / "notes.txt").read_text() == "mine"
    (tmp_path / ".empty.new" / "notes.txt").unlink()
    (tmp_path / ".empty.new").rmdir()
    save_student(student_of(backbones["bert"]), tmp_path / "empty", {}, "")
    assert (tmp_path / "empty" / "modules.json").exists()


def test_modules_of_other_authors_are_refused(backbones: dict[str, Path], tmp_path: Path) -> None:
    student = student_of(backbones["bert"])
    student.append(torch.nn.Identity())
    with refused("student.model", "module 4 is a Identity"):
        save_student(student, tmp_path / "s", {}, "")
    assert not (tmp_path / "s").exists()


def residual(student: SentenceTransformer) -> None:
    student[2].use_residual = True
    student[2].residual = torch.nn.Linear(student[2].in_features, student[2].out_features, bias=False)


def normed(student: SentenceTransformer) -> None:
    student.insert(3, LayerNorm(48))
    torch.nn.init.normal_(student[3].norm.weight)


def two_inputs(student: SentenceTransformer) -> None:
    student.insert(3, Dense(48, 48, module_output_name="other"))


@pytest.mark.parametrize("change", [residual, normed, two_inputs])
def test_every_module_of_sentence_transformers_is_kept(change, backbones: dict[str, Path], tmp_path: Path) -> None:
    student = student_of(backbones["bert"])
    plain = student.encode(TEXTS)
    change(student)
    save_student(student, tmp_path / "s", {}, "")
    loaded = SentenceTransformer(str(tmp_path / "s"), device="cpu")
    assert [type(module) for module in loaded] == [type(module) for module in student]
    outputs = [model.encode(TEXTS, output_value=None) for model in (loaded, student)]
    for ours, theirs in zip(*outputs, strict=True):
        assert ours.keys() == theirs.keys()
        assert torch.allclose(ours["sentence_embedding"], theirs["sentence_embedding"], atol=1e-6)
    assert "other" in outputs[0][0] or np.abs(loaded.encode(TEXTS) - plain).max() > 0.01


def test_modernbert_that_transformers_4_cannot_express(backbones: dict[str, Path], tmp_path: Path) -> None:
    student = student_of(backbones["modernbert"], layers=[0, 3, 4])
    with pytest.warns(UserWarning, match="needs transformers 5"):
        save_student(student, tmp_path / "s", {}, "")
    assert (
        np.abs(SentenceTransformer(str(tmp_path / "s"), device="cpu").encode(TEXTS) - student.encode(TEXTS)).max()
        < 1e-6
    )


def test_keys_of_transformers_4() -> None:
    yarn = {"rope_type": "yarn", "factor": 4.0, "rope_theta": 5e5}
    assert portable_config({"rope_parameters": yarn})["rope_scaling"] == {"rope_type": "yarn", "factor": 4.0}
    assert portable_config({"rope_parameters": yarn})["rope_theta"] == 5e5
    two = {
        "full_attention": {"rope_type": "default", "rope_theta": 1e6},
        "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
    }
    gemma = portable_config({"model_type": "gemma3_text", "rope_parameters": two})
    assert (gemma["rope_theta"], gemma["rope_local_base_freq"]) == (1e6, 1e4) and "rope_scaling" not in gemma
    kinds = ["full_attention", "sliding_attention", "full_attention", "sliding_attention"]
    modern = portable_config({"model_type": "modernbert", "rope_parameters": two, "layer_types": kinds})
    assert (modern["global_rope_theta"], modern["local_rope_theta"], modern["global_attn_every_n_layers"]) == (
        1e6,
        1e4,
        2,
    )
