"""The layout of `--help`: nine verbs with whole summaries, the names of the others, options in panels, an example for
each verb; colours on a terminal alone. The classes of commands that show it, which refuse an option given twice.

Typer's own panels need its rich output, which takes longer to import than everything else in `--help`.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from typing import Any

from typer.core import TyperCommand, TyperGroup

from distilvec.cli.output import BOLD, CYAN, coloured
from distilvec.core.errors import set_by

MORE = "More commands"  # the title of those that the list of verbs has by name alone
GROUPS = {  # the verbs of each group, with the arguments of an example
    "Commands": {
        "quickstart": "--out runs/first",
        "distill": "all-MiniLM-L6-v2 documents.txt --size 5M",
        "classify": "intents.csv --text utterance --label intent",
        "run": "talas --variant local train.epochs=2",
        "check": "runs/products/student postgresql://me@db/shop/products --column text=content",
        "evaluate": "runs/first/student --suite suite.yaml --teacher all-MiniLM-L6-v2",
        "compare": "runs/first runs/second --out comparison.html",
        "export": "runs/first/student --to onnx",
        "serve": "runs/first/student --port 8000",
    },
    MORE: {
        "plan": "talas --variant local",
        "runs": "runs",
        "report": "runs/first --open",
        "demo": "runs/first --open",
        "push": "runs/first/student OWNER/NAME --dry-run",
        "speed": "all-MiniLM-L6-v2 runs/first/student",
        "finetune": "BAAI/bge-m3 --task intents.csv --type classification --out runs/teacher",
        "transplant": "BAAI/bge-m3 --texts texts.txt --vocab-size 16000 --out small-vocabulary",
        "align": "--teacher BAAI/bge-m3 --student bert-base-uncased --texts texts.txt",
        "cache": "talas --variant local",
        "corpus": "synthesize words.txt --model gpt-4o-mini --key-variable OPENAI_API_KEY --out vocabulary.json",
        "data": "get banking77",
        "recipes": "",
        "doctor": "",
        "help": "distill",
    },
}
PANELS = {  # the options of a verb in parts, those that are used most first; the others follow
    "distill": {
        "Student": "size layers student dims language built_in_prompt",
        "Training and test": "minutes epochs test queries pairs method",
        "Run": "out dry_run restart json_file",
        "Index or API": "columns where limit similarity repeats made_by query_prompt document_prompt refresh api_model",
    },
    "classify": {
        "Labels": "text label test test_size",
        "Models": "teacher student size layers",
        "Training": "epochs seed",
        "Run": "out dry_run restart json_file",
    },
    "check": {
        "Queries": "queries made_by at_least test sample",
        "Index": "columns texts where limit similarity repeats refresh",
    },
}
OTHER_WORDS = {  # words that users of other tools type, with our verbs
    "train": ("distill", "run"),
    "fit": ("distill", "run"),
    "eval": ("evaluate",),
    "test": ("evaluate",),
    "score": ("evaluate",),
    "benchmark": ("evaluate", "speed"),
    "convert": ("export",),
    "quantize": ("export",),
    "upload": ("push",),
    "publish": ("push",),
    "download": ("data",),
    "fetch": ("data",),
    "embed": ("serve",),
    "prune": ("transplant",),
    "tokenizer": ("transplant",),
    "precompute": ("cache",),
    "config": ("recipes",),
}
EVERYWHERE = frozenset({"--quiet", "--verbose", "--debug"})  # options at any position of the command line
TYPES = {  # of Python, in the words of a command line
    "str": "TEXT", "list[str]": "TEXT", "int": "N", "int range": "N", "float": "NUMBER", "float range": "NUMBER",
    "path": "PATH", "list[path]": "PATH", "list[Path]": "PATH",
}  # fmt: skip
_TYPE = re.compile(r"<(" + "|".join(re.escape(name) for name in TYPES) + r")>")
_WHOLE = 10_000  # characters of a summary: typer shortens longer ones


def example(verb: str, *arguments: str) -> str:
    """Build the end of a verb's help: example commands with these arguments, or those of GROUPS."""
    examples = list(arguments) or [verbs[verb] for verbs in GROUPS.values() if verb in verbs]
    lines = "\n".join(f"  distilvec {verb} {text}".rstrip() for text in examples)
    title = "Example" if len(examples) == 1 else "Examples"
    return f"{title}:\n\n\b\n{lines}"  # \b: these lines are not wrapped


_Context: Any = TyperGroup.context_class  # click's, or typer's copy of it
_Formatter: Any = _Context.formatter_class


def plain_name(name: str) -> str:
    """Return an argument as "TEACHER" and an option as "--layers N", instead of the names and types of Python."""
    if _TYPE.search(name) and not name.startswith("-"):
        return _TYPE.sub("", name).strip().upper()
    return _TYPE.sub(lambda match: TYPES[match[1]], name)


