"""The texts of a corpus source: files of any readable format, folders, Hugging Face datasets, built-in texts."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from distilvec.config.schema import SourceSection
from distilvec.core.errors import ColumnError, DistilvecError, nearest
from distilvec.core.storage import Remote
from distilvec.data import docstrings, readers
from distilvec.data.readers import READABLE, extension
from distilvec.data.task_rows import found_value
from distilvec.models.load import load_tokenizer

TOKENIZER_FILES = ("tokenizer.json", "vocab.txt", "vocab.json", "merges.txt", "tokenizer.model")
COLUMNS = (  # the first group of which every column exists gives the texts
    ["text"],
    ["sentence"],
    ["query"],
    ["document"],
    ["question"],
    ["anchor", "positive"],
    ["sentence1", "sentence2"],
)


def read_source(source: SourceSection, position: int) -> Iterator[str]:
    """The raw texts of one source, whole, in order, streaming; a missing value is an empty text.

    `position` is the source's index in corpus.sources, for error messages.
    Errors: DistilvecError for files that are missing, damaged or not of the format that their names give.
    """
    key = f"corpus.sources.{position}"
    if source.builtin is not None:
        yield from docstrings.passages()
    elif source.tokenizer is not None:
        yield from _tokens(source.tokenizer, source.revision, f"{key}.tokenizer")
    elif source.dataset is not None:
        read = partial(readers.read_dataset, source, f"{key}.dataset")
        yield from _texts(read, source, key, f"dataset {source.dataset}")
    option = "url" if source.url else "path"
    for path in source_files(source, position) if source.path or source.url else ():
        yield from _texts(partial(readers.read_rows, path, f"{key}.{option}"), source, key, str(path))


def source_files(source: SourceSection, position: int) -> list[Path]:
    """The local files of a source: the file itself, or a folder's readable files, sorted, at any depth.

    Of an address they are local copies, which are fetched here if they are missing or other than the remote files.

    Hidden files and files of other kinds in a folder are passed over. Errors: DistilvecError if there is none.
    """
    if source.dataset is not None:
        return sorted(path for path in Path(source.dataset).rglob("*") if path.is_file())
    if source.tokenizer is not None:
        return [path for name in TOKENIZER_FILES if (path := Path(source.tokenizer) / name).is_file()]
    if source.url is not None:
        remote = Remote(source.url, f"corpus.sources.{position}.url")
        return remote.download(lambda path: extension(path) in READABLE)
    if source.path is None:
        return []
    path, key = source.path, f"corpus.sources.{position}.path"
    if not path.is_dir():
        readers.check_readable(path, key)
        return [path]
    found = (file for file in path.rglob("*") if file.is_file() and extension(file) in READABLE)
    files = sorted(file for file in found if not any(part.startswith(".") for part in file.relative_to(path).parts))
    if not files:
        fix = (
            "Name what save_to_disk wrote with 'dataset'"
            if readers.is_saved_dataset(path)
            else f"Readable: {', '.join(READABLE)}"
        )
        raise DistilvecError(key, f"{path}: no readable file in the folder.", f"{fix}.")
    return files


def _tokens(name: str, revision: str | None, key: str) -> Iterator[str]:
    """The texts of a tokenizer's tokens but its special ones, by number."""
    tokenizer = load_tokenizer(name, key, revision=revision)
    special = set(tokenizer.all_special_tokens)
    for token, _ in sorted(tokenizer.get_vocab().items(), key=lambda item: item[1]):
        if token not in special:
            yield tokenizer.convert_tokens_to_string([token])


def text_columns(names: list[str], source: SourceSection, key: str, place: str) -> list[str]:
    """The columns of a table that hold texts: the recipe's, else the first known group.

    If a table has both `query` and `document`, the column of the source's role is taken. Errors: DistilvecError if
    there is none.
    """
    given = [source.column] if isinstance(source.column, str) else source.column or []
    for option, required in (("where", [*source.where]), ("column", given)):
        for name in required:
            if name not in names:
                raise DistilvecError(f"{key}.{option}", f"{place} has no column '{name}'; {_found(name, names)}")
    group = given or next((group for group in COLUMNS if all(name in names for name in group)), [])
    if not group:
        hint = next((hint for name in ("text", "sentence") if (hint := nearest(name, names))), ".")
        tried = ", ".join(" and ".join(group) for group in COLUMNS)
        problem = f"no column with a known name of texts ({tried}); found: {', '.join(names) or 'none'}"
        raise ColumnError(
            f"{key}.column",
            f"{place} has {problem}.",
            f"Name the right one with 'column'{hint}",
            f"Name the right one with --column{hint}",
        )
    return [source.role] if group == ["query"] and not given and source.role in names else group


def _texts(
    read: Callable[[readers.Choose], readers.Rows], source: SourceSection, key: str, place: str
) -> Iterator[str]:
    """The texts of one file or dataset; an empty `text` is replaced by the `title`, if the table has one."""
    columns: list[str] = []

    def choose(names: list[str]) -> Collection[str]:
        columns[:] = text_columns(names, source, key, place)
        return {*columns, *source.where, *({"title"} & {*names})}

    for where, row in read(choose):
        if not columns:
            choose(list(row))
        if source.where and not all(name in row and _matches(row[name], value) for name, value in source.where.items()):
            continue
        for column in columns:
            if column not in row:
                raise DistilvecError(where.key, f"{where.place}: no '{column}'; {_found(column, list(row))}")
            text = row[column]
            if "title" in row and column == "text" and source.column is None and not str(text or "").strip():
                text = row["title"]
            if text is not None and not isinstance(text, str):
                problem = f"{where.place}: '{column}' holds {found_value(text)}."
                fix = "Convert it to text, or set another {}."
                raise ColumnError(f"{key}.column", problem, fix.format("'column'"), fix.format("--column"))
            if text and "\0" in text:
                raise DistilvecError(where.key, f"{where.place}: '{column}' holds a NUL character.", "Remove it.")
            yield text or ""


def _matches(value: Any, allowed: str | int | list[str | int]) -> bool:
    return any(value == one or str(value) == str(one) for one in (allowed if isinstance(allowed, list) else [allowed]))


def _found(name: str, names: list[str]) -> str:
    return f"found: {', '.join(names) or 'none'}{nearest(name, names) or '.'}"
