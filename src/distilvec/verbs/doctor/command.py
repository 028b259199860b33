"""The command `distilvec doctor`."""

from __future__ import annotations

import typer

from distilvec.cli.options import JsonFile, check_outputs
from distilvec.cli.output import write_result


def doctor(json_file: JsonFile = None) -> None:
    """Check this machine for what a run needs.

    Versions, processor, GPU, memory, disk, cache, optional packages, the hub. Exit status 1 if something that every run
    needs is broken. What is only noted costs speed, or a feature.
    """
    check_outputs([("--json", json_file)])

    from dataclasses import asdict

    from distilvec.cli.terminal import print_result, show_table
    from distilvec.verbs.doctor.checks import diagnose

    checks = diagnose()
    broken = [check for check in checks if check.state == "broken"]
    write_result(json_file, {"healthy": not broken, "checks": [asdict(check) for check in checks]})

    show_table(["", "this machine"], [[check.name, check.value] for check in checks])
    noted = [check for check in checks if check.state == "note"]
    if noted:
        print_result()
    for check in noted:
        print_result(f"{check.name}: {check.fix}")
    for check in broken:
        print_result(f"distilvec: [{check.name}] {check.value}. {check.fix}", error=True)
    if broken:
        raise typer.Exit(1)
