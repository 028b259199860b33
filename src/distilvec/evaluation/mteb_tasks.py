"""MTEB's tasks and benchmarks, by the package mteb 2, for one model or for a pair (query embedder, document embedder).

mteb brings tasks, data and figures; here they meet our embedders (mteb_model.py), local folders (mteb_local.py) and scores.
"""

from __future__ import annotations

import copy
import difflib
import importlib
import logging
import math
import random
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from distilvec.core.errors import DistilvecError
from distilvec.evaluation.evaluator import Embedder, EmbeddingCache, Score
from distilvec.evaluation.mteb_local import LocalData, load_local
from distilvec.evaluation.mteb_model import CLASS_TYPES, PAIR_TYPES, SEARCH_TYPES, MtebModel, identities, import_mteb
from distilvec.evaluation.tasks import TaskFailure

Pair = tuple[Embedder, Embedder]


def mteb_scores(
    models: Mapping[str, Pair],
    tasks: list[str] | None = None,
    benchmark: str | None = None,
    data: Path | None = None,
    cache: Path | None = None,
    problems: list[TaskFailure] | None = None,
    progress: Callable[[str, int, int], None] | None = None,
) -> dict[str, list[Score]]:
    """Scores by column of mteb's tasks or of all tasks of one of its benchmarks; a figure is the mean over subsets and splits.

    `data/<task>` takes the place of the hub where that folder exists (see mteb_local.py). Results are kept below `cache`
    (six decimals, as mteb writes them), by model, weights, task and local data; nothing is kept without it. A task that
    cannot be scored is added to `problems`, and the others are scored; without `problems` it is an error. `progress` is
    called with ("column: task", done, all) before each and once at the end. Within a task each text is embedded once a model
    and role, whatever the number of columns.
    Errors: DistilvecError for unknown names, for none or both of `tasks` and `benchmark`, and if mteb is not installed.
    """
    mteb = import_mteb(cache)
    chosen = find_tasks(tasks, benchmark)
    work = _Work(mteb, models, data, cache, identities(models) if cache else {}, problems)
    scores: dict[str, list[Score]] = {column: [] for column in models}
    total = len(chosen) * len(models)
    for number, task in enumerate(chosen):

        def tell(column: str, done: int, task: Any = task, number: int = number) -> None:
            if progress is not None:
                progress(f"{column}: {task.metadata.name}", number * len(models) + done, total)

        with _quiet():
            for column, score in work.score(task, tell):
                scores[column].append(score)
    if progress is not None:
        progress("mteb", total, total)
    return scores


def find_tasks(names: list[str] | None, benchmark: str | None) -> list[Any]:
    """mteb's task objects, ours to change. Errors: DistilvecError with the nearest names for what mteb does not know."""
    mteb = import_mteb()
    if bool(names) == bool(benchmark):
        raise DistilvecError(
            "[--mteb] expected the names of mteb tasks or of one benchmark, not both and not neither (--mteb or --benchmark)."
        )
    if benchmark:
        try:
            return [copy.copy(task) for task in mteb.get_benchmark(benchmark).tasks]
        except KeyError:
            known = [entry.name for entry in mteb.get_benchmarks()]
            raise DistilvecError(
                f"[--benchmark] mteb has no benchmark '{benchmark}'{_nearest(benchmark, known)}."
            ) from None
    known = [
        entry.metadata.name
        for entry in vars(importlib.import_module("mteb.tasks")).values()
        if hasattr(entry, "metadata")
    ]
    if unknown := [name for name in names or [] if name not in known]:
        raise DistilvecError(
            "\n".join(f"[--mteb] mteb has no task '{name}'{_nearest(name, known)}." for name in unknown)
        )
    return [mteb.get_task(name) for name in dict.fromkeys(names or [])]


