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
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, ValidationError

from distilvec.config.base import LABELS, Label, Section, Seed, excerpt
from distilvec.config.messages import explain, refusal
from distilvec.config.paths import absolute, resolve_tree
from distilvec.config.schema import Role
from distilvec.config.yaml_dialect import read_yaml
from distilvec.core.errors import DistilvecError, nearest
from distilvec.data.task_rows import TableOptions
from distilvec.evaluation.task_files import Titles, load_classification, load_pairs, load_retrieval, load_sts
from distilvec.evaluation.tasks import RetrievalTask, Task, TaskFailure, task_texts

RESERVED = "average"


class TaskSection(Section):
    """What every entry of a suite has."""

    name: Label = Field(description="what tables call the task; distinct within the suite")
    path: Path = Field(description="file or folder, relative to the suite file")
    split: str = Field("test", description="the rows that are scored")
    domain: Literal["in", "out"] | None = Field(
        None, description="whether the texts are like the training texts; averaged apart"
    )


class TableSection(TaskSection):
    """An entry whose rows stand in a table."""

    subset: str | list[str] | None = Field(None, description="keep only rows whose column 'subset' has this value")
    columns: dict[str, str] = Field(
        default_factory=dict, description="the file's names of the columns: {sentence1: its name, ...}"
    )
    role: Role = Field("document", description="which of the model's prompts the texts get")

    @property
    def options(self) -> TableOptions:
        """The keys that say which rows of the table count."""
        subset = (self.subset,) if isinstance(self.subset, str) else self.subset
        return TableOptions(self.split, None if subset is None else tuple(subset), self.columns or None)


class StsSection(TableSection):
    """Graded pairs: columns sentence1, sentence2, score."""

    type: Literal["sts"]


class PairSection(TableSection):
    """Pairs that match or do not: columns sentence1, sentence2, label."""

    type: Literal["pair"]
    positive_label: str | int = Field(1, description="the label of pairs that match", json_schema_extra=LABELS)


class ClassificationSection(TableSection):
    """Labelled texts: columns text, label."""

    type: Literal["classification"]
    train_split: str = Field("train", description="the rows the classifier is fitted to")
    train_limit: int | None = Field(None, gt=0, description="fit it to so many of them, drawn by seed")
    seed: Seed = 0


class RetrievalSection(TaskSection):
    """A folder with corpus, queries and qrels."""

    type: Literal["retrieval"]
    qrels: str | None = Field(None, description="file of judgements inside the folder; qrels.tsv by default")
    titles: Titles = Field("always", description="whether titles are put before the texts of documents")
    gaps: Literal["refuse", "accept"] = Field(
        "refuse",
        description="'accept': judgements of unknown ids and queries without a relevant document are left out without complaint",
    )


_SECTIONS: dict[str, type[TaskSection]] = {
    "sts": StsSection,
    "classification": ClassificationSection,
    "pair": PairSection,
    "retrieval": RetrievalSection,
}


def load_suite(path: Path, problems: list[TaskFailure] | None = None) -> list[Task]:
    """Read a suite file and the data of all its tasks.

    A task whose data cannot be read is added to `problems` and left out; one whose judgements have gaps is added too, and
    kept. Without `problems` both are errors.
    Errors: DistilvecError that names the suite, the entry and the key, or the data file and the place in it; all
    problems of the suite file itself come in one message.
    """
    sections = read_suite(path)
    found: list[TaskFailure] = []
    tasks = []
    for number, section in enumerate(sections):
        try:
            task = load_task(section, path.parent)
        except DistilvecError as error:
            found.append(TaskFailure(section.name, f"{number}.path: {error}"))
            continue
        tasks.append(task)
        if (
            isinstance(task, RetrievalTask)
            and isinstance(section, RetrievalSection)
            and section.gaps == "refuse"
            and task.warnings
        ):
            found.append(
                TaskFailure(task.name, f"{'; '.join(task.warnings)}. Mend the files, or set gaps: accept in the suite.")
            )
    if problems is None and found:
        raise refusal("suite", str(path), [f"task '{problem.task}': {problem.text}" for problem in found])
    if problems is not None:
        problems += found
    return tasks


