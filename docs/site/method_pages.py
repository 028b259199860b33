"""One page for each method: docs/methods/NAME.md has the idea and the equations, everything else is made here.

From the class: options, terms, the space of the student. From the docstring: meanings and notes. From the recipes: the
paper's values. From results/: cost and scores. From references.bib: the citation.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from functools import cache
from typing import Any, get_type_hints

from distilvec.config.builtin import recipe_files
from distilvec.config.recipe import read_tree
from distilvec.core.method_file import method_names
from distilvec.core.objective import Objective
from distilvec.core.options import in_words
from distilvec.core.registry import method_class
from docs.site.reference_pages import PARTS, arguments, flow, table, words
from experiments.pages.costs import precisions
from experiments.pages.parts import read
from experiments.pages.sizes import students
from experiments.sentence_level import STUDENTS, averages, by_name
from experiments.shootout import spread

STUDENT = ("model", "layers", "pooling", "max_length", "experts", "head")  # keys on a method's page
COSTS = {  # results of step_cost, with the page that has them all
    "step_cost": "papers/talas.md",
    "step_cost_tokens": "papers/emo.md",
    "step_cost_distillmoe": "papers/distillmoe.md",
}


def names() -> list[str]:
    """Return the methods in the order of their pages."""
    return method_names()


def completed(name: str, text: str) -> str:
    """Return a method's page: the idea and the equations of `text`, then what is made.

    Where `text` has its own measurements, these are the page's.
    """
    method = method_class(name)
    parts = {
        "At a glance": glance(name, method),
        "What the paper leaves open": notes(method),
        "Options": options(name, method),
        "The recipe's values": settings(name),
        "Cost": cost(name),
        "Measured": "" if "\n## Measured\n" in text else measured(name),
        "Citation": f"```bibtex\n{method.citation}\n```" if method.citation else "",
    }
    idea, equations = text.split("\n## Equations\n")
    made = [f"## {heading}\n\n{part}" for heading, part in parts.items() if part]
    return "\n\n".join([idea.strip(), made[0], f"## Equations\n{equations.rstrip()}", *made[1:]]) + "\n"


def recipes_of(name: str) -> list[tuple[str, dict[str, Any]]]:
    """Return the recipes that use a method, the one that has its name first."""
    found = [(path.stem, tree) for path, tree in trees() if (tree.get("method") or {}).get("name") == name]
    return sorted(found, key=lambda pair: pair[0] != name)


@cache
def trees() -> list[tuple[Any, dict[str, Any]]]:
    """Return every built-in recipe as plain data."""
    return [(path, read_tree(path)) for path in recipe_files() if path.parent.name != "sweeps"]


def glance(name: str, method: type[Objective]) -> str:
    """Return the facts about a method that decide whether it can be used."""
    recipes = recipes_of(name)
    links = ", ".join(f"[`{stem}`](../reference/recipes.md#{stem})" for stem, _ in recipes)
    weights = ", ".join(f"`{term}` {weight:g}" for term, weight in getattr(method, "default_weights", {}).items())
    rows = [
        ["paper", next((tree["paper"] for _, tree in recipes if tree.get("paper")), "")],
        ["recipes", links or "`distilvec run redact --variant scores`" * (name == "redact_scores")],
        ["student's vectors", "in the teacher's space: asymmetric retrieval" if method.in_teacher_space else "in a space of their own"],  # noqa: E501
        ["teachers", "several" if method.max_teachers is None else "one" if name not in ("simcse", "task") else "none"],
        ["batches", "a fixed number of texts, compared with each other" if method.needs_fixed_batch else "any size"],
        ["weights of the terms", weights],
        ["source", f"[{name}.py](../files/src/distilvec/methods/{name}.py)"],
    ]  # fmt: skip
    return table(["", ""], [row for row in rows if row[1]])


def notes(method: type[Objective]) -> str:
    """Return the `Note:` lines of a method's docstring: readings and deviations."""
    parts = PARTS.split("\n" + (inspect.getdoc(method) or ""))[1:]
    found = [" ".join(body.split()) for title, body in zip(parts[::2], parts[1::2], strict=True) if title == "Note"]
    return "\n".join(f"- {note[0].upper()}{note[1:]}" for note in found)


def options(name: str, method: type[Objective]) -> str:
    """Return the table of `method.options`: range, default, the value of the method's recipe, meaning."""
    if "__init__" not in vars(method):
        return ""  # that of a base class: no options
    known = dict(list(inspect.signature(method.__init__).parameters.items())[3:])
    hints = get_type_hints(method.__init__, include_extras=True)
    parts = PARTS.split("\n" + (inspect.getdoc(method) or ""))[1:]
    body = next((text for title, text in zip(parts[::2], parts[1::2], strict=True) if title == "Args"), "")
    about = {one.strip(): text for names_, text in arguments(body) for one in names_.split(",")}
    assert set(known) <= set(about), f"{name}: options without a meaning: {set(known) - set(about)}"
    recipe = next((tree["method"].get("options") or {} for stem, tree in recipes_of(name) if stem == name), {})
    rows = [
        [f"`{key}`", words(in_words(hints[key])), shown(one.default), shown(recipe.get(key)), about[key]]
        for key, one in known.items()
    ]
    head = ["option", "value", "default", "recipe", "meaning"]
    if not any(row[3] for row in rows):  # the recipe sets none of them
        for cells in (head, *rows):
            del cells[3]
    return table(head, rows) if rows else ""


