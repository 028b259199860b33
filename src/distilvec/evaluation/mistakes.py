"""Mistakes of a classifier on the test split: every class, classes that it confuses, the texts it is surest of."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
from sklearn.metrics import precision_recall_fscore_support

from distilvec.data.labeled import Labelled

MOST_CONFUSED, MOST_TEXTS, LONGEST = 20, 100, 300  # pairs of classes, texts, characters of a text
Array = np.ndarray[Any, Any]


def find_mistakes(logits: Array, test: Labelled, classes: Sequence[str]) -> dict[str, Any]:
    """Make report.json's "mistakes" of a model's logits [examples, classes] on the test split.

    - `rows`, `wrong`: test examples, and those whose class of the largest logit is another one.
    - `classes`: {class, rows, precision, recall, f1, most_taken_for}, the lowest F1 first; classes without a test row
      are left out.
    - `confused`: {class, taken_for, rows}, the most frequent first.
    - `texts`: {text, class, taken_for, probability}, the largest probability of the wrong class first.

    Where a text has several classes, `class` and `taken_for` list them; the probability is that of the worst decision.
    """
    if np.ndim(test.labels) == 2:
        return _mistakes_of_several(logits, test, classes)
    gold, predicted = np.asarray(test.labels), logits.argmax(1)
    wrong = np.flatnonzero(gold != predicted)
    shifted = np.exp(logits - logits.max(1, keepdims=True))
    sure = shifted.max(1) / shifted.sum(1)
    found = precision_recall_fscore_support(gold, predicted, labels=np.arange(len(classes)), zero_division=0)
    taken = Counter(zip(gold[wrong].tolist(), predicted[wrong].tolist(), strict=True))
    most: dict[int, str] = {}
    for (own, other), _ in taken.most_common():
        most.setdefault(own, classes[other])
    lines = [
        {"class": classes[n], "rows": int(rows), "precision": float(precision), "recall": float(recall),
         "f1": float(f1), "most_taken_for": most.get(n)}
        for n, (precision, recall, f1, rows) in enumerate(zip(*found, strict=True)) if rows
    ]  # fmt: skip
    worst = wrong[np.argsort(-sure[wrong], kind="stable")][:MOST_TEXTS].tolist()
    return {
        "rows": len(gold),
        "wrong": len(wrong),
        "classes": sorted(lines, key=lambda line: line["f1"]),
        "confused": [
            {"class": classes[own], "taken_for": classes[other], "rows": rows}
            for (own, other), rows in taken.most_common(MOST_CONFUSED)
        ],
        "texts": [
            {
                "text": _shown(test.inputs[n]),
                "class": classes[gold[n]],
                "taken_for": classes[predicted[n]],
                "probability": float(sure[n]),
            }
            for n in worst
        ],
    }


def _mistakes_of_several(logits: Array, test: Labelled, classes: Sequence[str]) -> dict[str, Any]:
    """The same of texts with several classes; no class is taken for another one."""
    gold, predicted = np.asarray(test.labels) > 0, logits > 0
    wrong = np.flatnonzero((gold != predicted).any(1))
    probability = 1 / (1 + np.exp(-np.abs(logits)))  # of the decision that was taken
    worst_decision = np.where(gold != predicted, probability, 0).max(1)
    lines = []
    found = precision_recall_fscore_support(gold, predicted, zero_division=0)
    for name, precision, recall, f1, rows in zip(classes, *found, strict=True):
        if rows:
            line = {"class": name, "rows": int(rows), "precision": float(precision), "recall": float(recall)}
            lines.append({**line, "f1": float(f1), "most_taken_for": None})
    texts = []
    for row in wrong[np.argsort(-worst_decision[wrong], kind="stable")][:MOST_TEXTS].tolist():
        own, taken = (_names(classes, chosen[row]) for chosen in (gold, predicted))
        probability_of_row = float(worst_decision[row])
        text = _shown(test.inputs[row])
        texts.append({"text": text, "class": own, "taken_for": taken, "probability": probability_of_row})
    classes_by_f1 = sorted(lines, key=lambda line: line["f1"])
    return {"rows": len(gold), "wrong": len(wrong), "classes": classes_by_f1, "confused": [], "texts": texts}


def _names(classes: Sequence[str], chosen: Array) -> str:
    """The chosen classes in one line."""
    return ", ".join(classes[number] for number in np.flatnonzero(chosen).tolist()) or "none"


def _shown(inputs: Sequence[Any]) -> str:
    """An example's texts on one line, shortened."""
    parts = [part for text in inputs for part in ([text] if isinstance(text, str) else text)]
    return " / ".join(parts)[:LONGEST]
