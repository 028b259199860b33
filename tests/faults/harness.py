"""Runs one fault through the command line and judges what came of it.

A case is a function in one of the cases_*.py files here. It prepares a folder of its own (a `World`) and returns a
command line. The harness remembers every file of the world, runs the command in this process and judges:

    right      the expected exit status and [key], one clear message, every earlier file with the same bytes
    traceback  a traceback, or the message for unexpected errors
    unclear    refused, but without the expected [key] or the form "[key] problem. Fix."
    silent     accepted where it had to be refused
    lost       a file that was there before is gone or has other bytes
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib
import io
import os
import re
import shutil
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import architectures
from samples import make_texts

from distilvec.core.run_folder import RunFolder

VERDICTS = ("right", "traceback", "unclear", "silent", "lost")
TEXTS = 80  # of a world
LONGEST_MESSAGE = 3000  # characters: no message prints a whole file, table or expanded alias
_CLEAR = re.compile(r"^distilvec: (?P<text>\[(?P<key>[^\]\n]+)\] \S.*[.)\]:'`])$", re.DOTALL)


@dataclass
class Outcome:
    """What a command did: exit status, both outputs, and the earlier files that it changed or removed."""

    status: int
    out: str
    err: str
    changed: list[str]


@dataclass
class World:
    """A folder with a tiny teacher, texts, a recipe, and everything that a case puts there. The command runs inside it."""  # noqa: E501

    root: Path
    checks: list[Callable[[Outcome], None]] = field(default_factory=list)
    undo: list[Callable[[], None]] = field(default_factory=list)
    moved: list[str] = field(
        default_factory=list
    )  # beginnings of the names of files that the command is to replace or move

    @property
    def model(self) -> Path:
        """A randomly initialised BERT of four layers, 32 wide, as a SentenceTransformer folder; the case may damage it."""  # noqa: E501
        folder = self.root / "teacher"
        if not folder.exists():
            shutil.copytree(tiny_model(), folder)
        return folder

    @property
    def texts(self) -> Path:
        """A file of TEXTS texts."""
        path = self.root / "texts.txt"
        if not path.exists():
            path.write_text("\n".join(make_texts(TEXTS)), encoding="utf-8")
        return path

    def tree(self, **changes: Any) -> dict[str, Any]:
        """A complete recipe on the tiny model as plain data, with dotted changes (train__epochs=2)."""
        from distilvec.config import recipe

        tree = {
            "name": "tiny",
            "teacher": {"model": str(self.model), "dtype": "float32"},
            "student": {"model": "teacher", "layers": 2},
            "corpus": {"sources": [{"path": str(self.texts)}], "validation_rows": 32},
            "cache": {"shard_rows": 20},
            "method": {"name": "redact"},
            "train": {
                "epochs": 1,
                "batch_size": 16,
                "learning_rate": 1e-3,
                "logging_steps": 2,
                "precision": "fp32",
                "device": "cpu",
            },
            "evaluation": {"speed_seconds": 0.01, "parts": []},
        }
        for key, value in changes.items():
            recipe.set_key(tree, key.replace("__", "."), value)
        return tree

    def recipe(self, name: str = "tiny.yaml", **changes: Any) -> str:
        """The path of a recipe file with this content."""
        import yaml

        return self.file(name, yaml.safe_dump(self.tree(**changes), sort_keys=False, allow_unicode=True))

    def file(self, name: str, content: str | bytes = "kept\n") -> str:
        """The path of a file with this content, below the world's folder."""
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        return str(path)

    def run(self, *arguments: str) -> None:
        """Run a command that belongs to the preparation; it must succeed.

        The second time that worlds at one path have the same files, those of the first time are copied.
        """
        state = (self.root, arguments, tuple(contents(self.root).items()))
        if state not in _DONE or self.undo:
            found = self.execute(*arguments)
            assert found.status == 0, found.err
            if not self.undo:
                _DONE[state] = shutil.copytree(self.root, Path(_FOLDER.name) / str(len(_DONE)), symlinks=True)
        else:
            shutil.rmtree(self.root)
            shutil.copytree(_DONE[state], self.root, symlinks=True)

    def execute(self, *arguments: str) -> Outcome:
        """Run a command that belongs to the preparation, whatever comes of it."""
        return execute(self, list(arguments))

    def finished_run(self, name: str = "run", **changes: Any) -> Path:
        """The folder of a finished run of the recipe."""
        self.run("run", self.recipe(**changes), "--out", name)
        return self.root / name


@dataclass(frozen=True)
class Case:
    """A fault by name: what prepares it, and what must come of it. Without `key` the command has to succeed."""

    name: str
    prepare: Callable[[World], list[str]]
    key: str | None
    status: int


