"""The command `distilvec report`."""

from __future__ import annotations

import webbrowser
from pathlib import Path
from typing import Annotated

from distilvec.cli.options import argument, option
from distilvec.core.errors import DistilvecError
from distilvec.core.extras import require_extra
from distilvec.core.run_folder import RunFolder


def report(
    run: Annotated[Path, argument("The folder of a finished run.")],
    open_page: Annotated[bool, option("Open the page in a browser.", "--open")] = False,
) -> None:
    """Write the page of a run again.

    It is made from report.json. The command prints its path.
    """
    require_extra("report", "report")

    from distilvec.cli.terminal import print_result
    from distilvec.report.write import refresh_report

    page = refresh_report(RunFolder(run))
    if page is None:
        raise DistilvecError(f"{run} holds no report.", "Name the folder of a finished run.", key="RUN")
    print_result(str(page), link=page)
    if open_page and not webbrowser.open(page.resolve().as_uri()):
        raise DistilvecError("no browser was found.", f"Open {page} yourself.", key="--open")
