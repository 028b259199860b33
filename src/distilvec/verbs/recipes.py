"""The verbs of `distilvec recipes`: list the built-in recipes, show one, copy one, and the schema for editors."""

from __future__ import annotations

import shutil
import textwrap
from pathlib import Path
from typing import Annotated

import typer

from distilvec.cli.layout import Listed, example
from distilvec.cli.options import App, JsonFile, argument, check_outputs, option
from distilvec.cli.output import write_result
from distilvec.core.errors import DistilvecError, about
from distilvec.core.files import check_output_file, write_file

BuiltIn = Annotated[str, argument("The recipe's name.")]


recipes_app = App(cls=Listed, invoke_without_command=True, epilog=example("recipes", "", "copy talas"))


@recipes_app.callback()
def list_recipes(
    ctx: typer.Context,
    every: Annotated[bool, option("Also show variants, and the papers' baselines and sweeps.", "--all")] = False,
    json_file: JsonFile = None,
) -> None:
    """List, show or copy the built-in recipes.

    Without a verb it lists the recipes; `schema` prints the JSON schema for editors.
    """
    if ctx.invoked_subcommand is not None:
        if every or json_file is not None:
            option_name = "--all" if every else "--json"
            raise DistilvecError(
                f"is for the list, not for {ctx.invoked_subcommand}.", "Leave it out.", key=option_name
            )
        return
    from distilvec.config.builtin import FURTHER, recipe_files
    from distilvec.config.recipe import read_tree

    files = recipe_files((".", *FURTHER) if every else (".",))
    check_outputs([("--json", json_file)], files)
    trees = {path: read_tree(path) for path in files}
    content = [
        {
            "name": path.stem,
            "path": str(path),
            "description": tree.get("description", ""),
            "variants": list(tree.get("variants") or ()),
        }
        for path, tree in trees.items()
    ]
    write_result(json_file, content)
    width = max(60, shutil.get_terminal_size().columns)
    indent = 2 + max(len(path.stem) for path in trees)
    for path, tree in trees.items():
        line = f"{path.stem:{indent}}{tree.get('description', '')}"
        print(textwrap.fill(line, width, subsequent_indent=indent * " "))
        if every and tree.get("variants"):
            variants = f"{'':{indent}}variants: {', '.join(tree['variants'])}"
            print(textwrap.fill(variants, width, subsequent_indent=indent * " ", break_on_hyphens=False))
    if not every:
        further = len(recipe_files(FURTHER))
        print(f"\nVariants, and {further} baselines and sweeps of papers: distilvec recipes --all")


@recipes_app.command("show", epilog=example("recipes show", "redact"))
def show_recipe(name: BuiltIn) -> None:
    """Print a recipe."""
    from distilvec.config.builtin import recipe_file

    path = recipe_file(name)
    with about("recipe", path):
        print(path.read_text(encoding="utf-8"), end="")


@recipes_app.command("copy", epilog=example("recipes copy", "talas --out mine.yaml"))
def copy_recipe(
    name: BuiltIn,
    out: Annotated[Path | None, option("The new file; NAME.yaml in the current folder by default.")] = None,
) -> None:
    """Write a recipe to a file of your own.

    Relative paths become absolute, so that they name the same files. Paths of missing files stay, with a comment.
    """
    from distilvec.config.builtin import moved_text, recipe_file

    path = recipe_file(name)
    target = out or Path(path.name)
    with about("--out", target):
        check_output_file(target)
    if target.exists():
        raise DistilvecError(f"{target} exists already.", "Choose another file with --out.", key="--out")
    with about("--out", target):
        target.parent.mkdir(parents=True, exist_ok=True)
        write_file(target, moved_text(path))
    print(target)


@recipes_app.command("schema", epilog=example("recipes schema", "> recipe.schema.json"))
def print_schema() -> None:
    """Print the JSON schema of recipes, for editors.

    They complete and check keys with it. Begin a recipe with this line:

    \b
    # yaml-language-server: $schema=recipe.schema.json
    """
    import json

    from distilvec.config.builtin import recipe_schema

    print(json.dumps(recipe_schema(), indent=1, ensure_ascii=False))
