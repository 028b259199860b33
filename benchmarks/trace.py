"""What a reader has to follow: the package's calls in `distill`, `evaluate` and `index distill`.

    python -m benchmarks.trace TEACHER --json results/trace.json --name after
    python -m benchmarks.trace TEACHER --json results/trace.json --name before --source /tmp/before/src

TEACHER is the folder of a SentenceTransformer. Each verb runs once, in a process of its own, on 300 texts: two of the
teacher's layers, 8 steps. `sys.setprofile` sees every call in every thread; counted are frames of functions of the
package `distilvec` alone. What runs while a module is imported is left out, and so are comprehensions and generator
expressions. A generator that goes on counts as a call again.

`--source` is the `src` folder of another checkout. The file keeps the entries of other names.
"""

from __future__ import annotations

import argparse
import inspect
import json
import os
import subprocess
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import numpy as np

from benchmarks.texts import sample_texts
from distilvec.core.run_folder import RunFolder

ROOT = Path(__file__).parents[1]
TEXTS = 300
PAIRS = 60
STEPS = 8
LAYERS = 2
SETTINGS = {"train.max_steps": STEPS, "train.batch_size": 16}


@dataclass
class Trace:
    """What one verb entered. `deepest_chain` lists "file:function" from the outermost call on.

    `loads` counts, by kind, how often the libraries made a SentenceTransformer, read weights or read a tokenizer;
    `loaded_by` the same by the package's function that asked for it. `calls_to_backward` and `files_to_backward`
    describe the chain that stands when the first gradient is computed; 0 without training.
    """

    files: int = 0
    functions: int = 0
    calls: int = 0
    depth: int = 0
    deepest_chain: list[str] = field(default_factory=list)
    calls_to_backward: int = 0
    files_to_backward: int = 0
    loads: dict[str, int] = field(default_factory=dict)
    loaded_by: dict[str, dict[str, int]] = field(default_factory=dict)
    calls_by_file: dict[str, int] = field(default_factory=dict)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("teacher", type=Path)
    parser.add_argument("--json", type=Path, required=True)
    parser.add_argument("--name", default="after", help="of this entry in the file")
    parser.add_argument("--source", type=Path, default=ROOT / "src", help="of the version to trace")
    parser.add_argument("--verb", choices=list(VERBS), help=argparse.SUPPRESS)
    arguments = parser.parse_args()

    if arguments.verb:  # in the process of one verb: the current folder is the workspace
        trace = trace_verb(arguments.verb, arguments.teacher, arguments.source)
        arguments.json.write_text(json.dumps(asdict(trace)), encoding="utf-8")
        return

    entry: dict[str, Any] = {"commit": commit_of(arguments.source), "teacher": arguments.teacher.name}
    with tempfile.TemporaryDirectory() as folder:
        write_inputs(Path(folder), arguments.teacher)
        for verb in VERBS:
            entry[verb] = run_verb(verb, arguments.teacher.resolve(), arguments.source.resolve(), Path(folder))
    print(table(entry))

    entries = {}
    if arguments.json.exists():
        entries = json.loads(arguments.json.read_text(encoding="utf-8"))
    entries[arguments.name] = entry
    arguments.json.write_text(json.dumps(entries, indent=1) + "\n", encoding="utf-8")


# -- the inputs --------------------------------------------------------------------------------------------------------


def write_inputs(folder: Path, teacher: Path) -> None:
    """Write texts.txt, a suite of one STS task scored by the teacher, and an index of the teacher's vectors."""
    import pyarrow as pa
    import pyarrow.parquet as pq
    from sentence_transformers import SentenceTransformer

    texts, _ = sample_texts(TEXTS)
    (folder / "texts.txt").write_text("".join(text + "\n" for text in texts), encoding="utf-8")
    vectors = SentenceTransformer(str(teacher), device="cpu").encode(texts, normalize_embeddings=True)

    first, second = range(PAIRS), range(PAIRS, 2 * PAIRS)
    with (folder / "pairs.jsonl").open("w", encoding="utf-8") as file:
        for i, j in zip(first, second, strict=True):
            score = float(np.dot(vectors[i], vectors[j]))
            file.write(json.dumps({"sentence1": texts[i], "sentence2": texts[j], "score": score}) + "\n")
    (folder / "suite.yaml").write_text("- {name: pairs, type: sts, path: pairs.jsonl}\n", encoding="utf-8")

    table = {"id": [str(i) for i in range(TEXTS)], "text": texts, "embedding": [row.tolist() for row in vectors]}
    pq.write_table(pa.table(table), folder / "index.parquet")


