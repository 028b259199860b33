"""Mistakes of a classifier on the test split: every class, classes that it confuses, the texts it is surest of."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any

import numpy as np
from pydantic import Field
from scipy.special import expit, softmax
from sklearn.metrics import precision_recall_fscore_support

from distilvec.data.examples import Labelled
from distilvec.evaluation.metrics import class_labels

MOST_CONFUSED, MOST_TEXTS, LONGEST = 20, 100, 300  # pairs of classes, texts, characters of a text
Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class ClassMistakes:
    """One class of a labelled task on its test split."""

    name: Annotated[str, Field(alias="class")]
    rows: int
    precision: float
    recall: float
    f1: float
    most_taken_for: str | None = None


@dataclass(frozen=True)
class ConfusedClasses:
    """Test rows of one class that were taken for another."""

    name: Annotated[str, Field(alias="class")]
    taken_for: str
    rows: int

    @property
    def classes(self) -> str:
        """Both classes as text."""
        return f"{self.name} → {self.taken_for}"


@dataclass(frozen=True)
class WrongText:
    """A test text that got the wrong class, and that class's probability."""

    text: str
    name: Annotated[str, Field(alias="class")]
    taken_for: str
    probability: float


@dataclass(frozen=True)
class Mistakes:
    """Mistakes of a classifier on the test split."""

    rows: int
    wrong: int
    classes: list[ClassMistakes] = field(default_factory=list)
    confused: list[ConfusedClasses] = field(default_factory=list)
    texts: list[WrongText] = field(default_factory=list)


def find_mistakes(logits: Array, test: Labelled, classes: Sequence[str]) -> Mistakes:
    """Find the mistakes in a model's logits [examples, classes] on the test split.

    Classes have the lowest F1 first, without those that have no test row; confused classes the most frequent first;
    texts the largest probability of the wrong class first. Where a text has several classes, `name` and `taken_for`
    list them; the probability is that of the worst decision.
    """
    if np.ndim(test.labels) == 2:
        return _mistakes_of_several(logits, test, classes)
    gold, predicted = np.asarray(test.labels), logits.argmax(1)
    wrong = np.flatnonzero(gold != predicted)
    sure = softmax(logits, axis=1).max(1)
    by_class = precision_recall_fscore_support(gold, predicted, labels=np.arange(len(classes)), zero_division=0)
    taken = Counter(zip(gold[wrong].tolist(), predicted[wrong].tolist(), strict=True))
    most: dict[int, str] = {}
    for (true_class, wrong_class), _ in taken.most_common():
        most.setdefault(true_class, classes[wrong_class])
    lines = []
    for n, (precision, recall, f1, rows) in enumerate(zip(*by_class, strict=True)):
        if rows:
            line = ClassMistakes(classes[n], int(rows), float(precision), float(recall), float(f1), most.get(n))
            lines.append(line)
    texts = []
    for n in wrong[np.argsort(-sure[wrong], kind="stable")][:MOST_TEXTS].tolist():
        texts.append(WrongText(_shown_text(test.inputs[n]), classes[gold[n]], classes[predicted[n]], float(sure[n])))
    confused = []
    for (true_class, wrong_class), rows in taken.most_common(MOST_CONFUSED):
        confused.append(ConfusedClasses(classes[true_class], classes[wrong_class], rows))
    return Mistakes(len(gold), len(wrong), sorted(lines, key=lambda line: line.f1), confused, texts)


def _mistakes_of_several(logits: Array, test: Labelled, classes: Sequence[str]) -> Mistakes:
    """The same of texts with several classes; no class is taken for another one."""
    gold, predicted = np.asarray(test.labels) > 0, logits > 0
    wrong = np.flatnonzero((gold != predicted).any(1))
    probability = expit(np.abs(logits))  # of the decision that was taken
    worst_decision = np.where(gold != predicted, probability, 0).max(1)
    lines = []
    by_class = precision_recall_fscore_support(gold, predicted, labels=class_labels(len(classes)), zero_division=0)
    for name, precision, recall, f1, rows in zip(classes, *by_class, strict=True):
        if rows:
            lines.append(ClassMistakes(name, int(rows), float(precision), float(recall), float(f1)))
    texts = []
    for row in wrong[np.argsort(-worst_decision[wrong], kind="stable")][:MOST_TEXTS].tolist():
        true_names = _class_names(classes, gold[row])
        predicted_names = _class_names(classes, predicted[row])
        texts.append(WrongText(_shown_text(test.inputs[row]), true_names, predicted_names, float(worst_decision[row])))
    return Mistakes(len(gold), len(wrong), sorted(lines, key=lambda line: line.f1), [], texts)


def _class_names(classes: Sequence[str], chosen: Array) -> str:
    """The chosen classes in one line."""
    return ", ".join(classes[number] for number in np.flatnonzero(chosen).tolist()) or "none"


def _shown_text(inputs: Sequence[Any]) -> str:
    """An example's texts on one line, shortened."""
    parts: list[str] = []
    for text in inputs:
        if isinstance(text, str):
            parts.append(text)
        else:
            parts.extend(text)
    return " / ".join(parts)[:LONGEST]
