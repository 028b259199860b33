"""Compressed scores against brute force, sentence-transformers and scipy."""

import numpy as np
import pytest
from scipy.spatial.distance import cdist
from scipy.stats import spearmanr
from sentence_transformers.util.quantization import quantize_embeddings
from sklearn.linear_model import LogisticRegression

from distilvec.core.errors import DistilvecError
from distilvec.evaluation import compression
from distilvec.evaluation.compression import (
    PRECISIONS,
    compress_vectors,
    default_dims,
    int8_ranges,
    truncate,
)
from distilvec.evaluation.evaluator import EmbeddingCache, score_tasks
from distilvec.evaluation.tasks import ClassificationTask, PairTask, StoredTask, StsTask, make_retrieval

STS = StsTask("graded", [f"left {i}" for i in range(60)], [f"right {i % 20}" for i in range(60)], np.arange(60) % 7.0)
PAIRS = PairTask("same", STS.first, STS.second, np.arange(60) % 3 == 0)
CLASSES = ClassificationTask(
    "classes",
    [f"t {i}" for i in range(40)],
    [str(i % 3) for i in range(40)],
    [f"u {i}" for i in range(9)],
    [str(i % 3) for i in range(9)],
)
DOCUMENTS = {f"d{i:03}": f"document {i}" for i in range(300)} | {"empty": " "}
SEARCH = make_retrieval(
    "search",
    DOCUMENTS,
    {f"q{i}": f"query {i}" for i in range(8)},
    {(f"q{i}", f"d{7 * i + j:03}"): 1 for i in range(8) for j in range(40)},
)
TASKS = [STS, PAIRS, CLASSES, SEARCH]


@pytest.fixture
def columns(embedder):
    """A student and its teacher, 48 wide, not of unit length; the asymmetric column takes both."""
    student, teacher = embedder("student", width=48, seed="s"), embedder("teacher", width=48)
    return {"teacher": (teacher, teacher), "student": (student, student), "asymmetric": (student, teacher)}


def value_of(rows, **wanted):
    (row,) = [row for row in rows if all(getattr(row, key) == value for key, value in wanted.items())]
    return row.value


def compression_rows(tasks, columns, *options, **settings):
    rows = []
    for task in tasks:
        for name, pair in columns.items():
            rows += compression.compression_rows(task, name, pair, *options, **settings)
    return rows


def test_widths_are_powers_of_two_and_the_full_one():
    assert default_dims(384) == [32, 64, 128, 256, 384]
    assert default_dims(256) == [32, 64, 128, 256]
    assert default_dims(32) == [32] and default_dims(20) == [20] and default_dims(33) == [32, 33]


def test_vectors_that_are_compared_by_product_keep_their_lengths(embedder):
    """All dimensions in float32 and in float16 are the same search; scaled to length 1 they would be another."""
    model = embedder(width=48, similarity="dot")
    rows = compression_rows([STS, SEARCH], {"student": (model, model)}, EmbeddingCache(), [48, 32])
    for task in ("graded", "search"):
        whole = value_of(rows, task=task, width=48, precision="float32")
        assert value_of(rows, task=task, width=48, precision="float16") == pytest.approx(whole, abs=0.5)
    cosine = embedder(width=48)
    (whole,) = compression_rows([STS], {"student": (cosine, cosine)}, EmbeddingCache(), [48], ["float32"])
    assert whole.value != pytest.approx(value_of(rows, task="graded", width=48, precision="float32"), abs=1)
    cut = value_of(rows, task="graded", width=32, precision="float32")
    products = [model.vector(a)[:32] @ model.vector(b)[:32] for a, b in zip(STS.first, STS.second, strict=True)]
    assert cut == pytest.approx(100 * spearmanr(products, STS.gold).statistic, abs=0.01)


def test_truncation_keeps_what_lies_in_the_first_dimensions():
    """MRL by construction: 16 dimensions hold the meaning, the others noise; cut to 16, nearest neighbours are the true
    ones.
    """
    rng = np.random.default_rng(1)
    meaning, noise = rng.normal(size=(50, 16)), rng.normal(size=(2, 50, 48))
    first, second = (np.concatenate([meaning, 3 * part], axis=1) for part in noise)
    cut = [truncate(side, 16) for side in (first, second)]
    assert (np.argmax(cut[0] @ cut[1].T, axis=1) == np.arange(50)).all()
    assert (np.argmax(truncate(first, 64) @ truncate(second, 64).T, axis=1) == np.arange(50)).mean() < 0.6
    np.testing.assert_allclose(np.linalg.norm(cut[0], axis=1), 1, atol=1e-6)
    np.testing.assert_allclose(cut[0], truncate(truncate(first, 32), 16), atol=1e-6)


