"""examples/clients with what is installed here; `python -m experiments.clients` runs them all, each in its own."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from sentence_transformers import SentenceTransformer

from distilvec.core.model_name import ModelName
from distilvec.core.task_head import TaskHead, TaskInfo, TaskKind
from distilvec.formats.onnx import export_onnx
from distilvec.formats.sentence_transformers import save_student
from distilvec.models.load import load_model
from distilvec.students.task_head import TaskModel, save_head
from experiments.clients import DOCUMENTS, EXAMPLES, QUERY, clients_table, installs, lowest_cosine

pytest.importorskip("onnxruntime")
WITHOUT = "import runpy, sys; sys.modules.update(torch=None, transformers=None, sentence_transformers=None)\n"
RUN = WITHOUT + "sys.argv = sys.argv[1:]; runpy.run_path(sys.argv[0], run_name='__main__')"


@pytest.fixture(scope="module")
def student(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> SimpleNamespace:
    """A student with prompts and its ONNX file."""
    folder = tmp_path_factory.mktemp("clients") / "student"
    model = SentenceTransformer(str(tiny_model), device="cpu")
    model.prompts = {"query": "query: ", "document": "passage: "}
    save_student(model, folder, {"format": 1}, "# card")
    export_onnx(model, folder / "onnx" / "model.onnx")
    return SimpleNamespace(folder=folder, model=model)


def run(name: str, *words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", RUN, str(EXAMPLES / f"{name}.py"), *words]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_onnxruntime_without_torch_gives_the_vectors_of_encode(student: SimpleNamespace) -> None:
    done = run("with_onnxruntime", str(student.folder / "onnx" / "model.onnx"), QUERY, *DOCUMENTS)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    expected = {"queries": student.model.encode_query([QUERY]), "documents": student.model.encode_document(DOCUMENTS)}
    for role, vectors in expected.items():
        assert lowest_cosine(np.array(found[role]), vectors) >= 0.9999
    assert lowest_cosine(student.model.encode([QUERY]), expected["queries"]) < 0.9999, "the prompt must matter"
    lines = (EXAMPLES / "with_onnxruntime.py").read_text().partition("import json")[2].splitlines()
    assert len([line for line in lines if line.strip()]) <= 30


@pytest.mark.parametrize("kind", ["classification", "multilabel"])
def test_a_classifier_without_torch_gives_the_probabilities_of_the_model(
    kind: TaskKind, tiny_model: Path, tmp_path: Path
) -> None:
    model, head = SentenceTransformer(str(tiny_model), device="cpu"), TaskHead(32, TaskInfo(kind, 3))
    folder = tmp_path / "student"
    save_student(
        model,
        folder,
        {"format": 1},
        "# card",
        extra_files=lambda new: save_head(new, head, ["b", "a", "ö"], prompt="x: "),
    )
    export_onnx(load_model(ModelName(str(folder))), folder / "onnx" / "model.onnx", head)
    texts = [QUERY, " short ", " ".join(DOCUMENTS * 3)]  # the last one is cut
    done = run("classify", str(folder / "onnx" / "model.onnx"), *texts)
    assert done.returncode == 0, done.stderr
    found = [json.loads(line) for line in done.stdout.splitlines()]
    expected = TaskModel(folder).predict_proba(texts)
    assert np.abs(np.array([list(one["probabilities"].values()) for one in found]) - expected).max() < 1e-4
    answer = "classes" if kind == "multilabel" else "class"
    assert [one[answer] for one in found] == TaskModel(folder).predict(texts)
    assert list(found[0]["probabilities"]) == ["b", "a", "ö"]


def test_torch_is_out_of_reach_there(student: SimpleNamespace) -> None:
    done = run("with_sentence_transformers", str(student.folder), QUERY)
    assert done.returncode == 1 and "sentence_transformers" in done.stderr


@pytest.mark.parametrize("change", ["Unigram", "Dense"])
def test_llama_cpp_is_refused_what_it_cannot_run(change: str, tmp_path: Path) -> None:
    kinds = {"Transformer", "Pooling", "Normalize"} | {change} - {"Unigram"}
    modules = [{"type": f"sentence_transformers.models.{kind}"} for kind in sorted(kinds)]
    (tmp_path / "modules.json").write_text(json.dumps(modules))
    model = {"type": "Unigram" if change == "Unigram" else "WordPiece"}
    (tmp_path / "tokenizer.json").write_text(json.dumps({"model": model}))
    done = run("to_gguf", str(tmp_path / "llama.cpp"), str(tmp_path))
    assert done.returncode == 1 and change in done.stderr and "llama.cpp cannot run" in done.stderr


def test_every_example_names_pinned_packages_and_is_documented() -> None:
    page = (EXAMPLES.parents[1] / "docs" / "clients.md").read_text(encoding="utf-8")
    examples = sorted(EXAMPLES.glob("with_*.py"))
    assert len(examples) >= 8
    for example in examples:
        assert example.name in page
        lines = installs(example)
        assert lines and all(
            re.fullmatch(r"[a-z-]+==[0-9.]+", name) for line in lines for name in line if name != "numpy"
        )


def test_the_table_pairs_both_students() -> None:
    row = {"client": "with_x", "packages": ["x==1"], "reads": "onnx", "torch": False}
    rows = [{**row, "vocabulary": "teacher", "cosine": 1.0}, {**row, "vocabulary": "unigram", "cosine": 0.99995}]
    assert clients_table({"rows": rows}).splitlines()[2:] == [
        "| [with_x.py](../examples/clients/with_x.py) | x==1 | no | onnx | 1.000000 | 0.999950 (unigram) |"
    ]


def test_a_vector_without_numbers_is_never_close_enough() -> None:
    assert not lowest_cosine(np.array([[1.0, np.nan]]), np.array([[1.0, 0.0]])) >= 0.9999
