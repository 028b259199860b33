"""A suite file: a strict YAML list of local tasks.

    - {name: stsb, type: sts, path: ../data/stsb.jsonl.gz}
    - {name: banking77, type: classification, path: ../data/banking77, train_limit: 5000}
    - {name: mrpc, type: pair, path: ../data/mrpc.csv, columns: {sentence1: first, sentence2: second}}
    - {name: cranfield, type: retrieval, path: ../data/cranfield}

Paths are relative to the suite file. The keys of each type are the fields of its section below.
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, ValidationError

from distilvec.config.base import Label, Mark, Problems, Section, Seed, excerpt, explain
from distilvec.config.paths import absolute, resolve_tree
from distilvec.config.schema import Role
from distilvec.config.yaml_dialect import read_yaml
from distilvec.core.errors import DistilvecError, about, nearest, user_error
from distilvec.data.task_rows import TableOptions
from distilvec.evaluation.aggregate import AVERAGES
from distilvec.evaluation.tasks import OwnDocuments, RetrievalTask, StoredTask, Task, TaskFailure, Titles, task_texts

SUITE_ENDINGS = (".yaml", ".yml")


class SuiteEntry(Section):
    """Keys of every entry of a suite."""

    type: str
    name: Label = Field(description="name of the task in tables; distinct within the suite")
    path: Path = Field(description="file or folder, relative to the suite file")
    split: str = Field("test", description="the rows that are scored")
    domain: Literal["in", "out"] | None = Field(
        None, description="whether the texts are like the training texts; averaged apart"
    )


class TableSection(SuiteEntry):
    """Entry whose rows are in a table."""

    subset: str | list[str] | None = Field(None, description="keep only rows whose column 'subset' has this value")
    columns: dict[str, str] = Field(
        default_factory=dict, description="the file's names of the columns: {sentence1: its name, ...}"
    )
    role: Role = Field("document", description="which of the model's prompts the texts get")

    @property
    def options(self) -> TableOptions:
        """Selection of the table's rows."""
        subset = (self.subset,) if isinstance(self.subset, str) else self.subset
        return TableOptions(self.split, None if subset is None else tuple(subset), self.columns or None)


class StsSection(TableSection):
    """Graded pairs: columns sentence1, sentence2, score."""

    type: Literal["sts"]


class PairSection(TableSection):
    """Pairs that match or do not: columns sentence1, sentence2, label."""

    type: Literal["pair"]
    positive_label: Annotated[str | int, Mark.LABELS] = Field(1, description="the label of pairs that match")


class ClassificationSection(TableSection):
    """Labelled texts: columns text, label."""

    type: Literal["classification"]
    train_split: str = Field("train", description="the rows the classifier is fitted to")
    train_limit: int | None = Field(None, gt=0, description="number of rows it is fitted to, drawn by seed")
    seed: Seed = 0


class RetrievalSection(SuiteEntry):
    """A folder with corpus, queries and qrels."""

    type: Literal["retrieval"]
    qrels: str | None = Field(None, description="file of judgements inside the folder; qrels.tsv by default")
    titles: Titles = Field("always", description="whether titles are prepended to the texts of documents")
    own_documents: OwnDocuments = Field(
        "same_text",
        description="a query that is a document itself is not searched for it: if id and text are equal, if the id is "
        "('leave_out', as in BEIR and MTEB), or never ('keep')",
    )
    gaps: Literal["refuse", "accept"] = Field(
        "refuse",
        description="'accept': leave out judgements of unknown ids and queries without a relevant document",
    )


_SECTIONS: dict[str, type[SuiteEntry]] = {
    "sts": StsSection,
    "classification": ClassificationSection,
    "pair": PairSection,
    "retrieval": RetrievalSection,
}


def load_suite(path: Path, problems: list[TaskFailure] | None = None) -> list[Task]:
    """Read a suite file and the data of all its tasks.

    A task whose data cannot be read is added to `problems` and left out; one whose judgements have gaps is added and
    kept. Without `problems` both are errors.
    """
    failures: list[TaskFailure] = []
    tasks = []
    for number, section in enumerate(read_suite(path)):
        try:
            task = load_task(section, path.parent)
        except Exception as error:
            refusal = user_error(error)
            if refusal is None:
                raise
            problem = refusal.problem if refusal.key == "suite" else str(refusal)
            failures.append(TaskFailure(section.name, f"{number}.path: {problem} {refusal.fix}".rstrip()))
            continue
        tasks.append(task)
        notes = getattr(task, "warnings", ())
        if notes and getattr(section, "gaps", "refuse") == "refuse":
            failures.append(TaskFailure(task.name, f"{'; '.join(notes)}. Correct the files, or set gaps: accept."))
    if problems is None and failures:
        raise Problems(str(path), [f"task '{problem.task}': {problem.text}" for problem in failures], key="suite")
    if problems is not None:
        problems += failures
    return tasks


