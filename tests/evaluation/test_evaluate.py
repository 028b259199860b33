import dataclasses
import math

import numpy as np
import pytest
from refusals import refused
from scipy.stats import spearmanr
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import average_precision_score, f1_score

from distilvec.evaluation.aggregate import average, percent_of_teacher, retention
from distilvec.evaluation.evaluator import EmbeddingCache, Score, score_tasks
from distilvec.evaluation.tasks import ClassificationTask, PairTask, StsTask, make_retrieval

STS = StsTask("graded", [f"left {i}" for i in range(30)], [f"right {i % 10}" for i in range(30)], np.arange(30) % 7.0)
PAIRS = PairTask("same", STS.first, STS.second, np.arange(30) % 3 == 0)
CLASSES = ClassificationTask(
    "classes", [f"t {i}" for i in range(40)], [str(i % 3) for i in range(40)], ["t 1", "u", "v"], ["1", "0", "2"]
)
DOCUMENTS = {f"d{i}": f"document {i}" for i in range(150)}
SEARCH = make_retrieval(
    "search",
    DOCUMENTS,
    {f"q{i}": f"query {i}" for i in range(5)},
    {(f"q{i}", f"d{7 * i + j}"): 1 + j for i in range(5) for j in range(3)},
)
TASKS = [STS, PAIRS, CLASSES, SEARCH]


def cosine(first, second):
    return float(first @ second / np.linalg.norm(first) / np.linalg.norm(second))


def test_main_metrics_and_scale(embedder):
    scores = score_tasks(TASKS, embedder())
    assert [(s.task, s.type, s.metric, s.rows) for s in scores] == [
        ("graded", "sts", "spearman", 30),
        ("same", "pair", "average_precision", 30),
        ("classes", "classification", "accuracy", 3),
        ("search", "retrieval", "ndcg@10", 5),
    ]
    assert [set(s.metrics) for s in scores] == [
        {"spearman", "pearson"},
        {"average_precision", "best_accuracy", "best_f1"},
        {"accuracy", "macro_f1"},
        {"ndcg@10", "recall@100", "mrr@10"},
    ]
    assert all(s.value == s.metrics[s.metric] and s.seconds >= 0 and not s.warnings for s in scores)
    assert scores[1].metrics["best_accuracy"] > 66.6


@pytest.mark.parametrize("mode", ["standard", "asymmetric", "mixed"])
def test_every_type_takes_its_sides_from_the_right_model(embedder, mode):
    """Retrieval alone has queries and documents; other types are asymmetric only where that is asked for."""
    query = embedder("student", seed="s")
    searched = embedder("teacher") if mode != "standard" else query
    document = searched if mode == "mixed" else query
    graded, _, classes, search = score_tasks(TASKS, query, searched, mixed=mode == "mixed")
    similarities = [cosine(query.vector(a), document.vector(b)) for a, b in zip(STS.first, STS.second, strict=True)]
    assert graded.value == pytest.approx(100 * spearmanr(similarities, STS.gold).statistic)

    classifier = LogisticRegression(max_iter=2000).fit(document.embed(CLASSES.train_texts), CLASSES.train_labels)
    predicted = classifier.predict(query.embed(CLASSES.test_texts))
    assert classes.metrics["macro_f1"] == pytest.approx(
        100 * f1_score(CLASSES.test_labels, predicted, average="macro", zero_division=0)
    )

    reciprocal, recalled = [], []
    for number, text in enumerate(SEARCH.queries):
        ranked = sorted(
            DOCUMENTS, key=lambda key, text=text: -cosine(query.vector(text), searched.vector(DOCUMENTS[key]))
        )
        ranks = [ranked.index(f"d{7 * number + j}") + 1 for j in range(3)]
        reciprocal.append(1 / min(ranks) if min(ranks) <= 10 else 0)
        recalled.append(sum(rank <= 100 for rank in ranks) / 3)
    assert search.metrics["mrr@10"] == pytest.approx(100 * np.mean(reciprocal))
    assert search.metrics["recall@100"] == pytest.approx(100 * np.mean(recalled))


