"""The tables of docs/papers/emo.md and docs/papers/distillmoe.md from the JSON of the shootout across tokenizers, next
to the papers' figures.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.markdown import markdown_table
from distilvec.config.builtin import recipe_folder
from distilvec.config.recipe import read_tree
from experiments.pages.costs import precisions
from experiments.shootout import PAIRED, Seeds, agreement, difference, spread

# EMO, tables 1 to 4, LLM2Vec-Mistral-7B to BERT-base: accuracy, Spearman. Its pairs are one input.
PAPER = {
    "banking77": {"task": 85.7, "uld": 91.4, "dskd": 91.2, "mined": 90.0, "multilevel_ot": 89.4, "emo": 92.3},
    "stsb-separate": {
        "task": 75.1,
        "dskd": 78.3,
        "emo": 81.3,
        "emo-ira": 80.9,
        "emo-otis": 78.5,
        "emo-all": 80.2,
    },
}
# DistillMoE, tables 1, 2, 8, 9, 12 and 13, LLM2Vec-Mistral-7B to BERT-base. banking77's own figures are those of the
# methods, its parts are Patent's, compared with Patent's whole method. Table 11 is of other tasks.
MOE_PAPER = {
    "banking77": {
        "task": 85.7,
        "uld": 91.4,
        "dskd": 91.2,
        "mined": 90.0,
        "multilevel_ot": 89.4,
        "cdm": 91.2,
        "distillmoe": 93.1,
    },
    "stsb-separate": {"task": 75.1, "dskd": 78.3, "distillmoe": 82.1},
}
MOE_PARTS = {
    "banking77": {
        "distillmoe": 66.2, "no-dynamic-cka": 65.9, "no-head": 64.6, "no-pointwise": 65.1, "no-contrastive": 65.8, "no-pairwise": 66.0,  # noqa: E501
        "z1": 65.9, "z2": 66.1, "narrow": 65.3, "wide": 66.2, "two-teachers": 66.8,
    },
    "stsb-separate": {
        "distillmoe": 82.1, "no-dynamic-cka": 81.9, "no-head": 79.9, "no-pointwise": 81.2, "no-contrastive": 81.7, "no-pairwise": 81.5,  # noqa: E501
        "z1": 81.1, "z2": 81.7, "narrow": 81.7, "wide": 82.5,
    },
}  # fmt: skip
OF_EMO = (
    "task-ratio", "task-short", "task-half", "task", "task-trained",
    "uld", "mined", "dskd", "multilevel_ot", "cdm", "emo",
    "uld-hidden", "mined-hidden", "dskd-hidden", "multilevel_ot-hidden",
    "emo-ira", "emo-otis", "emo-all", "emo-special", "emo-slow", "emo-fast",
    "emo-light", "emo-strong", "emo-sharp", "emo-states",
)  # fmt: skip
OF_MOE = (
    *OF_EMO[:15], "distillmoe", "head-alone", "head-alone-residual", "residual", "light", "light-residual",
    "gate-held", "floor-held", "gate-held-residual", "gate-slow",
    "no-dynamic-cka", "no-head", "no-pointwise", "no-contrastive", "no-pairwise", "z1", "z2", "narrow", "wide",
    "manual-equal", "manual-pointwise", "gate-held-fast", "authors", "sharp", "two-teachers",
)  # fmt: skip
ORDER = tuple(dict.fromkeys((*OF_EMO, *OF_MOE)))  # the tables'
EMO_SUMMARY = (
    "task-half", "task", "uld", "multilevel_ot", "emo", "emo-states", "mined-hidden", "dskd", "dskd-hidden",
    "mined", "cdm",
)  # fmt: skip
MOE_SUMMARY = (
    "task-half", "task", "distillmoe", "floor-held", "gate-held", "gate-held-residual", "manual-equal", "dskd-hidden",
    "mined",
)  # fmt: skip
MAIN = {"banking77": "accuracy", "stsb-separate": "spearman"}
ONE_INPUT = {"mrpc": "accuracy", "stsb": "spearman"}  # pairs as one input: a table of their own
OTHERS = {"banking77": ["macro_f1"], "stsb-separate": ["pearson"], "mrpc": ["macro_f1"], "stsb": ["pearson"]}
BASELINES = ("uld", "mined", "dskd", "multilevel_ot")
Rows = Sequence[Mapping[str, Any]]


def emo_tables(report: Mapping[str, Any]) -> str:
    """EMO, its parts and its baselines, and how their order agrees with the paper's."""
    rows = [row for row in report["rows"] if row["method"] in OF_EMO and row["task"] in MAIN]
    words = [f"- {task}: {order(rows, PAPER[task], task)}" for task in tasks_of(rows)]
    parts = [table(report, rows), findings(rows, "emo", "cross_tokenizer"), "\n".join(words)] if rows else []
    return "\n\n".join(parts)


