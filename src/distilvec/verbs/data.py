"""`distilvec data`: list and download the public data that the built-in recipes read."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from distilvec.cli.layout import Listed, example
from distilvec.cli.options import App, JsonFile, argument, check_outputs, option
from distilvec.cli.output import write_result
from distilvec.core.errors import about
from distilvec.core.files import check_output_folder

data_app = App(
    cls=Listed,
    no_args_is_help=True,
    help="List and download the data of the built-in recipes.",
    epilog=example("data", "list", "get banking77"),
)
Names = Annotated[list[str], argument("Names of data sets (see `distilvec data list`).")]
DataFolder = Annotated[
    Path | None, option("The data folder; $DISTILVEC_DATA by default, else `data` in the current folder.")
]


@data_app.command("list", epilog=example("data list", ""))
def list_data(json_file: JsonFile = None) -> None:
    """List the data sets: size, licence, state."""
    check_outputs([("--json", json_file)])

    from distilvec.data.public_table import data_sets, present

    content = [
        {
            "name": name,
            "about": entry.about,
            "licence": entry.licence,
            "megabytes": entry.size,
            "present": present(entry),
            "by_hand": bool(entry.manual),
        }
        for name, entry in data_sets().items()
    ]
    write_result(json_file, content)
    for name, entry in data_sets().items():
        state = "by hand" if entry.manual else f"{entry.size:g} MB"
        if present(entry):
            state = "present"
        print(f"{name:27} {state:8} {entry.about}")
        print(f"{'':27} {'':8} licence: {entry.licence}")


@data_app.command("get", epilog=example("data get", "banking77 stsb", "english-text --out /disk/data"))
def get_data(
    names: Names,
    out: DataFolder = None,
    again: Annotated[bool, option("Download again even if the files exist.", "--again")] = False,
) -> None:
    """Download data sets into the data folder.

    The same command continues. Licences are shown first, and stored in LICENCES.json in the data folder.
    """
    from distilvec.config.paths import data_folder
    from distilvec.data.public_download import get
    from distilvec.data.public_table import data_set

    folder = out or data_folder()
    with about("--out", folder):
        check_output_folder(folder)
    for name in names:
        data_set(name)  # a wrong name is reported before the first download
    for name in names:
        for path in get(name, folder, again):
            print(path)
