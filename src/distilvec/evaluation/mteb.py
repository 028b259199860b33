"""Tasks and benchmarks of the package mteb 2, for one model or for a pair (query embedder, document embedder).

Local folders may replace mteb's data. Only retrieval, reranking and their kind have queries and
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
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from distilvec.config.schema import Role
from distilvec.core.errors import DistilvecError, about, user_error
from distilvec.core.extras import require_extra
from distilvec.data.task_rows import TableOptions
from distilvec.evaluation.columns import takes_both
from distilvec.evaluation.evaluator import EmbeddingCache, Score
from distilvec.evaluation.suite import suite_fingerprint
from distilvec.evaluation.task_files import load_classification, load_pairs, load_retrieval, load_sts
from distilvec.evaluation.tasks import ClassificationTask, RetrievalTask, StsTask, Task, TaskFailure
from distilvec.teachers.embedder import Embedder

Array = np.ndarray[Any, Any]
Pair = tuple[Embedder, Embedder]

PAIR_TYPES = ("STS", "PairClassification")
CLASS_TYPES = ("Classification", "MultilabelClassification")
LOCAL_TYPES = ("STS", "PairClassification", "Classification", "Retrieval")  # that local data serve
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
            query, document = mteb_embedders(task.metadata.type, pair, takes_both(model))
            key = (id(query), id(document))
            revision = "-".join(dict.fromkeys([weights[id(query)], weights[id(document)]]))
            try:
                if key not in scores_by_pair:
                    with _quiet_mteb():
                        encoder = MtebModel(query, document, revision, memo)
                        scores_by_pair[key] = score_mteb_task(task, encoder, local, results, data)
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


def mteb_embedders(kind: str, pair: Pair, mixed: bool = False) -> Pair:
    """Return the query and the document embedder for a type of task; types without documents take the former alone."""
    if kind in SEARCH_TYPES or (mixed and kind in (*PAIR_TYPES, *CLASS_TYPES)):
        return pair
    return pair[0], pair[0]


def find_tasks(names: list[str] | None, benchmark: str | None) -> list[Any]:
    """Task objects of mteb, copied, or of our own benchmarks."""
    mteb = import_mteb()
    if bool(names) == bool(benchmark):
        raise DistilvecError(
            "expected task names or a benchmark, not both.", "Give --mteb or --benchmark.", key="--mteb"
        )
    if benchmark in BENCHMARKS:
        return benchmark_tasks(mteb, benchmark)
    if benchmark:
        try:
            return [copy.copy(task) for task in mteb.get_benchmark(benchmark).tasks]
        except KeyError:
            near = _nearest(benchmark, [*BENCHMARKS, *(entry.name for entry in mteb.get_benchmarks())])
            raise DistilvecError(f"mteb has no benchmark '{benchmark}'{near}.", key="--benchmark") from None
    entries = vars(importlib.import_module("mteb.tasks")).values()
    task_names = [entry.metadata.name for entry in entries if hasattr(entry, "metadata")]
    if unknown := [name for name in names or [] if name not in task_names]:
        problems = [f"mteb has no task '{name}'{_nearest(name, task_names)}." for name in unknown]
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
        is_query = hf_split in task_metadata.eval_splits if kind in CLASS_TYPES else query
        role: Role = "query" if is_query and kind not in (*PAIR_TYPES, *CLASS_TYPES) else "document"
        return self.memo.vectors(self.query if is_query else self.document, texts, role)

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


def score_mteb_task(
    task: Any, model: MtebModel, local: LocalData | None, folder: Path | None, data: Path | None
) -> Score:
    """Score of one task, from results below `folder` if there. Every model starts from the same random numbers."""
    mteb, name, kind = import_mteb(), task.metadata.name, task.metadata.type
    results: Any = None if folder is None else mteb.ResultCache(folder)
    if kind in PAIR_TYPES and task.input1_prompt_type is None and task.input2_prompt_type is None:
        task.input1_prompt_type = mteb.types.PromptType.query  # distinguishes sentence1 from sentence2
    stored_result = None
    try:
        stored_result = results.load_task_result(name, model.mteb_model_meta) if results is not None else None
    except ValueError:  # a killed process left half a file
        results.get_task_result_path(name, model.mteb_model_meta).unlink()
    if stored_result is None or stored_result.get_missing_evaluations(task):
        _load_data(task, data)
    task.rng_state, task.np_rng = random.Random(task.seed), np.random.default_rng(task.seed)
    results_of_run = mteb.evaluate(model, task, co2_tracker=False, cache=results, show_progress_bar=False)
    return _as_score(task, results_of_run.task_results[0], local)


def _load_data(task: Any, data: Path | None) -> None:
    """Load data from the hub. Note: mteb loads the parts of an aggregate task itself, one after the other."""
    if task.data_loaded or task.is_aggregate:
        return
    source, name = task.metadata.dataset["path"], task.metadata.name
    if name in _PREPARED and source.startswith("trmteb/"):  # the authors score other rows than those on the hub
        folder = data or Path("DATA")
        raise NoDataError(
            f"the authors of TR-MTEB score rows that their code takes from {source}.",
            f"Put these rows into {folder / name} and pass --data {folder}.",
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
        split_statistics = statistics.get(split, {})
        queries = split_statistics.get("queries_text_statistics") or {}
        rows += queries.get("unique_texts") or split_statistics.get("num_samples", 0)
    return rows


@contextmanager
def _quiet_mteb() -> Iterator[None]:
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


def _nearest(name: str, names: Iterable[str]) -> str:
    """Three nearest names, whatever their case."""
    folded = {task.casefold(): task for task in names}
    near = [folded[key] for key in difflib.get_close_matches(name.casefold(), folded, n=3, cutoff=0.5)]
    return f"; did you mean {' or '.join(near)}?" if near else ". `mteb available-tasks` lists the names"


# -- local data --------------------------------------------------------------------------------------------------------

# Local folders that replace the hub: files of our own readers, in the form of mteb's tasks.
#
#     DATA/<task>/             of a task with one subset
#     DATA/<task>/<subset>/    of a task with several, such as languages; those without a folder are left out
#
#     STS                  a table with sentence1, sentence2, score       test.jsonl, .csv, .tsv, .parquet, or their .gz
#     PairClassification   a table with sentence1, sentence2, label       1 = match
#     Classification       tables with text, label                        train and test
#     Retrieval            corpus, queries and qrels.tsv (or qrels/test.tsv), as BEIR's folders
#
# Splits have the task's names; a file without a column `split` is every split but the training one.


@dataclass(frozen=True)
class LocalData:
    """Data of a task as mteb's `dataset` (subset, split, data), the number of scored rows, and their fingerprint."""

    dataset: dict[str, dict[str, Any]]
    rows: int
    fingerprint: str
    warnings: tuple[str, ...] = ()