@pytest.mark.parametrize("similarity", ["dot", "euclidean"])
def test_a_model_is_scored_by_the_similarity_it_states(embedder, similarity):
    """Pairs, STS and retrieval; a pair of models by that of the documents' model, as an index is searched."""
    compare = {"dot": np.dot, "euclidean": lambda a, b: -np.linalg.norm(a - b)}[similarity]
    model, student = embedder(similarity=similarity), embedder("student", seed="s")
    graded, same, _, search = score_tasks(TASKS, model)
    similarities = [compare(model.vector(a), model.vector(b)) for a, b in zip(STS.first, STS.second, strict=True)]
    assert graded.value == pytest.approx(100 * spearmanr(similarities, STS.gold).statistic)
    assert same.value == pytest.approx(100 * average_precision_score(PAIRS.positive, similarities))
    assert graded.value != pytest.approx(score_tasks(TASKS, embedder())[0].value, abs=0.1)
    for query, found in ((model, search), (student, score_tasks([SEARCH], student, model)[0])):
        first = []
        for number, text in enumerate(SEARCH.queries):
            scores = {key: compare(query.vector(text), model.vector(DOCUMENTS[key])) for key in DOCUMENTS}
            ranked = sorted(DOCUMENTS, key=lambda key, scores=scores: -scores[key])
            first.append(min(ranked.index(f"d{7 * number + j}") for j in range(3)))
        assert found.metrics["mrr@10"] == pytest.approx(100 * np.mean([1 / (n + 1) * (n < 10) for n in first]))


def test_asymmetric_scores_repeat_the_students_outside_retrieval(embedder):
    student, teacher, samples = embedder("student", seed="s"), embedder("teacher", width=16), [{}, {}]
    alone = score_tasks(TASKS, student, samples=samples[0])
    pair = score_tasks(TASKS, student, teacher, samples=samples[1])
    for ours, theirs in zip(alone[:3], pair[:3], strict=True):
        assert ours.metrics == theirs.metrics
        assert np.array_equal(samples[0][ours.task].predicted, samples[1][ours.task].predicted)
    assert alone[3].metrics != pair[3].metrics
    assert {text for _, text in teacher.asked} == set(SEARCH.documents), "the teacher embeds documents alone"


def test_each_text_is_embedded_once_a_model_and_role(embedder):
    student, teacher, memo = embedder("student", seed="s"), embedder("teacher"), EmbeddingCache()
    for query, document in ((teacher, teacher), (student, student), (student, teacher)):
        score_tasks(TASKS, query, document, memo)
    wanted = {
        ("document", text)
        for text in [*STS.first, *STS.second, *CLASSES.train_texts, *CLASSES.test_texts, *SEARCH.documents]
    }
    wanted |= {("query", text) for text in SEARCH.queries}
    for model in (student, teacher):
        assert len(model.asked) == len(wanted) and set(model.asked) == wanted


def test_a_memo_changes_no_figure_and_tells_models_of_one_name_apart(embedder):
    one, other, memo = embedder("model", seed="1"), embedder("model", seed="2"), EmbeddingCache()
    shared = [[s.metrics for s in score_tasks(TASKS, model, memo=memo)] for model in (one, other, one)]
    assert shared[0] == shared[2] == [s.metrics for s in score_tasks(TASKS, one)]
    assert shared[1] == [s.metrics for s in score_tasks(TASKS, other)] != shared[0]


def test_role_of_a_task_reaches_the_model(embedder):
    model = embedder()
    score_tasks([dataclasses.replace(STS, role="query")], model)
    assert {role for role, _ in model.asked} == {"query"}


def test_perfect_model_reaches_100(embedder):
    axes = np.eye(16)
    known = {"q": axes[0], "r": axes[1], "x": axes[0], "y": axes[1], "z": axes[2]}
    task = make_retrieval(
        "search", {"1": "x", "2": "y", "3": "z"}, {"q": "q", "r": "r"}, {("q", "1"): 1, ("r", "2"): 1}
    )
    assert score_tasks([task], embedder(known=known))[0].metrics == {"ndcg@10": 100, "recall@100": 100, "mrr@10": 100}


