"""The layout of `--help`: verbs in groups, summaries in full, an example for each verb. Plain text, so that it is readable in a pipe.

Typer's own groups of verbs need its rich output, which takes longer to import than everything else in `--help`.
"""

from __future__ import annotations

from typing import Any

from typer.core import TyperGroup

GROUPS = {
    "Start": ("quickstart", "run", "plan", "recipes"),
    "Teachers and data": ("cache", "finetune", "align"),
    "Measure": ("evaluate", "compare", "speed", "sharpness"),
    "Models": ("transplant", "export"),
    "Experimental": ("causal",),
}
EVERYWHERE = frozenset({"--quiet", "--verbose", "--debug"})  # options that may be at any position of the command line
_WHOLE = 10_000  # characters of a summary: typer shortens longer ones


def example(*commands: str) -> str:
    """The end of a verb's help: commands to try."""
    title = "Examples" if len(commands) > 1 else "Example"
    lines = "\n".join(f"  {command}" for command in commands)
    return f"{title}:\n\n\b\n{lines}"  # \b: these lines are not wrapped


class Listed(TyperGroup):
    """A group of verbs whose help lists them with whole summaries."""

    groups: dict[str, tuple[str, ...]] = {}  # noqa: RUF012 - a constant of the class

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Find the verb. In shell completion the line still has the options of EVERYWHERE."""
        if ctx.resilient_parsing:
            args = [text for text in args if text not in EVERYWHERE]
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write the list of verbs: by `groups`, then those that are in none."""
        grouped = {name for names in self.groups.values() for name in names}
        rest = tuple(name for name in self.list_commands(ctx) if name not in grouped)
        longest = max(map(len, self.commands))
        for title, names in {**self.groups, "Commands": rest}.items():
            rows = [
                (name.ljust(longest), self.commands[name].get_short_help_str(_WHOLE))
                for name in names
                if name in self.commands
            ]
            if rows:
                with formatter.section(title):
                    formatter.write_dl(rows)


class Grouped(Listed):
    """All verbs, by GROUPS."""

    groups = GROUPS