def shown(value: Any) -> str:
    """Return a value as a recipe has it; empty for none."""
    if value is None or value is inspect.Parameter.empty:
        return ""
    return f"`{flow(value)}`"


def settings(name: str) -> str:
    """Return the settings of the method's recipe: those of the paper, as far as it prints them."""
    tree = next((tree for stem, tree in recipes_of(name) if stem == name), None)
    if tree is None:
        return ""
    train, student = tree.get("train", {}), tree.get("student", {})
    keys = (
        "epochs",
        "max_steps",
        "batch_size",
        "learning_rate",
        "learning_rate_factors",
        "schedule",
        "update",
        "weight_decay",
    )
    values = {
        "teacher.model": tree.get("teacher", {}).get("model"),
        **{f"student.{key}": student.get(key) for key in STUDENT},
        "method.weights": tree["method"].get("weights"),
        **{f"train.{key}": train.get(key) for key in keys},
        "stages": [stage["set"] for stage in tree.get("stages", [])] or None,
    }  # fmt: skip
    rows = [[f"`{key}`", shown(value)] for key, value in values.items() if value is not None]
    variants = ", ".join(f"`{variant}`" for variant in tree.get("variants") or {})
    return table(["key", "value"], rows) + (f"\n\nVariants: {variants}." if variants else "")


def cost(name: str) -> str:
    """Return milliseconds of a training step, next to a step on labels alone."""
    rows = []
    for file, page in COSTS.items():
        found = read(file) or {}
        for form in [key for key in found if key == name or key.startswith(f"{name}_")]:
            for precision, part in precisions(found[form]).items():
                base = precisions(found["task"]).get(precision)
                ratio = f"{part['ms'] / base['ms']:.2f}" if base and name != "task" else ""
                rows.append(
                    [
                        f"`{form}`",
                        precision,
                        f"{part['ms']:.0f}",
                        ratio,
                        f"{part['peak_mb']:.0f}",
                        f"[table](../{page}#cost)",
                    ]
                )
    head = ["run", "precision", "ms a step", "times `task`", "peak MB", "all methods"]
    return table(head, rows) if rows else ""


def measured(name: str) -> str:
    """Return the method's rows of the comparisons."""
    parts = [students()] if name == "redact" else []
    parts += [*sentence_scores(name), *task_scores(name)]
    return "\n\n".join(parts)


def sentence_scores(name: str) -> Iterator[str]:
    """Yield the average over the tasks of each sentence-level comparison, with teacher and untrained student."""
    for file, student in STUDENTS.items():
        report = read(file)
        found = by_name(report["rows"]) if report else {}
        if name not in found:
            continue
        runs = ("teacher", "untrained", name, f"{name}, projected", f"{name}_plain")
        rows = [
            [run, str(len(found[run])), *(spread(averages(found[run], domain)) for domain in ("in", "out", "all"))]
            for run in runs
            if run in found
        ]
        head = ["run", "seeds", "in domain", "out of domain", "average"]
        title = f"{student} ([sentence-level comparison](../papers/talas.md#the-comparison), averages over "
        yield f"{title}{len(found[name][0]['scores'])} tasks):\n\n{table(head, rows)}"


def task_scores(name: str) -> Iterator[str]:
    """Yield the accuracy on banking77 with few labels and with all, next to the student alone."""
    for file, labels in (("shootout_cross_tokenizer", "2,000 labels"), ("shootout_all_labels", "all labels")):
        report = read(file) or {"rows": [], "teachers": {}}
        scores: dict[str, list[float]] = {}
        for row in report["rows"]:
            if row["task"] == "banking77":
                scores.setdefault(row["method"], []).append(row["scores"]["accuracy"])
        if name not in scores:
            continue
        teacher = report["teachers"].get("banking77", {}).get("accuracy")
        rows = [["teacher", "1", f"{teacher:.2f}"]] if teacher else []
        rows += [
            [run, str(len(scores[run])), spread(scores[run])] for run in dict.fromkeys(("task", name)) if run in scores
        ]
        yield (
            f"[Comparison across tokenizers](../papers/emo.md#few-labels-and-a-small-teacher), banking77 with "
            f"{labels}, accuracy; `task` is the student alone:\n\n{table(['run', 'seeds', 'banking77'], rows)}"
        )
