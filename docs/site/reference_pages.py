"""Pages of the reference, made from the schema of recipes, the command line, docstrings, pyproject.toml and recipes."""

from __future__ import annotations

import inspect
import json
import re
import tomllib
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from importlib import import_module
from typing import Annotated, Any, get_args, get_origin, get_type_hints

import typer
import yaml
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

import distilvec
from benchmarks.markdown import markdown_table
from distilvec import __main__ as program
from distilvec.cli.layout import GROUPS
from distilvec.config.base import Section
from distilvec.config.builtin import recipe_files, recipe_folder
from distilvec.config.recipe import read_tree
from distilvec.config.schema import Recipe
from distilvec.core.options import in_words
from docs.site.links import ROOT

JSON_VALUES = {  # of annotations whose names are no class of a table
    "ModelScores": "dict[str, list[Score]]",
    "Changes": "dict[str, [low, high, p]]",
    "MetricsLine": "dict[str, float | str]",
    "None": "null",
}
PARTS = re.compile(r"\n(Args|Attributes|Returns|Errors|Note):")


def pages() -> dict[str, str]:
    """Return every page of the reference that is made, by address."""
    return {
        "reference/recipe.md": recipe_keys(),
        "reference/cli.md": commands(),
        "reference/python.md": functions(),
        "reference/extras.md": extras(),
        "reference/cache.md": cache_format(),
        "reference/recipes.md": recipes(),
        "reference/report_json.md": report_json(),
    }


def table(head: list[str], rows: list[list[str]]) -> str:
    """Return a Markdown table; cells have no line breaks, no bare pipes and no HTML. Numbers are on the right."""
    columns = ""
    for number in range(len(head)):
        is_numeric = all(re.match(r"[\d.,± *-]*$", row[number]) for row in rows)
        columns += "r" if is_numeric else "l"
    return markdown_table(head, [[cell_text(cell) for cell in row] for row in rows], columns)


def cell_text(text: str) -> str:
    """Return a text for a cell; pages that it names become links."""
    text = " ".join(text.replace("|", "\\|").split())
    text = "".join(part if part.startswith("`") else part.replace("<", "&lt;") for part in re.split(r"(`[^`]*`)", text))
    return re.sub(r"(?<![\[(`])docs/([\w/]+)\.md", r"[\1](../\1.md)", text)


def flow(value: Any) -> str:
    """Return a value as YAML has it on one line."""
    text = yaml.safe_dump(value, default_flow_style=True, sort_keys=False, width=10_000)
    return text.removesuffix("...\n").strip()


# -- recipe keys -------------------------------------------------------------------------------------------------------


def recipe_keys() -> str:
    """Return the page with every key of a recipe."""
    parts = [
        "# Recipe keys\n",
        "`distilvec recipes schema > recipe.schema.json` writes the same as a JSON schema, with which editors complete "
        "and check keys. Keys are given in a recipe, or on the command line as `train.epochs=3`.\n",
        "`variants` (named changes of the recipe) is a key of the file alone: dotted keys with their values, chosen by "
        "`--variant`.\n",
    ]
    for path, section in sections(Recipe, ""):
        parts.append(f"## `{path}`\n" if path else "## The recipe\n")
        parts.append(f"{inspect.getdoc(section)}\n")
        rows = [
            [f"`{name}`", linked(info, f"{path}.{name}"), default(info), meaning(info)]
            for name, info in section.model_fields.items()
        ]
        parts.append(table(["key", "value", "default", "meaning"], rows) + "\n")
    return "\n".join(parts)


def sections(section: type[Section], path: str) -> Iterator[tuple[str, type[Section]]]:
    """Yield a section and those below it, each with its dotted path; a list's path ends with its number 0."""
    yield path, section
    for name, info in section.model_fields.items():
        if name == "more_teachers":
            continue
        for inner, number in inner_sections(info.annotation):
            yield from sections(inner, f"{path}.{name}".strip(".") + number)


def inner_sections(annotation: Any, number: str = "") -> Iterator[tuple[type[Section], str]]:
    """Yield the sections in an annotation, and whether they are in a list."""
    if inspect.isclass(annotation) and issubclass(annotation, Section):
        yield annotation, number
    for part in get_args(annotation):
        yield from inner_sections(part, ".0" if get_origin(annotation) is list else number)


def kind(info: FieldInfo) -> str:
    """Return the values that a key takes, in words."""
    annotation: Any = Annotated[(info.annotation, *info.metadata)] if info.metadata else info.annotation
    text = in_words(annotation)
    return words(re.sub(r"\b[A-Z]\w*Section\b", "a section", text))


