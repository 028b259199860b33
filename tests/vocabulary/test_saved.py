"""Models with another vocabulary on disk: whoever reads the folder has the same tokens and the same vectors; a save
that is stopped.
"""

from __future__ import annotations

import errno
import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import architectures
import numpy as np
import pytest
from commands import SERVER
from samples import make_texts
from sentence_transformers import SentenceTransformer
from tokenizers import Tokenizer
from transformers import AutoTokenizer

from distilvec.config.student import VocabularySection
from distilvec.core.errors import DistilvecError
from distilvec.formats import sentence_transformers as portable
from distilvec.formats.onnx import OnnxEmbedder, export_onnx
from distilvec.verbs.transplant.transplant import transplant_folder
from distilvec.vocabulary.transplant import transplant_tokens

ROOT = Path(__file__).parents[2]
TEXTS = [*make_texts(300), *architectures.TEXTS]
ASKED = [
    *TEXTS[:5],
    *architectures.TEXTS,
    "x [CLS] a [MASK] b <s> c </s> <pad><mask> d <|endoftext|> e",
    "naïve 中文 😀",
    "a",
    " two  spaces ",
]
BPE = {"kind": "bpe", "size": 380}
SECTIONS = [{}, BPE, {"kind": "unigram", "size": 380}, {"kind": "wordpiece", "size": 250}]
CASES = {
    f"{name}-{section.get('kind', 'trim')}": (name, section)
    for name, count in (("bert", 4), ("xlm_roberta", 2), ("qwen3", 2), ("t5", 2))
    for section in SECTIONS[:count]
}


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    root = tmp_path_factory.mktemp("models")
    return {
        name: str(
            architectures.sentence_transformer(
                root / f"{name}-model", getattr(architectures, name)(root / name), "mean dense:24"
            )
        )
        for name in {name for name, _ in CASES.values()}
    }


@pytest.fixture(scope="module")
def folders(models, tmp_path_factory):
    root = tmp_path_factory.mktemp("transplanted")
    for case, (name, section) in CASES.items():
        transplant_folder(models[name], VocabularySection(**section), {"en": lambda: iter(TEXTS)}, root / case)
    return {case: root / case for case in CASES}


@pytest.mark.parametrize("case", CASES)
def test_all_readers_have_the_same_tokens_and_vectors(case, folders, models):
    name, section = CASES[case]
    student = SentenceTransformer(str(folders[case]), device="cpu")
    again, bare = (
        AutoTokenizer.from_pretrained(folders[case]),
        Tokenizer.from_file(str(folders[case] / "tokenizer.json")),
    )
    assert len(again) == bare.get_vocab_size() == student[0].auto_model.get_input_embeddings().num_embeddings
    for text in ASKED:
        for special in (True, False):
            ids = bare.encode(text, add_special_tokens=special).ids
            assert (
                ids
                == again(text, add_special_tokens=special)["input_ids"]
                == student.tokenizer(text, add_special_tokens=special)["input_ids"]
            )
    teacher = SentenceTransformer(models[name], device="cpu")
    expected = teacher if not section else transplant_tokens(teacher, again)[0]
    np.testing.assert_allclose(student.encode(TEXTS[-60:]), expected.encode(TEXTS[-60:]), atol=1e-6)


def test_a_model_without_a_limit_of_length(models, tmp_path):
    """T5's positions are relative: where the tokenizer states no limit either, there is none to compare with."""
    folder = shutil.copytree(models["t5"], tmp_path / "endless")
    for name, key in (("tokenizer_config.json", "model_max_length"), ("sentence_bert_config.json", "max_seq_length")):
        content = json.loads((folder / name).read_text())
        content.pop(key, None)
        (folder / name).write_text(json.dumps(content))
    record = transplant_folder(str(folder), VocabularySection(), {"en": lambda: iter(TEXTS)}, tmp_path / "out")
    assert record["compared"]["max_length"] is None
    np.testing.assert_allclose(
        SentenceTransformer(str(tmp_path / "out"), device="cpu").encode(TEXTS[:9]),
        SentenceTransformer(str(folder), device="cpu").encode(TEXTS[:9]),
        atol=1e-6,
    )


