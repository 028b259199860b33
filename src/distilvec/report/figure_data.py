"""What the figures and their descriptions both read out of report.json."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from distilvec.evaluation.aggregate import average, retention, share

Part = Mapping[str, Any]
Rows = Sequence[Mapping[str, Any]]

PRECISION_NAMES = {"binary_rescored": "binary, rescored"}
_COLUMNS = ("untrained", "student", "asymmetric")


def retained(scores: Mapping[str, Rows], intervals: Part) -> list[dict[str, Any]]:
    """Rows {column, task, value, low, high} in percent of the teacher's score, every column's average last.

    `low` and `high` come from the intervals of (column - teacher), None where there is none. Without a teacher the values
    are the scores themselves. Tasks and averages are those of `retention`.
    """
    teacher = scores.get("teacher")
    columns = [name for name in scores if name != "teacher" or teacher is None]
    rows = []
    for column in sorted(columns, key=lambda name: _COLUMNS.index(name) if name in _COLUMNS else len(_COLUMNS)):
        own = {score["task"]: score for score in scores[column]}
        shared = own if teacher is None else {score["task"]: score for score in teacher if score["task"] in own}
        wholes = {task: score["value"] for task, score in shared.items()}
        wholes |= {"average": average(wholes)} if wholes else {}
        shown = wholes if teacher is None else retention(scores[column], teacher)
        for task in [
            *(task for task in own if task in shown),
            *(["average"] if "average" in shown and len(shown) > 2 else []),
        ]:
            change = (
                ((intervals.get(column) or {}).get(task) or (None, None))[:2] if teacher is not None else (None, None)
            )
            low, high = (None if bound is None else share(wholes[task] + bound, wholes[task]) for bound in change)
            rows.append({"column": column, "task": task, "value": shown[task], "low": low, "high": high})
    return rows


def task_order(rows: Rows) -> list[str]:
    """The tasks in the suite's order, the average last."""
    tasks = list(dict.fromkeys(row["task"] for row in rows))
    return [task for task in tasks if task != "average"] + (["average"] if "average" in tasks else [])


def averaged_tasks(compression: Part) -> list[str]:
    """The tasks that were scored at every width in every column, with the precisions that tasks of any kind have.

    Rescoring is for retrieval only, and a classification task may have its plain score alone.
    """
    cells: dict[str, set[tuple[str, str, int]]] = {}
    for row in compression["rows"]:
        if row["precision"] != "binary_rescored":
            cells.setdefault(row["task"], set()).add((row["column"], row["precision"], row["width"]))
    most = max(map(len, cells.values()), default=0)
    return [task for task, found in cells.items() if len(found) == most]


def compression_curves(compression: Part, task: str = "average") -> dict[str, dict[str, dict[int, float]]]:
    """score[column][precision][width] of a task, or the mean over `averaged_tasks`, for the precisions that all of these have."""
    chosen = averaged_tasks(compression) if task == "average" else [task]
    found: dict[str, dict[tuple[str, int], list[float]]] = {}
    for row in sorted(compression["rows"], key=lambda row: row["width"]):
        if row["task"] in chosen:
            found.setdefault(row["column"], {}).setdefault((row["precision"], row["width"]), []).append(row["value"])
    curves: dict[str, dict[str, dict[int, float]]] = {}
    for column, cells in found.items():
        for (precision, width), values in cells.items():
            if len(values) == len(chosen):
                curves.setdefault(column, {}).setdefault(precision, {})[width] = sum(values) / len(values)
    order = list(compression.get("precisions") or ())
    return {
        column: dict(sorted(lines.items(), key=lambda item: order.index(item[0]) if item[0] in order else len(order)))
        for column, lines in curves.items()
    }


def batch_series(speed: Part) -> list[tuple[str, int, list[Part]]]:
    """(role, tokens of its longest text, rows) for each role that was timed with several batch sizes."""
    series = []
    for role in dict.fromkeys(row["role"] for row in speed["rows"] if row["role"]):
        rows = [row for row in speed["rows"] if row["role"] == role]
        if len({row["batch_size"] for row in rows}) > 1:
            series.append((role, max(row["tokens"] for row in rows), rows))
    return series


def length_series(speed: Part) -> tuple[int, list[Part]] | None:
    """(batch size, rows) of the sweep over lengths (its rows have no role); None if fewer than two were timed."""
    rows = [row for row in speed["rows"] if not row["role"]]
    return (rows[0]["batch_size"], rows) if len({row["tokens"] for row in rows}) > 1 else None


def history_series(history: Rows) -> dict[str, dict[str, list[tuple[int, float]]]]:
    """series[panel][line] = [(step, value), ...] of metrics.jsonl: the loss and its terms, learning rate, held-out distance or score."""
    lines: dict[str, list[tuple[int, float]]] = {}
    for entry in history:
        for name, value in entry.items():
            if name not in ("step", "epoch") and value is not None:
                lines.setdefault(name, []).append((entry["step"], value))
    terms = {
        name.removeprefix("train/loss_"): points for name, points in lines.items() if name.startswith("train/loss_")
    }
    if len(terms) == 1 and "train/loss" in lines:
        terms = {}
    loss = {"loss": lines["train/loss"]} if "train/loss" in lines else {}
    rate = lines.get("train/learning_rate")
    monitored = next((name for name in MONITORED if f"eval/{name}" in lines), "distance")
    name, held_out = f"held-out {monitored.replace('_', ' ')}", lines.get(f"eval/{monitored}")
    return {
        "loss": loss | terms,
        "learning rate": {"learning rate": rate} if rate else {},
        name: {name: held_out} if held_out else {},
    }


def comparable(runs: Rows, against: str) -> list[Part]:
    """The runs that have a retention and a positive number under `against`."""
    return [run for run in runs if run.get("retention") is not None and (run.get(against) or 0) > 0]
