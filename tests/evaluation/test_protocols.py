"""Protocols choose figures; averages in and out of domain are checked against the papers' printed ones."""

import numpy as np
import pytest
from refusals import refused

from distilvec.evaluation.aggregate import ALSO, PROTOCOLS, averages, retention, type_averages, with_protocol
from distilvec.evaluation.evaluator import Score, score_tasks
from distilvec.evaluation.tasks import ClassificationTask, PairTask
from distilvec.report.scores import score_table


def score(task="t", type="sts", value=50.0, metrics=None, domain=None):
    return Score(task, type, next(iter(metrics or {"m": 0})), value, metrics or {"m": value}, 0.1, 10, (), domain)


# TALAS, table 1, Qwen3-Embedding 0.6B to MiniLMv2 H384, row TALAS; in domain: Emotion, WiC, STSB
TALAS = {"in": [60.94, 66.65, 76.22], "out": [86.69, 72.77, 85.10, 81.42, 72.51, 70.77]}
# DistillMoE, table 14, TinyBERT 6L, row Ours
DISTILLMOE = {
    "in": [92.03, 73.88, 75.21, 62.33, 71.95, 73.99],
    "out": [69.56, 71.88, 66.77, 77.32, 74.91, 60.33, 74.61],
}


@pytest.mark.parametrize(
    "values, printed",
    [(TALAS, {"in": 67.94, "out": 78.21, "all": 74.79}), (DISTILLMOE, {"in": 74.90, "out": 70.77})],
    ids=["talas", "distillmoe"],
)
def test_averages_are_the_papers(values, printed):
    found = averages([score(value=value, domain=domain) for domain, column in values.items() for value in column])
    assert set(found) == {"all", "in", "out"}
    assert {name: round(found[name], 2) for name in printed} == pytest.approx(printed, abs=0.0051)


# REDACT, table 2: type, data sets, redact-mt asymmetric, redact-mt, its teacher; then "Avg." and "Avg. (Datasets)"
MTEB_TYPES = [
    ("classification", 8, 76.9, 76.9, 79.1),
    ("clustering", 8, 46.5, 46.5, 47.5),
    ("pairclassification", 3, 84.5, 84.5, 87.2),
    ("reranking", 2, 47.3, 46.9, 48.1),
    ("retrieval", 10, 51.8, 47.3, 55.4),
    ("sts", 9, 82.8, 82.8, 84.4),
    ("summarization", 1, 30.9, 30.9, 32.6),
]
PRINTED = [(60.1, 64.1), (59.4, 63.0), (62.0, 66.3)]


@pytest.mark.parametrize("column", range(3))
def test_the_average_by_type_is_mtebs(column):
    scores = [
        score(f"{kind} {number}", kind, values[column])
        for kind, count, *values in MTEB_TYPES
        for number in range(count)
    ]
    found = averages(scores)
    assert (found["by_type"], found["all"]) == pytest.approx(PRINTED[column], abs=0.06)
    assert found["retrieval"] == pytest.approx((51.8, 47.3, 55.4)[column])
    assert type_averages(scores) == pytest.approx({kind: values[column] for kind, _, *values in MTEB_TYPES})


def test_retention_of_every_average():
    columns = [
        [score(f"{kind} {number}", kind, values[column]) for kind, n, *values in MTEB_TYPES for number in range(n)]
        for column in range(3)
    ]
    assert retention(columns[0], columns[2])["average by type"] == pytest.approx(96.9, abs=0.06), "section 4.2"
    assert retention(columns[1], columns[2])["average by type"] == pytest.approx(95.8, abs=0.06)
    assert retention(columns[0], columns[2])["average retrieval"] == pytest.approx(100 * 51.8 / 55.4)


def test_the_surgery_protocol_reports_both_correlations():
    graded = score(metrics={"spearman": 77.45, "pearson": 77.55})
    mteb = score(metrics={"cosine_spearman": 77.45, "cosine_pearson": 77.55})
    for found, name in ((graded, "pearson"), (mteb, "cosine_pearson")):
        chosen = with_protocol(found, "surgery")
        assert (chosen.metric, chosen.value) == (name, 77.55)
        rows = score_table({"student": [chosen]}, also=ALSO["surgery"]).lines
        assert [row[1:] for row in rows] == [
            [name.replace("_", " "), "77.55"],
            [name.replace("_", " ").replace("pearson", "spearman"), "77.45"],
            ["", "77.55"],
        ]


def test_averages_without_domains_and_without_scores():
    assert averages([score(value=40.0), score(value=60.0)]) == {"all": 50.0}
    assert averages([score(value=40.0), score(value=60.0, domain="out")]) == {"all": 50.0, "out": 60.0}
    assert averages([]) == {}


def test_protocol_on_our_own_scores(embedder):
    texts = [f"text {number}" for number in range(30)]
    labels = ["a" if number % 3 else "b" for number in range(30)]
    tasks = [
        ClassificationTask("topics", texts[:20], labels[:20], texts[20:], labels[20:]),
        PairTask("pairs", texts[:15], texts[15:], np.arange(15) % 2 == 0),
    ]
    topics, pairs = score_tasks(tasks, embedder())
    assert (topics.metric, pairs.metric) == ("accuracy", "average_precision")
    chosen = {name: [with_protocol(s, name) for s in (topics, pairs)] for name in PROTOCOLS}
    assert {name: tuple(s.metric for s in found) for name, found in chosen.items()} == {
        "mteb-like": ("accuracy", "average_precision"),
        "talas": ("macro_f1", "average_precision"),
        "distillmoe": ("accuracy", "best_accuracy"),
        "emo": ("accuracy", "best_accuracy"),
        "surgery": ("accuracy", "average_precision"),
    }
    for found in chosen.values():
        for before, after in zip((topics, pairs), found, strict=True):
            assert after.value == before.metrics[after.metric]
            assert (after.task, after.metrics, after.rows) == (before.task, before.metrics, before.rows)
    assert chosen["talas"][0].value != topics.value


def test_protocol_on_mteb_scores_uses_its_names():
    topics = score(type="classification", value=80.0, metrics={"accuracy": 80.0, "f1": 70.0})
    pairs = score(
        type="pairclassification", value=60.0, metrics={"max_ap": 60.0, "cosine_ap": 58.0, "cosine_accuracy": 71.0}
    )
    assert [(s.metric, s.value) for s in (with_protocol(topics, "talas"), with_protocol(pairs, "talas"))] == [
        ("f1", 70.0),
        ("cosine_ap", 58.0),
    ]
    assert with_protocol(pairs, "distillmoe").value == 71.0


def test_sts_and_retrieval_stay():
    for type in ("sts", "retrieval", "clustering"):
        kept = score(type=type)
        assert all(with_protocol(kept, name) == kept for name in PROTOCOLS if (type, name) != ("sts", "surgery"))


def test_a_score_without_the_protocols_metric_is_an_error():
    with refused("--protocol", "macro_f1"):
        with_protocol(score(type="classification", metrics={"accuracy": 1.0}), "talas")
