"""The command line takes every command in a recipe's comments: options, variants, keys and benchmarks exist."""

from __future__ import annotations

import re

import pytest
from blocks import ROOT, check_command, commands, comments_of, recipe_commands
from typer.main import get_command

from distilvec.__main__ import app
from distilvec.core.errors import DistilvecError

RECIPES = [*sorted((ROOT / "recipes").rglob("*.yaml")), ROOT / "experiments" / "causal" / "dolly.yaml"]
VERBS = "|".join(get_command(app).commands)
MENTION = re.compile(rf"\b(?:distilvec (?:{VERBS})|python -m)\b")


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: str(path.relative_to(ROOT)))
def test_commands_in_comments_are_parsed(path, tmp_path):
    found = recipe_commands(path)
    comments = " ".join(line.strip() for line in comments_of(path))
    assert len(found) == len(MENTION.findall(comments)), "a command is neither an indented line nor in backticks"
    for words in found:
        if len(words) > 2:  # else the name of a verb, in a sentence
            check_command(words, tmp_path)


def test_benchmark_of_redacts_first_table():
    (evaluate,) = [words for words in recipe_commands(ROOT / "recipes" / "redact.yaml") if words[1] == "evaluate"]
    assert evaluate[evaluate.index("--benchmark") + 1] == "BEIR-14"


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("distilvec evaluate runs/a/student --mteb BEIR", "no task 'BEIR'"),
        ("distilvec evaluate runs/a/student --benchmark BEIR-15", "no benchmark 'BEIR-15'"),
        ("distilvec evaluate MODEL --suite recipes/suites/nothing.yaml", "no file"),
        ("distilvec evaluate MODEL --suite recipes/suites/english.yaml --protocol nothing", "no protocol"),
        ("distilvec run recipes/pareto.yaml 'sweep.variants=[nothing]'", "nothing"),
        ("python -m experiments.causal experiments/causal/dolly.yaml --variant nothing", "nothing"),
        ("distilvec finetune bge-m3 --task a.csv --type pair --out runs/a teacher.adapter=b", "adapter"),
    ],
)
def test_a_name_that_does_not_exist_is_found(line, found, tmp_path):
    with pytest.raises(DistilvecError, match=found):
        check_command(commands(line)[0], tmp_path)