@pytest.mark.parametrize("width", [0, 65])
def test_a_width_that_is_not_there_is_named_with_the_one_that_is(width, columns):
    with pytest.raises(DistilvecError, match=rf"^\[widths\] .*dim 64 to dim {width}"):
        truncate(np.ones((2, 64)), width)
    with pytest.raises(DistilvecError, match=r"^\[widths\] .*dim 48 to dim 65"):
        compression_rows([STS], columns, EmbeddingCache(), [32, 65])


def test_int8_is_sentence_transformers_with_the_documents_ranges():
    rng = np.random.default_rng(2)
    documents, queries = rng.normal(size=(200, 12)).astype(np.float32), 2 * rng.normal(size=(50, 12)).astype(np.float32)
    documents[:, 3] = 0.5  # a constant dimension
    ranges = int8_ranges(documents)
    for vectors in (documents, queries):
        found = compress_vectors(vectors, "int8", ranges)
        np.testing.assert_array_equal(found, quantize_embeddings(vectors, "int8", calibration_embeddings=documents))
        assert found.dtype == np.float32 and found.min() == -128 and found.max() == 127
    steps = np.clip(np.floor((documents[:, 0] - ranges[0, 0]) / (ranges[1, 0] - ranges[0, 0]) * 255), 0, 255) - 128
    np.testing.assert_allclose(compress_vectors(documents, "int8", ranges)[:, 0], steps, atol=1)
    with pytest.raises(DistilvecError, match=r"^\[precision\] .*'int8' without ranges"):
        compress_vectors(documents, "int8")
    with pytest.raises(DistilvecError, match=r"^\[precision\] .*'int4'"):
        compress_vectors(documents, "int4")


def test_binary_cosine_is_scipys_hamming_distance():
    rng = np.random.default_rng(3)
    first, second = rng.normal(size=(20, 24)), rng.normal(size=(30, 24))
    signs = compress_vectors(first, "binary") @ compress_vectors(second, "binary").T
    np.testing.assert_allclose(1 - signs / 24, 2 * cdist(first > 0, second > 0, "hamming"), atol=1e-6)
    np.testing.assert_array_equal(compress_vectors(first, "binary") > 0, quantize_embeddings(first, "float32") > 0)


def test_float16_is_rounded():
    np.testing.assert_array_equal(
        compress_vectors(np.array([[1 / 3, 1.0]]), "float16"), np.array([[1 / 3, 1.0]], np.float16).astype(np.float32)
    )


def test_rows_for_every_task_column_width_and_precision(columns):
    rows = compression_rows(TASKS, columns, EmbeddingCache())
    found = {(row.task, row.column, row.width, row.precision) for row in rows}
    pairwise = {
        (task, width, precision) for task in ("graded", "same") for width in (32, 48) for precision in PRECISIONS[:-1]
    }
    wanted = (
        pairwise
        | {("search", width, precision) for width in (32, 48) for precision in PRECISIONS}
        | {("classes", 48, "float32")}
    )
    assert found == {(task, column, width, precision) for task, width, precision in wanted for column in columns}
    assert len(rows) == len(found)
    assert {row.task: row.metric for row in rows} == {
        "graded": "spearman",
        "same": "average_precision",
        "classes": "accuracy",
        "search": "ndcg@10",
    }


def test_full_width_float32_is_the_plain_score_and_always_there(columns):
    rows = compression_rows(TASKS, columns, EmbeddingCache(), dims=[32], precisions=["binary"], classification=True)
    for column, (query, document) in columns.items():
        for score in score_tasks(TASKS, query, document):
            assert value_of(rows, task=score.task, column=column, width=48, precision="float32") == score.value
            assert value_of(rows, task=score.task, column=column, width=32, precision="binary") != score.value
    assert len(rows) == 3 * 4 * 2


def test_no_text_is_embedded_twice(columns):
    """Every width, precision and column shares one embedding of each text a model and role."""
    memo = EmbeddingCache()
    for query, document in columns.values():
        score_tasks(TASKS, query, document, memo)
    compression_rows(TASKS, columns, memo, classification=True)
    wanted = {
        ("document", text)
        for text in [*STS.first, *STS.second, *CLASSES.train_texts, *CLASSES.test_texts, *SEARCH.documents]
    }
    wanted = {(role, text) for role, text in wanted if text.strip()} | {("query", text) for text in SEARCH.queries}
    for model in {pair[0] for pair in columns.values()}:
        assert len(model.asked) == len(wanted) and set(model.asked) == wanted