@pytest.mark.parametrize("case", ["bert-wordpiece", "xlm_roberta-bpe", "qwen3-trim"])
def test_as_onnx_it_gives_the_same_vectors(case, folders, tmp_path):
    pytest.importorskip("onnxruntime")
    student = SentenceTransformer(str(folders[case]), device="cpu")
    session = OnnxEmbedder(export_onnx(student, tmp_path / "model.onnx"))
    for text in ASKED:
        tokens = student.tokenizer([text], truncation=True, max_length=student.max_seq_length, return_tensors="pt")
        assert np.abs(session.encode_tokens(tokens) - student.encode([text])).max() < 1e-5, text


@pytest.mark.slow
def test_the_oldest_stack_has_the_same_tokens_and_vectors(folders, tmp_path):
    if not (ROOT / ".compat" / "sentence_transformers").is_dir():
        (pytest.fail if os.environ.get("DISTILVEC_REQUIRE_COMPAT") == "1" else pytest.skip)(
            "no .compat; see requirements/compat.txt"
        )
    job, answer = tmp_path / "job.json", tmp_path / "answer.json"
    job.write_text(json.dumps({"texts": ASKED, "folders": [str(folder) for folder in folders.values()], "trusted": []}))
    environment = {
        **os.environ,
        "PYTHONPATH": str(ROOT / ".compat"),
        "HF_HUB_OFFLINE": "1",
        "TOKENIZERS_PARALLELISM": "false",
    }
    command = [sys.executable, str(ROOT / "tests" / "formats" / "oldest_stack.py"), str(job), str(answer)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0, done.stderr[-3000:]
    said = json.loads(answer.read_text())
    assert said["versions"]["sentence_transformers"] == "5.1.2"
    for case, folder in folders.items():
        student, theirs = SentenceTransformer(str(folder), device="cpu"), said["models"][str(folder)]
        assert theirs["ids"] == [student.tokenizer(text)["input_ids"] for text in ASKED], case
        stripped = student.encode([text.strip() for text in ASKED])  # as it does by itself
        assert np.abs(np.array(theirs["document"]) - stripped).max() < 1e-6, case


@pytest.mark.parametrize("place", ["write_modules", "_sync_tree"])
def test_a_full_disk_leaves_what_was_there(models, tmp_path, place, monkeypatch):
    def full(*arguments):
        raise OSError(errno.ENOSPC, "No space left on device")

    def make(section):
        transplant_folder(models["bert"], section, {"en": lambda: iter(TEXTS)}, tmp_path / "out", overwrite=True)

    with monkeypatch.context() as patched, pytest.raises(DistilvecError, match="No space left on device"):
        patched.setattr(portable, place, full)
        make(VocabularySection())
    assert list(tmp_path.iterdir()) == []
    make(VocabularySection())
    vectors = SentenceTransformer(str(tmp_path / "out"), device="cpu").encode(ASKED)
    with monkeypatch.context() as patched, pytest.raises(DistilvecError, match="No space left on device"):
        patched.setattr(portable, place, full)
        make(VocabularySection(**BPE))
    assert [path.name for path in tmp_path.iterdir()] == ["out"]
    np.testing.assert_array_equal(SentenceTransformer(str(tmp_path / "out"), device="cpu").encode(ASKED), vectors)


def killed_before_its_place(model: str, out: str) -> None:
    portable.replace.replace_folder = lambda new, folder: os.kill(os.getpid(), signal.SIGKILL)
    transplant_folder(model, VocabularySection(**BPE), {"en": lambda: iter(TEXTS)}, Path(out), overwrite=True)


def test_killed_while_saving(models, tmp_path):
    """SIGKILL when everything is written but not in its place: no folder, or the earlier one; the next one takes the
    place.
    """
    vectors = None
    for earlier in (False, True):
        process = SERVER.Process(target=killed_before_its_place, args=(models["bert"], str(tmp_path / "out")))
        process.start()
        process.join()
        assert process.exitcode == -signal.SIGKILL
        assert (tmp_path / "out").exists() == earlier and list(tmp_path.glob(".out.distilvec-*"))
        if vectors is not None:
            np.testing.assert_array_equal(
                SentenceTransformer(str(tmp_path / "out"), device="cpu").encode(ASKED), vectors
            )
        transplant_folder(
            models["bert"], VocabularySection(), {"en": lambda: iter(TEXTS)}, tmp_path / "out", overwrite=True
        )
        assert [path.name for path in tmp_path.iterdir()] == ["out"]
        vectors = SentenceTransformer(str(tmp_path / "out"), device="cpu").encode(ASKED)