def words(text: str) -> str:
    """Return the words for an annotation in the form of a table."""
    text = re.sub(r"\s+", " ", text).replace(" or null", "").replace("Any", "any value")
    text = re.sub(r"of at least (\S+) and of at most (\S+)", r"from \1 to \2", re.sub(r"\bPath\b", "a path", text))
    return text.replace("above 0 and of at most", "from 1 to").replace("a number above 0", "above 0").strip()


def meaning(info: FieldInfo) -> str:
    """Return what a key is for: its description, or the first sentence about its section."""
    inner = next((section for section, _ in inner_sections(info.annotation)), None)
    return info.description or (str(inspect.getdoc(inner)).split(". ")[0].split(".\n")[0].rstrip(".") if inner else "")


def linked(info: FieldInfo, path: str) -> str:
    """Return the values of a key; a section leads to its own table."""
    number = next((number for _, number in inner_sections(info.annotation)), "")
    anchor = "teacher" if path == ".more_teachers" else f"{path}{number}".replace(".", "")
    return kind(info).replace("a section", f"[a section](#{anchor})")


def default(info: FieldInfo) -> str:
    """Return a key's default as YAML has it; empty for none."""
    value = info.get_default(call_default_factory=True, validated_data={})
    if value is PydanticUndefined:
        return "required"
    if isinstance(value, Section) or value is None:
        return ""
    text = json.dumps(value, default=str).strip('"')
    if not text:
        return ""
    return "all" if len(text) > 60 else f"`{text}`"


# -- command line ------------------------------------------------------------------------------------------------------


def commands() -> str:
    """Return the page with every command, by group."""
    root: Any = typer.main.get_command(program.app)  # type: ignore[attr-defined]
    context = root.context_class(root, info_name="distilvec")
    parts = [
        "# Command line\n",
        "`distilvec COMMAND --help` shows the same. `--quiet` (errors and results only), `--verbose` (progress as "
        "lines) and `--debug` (tracebacks) may be anywhere in the command.\n",
    ]
    for title, verbs in GROUPS.items():
        parts.append(f"## {title}\n")
        for verb in verbs:
            parts += command(root.get_command(context, verb), f"distilvec {verb}", context)
    return "\n".join(parts)


def command(found: Any, name: str, context: Any) -> Iterator[str]:
    """Yield the parts of a command, and those of the commands below it."""
    own = context.__class__(found, info_name=name)
    yield f"### `{name}`\n"
    about, *lines = inspect.cleandoc(found.help or "").split("\b\n")
    yield about.strip() + "\n"
    for text in (*lines, f"{name} {' '.join(found.collect_usage_pieces(own))}"):
        yield f"```text\n{text.strip()}\n```\n"
    rows = [parameter(part) for part in found.params if not part.hidden and part.name != "help"]
    if rows:
        yield table(["option", "default", "meaning"], rows) + "\n"
    if example := (found.epilog or "").partition("\b\n")[2]:
        yield f"```text\n{inspect.cleandoc(example)}\n```\n"
    for inner in getattr(found, "commands", {}):
        yield from command(found.get_command(own, inner), f"{name} {inner}", own)


def parameter(part: Any) -> list[str]:
    """Return the row of an option or argument."""
    names = part.opts if part.param_type_name == "option" else [part.metavar or part.name.upper()]
    value = "" if part.default in (None, False) or callable(part.default) else f"`{part.default}`"
    return [", ".join(f"`{name}`" for name in names), "required" if part.required else value, part.help or ""]


# -- Python ------------------------------------------------------------------------------------------------------------


def functions() -> str:
    """Return the page with the public functions and classes."""
    names = dir(distilvec)
    ordered = [name for name in names if name[0].islower()] + [name for name in names if name[0].isupper()]
    about = inspect.getdoc(import_module("distilvec.api")) or ""
    parts = ["# Python\n", "```python\nimport distilvec\n```\n", about.partition("\n\n")[2] + "\n"]
    for name in ordered:
        found = getattr(distilvec, name)
        parts.append(f"## `{name}`\n\n```text\n{signature(name, found)}\n```\n\n{docstring(found)}\n")
        if inspect.isclass(found):
            for method, inner in vars(found).items():
                if not method.startswith("_") and inspect.isfunction(inner) and inner.__doc__:
                    parts.append(
                        f"### `{name}.{method}`\n\n```text\n{signature(method, inner)}\n```\n\n{docstring(inner)}\n"
                    )
    return "\n".join(parts)


