"""Arguments that several verbs share, and the recipe they name."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Optional

import typer

from distilvec.cli.completion import recipe_keys, recipe_names, variant_names

RecipeFile = Annotated[
    str,
    typer.Argument(
        help="A recipe file, or the name of a built-in one (see `distilvec recipes`).", autocompletion=recipe_names
    ),
]
Overrides = Annotated[
    Optional[list[str]],
    typer.Argument(
        help="Changes to the recipe, such as train.epochs=3", metavar="KEY=VALUE", autocompletion=recipe_keys
    ),
]
Variant = Annotated[Optional[str], typer.Option(help="One of the recipe's variants.", autocompletion=variant_names)]
Out = Annotated[Optional[Path], typer.Option(help="The run folder; <output>/<recipe's name> by default.")]
Restart = Annotated[
    bool, typer.Option("--restart", help="Move the run that is in the folder aside (<name>.old-<time>) and start over.")
]


def load_recipe(name: str, variant: str | None, overrides: list[str] | None) -> Any:
    """A recipe by file or built-in name, with its variant and changes applied."""
    from distilvec.config.builtin import recipe_file
    from distilvec.config.recipe import load

    return load(recipe_file(name), variant, overrides)
