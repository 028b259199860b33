"""Tasks and benchmarks of the package mteb 2, for one model or for a pair (query embedder, document embedder).

Local folders (mteb_local.py) may replace mteb's data. Only retrieval, reranking and their kind have queries and
documents: the scores of a pair on other types repeat those of the query embedder (REDACT, appendix E, table 6). The
model `mixed` takes both, as in evaluator.py:

    type                                      query embedder     document embedder
    Retrieval, Reranking and their kind       queries            documents
    STS, PairClassification                   sentence1          sentence2             (mixed)
    Classification, MultilabelClassification  test rows          training rows         (mixed)

Texts of the other types all get the document role's prompt.
Note: mteb's prompts by task for instruction-tuned models are not used.
"""

from __future__ import annotations

import copy
import difflib
import importlib
import logging
import math
import os
import random
import re
import sys
import tempfile
import warnings
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from distilvec.config.schema import Role
from distilvec.core.errors import DistilvecError, user_error
from distilvec.core.extras import require_extra
from distilvec.evaluation.columns import takes_both
from distilvec.evaluation.evaluator import EmbeddingCache, Score
from distilvec.evaluation.mteb_benchmarks import NAMES, benchmark_tasks, is_prepared
from distilvec.evaluation.mteb_local import LocalData, load_local
from distilvec.evaluation.tasks import TaskFailure
from distilvec.teachers.embedder import Embedder

Array = np.ndarray[Any, Any]
Pair = tuple[Embedder, Embedder]

PAIR_TYPES = ("STS", "PairClassification")
CLASS_TYPES = ("Classification", "MultilabelClassification")
SEARCH_TYPES = ("Retrieval", "Reranking", "InstructionRetrieval", "InstructionReranking")


def mteb_scores(
    models: Mapping[str, Pair],
    tasks: list[str] | None = None,
    benchmark: str | None = None,
    data: Path | None = None,
    cache: Path | None = None,
    *,
    problems: list[TaskFailure],
) -> dict[str, list[Score]]:
    """Scores by model of mteb's tasks, or of one of its benchmarks; metrics are means over subsets and splits.

    `data/<task>` replaces the hub if that folder exists. Results are kept below `cache` by model, weights, task and
    local data (six decimals, as mteb writes them). A task that cannot be scored is added to `problems`, and the others
    are scored. Within a task each text is embedded once per model and role.
    Errors: DistilvecError for unknown names, for none or both of `tasks` and `benchmark`, and if mteb is not installed.
    """
    import_mteb(cache)
    weights: dict[int, str] = {}  # by embedder
    for pair in models.values():
        for embedder in pair:
            if id(embedder) not in weights:
                weights[id(embedder)] = embedder.manifest().fingerprint if cache else ""  # type: ignore[attr-defined]
    scores: dict[str, list[Score]] = {name: [] for name in models}
    for task in find_tasks(tasks, benchmark):
        name = task.metadata.name
        try:
            local = _take_local_data(task, data)
        except Exception as error:
            problem = user_error(error)
            if problem is None:
                raise
            problems.append(TaskFailure(name, str(problem)))
            continue
        results = None if cache is None else cache / (local.fingerprint if local else "hub")
        memo = EmbeddingCache()
        scores_by_pair: dict[tuple[int, int], Score] = {}
        for model, pair in models.items():
            query, document = embedders(task.metadata.type, pair, takes_both(model))
            key = (id(query), id(document))
            revision = "-".join(dict.fromkeys([weights[id(query)], weights[id(document)]]))
            try:
                if key not in scores_by_pair:
                    with _quiet():
                        encoder = MtebModel(query, document, revision, memo)
                        scores_by_pair[key] = score_task(task, encoder, local, results, data)
                scores[model].append(scores_by_pair[key])
            except NoDataError as error:
                problems.append(TaskFailure(name, str(error)))
                break
            except Exception as error:  # mteb's tasks raise whatever their code raises
                problem = user_error(error)
                text = f"mteb failed: {type(error).__name__}: {error}" if problem is None else str(problem)
                problems.append(TaskFailure(name, text, model))
        task.dataset, task.data_loaded = None, False  # of all tasks they would not fit into memory
    return scores


def _take_local_data(task: Any, data: Path | None) -> LocalData | None:
    """Give a task the data of its local folder; None without one."""
    if data is None or not (data / task.metadata.name).is_dir():
        return None
    local = load_local(task, data / task.metadata.name)
    task.hf_subsets = list(local.dataset)
    task.dataset = local.dataset
    task.data_loaded = True
    return local


def embedders(kind: str, pair: Pair, mixed: bool = False) -> Pair:
    """Return the query and the document embedder for a type of task; types without documents take the former alone."""
    if kind in SEARCH_TYPES or (mixed and kind in (*PAIR_TYPES, *CLASS_TYPES)):
        return pair
    return pair[0], pair[0]