# -- the verbs, in the workspace ---------------------------------------------------------------------------------------


def distill(teacher: Path) -> None:
    """Distil by the Python function; a version names the run's folder `out` or `output_dir`."""
    import distilvec

    parameters = inspect.signature(distilvec.distill).parameters
    options: dict[str, Any] = {"out" if "out" in parameters else "output_dir": "run"}
    texts = Path("texts.txt").read_text(encoding="utf-8").splitlines()
    distilvec.distill(str(teacher), texts, layers=LAYERS, overrides=SETTINGS, **options)


def evaluate(teacher: Path) -> None:
    """Score the student of `distill` with its teacher on one task."""
    command("evaluate", str(student_folder(Path("run"))), "--suite", "suite.yaml", "--teacher", str(teacher))


def index_distill(teacher: Path) -> None:
    """Train a query encoder for an index; since `distill` takes tables, it has no verb of its own."""
    changes = [f"{key}={value}" for key, value in SETTINGS.items()]
    options = ["--student", str(teacher), "--layers", str(LAYERS), "--out", "queries", *changes]
    if has_command("index"):
        command("index", "distill", "index.parquet", *options)
    else:
        command("distill", "index.parquet", *options)


VERBS: dict[str, Callable[[Path], None]] = {
    "distill": distill,
    "evaluate": evaluate,
    "index distill": index_distill,
}


def command(*arguments: str) -> None:
    """Run a command line in this process."""
    from distilvec.__main__ import run_command

    if status := run_command(arguments):
        raise SystemExit(f"distilvec {' '.join(arguments)}: exit status {status}")


def has_command(name: str) -> bool:
    """Return whether the command line of this version has the command."""
    import typer

    from distilvec.cli.app import app

    return name in typer.main.get_command(app).commands  # type: ignore[attr-defined]


def student_folder(run: Path) -> Path:
    """Return the folder of a run's student."""
    return next(path for path in (RunFolder(run).student, *run.glob("**/student")) if path.is_dir())


# -- tracing -----------------------------------------------------------------------------------------------------------


