"""Run every command and call that a page prints, as it is printed, on files of your own size.

    python -m benchmarks.printed --lines 10000 --steps 300 --out FOLDER [--json FILE] [--pages README.md docs/guide.md]

`tests/docs/test_as_printed.py` does the same on 50 and on 2,000 lines. Each page gets a folder with the files that it
names (`make_files`), and its blocks run in order. `--steps` caps the steps of every training; nothing else of a command
is changed. A training has to end with a number and a page. Exits with 1 if anything fails.

Markers are comments on the line above a block:

    <!-- not run: REASON -->            parsed alone: options of commands, keys of recipes, names of extras and modules
    <!-- tested with: OLD=NEW, ... -->  run with these words replaced: names that only the reader's machine has
    <!-- file: NAME -->                 written into the working folder first
    <!-- tested -->                     run from the wheel as well, by tests/e2e/test_readme.py
"""

from __future__ import annotations

import argparse
import io
import json
import os
import re
import shlex
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import chdir, contextmanager, redirect_stderr, redirect_stdout
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from distilvec.core.files import write_json
from distilvec.core.run_folder import RunFolder

ROOT = Path(__file__).parents[1]
PRINTED = ("tutorial", "guide", "evaluate", "language", "switch")
PAGES = [ROOT / "README.md", *(ROOT / "docs" / f"{name}.md" for name in PRINTED)]
BUILTIN = "all-MiniLM-L6-v2"
_BLOCK = re.compile(
    r"(?:^<!-- (not run|file|tested with|tested)(?:: ?(.*?))? -->\n)?^```(bash|python|yaml)\n(.*?)^```",
    re.DOTALL | re.MULTILINE,
)


# -- the blocks of a page ----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Block:
    """A block: language and code, the line that it begins on, its marker and what the marker adds."""

    language: str
    code: str
    line: int
    marker: str
    note: str

    @property
    def replaced(self) -> dict[str, str]:
        """The words of a block `tested with`, and what stands in their place."""
        if self.marker != "tested with":
            return {}
        return dict(pair.strip().rsplit("=", 1) for pair in self.note.split(", "))


def blocks_of(path: Path) -> list[Block]:
    """Return the blocks of a page in bash, Python and YAML."""
    text = path.read_text(encoding="utf-8")
    found = _BLOCK.finditer(text)
    return [Block(m[3], m[4], text.count("\n", 0, m.start(3)) + 1, m[1] or "", m[2] or "") for m in found]


def commands(code: str) -> list[list[str]]:
    """Return the commands of a bash block, as words."""
    lines = [part for line in code.replace("\\\n", " ").splitlines() for part in re.split(r" (?:&&|\|) ", line)]
    return [words for line in lines if (words := shlex.split(line, comments=True))]


# -- running them ------------------------------------------------------------------------------------------------------


@dataclass
class Outcome:
    """What a command or a block of Python did: `problem` is "" where all is well, `runs` what its trainings say."""

    where: str
    code: str
    seconds: float = 0.0
    problem: str = ""
    runs: dict[str, str] = field(default_factory=dict)


def run_page(path: Path, folder: Path, lines: int) -> list[Outcome]:
    """Run the blocks of a page in a folder with files of `lines` lines; the blocks after a failure run, too."""
    blocks = blocks_of(path)
    for block in blocks:
        if block.marker == "file":
            (folder / block.note).write_text(block.code, encoding="utf-8")
    names: dict[str, Any] = {"__name__": path.stem}
    outcomes = []
    with chdir(folder):
        for block in blocks:
            where = f"{path.name}:{block.line}"
            if block.marker in ("not run", "file"):
                continue
            if block.language == "python":
                outcomes.append(_run(where, block.code, lambda code=block.code: exec(code, names)))  # type: ignore[misc]
                _restore_documents(lines)
            elif block.language == "bash":
                for words in commands(block.code):
                    words = [_replace(word, block.replaced) for word in words]
                    outcomes.append(_run(where, shlex.join(words), lambda words=words: _run_command(words)))  # type: ignore[misc]
    return outcomes


def _run(where: str, code: str, work: Callable[[], None]) -> Outcome:
    """Run one command or block, and look at the runs that it made or changed."""
    outcome, began, output = Outcome(where, code), time.time(), io.StringIO()
    try:
        with redirect_stdout(output), redirect_stderr(output):
            work()
    except Exception as error:
        if not isinstance(error, _Failed):
            output.write(traceback.format_exc(limit=-3))
        outcome.problem = output.getvalue().strip()[-600:] or str(error)
    outcome.seconds = round(time.time() - began, 1)
    for recipe in sorted(Path().rglob("recipe.yaml")):
        run = RunFolder(recipe.parent)
        if run.record.exists() and run.record.stat().st_mtime >= began:
            verdict = verdict_of(run)
            outcome.runs[str(run.path)] = verdict
            if not re.search(r"\d", verdict):
                outcome.problem += f"\n{run.path} ends without a number: {verdict!r}"
            if not run.report_page.exists():
                outcome.problem += f"\n{run.path} ends without a page"
    outcome.problem = outcome.problem.strip()
    return outcome


def verdict_of(run: RunFolder) -> str:
    """Return the verdict of a run's report, or the scores of its labelled task; "" without any."""
    if not run.report.exists():
        return ""
    report = json.loads(run.report.read_text(encoding="utf-8"))
    return str((report.get("verdict") or {}).get("text") or "")


class _Failed(Exception):
    """A command that ended with an error."""


def _run_command(words: Sequence[str]) -> None:
    from distilvec.__main__ import run_command

    if words[:2] == ["python", "-c"]:
        exec(words[2], {})
        return
    if words[0] != "distilvec":
        raise _Failed(f"{words[0]} is not run here: mark the block")
    status = run_command(words[1:])
    against = words[1:2] == ["check"] and status == 1  # a judgement, not a failure
    if status and not against:
        raise _Failed(f"ended with {status}")


