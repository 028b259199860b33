"""Methods by name: find the Objective of a file, check the recipe's options, build it."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable
from typing import Any

from distilvec.core.errors import DistilvecError
from distilvec.core.method_file import attribute_errors_to, check_method_name, is_file, load_method_file, method_path
from distilvec.core.objective import Objective, ObjectiveContext, Weights
from distilvec.core.options import check_options


def build_objective(name: str, options: dict[str, Any], weights: Weights, context: ObjectiveContext) -> Objective:
    """Return the method `name` with its options; `weights` replace the method's defaults.

    Errors: DistilvecError for an unknown method, option or term, a value out of range, or models that do not fit.
    """
    method = checked_method(name, options)
    with attribute_errors_to(method_path(name) if is_file(name) else None):
        make: Callable[..., Objective] = method  # each method has other keywords
        objective = make(context, weights, **options)
        if not hasattr(objective, "weights"):
            raise DistilvecError(
                f"{name}: __init__ of {method.__name__} does not call super().__init__(context, weights).",
                "Correct that file.",
                key="method.name",
            )
        if context.dims and not objective.trains_dims:
            raise DistilvecError(
                f"{name} does not train vectors that can be cut.",
                "Leave the key out, or take redact or offline_cosine, with target final.",
                key="student.dims",
            )
        if context.task is not None and objective.head is None:
            raise DistilvecError(
                f"{name} does not train on labels.",
                "Remove [task] from the recipe, or take another method; one of your own calls add_task_head().",
                key="method.name",
            )
    return objective


def checked_method(name: str, options: dict[str, Any]) -> type[Objective]:
    """Return the class of a method that takes these options; no model is needed.

    Errors: DistilvecError for an unknown method or option, or an option of another type.
    """
    method = method_class(name)
    with attribute_errors_to(method_path(name) if is_file(name) else None):
        check_options(name, method.__init__, options)
    return method


def method_class(name: str) -> type[Objective]:
    """Return the one Objective that the method's file defines."""
    if is_file(name):
        module = load_method_file(name)
    else:
        check_method_name(name)
        module = importlib.import_module(f"distilvec.methods.{name}")

    objectives = []
    for _, member in inspect.getmembers(module, inspect.isclass):
        is_imported = member.__module__ != module.__name__
        if issubclass(member, Objective) and not is_imported:
            objectives.append(member)
    if len(objectives) != 1:
        class_names = [objective.__name__ for objective in objectives]
        problem = f"{name}: a method's file defines exactly one Objective; found {class_names}."
        raise DistilvecError(problem, key="method.name")
    return objectives[0]
