"""The tables of the report page: each part of report.json, and a comparison, as rows of cells that know their value."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from distilvec.evaluation.aggregate import average, retention, share
from distilvec.evaluation.significance import significance_mark
from distilvec.report import tables
from distilvec.report.figure_data import PRECISION_NAMES, averaged_tasks, compression_curves
from distilvec.report.page_cells import Cell, Table, chance_cell, change_cell, figure, words
from distilvec.report.plain_tables import ABSENT
from distilvec.train.metrics import SCORES, validation_metric

AVERAGE = "average"
COLUMNS = ("teacher", "student", "asymmetric", "untrained")
DOMAINS = {"all": "all tasks", "in": "in-domain", "out": "out-of-domain"}
Part = Mapping[str, Any]


# -- scores ----------------------------------------------------------------------------------------------------------


def by_task(scores: Part) -> dict[str, dict[str, Part]]:
    """scores[column][task], columns in their usual order, those without scores left out."""
    order = [*(name for name in COLUMNS if name in scores), *(name for name in scores if name not in COLUMNS)]
    return {name: {score["task"]: score for score in scores[name]} for name in order if scores[name]}


def scores_table(scores: Part, intervals: Part) -> Table:
    """One row a task, one column a model; after student and asymmetric the change in points against the teacher, with its interval."""
    columns = by_task(scores)
    tasks = list(dict.fromkeys(task for column in columns.values() for task in column))
    header, rows = ["Task"], []
    compared = [name for name in columns if name in ("student", "asymmetric") and "teacher" in columns]
    for name in columns:
        header += [name, f"{name}, change"] if name in compared else [name]
    for task in tasks:
        known = next(column[task] for column in columns.values() if task in column)
        info = (_spelled(known.get("metric")), f"{known['rows']:,}\N{NO-BREAK SPACE}rows" if known.get("rows") else "")
        values = {name: column[task]["value"] if task in column else None for name, column in columns.items()}
        rows.append([Cell(task, note=", ".join(filter(None, info))), *_model_cells(values, compared, intervals, task)])
    means = {
        name: average(list(column.values())) if len(column) == len(tasks) else None for name, column in columns.items()
    }
    foot = [[*words(AVERAGE), *_model_cells(means, compared, intervals, AVERAGE)]]
    teacher = list(columns.get("teacher", {}).values())
    kept = {name: retention(list(column.values()), teacher) for name, column in columns.items()}
    if "average" in kept.get("teacher", {}):
        shares = {
            name: figure(None if means[name] is None else found.get("average"), 1) for name, found in kept.items()
        }
        cells = [
            cell for name, share in shares.items() for cell in ([share, Cell("")] if name in compared else [share])
        ]
        foot.append([*words("% of the teacher"), *cells])
    return Table("score-table", "Scores, times 100", header, rows, foot if len(tasks) > 1 else foot[1:])


def _spelled(metric: str | None) -> str:
    return (metric or "").replace("_", " ")


def _model_cells(values: Mapping[str, float | None], compared: Sequence[str], intervals: Part, task: str) -> list[Cell]:
    cells, whole = [], values.get("teacher")
    for name, value in values.items():
        cells.append(figure(value))
        if name in compared:
            low, high, p = (*((intervals.get(name) or {}).get(task) or ()), None, None, None)[:3]
            change = None if value is None or whole is None else value - whole
            cells.append(change_cell(change, low, high, significance_mark(p) if p is not None else ""))
    return cells


def metrics_table(scores: Part) -> Table | None:
    """All further metrics of all tasks, one row a task and metric; None where there are none."""
    columns = by_task(scores)
    keys = {
        (task, metric): score.get("metric")
        for column in columns.values()
        for task, score in column.items()
        for metric in score.get("metrics") or {}
    }
    if all(metric == main for (_, metric), main in keys.items()):
        return None
    rows = [
        [
            *words(task, _spelled(metric)),
            *(figure(((column.get(task) or {}).get("metrics") or {}).get(metric)) for column in columns.values()),
        ]
        for task, metric in keys
    ]
    return Table("metric-table", "Every metric, times 100", ["Task", "Metric", *columns], rows, words=2)


def domain_table(averages: Part) -> Table | None:
    """One row a domain, one column a model, with what is kept of the teacher; None unless there is more than one domain."""
    columns = {name: averages[name] for name in (*COLUMNS, *averages) if averages.get(name)}
    domains = list(dict.fromkeys(domain for column in columns.values() for domain in column))
    if len(domains) < 2:
        return None
    shown = [name for name in columns if name in ("student", "asymmetric") and "teacher" in columns]
    rows = []
    for domain in domains:
        whole = columns.get("teacher", {}).get(domain)
        shares = [
            figure(share(columns[name][domain], whole) if whole is not None and domain in columns[name] else None, 1)
            for name in shown
        ]
        rows.append(
            [*words(DOMAINS.get(domain, domain)), *(figure(column.get(domain)) for column in columns.values()), *shares]
        )
    return Table(
        "domain-table",
        "Averages by domain, times 100",
        ["Domain", *columns, *(f"{name}, % kept" for name in shown)],
        rows,
    )


# -- what is beside the scores ---------------------------------------------------------------------------------------


def agreement_table(agreement: Part) -> Table:
    """One row a task and column: how like the teacher's its rankings are."""
    measures = {"overlap@10": "top 10 shared, %", "kendall_tau": "Kendall's τ"}
    rows = []
    for task, part in agreement.items():
        for column, found in part.items():
            if column != "examples":
                shared, tau = found.get("overlap@10"), found.get("kendall_tau")
                rows.append([*words(task, column), figure(None if shared is None else 100 * shared, 1), figure(tau)])
    return Table(
        "agreement-table", "Likeness to the teacher's rankings", ["Task", "Column", *measures.values()], rows, words=2
    )