def _replace(word: str, replaced: dict[str, str]) -> str:
    """Put the words of a marker in their place; a pattern such as cache/teachers/* is the first path that it fits."""
    for old, new in replaced.items():
        if old in word:
            found = sorted(Path().glob(new)) if "*" in new else []
            word = word.replace(old, str(found[0]) if found else new)
    return word


# -- files -------------------------------------------------------------------------------------------------------------

ENGLISH = (
    "garden river stone bridge paper window morning letter market harbour winter field summer kitchen village station "
    "teacher doctor sailor farmer painter reads writes builds finds carries opens closes follows old quiet narrow"
).split()
TURKISH = (
    "kitap okumak seven çocuk evde yeni bir hikâye yazan ve annesi ona güzel sözler söyler bugün hava çok soğuk "
    "deniz şehir köprü öğretmen pazar sabah ev eski sessiz güzel"
).split()


def sentences(words: Sequence[str], count: int) -> list[str]:
    """Return different sentences of these words."""
    steps = (1, 2, 3, 5, 7, 11, 13, 17)
    return [
        " ".join(words[(number * step + number // 7 + step) % len(words)] for step in steps) + f" {number}"
        for number in range(count)
    ]


def make_files(folder: Path, lines: int) -> None:
    """Write the files that the pages name: texts of `lines` lines, a table of them, a suite, graded pairs."""
    import pyarrow
    from pyarrow import parquet

    import distilvec

    folder.mkdir(parents=True, exist_ok=True)
    (folder / "search").mkdir()
    documents, turkish = sentences(ENGLISH, lines), sentences(TURKISH, lines)
    for name, texts in (("documents", documents), ("queries", documents[::5]), ("turkish", turkish)):
        (folder / f"{name}.txt").write_text("\n".join(texts), encoding="utf-8")
    parquet.write_table(pyarrow.table({"text": documents}), folder / "documents.parquet")
    vectors = distilvec.load(BUILTIN, device="cpu").encode(documents)
    table = {"id": list(range(lines)), "content": documents, "vector": list(vectors)}
    parquet.write_table(pyarrow.table(table), folder / "dump.parquet")

    chosen = range(0, min(lines, 200), 4)
    rows = {
        "corpus": [{"_id": f"d{number}", "text": text} for number, text in enumerate(documents)],
        "queries": [{"_id": f"q{number}", "text": documents[number][:40]} for number in chosen],
    }
    for name, found in rows.items():
        (folder / "search" / f"{name}.jsonl").write_text("\n".join(map(json.dumps, found)), encoding="utf-8")
    judged = ["query-id\tcorpus-id\tscore", *(f"q{number}\td{number}\t1" for number in chosen)]
    (folder / "search" / "qrels.tsv").write_text("\n".join(judged), encoding="utf-8")
    (folder / "suite.yaml").write_text("- {name: search, type: retrieval, path: search}\n", encoding="utf-8")
    graded = [
        {"split": "validation", "sentence1": text, "sentence2": text[number:], "score": 5 - number / 4}
        for number, text in enumerate(turkish[:12])
    ]
    (folder / "stsb_tr.jsonl").write_text("\n".join(map(json.dumps, graded)), encoding="utf-8")


def _restore_documents(lines: int) -> None:
    """Bring a file of texts that a page has just made to the size that is asked for."""
    path = Path("documents.txt")
    texts = path.read_text(encoding="utf-8").splitlines()
    if len(texts) != lines:
        texts = (texts + [text for text in sentences(ENGLISH, lines) if text not in texts])[:lines]
        path.write_text("\n".join(texts), encoding="utf-8")


@contextmanager
def capped(steps: int | None) -> Iterator[None]:
    """Cap the steps of every training inside."""
    from distilvec.config import recipe as recipes

    validate = recipes.validate

    def validate_capped(*arguments: Any, **more: Any) -> Any:
        recipe = validate(*arguments, **more)
        if steps is not None:
            most = min(steps, recipe.train.max_steps or steps)
            recipe = recipe.model_copy(update={"train": recipe.train.model_copy(update={"max_steps": most})})
        return recipe

    recipes.validate = validate_capped
    try:
        yield
    finally:
        recipes.validate = validate


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lines", type=int, default=10_000)
    parser.add_argument("--steps", type=int, help="cap of every training's steps; as printed by default")
    parser.add_argument("--out", type=Path, required=True, help="a new folder")
    parser.add_argument("--pages", type=Path, nargs="+", default=PAGES)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    os.environ["DISTILVEC_CACHE"] = str(arguments.out.resolve() / "cache")
    rows = []
    for page in arguments.pages:
        folder = arguments.out.resolve() / page.stem
        make_files(folder, arguments.lines)
        with capped(arguments.steps):
            outcomes = run_page(page.resolve(), folder, arguments.lines)
        for outcome in outcomes:
            state = "FAILED" if outcome.problem else "ok"
            print(f"{state:6} {outcome.seconds:7.1f} s  {outcome.where}  {outcome.code.strip().splitlines()[0]}")
            for line in outcome.problem.splitlines():
                print(f"       {line}")
            for run, verdict in outcome.runs.items():
                print(f"       {run}: {verdict}")
        rows += [{"page": page.name, **asdict(outcome)} for outcome in outcomes]
    if arguments.json:
        content = {"lines": arguments.lines, "steps": arguments.steps, "rows": rows}
        write_json(arguments.json, content)
    sys.exit(any(row["problem"] for row in rows))


if __name__ == "__main__":
    main()