def test_equal_scores_are_ranked_by_descending_id(embedder):
    one = np.ones(16)
    task = make_retrieval("search", {"10": "a", "2": "b", "3": "c"}, {"q": "q"}, {("q", "10"): 1})
    score = score_tasks([task], embedder(known={"a": one, "b": one, "c": one, "q": one}))[0]
    assert score.metrics["mrr@10"] == pytest.approx(100 / 3) and score.value == pytest.approx(50)


def test_empty_documents_are_not_embedded_and_rank_last(embedder):
    model = embedder(known={"q": np.ones(16), "a": -np.ones(16)})
    task = make_retrieval("search", {"1": "a", "2": " "}, {"q": "q"}, {("q", "1"): 1, ("gone", "1"): 1})
    score = score_tasks([task], model)[0]
    assert score.value == 100 and (("document", " ")) not in model.asked
    assert score.warnings == (
        "1 of 2 judgements name ids that are not in corpus or queries; left out",
        "1 of 2 documents are empty and rank last",
    )


def test_a_collapsed_model_scores_0_with_a_word_about_it(embedder):
    collapsed = embedder(known=dict.fromkeys([*STS.first, *STS.second], np.ones(16)))
    score = score_tasks([STS], collapsed)[0]
    assert score.metrics == {"spearman": 0, "pearson": 0} and "all similarities are equal" in score.warnings[0]


@pytest.mark.parametrize("number", [math.nan, math.inf])
def test_vectors_that_are_not_finite_name_model_and_text(embedder, number):
    broken = embedder("broken", known={"right 3": np.full(16, number)})
    with refused("model", "the first is 'right 3'"):
        score_tasks([STS], broken)


@pytest.mark.parametrize("task", TASKS, ids=lambda task: task.type)
def test_two_widths_are_refused(embedder, task):
    with refused("model", "of dim 16"):
        score_tasks([task], embedder("student", width=8), embedder("teacher"), mixed=True)


def test_no_tasks_and_arrays_of_the_wrong_shape(embedder):
    with refused("suite"):
        score_tasks([], embedder())
    model = embedder("short")
    model.embed = lambda texts, role="document": np.zeros((len(texts) - 1, 4))
    with refused("model", "(29, 4)"):
        score_tasks([STS], model)


def score(task, value, metric="spearman"):
    return Score(task, "sts", metric, value, {metric: value}, 0.0, 1)


def test_average_and_retention():
    teacher, student = [score("a", 80.0), score("b", 40.0)], [score("b", 20.0), score("a", 80.0)]
    assert average(teacher) == 60
    assert retention(student, teacher) == {"a": 100.0, "b": 50.0, "average": pytest.approx(100 * 50 / 60)}
    assert retention([score("a", 5.0), score("b", 1.0)], [score("a", 10.0), score("b", -2.0)]) == {
        "a": 50.0,
        "average": 75.0,
    }
    with refused("scores"):
        average([])


def test_retention_handles_missing_tasks_and_teachers_scores_of_0_in_one_way():
    def kept(**values):
        return retention([score(task, value) for task, value in values.items()], teacher)

    teacher = [score("a", 80.0), score("b", 40.0), score("c", 0.0)]
    assert kept(b=20.0, d=5.0) == {"b": 50.0, "average": 50.0}
    assert kept(a=40.0, c=20.0) == {"a": 50.0, "average": 75.0}
    assert kept(c=20.0) == {} == kept() == kept(d=1.0)
    assert percent_of_teacher(20.0, 80.0) == 25
    assert percent_of_teacher(20.0, 0.0) is None is percent_of_teacher(20.0, -1.0)
    other_metric = [score("a", 40.0), score("b", 20.0, "other")]
    assert retention(other_metric, [score("a", 80.0), score("b", 40.0)]) == {"a": 50.0, "average": 50.0}, (
        "another metric"
    )