def compression_tables(compression: Part) -> list[Table]:
    """One table for the mean over tasks, one for each task: rows are models and precisions, columns are widths."""
    tasks = list(dict.fromkeys(row["task"] for row in compression["rows"]))
    found = []
    for task in [AVERAGE, *tasks] if len(tasks) > 1 else tasks:
        curves = compression_curves(compression, task)
        widths = sorted({width for lines in curves.values() for line in lines.values() for width in line})
        rows = [
            [
                *words(column, PRECISION_NAMES.get(precision, precision)),
                *(figure(line.get(width), 1) for width in widths),
            ]
            for column, lines in curves.items()
            for precision, line in lines.items()
        ]
        title = f"Mean over {', '.join(averaged_tasks(compression))}" if task == AVERAGE else task
        name = f"compression-{tasks.index(task) + 1 if task in tasks else 0}"
        header = [
            "Column",
            "Precision",
            *(f"{width} dimensions" if width == widths[-1] else str(width) for width in widths),
        ]
        found.append(Table(name, f"{title}, times 100, by dimensions kept", header, rows, words=2))
    return found


def margin_tables(margin: Part) -> list[Table]:
    """The fits by task, then the checkpoints they were made from."""
    fits, points = margin.get("fits") or {}, margin.get("points") or []
    header = ["Score", "teacher", "slope, per 0.1", "R²", "p", "margin"]
    rows = []
    for name, fit in fits.items():
        slope = fit.get("slope")
        limit = figure(fit.get("margin"), 3) if fit.get("margin") is not None else Cell("not reached")
        slopes = figure(None if slope is None else slope / 10)
        rows.append(
            [*words(name), figure(fit.get("teacher")), slopes, figure(fit.get("r2")), chance_cell(fit.get("p")), limit]
        )
    names = list(dict.fromkeys(name for point in points for name in point["scores"]))
    steps = [
        [figure(point["step"], 0), figure(point["distance"], 4), *(figure(point["scores"].get(name)) for name in names)]
        for point in points
    ]
    both = [
        Table("margin-table", "Score against distance to the teacher; the slope is in points", header, rows),
        Table("checkpoint-table", "The checkpoints", ["Step", "distance", *names], steps, words=0),
    ]
    return [table for table in both if table.rows]


def models_table(models: Part) -> Table:
    """Size and memory, one row a measure, one column a model."""
    info = [found or {} for found in models.values()]
    measures = {
        "parameters, millions": [_millions(found.get("parameters")) for found in info],
        "without token embeddings, millions": [_millions(_rest(found)) for found in info],
        "size on disk, MB": [figure(found.get("megabytes"), 1) for found in info],
        "memory, MB": [figure(found.get("memory_mb"), 0) for found in info],
        **{
            f"largest batch under 100 ms, {role}": [_largest(found, role) for found in info]
            for role in ("query", "document")
        },
    }
    rows = [[*words(title), *cells] for title, cells in measures.items()]
    rows = [row for row in rows if any(cell.text != ABSENT for cell in row[1:])]
    return Table("model-table", "Size and memory", ["Measure", *models], rows)


def _millions(value: float | None) -> Cell:
    return figure(None if value is None else value / 1e6, 1 if (value or 0) >= 1e6 else 3)


def _rest(info: Part) -> float | None:
    whole, embedding = info.get("parameters"), info.get("embedding_parameters")
    return None if whole is None or embedding is None else whole - embedding


def _largest(info: Part, role: str) -> Cell:
    largest = info.get("largest_batch_under_100_ms") or {}
    return Cell("none", 0) if role in largest and largest[role] is None else figure(largest.get(role), 0)


def timings_table(speed: Part) -> Table:
    """Every timing: mean with its standard deviation, median, 99th percentile, throughput."""
    header = ["Model", "Backend", "Role", "batch", "tokens", "mean, ms", "± std", "median, ms", "p99, ms", "texts/s"]
    rows = [
        [
            *words(row.get("model"), row.get("backend"), row.get("role")),
            *(figure(row.get(key), 0) for key in ("batch_size", "tokens")),
            *(figure(row.get(key)) for key in ("mean_ms", "std_ms", "median_ms", "p99_ms")),
            figure(row.get("texts_per_second"), 1),
        ]
        for row in speed.get("rows") or ()
    ]
    return Table("timing-table", "Every timing", header, rows, words=3)