def run_verb(verb: str, teacher: Path, source: Path, workspace: Path) -> dict[str, Any]:
    """Trace a verb in a process of its own."""
    result = workspace / f"{verb}.json"
    line = [sys.executable, "-m", "benchmarks.trace", str(teacher), "--json", str(result)]
    line += ["--source", str(source), "--verb", verb]
    environment = {
        **os.environ,
        "PYTHONPATH": f"{source}{os.pathsep}{ROOT}",
        "DISTILVEC_CACHE": str(workspace / "cache"),
        "HF_HUB_OFFLINE": "1",
    }
    done = subprocess.run(line, cwd=workspace, env=environment, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{verb}: {done.stdout[-1000:]}\n{done.stderr[-4000:]}")
    trace: dict[str, Any] = json.loads(result.read_text(encoding="utf-8"))
    return trace


def trace_verb(verb: str, teacher: Path, source: Path) -> Trace:
    """Run a verb here and return what it entered."""
    import distilvec

    package = Path(distilvec.__file__).parent
    if package.parent != source:
        raise SystemExit(f"distilvec was imported from {package}, not from {source}")
    profiler = Profiler(package)
    with profiler:
        VERBS[verb](teacher)
    return profiler.trace()


class Profiler:
    """Counts the calls of a package's functions while it is entered as a context manager, in all threads."""

    def __init__(self, package: Path) -> None:
        self.prefix = str(package) + os.sep
        self.loaders, self.backward = library_code()
        self.calls: Counter[CodeType] = Counter()
        self.deepest: list[CodeType] = []
        self.to_backward: list[CodeType] = []
        self.loaded: dict[str, Counter[str]] = {kind: Counter() for kind in self.loaders.values()}

    def __enter__(self) -> Profiler:
        threading.setprofile(self.see)
        sys.setprofile(self.see)
        return self

    def __exit__(self, *error: object) -> None:
        sys.setprofile(None)
        threading.setprofile(None)

    def see(self, frame: FrameType, event: str, argument: object) -> None:
        """Note a call; `sys.setprofile` calls this for every event of every function."""
        if event != "call":
            return
        code = frame.f_code
        if self.is_function(code):
            chain = self.chain(frame)
            if chain is None:
                return
            self.calls[code] += 1
            if len(chain) > len(self.deepest):
                self.deepest = chain
        elif code in self.loaders:
            chain = self.chain(frame)
            if chain:
                self.loaded[self.loaders[code]][self.name(chain[-1])] += 1
        elif code is self.backward and not self.to_backward:
            self.to_backward = self.chain(frame) or []

    def is_function(self, code: CodeType) -> bool:
        """Return whether the code is a function of the package, a lambda included."""
        if not code.co_filename.startswith(self.prefix):
            return False
        return code.co_name == "<lambda>" or not code.co_name.startswith("<")

    def chain(self, frame: FrameType | None) -> list[CodeType] | None:
        """Return the package's functions on the stack, the outermost first; None while one of its modules is imported.

        A class body is a frame too, and stands on its module's.
        """
        chain = []
        while frame is not None:
            code = frame.f_code
            if code.co_name == "<module>" and code.co_filename.startswith(self.prefix):
                return None
            if self.is_function(code):
                chain.append(code)
            frame = frame.f_back
        return chain[::-1]

    def name(self, code: CodeType) -> str:
        """Return "file:function" with the file relative to the package."""
        return f"{code.co_filename.removeprefix(self.prefix)}:{code.co_qualname}"

    def trace(self) -> Trace:
        """Return the counts."""
        by_file: Counter[str] = Counter()
        for code, count in self.calls.items():
            by_file[code.co_filename.removeprefix(self.prefix)] += count
        return Trace(
            files=len(by_file),
            functions=len(self.calls),
            calls=by_file.total(),
            depth=len(self.deepest),
            deepest_chain=[self.name(code) for code in self.deepest],
            calls_to_backward=len(self.to_backward),
            files_to_backward=len({code.co_filename for code in self.to_backward}),
            loads={kind: callers.total() for kind, callers in self.loaded.items()},
            loaded_by={kind: dict(callers.most_common()) for kind, callers in self.loaded.items()},
            calls_by_file=dict(by_file.most_common()),
        )


def library_code() -> tuple[dict[CodeType, str], CodeType]:
    """Return what the libraries run to make a model, to read weights and to read a tokenizer; and torch's backward."""
    import torch
    from sentence_transformers import SentenceTransformer
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

    loaders: dict[str, Any] = {
        "SentenceTransformer": SentenceTransformer.__init__,
        "weights": PreTrainedModel.from_pretrained,
        "tokenizers": PreTrainedTokenizerBase.from_pretrained,
    }
    by_code = {inspect.unwrap(function).__code__: kind for kind, function in loaders.items()}
    return by_code, torch.autograd.backward.__code__


# -- output ------------------------------------------------------------------------------------------------------------


def table(entry: dict[str, Any]) -> str:
    """Return a line for each verb, as Markdown."""
    lines = [
        "| verb | files | functions | calls | deepest chain | models made | weights read | tokenizers read |",
        "|---|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for verb in VERBS:
        trace = entry[verb]
        counts = [trace["files"], trace["functions"], trace["calls"], trace["depth"], *trace["loads"].values()]
        lines.append(f"| {verb} | " + " | ".join(f"{count:,}" for count in counts) + " |")
    return "\n".join(lines)


def commit_of(source: Path) -> str:
    """Return the short commit of a checkout."""
    line = ["git", "-C", str(source), "describe", "--always", "--dirty", "--abbrev=7"]
    return subprocess.run(line, check=True, capture_output=True, text=True).stdout.strip()


if __name__ == "__main__":
    main()
