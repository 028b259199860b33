"""The quickstart corpus, on every machine: the docstrings of the running interpreter's standard library.

About 7,600 docstrings of modules, classes and functions: real English prose. A tenth of the functions, by a hash of
their names, is for evaluation: find the docstring from its first sentence or from the function's spelled-out name.
"""

from __future__ import annotations

import ast
import hashlib
import inspect
import json
import os
import random
import re
import sysconfig
import warnings
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

from distilvec.core.errors import DistilvecError

FORMAT = 1  # of the retrieval tasks
SKIPPED_FOLDERS = frozenset({"site-packages", "dist-packages", "__pycache__", "test", "tests", "idle_test"})
EVALUATED = 10  # one function in ten
SHORTEST = 3  # words of a passage, of a query, of a document
LONGEST_QUERY = 300  # characters
LONGEST = 2000  # characters of a whole docstring given as one passage or document
_SENTENCE_END = re.compile(r"(?<!\be\.g)(?<!\bi\.e)(?<!\betc)(?<!\bvs)(?<!\bcf)[.!?](?=\s|$)")
_WORD = re.compile(r"[A-Z]+(?=[A-Z][a-z])|[A-Z]?[a-z]+|[A-Z]+|[0-9]+|[^\W\d_]+")


class Docstring(NamedTuple):
    """One docstring, dedented, of the object named `name` ('os.path.splitext')."""

    name: str
    is_function: bool
    text: str


def passages() -> Iterator[str]:
    """Training texts: each paragraph, and each whole docstring of several paragraphs, with white space collapsed.

    Left out are the docstrings for evaluation, docstrings that begin with the same sentence as one of them, and every
    text that is a part of one: paragraph, first sentence, remainder, whole.
    """
    evaluated = [one.text for one in docstrings() if is_evaluated(one)]
    queries = {_key(split_first_sentence(text)[0]) for text in evaluated}
    parts = {_key(part) for text in evaluated for part in (*split_first_sentence(text), *_paragraphs(text))}
    parts |= {_key(part) for text in evaluated for part in (_cut(split_first_sentence(text)[1]), *_passages_of(text))}
    for one in docstrings():
        if not is_evaluated(one) and _key(split_first_sentence(one.text)[0]) not in queries:
            yield from (text for text in _passages_of(one.text) if _key(text) not in parts)


def write_retrieval_task(folder: Path, seed: int) -> None:
    """Write two retrieval tasks over the functions for evaluation: corpus.jsonl, queries.jsonl and qrels.tsv each.

    `docstring-sentence`: the query is the first sentence, the document the rest. `docstring-name`: the query is the
    spelled-out name, the document the whole docstring. Equal documents are one document, equal queries one query with
    several relevant documents. `seed` shuffles both. `suite.yaml` names both tasks.
    """
    evaluated = [one for one in docstrings() if is_evaluated(one)]
    sentences = [split_first_sentence(one.text) for one in evaluated]
    tasks = {
        "docstring-sentence": [(query, _cut(document)) for query, document in sentences],
        "docstring-name": [(spell_out(one.name), _cut(" ".join(one.text.split()))) for one in evaluated],
    }
    for name, pairs in tasks.items():
        _write_task(folder / name, pairs, random.Random(seed))
    suite = "".join(f"- {{name: {name}, type: retrieval, path: {name}}}\n" for name in tasks)
    (folder / "suite.yaml").write_text(suite, encoding="utf-8")


@cache
def docstrings(folder: Path | None = None) -> tuple[Docstring, ...]:
    """The docstrings below `folder` (by default the standard library) by file name and line, test packages left out.

    Files that do not parse are skipped. Errors: DistilvecError if there is no docstring.
    """
    folder = folder or Path(sysconfig.get_paths()["stdlib"])
    found: list[Docstring] = []
    for path in _sources(folder):
        parts = path.relative_to(folder).with_suffix("").parts
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # invalid escapes in the sources
                tree = ast.parse(path.read_bytes())
        except (SyntaxError, ValueError, OSError, RecursionError):
            continue
        found += _docstrings_of(tree, ".".join(parts[:-1] if parts[-1] == "__init__" else parts))
    if not found:
        raise DistilvecError(
            "corpus.sources",
            f"no Python sources with docstrings in {folder}: this interpreter comes without sources.",
            "Use your own texts: 'path'.",
        )
    return tuple(found)


