"""Benchmarks that mteb does not have by these names.

    BEIR-14    BEIR without MSMARCO, as in REDACT's table 1
    TR-MTEB    26 Turkish tasks (Baysan and Güngör, Findings of EMNLP 2025), as in table 2 of the surgery paper, which
               averages the means by type

The tasks of TR-MTEB are those of the benchmark "MTEB(Turkish)" in its authors' github.com/selmanbaysan/mteb_tr. mteb
has four of them. The others are defined here: data that the authors score as stored on the hub come from there; data
that the authors' code samples or rearranges are read from local folders (--data) alone. Note: of the 11 retrieval tasks
the surgery paper counts five as reranking, without names.
"""

from __future__ import annotations

import importlib
from typing import Any

BEIR_14, TR_MTEB = "BEIR-14", "TR-MTEB"
NAMES = (BEIR_14, TR_MTEB)

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
    known = list(mteb.get_tasks(tasks=list(_IN_MTEB), languages=["tur"], exclude_superseded=False))
    return known + [_make_task(own, *about) for own, about in {**_STORED, **_PREPARED}.items()]


def is_prepared(task: Any) -> bool:
    """Return whether the authors score other rows than those stored on the hub."""
    return task.metadata.name in _PREPARED and task.metadata.dataset["path"].startswith("trmteb/")


def _make_task(name: str, kind: str, data: str) -> Any:
    """Make a task of mteb's classes. MnliTr is scored on two test splits, as the authors do."""
    metadata = importlib.import_module("mteb.abstasks.task_metadata").TaskMetadata
    base, metric = _CLASSES[kind]
    about = metadata(
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
    return type(name, (getattr(importlib.import_module("mteb.abstasks"), base),), {"metadata": about})()
