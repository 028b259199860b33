"""The command `distilvec quickstart`: `distill` on built-in texts, with the settings of recipes/quickstart.yaml."""

from __future__ import annotations

import webbrowser
from pathlib import Path
from typing import Annotated

from distilvec.cli.options import JsonFile, Overrides, Restart, changed_files, check_outputs, option
from distilvec.cli.output import write_result
from distilvec.core.errors import DistilvecError

OUT = Path("runs/quickstart")
SETTINGS = ("description", "train", "evaluation")  # sections of the recipe that `distill` would choose otherwise


def quickstart(
    overrides: Overrides = None,
    out: Annotated[Path, option("The run folder.")] = OUT,
    restart: Restart = False,
    open_page: Annotated[bool, option("Open the page in a browser at the end.", "--open")] = False,
    json_file: JsonFile = None,
) -> None:
    """Distil a first student on built-in texts, offline.

    all-MiniLM-L6-v2 (22.7M parameters) becomes a student of 5M on the docstrings of Python's library, in minutes. It is
    `distilvec distill all-MiniLM-L6-v2 python-docstrings --size 5M` with a short training and a test.
    """
    from distilvec.config.builtin import recipe_file
    from distilvec.config.recipe import override, read_overrides, read_tree, stated_sizes
    from distilvec.verbs.distill.names import BUILT_IN

    recipe = read_tree(recipe_file("quickstart"))
    user_changes = read_overrides(overrides or [])
    changes = {name: recipe[name] for name in SETTINGS}
    override(changes, {key: value for key, value in user_changes.items() if key.split(".")[0] in SETTINGS})
    changes["corpus.exclude_evaluation"] = recipe["corpus"]["exclude_evaluation"]
    changes["student.max_length"] = recipe["student"]["max_length"]
    changes |= user_changes
    check_outputs([("--json", json_file)], [recipe_file("quickstart"), *changed_files(changes)])
    # The user, on the size or on what it would decide
    decides_itself = "student.size" in changes or bool(stated_sizes(changes))

    from distilvec.verbs.distill.distill import distill
    from distilvec.verbs.distill.screens import show_end

    run = distill(
        recipe["teacher"]["model"],
        BUILT_IN,
        size=None if decides_itself else recipe["student"]["size"],
        language="en",
        out=out,
        overrides=changes,
        restart=restart,
    )
    if run is None:
        return
    write_result(json_file, run.to_json())
    show_end(run)
    if open_page and (run.page is None or not webbrowser.open(run.page.resolve().as_uri())):
        raise DistilvecError("no page or no browser was found.", f"Look into {run.folder}.", key="--open")
