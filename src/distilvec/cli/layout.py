"""The layout of `--help`: verbs in groups, summaries in full, an example for each verb; plain text, readable in a pipe.

Typer's own groups of verbs need its rich output, which takes longer to import than everything else in `--help`.
"""

from __future__ import annotations

from typing import Any

from typer.core import TyperGroup

from distilvec.cli.options import with_config_options

GROUPS = {  # the verbs of each group, with the arguments of an example
    "Start": {
        "quickstart": "--out runs/first",
        "run": "talas --variant local train.epochs=2",
        "plan": "talas --variant local",
        "recipes": "",
        "runs": "runs",
        "report": "runs/first --open",
        "doctor": "",
    },
    "Your index": {"index": "distill table.parquet --student MODEL --layers 3 --out runs/queries"},
    "Teachers and data": {
        "data": "get banking77",
        "corpus": "synthesize words.txt --model gpt-4o-mini --key-variable OPENAI_API_KEY --out vocabulary.json",
        "cache": "talas --variant local",
        "finetune": "BAAI/bge-m3 --task intents.csv --type classification --out runs/teacher",
        "align": "--teacher BAAI/bge-m3 --student bert-base-uncased --texts texts.txt",
    },
    "Measure": {
        "evaluate": "runs/first/student --suite suite.yaml --teacher all-MiniLM-L6-v2",
        "compare": "runs/first runs/second --out comparison.html",
        "speed": "all-MiniLM-L6-v2 runs/first/student",
    },
    "Models": {
        "transplant": "BAAI/bge-m3 --texts texts.txt --vocab-size 16000 --out small-vocabulary",
        "export": "runs/first/student --to onnx",
        "demo": "runs/first --out demo",
        "push": "runs/first/student OWNER/NAME --license apache-2.0",
        "serve": "runs/first/student --port 8000",
    },
}
EVERYWHERE = frozenset({"--quiet", "--verbose", "--debug"})  # options at any position of the command line
_WHOLE = 10_000  # characters of a summary: typer shortens longer ones


def example(verb: str, *arguments: str) -> str:
    """The end of a verb's help: commands to try, by their arguments; those of GROUPS by default."""
    given = arguments or [next(verbs[verb] for verbs in GROUPS.values() if verb in verbs)]
    lines = "\n".join(f"  distilvec {verb} {text}".rstrip() for text in given)
    return f"Example{'s' * (len(given) > 1)}:\n\n\b\n{lines}"  # \b: these lines are not wrapped


class Listed(TyperGroup):
    """A group of verbs whose help lists them with whole summaries."""

    groups: dict[str, dict[str, str]] = {}  # noqa: RUF012 - a constant of the class

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """The verb, with the options that it makes of config fields."""
        return with_config_options(super().get_command(ctx, cmd_name))

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write the list of verbs: by `groups`, then those that are in none."""
        grouped = {name for names in self.groups.values() for name in names}
        rest = dict.fromkeys((name for name in self.list_commands(ctx) if name not in grouped), "")
        longest = max(map(len, self.commands))
        for title, names in {**self.groups, "Commands": rest}.items():
            found = [(name, self.commands[name]) for name in names if name in self.commands]
            if found:
                with formatter.section(title):
                    formatter.write_dl([(name.ljust(longest), verb.get_short_help_str(_WHOLE)) for name, verb in found])


class Grouped(Listed):
    """All verbs, by GROUPS."""

    groups = GROUPS
