"""The logistic regression that a head begins with: its probabilities, one class, absent classes, several classes."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.special import log_softmax
from sklearn.linear_model import LogisticRegression

from distilvec.students.regression import INVERSE_PENALTY, NEVER, logistic


@pytest.fixture
def vectors():
    return np.random.default_rng(0).normal(size=(60, 8)).astype(np.float32) * 7


@pytest.mark.parametrize("classes", [2, 4])
def test_probabilities_are_the_librarys_on_vectors_of_length_one(classes, vectors):
    labels = (vectors @ np.random.default_rng(1).normal(size=(8, classes))).argmax(1)
    weight, bias = logistic(vectors, labels, classes)
    scaled = vectors / np.linalg.norm(vectors, axis=1).mean()
    expected = LogisticRegression(C=INVERSE_PENALTY, max_iter=1000).fit(scaled, labels).predict_log_proba(scaled)
    np.testing.assert_allclose(log_softmax(vectors @ weight.T + bias, axis=1), expected, atol=1e-3)


def test_a_class_without_examples_is_not_predicted(vectors):
    labels = np.where(vectors[:, 0] > 0, 3, 1)
    weight, bias = logistic(vectors, labels, 5)
    assert set((vectors @ weight.T + bias).argmax(1)) == {1, 3}
    weight, bias = logistic(vectors, np.full(60, 2), 3)
    assert set((vectors @ weight.T + bias).argmax(1)) == {2}


def test_every_class_of_several_is_a_decision_of_its_own(vectors):
    labels = np.stack([vectors[:, 0] > 0, vectors[:, 1] > 0, np.zeros(60), np.ones(60)], 1).astype(np.float32)
    weight, bias = logistic(vectors, labels, 4)
    assert ((vectors @ weight.T + bias > 0) == labels).mean() > 0.95
    assert bias[2] == NEVER and bias[3] == -NEVER