def signature(name: str, found: Any) -> str:
    """Return a signature as it is written, one parameter a line where it is long."""
    known = inspect.signature(found)
    lines: list[str] = []
    star = False
    for one in known.parameters.values():
        if one.kind is one.KEYWORD_ONLY and not star:
            lines, star = [*lines, "*"], True
        prefix = "*" if one.kind is one.VAR_POSITIONAL else "**" if one.kind is one.VAR_KEYWORD else ""
        annotation = "" if one.annotation is one.empty else f": {one.annotation}"
        value = "" if one.default is one.empty else f" = {one.default!r}"
        lines.append(f"{prefix}{one.name}{annotation}{value}")
    returned = "" if known.return_annotation is known.empty else f" -> {known.return_annotation}"
    short = f"{name}({', '.join(lines)}){returned}"
    return short if len(short) <= 90 else f"{name}(\n    " + ",\n    ".join(lines) + f",\n){returned}"


def docstring(found: Any) -> str:
    """Return a docstring as Markdown: its text, arguments as a table, other parts as paragraphs."""
    text, *parts = PARTS.split("\n" + (inspect.getdoc(found) or ""))
    made = [text.strip()]
    for title, body in zip(parts[::2], parts[1::2], strict=True):
        if title in ("Args", "Attributes"):
            made.append(table(["argument", "meaning"], [[f"`{name}`", about] for name, about in arguments(body)]))
            continue
        made.append(f"**{title}:** {' '.join(body.split())}")
    return "\n\n".join(part for part in made if part)


def arguments(body: str) -> list[tuple[str, str]]:
    """Return (name, meaning) of the `Args:` of a docstring."""
    found = re.split(r"\n {4}(?=[\w, ]+: )", "\n" + body.strip("\n"))
    pairs = [part.partition(": ") for part in found if part.strip()]
    return [(name.strip(), " ".join(about.split())) for name, _, about in pairs]


# -- the rest ----------------------------------------------------------------------------------------------------------


def extras() -> str:
    """Return the page with the optional packages."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    uses = {
        "quickstart": "`distilvec quickstart`: all-MiniLM-L6-v2 as a package, and the report",
        "report": "figures of the report", "mteb": "`evaluate --mteb`, `--benchmark`",
        "onnx": "`export --to onnx`, `onnx-fp16`, `onnx-int8`",
        "openvino": "`export --to openvino`",
        "datasets": "data sets of the hub as texts", "dataframe": "`scores.to_dataframe()`",
        "api": "`teacher.api`", "serve": "`distilvec serve`", "finetune": "`finetune` with adapters, `student.lora`",
        "tensorboard": "`train.trackers: [tensorboard]`",
        "trackio": "`train.trackers: [trackio]`", "wandb": "`train.trackers: [wandb]`",
        "sentencepiece": "`transplant --tokenizer FILE.model`", "duckdb": "tables of DuckDB", "faiss": "FAISS indexes",
        "lancedb": "LanceDB tables",
        "qdrant": "Qdrant collections", "usearch": "indexes of usearch", "chroma": "collections of Chroma",
        "pgvector": "PostgreSQL with pgvector",
        "ray": "`cache --ray`", "s3": "addresses with `s3://`", "gs": "addresses with `gs://`",
        "quantize": "`teacher.quantize`",
        "all": "most of these at once",
    }  # fmt: skip
    optional = project["optional-dependencies"]
    assert set(uses) == set(optional), f"uses of extras: {set(uses) ^ set(optional)}"
    rows = [[f"`{name}`", uses[name], ", ".join(f"`{package}`" for package in optional[name])] for name in optional]
    rows[-1][2] = rows[-1][2].replace(",", ", ")  # a line that can break
    needed = ", ".join(f"`{name}`" for name in project["dependencies"])
    return (
        "# Extras\n\nA command that needs an extra names it, with the line that installs it, before any work.\n\n"
        "```text\npip install -e '.[report,onnx]'\n```\n\n"
        + table(["extra", "for", "packages"], rows)
        + f"\n\nAlways installed: {needed}. Python {project['requires-python']}.\n"
    )


def cache_format() -> str:
    """Return the page on the cache's files and what they depend on."""
    from distilvec.teachers.cache import manifest, store

    about, _, rest = (inspect.getdoc(store) or "").partition("\n\n")
    files, _, notes = rest.partition("\n\n")
    fields = [[f"`{name}`", str(field.type)] for name, field in manifest.Manifest.__dataclass_fields__.items()]
    return (
        f"# Cache format\n\n{about}\n\n"
        "A cache is a folder below the cache folder (`$DISTILVEC_CACHE`, else "
        f"`~/.cache/distilvec`), in `teachers/`, or `cache.path`. Format {manifest.FORMAT}.\n\n"
        f"```text\n{inspect.cleandoc(files)}\n```\n\n{notes}\n\n"
        "`distilvec cache verify FOLDER` compares every file with its checksum; `distilvec cache export RECIPE` "
        "writes texts and vectors as Parquet, `distilvec cache import` reads such a table "
        f"([commands](cli.md)).\n\n## manifest.json\n\n{docstring(manifest.Manifest)}\n\n"
        + table(["field", "type"], fields)
        + "\n"
    )


