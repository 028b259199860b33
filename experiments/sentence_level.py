"""The tables of docs/papers/talas.md from the JSON of the shootout and of step_cost, and the paper's figures beside
them.
"""

from __future__ import annotations

import statistics
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from benchmarks.markdown import markdown_table
from experiments.pages.costs import precisions
from experiments.shootout import PAIRED, agreement, difference, spread

# TALAS, tables 1, 2, 7, 8 and 9, Qwen3-Embedding-0.6B to MiniLMv2-H384, "Avg." (the pair that all five tables have).
# Table 2 prints an untrained student's 56.35 for SimCSE alone; table 1's 68.80 stands here.
PAPER: dict[str, dict[str, float | None]] = {
    "methods": {
        "untrained": 52.60,
        "simcse": 68.80,
        "jasper": 71.94,
        "distillcse": 72.30,
        "talas_plain": 72.85,
        "talas": 74.79,
    },
    "parts": {
        "simcse-part": 68.80,
        "simcse-tamd": 71.99,
        "talas_plain": 72.85,
        "tamd-asam": 73.95,
        "tamd-lasd-asam": 74.28,
        "simcse-tamd-asam": 73.97,
        "talas": 74.79,
    },
    "anchored": {"anchored-1": 74.05, "talas": 74.79, "anchored-3": 74.36},
    # Table 8 counts pairs of adjacent layers (2, 3 and all 6 of six layers and the embedding output). Here relations-2
    # has one pair, talas two, relations-embeddings three.
    "relations": {"relations-2": None, "talas": 73.86, "relations-embeddings": 74.62},
    "updates": {"talas_plain": 72.85, "sam": 73.90, "disam": 74.37, "talas": 74.79},
    "radius": dict.fromkeys(["talas_plain", "talas", "asam-0.5", "asam-1.5", "asam-5", "sam"]),
    "lasd": dict.fromkeys(["talas_plain", "simcse-tamd", "lasd-0.1", "detached"]),
    "redact": dict.fromkeys(["redact", "redact-sam"]),
}
TITLES = {
    "parts": "The parts of TALAS (the paper's table 2)",
    "anchored": "Anchored layers K (table 7; `talas` is K = 2)",
    "relations": "Pairs of layers in LASD (table 8; `relations-2` has one, `talas` two, `relations-embeddings` three)",
    "updates": "Kinds of SAM (table 9; `talas_plain` is AdamW alone, `talas` ASAM)",
}
# Tables whose title depends on the rows that are there: words by the rows that they are about
TITLES_BY_ROW: dict[str, dict[tuple[str, ...], str]] = {
    "radius": {
        ("asam-0.5", "asam-1.5", "asam-5"): "The radius rho of ASAM (`talas`: the authors' 0.05, `talas_plain`: none)",
    },
    "redact": {("redact-sam",): "SAM for REDACT"},
    "lasd": {
        ("lasd-0.1",): "The weight of LASD (0 in `simcse-tamd`, 1 in `talas_plain`)",
        ("detached",): "LASD's guide detached",
    },
}
SUMMARY = (
    "teacher", "untrained", "simcse", "redact", "rkd", "distillcse", "jasper", "talas_plain", "talas", "distilcse_ckd",
)  # fmt: skip
BASES = ("talas_plain", "talas", "redact")  # what an ablation's rows are compared with, seed by seed
STUDENTS = {  # of the comparison, by the file in results/
    "shootout_sentence_level": "A student that never saw the teacher",
    "shootout_sentence_level_cut": "A student of the teacher's own layers",
}
Rows = Sequence[Mapping[str, Any]]


def shootout_tables(report: Mapping[str, Any]) -> str:
    """The shootout as Markdown: methods, their tasks, the ablations, and in words where the order is the paper's."""
    return "\n\n".join(filter(None, [methods_tables(report), ablation_tables(report)]))