def read_suite(path: Path) -> list[TaskSection]:
    """The entries of a suite file, validated, without reading any data."""
    entries = read_yaml(path, "suite", "A suite is a YAML list of tasks, each with name, type and path.")
    if not isinstance(entries, list) or not entries:
        found = "an empty suite" if not entries else f"a {type(entries).__name__}"
        raise DistilvecError(f"[suite] {path}: expected a list of tasks, each with name, type and path; found {found}.")
    sections: list[TaskSection] = []
    problems: list[str] = []
    for number, entry in enumerate(entries):
        section = _section(number, entry, path.parent)
        if isinstance(section, list):
            problems += section
            continue
        if section.name == RESERVED or section.name in {other.name for other in sections}:
            reason = (
                "is kept for the mean of all tasks"
                if section.name == RESERVED
                else "stands twice; names must be distinct"
            )
            problems.append(f"[{number}.name] '{section.name}' {reason}.")
        sections.append(section)
    if problems:
        raise refusal("suite", str(path), problems)
    return sections


def load_task(section: TaskSection, folder: Path) -> Task:
    """The task of one entry; its relative path starts at `folder`. Errors: DistilvecError that names the data file."""
    path = Path(absolute(str(section.path), folder, "suite"))
    task: Task
    match section:
        case StsSection():
            task = load_sts(section.name, path, section.options, section.role)
        case PairSection():
            task = load_pairs(section.name, path, section.options, section.role, str(section.positive_label))
        case ClassificationSection():
            task = load_classification(
                section.name,
                path,
                section.options,
                section.role,
                section.train_split,
                section.train_limit,
                section.seed,
            )
        case RetrievalSection():
            task = load_retrieval(section.name, path, section.split, section.qrels, section.titles)
        case _:
            raise AssertionError(type(section))
    return dataclasses.replace(task, domain=section.domain)


def suite_texts(tasks: Iterable[Task], documents: bool = True) -> Iterator[str]:
    """Every text the tasks are scored on, so that a training corpus can leave them out.

    Test rows and queries; with `documents` those of retrieval tasks, with and without their title. Not the training rows of
    a classifier.
    """
    for task in tasks:
        yield from task_texts(task) if documents or not isinstance(task, RetrievalTask) else task.queries


def suite_fingerprint(tasks: Iterable[Task]) -> str:
    """16 hexadecimal digits that change with any text, label, gain, role or name in the tasks."""
    digest = hashlib.blake2b(digest_size=8)
    for task in tasks:
        for key, value in sorted({"type": task.type, **vars(task)}.items()):
            values = (
                value if isinstance(value, (list, tuple)) else value.tolist() if hasattr(value, "tolist") else [value]
            )
            digest.update(f"{key}\0{len(values)}\0".encode())
            for item in values:
                text = str(item).encode("utf-8", "surrogatepass")
                digest.update(len(text).to_bytes(8, "little") + text)
    return digest.hexdigest()


def _section(number: int, entry: Any, folder: Path) -> TaskSection | list[str]:
    """One entry as its section, its path below `folder`; or what is wrong with it."""
    if not isinstance(entry, dict):
        return [f"[{number}] expected a mapping with name, type and path; found {excerpt(entry)}."]
    kind = entry.get("type")
    if not isinstance(kind, str) or kind not in _SECTIONS:
        hint = nearest(str(kind)[:100], _SECTIONS) or "."
        return [f"[{number}.type] found {excerpt(kind)}{hint} Expected one of {', '.join(_SECTIONS)}."]
    model = _SECTIONS[kind]
    try:
        return model.model_validate(resolve_tree(entry, folder, model))
    except ValidationError as error:
        return explain(error, model, str(number))
    except DistilvecError as error:
        return [str(error).replace("[", f"[{number}.", 1)]
