"""Small labelled tasks whose labels can be learnt from the words: a mark word decides, the rest is filling."""

from __future__ import annotations

import json

import numpy as np
from samples import make_texts

MARKS = ("ocean", "desert", "forest")


def write_task(path, kind, examples=240, test=60, seed=0):
    """A .jsonl file with the splits train and test; a pair's label is the mark of its second text, sts grades equal
    marks.
    """
    draw = np.random.default_rng(seed)
    filling = make_texts(examples + test)
    rows = []
    for number in range(examples + test):
        one, two = draw.integers(0, 2 if kind != "classification" else 3, 2).tolist()
        split = "train" if number < examples else "test"
        first, second = f"{MARKS[one]} {filling[number][:30]}", f"{MARKS[two]} {filling[-number][:20]}"
        if kind == "classification":
            rows.append({"text": first, "label": f"about {MARKS[one]}", "split": split})
        elif kind == "pair":
            rows.append({"sentence1": filling[number], "sentence2": second, "label": two, "split": split})
        else:
            rows.append(
                {
                    "sentence1": first,
                    "sentence2": second,
                    "score": 5.0 * (one == two) + float(draw.random() / 10),
                    "split": split,
                }
            )
    path.write_text("\n".join(json.dumps(row) for row in rows) + "\n", encoding="utf-8")
    return path
