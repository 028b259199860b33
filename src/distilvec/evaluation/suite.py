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

import yaml
from pydantic import Field, ValidationError

from distilvec.errors import DistilvecError, nearest
from distilvec.evaluation.load import TableOptions, Titles, load_classification, load_pairs, load_retrieval, load_sts
from distilvec.evaluation.tasks import Problem, RetrievalTask, Task, task_texts
from distilvec.schema import Role
from distilvec.section import Section

RESERVED = "average"


class TaskSection(Section):
    """What every entry of a suite has."""

    name: str = Field(min_length=1, description="what tables call the task; distinct within the suite")
    path: Path = Field(description="file or folder, relative to the suite file")
    split: str = Field("test", description="the rows that are scored")
    domain: Literal["in", "out"] | None = Field(None, description="whether the texts are like the training texts; averaged apart")


class TableSection(TaskSection):
    """An entry whose rows stand in a table."""

    subset: str | list[str] | None = Field(None, description="keep only rows whose column 'subset' has this value")
    columns: dict[str, str] = Field(default_factory=dict, description="the file's names of the columns: {sentence1: its name, ...}")
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
    positive_label: str | int = Field(1, description="the label of pairs that match")


class ClassificationSection(TableSection):
    """Labelled texts: columns text, label."""

    type: Literal["classification"]
    train_split: str = Field("train", description="the rows the classifier is fitted to")
    train_limit: int | None = Field(None, gt=0, description="fit it to so many of them, drawn by seed")
    seed: int = 0


class RetrievalSection(TaskSection):
    """A folder with corpus, queries and qrels."""

    type: Literal["retrieval"]
    qrels: str | None = Field(None, description="file of judgements inside the folder; qrels.tsv by default")
    titles: Titles = Field("always", description="whether titles are put before the texts of documents")
    gaps: Literal["refuse", "accept"] = Field(
        "refuse", description="'accept': judgements of unknown ids and queries without a relevant document are left out without complaint"
    )


_SECTIONS: dict[str, type[TaskSection]] = {
    "sts": StsSection,
    "classification": ClassificationSection,
    "pair": PairSection,
    "retrieval": RetrievalSection,
}


def load_suite(path: Path, problems: list[Problem] | None = None) -> list[Task]:
    """Read a suite file and the data of all its tasks.

    A task whose data cannot be read is added to `problems` and left out; one whose judgements have gaps is added too, and
    kept. Without `problems` both are errors.
    Errors: DistilvecError that names the suite, the entry and the key, or the data file and the place in it; all
    problems of the suite file itself come in one message.
    """
    sections = read_suite(path)
    found: list[Problem] = []
    tasks = []
    for number, section in enumerate(sections):
        try:
            task = load_task(section, path.parent)
        except DistilvecError as error:
            found.append(Problem(section.name, f"[{number}.path] {error}"))
            continue
        tasks.append(task)
        if isinstance(task, RetrievalTask) and isinstance(section, RetrievalSection) and section.gaps == "refuse" and task.warnings:
            found.append(Problem(task.name, f"{'; '.join(task.warnings)}. Mend the files, or set gaps: accept in the suite."))
    if problems is None and found:
        raise DistilvecError("\n".join(f"[suite] {path}: task '{problem.task}': {problem.text}" for problem in found))
    if problems is not None:
        problems += found
    return tasks


def read_suite(path: Path) -> list[TaskSection]:
    """The entries of a suite file, validated, without reading any data."""
    try:
        entries = yaml.safe_load(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise DistilvecError(f"suite not found: {path}. A suite is a YAML list of {{name, type, path}}.") from None
    except (UnicodeDecodeError, IsADirectoryError) as error:
        raise DistilvecError(f"{path} is not a UTF-8 text file ({error}); a suite is a YAML file.") from None
    except yaml.YAMLError as error:
        raise DistilvecError(f"{path} is not valid YAML: {error}") from None
    if not isinstance(entries, list) or not entries:
        found = "an empty suite" if not entries else f"a {type(entries).__name__}"
        raise DistilvecError(f"{path}: expected a list of tasks, each with name, type and path; found {found}.")
    sections: list[TaskSection] = []
    problems: list[str] = []
    for number, entry in enumerate(entries):
        section = _section(number, entry)
        if isinstance(section, list):
            problems += section
            continue
        if section.name == RESERVED or section.name in {other.name for other in sections}:
            reason = "is kept for the mean of all tasks" if section.name == RESERVED else "stands twice; names must be distinct"
            problems.append(f"[{number}.name] '{section.name}' {reason}")
        sections.append(section)
    if problems:
        raise DistilvecError("\n".join([f"{path}: the suite does not hold together.", *(f"  {problem}" for problem in problems)]))
    return sections


def load_task(section: TaskSection, folder: Path) -> Task:
    """The task of one entry; its relative path starts at `folder`. Errors: DistilvecError that names the data file."""
    path = (folder / section.path.expanduser()).resolve()
    task: Task
    match section:
        case StsSection():
            task = load_sts(section.name, path, section.options, section.role)
        case PairSection():
            task = load_pairs(section.name, path, section.options, section.role, str(section.positive_label))
        case ClassificationSection():
            task = load_classification(
                section.name, path, section.options, section.role, section.train_split, section.train_limit, section.seed
            )
        case RetrievalSection():
            task = load_retrieval(section.name, path, section.split, section.qrels, section.titles)
        case _:
            raise AssertionError(type(section))
    return dataclasses.replace(task, domain=section.domain)


def suite_texts(tasks: Iterable[Task]) -> Iterator[str]:
    """Every text the tasks are scored on, so that a training corpus can leave them out.

    Test rows, queries, and documents with and without their title; not the training rows of a classifier.
    """
    for task in tasks:
        yield from task_texts(task)


def suite_fingerprint(tasks: Iterable[Task]) -> str:
    """16 hexadecimal digits that change with any text, label, gain, role or name in the tasks."""
    digest = hashlib.blake2b(digest_size=8)
    for task in tasks:
        for key, value in sorted({"type": task.type, **vars(task)}.items()):
            values = value if isinstance(value, (list, tuple)) else value.tolist() if hasattr(value, "tolist") else [value]
            digest.update(f"{key}\0{len(values)}\0".encode())
            for item in values:
                text = str(item).encode("utf-8", "surrogatepass")
                digest.update(len(text).to_bytes(8, "little") + text)
    return digest.hexdigest()


def _section(number: int, entry: Any) -> TaskSection | list[str]:
    """One entry as its section, or what is wrong with it."""
    if not isinstance(entry, dict):
        return [f"[{number}] expected a mapping with name, type and path; found {entry!r}"]
    kind = entry.get("type")
    if not isinstance(kind, str) or kind not in _SECTIONS:
        return [f"[{number}.type] expected one of {', '.join(_SECTIONS)}{nearest(str(kind), _SECTIONS)}; found {kind!r}"]
    model = _SECTIONS[kind]
    try:
        return model.model_validate(entry)
    except ValidationError as error:
        return [_explain(number, model, problem) for problem in error.errors()]


def _explain(number: int, model: type[TaskSection], problem: Any) -> str:
    where = ".".join(str(part) for part in (number, *problem["loc"]))
    if problem["type"] == "extra_forbidden":
        known = list(model.model_fields)
        return f"[{where}] unknown key{nearest(str(problem['loc'][0]), known)}. Known here: {', '.join(known)}."
    found = "" if problem["type"] == "missing" else f"; found {problem['input']!r}"
    return f"[{where}] {problem['msg']}{found}"