CASES: dict[str, Case] = {}
_FOLDER = tempfile.TemporaryDirectory(prefix="distilvec-faults-")
_DONE: dict[tuple[Path, tuple[str, ...], tuple[tuple[str, str], ...]], Path] = {}  # worlds after a preparation


def case(
    name: str, key: str | None, status: int | None = None
) -> Callable[[Callable[[World], list[str]]], Callable[[World], list[str]]]:
    """Add a case to the table. `key` is what the message has in brackets; None means that the command must
    succeed.
    """

    def add(prepare: Callable[[World], list[str]]) -> Callable[[World], list[str]]:
        assert name not in CASES, f"two cases are called {name}"
        CASES[name] = Case(name, prepare, key, status if status is not None else 0 if key is None else 2)
        return prepare

    return add


def all_cases() -> dict[str, Case]:
    """Every case of every cases_*.py file beside this one."""
    for path in sorted(Path(__file__).parent.glob("cases_*.py")):
        importlib.import_module(f"faults.{path.stem}")
    return CASES


def try_case(chosen: Case, root: Path) -> tuple[str, str, Outcome]:
    """Prepare and run a case in `root`, an empty folder; the verdict, its reason, and what happened."""
    world = World(root)
    try:
        arguments = [str(part) for part in chosen.prepare(world)]
        found = execute(world, arguments)
        verdict, reason = judge(chosen, found)
        if verdict == "right":
            for check in world.checks:
                check(found)
        return verdict, reason, found
    finally:
        for undo in reversed(world.undo):
            undo()


def judge(chosen: Case, found: Outcome) -> tuple[str, str]:
    """The verdict on an outcome and its reason."""
    if found.changed:
        return "lost", f"changed or gone: {', '.join(found.changed[:5])}"
    if "Traceback" in found.err or "[internal]" in found.err:
        return "traceback", found.err[-2000:]
    if chosen.key is None:
        return (
            ("right", "")
            if found.status == chosen.status
            else ("unclear", f"status {found.status}: {found.err[-1000:]}")
        )
    if found.status == 0:
        return "silent", f"accepted; expected [{chosen.key}]"
    message = found.err[found.err.rfind("distilvec: [") :].strip()
    clear = _CLEAR.match(message)
    if clear is None or clear["key"] != chosen.key or found.status != chosen.status or len(message) > LONGEST_MESSAGE:
        return "unclear", f"status {found.status}, expected {chosen.status} and [{chosen.key}]: {found.err[-1000:]}"
    return "right", ""


def execute(world: World, arguments: list[str]) -> Outcome:
    """Run a command line inside the world's folder, in this process, with a cache root of its own."""
    from distilvec.__main__ import run_command

    before = contents(world.root)
    out, err = io.StringIO(), io.StringIO()
    with _inside(world.root), contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        status = run_command(arguments)
    after = contents(world.root)
    ours = ("cache/logs/", "cache/suites/", *world.moved)
    changed = [name for name, digest in before.items() if after.get(name) != digest and not name.startswith(ours)]
    return Outcome(status, out.getvalue(), err.getvalue(), changed)


def contents(root: Path) -> dict[str, str]:
    """A checksum of every file below `root` by relative name; links by their target. Locks, which hold a process id,
    are left out.
    """
    found = {}
    for path in sorted(root.rglob("*")):
        name = str(path.relative_to(root))
        if path.is_symlink():
            found[name] = f"link to {path.readlink()}"
        elif path.is_file() and not _is_our_lock(path):
            with contextlib.suppress(PermissionError):
                found[name] = hashlib.blake2b(path.read_bytes()).hexdigest()
    return found


def _is_our_lock(path: Path) -> bool:
    """Whether a file is a lock of a run, of a folder below the cache's root, or of a teacher cache: each holds a
    process id.
    """
    hidden = path.name.startswith(".") and path.name.endswith(".lock")
    of_run = path == RunFolder(path.parent.parent).lock
    of_cache = path.name == "lock" and (path.parent / "manifest.json").exists()
    return hidden or of_run or of_cache


def tiny_model() -> Path:
    """The tiny teacher that worlds copy; made once a process."""
    folder = Path(_FOLDER.name)
    if not (folder / "model").exists():
        architectures.sentence_transformer(folder / "model", architectures.bert(folder / "backbone"))
    return folder / "model"


@contextlib.contextmanager
def _inside(root: Path) -> Iterator[None]:
    before, known = Path.cwd(), os.environ.get("DISTILVEC_CACHE")
    os.chdir(root)
    os.environ["DISTILVEC_CACHE"] = str(root / "cache")
    try:
        yield
    finally:
        os.chdir(before)
        if known is None:
            del os.environ["DISTILVEC_CACHE"]
        else:
            os.environ["DISTILVEC_CACHE"] = known