def _sources(folder: Path) -> list[Path]:
    """Python files below a folder, sorted; skips third-party packages and tests."""
    sources: list[Path] = []
    for place, names, files in os.walk(folder):
        names[:] = [name for name in names if name not in SKIPPED_FOLDERS]  # in place: os.walk enters what is left
        sources += [Path(place, name) for name in files if name.endswith(".py")]
    return sorted(sources)


def is_evaluated(one: Docstring) -> bool:
    """True for evaluation: a tenth of the functions whose docstring has a first sentence and more text."""
    first, rest = split_first_sentence(one.text)
    short = min(len(first.split()), len(rest.split())) < SHORTEST
    if not one.is_function or short or len(first) > LONGEST_QUERY or first.startswith(">>>"):
        return False
    digest = hashlib.blake2b(one.name.encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") % EVALUATED == 0


def split_first_sentence(text: str) -> tuple[str, str]:
    """(first sentence, remainder), white space collapsed. The sentence ends at its stop or with the first paragraph."""
    first, *others = _paragraphs(text) or [""]
    end = _SENTENCE_END.search(first)
    cut = end.end() if end else len(first)
    return first[:cut], " ".join([first[cut:].strip(), *others]).strip()


def spell_out(name: str) -> str:
    """A name as words: 'futures.ThreadPoolExecutor.shut_down' to 'futures thread pool executor shut down'."""
    return " ".join(_WORD.findall(name)).lower()


def _write_task(folder: Path, pairs: list[tuple[str, str]], shuffled: random.Random) -> None:
    """Write one task from its (query, document) pairs, with ids in random order."""
    folder.mkdir(parents=True, exist_ok=True)
    ids = []
    for file, letter, rest, column in (("corpus", "d", {"title": ""}, 1), ("queries", "q", {}, 0)):
        texts = list(dict.fromkeys(pair[column] for pair in pairs))
        shuffled.shuffle(texts)
        rows = [{"id": f"{letter}{number}", **rest, "text": text} for number, text in enumerate(texts)]
        lines = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
        (folder / f"{file}.jsonl").write_text(lines, encoding="utf-8")
        ids.append({row["text"]: row["id"] for row in rows})
    judged = sorted({f"{ids[1][query]}\t{ids[0][document]}\t1\n" for query, document in pairs})
    (folder / "qrels.tsv").write_text("".join(["query-id\tcorpus-id\tscore\n", *judged]), encoding="utf-8")


def _docstrings_of(node: ast.AST, name: str) -> Iterator[Docstring]:
    """The node's own docstring, then those of the classes and functions in it, also below if and try."""
    if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
        text = ast.get_docstring(node, clean=False)
        if text and text.strip():
            clean = inspect.cleandoc(text).encode("utf-8", "replace").decode()
            yield Docstring(name, isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)), clean)
    for inner in ast.iter_child_nodes(node):
        if isinstance(inner, (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
            yield from _docstrings_of(inner, f"{name}.{inner.name}")
        elif isinstance(inner, ast.stmt | ast.ExceptHandler | ast.match_case):
            yield from _docstrings_of(inner, name)


def _paragraphs(text: str) -> list[str]:
    """Paragraphs with white space collapsed; blank lines part them."""
    return [" ".join(part.split()) for part in re.split(r"\n\s*\n", text) if part.strip()]


def _passages_of(text: str) -> list[str]:
    paragraphs = _paragraphs(text)
    whole = [_cut(" ".join(paragraphs))] if len(paragraphs) > 1 else []
    return [passage for passage in [*paragraphs, *whole] if len(passage.split()) >= SHORTEST]


def _cut(text: str) -> str:
    """At most LONGEST characters, cut between words."""
    return text if len(text) <= LONGEST else text[: LONGEST + 1].rpartition(" ")[0] or text[:LONGEST]


def _key(text: str) -> str:
    return " ".join(text.casefold().split())