def emo_summary(report: Mapping[str, Any], all_labels: Mapping[str, Any], costs: Mapping[str, Any]) -> str:
    """A line for each method: banking77 with few labels, STS-B, banking77 with all labels, and a step's time."""
    rows = report["rows"]
    head = ("run", "banking77", "against `task`", "STS-B", "banking77, all labels", "ms a step")
    accuracy = f"{report['teachers']['banking77']['accuracy']:.2f}"
    spearman = f"{report['teachers']['stsb-separate']['spearman']:.2f}"
    lines = [["teacher", accuracy, "", spearman, accuracy, ""]]
    for name in EMO_SUMMARY:
        cost = f"{precisions(costs[name])['bf16']['ms']:.0f}" if name in costs else ""
        gap = difference(values(rows, "banking77", name), values(rows, "banking77", "task")) if name != "task" else ""
        cells = [cell(rows, "banking77", name), gap, cell(rows, "stsb-separate", name)]
        cells += [cell(all_labels["rows"], "banking77", name), cost]
        lines.append([name, *cells])
    return markdown_table(head, lines)


def moe_summary(report: Mapping[str, Any]) -> str:
    """A line for each form of DistillMoE: both tasks, the distance from the student alone, and where the gate ends."""
    rows = [row for row in report["rows"] if row["task"] in MAIN]
    head = ("run", "banking77", "against `task`", "STS-B", "against `task`", "greatest gate")
    accuracy = f"{report['teachers']['banking77']['accuracy']:.2f}"
    spearman = f"{report['teachers']['stsb-separate']['spearman']:.2f}"
    lines = [["teacher", accuracy, "", spearman, "", ""]]
    for name in MOE_SUMMARY:
        cells = []
        for task in MAIN:
            alone = values(rows, task, "task")
            cells += [cell(rows, task, name), difference(values(rows, task, name), alone) if name != "task" else ""]
        gates = [max(row["gates"]) for row in rows if row["method"] == name and row.get("gates")]
        cells.append(f"{statistics.mean(gates):.2f}" if gates else "")
        lines.append([name, *cells])
    return markdown_table(head, lines)


def cell(rows: Rows, task: str, method: str) -> str:
    """A method's mean on a task and its deviation over seeds; empty without a run."""
    found = [*values(rows, task, method).values()]
    return spread(found) if found else ""


def one_input_table(report: Mapping[str, Any]) -> str:
    """Every method on pairs of texts that are one input; empty without such runs."""
    rows = [row for row in report["rows"] if row["task"] in ONE_INPUT]
    return table(report, rows) if rows else ""


def distillmoe_tables(report: Mapping[str, Any]) -> str:
    """DistillMoE beside the others, then its parts and settings, on the tasks that it was run on."""
    tasks = {row["task"] for row in report["rows"] if row["method"] == "distillmoe" and row["task"] in MAIN}
    if not tasks:
        return ""
    rows = [row for row in report["rows"] if row["method"] in OF_MOE and row["task"] in tasks]
    words = [f"- {task}, methods: {order(rows, MOE_PAPER[task], task)}" for task in tasks_of(rows)]
    words += [f"- {task}, parts and settings: {order(rows, MOE_PARTS[task], task)}" for task in tasks_of(rows)]
    found = findings(rows, "distillmoe", "distillmoe")
    return "\n\n".join([table(report, rows), found, gates(rows), "\n".join(words)])


