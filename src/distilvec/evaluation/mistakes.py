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
    """
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


def _shown(inputs: Sequence[Any]) -> str:
    """An example's texts on one line, shortened."""
    parts = [part for text in inputs for part in ([text] if isinstance(text, str) else text)]
    return " / ".join(parts)[:LONGEST]
