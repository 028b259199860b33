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

FORMAT = 1  # of the retrieval tasks
SKIPPED_FOLDERS = frozenset({"site-packages", "dist-packages", "__pycache__", "test", "tests", "idle_test"})
EVALUATED = 10  # one function in ten
MIN_WORDS = 3  # of a passage, of a query, of a document
MAX_QUERY = 300  # characters
MAX_PASSAGE = 2000  # characters of a whole docstring given as one passage or document
_SENTENCE_END = re.compile(r"(?<!\be\.g)(?<!\bi\.e)(?<!\betc)(?<!\bvs)(?<!\bcf)[.!?](?=\s|$)")
_WORD = re.compile(r"[A-Z]+(?=[A-Z][a-z])|[A-Z]?[a-z]+|[A-Z]+|[0-9]+|[^\W\d_]+")


class Docstring(NamedTuple):
    """One docstring, dedented, of the object named `name` ('os.path.splitext')."""

    name: str
    is_function: bool
    text: str


def passages() -> Iterator[str]:
    """Training texts: the passages of `passages_by_name` without their names."""
    for _, passage in passages_by_name():
        yield passage


def passages_by_name() -> Iterator[tuple[str, str]]:
    """Names of objects, each with a training text of its docstring: a paragraph, or the whole, white space collapsed.

    Left out are the docstrings for evaluation, docstrings that begin with the same sentence as one of them, and every
    text that is a part of one: paragraph, first sentence, remainder, whole.
    """
    queries = set()
    evaluated_parts: set[str] = set()
    for docstring in docstrings():
        if is_evaluated(docstring):
            text = docstring.text
            first_sentence, remainder = split_first_sentence(text)
            queries.add(_key(first_sentence))
            parts = [first_sentence, remainder, _cut(remainder), *_paragraphs(text), *_passages_of(text)]
            evaluated_parts.update(_key(part) for part in parts)

    for docstring in docstrings():
        first_sentence, _ = split_first_sentence(docstring.text)
        if is_evaluated(docstring) or _key(first_sentence) in queries:
            continue
        for passage in _passages_of(docstring.text):
            if _key(passage) not in evaluated_parts:
                yield docstring.name, passage


def write_retrieval_task(folder: Path, seed: int) -> None:
    """Write two retrieval tasks over the functions for evaluation: corpus.jsonl, queries.jsonl and qrels.tsv each.

    `docstring-sentence`: the query is the first sentence, the document the rest. `docstring-name`: the query is the
    spelled-out name, the document the whole docstring. Equal documents are one document, equal queries one query with
    several relevant documents. `seed` shuffles both. `suite.yaml` names both tasks.
    """
    by_sentence = []
    by_name = []
    for docstring in docstrings():
        if is_evaluated(docstring):
            first_sentence, remainder = split_first_sentence(docstring.text)
            by_sentence.append((first_sentence, _cut(remainder)))
            by_name.append((spell_out(docstring.name), _cut(" ".join(docstring.text.split()))))
    tasks = {"docstring-sentence": by_sentence, "docstring-name": by_name}
    for name, pairs in tasks.items():
        _write_task(folder / name, pairs, random.Random(seed))
    suite = "".join(f"- {{name: {name}, type: retrieval, path: {name}}}\n" for name in tasks)
    (folder / "suite.yaml").write_text(suite, encoding="utf-8")


@cache
def docstrings(folder: Path | None = None) -> tuple[Docstring, ...]:
    """The docstrings below `folder` (by default the standard library) by file name and line, test packages left out.

    Files that do not parse are skipped. An interpreter without sources has no docstrings.
    """
    folder = folder or Path(sysconfig.get_paths()["stdlib"])
    entries: list[Docstring] = []
    for path in _sources(folder):
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # invalid escapes in the sources
                tree = ast.parse(path.read_bytes())
        except (SyntaxError, ValueError, OSError, RecursionError):
            continue
        parts = path.relative_to(folder).with_suffix("").parts
        if parts[-1] == "__init__":
            parts = parts[:-1]
        entries += _docstrings_of(tree, ".".join(parts))
    return tuple(entries)


