"""Scores and speed as rows of text, for terminals, notebooks and Markdown."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import product
from typing import TYPE_CHECKING, Any

from distilvec.core.escape import markdown_cell
from distilvec.evaluation.aggregate import averages, retention

if TYPE_CHECKING:
    from distilvec.evaluation.evaluator import Score

ABSENT = "–"  # noqa: RUF001 (an en dash for "no value")
_ROLES = {"query": "queries by batch size", "document": "documents by batch size", None: "by length, batch size 1"}
_TIMES = {"mean_ms": 2, "std_ms": 2, "median_ms": 2, "p99_ms": 2, "texts_per_second": 1, "texts_per_second_std": 1}
Table = tuple[str, list[str], list[list[str]]]  # title, header, rows


def scores_table(models: Mapping[str, Sequence[Score]], reference: str | None = None) -> list[list[str]]:
    """Rows of text, header first: one row a task, one column a model, then averages and the percent of the reference's.

    A model without a score on some task has a dash there and no average.
    """
    tasks = dict.fromkeys((score.task, score.metric) for scores in models.values() for score in scores)
    values = [{(score.task, score.metric): score.value for score in scores} for scores in models.values()]
    means = [averages(scores) if len(scores) == len(tasks) else {} for scores in models.values()]
    rows = [["Task", "Metric", *models], *([*task, *(_text(found.get(task)) for found in values)] for task in tasks)]
    for domain, label in (("in", "average in domain"), ("out", "average out of domain"), ("all", "average")):
        if domain == "all" or any(domain in found for found in means):
            rows.append([label, "", *(_text(found.get(domain)) for found in means)])
    shares = [retention(scores, models.get(reference or "", ())) for scores in models.values()]
    if any(shares):
        kept = (share.get("average") if mean else None for share, mean in zip(shares, means, strict=True))
        rows.append([f"% of {reference}", "", *(_text(share, 1) for share in kept)])
    return rows


def to_markdown(rows: Sequence[Sequence[str]]) -> str:
    """Markdown table of rows, header first; columns after the second are right-aligned."""
    header, *body = [[markdown_cell(cell) for cell in row] for row in rows]
    rule = ["---" if number < 2 else "---:" for number in range(len(header))]
    return "\n".join("| " + " | ".join(row) + " |" for row in [header, rule, *body]) + "\n"


def speed_tables(report: Mapping[str, Any]) -> list[Table]:
    """Result of `measure_speed` as tables: models, summary (REDACT, table 7), the rows of each backend and role."""
    header = ["Model", "Batch", "Tokens", "Mean ms", "± std", "Median ms", "p99 ms", "Texts/s", "± std", "Repeats"]
    groups: dict[tuple[str, str | None], list[list[str]]] = {}
    for row in report["rows"]:
        times = [f"{row[key]:.{digits}f}" for key, digits in _TIMES.items()]
        cells = [row["model"], str(row["batch_size"]), str(row["tokens"]), *times, str(row["repeats"])]
        groups.setdefault((row["backend"], row["role"]), []).append(cells)
    parts = [(f"{backend}: {_ROLES[role]}", header, rows) for (backend, role), rows in groups.items()]
    return [_models(report["models"]), _summary(report), *parts]


def _models(models: Mapping[str, Mapping[str, Any]]) -> Table:
    rows = []
    for name, info in models.items():
        rest = info["parameters"] - info["embedding_parameters"]
        sizes = [f"{info['parameters'] / 1e6:.2f}", f"{rest / 1e6:.2f}", f"{info['megabytes']:.1f}"]
        rows.append([name, *sizes, _text(info["memory_mb"], 0)])
    return "Models", ["Model", "Parameters (M)", "without embeddings (M)", "Weights (MB)", "Peak memory (MB)"], rows


def _summary(report: Mapping[str, Any]) -> Table:
    reference, rows = report["reference"], []
    backends = dict.fromkeys(row["backend"] for row in report["rows"])
    for backend, role, (name, info) in product(backends, ("query", "document"), report["models"].items()):
        key = (name, backend, role)
        own = [row for row in report["rows"] if (row["model"], row["backend"], row["role"]) == key]
        if own:
            ratio = report["ratios"].get(name, {}).get(backend, {}).get(role)
            faster = f"{ratio['ratio']:.2f} ({ratio['lowest']:.2f}-{ratio['highest']:.2f})" if ratio else ABSENT
            least = min(own, key=lambda row: row["batch_size"])
            latency = f"{least['median_ms']:.2f} ± {least['std_ms']:.2f}"
            largest = str(info["largest_batch_by_backend"][backend][role] or ABSENT)
            rows.append([*key, latency, largest, "1" if name == reference else faster])
    columns = ["Smallest batch, ms", "Largest batch in 100 ms", f"Times faster than {reference} (range)"]
    return "Summary", ["Model", "Backend", "Role", *columns], rows


def _text(value: float | None, digits: int = 2) -> str:
    return ABSENT if value is None else f"{value:.{digits}f}"