def task_table(supervised: Part) -> Table | None:
    """The figures on a labelled task's test split, one row a metric, one column a model."""
    scores: Mapping[str, Part] = supervised.get("scores") or {}
    names = list(dict.fromkeys(name for figures in scores.values() for name in figures))
    if not names:
        return None
    rows = []
    for name in names:
        values = [found.get(name) for found in scores.values()]
        rows.append([*words(_spelled(name)), *(figure(None if value is None else 100 * value) for value in values)])
    title = f"{supervised['task']}: {supervised['rows']:,} test examples, times 100"
    return Table("task-table", title, ["Metric", *scores], rows)


def history_table(history: Iterable[Part]) -> Table:
    """The evaluations on held-out texts or examples."""
    lines = [line for line in history if validation_metric(line)]
    names = [
        name
        for name in ("distance", "cosine", "similarity_gap", *SCORES, "task_loss")
        if any(f"eval/{name}" in line for line in lines)
    ]
    rows = [
        [figure(line["step"], 0), figure(line.get("epoch")), *(figure(line.get(f"eval/{name}"), 4) for name in names)]
        for line in lines
    ]
    header = ["Step", "epoch", *(name.replace("_", " ") for name in names)]
    title = "The task on held-out examples" if {*SCORES} & {*names} else "Distance to the teacher on held-out texts"
    return Table("history-table", title, header, rows, words=0)


def stages_table(stages: Iterable[Part]) -> Table:
    """The stages of training: what each trained, and what it took."""
    rows = [
        [
            *words(stage.get("name"), stage.get("method"), stage.get("trained")),
            Cell(f"{stage['learning_rate']:.6g}", stage["learning_rate"])
            if stage.get("learning_rate")
            else Cell(ABSENT),
            *(figure(stage.get(key), 0) for key in ("steps", "texts")),
            figure(stage.get("minutes"), 1),
        ]
        for stage in stages
    ]
    header = ["Stage", "Method", "Trained", "learning rate", "steps", "texts", "minutes"]
    return Table("stage-table", "Stages of training, in order", header, rows, words=3)


def sources_table(sources: Iterable[Part]) -> Table:
    """The corpus by source."""
    rows = [
        [*words(source.get("name"), source.get("role"), source.get("language")), figure(source.get("rows"), 0)]
        for source in sources
    ]
    return Table("source-table", "Training texts", ["Source", "Role", "Language", "texts"], rows, words=3)


# -- comparisons -----------------------------------------------------------------------------------------------------


def leaderboard_table(comparison: Part) -> Table:
    """One row a run; under a figure its standard deviation over seeds; the best of each column is set off."""
    rows = [
        {
            **row,
            "retention": row["retention"]
            if isinstance(row.get("retention"), Mapping)
            else {AVERAGE: row.get("retention")},
        }
        for row in comparison["rows"]
    ]
    columns = tables.figures({"tasks": comparison.get("tasks") or [], "rows": rows})
    best = [_best(column, rows) for column in columns]
    found = []
    for row in rows:
        seeds = f"{row['seeds']} seed{'' if row['seeds'] == 1 else 's'}" if row.get("seeds") else ""
        reference = "reference" if row["run"] == comparison.get("reference") and len(rows) > 1 else ""
        cells = [Cell(row["run"], note=", ".join(filter(None, (seeds, reference)))), *words(row.get("method"))]
        for column, top in zip(columns, best, strict=True):
            value, spread = column.value(row), column.spread(row)
            if value is None:
                cells.append(Cell(ABSENT))
                continue
            kind = "best" if column.text(value) == top else ""
            cells.append(
                Cell(
                    column.text(value) + column.mark(row),
                    value,
                    "" if spread is None else f"± {column.text(spread)}",
                    kind,
                )
            )
        found.append(cells)
    return Table(
        "leaderboard", "Runs, best average first", ["Run", "Method", *(c.title for c in columns)], found, words=2
    )


def _best(column: tables.Figure, rows: Sequence[Part]) -> str | None:
    """The best figure of a column as it is shown; None where there is none, or only one."""
    values = [value for row in rows if (value := column.value(row)) is not None]
    return (
        column.text(max(values, key=lambda value: column.better * value)) if column.better and len(values) > 1 else None
    )


def differences_table(differences: Sequence[Part]) -> Table:
    """Pairwise differences in points, with intervals, p-values and stars."""
    rows = [
        [
            *words(item["a"], item["b"], item["task"]),
            change_cell(item["difference"], item.get("low"), item.get("high"), item.get("mark") or ""),
            chance_cell(item.get("p")),
        ]
        for item in differences
    ]
    return Table(
        "difference-table", "Differences, in points", ["Run", "against", "Task", "difference", "p"], rows, words=3
    )
