"""Public data that the built-in recipes read: the table (recipes/data/public.yaml), and rows of the published files.

The table has each set's files, what they are made of, source and licence. Files are converted on the user's machine,
because several licences do not allow us to publish a prepared copy. Nothing in a file is run or unpickled.
"""

from __future__ import annotations

import csv
import functools
import gzip
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import chain
from pathlib import Path
from typing import IO, Annotated, Any, Literal, cast

import yaml
from pydantic import Field, ValidationError

from distilvec.config.base import Section, explain, invalid, key, unknown
from distilvec.config.builtin import recipe_folder
from distilvec.config.paths import data_folder
from distilvec.config.yaml_dialect import read_yaml
from distilvec.core.errors import DistilvecError, first_line

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
        names = []
        for written in self.files:
            start, brace, rest = written.partition("{")
            choices, _, end = rest.partition("}")
            if brace:
                names += [f"{start}{choice}{end}" for choice in choices.split(",")]
            else:
                names += [written]
        return names


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
    """Read the table."""
    path = recipe_folder() / "data" / "public.yaml"
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


# -- rows of published files -------------------------------------------------------------------------------------------


class Unusable(DistilvecError):
    """Downloaded content that is not the expected one."""


Files = Mapping[str, Path]  # the files of a part by their published names, in order
Row = dict[str, Any]
_LONGEST_FIELD = 1 << 30


def rows_of_files(part: Part, files: Files) -> Iterator[Row]:
    """The rows of a part's files, cleaned, with its constant columns."""
    rows = _rows(part, files) if part.names is None else _rows_by_name(part, files)
    yield from _finished(part, rows, ", ".join(files))


def rows_of_dataset(part: Part, rows: Iterable[Mapping[str, Any]]) -> Iterator[Row]:
    """The rows of a part from those of a Hugging Face data set."""
    yield from _finished(part, (_named(part, row) for row in rows), str(part.dataset))


def _rows(part: Part, files: Files) -> Iterator[Row]:
    return READERS[part.format](part, files)


def _rows_by_name(part: Part, files: Files) -> Iterator[Row]:
    """The rows of tables whose files' names have columns, such as a language; other files are left out."""
    tables: dict[tuple[tuple[str, str], ...], dict[str, Path]] = {}
    for name, path in files.items():
        match = re.search(part.names or "", name)
        if match:
            columns = tuple(match.groupdict().items())
            tables.setdefault(columns, {})[name] = path
    for columns, table in tables.items():
        for row in _rows(part, table):
            yield row | dict(columns)


def _finished(part: Part, rows: Iterator[Row], origin: str) -> Iterator[Row]:
    seen = set[str]()
    # `split` is the first column of a file, the other constant ones are the last: checksums depend on the order.
    first = {name: value for name, value in part.constant.items() if name == "split"}
    try:
        for row in rows:
            row = first | _cleaned(part, row) | part.constant
            if part.distinct:
                text = str(row["text"])
                if not text or text in seen:
                    continue
                seen.add(text)
            yield row
    except (ValueError, KeyError, IndexError, TypeError, AttributeError, csv.Error, yaml.YAMLError) as error:
        problem = f"not the expected {part.format} ({type(error).__name__}: {first_line(error)})"
        raise Unusable(f"{origin[:200]}: {problem}.", key="data") from error


def _cleaned(part: Part, row: Row) -> Row:
    """A row with its texts cleaned, labels renamed and numbers as numbers."""
    for column, value in row.items():
        if isinstance(value, str) and part.clean != "nothing":
            text = value.replace("\\", " ") if part.clean == "escapes" else value
            row[column] = text.strip() if part.clean == "ends" else " ".join(text.split())
    for column, names in part.values.items():
        row[column] = names[str(row[column])]
    for column in part.numbers:
        row[column] = float(row[column])
    return row


def _named(part: Part, cells: Any) -> Row:
    """Map source columns to ours; join several into one text."""
    row: Row = {}
    for column, source in part.columns.items():
        if isinstance(source, list):
            row[column] = part.separator.join(str(cells[name]) for name in source)
        else:
            row[column] = cells[source]
    return row


def _has_header(part: Part) -> bool:
    """Whether a table names its columns in its first line; else the part refers to them by number."""
    sources = chain.from_iterable(_listed(source) for source in part.columns.values())
    return any(isinstance(source, str) for source in sources)


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def _text(part: Part, path: Path) -> IO[str]:
    with path.open("rb") as file:
        is_gzip = file.read(2) == b"\x1f\x8b"
    open_text = gzip.open if is_gzip else open
    return cast(IO[str], open_text(path, "rt", encoding=part.encoding, newline=""))


def _csv(part: Part, files: Files) -> Iterator[Row]:
    csv.field_size_limit(_LONGEST_FIELD)
    for path in files.values():
        with _text(part, path) as file:
            table: Iterable[Any] = csv.DictReader(file) if _has_header(part) else csv.reader(file)
            for cells in table:
                if not part.each:
                    yield _named(part, cells)
                    continue
                for column, sources in part.columns.items():
                    for source in _listed(sources):
                        yield {column: cells[source]}


def _tsv(part: Part, files: Files) -> Iterator[Row]:
    """Rows of fields between tabs, without quotes. Several files are one table: their n-th lines are one row."""
    tables = [path.read_text(encoding=part.encoding).rstrip("\n").split("\n") for path in files.values()]
    header: list[str] = []
    for number, lines in enumerate(zip(*tables, strict=True)):
        cells = list(chain.from_iterable(line.rstrip("\r").split("\t") for line in lines))
        if number == 0 and _has_header(part):
            header = cells
        elif header:
            yield _named(part, dict(zip(header, cells, strict=False)))
        else:
            yield _named(part, cells)


