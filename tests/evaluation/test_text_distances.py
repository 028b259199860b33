"""Distance of the student to the teacher text by text, against the plain formula."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from distilvec.evaluation.text_distances import farthest_texts, row_batches, spread_rows, text_distances
from distilvec.teachers.encode import EmbeddedBatch, collect


@pytest.fixture
def corpus():
    """Twelve texts of two sources with the roles document and query; five of them are for validation."""
    texts = [f"text {number}" for number in range(12)]
    return SimpleNamespace(
        sources=np.array([0, 1] * 6),
        source_names=["pages", "questions"],
        roles=["document", "query"],
        holdout_rows=np.array([1, 2, 5, 8, 11]),
        stored=lambda rows: [texts[row] for row in rows],
    )


def test_vectors_keep_the_order_of_the_rows_and_the_role_of_the_source(corpus):
    rows, asked = spread_rows(corpus.holdout_rows), []

    class Numbers:
        def embed_batches(self, texts, role):
            asked.append((role, texts))
            vectors = [[float(text.split()[1]), float(role == "query")] for text in texts]
            yield EmbeddedBatch(np.arange(len(texts)), {"embedding": np.array(vectors)}, 1.0)

    assert collect(row_batches(corpus, rows, Numbers()), 5, 2).tolist() == [[1, 1], [2, 0], [5, 1], [8, 0], [11, 1]]
    assert sorted(asked) == [("document", ["text 2", "text 8"]), ("query", ["text 1", "text 5", "text 11"])]


def test_distances_by_source_and_length(corpus):
    generator = np.random.default_rng(0)
    teacher, student = generator.normal(size=(2, 5, 8)).astype(np.float32)
    measured = corpus, spread_rows(corpus.holdout_rows), teacher, student, np.array([3, 8, 9, 40, 8])
    found, worst = text_distances(*measured), farthest_texts(*measured)
    distance = np.sqrt(((student.astype(float) - teacher) ** 2).sum(1))
    assert found.mean == pytest.approx(distance.mean()) and found.rows == 5
    pages, questions = found.by_source
    assert (pages.name, pages.texts) == ("pages", 2) and pages.distance == pytest.approx(distance[[1, 3]].mean())
    assert questions.std == pytest.approx(distance[[0, 2, 4]].std())
    assert [(row.first, row.last, row.texts) for row in found.by_length] == [
        (1, 8, 3),
        (9, 16, 1),
        (33, 40, 1),
    ]
    assert found.by_length[0].distance == pytest.approx(distance[[0, 1, 4]].mean())
    assert [row.distance for row in worst] == sorted(distance.round(4), reverse=True)
    assert worst[0].text == f"text {spread_rows(corpus.holdout_rows)[distance.argmax()]}"
