"""What a model folder's hash notices."""

from __future__ import annotations

import json

import pytest
from refusals import refused

from distilvec.core.hashing import hash_files
from distilvec.teachers.cache.manifest import hash_folder, hash_model


def write(folder, *names):
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(name)
    return folder


@pytest.mark.parametrize(
    ("files", "changed", "noticed"),
    [
        (["model.safetensors", "pytorch_model.bin"], "model.safetensors", True),
        (["model.safetensors", "pytorch_model.bin"], "pytorch_model.bin", False),
        (["pytorch_model.bin", "2_Dense/model.safetensors"], "pytorch_model.bin", True),
        (["pytorch_model.bin", "onnx/model.safetensors"], "pytorch_model.bin", True),
        (["model.safetensors", "2_Dense/pytorch_model.bin"], "2_Dense/pytorch_model.bin", True),
        (["adapter_model.safetensors", "pytorch_model.bin"], "pytorch_model.bin", True),
        (["adapter_model.safetensors", "adapter_model.bin"], "adapter_model.bin", False),
        (["model.safetensors", "adapter_model.bin"], "adapter_model.bin", True),
        (
            ["model-00001-of-00002.safetensors", "pytorch_model-00001-of-00002.bin"],
            "pytorch_model-00001-of-00002.bin",
            False,
        ),
        (["model.safetensors", "other.bin"], "other.bin", False),
        (["model.safetensors", "training_args.bin"], "training_args.bin", False),
    ],
)
def test_weights_that_are_loaded_count(tmp_path, files, changed, noticed):
    write(tmp_path, "config.json", *files)
    before = hash_folder(tmp_path)
    assert hash_folder(tmp_path) == before
    (tmp_path / changed).write_text("other weights")
    assert (hash_folder(tmp_path) != before) == noticed


def test_the_hash_of_ordinary_folders_is_that_of_earlier_versions(tmp_path):
    names = [
        "1_Pooling/config.json",
        "2_Dense/config.json",
        "2_Dense/model.safetensors",
        "config.json",
        "model.safetensors",
        "vocab.txt",
    ]
    write(tmp_path, *names, "pytorch_model.bin", "2_Dense/pytorch_model.bin", "README.md")
    assert (
        hash_folder(tmp_path)
        == hash_files([tmp_path / name for name in names], tmp_path)
        == "c634b1906368998704933d3c70623582"
    )
    old = write(tmp_path / "old", "config.json", "pytorch_model.bin", "2_Dense/pytorch_model.bin")
    assert hash_folder(old) == hash_files(sorted(path for path in old.rglob("*") if path.is_file()), old)


def test_a_file_that_cannot_be_read_is_named(tmp_path, monkeypatch):
    write(tmp_path, "config.json")

    def refuse(path):
        raise PermissionError(13, "denied", str(path))

    monkeypatch.setattr("distilvec.core.hashing.checksum", refuse)
    with refused("path", "config.json"):
        hash_folder(tmp_path)


def test_linked_folders_and_bases_of_adapters_count(tmp_path):
    write(tmp_path / "elsewhere", "model.safetensors")
    base = write(tmp_path / "base", "model.safetensors")
    folder = write(tmp_path / "model", "config.json")
    (folder / "0_Transformer").symlink_to(tmp_path / "elsewhere")
    (folder / "0_Transformer" / "loop").symlink_to(folder)
    (folder / "adapter_config.json").write_text(json.dumps({"base_model_name_or_path": str(base)}))
    hashes = {hash_model(folder, ())}
    (tmp_path / "elsewhere" / "model.safetensors").write_text("other")
    hashes.add(hash_model(folder, ()))
    (base / "model.safetensors").write_text("other")
    hashes.add(hash_model(folder, ()))
    assert len(hashes) == 3
    write(folder, "exports.json")  # what distilvec writes beside a model is no part of it
    assert hash_model(folder, ()) in hashes


def test_a_tokenizers_file_of_any_name_counts(tmp_path):
    write(tmp_path, "config.json", "model.safetensors", "source.spm", "qwen.tiktoken")
    hashes = {hash_folder(tmp_path)}
    for name in ("source.spm", "qwen.tiktoken"):
        (tmp_path / name).write_text("other tokens")
        hashes.add(hash_folder(tmp_path))
    assert len(hashes) == 3


def test_the_list_of_parts_counts_since_it_names_the_files_that_are_loaded(tmp_path):
    write(tmp_path, "config.json", "first.safetensors", "second.safetensors", "model.safetensors.index.json")
    before = hash_folder(tmp_path)
    (tmp_path / "model.safetensors.index.json").write_text("second.safetensors")
    assert hash_folder(tmp_path) != before


@pytest.mark.parametrize("name", ["/no/such/folder", "no such name", "nobody/nothing"])
def test_a_base_that_is_not_here_counts_by_its_name(tmp_path, name):
    write(tmp_path, "config.json")
    (tmp_path / "adapter_config.json").write_text(json.dumps({"base_model_name_or_path": name}))
    before = hash_model(tmp_path, ())
    (tmp_path / "adapter_config.json").write_text(json.dumps({"base_model_name_or_path": f"{name}2"}))
    assert hash_model(tmp_path, ()) != before