def report_json() -> str:
    """Return the page with every key of report.json, from the classes that it is read into."""
    from distilvec.report.values import REPORT_FORMAT, Report

    parts = [
        "# report.json\n",
        f"Every number of a run's page, in `RUN/details/report.json`. Format {REPORT_FORMAT}. Scores are times 100; a "
        "part that was not measured is null or empty. `seal` is a checksum of all other keys: `distilvec compare` "
        "refuses a file that was changed, and a run measures again. [The report](../report.md) says what the parts "
        "are for.\n",
    ]
    classes = classes_below(Report)
    names = [found.__name__ for found in classes]
    for found in classes:
        text = re.sub(r" \((evaluation|pipeline|vocabulary)/\w+\.py\)", "", inspect.getdoc(found) or "")
        about = re.sub(r"^([a-z_]+(?:, [a-z_]+)*): ", r"- \1: ", text, flags=re.MULTILINE)
        rows = [
            [f"`{known.name}`", value_of(str(known.type), names)] for known in fields(found) if known.name != "folder"
        ]
        parts.append(f"## {found.__name__}\n\n{about}\n\n{table(['key', 'value'], rows)}\n")
    return "\n".join(parts)


def value_of(annotation: str, tables: list[str]) -> str:
    """Return the value of a key of report.json; the names of `tables` lead to them."""
    for name, meaning in JSON_VALUES.items():
        annotation = re.sub(rf"\b{name}\b", meaning, annotation)
    annotation = annotation.replace("Literal", "")
    return re.sub(r"\b[A-Z]\w+", lambda match: linked_name(match[0]) if match[0] in tables else match[0], annotation)


def linked_name(name: str) -> str:
    """Return a link to the heading of a class on the same page."""
    return f"[{name}](#{name.lower()})"


def classes_below(found: type[Any]) -> list[type[Any]]:
    """Return a class of values and all classes that its fields name, each once, in the order of the fields."""
    known: list[type[Any]] = [found]
    for one in known:
        for annotation in get_type_hints(one).values():
            known += [inner for inner in classes_in(annotation) if inner not in known]
    return known


def classes_in(annotation: Any) -> Iterator[type[Any]]:
    """Yield the classes of values in an annotation."""
    if inspect.isclass(annotation) and is_dataclass(annotation):
        yield annotation
    for part in get_args(annotation):
        yield from classes_in(part)


def recipes() -> str:
    """Return the page with every built-in recipe: its description, variants and the comment at its head."""
    parts = [
        "# Built-in recipes\n",
        "`distilvec recipes show NAME` prints one, `distilvec recipes copy NAME` makes it yours.\n",
    ]
    for path in recipe_files():
        tree = read_tree(path)
        text = path.read_text(encoding="utf-8")
        head = "\n".join(re.sub(r"^# ?", "", line) for line in re.match(r"(?:#.*\n)*", text)[0].splitlines())  # type: ignore[index]
        where = path.relative_to(recipe_folder()).as_posix()
        parts.append(f"## `{path.stem}`\n\n{tree.get('description', '')}\n\n`recipes/{where}`\n")
        if tree.get("variants"):
            parts.append("Variants: " + ", ".join(f"`{name}`" for name in tree["variants"]) + "\n")
        if head:
            parts.append(f"```text\n{head}\n```\n")
        if method := (tree.get("method") or {}).get("name"):
            settings = {
                key: tree["train"][key]
                for key in ("epochs", "max_steps", "batch_size", "learning_rate")
                if key in tree.get("train", {})
            }
            parts.append(f"Method: [`{method}`](../methods/{method}.md). Training: `{flow(settings)}`\n")
    return "\n".join(parts)
