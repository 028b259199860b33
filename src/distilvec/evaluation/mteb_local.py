"""Local folders in the place of the hub: the files our own readers take, in the form mteb's tasks expect.

    DATA/<task>/             of a task with one subset
    DATA/<task>/<subset>/    of a task with several, such as languages; those without a folder are left out

    STS                  a table with sentence1, sentence2, score       test.jsonl, .csv, .tsv, .parquet, each also .gz
    PairClassification   a table with sentence1, sentence2, label       1 = match
    Classification       tables with text, label                        train and test
    Retrieval            corpus, queries and qrels.tsv (or qrels/test.tsv), as BEIR's folders

Splits are named as the task names them; a file without a column `split` is every split but the training one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from distilvec.core.errors import DistilvecError
from distilvec.data.task_rows import TableOptions
from distilvec.evaluation.suite import suite_fingerprint
from distilvec.evaluation.task_files import load_classification, load_pairs, load_retrieval, load_sts
from distilvec.evaluation.tasks import ClassificationTask, PairTask, RetrievalTask, StsTask, Task

Splits = dict[str, Any]


@dataclass(frozen=True)
class LocalData:
    """A task's `dataset` as mteb holds it (subset, split, data), the rows that are scored, and what tells these data from others."""

    dataset: dict[str, Splits]
    rows: int
    fingerprint: str
    warnings: tuple[str, ...] = ()


def load_local(task: Any, folder: Path) -> LocalData:
    """The data of an mteb task from its folder. Errors: DistilvecError for other types of task, and as our readers."""
    name, kind = task.metadata.name, task.metadata.type
    if kind not in _READERS or task.is_aggregate:
        what = f"is made of {len(task.tasks)} others" if task.is_aggregate else f"has type {kind}"
        raise DistilvecError(
            f"[--data] {folder}: mteb task '{name}' {what}; local data serve tasks of type {', '.join(_READERS)}. "
            "Remove the folder to take its data from the hub, or leave the task out."
        )
    subsets = {subset: folder / subset for subset in task.hf_subsets if (folder / subset).is_dir()}
    if not subsets and len(task.hf_subsets) > 1:
        some = ", ".join(task.hf_subsets[:8])
        raise DistilvecError(
            f"[--data] {folder}: mteb task '{name}' has {len(task.hf_subsets)} subsets ({some}, ...). Make a folder for each."
        )
    paths = subsets or {task.hf_subsets[0]: folder}
    dataset: dict[str, Splits] = {subset: {} for subset in paths}
    read: list[Task] = []
    for subset, path in paths.items():
        for split in task.eval_splits:
            ours, parts = _READERS[kind](task, path, split)
            read.append(ours)
            dataset[subset] |= parts
    missing = len(task.hf_subsets) - len(paths)
    notes = [f"{missing} of {len(task.hf_subsets)} subsets have no local data; left out"] if missing else []
    notes += [note for ours in read if isinstance(ours, RetrievalTask) for note in ours.warnings]
    return LocalData(dataset, sum(_rows(ours) for ours in read), suite_fingerprint(read), tuple(notes))


def _read_sts(task: Any, path: Path, split: str) -> tuple[StsTask, Splits]:
    ours = load_sts(task.metadata.name, path, TableOptions(split))
    first, second = task.column_names
    return ours, {split: _table({first: ours.first, second: ours.second, "score": ours.gold.tolist()})}


def _read_pairs(task: Any, path: Path, split: str) -> tuple[PairTask, Splits]:
    ours = load_pairs(task.metadata.name, path, TableOptions(split))
    labels = {task.label_column_name: ours.positive.astype(int).tolist()}
    return ours, {split: _table({task.input1_column_name: ours.first, task.input2_column_name: ours.second, **labels})}


def _read_classification(task: Any, path: Path, split: str) -> tuple[ClassificationTask, Splits]:
    """Labels become numbers in the order of their names, as mteb's figures for two classes need."""
    ours = load_classification(task.metadata.name, path, TableOptions(split), train_split=task.train_split)
    codes = {
        label: code for code, label in enumerate(sorted(set(ours.train_labels), key=lambda label: (len(label), label)))
    }

    def table(texts: list[str], labels: list[str]) -> Any:
        return _table({task.input_column_name: texts, task.label_column_name: [codes[label] for label in labels]})

    return ours, {
        task.train_split: table(ours.train_texts, ours.train_labels),
        split: table(ours.test_texts, ours.test_labels),
    }


def _read_retrieval(task: Any, path: Path, split: str) -> tuple[RetrievalTask, Splits]:
    """Note: trec_eval, which mteb asks, knows whole gains only."""
    ours = load_retrieval(task.metadata.name, path, split)
    if fractions := [gain for gain in ours.gains.tolist() if gain != int(gain)]:
        raise DistilvecError(
            f"[--data] {path}: {len(fractions)} judgements have scores that are not whole, such as {fractions[0]:g}. "
            "Round them: mteb needs whole ones."
        )
    relevant: dict[str, dict[str, int]] = {query: {} for query in ours.query_ids}
    for (query, document), gain in zip(ours.judged.tolist(), ours.gains.tolist(), strict=True):
        relevant[ours.query_ids[query]][ours.document_ids[document]] = int(gain)
    parts = {
        "corpus": _table({"id": ours.document_ids, "text": ours.documents}),
        "queries": _table({"id": ours.query_ids, "text": ours.queries}),
        "relevant_docs": relevant,
        "top_ranked": None,
    }
    return ours, {split: parts}


_READERS: dict[str, Callable[[Any, Path, str], tuple[Task, Splits]]] = {
    "STS": _read_sts,
    "PairClassification": _read_pairs,
    "Classification": _read_classification,
    "Retrieval": _read_retrieval,
}


def _rows(task: Task) -> int:
    match task:
        case StsTask() | PairTask():
            return len(task.first)
        case ClassificationTask():
            return len(task.test_texts)
        case RetrievalTask():
            return len(task.queries)


def _table(columns: dict[str, Any]) -> Any:
    from datasets import Dataset

    return Dataset.from_dict(columns)
