"""The table of public data (table.yaml): for each set its files, what they are made of, source and licence."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, ValidationError

from distilvec.config.base import Section, explain, invalid, key, unknown
from distilvec.config.paths import data_folder
from distilvec.config.yaml_dialect import read_yaml
from distilvec.core.errors import DistilvecError

Format = Literal[
    "csv",
    "tsv",
    "lines",
    "records",
    "jsonl",
    "documents",
    "paragraphs",
    "tagged",
    "smart",
    "squad",
    "wordnet",
    "dataset",
]
Repository = Annotated[str, Field(pattern=r"^[\w.-]+/[\w.-]+@[0-9a-f]{40}$")]


class Part(Section):
    """Rows that are made of some published files by one rule."""

    format: Format
    files: list[str] = key(
        [], "published names: below the repository, or patterns of an archive's entries; {a,b} is a name each"
    )
    names: str | None = key(
        None, "pattern of the names: its groups are columns, and files that agree in them one table"
    )
    repository: Repository | None = key(None, "owner/name@commit on GitHub; the set's by default")
    archive: str | None = key(None, "'repository', or a .zip of it: `files` are patterns of its entries")
    dataset: str | None = key(None, "Hugging Face id instead of files (needs the package datasets)")
    config: str | None = None
    split: str = "train"
    columns: dict[str, str | int | list[str | int]] = key({}, "our columns with their names, or numbers from 0")
    separator: str = key(" ", "between several of their columns that are one of ours")
    each: bool = key(False, "several of their columns are a row each instead")
    clean: Literal["nothing", "ends", "spaces", "escapes"] = key(
        "nothing", "strip texts; 'spaces': also single spaces inside; 'escapes': backslashes are spaces, too"
    )
    natural: bool = key(False, "files of an archive by number: 2.txt before 10.txt")
    pattern: str = key("(?P<text>.*)", "of lines and records: its named groups are columns")
    values: dict[str, dict[str, str | int]] = key({}, "by column: their values with ours")
    numbers: list[str] = key([], "columns that are numbers")
    constant: dict[str, str | int] = key({}, "columns with the same value in every row")
    rows: Literal["documents", "questions", "definitions", "examples"] = "documents"
    longest: int | None = key(None, "words of a paragraph; longer ones are read line by line", gt=0)
    distinct: bool = key(False, "leave out empty and repeated texts")
    encoding: str = "utf-8-sig"

    def file_names(self) -> list[str]:
        """The published names, those in braces written out: a{1,2}.txt is a1.txt and a2.txt."""
        return [name for written in self.files for name in _each_name(written)]


def _each_name(written: str) -> list[str]:
    start, brace, rest = written.partition("{")
    if not brace:
        return [written]
    choices, _, end = rest.partition("}")
    return [f"{start}{choice}{end}" for choice in choices.split(",")]


class OutFile(Section):
    """A file of the data folder."""

    parts: list[Part] = key([], "in order; none for a set that a person has to fetch")
    rows: int | None = key(None, "number of rows of the version named here")
    sha256: str | None = key(None, "of the rows, before compression")


class DataSet(Section):
    """A set of public data."""

    about: str
    licence: str
    size: float = key(0, "megabytes to download, about")
    repository: Repository | None = None
    manual: str | None = key(None, "where a person finds the data, if distilvec cannot fetch it")
    files: dict[str, OutFile] = key({}, "by path below the data folder")

    def sources(self) -> Iterator[str]:
        """Yield the repositories and data sets that the files are made of, without repeats."""
        seen = set[str]()
        for file in self.files.values():
            for part in file.parts:
                source = part.dataset or part.repository or self.repository or ""
                if source not in seen:
                    seen.add(source)
                    yield source


@functools.cache
def data_sets() -> Mapping[str, DataSet]:
    """Read the table; DistilvecError if it is damaged."""
    path = Path(__file__).with_name("table.yaml")
    entries = {}
    for name, entry in read_yaml(path, "data", "Install distilvec again.").items():
        try:
            entries[name] = DataSet.model_validate(entry)
        except ValidationError as error:
            raise invalid("data", str(path), explain(error, DataSet, name)) from None
    return entries


def data_set(name: str) -> DataSet:
    """The entry of a name; DistilvecError with the nearest name for an unknown one."""
    entries = data_sets()
    if name not in entries:
        raise DistilvecError(
            f"no data set '{name}'{unknown(name, entries)} `distilvec data list` shows all.", key="data"
        )
    return entries[name]


def present(entry: DataSet) -> bool:
    """Whether every file of a set is in a data folder."""
    return all((data_folder() / file).is_file() for file in entry.files)


def how_to_get(path: Path) -> str | None:
    """The command that fetches a file or folder of the data folder, or its origin; None for any other path."""
    for name, entry in data_sets().items():
        for file in entry.files:
            parts = Path(file).parts
            folder = parts[:-1]
            is_file = path.parts[-len(parts) :] == parts
            is_folder = bool(folder) and path.parts[-len(folder) :] == folder
            if is_file or is_folder:
                return entry.manual or f"Get it with: distilvec data get {name}"
    return None
