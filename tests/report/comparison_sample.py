"""A whole comparison of four runs as compare.py gives it: several seeds, marks, an unknown speed, names that need
escaping.
"""

from __future__ import annotations

from typing import Any

from distilvec.report.comparison import Comparison
from distilvec.report.json_values import from_json

TASKS = ("stsb", "banking77", "cranfield")
ROWS = (
    ("english three", "redact", 3, 80.4),
    ("english <two>", "redact", 3, 79.1),
    ("talas", "talas", 1, 79.9),
    ("cosine", "offline_cosine", 3, 80.9),
)


def sample_comparison() -> Comparison:
    """A fresh copy that a test may change."""
    return from_json(Comparison, comparison_content())


def comparison_content() -> dict[str, Any]:
    """The comparison as JSON."""
    rows = []
    for run, method, seeds, level in ROWS:
        mean = {task: round(level - 8 * place, 4) for place, task in enumerate(TASKS)}
        mean["average"] = sum(mean.values()) / len(TASKS)
        rows.append(
            {
                "run": run, "method": method, "seeds": seeds, "mean": mean, "std": dict.fromkeys(mean, 0.21 if seeds > 1 else None),  # noqa: E501
                "retention": {task: round(100 * value / 82, 4) for task, value in mean.items()},
                "parameters": 14.2e6 if "two" in run else 17.4e6, "megabytes": 56.8 if "two" in run else 69.6,
                "milliseconds": 4.2 if "two" in run else 6.1, "texts_per_second": None if run == "talas" else 4 * level,
                "minutes": 44.0, "texts": 76_800.0, "steps": 2400.0, "marks": {"average": "**"} if level < 80 else {},
                "distance": 0.3, "distance_std": 0.001 if seeds > 1 else None, "folders": ["runs/x"],
            }
        )  # fmt: skip
    first = rows[0]["mean"]
    differences = []
    for row in rows[1:]:
        for task, value in row["mean"].items():
            change = value - first[task]
            tested = row["run"] != "cosine"
            known = (
                {"low": change - 0.7, "high": change + 0.7, "p": 0.002, "mark": "**"}
                if tested
                else dict.fromkeys(("low", "high", "p")) | {"mark": ""}
            )
            differences.append({"a": row["run"], "b": "english three", "task": task, "difference": change, **known})
    rows.sort(key=lambda row: -row["mean"]["average"])
    notes = ["Rows have from 1 to 3 seeds.", "Differences are to english three: paired bootstrap, 1,000 resamples."]
    return {
        "rows": rows,
        "tasks": list(TASKS),
        "reference": "english three",
        "column": "student",
        "differences": differences,
        "leads": {
            task: {
                "run": "cosine",
                "over": "english three",
                "difference": 0.5,
                "low": -0.2,
                "high": 1.2,
                "clear": False,
            }
            for task in first
        },
        "notes": notes,
    }
