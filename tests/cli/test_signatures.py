"""A command and the Python function of the same name take the same arguments; a declared key is one of the recipe."""

from __future__ import annotations

import inspect

import pytest

import distilvec
from distilvec.cli.app import VERBS
from distilvec.cli.options import recipe_keys
from distilvec.config.base import child
from distilvec.config.schema import Recipe
from distilvec.verbs.check.command import check
from distilvec.verbs.classify.command import classify
from distilvec.verbs.distill.command import distill


@pytest.mark.parametrize(
    ("command", "function", "other_names"),
    [
        (distill, distilvec.distill, {}),  # the command's TEXTS have the changes of the recipe among them
        (check, distilvec.check, {}),
        (classify, distilvec.classify, {"out": "output_dir"}),
    ],
    ids=["distill", "check", "classify"],
)
def test_a_command_takes_what_its_function_takes(command, function, other_names):
    options = inspect.signature(command).parameters
    arguments = inspect.signature(function).parameters
    names = {other_names.get(name, name) for name in options} - {"json_file"}
    assert names | {"overrides", "callbacks"} == set(arguments) | {"overrides", "callbacks"}
    for name, parameter in options.items():
        argument = arguments.get(other_names.get(name, name))
        if argument is not None and argument.default not in (inspect.Parameter.empty, ()):
            assert parameter.default == argument.default, name


def test_declared_keys_are_those_of_a_recipe():
    declared = {verb.__name__: recipe_keys(verb) for verb in VERBS}
    assert declared["distill"]["size"] == "student.size" and "out" not in declared["distill"]
    for keys in declared.values():
        for key in keys.values():
            annotation = Recipe
            for part in key.split("."):
                annotation = child(annotation, part)
            assert annotation is not None, key
        assert len(set(keys.values())) == len(keys)
