"""overlap@10 against a loop; intervals, JSON, thresholds."""

import json

import numpy as np
import pytest

from distilvec.evaluation.overlap import (
    DOUBTFUL,
    FITS,
    Judgement,
    Overlap,
    OverlapShare,
    QueryOverlaps,
    SourceOverlap,
    find_overlap,
    nearest_rows,
    overlap_by_query,
)
from distilvec.report.json_values import from_json


@pytest.fixture
def rng():
    return np.random.default_rng(3)


def compare(similarity, query, candidate):
    if similarity == "dot":
        return query @ candidate
    if similarity == "euclidean":
        return -np.linalg.norm(query - candidate)
    return query @ candidate / np.linalg.norm(query) / np.linalg.norm(candidate)


def loop(queries, candidates, similarity, count=10):
    """Each query's nearest candidates, one number at a time."""
    found = []
    for query in np.float64(queries):
        scores = {row: compare(similarity, query, np.float64(candidates[row])) for row in range(len(candidates))}
        found.append(sorted(scores, key=lambda row, scores=scores: -scores[row])[:count])
    return found


@pytest.mark.parametrize("similarity", ["cosine", "dot", "euclidean"])
def test_shares_are_those_of_a_loop(rng, similarity):
    """Alone and among the teacher's vectors."""
    lengths = rng.uniform(0.2, 4, size=(200, 1))
    teacher, noise = rng.normal(size=(200, 12)) * lengths, rng.normal(size=(200, 12))
    student = teacher + noise
    expected = loop(teacher[:30], teacher[30:], similarity)
    for candidates in (student[30:], teacher[30:]):
        found = loop(student[:30], candidates, similarity)
        by_hand = [len({*left} & {*right}) / 10 for left, right in zip(expected, found, strict=True)]
        shares = overlap_by_query(teacher[:30], teacher[30:], student[:30], candidates, similarity, similarity)
        np.testing.assert_allclose(shares, by_hand)
        assert 0.05 < shares.mean() < 0.95
    same = overlap_by_query(teacher[:30], teacher[30:], teacher[:30], teacher[30:], similarity, similarity)
    np.testing.assert_allclose(same, np.ones(30))


def test_student_and_teacher_may_have_other_dims_and_similarities(rng):
    teacher, student = rng.normal(size=(80, 12)), rng.normal(size=(80, 5))
    expected, found = loop(teacher[:9], teacher, "dot"), loop(student[:9], student, "cosine")
    shares = overlap_by_query(teacher[:9], teacher, student[:9], student, "dot", "cosine")
    assert shares.tolist() == [len({*a} & {*b}) / 10 for a, b in zip(expected, found, strict=True)]


def test_equal_candidates_and_few_of_them(rng):
    vectors = np.tile(rng.normal(size=(1, 6)), (20, 1))
    assert overlap_by_query(vectors[:3], vectors, vectors[:3], vectors).tolist() == [1.0] * 3
    few = rng.normal(size=(10, 6))
    assert nearest_rows(few[:2], few, 10).shape == (2, 10)


def test_a_student_without_a_common_space_is_judged_alone(rng):
    teacher, student = rng.normal(size=(150, 6)), rng.normal(size=(150, 6))
    expected = nearest_rows(teacher[:20], teacher, 10)
    apart = find_overlap(expected, teacher, "dot", student[:20], student, common_space=False)
    assert apart.among is None and apart.among_wider is None
    alone = overlap_by_query(teacher[:20], teacher, student[:20], student, "cosine", "cosine")
    assert apart.alone.tolist() == alone.tolist()  # by cosine, whatever the teacher's similarity
    common = find_overlap(expected, teacher, "cosine", teacher[:20], None, common_space=True)
    assert common.alone is None and common.among.mean() == common.among_wider.mean() == 1


def test_intervals_are_over_queries_and_gains_are_paired(rng):
    before, after = rng.uniform(size=400), np.full(400, 0.5)
    shares = QueryOverlaps(alone=before).summary().alone
    error = before.std() / 20
    assert shares.mean == before.mean() and shares.low == pytest.approx(before.mean() - 1.96 * error, abs=0.4 * error)
    gain = QueryOverlaps(alone=before + 0.1, among=after).less(QueryOverlaps(alone=before))
    assert gain.among is None and (gain.alone.low, gain.alone.high) == pytest.approx((0.1, 0.1), abs=0.002)
    half = QueryOverlaps(alone=before, among=after).summary(np.arange(400) < 200)
    assert half.alone.mean == before[:200].mean() and half.among.mean == 0.5


def test_queries_of_one_origin_count_as_one(rng):
    """The interval of 40 origins of 10 equal queries is that of 40 queries, and each origin has the same weight."""
    values = rng.uniform(size=40)
    single = QueryOverlaps(alone=values).summary().alone
    repeated = QueryOverlaps(alone=np.repeat(values, 10), origins=np.repeat(np.arange(40), 10))
    assert repeated.summary().alone == single and repeated.less(repeated).alone.mean == 0
    uneven = QueryOverlaps(alone=np.array([0.0, 1, 1, 1]), origins=np.array([7, 3, 3, 3])).summary().alone
    assert uneven.mean == 0.5
    half = repeated.summary(np.arange(400) < 200).alone
    assert half == QueryOverlaps(alone=values[:20]).summary().alone


def judgement(low=0.7, mean=0.75, **changes):
    among = Overlap(OverlapShare(0.5, 0.4, 0.6), OverlapShare(mean, low, 0.9), 0.98)
    source = SourceOverlap("tr", 40, Overlap(alone=OverlapShare(0.5, 0.4, 0.6)))
    given = {"student": among, "start": Overlap(), "gain": None, "trained": None, "sources": (source,)}
    return Judgement("teacher", 500, 10_000, 20_000, "cosine", **{**given, **changes})


def test_a_judgement_survives_json():
    for one in (judgement(), judgement(start=None, sources=(), cosine=0.9), judgement(trained=Overlap())):
        assert from_json(Judgement, json.loads(json.dumps(one.to_json()))) == one


@pytest.mark.parametrize(
    ("low", "mean", "expected"),
    [
        (FITS, 0.85, "yes"),
        (FITS - 0.01, 0.85, "in part"),
        (0.4, DOUBTFUL, "in part"),
        (0.4, DOUBTFUL - 0.01, "not yet"),
    ],
)
def test_thresholds(low, mean, expected):
    assert judgement(low, mean).compatibility == expected
    alone = judgement(student=Overlap(alone=OverlapShare(0.9, 0.85, 0.95)))
    assert alone.compatibility is None and alone.share.mean == 0.9