def find_tasks(names: list[str] | None, benchmark: str | None) -> list[Any]:
    """Task objects of mteb, copied, or of our own benchmarks.

    Errors: DistilvecError with the nearest names for what mteb does not know.
    """
    mteb = import_mteb()
    if bool(names) == bool(benchmark):
        raise DistilvecError(
            "expected task names or a benchmark, not both.", "Give --mteb or --benchmark.", key="--mteb"
        )
    if benchmark in NAMES:
        return benchmark_tasks(mteb, benchmark)
    if benchmark:
        try:
            return [copy.copy(task) for task in mteb.get_benchmark(benchmark).tasks]
        except KeyError:
            near = _nearest(benchmark, [*NAMES, *(entry.name for entry in mteb.get_benchmarks())])
            raise DistilvecError(f"mteb has no benchmark '{benchmark}'{near}.", key="--benchmark") from None
    entries = vars(importlib.import_module("mteb.tasks")).values()
    known = [entry.metadata.name for entry in entries if hasattr(entry, "metadata")]
    if unknown := [name for name in names or [] if name not in known]:
        problems = [f"mteb has no task '{name}'{_nearest(name, known)}." for name in unknown]
        raise DistilvecError("\n[--mteb] ".join(problems), key="--mteb")
    return [mteb.get_task(name) for name in dict.fromkeys(names or [])]


def import_mteb(cache: Path | None = None) -> Any:
    """Import the package, which makes a cache folder: in `cache` or a temporary folder, not in the user's home."""
    require_extra("mteb", "--mteb")
    if "mteb" in sys.modules or os.environ.get("MTEB_CACHE"):
        return importlib.import_module("mteb")
    with tempfile.TemporaryDirectory() as temporary:
        os.environ["MTEB_CACHE"] = str(cache or temporary)
        try:
            return importlib.import_module("mteb")
        finally:
            del os.environ["MTEB_CACHE"]


class MtebModel:
    """Encoder for mteb 2: the query embedder for queries, the document embedder for all else, and its similarity.

    `memo` shares vectors between models; `revision` distinguishes weights in mteb's result cache.
    """

    def __init__(self, query: Embedder, document: Embedder, revision: str, memo: EmbeddingCache) -> None:
        from mteb.models.model_meta import ModelMeta

        self.query, self.document, self.memo = query, document, memo
        self.compared = document.similarity
        if self.compared != "cosine":  # other scores from the same weights
            revision = f"{revision}-{self.compared}"
        name = query.name if query is document else f"{query.name}+{document.name}"
        safe = re.sub(r"[^\w.+-]+", "_", name).strip("_.")[:100] or "model"
        self.mteb_model_meta: Any = ModelMeta.create_empty(
            {"name": f"distilvec/{safe}", "revision": revision or "unknown"}
        )

    def encode(
        self,
        inputs: Iterable[Mapping[str, Any]],
        *,
        task_metadata: Any,
        hf_split: str,
        prompt_type: Any = None,
        **_: Any,
    ) -> Array:
        """Vectors of mteb's batches in their order, float32 [texts, dim]."""
        texts = [text for batch in inputs for text in batch["text"]]
        kind = task_metadata.type
        query = str(getattr(prompt_type, "value", prompt_type)) == "query"
        asked = hf_split in task_metadata.eval_splits if kind in CLASS_TYPES else query
        role: Role = "query" if asked and kind not in (*PAIR_TYPES, *CLASS_TYPES) else "document"
        return self.memo.vectors(self.query if asked else self.document, texts, role)

    def similarity(self, first: Any, second: Any) -> Any:
        """Similarity of every row with every row, float32 tensor [first, second]."""
        name = {"cosine": "cos_sim", "dot": "dot_score", "euclidean": "euclidean_sim"}[self.compared]
        return getattr(importlib.import_module("mteb.similarity_functions"), name)(first, second)

    def similarity_pairwise(self, first: Any, second: Any) -> Any:
        """Similarity of row i with row i, float32 tensor [rows]."""
        name = {"cosine": "pairwise_cos_sim", "dot": "pairwise_dot_score", "euclidean": "pairwise_euclidean_sim"}
        return getattr(importlib.import_module("mteb.similarity_functions"), name[self.compared])(first, second)


class NoDataError(DistilvecError):
    """Data of the hub that cannot be loaded, for any model."""