def summary_table(report: Mapping[str, Any], own_layers: Mapping[str, Any], costs: Mapping[str, Any]) -> str:
    """A line for each method: the average of both students and its difference from `simcse`, and a step's time."""
    students = [by_name(report["rows"]), by_name(own_layers["rows"])]
    head = [
        "method", "never saw the teacher", "against `simcse`", "the teacher's layers", "against `simcse`", "ms a step",
    ]  # fmt: skip
    lines = []
    for name in SUMMARY:
        cells = []
        for found in students:
            of_a_method = name not in ("teacher", "untrained", "simcse")
            gap = difference(by_seed(found[name]), by_seed(found["simcse"])) if of_a_method else ""
            cells += [spread(averages(found[name])), gap]
        cost = f"{precisions(costs[name])['bf16']['ms']:.0f}" if name in costs else ""
        lines.append([name, *cells, cost])
    return markdown_table(head, lines)


def larger_table(report: Mapping[str, Any]) -> str:
    """A line for each method on the student of a larger teacher: averages, and the difference from `simcse`.

    A method with a map to the teacher's dimensions also has the average of its vectors behind the map.
    """
    found = by_name(report["rows"])
    head = ["method", "seeds", "in domain", "out of domain", "all", "against `simcse`", "behind its map"]
    lines = []
    methods = [name for name in found if not name.endswith(", projected")]
    for name in sorted(methods, key=lambda name: statistics.mean(averages(found[name]))):
        rows = found[name]
        of_a_method = name not in ("teacher", "untrained", "simcse")
        gap = difference(by_seed(rows), by_seed(found["simcse"])) if of_a_method else ""
        behind = found.get(f"{name}, projected")
        cells = [spread(averages(rows, domain)) for domain in ("in", "out", "all")]
        cells += [gap, spread(averages(behind)) if behind else ""]
        lines.append([name, str(len(rows)), *cells])
    return markdown_table(head, lines)


def methods_tables(report: Mapping[str, Any]) -> str:
    """Every method: averages, differences from `simcse`, tasks, and in words where the order is the paper's."""
    found = by_name(report["rows"])
    if not found:
        return ""
    methods = {name: rows for name, rows in found.items() if name.removesuffix(", projected") not in ablations()}
    info = (
        f"Epochs: {report['epochs']}; batch size: {report['batch_size']}; learning rate: {report['learning_rate']:g}; "
        f"{report['machine']}."
    )
    parts = [info, average_table(methods), *against_table(methods), task_table(methods)]
    return "\n\n".join([*parts, "**The order of the methods.** " + order("methods", found)])


def ablation_tables(report: Mapping[str, Any]) -> str:
    """The parts of TALAS, kinds of SAM and other changes of one thing, each beside the paper's figures."""
    found = by_name(report["rows"])
    parts = []
    for name in (*TITLES, *TITLES_BY_ROW):
        chosen = {run: found[run] for run in PAPER[name] if run in found}
        title = title_of(name, chosen)
        if title and len(chosen) > 1 and set(chosen) & ablations():
            printed = PAPER[name] if any(PAPER[name].values()) else None
            parts += [f"**{title}**.", average_table(chosen, printed), *([order(name, chosen)] if printed else [])]
            parts += against_table(chosen, next((one for one in BASES if one in chosen), ""))[:1]
    return "\n\n".join(parts)


def ablations() -> set[str]:
    """The runs that change one thing of a method."""
    tables = (*TITLES, *TITLES_BY_ROW)
    return {name for table in tables for name in PAPER[table]} - {"redact", *PAPER["methods"]}


def title_of(table: str, rows: Collection[str]) -> str:
    """The title of an ablation's table, of what its rows show; empty where they show nothing of their own."""
    if table in TITLES:
        return TITLES[table]
    return "; ".join(words for names, words in TITLES_BY_ROW[table].items() if set(names) & set(rows))


def by_name(rows: Rows) -> dict[str, list[Mapping[str, Any]]]:
    """The rows of the teacher (once), the untrained student, and each run's student, also projected, by seed."""
    found: dict[str, list[Mapping[str, Any]]] = {}
    for row in sorted(rows, key=lambda row: row["seed"]):
        named = {"student": row["run"], "projected": f"{row['run']}, projected"}
        name = str(named.get(row["column"], row["column"]))
        if row["column"] not in ("asymmetric", "mixed") and not (name == "teacher" and name in found):
            found.setdefault(name, []).append(row)
    runs = dict.fromkeys(row["run"] for row in rows)
    order = ["teacher", "untrained", *(name for run in runs for name in (run, f"{run}, projected"))]
    return {name: found[name] for name in order if name in found}


