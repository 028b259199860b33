"""How many held-out rows of a result come from texts that were trained on."""

from __future__ import annotations

import numpy as np

from experiments.held_out_origins import Part, origins_table


def test_held_out_rows_count_whose_origin_has_a_trained_row():
    origins = np.array([0, 0, 1, 2, 2, 3, 3])
    is_held_out = np.array([True, False, True, False, False, True, True])
    assert Part(origins, is_held_out).trained_origins == 1, "origins 1 and 3 were held out whole"


def test_shares_above_one_in_a_hundred_are_bold_and_missing_texts_are_said():
    rows = [
        {"result": "a", "runs": "all", "texts": 2000, "held_out": 100, "origin_trained": 2, "share": 0.02},
        {"result": "b", "runs": "all", "texts": 2000, "held_out": 100, "origin_trained": 1, "share": 0.01},
        {"result": "c", "runs": "all", "texts": 0, "held_out": 0, "origin_trained": 0, "share": None},
    ]
    shares = [line.split("|")[-2].strip() for line in origins_table({"rows": rows}).splitlines()[2:]]
    assert shares == ["**2.0%**", "1.0%", "not counted: texts are missing here"]
