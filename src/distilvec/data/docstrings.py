"""A corpus that every machine has: the docstrings of the running interpreter's own standard library.

About 7,600 docstrings of modules, classes and functions: real English prose. Functions are held out from training by a
hash of their names; they make a retrieval task of their own: find the docstring from its first sentence or its
function's spelled-out name.
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
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Literal

from distilvec.core.errors import DistilvecError

FORMAT = 1  # of the retrieval tasks
Kind = Literal["module", "class", "function"]
_Documented = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef

SKIPPED_FOLDERS = frozenset({"site-packages", "dist-packages", "__pycache__", "test", "tests", "idle_test"})
HELD_OUT_SHARE = 10  # one function in so many
SHORTEST = 3  # words of a passage, of a query, of a document
LONGEST_QUERY = 300  # characters of a first sentence that is asked as a query
LONGEST = 2000  # characters of a whole docstring given as one passage or document
_SENTENCE_END = re.compile(r"(?<!\be\.g)(?<!\bi\.e)(?<!\betc)(?<!\bvs)(?<!\bcf)[.!?](?=\s|$)")
_WORD = re.compile(r"[A-Z]+(?=[A-Z][a-z])|[A-Z]?[a-z]+|[A-Z]+|[0-9]+|[^\W\d_]+")


@dataclass(frozen=True)
class Docstring:
    """One docstring, dedented, of the thing named `qualified_name` ('os.path.splitext')."""

    qualified_name: str
    kind: Kind
    text: str


@dataclass(frozen=True)
class Library:
    """All docstrings of a folder of Python sources, and how many files did not parse."""

    docstrings: tuple[Docstring, ...]
    unparsed: int


@cache
def read_library(folder: Path) -> Library:
    """The docstrings below `folder`, in the order of file names and lines; test packages are left out.

    Files that do not parse are skipped and counted. Errors: DistilvecError if there is no docstring at all.
    """
    found: list[Docstring] = []
    unparsed = 0
    for path in _source_files(folder):
        parts = path.relative_to(folder).with_suffix("").parts
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # invalid escapes in other people's sources
                tree = ast.parse(path.read_bytes())
        except (SyntaxError, ValueError, OSError, RecursionError):
            unparsed += 1
            continue
        found += _docstrings_of(tree, ".".join(parts[:-1] if parts[-1] == "__init__" else parts), "module")
    if not found:
        raise DistilvecError(
            f"[corpus.sources] no Python sources with docstrings in {folder}: this interpreter comes without them. Give texts with 'path'."
        )
    return Library(tuple(found), unparsed)


def docstrings() -> list[Docstring]:
    """Every docstring of the standard library, in an order that depends on the interpreter alone."""
    return list(read_library(Path(sysconfig.get_paths()["stdlib"])).docstrings)


def heldout(docstring: Docstring) -> bool:
    """Whether a docstring is kept for evaluation: a tenth of the functions whose docstring has a first sentence and more."""
    if docstring.kind != "function":
        return False
    first, rest = split_first_sentence(docstring.text)
    if min(len(first.split()), len(rest.split())) < SHORTEST or len(first) > LONGEST_QUERY or first.startswith(">>>"):
        return False
    digest = hashlib.blake2b(docstring.qualified_name.encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") % HELD_OUT_SHARE == 0


def passages() -> Iterator[str]:
    """Training texts: each paragraph, and each whole docstring of several; white space collapsed, nothing held out.

    Left out are held-out docstrings, docstrings that begin with the same sentence as one (copies of a function under
    another name), and every text that is a part of one: paragraph, first sentence, remainder, whole.
    """
    queries, parts = _heldout_texts()
    for docstring in docstrings():
        if heldout(docstring) or _key(split_first_sentence(docstring.text)[0]) in queries:
            continue
        for text in _passages_of(docstring.text):
            if _key(text) not in parts:
                yield text


def split_first_sentence(text: str) -> tuple[str, str]:
    """(first sentence, remainder), white space collapsed. The sentence ends at its stop or with the first paragraph."""
    first, *others = _paragraphs(text) or [""]
    end = _SENTENCE_END.search(first)
    cut = end.end() if end else len(first)
    return first[:cut], " ".join([first[cut:].strip(), *others]).strip()


def spell_out(qualified_name: str) -> str:
    """A name as words: 'concurrent.futures.ThreadPoolExecutor.shut_down' to 'concurrent futures thread pool executor shut down'."""
    return " ".join(_WORD.findall(qualified_name)).lower()


def write_retrieval_task(folder: Path, seed: int) -> None:
    """Write two retrieval tasks over the held-out functions, each a folder of corpus.jsonl, queries.jsonl and qrels.tsv.

    `docstring-sentence`: the query is the first sentence, the document what follows it. `docstring-name`: the query is
    the spelled-out name, the document the whole docstring. Equal documents are one, equal queries are one with several
    right answers. `seed` shuffles documents and queries, so that no order tells. `suite.yaml` names both tasks.
    """
    held = [docstring for docstring in docstrings() if heldout(docstring)]
    sentences = [split_first_sentence(docstring.text) for docstring in held]
    _write_task(folder / "docstring-sentence", [(query, _cut(document)) for query, document in sentences], seed)
    _write_task(
        folder / "docstring-name",
        [(spell_out(one.qualified_name), _cut(" ".join(one.text.split()))) for one in held],
        seed,
    )
    tasks = (
        f"- {{name: {name}, type: retrieval, path: {name}}}\n" for name in ("docstring-sentence", "docstring-name")
    )
    (folder / "suite.yaml").write_text("".join(tasks), encoding="utf-8")


def _write_task(folder: Path, pairs: list[tuple[str, str]], seed: int) -> None:
    shuffled = random.Random(seed)
    queries, documents = (dict.fromkeys(column, "") for column in zip(*pairs, strict=True))
    for letter, numbered in (("d", documents), ("q", queries)):
        texts = list(numbered)
        shuffled.shuffle(texts)
        numbered.clear()
        numbered.update((text, f"{letter}{number}") for number, text in enumerate(texts))
    folder.mkdir(parents=True, exist_ok=True)
    corpus = (
        json.dumps({"id": number, "title": "", "text": text}, ensure_ascii=False) for text, number in documents.items()
    )
    (folder / "corpus.jsonl").write_text("\n".join(corpus) + "\n", encoding="utf-8")
    asked = (json.dumps({"id": number, "text": text}, ensure_ascii=False) for text, number in queries.items())
    (folder / "queries.jsonl").write_text("\n".join(asked) + "\n", encoding="utf-8")
    judged = sorted({f"{queries[query]}\t{documents[document]}\t1" for query, document in pairs})
    (folder / "qrels.tsv").write_text("\n".join(["query-id\tcorpus-id\tscore", *judged]) + "\n", encoding="utf-8")


def _source_files(folder: Path) -> list[Path]:
    files: list[Path] = []
    for inside, folders, names in os.walk(folder):
        folders[:] = [name for name in folders if name not in SKIPPED_FOLDERS]
        files += [Path(inside, name) for name in names if name.endswith(".py")]
    return sorted(files)


def _docstrings_of(node: _Documented, name: str, kind: Kind) -> Iterator[Docstring]:
    """The node's own docstring, then those of the classes and functions in it, also below if and try."""
    text = ast.get_docstring(node, clean=False)
    if text and text.strip():
        yield Docstring(name, kind, inspect.cleandoc(text).encode("utf-8", "replace").decode())
    waiting: list[ast.AST] = list(reversed(node.body))
    while waiting:
        inner = waiting.pop()
        if isinstance(inner, (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
            yield from _docstrings_of(
                inner, f"{name}.{inner.name}", "class" if isinstance(inner, ast.ClassDef) else "function"
            )
        elif isinstance(inner, ast.stmt | ast.ExceptHandler | ast.match_case):
            waiting += reversed(list(ast.iter_child_nodes(inner)))


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


def _heldout_texts() -> tuple[set[str], set[str]]:
    """(first sentences, every part) of the held-out docstrings, as keys."""
    queries: set[str] = set()
    parts: set[str] = set()
    for docstring in docstrings():
        if heldout(docstring):
            first, rest = split_first_sentence(docstring.text)
            queries.add(_key(first))
            parts.update(
                map(_key, (first, rest, _cut(rest), *_paragraphs(docstring.text), *_passages_of(docstring.text)))
            )
    return queries, parts