def test_asymmetric_rows_repeat_the_students_outside_retrieval(columns):
    rows = compression_rows([STS, PAIRS, SEARCH], columns, EmbeddingCache())
    found = {
        name: {(row.task, row.width, row.precision): row.value for row in rows if row.column == name}
        for name in ("student", "asymmetric")
    }
    for key, value in found["student"].items():
        assert (found["asymmetric"][key] == value) is (key[0] != "search")


def test_binary_similarities_of_pairs_are_hamming_distances_ties_included(columns):
    student, _ = columns["student"]
    distances = np.sum((student.embed(STS.first)[:, :32] > 0) != (student.embed(STS.second)[:, :32] > 0), axis=1)
    rows = compression_rows([STS], columns, EmbeddingCache())
    assert value_of(rows, column="student", width=32, precision="binary") == pytest.approx(
        100 * spearmanr(-distances, STS.gold).statistic
    )


def ndcg_at_10(scores):
    """Of SEARCH, from a table of scores; ties in the task's order of documents, the empty document last."""
    relevant = np.zeros(scores.shape, dtype=bool)
    relevant[tuple(SEARCH.judged.T)] = True
    scores = np.where([not text.strip() for text in SEARCH.documents], -np.inf, scores)
    order = np.argsort(-scores, axis=1, kind="stable")[:, :10]
    discounts = 1 / np.log2(np.arange(2, 12))
    return 100 * float(np.mean(np.take_along_axis(relevant, order, axis=1) @ discounts / discounts.sum()))


@pytest.mark.parametrize("column", ["student", "asymmetric"])
def test_retrieval_is_brute_force_ties_included(columns, column):
    query, document = columns[column]
    queries = truncate(query.embed(SEARCH.queries), 32).astype(np.float64)
    documents = truncate(document.embed(SEARCH.documents), 32)
    rows = compression_rows([SEARCH], columns, EmbeddingCache())
    filled = [bool(text.strip()) for text in SEARCH.documents]
    left, right = (
        quantize_embeddings(side, "int8", calibration_embeddings=documents[filled]).astype(float)
        for side in (queries, documents)
    )
    int8 = (left @ right.T / np.linalg.norm(right, axis=1)).astype(np.float32)
    hamming = np.rint(32 * cdist(queries > 0, documents > 0, "hamming"))
    assert value_of(rows, column=column, width=32, precision="float32") == pytest.approx(
        ndcg_at_10(queries @ documents.T)
    )
    assert value_of(rows, column=column, width=32, precision="int8") == pytest.approx(ndcg_at_10(int8))
    assert value_of(rows, column=column, width=32, precision="binary") == pytest.approx(ndcg_at_10(-hamming))
    # score_task asks for 100 documents, so 4 x 100 candidates are all 300: rescoring is the float query against all
    # signs
    rescored = (queries @ np.where(documents > 0, 1.0, -1.0).T).astype(np.float32)
    assert value_of(rows, column=column, width=32, precision="binary_rescored") == pytest.approx(ndcg_at_10(rescored))


def test_stored_documents_as_queries_are_rescored_as_floats_too(columns):
    student, _ = columns["student"]
    queries = truncate(student.embed(SEARCH.queries), 32).astype(np.float64)
    documents = truncate(student.embed(SEARCH.documents), 32)
    rows = compression_rows([StoredTask(**vars(SEARCH))], columns, EmbeddingCache(), [32], ["binary_rescored"])
    rescored = (queries @ np.where(documents > 0, 1.0, -1.0).T).astype(np.float32)
    found = value_of(rows, column="student", width=32, precision="binary_rescored")
    assert found == pytest.approx(ndcg_at_10(rescored))


def test_classifiers_see_unit_vectors(columns):
    student, _ = columns["student"]
    train, test = truncate(student.embed(CLASSES.train_texts), 32), truncate(student.embed(CLASSES.test_texts), 32)
    signs = [np.where(side > 0, 1, -1) / np.sqrt(32) for side in (train, test)]
    predicted = LogisticRegression(max_iter=2000).fit(signs[0], CLASSES.train_labels).predict(signs[1])
    rows = compression_rows([CLASSES], columns, EmbeddingCache(), [32], ["binary"], classification=True)
    expected = 100 * np.mean(predicted == np.array(CLASSES.test_labels))
    assert value_of(rows, column="student", width=32, precision="binary") == pytest.approx(expected)


def test_widths_that_fit_each_column(embedder):
    narrow, wide = embedder("narrow", width=40), embedder("wide", width=70)
    rows = compression_rows(
        [STS], {"teacher": (wide, wide), "student": (narrow, narrow)}, EmbeddingCache(), precisions=["float32"]
    )
    assert [(row.column, row.width) for row in rows] == [
        ("teacher", 32),
        ("teacher", 64),
        ("teacher", 70),
        ("student", 32),
        ("student", 40),
    ]