def _lines(part: Part, files: Files) -> Iterator[Row]:
    """Lines that match the pattern, whose named groups are columns; the others are left out."""
    pattern = re.compile(part.pattern)
    for path in files.values():
        with _text(part, path) as file:
            for line in file:
                match = pattern.fullmatch(line.rstrip("\r\n"))
                if match:
                    cells = match.groupdict()
                    yield _named(part, cells) if part.columns else cells


def _records(part: Part, files: Files) -> Iterator[Row]:
    """Parts of a file that match the pattern, which may span lines; its named groups are columns."""
    for path in files.values():
        for match in re.finditer(part.pattern, path.read_text(encoding=part.encoding)):
            yield match.groupdict()


def _jsonl(part: Part, files: Files) -> Iterator[Row]:
    for path in files.values():
        with _text(part, path) as file:
            for line in filter(str.strip, file):
                row = _named(part, json.loads(line))
                for column, value in row.items():
                    if isinstance(value, list):
                        row[column] = " ".join(value)
                yield row


def _documents(part: Part, files: Files) -> Iterator[Row]:
    """Whole files, each with its name and the folder that it is in."""
    for name, path in files.items():
        *_, folder, file = name.split("/")
        cells = {"text": path.read_text(encoding=part.encoding), "folder": folder, "file": file.partition(".")[0]}
        yield _named(part, cells)


def _paragraphs(part: Part, files: Files) -> Iterator[Row]:
    """Paragraphs between empty lines; those of more than `longest` words line by line."""
    for path in files.values():
        for block in re.split(r"\n\s*\n", path.read_text(encoding=part.encoding)):
            is_long = part.longest is not None and len(block.split()) > part.longest
            for text in block.split("\n") if is_long else [block]:
                if text.strip():
                    yield {"text": text}


def _tagged(part: Part, files: Files) -> Iterator[Row]:
    """Paragraphs of words with their tags (word/tag), as plain text: tags removed, punctuation joined."""
    for row in _paragraphs(part, files):
        words = [token.rpartition("/")[0] or token for token in row["text"].split()]
        text = re.sub(r"`` ?| ?''", '"', " ".join(words))  # quotes
        text = re.sub(r" (?=[,.;:?!)\]}])|(?<=[(\[{]) ", "", text)  # spaces next to punctuation
        text = re.sub(r"([.?!;,:])\1+", r"\1", text)  # repeated punctuation
        yield {"text": text}


def _smart(part: Part, files: Files) -> Iterator[Row]:
    """Records of the SMART system: `.I` begins one, `.T`, `.W` and others its fields."""
    for path in files.values():
        records = re.split(r"(?m)^\.I[ \t]+(\d+)", path.read_text(encoding=part.encoding))[1:]
        for number, (identifier, record) in enumerate(zip(records[::2], records[1::2], strict=True), 1):
            fields = re.split(r"(?m)^\.([A-HJ-Z])[ \t]*\n", record)[1:]
            cells = {"T": "", "W": ""}
            for name, text in zip(fields[::2], fields[1::2], strict=True):
                cells[name] = f"{cells.get(name, '')} {text}"
            yield _named(part, {**cells, "I": identifier, "number": str(number)})


def _squad(part: Part, files: Files) -> Iterator[Row]:
    """Questions (with their id and a number) and paragraphs of SQuAD's JSON. A repeated paragraph is one document."""
    documents: dict[str, str] = {}
    questions = 0
    for path in files.values():
        for article in json.loads(path.read_text(encoding=part.encoding))["data"]:
            for paragraph in article["paragraphs"]:
                text = paragraph["context"]
                is_new = text not in documents
                document = documents.setdefault(text, f"d{len(documents)}")
                cells = {"document": document, "title": article["title"], "text": text}
                if part.rows == "documents" and is_new:
                    yield _named(part, cells)
                if part.rows == "questions":
                    for question in paragraph["qas"]:
                        about_question = {"id": question.get("id"), "question": question["question"]}
                        yield _named(part, {**cells, **about_question, "query": f"q{questions}", "one": 1})
                        questions += 1


def _wordnet(part: Part, files: Files) -> Iterator[Row]:
    """Definitions, one row for each word of a synset, or usage examples, of English WordNet's YAML."""
    kinds = {"n": "noun", "v": "verb", "a": "adj", "s": "adj", "r": "adv"}
    for path in files.values():
        with _text(part, path) as file:
            synsets = yaml.load(file, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))
        for synset_id, synset in synsets.items():
            if part.rows == "examples":
                for example in synset.get("example", ()):
                    yield {"text": example if isinstance(example, str) else example["text"]}
                continue
            definition = "; ".join(synset["definition"])
            for word in synset["members"]:
                yield {"word": word, "pos": kinds[synset_id[-1]], "definition": definition, "synset": synset_id}


READERS: dict[str, Callable[[Part, Files], Iterator[Row]]] = {
    "csv": _csv,
    "tsv": _tsv,
    "lines": _lines,
    "records": _records,
    "jsonl": _jsonl,
    "documents": _documents,
    "paragraphs": _paragraphs,
    "tagged": _tagged,
    "smart": _smart,
    "squad": _squad,
    "wordnet": _wordnet,
}