def average_table(found: Mapping[str, Rows], paper: Mapping[str, float | None] | None = None) -> str:
    """Averages in domain, out of domain and over all tasks, with the standard deviation over seeds.

    A row without a counterpart in the paper has None in `paper`.
    """
    head = ["method", "seeds", "Avg-In", "Avg-Out", "Avg", "training, s"]
    if paper:
        head.append("the paper's Avg")
    lines = []
    best = max((statistics.mean(averages(rows)) for name, rows in found.items() if name != "teacher"), default=0.0)
    for name, rows in found.items():
        strong = statistics.mean(averages(rows)) == best
        cells = [name, str(len(rows))]
        cells += [spread(averages(rows, domain), bold=domain == "all" and strong) for domain in ("in", "out", "all")]
        if name in ("teacher", "untrained"):
            cells.append("")
        else:
            cells.append(f"{statistics.mean(row['train_seconds'] for row in rows):.0f}")
        if paper:
            printed = paper[name]
            cells.append("" if printed is None else f"{printed:.2f}")
        lines.append(cells)
    return markdown_table(head, lines)


def against_table(found: Mapping[str, Rows], base: str = "simcse") -> list[str]:
    """Every row's difference from the base's, seed by seed, and what its brackets are; [] without the base."""
    others = [name for name in found if name not in (base, "teacher", "untrained")]
    if base not in found or not others:
        return []
    lines = []
    for name in others:
        cells = [
            difference(by_seed(found[name], domain), by_seed(found[base], domain)) for domain in ("in", "out", "all")
        ]
        lines.append([name, *cells])
    return [markdown_table([f"against `{base}`", "Avg-In", "Avg-Out", "Avg"], lines), PAIRED]


def task_table(found: Mapping[str, Rows]) -> str:
    """Every task's mean over seeds; a star marks those in domain."""
    domains = next(iter(found.values()))[0]["domains"]
    titles = [f"{task}*" if domain == "in" else task for task, domain in domains.items()]
    lines = []
    for name, rows in found.items():
        means = [statistics.mean(row["scores"][task] for row in rows) for task in domains]
        lines.append([name, *(f"{mean:.2f}" for mean in means)])
    return markdown_table(["method", *titles], lines)


def order(table: str, found: Mapping[str, Rows]) -> str:
    """In words: how the order of a table agrees with the paper's."""
    theirs = {name: value for name, value in PAPER[table].items() if value is not None}
    return agreement(theirs, {name: averages(rows) for name, rows in found.items()})


def by_seed(rows: Rows, domain: str = "all") -> dict[int, float]:
    """The average of a domain, by seed."""
    return {row["seed"]: row["averages"][domain] for row in rows}


def averages(rows: Rows, domain: str = "all") -> list[float]:
    """The average of a domain, seed by seed."""
    return [row["averages"][domain] for row in rows]


def sharpness_table(runs: Sequence[Mapping[str, Any]]) -> str:
    """What `python -m experiments.sharpness` measured, an epoch a row, after the paper's table 4."""
    titles = {"lambda_max": "largest eigenvalue", "trace": "trace", "loss": "loss"}
    digits = {"lambda_max": 2, "trace": 0, "loss": 3}
    head = ["epoch"]
    for title in titles.values():
        head += [f"{title}, {update_name(run)}" for run in runs]

    points_by_run = []
    for run in runs:
        points_by_run.append({round(point["epoch"], 2): point for point in run["points"]})
    lines = []
    for epoch in sorted(set().union(*points_by_run)):
        cells = [f"{epoch:g}"]
        for key in titles:
            for points in points_by_run:
                cells.append(f"{points[epoch][key]:,.{digits[key]}f}" if epoch in points else "")
        lines.append(cells)
    return markdown_table(head, lines, columns="r" * len(head))


def update_name(run: Mapping[str, Any]) -> str:
    """The update rule of a run: "AdamW" for "plain", else its name."""
    name: str = run["update"]["name"]
    return "AdamW" if name == "plain" else name.upper()
