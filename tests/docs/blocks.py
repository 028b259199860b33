"""Code blocks of the documentation, parsed: options of commands, keys of recipes (benchmarks/printed.py runs them)."""

from __future__ import annotations

import email
import importlib.util
import re
import tomllib
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import typer

from benchmarks.printed import blocks_of as blocks_of
from benchmarks.printed import commands as commands
from distilvec.__main__ import app
from distilvec.cli.options import combined
from distilvec.config import recipe as recipes
from distilvec.config.builtin import recipe_file
from distilvec.config.yaml_dialect import load_yaml
from distilvec.core.errors import DistilvecError
from distilvec.evaluation.aggregate import PROTOCOLS
from distilvec.evaluation.mteb import find_tasks
from distilvec.evaluation.suite import read_suite
from distilvec.verbs.finetune import finetune_recipe
from distilvec.verbs.run.sweep import load_runs
from experiments.causal.__main__ import app as causal_app
from experiments.causal.schema import load_causal

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
RECIPE = {
    "name": "page",
    "teacher": {"model": "all-MiniLM-L6-v2"},
    "student": {"model": "teacher", "layers": 2},
    "corpus": {"sources": [{"path": "documents.txt"}]},
    "method": {"name": "redact"},
}


def few_docstrings(docstrings: Any) -> Any:
    """The built-in texts: those of one package instead of the whole library, more than are held out."""
    return docstrings(Path(email.__file__).parent)


def comments_of(path: Path) -> list[str]:
    """Return the comments of a recipe, of whole lines and at ends of lines, without their first "#"."""
    found = [re.search(r"(?:^| )#(.*)", line) for line in path.read_text(encoding="utf-8").splitlines()]
    return [comment[1] for comment in found if comment]


def recipe_commands(path: Path) -> list[list[str]]:
    """Return the commands in the comments of a recipe, as words: indented lines, and those between backticks."""
    indented, running, continued = [], [], False
    for line in comments_of(path):
        if continued or re.match(r" {3}(distilvec|python) ", line):
            indented.append(line)
            running.append(line.partition(" # ")[2])
            continued = line.endswith("\\")
        else:
            running.append(line.strip())
    quoted = re.findall(r"`((?:distilvec|python) [^`]+)`", " ".join(running))
    return commands("\n".join([*indented, *quoted]))


def check_command(words: list[str], folder: Path) -> None:
    """Check a command without running it. Errors: whatever its parser, or the recipe's, has to object to."""
    program, *rest = words
    if program == "distilvec":
        check_verb(rest, folder)
    elif program in ("pip", "pipx", "uvx") or (program == "python" and "install" in rest):
        wanted = set(re.findall(r"\[([\w,]+)\]", " ".join(rest)))
        known = set(tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"])
        assert {extra for group in wanted for extra in group.split(",")} <= known, words
    elif program in ("torchrun", "accelerate") and "distilvec" in rest:
        check_verb(rest[rest.index("distilvec") + 1 :], folder)
    elif program == "python" and rest[0] == "-c":
        compile(rest[1], "-c", "exec")
    elif program == "python" and rest[0] == "-m":
        assert importlib.util.find_spec(rest[1]), f"no module {rest[1]}"
        if rest[1] == "experiments.causal":
            check_causal(rest[2:])
    elif program == "python":
        assert (ROOT / rest[0]).exists(), f"no script {rest[0]}"
    elif program == "make":
        assert f"\n{rest[0]}:" in (ROOT / "Makefile").read_text(), f"no target {rest[0]}"
    else:
        assert program in ("export", "git", "cd", "source", "curl", "vllm"), f"unknown command: {words}"


def check_verb(words: list[str], folder: Path) -> None:
    """Parse a line of distilvec; load its recipe with its variants and changes."""
    found = typer.main.get_command(app)
    context = found.context_class(found, info_name="distilvec")
    words = [word for word in words if word not in ("--quiet", "--verbose", "--debug")]
    while hasattr(found, "commands"):
        if words and words[0] not in found.commands and found.name == "cache":
            words = ["fill", *words]
        if not words:  # a group that lists
            return
        _, found, words = found.resolve_command(context, words)
        context = found.context_class(found, info_name=found.name, parent=context)
    if words and words[0] == "--help":
        return
    # A command keeps the names of its help from the first context that it is in
    given = found.make_context(found.name, list(words), help_option_names=["-h", "--help"]).params
    if "recipe" in given:
        check_recipe(given, folder)
    if found.name == "show" or found.name == "copy":
        recipes.load(recipe_file(str(given["name"])))
    if given.get("mteb") or given.get("benchmark"):
        find_tasks(given["mteb"].split(",") if given["mteb"] else None, given["benchmark"])
    if "protocol" in given and given["protocol"] not in PROTOCOLS:
        raise DistilvecError(f"no protocol {given['protocol']}.", key="--protocol")
    for suite in [given.get("suite")]:
        if suite is not None and str(suite).startswith("recipes/") and not (ROOT / suite).exists():
            raise DistilvecError(f"no file {suite}.", key="--suite")
    if found.name == "finetune":
        kind, encode = given["kind"], given["encode"]
        tree = finetune_recipe(given["model"], given["task"], kind, encode, {} if given["lora"] else None)
        recipes.recipe_from(tree, recipes.read_overrides(given["overrides"] or []), "distilvec finetune")


def check_causal(words: list[str]) -> None:
    """Parse a line of `python -m experiments.causal`; load its recipe with its variants and changes."""
    given = typer.main.get_command(causal_app).make_context("causal", words).params
    load_causal(ROOT / given["recipe"], combined(given["variant"]), given["overrides"])


def check_recipe(given: dict[str, Any], folder: Path) -> None:
    """Load the recipe of a command with its variants and changes, a sweep with all its runs."""
    name, variant, overrides = str(given["recipe"]), given.get("variant"), given.get("overrides")
    if name.endswith(".yaml") and not (folder / name).exists() and not (ROOT / name).exists():
        raise DistilvecError(f"no file {name}.", key="recipe")
    path = name if not (ROOT / name).exists() else str(ROOT / name)
    load_runs(recipe_file(path), overrides or [], combined(variant))


def check_yaml(code: str) -> None:
    """Validate a block as a suite or as a recipe: as it is, or completed by RECIPE's sections."""
    tree = load_yaml(code, "a page")
    if isinstance(tree, list):
        with TemporaryDirectory() as folder:
            (suite := Path(folder, "suite.yaml")).write_text(code)
            read_suite(suite)
        return
    merged = {**RECIPE, **tree}
    if "task" in tree or "corpus" in tree:
        merged = {key: value for key, value in merged.items() if key in tree or key not in ("task", "corpus")}
    for key in ("teacher", "student", "method"):
        merged[key] = {**({} if {"vectors", "config"} & set(merged[key]) else RECIPE[key]), **merged[key]}
    if merged["teacher"].get("vectors"):
        merged["teacher"].pop("model", None)
        if merged["student"]["model"] == "teacher":
            merged["student"] = {"model": "all-MiniLM-L6-v2", "layers": 3}
    merged.pop("variants", None)
    recipes.recipe_from(merged, None, "a page")
    for stage in tree.get("stages", []):
        assert set(stage) == {"name", "set"}