def load_local(task: Any, folder: Path) -> LocalData:
    """Read an mteb task's data from its folder."""
    name, subsets = task.metadata.name, task.hf_subsets
    if task.metadata.type not in LOCAL_TYPES or task.is_aggregate:
        kind = "is an aggregate" if task.is_aggregate else f"has type {task.metadata.type}"
        raise DistilvecError(
            f"{folder}: mteb task '{name}' {kind}; local data serve tasks of type {', '.join(LOCAL_TYPES)}.",
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
            read |= {(subset, split): _read_rows(task, path, split) for split in task.eval_splits}
    dataset: dict[str, dict[str, Any]] = {subset: {} for subset in paths}
    for (subset, split), data in read.items():
        dataset[subset] |= _converted(task, data, split)
    missing = len(subsets) - len(paths)
    notes = [f"{missing} of {len(subsets)} subsets have no local data; left out"] if missing else []
    notes += [note for data in read.values() for note in getattr(data, "warnings", ())]
    return LocalData(dataset, sum(map(_row_count, read.values())), suite_fingerprint(read.values()), tuple(notes))


def _read_rows(task: Any, path: Path, split: str) -> Task:
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


def _row_count(task: Task) -> int:
    if isinstance(task, RetrievalTask):
        return len(task.queries)
    return len(task.test_texts if isinstance(task, ClassificationTask) else task.first)


# -- benchmarks of our own ---------------------------------------------------------------------------------------------

# Benchmarks that mteb does not have by these names.
#
#     BEIR-14    BEIR without MSMARCO, as in REDACT's table 1
#     TR-MTEB    26 Turkish tasks (Baysan and Güngör, Findings of EMNLP 2025), as in table 2 of the surgery paper, which
#                averages the means by type
#
# The tasks of TR-MTEB are those of the benchmark "MTEB(Turkish)" in its authors' github.com/selmanbaysan/mteb_tr.
# mteb has four of them. The others are defined here: data that the authors score as stored on the hub come from
# there; data that the authors' code samples or rearranges are read from local folders (--data) alone. Note: of the 11
# retrieval tasks the surgery paper counts five as reranking, without names.

BEIR_14, TR_MTEB = "BEIR-14", "TR-MTEB"
BENCHMARKS = (BEIR_14, TR_MTEB)

_IN_MTEB = (
    "TurkishMovieSentimentClassification",
    "TurkishProductSentimentClassification",
    "XNLI",
    "XQuADRetrieval",
)
_CLASSES = {  # by type: mteb's class, main metric
    "BitextMining": ("AbsTaskBitextMining", "f1"),
    "Classification": ("AbsTaskClassification", "accuracy"),
    "Clustering": ("AbsTaskClusteringLegacy", "v_measure"),
    "PairClassification": ("AbsTaskPairClassification", "max_ap"),
    "Retrieval": ("AbsTaskRetrieval", "ndcg_at_10"),
    "STS": ("AbsTaskSTS", "cosine_spearman"),
}
_STORED = {  # name: type, data set of trmteb on the hub
    "WMT16BitextMining": ("BitextMining", "wmt16_en_tr"),
    "TurkishOffensiveLanguageClassification": ("Classification", "offenseval"),
    "TurkishNewsCategoryClassification": ("Classification", "news-cat"),
    "TSTimelineNewsCategoryClassification": ("Classification", "ts_timeline_news_category"),
    "TurkishAbstractCorpusClustering": ("Clustering", "ts_abstract_corpus_p2p"),
    "TurkishColumnWritingClustering": ("Clustering", "630koseyazisi_p2p"),
    "STSbTR": ("STS", "stsb-tr"),
    "SquadTRRetrieval": ("Retrieval", "squad-tr"),
    "TQuadRetrieval": ("Retrieval", "tquad"),
    "ArguAnaTR": ("Retrieval", "arguana-tr"),
}
_PREPARED = {  # the same, of data that the authors' code changes
    "Turkish75NewsClassification": ("Classification", "75haber"),
    "THYSentimentClassification": ("Classification", "thy_sa"),
    "TurkishIronyClassification": ("Classification", "irony-tr"),
    "MnliTr": ("PairClassification", "multinli_tr"),
    "SnliTr": ("PairClassification", "snli_tr"),
    "MSMarcoTRRetrieval": ("Retrieval", "msmarco-tr"),
    "NFCorpusTR": ("Retrieval", "nfcorpus-tr"),
    "CQADupstackGamingRetrievalTR": ("Retrieval", "cqadupstack-gaming-tr"),
    "FiQA2018TR": ("Retrieval", "fiqa-tr"),
    "QuoraRetrievalTR": ("Retrieval", "quora-tr"),
    "SCIDOCSTR": ("Retrieval", "scidocs-tr"),
    "SciFactTR": ("Retrieval", "scifact-tr"),
}


def benchmark_tasks(mteb: Any, name: str) -> list[Any]:
    """Return the tasks of a benchmark of this module, for the imported package mteb."""
    if name == BEIR_14:
        return [task for task in mteb.get_benchmark("BEIR").tasks if task.metadata.name != "MSMARCO"]
    tasks = list(mteb.get_tasks(tasks=list(_IN_MTEB), languages=["tur"], exclude_superseded=False))
    return tasks + [_make_task(task, *settings) for task, settings in {**_STORED, **_PREPARED}.items()]


def _make_task(name: str, kind: str, data: str) -> Any:
    """Make a task of mteb's classes. MnliTr is scored on two test splits, as the authors do."""
    metadata = importlib.import_module("mteb.abstasks.task_metadata").TaskMetadata
    base, metric = _CLASSES[kind]
    made = metadata(
        name=name,
        description="Of TR-MTEB.",
        reference="https://aclanthology.org/2025.findings-emnlp.471/",
        dataset={"path": f"trmteb/{data}", "revision": "main"},
        type=kind,
        category="t2t",
        eval_splits=["test_matched", "test_mismatched"] if name == "MnliTr" else ["test"],
        eval_langs=["tur-Latn"],
        main_score=metric,
    )
    return type(name, (getattr(importlib.import_module("mteb.abstasks"), base),), {"metadata": made})()
