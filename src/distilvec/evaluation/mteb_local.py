"""Local folders that replace the hub: files of our own readers, in the form of mteb's tasks.

    DATA/<task>/             of a task with one subset
    DATA/<task>/<subset>/    of a task with several, such as languages; those without a folder are left out

    STS                  a table with sentence1, sentence2, score       test.jsonl, .csv, .tsv, .parquet, each also .gz
    PairClassification   a table with sentence1, sentence2, label       1 = match
    Classification       tables with text, label                        train and test
    Retrieval            corpus, queries and qrels.tsv (or qrels/test.tsv), as BEIR's folders

Splits have the task's names; a file without a column `split` is every split but the training one.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from distilvec.core.errors import DistilvecError, about
from distilvec.data.task_rows import TableOptions
from distilvec.evaluation.suite import suite_fingerprint
from distilvec.evaluation.task_files import load_classification, load_pairs, load_retrieval, load_sts
from distilvec.evaluation.tasks import ClassificationTask, RetrievalTask, StsTask, Task

TYPES = ("STS", "PairClassification", "Classification", "Retrieval")


@dataclass(frozen=True)
class LocalData:
    """Data of a task as mteb's `dataset` (subset, split, data), the number of scored rows, and their fingerprint."""

    dataset: dict[str, dict[str, Any]]
    rows: int
    fingerprint: str
    warnings: tuple[str, ...] = ()


def load_local(task: Any, folder: Path) -> LocalData:
    """Read an mteb task's data from its folder. Errors: DistilvecError for other types of task, and as our readers."""
    name, subsets = task.metadata.name, task.hf_subsets
    if task.metadata.type not in TYPES or task.is_aggregate:
        kind = "is an aggregate" if task.is_aggregate else f"has type {task.metadata.type}"
        raise DistilvecError(
            f"{folder}: mteb task '{name}' {kind}; local data serve tasks of type {', '.join(TYPES)}.",
            "Remove the folder to load its data from the hub, or leave the task out.",
            key="--data",
        )
    paths = {subset: folder / subset for subset in subsets if (folder / subset).is_dir()}
    if not paths and len(subsets) > 1:
        some = ", ".join(subsets[:8])
        raise DistilvecError(
            f"{folder}: mteb task '{name}' has {len(subsets)} subsets ({some}, ...).",
            "Make a folder for each.",
            key="--data",
        )
    paths = paths or {subsets[0]: folder}
    read: dict[tuple[str, str], Task] = {}
    for subset, path in paths.items():
        with about("suite", path):
            read |= {(subset, split): _read(task, path, split) for split in task.eval_splits}
    dataset: dict[str, dict[str, Any]] = {subset: {} for subset in paths}
    for (subset, split), data in read.items():
        dataset[subset] |= _converted(task, data, split)
    missing = len(subsets) - len(paths)
    notes = [f"{missing} of {len(subsets)} subsets have no local data; left out"] if missing else []
    notes += [note for data in read.values() for note in getattr(data, "warnings", ())]
    return LocalData(dataset, sum(map(_rows, read.values())), suite_fingerprint(read.values()), tuple(notes))


def _read(task: Any, path: Path, split: str) -> Task:
    name, options = task.metadata.name, TableOptions(split)
    match task.metadata.type:
        case "STS":
            return load_sts(name, path, options)
        case "PairClassification":
            return load_pairs(name, path, options)
        case "Classification":
            return load_classification(name, path, options, train_split=task.train_split)
        case _:
            return load_retrieval(name, path, split)


def _converted(task: Any, data: Task, split: str) -> dict[str, Any]:
    """The splits of mteb's dataset.

    Labels become numbers in the order of their names, as mteb's metrics for two classes need.
    Note: trec_eval, which mteb uses, knows whole gains only.
    """
    from datasets import Dataset

    table = Dataset.from_dict
    if isinstance(data, ClassificationTask):
        names = sorted(set(data.train_labels), key=lambda name: (len(name), name))
        codes = {name: code for code, name in enumerate(names)}
        parts = {task.train_split: (data.train_texts, data.train_labels), split: (data.test_texts, data.test_labels)}
        text, label = task.input_column_name, task.label_column_name
        tables = {}
        for part, (texts, labels) in parts.items():
            tables[part] = table({text: texts, label: [codes[name] for name in labels]})
        return tables
    if isinstance(data, RetrievalTask):
        if (data.gains % 1).any():
            raise DistilvecError(
                f"{data.name}: some judgements have scores that are not whole.", "Round them.", key="--data"
            )
        relevant: dict[str, dict[str, int]] = {query: {} for query in data.query_ids}
        for (query, document), gain in zip(data.judged.tolist(), data.gains.tolist(), strict=True):
            relevant[data.query_ids[query]][data.document_ids[document]] = int(gain)
        corpus = table({"id": data.document_ids, "text": data.documents})
        queries = table({"id": data.query_ids, "text": data.queries})
        return {split: {"corpus": corpus, "queries": queries, "relevant_docs": relevant, "top_ranked": None}}
    if isinstance(data, StsTask):
        first, second = task.column_names
        return {split: table({first: data.first, second: data.second, "score": data.gold.tolist()})}
    columns = (task.input1_column_name, task.input2_column_name, task.label_column_name)
    return {
        split: table(dict(zip(columns, (data.first, data.second, data.positive.astype(int).tolist()), strict=True)))
    }


def _rows(task: Task) -> int:
    if isinstance(task, RetrievalTask):
        return len(task.queries)
    return len(task.test_texts if isinstance(task, ClassificationTask) else task.first)
