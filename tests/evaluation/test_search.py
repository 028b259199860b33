"""Searches against brute force in float64, with ties, in blocks of any size."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.spatial.distance import cdist
from sentence_transformers.util.quantization import quantize_embeddings

from distilvec.evaluation.metrics import ranking_vectors
from distilvec.evaluation.search import SPARE, hamming_top_k, pack_signs, rank_scores, rescored_top_k, top_k


@pytest.fixture
def rng():
    return np.random.default_rng(7)


def brute_force(queries, documents, count, last=None, metric="cosine"):
    """Scores of all pairs in float64, rounded to float32; highest first, ties by row."""
    queries, documents = queries.astype(np.float64), documents.astype(np.float64)
    scores = np.array([[query @ document for document in documents] for query in queries])
    if metric == "cosine":
        lengths = np.linalg.norm(queries, axis=1)[:, None] * np.linalg.norm(documents, axis=1)
        scores = scores / np.where(lengths > 0, lengths, 1)
    if metric == "euclidean":
        scores = -cdist(queries, documents)
    scores = scores.astype(np.float32)
    if last is not None:
        scores[:, last] = -np.inf
    rows = np.argsort(-scores, axis=1, kind="stable")[:, :count]
    return rows, np.take_along_axis(scores, rows, axis=1)


@pytest.mark.parametrize("count", [1, 5, 30, 50])
def test_ranking_is_a_stable_sort_even_where_ties_cross_the_cut(rng, count):
    scores = np.round(rng.normal(size=(20, 30)), 0).astype(np.float32)
    scores[0, :5], scores[1, 3], scores[2, 4] = -np.inf, -0.0, 0.0
    expected = np.argsort(-scores, axis=1, kind="stable")[:, :count]
    np.testing.assert_array_equal(rank_scores(scores, min(count, 30)), expected)


@pytest.mark.parametrize("similarity", ["cosine", "dot", "euclidean"])
@pytest.mark.parametrize("count", [1, 7, 100, 900])
def test_search_is_brute_force(rng, count, similarity):
    queries, documents = rng.normal(size=(9, 24)).astype(np.float32), rng.normal(size=(700, 24)).astype(np.float32)
    documents *= rng.uniform(0.1, 3, size=(700, 1)).astype(np.float32)
    documents[5] = 0
    rows, scores = top_k(queries, documents, count, similarity=similarity, block=128)
    expected_rows, expected_scores = brute_force(queries, documents, count, metric=similarity)
    assert rows.dtype == np.int64 and scores.dtype == np.float32
    np.testing.assert_array_equal(rows, expected_rows)
    np.testing.assert_allclose(scores, expected_scores, rtol=1e-6, atol=1e-7)


def test_equal_documents_are_found_in_the_order_of_their_rows(rng):
    """A matrix product gives them scores that differ in the last bit; the ranking must not show it."""
    documents = rng.normal(size=(3000, 100)).astype(np.float32)
    copies = np.sort(rng.permutation(3000)[:40])
    documents[copies] = documents[copies[0]]
    for queries in (documents[copies[:3]], documents[copies[:1]] + rng.normal(size=(5, 100)).astype(np.float32) / 20):
        for block in (100, 999, 8192):
            rows, scores = top_k(queries, documents, 40, block=block)
            np.testing.assert_array_equal(rows, np.tile(copies, (len(queries), 1)))
            assert (scores == scores[:, :1]).all()
    rows, _ = top_k(documents[copies[:2]], documents, 10)  # the tie crosses the cut
    np.testing.assert_array_equal(rows, np.tile(copies[:10], (2, 1)))


def test_ties_of_whole_numbers_are_exact_however_many_there_are(rng):
    signs = np.where(rng.normal(size=(2000, 12)) > 0, 1, -1).astype(np.int8)
    queries = signs[:6].astype(np.float32)
    for count in (1, 20, 500):
        for block in (64, 8192):
            np.testing.assert_array_equal(
                top_k(queries, signs, count, block=block)[0], brute_force(queries, signs, count)[0]
            )
    assert SPARE < 2000 // 13  # distances 0..12: more ties than candidates to spare
    np.testing.assert_array_equal(top_k(queries, np.ones((500, 12), np.float32), 10)[0], np.tile(np.arange(10), (6, 1)))


@settings(max_examples=60, deadline=None)
@given(
    data=st.integers(0, 2**31),
    documents=st.integers(1, 90),
    width=st.integers(1, 40),
    count=st.integers(1, 100),
    block=st.integers(1, 100),
    whole=st.booleans(),
)
def test_blocks_of_any_size_give_the_same_answer(data, documents, width, count, block, whole):
    rng = np.random.default_rng(data)
    stored, queries = rng.normal(size=(documents, width)), rng.normal(size=(4, width))
    stored = np.round(stored) if whole else stored[rng.integers(0, documents, size=documents)]
    stored, queries, last = stored.astype(np.float32), queries.astype(np.float32), rng.random(documents) < 0.2
    bits = pack_signs(stored)
    for search, asked, kept in (
        (top_k, queries, stored),
        (hamming_top_k, bits[:3], bits),
        (rescored_top_k, queries, bits),
    ):
        for few, many in zip(
            search(asked, kept, count, last, block=block), search(asked, kept, count, last), strict=True
        ):
            np.testing.assert_array_equal(few, many)
            assert few.shape == (len(asked), min(count, documents))


def test_documents_marked_last_stand_last(rng):
    queries, documents = rng.normal(size=(11, 6)).astype(np.float32), rng.normal(size=(40, 6)).astype(np.float32)
    last = np.zeros(40, dtype=bool)
    last[[3, 17]] = True
    np.testing.assert_array_equal(
        top_k(queries, documents, 7, last, block=16)[0], brute_force(queries, documents, 7, last)[0]
    )
    for rows, scores in (
        top_k(queries, documents, 100, last),
        rescored_top_k(queries, pack_signs(documents), 100, last),
    ):
        assert rows.shape == (11, 40) and (rows[:, -2:] == [3, 17]).all() and (scores[:, -2:] == -np.inf).all()
    rows, distances = hamming_top_k(pack_signs(queries), pack_signs(documents), 100, last)
    assert (rows[:, -2:] == [3, 17]).all() and (distances[:, -2:] == np.inf).all()


@pytest.mark.parametrize("similarity", ["cosine", "dot", "euclidean"])
def test_products_of_ranking_vectors_rank_as_the_similarity(rng, similarity):
    queries, documents = rng.normal(size=(9, 24)), rng.normal(size=(300, 24)) * rng.uniform(0.1, 3, size=(300, 1))
    left, right = ranking_vectors(queries, documents, similarity)
    expected = brute_force(queries, documents, 20, metric=similarity)[0]
    np.testing.assert_array_equal(np.argsort(-(left @ right.T), axis=1)[:, :20], expected)


@pytest.mark.parametrize("precision", ["float16", "float32", "int8"])
def test_memory_mapped_documents(rng, tmp_path, precision):
    vectors = rng.normal(size=(500, 16)).astype(np.float32)
    stored = quantize_embeddings(vectors, "int8") if precision == "int8" else vectors.astype(precision)
    np.save(tmp_path / "documents.npy", stored)
    mapped = np.load(tmp_path / "documents.npy", mmap_mode="r")
    rows, scores = top_k(vectors[:8], mapped, 20, block=77)
    expected_rows, expected_scores = brute_force(vectors[:8], stored, 20)
    np.testing.assert_array_equal(rows, expected_rows)
    np.testing.assert_allclose(scores, expected_scores, rtol=1e-6)


@pytest.mark.parametrize("width", [8, 13, 64, 100])
def test_hamming_is_scipys(rng, width):
    queries, documents = rng.normal(size=(7, width)), rng.normal(size=(900, width))
    distances = cdist(queries > 0, documents > 0, "hamming") * width
    expected = np.argsort(np.rint(distances), axis=1, kind="stable")[:, :50]
    rows, found = hamming_top_k(pack_signs(queries), pack_signs(documents), 50, block=200)
    np.testing.assert_array_equal(rows, expected)
    np.testing.assert_allclose(found, np.take_along_axis(distances, expected, axis=1), atol=1e-4)
    np.testing.assert_array_equal(pack_signs(queries), quantize_embeddings(queries, "ubinary"))


@pytest.mark.parametrize("width", [13, 64])
def test_rescoring_orders_the_nearest_as_sentence_transformers_does(rng, width):
    """Its code: bits 0 and 1 of 4 x count candidates times the float query; here with our order of ties among
    candidates.
    """
    queries, documents = (
        rng.normal(size=(6, width)).astype(np.float32),
        rng.normal(size=(800, width)).astype(np.float32),
    )
    rows, scores = rescored_top_k(queries, pack_signs(documents), 10, block=300)
    candidates, _ = hamming_top_k(pack_signs(queries), pack_signs(documents), 40)
    bits = np.unpackbits(pack_signs(documents)[candidates], axis=-1)[..., :width].astype(int)
    theirs = np.einsum("ij,ikj->ik", queries.astype(np.float64), bits)
    expected = np.take_along_axis(candidates, np.argsort(-theirs, axis=1)[:, :10], axis=1)
    np.testing.assert_array_equal(rows, expected)
    signs = np.where(documents > 0, 1.0, -1.0)
    np.testing.assert_allclose(scores, np.einsum("qw,qkw->qk", queries, signs[rows]), rtol=1e-5, atol=1e-6)


def test_rescoring_every_document_is_a_search_for_the_float_query(rng):
    queries, documents = rng.normal(size=(5, 40)).astype(np.float32), rng.normal(size=(60, 40)).astype(np.float32)
    signs = np.where(documents > 0, 1.0, -1.0)
    expected = brute_force(queries, signs, 15, metric="dot")
    np.testing.assert_array_equal(rescored_top_k(queries, pack_signs(documents), 15)[0], expected[0])
    near = hamming_top_k(pack_signs(queries), pack_signs(documents), 15)[0]
    narrow = rescored_top_k(queries, pack_signs(documents), 15, oversampling=1)[0]
    np.testing.assert_array_equal(np.sort(narrow, axis=1), np.sort(near, axis=1))


def test_no_documents_and_no_queries():
    assert top_k(np.ones((3, 4)), np.ones((0, 4)), 10)[0].shape == (3, 0)
    assert top_k(np.ones((0, 4)), np.ones((7, 4)), 5)[1].shape == (0, 5)