@dataclass
class _Work:
    """What all tasks of one call share."""

    mteb: Any
    models: Mapping[str, Pair]
    data: Path | None
    cache: Path | None
    identities: dict[int, str]
    problems: list[TaskFailure] | None
    memo: EmbeddingCache = field(default_factory=EmbeddingCache)

    def score(self, task: Any, tell: Callable[[str, int], None]) -> Iterator[tuple[str, Score]]:
        """One task's score, column by column; the data are loaded only if a result is missing."""
        name, self.memo = task.metadata.name, EmbeddingCache()
        try:
            local = self._local(task)
        except DistilvecError as error:
            self._report(TaskFailure(name, str(error)))
            return
        results = self.mteb.ResultCache(self.cache / (local.fingerprint if local else "hub")) if self.cache else None
        if task.metadata.type in PAIR_TYPES and task.input1_prompt_type is None and task.input2_prompt_type is None:
            task.input1_prompt_type = self.mteb.types.PromptType.query  # tells sentence1 from sentence2
        for done, (column, (query, document)) in enumerate(self.models.items()):
            tell(column, done)
            model = MtebModel(query, document, self._revision(query, document), self.memo)
            try:
                result = _kept(results, model, task)
                if result is None:
                    self._load(task)
                    result = self._evaluate(model, task, results)
                score = _as_score(task, result, local)
            except _NoDataError as error:
                self._report(TaskFailure(name, str(error)))
                return
            except Exception as error:
                message = (
                    str(error) if isinstance(error, DistilvecError) else f"mteb failed: {type(error).__name__}: {error}"
                )
                self._report(TaskFailure(name, message, column))
                continue
            if query is not document and task.metadata.type not in (*PAIR_TYPES, *CLASS_TYPES, *SEARCH_TYPES):
                note = f"{task.metadata.type} has one side only: the figure is that of '{document.name}'"
                score = Score(**{**vars(score), "warnings": (*score.warnings, note)})
            yield column, score
        task.dataset, task.data_loaded = None, False

    def _local(self, task: Any) -> LocalData | None:
        folder = self.data / task.metadata.name if self.data else None
        if folder is None or not folder.is_dir():
            return None
        local = load_local(task, folder)
        task.hf_subsets, task.dataset, task.data_loaded = list(local.dataset), local.dataset, True
        return local

    def _load(self, task: Any) -> None:
        """The hub's data. Note: an aggregate task's parts are loaded by mteb itself, one after the other."""
        if task.data_loaded or task.is_aggregate:
            return
        try:
            task.load_data()
        except Exception as error:
            where, name = task.metadata.dataset.get("path"), task.metadata.name
            missing = f"; {self.data / name} is not there either" if self.data else ""
            reason = next(iter(str(error).splitlines()), "")
            raise _NoDataError(
                f"[--data] its data ({where}) cannot be fetched from the Hugging Face hub ({type(error).__name__}: {reason}){missing}. "
                f"Go online, or put the task's files into a folder DATA/{name} and pass --data DATA."
            ) from error

    def _evaluate(self, model: MtebModel, task: Any, results: Any) -> Any:
        """mteb's result; every column starts from the same random numbers, as in a process of its own."""
        task.rng_state, task.np_rng = random.Random(task.seed), np.random.default_rng(task.seed)
        found = self.mteb.evaluate(model, task, co2_tracker=False, cache=results, show_progress_bar=False)
        return found.task_results[0]

    def _revision(self, query: Embedder, document: Embedder) -> str | None:
        if not self.identities:
            return None
        parts = [self.identities[id(model)] for model in ([query] if query is document else [query, document])]
        return "-".join(parts)

    def _report(self, problem: TaskFailure) -> None:
        if self.problems is None:
            where = f" ({problem.column})" if problem.column else ""
            raise DistilvecError(f"[--mteb] task '{problem.task}'{where}: {problem.text}")
        self.problems.append(problem)


class _NoDataError(DistilvecError):
    """The hub's data cannot be had, for no column."""


def _kept(results: Any, model: MtebModel, task: Any) -> Any:
    """A whole result from the cache, None if there is none; a file that a killed process left unfinished is removed."""
    name, meta = task.metadata.name, model.mteb_model_meta
    if results is None:
        return None
    try:
        result = results.load_task_result(name, meta)
    except ValueError:
        results.get_task_result_path(name, meta).unlink()
        return None
    return result if result is not None and not result.get_missing_evaluations(task) else None


def _as_score(task: Any, result: Any, local: LocalData | None) -> Score:
    """Means over splits and subsets, times 100, of every figure that is a finite number."""
    found = [entry for split in task.eval_splits for entry in result.scores[split]]
    entries = [entry for entry in found if task.is_aggregate or entry["hf_subset"] in task.hf_subsets]
    main, figures = task.metadata.main_score, {}
    for name in dict.fromkeys(name for entry in entries for name in entry):
        values = [entry.get(name) for entry in entries]
        if name != "main_score" and all(isinstance(v, int | float) and math.isfinite(v) for v in values):
            figures[name] = 100 * float(np.mean([float(v) for v in values if v is not None]))
    notes = local.warnings if local else ()
    if main not in figures:
        notes = (*notes, f"{main} is undefined, as all similarities are equal; counted as 0")
        figures[main] = 0.0
    rows = local.rows if local else _hub_rows(task)
    kind = task.metadata.type.lower()
    ordered = {main: figures[main], **figures}
    return Score(
        task.metadata.name, kind, main, figures[main], ordered, float(result.evaluation_time or 0.0), rows, tuple(notes)
    )


def _hub_rows(task: Any) -> int:
    """What is scored, from the statistics mteb ships: pairs, texts, or queries; 0 where it has none."""
    found = task.metadata.descriptive_stats or {}
    rows = 0
    for split in task.eval_splits:
        parts = found.get(split, {}).get("hf_subset_descriptive_stats", {})
        for part in [parts[name] for name in task.hf_subsets if name in parts] or [found.get(split, {})]:
            judged = part.get("relevant_docs_statistics")
            rows += (
                round(judged["num_relevant_docs"] / judged["average_relevant_docs_per_query"])
                if judged
                else part.get("num_samples", 0)
            )
    return rows


@contextmanager
def _quiet() -> Iterator[None]:
    """No progress bars of datasets, no warnings of mteb's classifiers, which stop after 100 iterations and say so ten times."""
    import datasets

    bars, log = datasets.are_progress_bars_disabled(), logging.getLogger("mteb")
    level = log.level
    log.setLevel(logging.CRITICAL)
    datasets.disable_progress_bars()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        log.setLevel(level)
        if not bars:
            datasets.enable_progress_bars()


def _nearest(name: str, known: Iterable[str]) -> str:
    """The three nearest names, whatever their case."""
    folded = {other.casefold(): other for other in known}
    near = [folded[key] for key in difflib.get_close_matches(name.casefold(), folded, n=3, cutoff=0.5)]
    return f"; did you mean {' or '.join(near)}?" if near else ". `mteb available-tasks` lists the names"