def forms_tables(report: Mapping[str, Any]) -> str:
    """Forms of EMO and DistillMoE, and how far each is from the student alone."""
    rows = [row for row in report["rows"] if row["task"] in MAIN]
    names = sorted({row["method"] for row in rows}, key=ORDER.index)
    columns = {task: {name: values(rows, task, name) for name in names} for task in tasks_of(rows)}
    return "\n\n".join([table(report, rows), differences(columns, "task", {}), PAIRED])


def findings(rows: Rows, whole: str, sweep: str) -> str:
    """The conclusions in words, and every member's difference from the whole method, task by task, all from the rows.

    What a member leaves out is read in the sweep's file.
    """
    tasks = tasks_of(rows)
    names = [name for name in ORDER if any(row["method"] == name for row in rows)]
    if whole not in names or "task" not in names:
        return ""
    columns = {task: {name: values(rows, task, name) for name in names} for task in tasks}
    if len(tasks) > 1:
        columns["mean"] = {name: overall(rows, name, tasks) for name in names}
    return "\n\n".join([conclusions(columns, whole), differences(columns, whole, parts_left_out(sweep)), PAIRED])


def differences(columns: Mapping[str, Mapping[str, Seeds]], whole: str, left_out: Mapping[str, str]) -> str:
    """A table of every member's difference from one of them, column by column, with what each leaves out."""
    names = next(iter(columns.values()))
    lines = []
    for name in (name for name in names if name != whole):
        label = f"{name} (without {left_out[name]})" if name in left_out else name
        cells = [difference(found[name], found[whole]) for found in columns.values()]
        lines.append([label, *cells])
    return markdown_table([f"against `{whole}`", *columns], lines)


def conclusions(columns: Mapping[str, Mapping[str, Seeds]], whole: str) -> str:
    """In words, a line for each column: the best, and the whole method against the student alone and its baselines."""
    lines = []
    for column, scores in columns.items():
        most = max(len(by_seed) for by_seed in scores.values())
        means = {}
        for name, by_seed in scores.items():
            # Fewer seeds are not ranked against more, but for the two methods that the line is about
            if len(by_seed) == most or (name in (whole, "task") and by_seed):
                means[name] = statistics.mean(by_seed.values())
        best = max(means, key=means.__getitem__)

        parts = [f"`{best}` is best with {means[best]:.2f}; `{whole}` has {means[whole]:.2f}"]
        parts.append(f"{difference(scores[whole], scores['task'])} against the student alone (`task`)")
        gap = difference(scores[whole], scores.get("task-half", {}))
        if gap:
            parts.append(f"{gap} against the student alone with as many passes over the labels (`task-half`)")
        for form, words in (("", ""), ("-hidden", " without class probabilities")):
            baselines = [scores[name + form] for name in BASELINES if scores.get(name + form)]
            gap = difference(scores[whole], mean_by_seed(baselines)) if baselines else ""
            if gap:
                parts.append(f"{gap} against the mean of {len(baselines)} baselines{words}")
        lines.append(f"- {column}: {', '.join(parts)}.")
    return "\n".join(lines)


def parts_left_out(sweep: str) -> dict[str, str]:
    """The terms whose weight a sweep's member sets to 0, by the member's name."""
    variants = read_tree(recipe_folder() / "sweeps" / f"{sweep}.yaml")["variants"]
    weights = {name: (changes or {}).get("method.weights") or {} for name, changes in variants.items()}
    found = {name: [term for term, weight in own.items() if not weight] for name, own in weights.items()}
    return {name: " and ".join(terms) for name, terms in found.items() if terms}