def score_task(task: Any, model: MtebModel, local: LocalData | None, folder: Path | None, data: Path | None) -> Score:
    """Score of one task, from results below `folder` if there. Every model starts from the same random numbers."""
    mteb, name, kind = import_mteb(), task.metadata.name, task.metadata.type
    results: Any = None if folder is None else mteb.ResultCache(folder)
    if kind in PAIR_TYPES and task.input1_prompt_type is None and task.input2_prompt_type is None:
        task.input1_prompt_type = mteb.types.PromptType.query  # distinguishes sentence1 from sentence2
    kept = None
    try:
        kept = results.load_task_result(name, model.mteb_model_meta) if results is not None else None
    except ValueError:  # a killed process left half a file
        results.get_task_result_path(name, model.mteb_model_meta).unlink()
    if kept is None or kept.get_missing_evaluations(task):
        _load_data(task, data)
    task.rng_state, task.np_rng = random.Random(task.seed), np.random.default_rng(task.seed)
    found = mteb.evaluate(model, task, co2_tracker=False, cache=results, show_progress_bar=False)
    return _as_score(task, found.task_results[0], local)


def _load_data(task: Any, data: Path | None) -> None:
    """Load data from the hub. Note: mteb loads the parts of an aggregate task itself, one after the other."""
    if task.data_loaded or task.is_aggregate:
        return
    if is_prepared(task):
        source, name, data = task.metadata.dataset["path"], task.metadata.name, data or Path("DATA")
        raise NoDataError(
            f"the authors of TR-MTEB score rows that their code takes from {source}.",
            f"Put these rows into {data / name} and pass --data {data}.",
            key="--data",
        )
    try:
        task.load_data()
    except Exception as error:
        source, name, data = task.metadata.dataset.get("path"), task.metadata.name, data or Path("DATA")
        reason = next(iter(str(error).splitlines()), "")
        raise NoDataError(
            f"its data ({source}) cannot be fetched from the Hugging Face hub ({type(error).__name__}: {reason}).",
            f"Go online, or put the task's files into {data / name} and pass --data {data}.",
            key="--data",
        ) from error


def _as_score(task: Any, result: Any, local: LocalData | None) -> Score:
    """Means over splits and subsets, times 100, of every metric that is a finite number everywhere.

    The main metric of a subset where it is undefined counts as 0.
    """
    entries = []
    for split in task.eval_splits:
        for entry in result.scores[split]:
            if task.is_aggregate or entry["hf_subset"] in task.hf_subsets:
                entries.append(entry)
    names = dict.fromkeys(name for entry in entries for name in entry if name != "main_score")
    values: dict[str, float] = {}
    for name in names:
        column = [entry.get(name) for entry in entries]
        if all(map(_is_defined, column)):
            values[name] = 100 * float(np.mean(column))
    main = task.metadata.main_score
    notes = list(local.warnings) if local else []
    if main not in values:
        column = [entry.get(main) for entry in entries]
        defined = [value for value in column if _is_defined(value)]
        values[main] = 100 * sum(defined) / max(1, len(column))
        where = f" in {len(column) - len(defined)} of {len(column)} splits and subsets" if defined else ""
        notes.append(f"{main} is undefined{where}, as all similarities are equal; counted as 0")
    values = {main: values[main], **values}
    return Score(
        task=task.metadata.name,
        type=task.metadata.type.lower(),
        metric=main,
        value=values[main],
        metrics=values,
        seconds=float(result.evaluation_time or 0.0),
        rows=local.rows if local else _rows_on_the_hub(task),
        warnings=tuple(notes),
    )


def _is_defined(value: Any) -> bool:
    return isinstance(value, int | float) and math.isfinite(value)


def _rows_on_the_hub(task: Any) -> int:
    """Queries or samples of a task's splits, as mteb states them; 0 where it does not."""
    statistics = task.metadata.descriptive_stats or {}
    rows = 0
    for split in task.eval_splits:
        stated = statistics.get(split, {})
        queries = stated.get("queries_text_statistics") or {}
        rows += queries.get("unique_texts") or stated.get("num_samples", 0)
    return rows


@contextmanager
def _quiet() -> Iterator[None]:
    """Silence the progress bars of datasets and the repeated warnings of mteb's classifiers."""
    datasets, log = importlib.import_module("datasets"), logging.getLogger("mteb")
    level, hidden = log.level, datasets.are_progress_bars_disabled()
    log.setLevel(logging.CRITICAL)
    datasets.disable_progress_bars()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        log.setLevel(level)
        if not hidden:
            datasets.enable_progress_bars()


def _nearest(name: str, known: Iterable[str]) -> str:
    """Three nearest names, whatever their case."""
    folded = {other.casefold(): other for other in known}
    near = [folded[key] for key in difflib.get_close_matches(name.casefold(), folded, n=3, cutoff=0.5)]
    return f"; did you mean {' or '.join(near)}?" if near else ". `mteb available-tasks` lists the names"
