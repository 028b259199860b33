"""The tables of docs/token_level.md from the JSON of the shootout across tokenizers, and the paper's figures beside them."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.shootout import agreement, spread

# EMO, tables 1 to 4, LLM2Vec-Mistral-7B to BERT-base: accuracy, accuracy, Spearman. The paper has no MRPC; SciTail stands in for the order.
PAPER = {
    "banking77": {"task": 85.7, "uld": 91.4, "dskd": 91.2, "mined": 90.0, "multilevel_ot": 89.4, "emo": 92.3},
    "mrpc": {
        "task": 88.1,
        "uld": 87.0,
        "dskd": 88.0,
        "mined": 86.9,
        "multilevel_ot": 88.2,
        "emo": 90.9,
        "emo-ira": 88.8,
        "emo-otis": 87.2,
    },
    "stsb": {"task": 75.1, "dskd": 78.3, "emo": 81.3, "emo-ira": 80.9, "emo-otis": 78.5, "emo-half": 80.6, "emo-all": 80.2},
}
MAIN = {"banking77": "accuracy", "mrpc": "accuracy", "stsb": "spearman"}
OTHERS = {"banking77": ["macro_f1"], "mrpc": ["macro_f1"], "stsb": ["pearson"]}
Rows = Sequence[Mapping[str, Any]]


def shootout_tables(report: Mapping[str, Any]) -> str:
    """The shootout as Markdown: every method on every task with its deviation, the paper's figures, and the orders in words."""
    rows: Rows = report["rows"]
    if not rows:
        return ""
    tasks = [task for task in MAIN if any(row["task"] == task for row in rows)]
    methods = list(dict.fromkeys(row["method"] for row in rows))
    figures = [(task, metric) for task in tasks for metric in (MAIN[task], *OTHERS[task])]
    head = ["", "seeds", *(f"{task}, {metric}" for task, metric in figures), "mean", "training, s"]
    lines = ["| " + " | ".join(head) + " |", "|---|" + "---:|" * (len(head) - 1)]
    teacher = [f"{report['teachers'][task][metric]:.2f}" for task, metric in figures]
    means = {method: overall(rows, method, tasks) for method in methods}
    top = statistics.mean(report["teachers"][task][MAIN[task]] for task in tasks)
    lines.append("| teacher | 1 | " + " | ".join([*teacher, f"{top:.2f}", ""]) + " |")
    best = {task: max(methods, key=lambda method: statistics.mean(values(rows, task, method) or [0.0])) for task in tasks}
    for method in methods:
        cells = [
            spread(found, bold=metric == MAIN[task] and best[task] == method) if (found := values(rows, task, method, metric)) else ""
            for task, metric in figures
        ]
        own = [row for row in rows if row["method"] == method]
        seeds = len({row["seed"] for row in own})
        mean = spread(means[method]) if means[method] else ""
        seconds = f"{statistics.mean(row['train_seconds'] for row in own):.0f}"
        lines.append(f"| {method} | {seeds} | " + " | ".join([*cells, mean, seconds]) + " |")
    facts = f"{report['epochs']} epochs, batches of {report['batch_size']}, learning rate {report['learning_rate']:g}; {report['machine']}."
    words = [f"- {task}: " + order(rows, task) for task in tasks]
    return "\n\n".join([facts, "\n".join(lines), "\n".join(words)])


def values(rows: Rows, task: str, method: str, metric: str | None = None) -> list[float]:
    """A method's figure on a task, seed by seed."""
    return [row["scores"][metric or MAIN[task]] for row in rows if row["task"] == task and row["method"] == method]


def overall(rows: Rows, method: str, tasks: Sequence[str]) -> list[float]:
    """The mean of the tasks' main figures, for every seed that has all of them."""
    own = {(row["task"], row["seed"]): row["scores"][MAIN[row["task"]]] for row in rows if row["method"] == method}
    seeds = sorted({seed for _, seed in own})
    return [statistics.mean(own[task, seed] for task in tasks) for seed in seeds if all((task, seed) in own for task in tasks)]


def order(rows: Rows, task: str) -> str:
    """In words: how the order of the methods agrees with the paper's."""
    found = {method: values(rows, task, method) for method in PAPER[task]}
    return agreement(PAPER[task], {method: figures for method, figures in found.items() if figures})