def read_suite(path: Path) -> list[SuiteEntry]:
    """Entries of a suite file, validated, without reading any data."""
    entries = read_yaml(path, "suite", "A suite is a YAML list of tasks, each with name, type and path.")
    if not isinstance(entries, list) or not entries:
        content = "an empty suite" if not entries else f"a {type(entries).__name__}"
        raise DistilvecError(
            f"{path}: expected a list of tasks, each with name, type and path; found {content}.", key="suite"
        )
    sections: list[SuiteEntry] = []
    problems: list[DistilvecError] = []
    for number, entry in enumerate(entries):
        section = _entry_section(number, entry, path.parent)
        if isinstance(section, list):
            problems += section
        elif section.name in AVERAGES or section.name in {earlier.name for earlier in sections}:
            problem = f"'{section.name}' is a second task of this name, or the name of an average."
            problems.append(DistilvecError(problem, key=f"{number}.name"))
        else:
            sections.append(section)
    if problems:
        raise Problems(str(path), problems, key="suite")
    return sections


def suite_paths(path: Path) -> list[Path]:
    """Return a suite file and the data of its tasks; the file alone if it cannot be read, which its reader reports."""
    paths = [path]
    with suppress(DistilvecError, OSError):
        paths += [section.path for section in read_suite(path)]
    return paths


def load_task(section: SuiteEntry, folder: Path) -> Task:
    """Task of one entry; its relative path starts at `folder`."""
    from distilvec.evaluation.task_files import READERS  # a run without a suite reads no files of tasks

    path = Path(absolute(str(section.path), folder, "suite"))
    arguments = section.model_dump(exclude={"path", "type", "domain", "gaps"})
    if isinstance(section, TableSection):
        arguments = {key: value for key, value in arguments.items() if key not in ("split", "subset", "columns")}
        arguments["options"] = section.options
    with about("suite", path):
        return dataclasses.replace(READERS[section.type](path=path, **arguments), domain=section.domain)


def suite_texts(tasks: Iterable[Task], documents: bool = True) -> dict[str, list[str]]:
    """Texts the tasks are scored on, to be left out of training, by what they are; documents only with `documents`."""
    texts: dict[str, list[str]] = {"queries": [], "stored texts": [], "labelled test texts": [], "documents": []}
    for task in tasks:
        if not isinstance(task, RetrievalTask):
            texts["labelled test texts"] += task_texts(task)
            continue
        texts["stored texts" if isinstance(task, StoredTask) else "queries"] += task.queries
        if documents:
            texts["documents"] += [*task.documents, *task.untitled]
    return texts


def suite_fingerprint(tasks: Iterable[Task]) -> str:
    """16 hexadecimal digits that change with any text, label, gain, role or name in the tasks."""
    digest = hashlib.blake2b(digest_size=8)
    for task in tasks:
        for key, value in sorted({"type": task.type, **vars(task)}.items()):
            values = value
            if hasattr(value, "tolist"):
                values = value.tolist()
            elif not isinstance(value, (list, tuple)):
                values = [value]
            digest.update(f"{key}\0{len(values)}\0".encode())
            for item in values:
                text = str(item).encode("utf-8", "surrogatepass")
                digest.update(len(text).to_bytes(8, "little") + text)
    return digest.hexdigest()


def _entry_section(number: int, entry: Any, folder: Path) -> SuiteEntry | list[DistilvecError]:
    """Section of one entry with its path below `folder`, or the problems of the entry."""
    if not isinstance(entry, dict):
        problem = f"expected a mapping with name, type and path; found {excerpt(entry)}."
        return [DistilvecError(problem, key=str(number))]
    kind = entry.get("type")
    if not isinstance(kind, str) or kind not in _SECTIONS:
        hint = nearest(str(kind)[:100], _SECTIONS) or "."
        problem = f"found {excerpt(kind)}{hint} Expected one of {', '.join(_SECTIONS)}."
        return [DistilvecError(problem, key=f"{number}.type")]
    model = _SECTIONS[kind]
    try:
        return model.model_validate(resolve_tree(entry, folder, model))
    except ValidationError as error:
        return explain(error, model, str(number))
    except DistilvecError as error:
        return [DistilvecError(error.problem, error.fix, key=f"{number}.{error.key}")]