class ColouredFormatter(_Formatter):
    """Writes titles bold, the names of verbs and options in colour, and no types of Python."""

    def write_usage(self, prog: str, args: str = "", *arguments: Any, **options: Any) -> None:
        """Write the usage with the arguments in capitals."""
        words = re.sub(r"\{(\w+)\}", lambda match: match[1].upper(), args)
        words = re.sub(r"\[(\w+)\]", lambda match: match[0].upper(), words)
        super().write_usage(prog, words, *arguments, **options)

    def write_heading(self, heading: str) -> None:
        """Write the title of a part."""
        super().write_heading(coloured(heading, BOLD, sys.stdout))

    def write_dl(self, rows: Sequence[tuple[str, str]], *arguments: Any, **options: Any) -> None:
        """Write names with their explanations."""
        explained_names = []
        for name, text in rows:
            explanation = re.sub(r"\[x>=(\S+)\]", r"[\1 or more]", text)
            explained_names.append((coloured(plain_name(name), CYAN, sys.stdout), explanation))
        super().write_dl(explained_names, *arguments, **options)


class ColouredContext(_Context):
    """The context of a verb whose help is coloured."""

    formatter_class = ColouredFormatter


class OptionsOnce:
    """Refuses an option given twice: of an option with one value, typer would take the last."""

    def parse_args(self: Any, ctx: Any, args: list[str]) -> list[str]:
        """Read the command line."""
        given_names: set[str] = set()
        _, _, parameters = self.make_parser(ctx).parse_args(args=list(args))
        for parameter in parameters:
            is_repeated = parameter.name in given_names and parameter.param_type_name == "option"
            if is_repeated and not parameter.multiple and not ctx.resilient_parsing:  # resilient: completes a word
                ctx.fail(f"Option '{parameter.opts[0]}' is given twice. Give it once.")
            given_names.add(parameter.name)
        arguments: list[str] = super().parse_args(ctx, args)  # type: ignore[misc]
        return arguments


class Command(OptionsOnce, TyperCommand):
    """A verb. Errors in it name its options, as --size, where they would name an argument, as size."""

    def invoke(self, ctx: Any) -> Any:
        """Call the verb's function."""
        with set_by({parameter.name: _name_in_errors(parameter) for parameter in self.params}):
            return super().invoke(ctx)

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write the arguments, then the options by PANELS."""
        parameters: dict[str, Any] = {parameter.name: parameter for parameter in self.get_params(ctx)}
        arguments = [name for name, parameter in parameters.items() if parameter.param_type_name == "argument"]
        parts = {title: names.split() for title, names in PANELS.get(self.name or "", {}).items()}
        parts = {"Arguments": arguments, **parts}
        listed = {name for names in parts.values() for name in names}
        parts["Other options" if len(parts) > 1 else "Options"] = [name for name in parameters if name not in listed]
        for title, names in parts.items():
            lines = [line for name in names if (line := parameters[name].get_help_record(ctx)) is not None]
            if lines:
                with formatter.section(title):
                    formatter.write_dl(lines)


def _name_in_errors(parameter: Any) -> str:
    """Return "--size" for an option, "TEACHER" for an argument that the help calls so, its name for others."""
    if parameter.param_type_name == "option":
        return max(parameter.opts, key=len)
    word = re.match(r"\[?([A-Z]+)\b", parameter.metavar or "")
    return word[1] if word else parameter.name


class Listed(OptionsOnce, TyperGroup):
    """A group of verbs whose help lists them with whole summaries."""

    groups: dict[str, dict[str, str]] = {}  # noqa: RUF012 - a constant of the class
    context_class = ColouredContext

    def list_commands(self, ctx: Any) -> list[str]:
        """Return the names of the verbs, without importing them."""
        return list(self.commands)

    def make_context(self, *arguments: Any, **settings: Any) -> Any:
        """Let -h mean --help; verbs inherit it."""
        return super().make_context(*arguments, **{"help_option_names": ["-h", "--help"], **settings})

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Find the verb. For a word that other tools use for it, the error names ours."""
        verbs = [verb for verb in OTHER_WORDS.get(args[0], ()) if verb in self.commands]
        if args[0] not in self.commands and verbs and not ctx.resilient_parsing:
            ctx.fail(f"No such command '{args[0]}'. Did you mean {' or '.join(map(repr, verbs))}?")
        name, command, rest = super().resolve_command(ctx, args)
        if command is not None:
            command.context_class = ColouredContext
        return name, command, rest

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write the list of verbs by `groups`, those of MORE by their names alone; without groups in one list."""
        for title, names in (self.groups or {"Commands": dict.fromkeys(self.list_commands(ctx), "")}).items():
            if title == MORE:
                formatter.write_paragraph()
                formatter.write_text(f"{MORE}: {', '.join(names)}")
                continue
            longest = max(map(len, names))
            with formatter.section(title):
                summaries = [(name.ljust(longest), self.commands[name].get_short_help_str(_WHOLE)) for name in names]
                formatter.write_dl(summaries)
