"""Files that exist and are not whole, or are no files: of a run, of a model, of texts, of the machine."""

from __future__ import annotations

import gzip
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from distilvec.core.run_folder import RunFolder
from faults.harness import World, case

RUN = ["run", "tiny.yaml", "--out", "run"]
LOGIN = b"<!DOCTYPE html>\n<html><head><title>Sign in</title></head>\n<body>Please sign in, then go on</body></html>\n"


# -- a finished run ----------------------------------------------------------------------------------------------------


def halved(path: Path) -> None:
    content = path.read_bytes()
    path.write_bytes(content[: len(content) // 2])


def zeroed(path: Path) -> None:
    """As after a power cut: the second half of the file's blocks was never written."""
    content = path.read_bytes()
    path.write_bytes(content[: len(content) // 2] + bytes(len(content) - len(content) // 2))


HARM: dict[str, Callable[[Path], Any]] = {
    "empty": lambda path: path.write_bytes(b""),
    "half": halved,
    "half-of-zeros": zeroed,
    "gone": Path.unlink,
}


def student_case(name: str, harm: str) -> None:
    @case(f"student-with-{name.replace('/', '-')}-{harm}", key="student")
    def _(world: World) -> list[str]:
        HARM[harm](RunFolder(world.finished_run()).student / name)
        return RUN


for _name in ("model.safetensors", "tokenizer.json", "config.json", "modules.json", "1_Pooling/config.json"):
    for _harm in ("empty", "half", "gone"):
        student_case(_name, _harm)
student_case("model.safetensors", "half-of-zeros")
student_case("tokenizer_config.json", "gone")
student_case("distillation.json", "half")


def made_again(name: str, harm: str) -> None:
    """Damage to a file that a finished run makes again, with what it had."""

    @case(f"{name}-with-{harm}-is-made-again", key=None)
    def _(world: World) -> list[str]:
        path = getattr(RunFolder(world.finished_run()), name)
        before = json.loads(path.read_text())
        HARM[harm](path)
        world.moved += ["run/details", "run/report.html", "run/README.txt"]
        world.checks.append(lambda found: _same_keys(before, path))
        return RUN


def _same_keys(before: dict[str, Any], path: Path) -> None:
    after = json.loads(path.read_text())
    assert before.keys() == after.keys(), (before.keys(), after.keys())


for _name in ("record", "report"):
    for _harm in ("empty", "half", "gone"):
        made_again(_name, _harm)


@case("student-is-a-link-to-nothing", key="--out")
def _(world: World) -> list[str]:
    student = RunFolder(world.finished_run()).student
    student.rename(world.root / "moved")
    student.symlink_to(world.root / "absent")
    return RUN


@case("training-result-cut", key="training.json")
def _(world: World) -> list[str]:
    halved(RunFolder(world.finished_run()).training_result)
    return RUN


# -- no files ----------------------------------------------------------------------------------------------------------


def pipe_case(name: str, key: str, prepare: Callable[[World, Path], list[str]], status: int = 2) -> None:
    """A pipe that nobody writes to, in place of a file: it must not be waited for."""

    @case(f"pipe-as-{name}", key=key, status=status)
    def _(world: World) -> list[str]:
        return prepare(world, world.root)


def pipe(path: Path) -> str:
    path.unlink(missing_ok=True)
    os.mkfifo(path)
    return str(path)


def _in_model(name: str) -> Callable[[World, Path], list[str]]:
    def prepare(world: World, root: Path) -> list[str]:
        pipe(world.model / name)
        return ["run", world.recipe(), "--out", "run"]

    return prepare


for _name in ("modules.json", "config.json", "tokenizer.json", "model.safetensors", "1_Pooling/config.json"):
    pipe_case(f"{_name.replace('/', '-')}-of-a-model", "teacher.model", _in_model(_name))
pipe_case(
    "texts",
    "corpus.sources.0.path",
    lambda world, root: ["cache", world.recipe(corpus__sources=[{"path": pipe(root / "t.txt")}])],
)


@case("pipe-as-one-of-the-texts", key="corpus.sources.0.path")
def _(world: World) -> list[str]:
    folder = Path(world.file("texts/a.txt", "one\ntwo\n")).parent
    pipe(folder / "b.txt")
    return ["cache", world.recipe(corpus__sources=[{"path": str(folder)}])]


pipe_case("recipe", "recipe", lambda world, root: ["run", pipe(root / "r.yaml"), "--out", "run"])
pipe_case("suite", "--suite", lambda world, root: ["evaluate", str(world.model), "--suite", pipe(root / "s.yaml")])
pipe_case(
    "a-table",
    "teacher.vectors",
    lambda world, root: [
        "cache",
        world.recipe(teacher={"vectors": pipe(root / "v.parquet")}, student={"model": str(world.model)}),
    ],
)
pipe_case(
    "adapters",
    "teacher.adapters",
    lambda world, root: ["cache", world.recipe(teacher__adapters=[pipe(root / "adapter")])],
)


@case("adapters-that-are-absent", key="teacher.adapters")
def _(world: World) -> list[str]:
    return ["cache", world.recipe(teacher__adapters=[str(world.root / "absent")])]


@case("a-dead-link-among-the-texts", key="corpus.sources.0.path")
def _(world: World) -> list[str]:
    folder = Path(world.file("texts/a.txt", "one\ntwo\n")).parent
    (folder / "b.txt").symlink_to(folder / "absent.txt")
    return ["cache", world.recipe(corpus__sources=[{"path": str(folder)}])]


# -- texts and settings that are something else ------------------------------------------------------------------------


def texts_case(name: str, content: bytes, key: str = "corpus.sources.0.path") -> None:
    @case(f"texts-{name}", key=key)
    def _(world: World) -> list[str]:
        return ["cache", world.recipe(corpus__sources=[{"path": world.file(name, content)}])]


ROWS = b"".join(b'{"text": "text number %d"}\n' % row for row in range(100))
texts_case("half.jsonl.gz", gzip.compress(ROWS)[:-50])
texts_case("without-checksum.jsonl.gz", gzip.compress(ROWS)[:-6])
texts_case("last-line-cut.jsonl", ROWS[:-10])
texts_case("login.jsonl", LOGIN)
texts_case("login.parquet", LOGIN)
texts_case("login.csv", LOGIN, "corpus.sources.0.column")
texts_case("nothing.parquet", b"")
for _ending in ("txt", "jsonl", "parquet"):
    texts_case(f"pointer.{_ending}", b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 12345\n")
for _ending in ("jsonl", "csv", "txt.gz"):
    texts_case(f"nothing.{_ending}", b"", "corpus.sources")


def settings_case(file: str, setting: str, value: Any) -> None:
    """One value of a model's JSON files that no model has."""

    @case(f"model-with-{setting}-{str(value)[:12]}", key="teacher.model")
    def _(world: World) -> list[str]:
        path = world.model / file
        path.write_text(json.dumps({**json.loads(path.read_text()), setting: value}))
        return ["plan", world.recipe()]


for _file, _setting, _value in [
    ("config.json", "num_attention_heads", 0),
    ("config.json", "layer_norm_eps", "x"),
    ("config.json", "hidden_size", 1e9),
    ("config.json", "intermediate_size", []),
    ("config.json", "pad_token_id", 10**9),
    ("1_Pooling/config.json", "embedding_dimension", "a"),
    ("1_Pooling/config.json", "embedding_dimension", -5),
    ("1_Pooling/config.json", "pooling_mode", []),
    ("sentence_bert_config.json", "max_seq_length", -1),
    ("sentence_bert_config.json", "max_seq_length", "a"),
    ("config_sentence_transformers.json", "prompts", 5),
    ("config_sentence_transformers.json", "truncate_dim", -4),
    ("config_sentence_transformers.json", "truncate_dim", "x"),
]:
    settings_case(_file, _setting, _value)
