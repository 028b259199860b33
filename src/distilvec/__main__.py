"""The command line: `python -m distilvec`, and the command `distilvec`."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from distilvec.cli.app import app
from distilvec.cli.boundary import run_app


def run_command(arguments: Sequence[str]) -> int:
    """Run one command line and give its exit status; see `boundary.run_app`."""
    return run_app(app, arguments)


def main() -> None:
    """Entry point of the command line."""
    status = run_command(sys.argv[1:])
    if processes := sys.modules.get("distilvec.core.processes"):  # imports torch: only where it was needed
        processes.exit_process(status)
    sys.exit(status)


if __name__ == "__main__":
    main()
