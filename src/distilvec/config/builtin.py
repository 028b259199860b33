"""Where the built-in recipes are: inside the installed package, or beside `src/` in a checkout."""

from __future__ import annotations

from pathlib import Path

from distilvec.config.base import excerpt
from distilvec.config.messages import unknown
from distilvec.core.errors import DistilvecError, explained


def recipe_folder() -> Path:
    """The folder of the built-in recipes."""
    installed = Path(__file__).parents[1] / "recipes"
    return installed if installed.is_dir() else Path(__file__).parents[3] / "recipes"


def recipe_files() -> list[Path]:
    """The built-in recipes, sorted by name, then the baselines, then the sweeps."""
    folder = recipe_folder()
    return [path for part in (folder, folder / "baselines", folder / "sweeps") for path in sorted(part.glob("*.yaml"))]


def recipe_file(name: str) -> Path:
    """A recipe by path or built-in name; DistilvecError with the nearest name otherwise."""
    with explained("recipe", Path(excerpt(name))):
        if name.endswith((".yaml", ".yml")) or Path(name).is_file():
            path = Path(name)
            builtin = recipe_folder().joinpath(*path.parts[1:])
            return builtin if not path.exists() and path.parts[0] == "recipes" and builtin.exists() else path
    known = {path.stem: path for path in recipe_files()}
    if name not in known:
        raise DistilvecError(
            f"[recipe] no recipe {excerpt(name)}{unknown(name, known)} Give one of these, or a path ending in .yaml."
        )
    return known[name]