def gates(rows: Rows) -> str:
    """Where the gates end, as means over tasks and seeds, greatest and least expert first and last."""
    lines = []
    for method in OF_MOE:
        found = [row["gates"] for row in rows if row["method"] == method and row.get("gates")]
        if found:
            most = statistics.mean(max(means) for means in found)
            least = statistics.mean(min(means) for means in found)
            lines.append([method, f"{most:.2f}", f"{least:.2f}"])
    return markdown_table(["mean gates at the end", "greatest", "least"], lines)


def tasks_of(rows: Rows) -> list[str]:
    """The tasks that there are rows of."""
    return [task for task in MAIN | ONE_INPUT if any(row["task"] == task for row in rows)]


def table(report: Mapping[str, Any], rows: Rows) -> str:
    """Every method on every task with its deviation over seeds; the seeds task by task where they differ."""
    main = MAIN | ONE_INPUT
    tasks = tasks_of(rows)
    methods = sorted({row["method"] for row in rows}, key=ORDER.index)
    figures = [(task, metric) for task in tasks for metric in (main[task], *OTHERS[task])]
    has_mean = len(tasks) > 1

    head = ["method", "seeds", *(f"{task}, {metric}" for task, metric in figures)]
    teacher = ["teacher", "1", *(f"{report['teachers'][task][metric]:.2f}" for task, metric in figures)]
    if has_mean:
        head.append("mean")
        mean = statistics.mean(report["teachers"][task][main[task]] for task in tasks)
        teacher.append(f"{mean:.2f}")

    lines = [teacher]
    best = {task: best_method(rows, task, methods) for task in tasks}
    for method in methods:
        counts = [len(values(rows, task, method)) for task in tasks]
        if len(set(counts)) == 1:
            counts = counts[:1]
        cells = [method, " / ".join(map(str, counts))]
        for task, metric in figures:
            scores = [*values(rows, task, method, metric).values()]
            is_best = metric == main[task] and method == best[task]
            cells.append(spread(scores, bold=is_best) if scores else "")
        if has_mean:
            means = [*overall(rows, method, tasks).values()]
            cells.append(spread(means) if means else "")
        lines.append(cells)

    steps = ", ".join(f"{report['steps'][task]} on {task}" for task in tasks)
    info = (
        f"Steps: {steps}; batches of {report['batch_size']}, learning rate {report['learning_rate']:g}. Means over "
        f"seeds ± their standard deviation; {report['machine']}."
    )
    return f"{info}\n\n{markdown_table(head, lines)}"


def best_method(rows: Rows, task: str, methods: Sequence[str]) -> str:
    """The method with the highest mean on a task, of those with the most seeds: fewer are not ranked against more."""
    scores = {method: values(rows, task, method) for method in methods}
    most = max(len(by_seed) for by_seed in scores.values())
    means = {method: statistics.mean(by_seed.values()) for method, by_seed in scores.items() if len(by_seed) == most}
    return max(means, key=means.__getitem__)


def values(rows: Rows, task: str, method: str, metric: str | None = None) -> Seeds:
    """A method's figure on a task, by seed; by default the task's main one."""
    metric = metric or (MAIN | ONE_INPUT)[task]
    own = [row for row in rows if row["task"] == task and row["method"] == method]
    return {row["seed"]: row["scores"][metric] for row in own}


def overall(rows: Rows, method: str, tasks: Sequence[str]) -> Seeds:
    """The mean of the tasks' main figures, for every seed that has all of them."""
    return mean_by_seed([values(rows, task, method) for task in tasks])


def mean_by_seed(columns: Sequence[Seeds]) -> Seeds:
    """The mean of several figures, for every seed that has all of them."""
    shared = set.intersection(*(set(by_seed) for by_seed in columns))
    return {seed: statistics.mean(by_seed[seed] for by_seed in columns) for seed in shared}


def order(rows: Rows, paper: Mapping[str, float], task: str) -> str:
    """In words: how the order of the methods agrees with the paper's."""
    found = {method: [*values(rows, task, method).values()] for method in paper}
    return agreement(paper, {method: figures for method, figures in found.items() if figures})
