"""The command `distilvec help`."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from distilvec.cli.options import argument


def help(
    ctx: typer.Context,
    verb: Annotated[list[str] | None, argument("The verb, such as distill, or cache fill.")] = None,
) -> None:
    """Show the help of a verb, as VERB -h does."""
    context: Any = ctx.parent
    for word in verb or ():
        command = context.command
        if not hasattr(command, "commands"):
            context.fail(f"'{command.name}' has no verbs of its own; found '{word}'.")
        name, subcommand, _ = command.resolve_command(context, [word])
        context = subcommand.context_class(subcommand, info_name=name, parent=context)
    print(context.get_help())
