"""A command and the Python function of the same name take the same arguments; a declared key is one of the recipe."""

from __future__ import annotations

import inspect
from pkgutil import resolve_name

import pytest

import distilvec
from distilvec.cli.app import VERBS
from distilvec.cli.options import App, option_keys
from distilvec.config.base import child
from distilvec.config.schema import Recipe
from distilvec.verbs.check.command import check
from distilvec.verbs.classify.command import classify
from distilvec.verbs.distill.command import distill
from distilvec.verbs.evaluate.command import evaluate
from distilvec.verbs.export.command import export
from distilvec.verbs.transplant.command import transplant

# Arguments that the command and the function do not share, each with its reason.
EXCEPTIONS = {
    "distill": {
        "overrides": "the command's TEXTS have the changes of the recipe among them",
        "callbacks": "a function, which the shell cannot give",
        "dry_run": "distilvec.plan in Python",
    },
    "check": {},
    "classify": {
        "callbacks": "a function, which the shell cannot give",
        "dry_run": "prints the plan, the command's alone",
    },
    "export": {"trust_remote_code": "Python can give a model that it has loaded"},
    "transplant": {
        "options": "has all further keys of student.vocabulary, which are options of the command",
        "tokenizer": "a key of options",
        "target": "a key of options",
        "share": "a key of options",
        "letters": "a key of options",
        "compose": "a key of options",
        "keep_norm": "a key of options",
        "column": "Python gives the texts themselves",
        "limit": "Python gives the texts themselves",
        "rank": "of the student's embedding, not of its vocabulary; the command's alone",
        "budget": "as rank",
        "budget_mb": "as rank",
        "trust_remote_code": "Python can give a model that it has loaded",
    },
    "evaluate": {"benchmark": "of MTEB, the command's alone", "data": "of MTEB, the command's alone"},
}


@pytest.mark.parametrize(
    ("command", "other_names"),
    [
        (distill, {}),
        (check, {}),
        (classify, {}),
        (export, {}),
        (transplant, {"teacher": "model"}),
        (evaluate, {}),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_a_command_takes_what_its_function_takes(command, other_names):
    name = command.__name__
    exceptions = set(EXCEPTIONS[name])
    arguments = inspect.signature(getattr(distilvec, name)).parameters
    options = {other_names.get(key, key): value for key, value in inspect.signature(command).parameters.items()}
    options.pop("json_file", None)
    assert options.keys() - exceptions == arguments.keys() - exceptions
    assert exceptions <= options.keys() | arguments.keys(), "an exception that nothing needs any more"
    for argument in (options.keys() & arguments.keys()) - exceptions:
        default = arguments[argument].default
        if default not in (inspect.Parameter.empty, ()):
            assert options[argument].default == default, argument


def test_declared_keys_are_those_of_a_recipe():
    verbs = {name: resolve_name(f"distilvec.verbs.{place}") for name, place in VERBS.items()}
    declared = {name: option_keys(verb) for name, verb in verbs.items() if not isinstance(verb, App)}
    assert declared["distill"]["size"] == "student.size" and "out" not in declared["distill"]
    for keys in declared.values():
        for key in keys.values():
            annotation = Recipe
            for part in key.split("."):
                annotation = child(annotation, part)
            assert annotation is not None, key
        assert len(set(keys.values())) == len(keys)