def _sources(folder: Path) -> list[Path]:
    """Python files below a folder, sorted; skips third-party packages and tests."""
    sources: list[Path] = []
    for place, names, files in os.walk(folder):
        names[:] = [name for name in names if name not in SKIPPED_FOLDERS]  # in place: os.walk enters what is left
        sources += [Path(place, name) for name in files if name.endswith(".py")]
    return sorted(sources)


def is_evaluated(docstring: Docstring) -> bool:
    """Whether it is for evaluation: a tenth of the functions whose docstring has a first sentence and more text."""
    if not docstring.is_function:
        return False
    query, document = split_first_sentence(docstring.text)
    if len(query.split()) < MIN_WORDS or len(document.split()) < MIN_WORDS:
        return False
    if len(query) > MAX_QUERY or query.startswith(">>>"):
        return False
    digest = hashlib.blake2b(docstring.name.encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") % EVALUATED == 0


def split_first_sentence(text: str) -> tuple[str, str]:
    """(first sentence, remainder), white space collapsed. The sentence ends at its stop or with the first paragraph."""
    paragraph, *later_paragraphs = _paragraphs(text) or [""]
    stop = _SENTENCE_END.search(paragraph)
    end = stop.end() if stop else len(paragraph)
    return paragraph[:end], " ".join([paragraph[end:].strip(), *later_paragraphs]).strip()


def spell_out(name: str) -> str:
    """A name as words: 'futures.ThreadPoolExecutor.shut_down' to 'futures thread pool executor shut down'."""
    return " ".join(_WORD.findall(name)).lower()


def _write_task(folder: Path, pairs: list[tuple[str, str]], generator: random.Random) -> None:
    """Write one task from its (query, document) pairs, with ids in random order."""
    folder.mkdir(parents=True, exist_ok=True)
    document_ids = _number([document for _, document in pairs], "d", generator)
    query_ids = _number([query for query, _ in pairs], "q", generator)
    documents = [{"id": name, "title": "", "text": text} for text, name in document_ids.items()]
    queries = [{"id": name, "text": text} for text, name in query_ids.items()]
    _write_lines(folder / "corpus.jsonl", documents)
    _write_lines(folder / "queries.jsonl", queries)
    judgements = {f"{query_ids[query]}\t{document_ids[document]}\t1\n" for query, document in pairs}
    content = "".join(["query-id\tcorpus-id\tscore\n", *sorted(judgements)])
    (folder / "qrels.tsv").write_text(content, encoding="utf-8")


def _number(texts: list[str], letter: str, generator: random.Random) -> dict[str, str]:
    """Map distinct texts, in random order, to their ids."""
    distinct = list(dict.fromkeys(texts))
    generator.shuffle(distinct)
    return {text: f"{letter}{number}" for number, text in enumerate(distinct)}


def _write_lines(path: Path, rows: list[dict[str, str]]) -> None:
    lines = [json.dumps(row, ensure_ascii=False) + "\n" for row in rows]
    path.write_text("".join(lines), encoding="utf-8")


def _docstrings_of(node: ast.AST, name: str) -> Iterator[Docstring]:
    """The docstring of a node, then those of the classes and functions in it, also below if and try."""
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
    passages = _paragraphs(text)
    if len(passages) > 1:
        passages.append(_cut(" ".join(passages)))
    return [passage for passage in passages if len(passage.split()) >= MIN_WORDS]


def _cut(text: str) -> str:
    """At most MAX_PASSAGE characters, cut between words."""
    if len(text) <= MAX_PASSAGE:
        return text
    whole_words = text[: MAX_PASSAGE + 1].rpartition(" ")[0]
    return whole_words or text[:MAX_PASSAGE]


def _key(text: str) -> str:
    return " ".join(text.casefold().split())
