"""What the house weighs, before and after: files, lines, functions, errors, and what a command loads.

    python -m benchmarks.house BEFORE AFTER [--json results/house.json] [--no-loads]

BEFORE and AFTER are checkouts (`git worktree add ../before 0e823248`); one or several are measured side by side. The
counts are read from the syntax of src/distilvec. Three commands run in a process of their own with a tiny random
model: `distill` (two layers of it, with its report), `evaluate` and `check`; what they have imported is counted at
their end.
"""

from __future__ import annotations

import argparse
import ast
import itertools
import json
import os
import statistics
import subprocess
import sys
import tempfile
import tomllib
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TypeAlias

from benchmarks.markdown import markdown_table

Figures: TypeAlias = dict[str, Any]
Function: TypeAlias = ast.FunctionDef | ast.AsyncFunctionDef

PACKAGE = "distilvec"
COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
# A call of these reads a value by a key: the parameter is no key of an error then
LOOKUPS = ("get", "pop", "setdefault", "append", "add", "getattr", "hasattr", "setattr", "isinstance", "len")
LOADED = """
import sys, json
from pathlib import Path
from distilvec.cli.app import app
from distilvec.cli.boundary import run_app
status = run_app(app, sys.argv[2:])
modules = [module for name, module in sys.modules.items() if name.partition(".")[0] == "distilvec"]
files = sorted({module.__file__ for module in modules if getattr(module, "__file__", None)})
Path(sys.argv[1]).write_text(json.dumps({"status": status, "files": files}))
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkouts", type=Path, nargs="+", metavar="CHECKOUT")
    parser.add_argument("--json", type=Path, help="write the figures here")
    parser.add_argument("--no-loads", action="store_true", help="count only; run no command")
    parser.add_argument("--rooms", action="store_true", help="print the lines and files of each package too")
    arguments = parser.parse_args()

    results: dict[str, Figures] = {}
    for checkout in arguments.checkouts:
        figures = count(checkout.resolve())
        if not arguments.no_loads:
            figures["loaded"] = loads(checkout.resolve())
        results[figures["commit"] or str(checkout)] = figures
    print(house_table(list(results.values())))
    if arguments.rooms:
        print(rooms_table(list(results.values())))
    if arguments.json:
        arguments.json.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")


def house_table(columns: list[Figures]) -> str:
    """One row for each figure, one column for each checkout."""
    names = [name for name in columns[0] if name not in ("commit", "rooms", "names", "loaded")]
    rows = [[name, *(f"{column[name]:,}" for column in columns)] for name in names]
    for command in columns[0].get("loaded", {}):
        for unit in columns[0]["loaded"][command]:
            rows.append([f"`{command}`: {unit}", *(f"{column['loaded'][command][unit]:,}" for column in columns)])
    return markdown_table(["", *(column["commit"] for column in columns)], rows)


def rooms_table(columns: list[Figures]) -> str:
    """Files and lines of each package."""
    rooms = sorted({room for column in columns for room in column["rooms"]})
    rows = []
    for room in rooms:
        sizes = [column["rooms"].get(room, {"files": 0, "lines": 0}) for column in columns]
        rows.append([room, *(f"{size['files']} files, {size['lines']:,} lines" for size in sizes)])
    return markdown_table(["", *(column["commit"] for column in columns)], rows)


def count(checkout: Path) -> Figures:
    """The figures of one checkout that its text tells."""
    root = checkout / "src" / PACKAGE
    sources = {path: path.read_text(encoding="utf-8") for path in sorted(root.rglob("*.py"))}
    trees = {path: ast.parse(text) for path, text in sources.items()}
    nodes = [node for tree in trees.values() for node in ast.walk(tree)]
    functions = [node for node in nodes if isinstance(node, Function)]
    lengths = [(node.end_lineno or node.lineno) - node.lineno + 1 for node in functions]
    statements = sum(isinstance(node, ast.stmt) for node in nodes)
    comprehensions = sum(isinstance(node, COMPREHENSIONS) for node in nodes)
    conditionals = sum(isinstance(node, ast.IfExp) for node in nodes)
    errors = error_classes(nodes)
    raised = [node for node in nodes if isinstance(node, ast.Raise) and called(node.exc) in errors]

    modules = {module_name(path, root): path for path in trees}
    importers = importers_of(trees, root, set(modules))
    lonely = [name for name in modules if len(importers.get(name, ())) == 1 and modules[name].name != "__init__.py"]
    top_level = [node for tree in trees.values() for node in tree.body if isinstance(node, Function)]
    mentions = Counter(
        node.id if isinstance(node, ast.Name) else node.attr
        for node in nodes
        if isinstance(node, ast.Name | ast.Attribute)
    )
    parameters = [
        f"{node.name}({name})" for node in functions for name in key_parameters(node) if only_handed_on(node, name)
    ]
    attributes = [
        f"{node.name}.{name}" for node in nodes if isinstance(node, ast.ClassDef) for name in key_attributes(node)
    ]
    managers = [node.name for node in functions if renames_keys(node)]
    return {
        "commit": commit(checkout),
        "files": len(sources),
        "lines": sum(text.count("\n") for text in sources.values()),
        "functions": len(functions),
        "median length of a function, lines": statistics.median(lengths),
        "functions above 60 lines": sum(length > 60 for length in lengths),
        "top-level functions": len(top_level),
        "of them mentioned in one place": sum(mentions[node.name] == 1 for node in top_level),
        "modules with one importer": len(lonely),
        "parameters `key` for errors alone": len(parameters),
        "attributes `key` for errors alone": len(attributes),
        "context managers that change errors": len(managers),
        "calls of `about`": sum(
            isinstance(node, ast.Call) and called(node) in ("about", "each_about") for node in nodes
        ),
        "exceptions in import contracts": contract_exceptions(checkout),
        "`raise` of DistilvecError": len(raised),
        "statements": statements,
        "comprehensions per 1,000 statements": round(comprehensions * 1000 / statements, 1),
        "conditional expressions per 1,000 statements": round(conditionals * 1000 / statements, 1),
        "rooms": rooms(sources, root),
        "names": {"one importer": lonely, "parameters": parameters, "attributes": attributes, "managers": managers},
    }


def commit(checkout: Path) -> str:
    """The commit of a checkout, abbreviated; empty outside of git."""
    line = ["git", "-C", str(checkout), "rev-parse", "--short=8", "HEAD"]
    return subprocess.run(line, capture_output=True, text=True).stdout.strip()


def rooms(sources: dict[Path, str], root: Path) -> dict[str, dict[str, int]]:
    """Files and lines of each package."""
    sizes: dict[str, dict[str, int]] = {}
    for path, text in sources.items():
        inside = path.relative_to(root)
        room = inside.parts[0] if len(inside.parts) > 1 else "."
        size = sizes.setdefault(room, {"files": 0, "lines": 0})
        size["files"] += 1
        size["lines"] += text.count("\n")
    return sizes


# -- imports -----------------------------------------------------------------------------------------------------------


def module_name(path: Path, root: Path) -> str:
    parts = path.relative_to(root.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def importers_of(trees: dict[Path, ast.Module], root: Path, modules: set[str]) -> dict[str, set[str]]:
    """The modules that import each module, at the top or inside of a function."""
    importers: dict[str, set[str]] = {}
    for path, tree in trees.items():
        importer = module_name(path, root)
        for node in ast.walk(tree):
            for name in imported(node):
                target = name if name in modules else name.rpartition(".")[0]
                if target in modules and target != importer:
                    importers.setdefault(target, set()).add(importer)
    return importers


def imported(node: ast.AST) -> Iterator[str]:
    """The names that a statement imports, with their modules. The package has absolute imports only."""
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)
    elif isinstance(node, ast.ImportFrom) and node.module:
        yield from (f"{node.module}.{alias.name}" for alias in node.names)


def contract_exceptions(checkout: Path) -> int:
    settings = tomllib.loads((checkout / "pyproject.toml").read_text(encoding="utf-8"))
    contracts = settings["tool"]["importlinter"]["contracts"]
    return sum(len(contract.get("ignore_imports", ())) for contract in contracts)


# -- errors ------------------------------------------------------------------------------------------------------------


def called(node: ast.AST | None) -> str:
    """The name of the function or class that is called; empty for anything else."""
    if not isinstance(node, ast.Call):
        return ""
    if isinstance(node.func, ast.Attribute):
        return node.func.attr
    return node.func.id if isinstance(node.func, ast.Name) else ""


def error_classes(nodes: list[ast.AST]) -> set[str]:
    """DistilvecError and what is derived from it."""
    classes = {"DistilvecError"}
    while True:
        derived = set(classes)
        for node in nodes:
            if isinstance(node, ast.ClassDef):
                bases = {base.id for base in node.bases if isinstance(base, ast.Name)}
                if bases & classes:
                    derived.add(node.name)
        if derived == classes:
            return classes
        classes = derived


def is_key(name: str) -> bool:
    return name == "key" or name.endswith("_key")


def key_parameters(function: Function) -> list[str]:
    every = [*function.args.posonlyargs, *function.args.args, *function.args.kwonlyargs]
    return [argument.arg for argument in every if is_key(argument.arg)]


def only_handed_on(function: ast.AST, name: str) -> bool:
    """Whether a parameter or attribute (`self.key`) is only an argument of calls, or part of one: never looked up."""
    reads, handed = 0, 0
    for node in ast.walk(function):
        if reads_name(node, name):
            reads += 1
        if isinstance(node, ast.Call) and called(node) not in LOOKUPS:
            arguments = [*node.args, *(keyword.value for keyword in node.keywords)]
            handed += sum(handed_name(argument, name) for argument in arguments)
        elif isinstance(node, ast.Assign) and own_attribute(node.targets[0]):
            handed += handed_name(node.value, name)
    return reads > 0 and reads == handed


def handed_name(argument: ast.expr, name: str) -> int:
    """How often an argument holds the name: as it is, in an f-string, or after `or`."""
    if reads_name(argument, name):
        return 1
    if isinstance(argument, ast.JoinedStr):
        values = [part.value for part in argument.values if isinstance(part, ast.FormattedValue)]
        return sum(reads_name(value, name) for value in values)
    if isinstance(argument, ast.BoolOp):
        return sum(reads_name(value, name) for value in argument.values)
    return 0


def reads_name(node: ast.AST, name: str) -> bool:
    """Whether a node reads a variable, or an attribute of self where the name begins with "self."."""
    if name.startswith("self."):
        return own_attribute(node) == name.removeprefix("self.") and is_read(node)
    return isinstance(node, ast.Name) and node.id == name and is_read(node)


def is_read(node: ast.AST) -> bool:
    return isinstance(getattr(node, "ctx", None), ast.Load)


def own_attribute(node: ast.AST) -> str:
    """The name of an attribute of self; empty for anything else."""
    if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "self":
        return node.attr
    return ""


def key_attributes(owner: ast.ClassDef) -> list[str]:
    """The attributes `key` of a class that are only handed on."""
    names = {own_attribute(node) for node in ast.walk(owner)}
    return [name for name in sorted(names) if is_key(name) and only_handed_on(owner, f"self.{name}")]


def renames_keys(function: Function) -> bool:
    """Whether a context manager catches an error and raises another: with another key, or in other words."""
    decorators = {node.id for node in function.decorator_list if isinstance(node, ast.Name)}
    if "contextmanager" not in decorators:
        return False
    handlers = [node for node in ast.walk(function) if isinstance(node, ast.ExceptHandler)]
    return any(
        isinstance(node, ast.Raise) and node.exc is not None for handler in handlers for node in ast.walk(handler)
    )


# -- what a command loads ----------------------------------------------------------------------------------------------


def loads(checkout: Path) -> dict[str, Figures]:
    """Files and lines of the package that three commands have loaded at their end."""
    commands = {
        "distill": "distill teacher texts.txt --layers 1 --out run train.max_steps=3 train.device=cpu",
        "evaluate": "evaluate run/student --suite suite.yaml",
        "check": "check run/student index.parquet",
    }
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_inputs(folder)
        return {command: loaded(checkout, folder, line.split()) for command, line in commands.items()}


def write_inputs(folder: Path) -> None:
    """A tiny model, texts, a suite of one task and an index of the model's vectors."""
    import pyarrow as pa
    import pyarrow.parquet as pq
    from sentence_transformers import SentenceTransformer

    from benchmarks.memory import tiny_teacher
    from benchmarks.texts import COMMON

    model = SentenceTransformer(tiny_teacher(folder), device="cpu")
    texts = [f"{word} {other}" for word in COMMON[:30] for other in COMMON[30:60]]
    (folder / "texts.txt").write_text("\n".join(texts) + "\n", encoding="utf-8")
    table = pa.table({"id": list(range(len(texts))), "text": texts, "embedding": model.encode(texts).tolist()})
    pq.write_table(table, folder / "index.parquet")
    rows = [
        {"sentence1": first, "sentence2": second, "score": number % 6}
        for number, (first, second) in enumerate(itertools.pairwise(texts[:200]))
    ]
    (folder / "pairs.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    (folder / "suite.yaml").write_text(SUITE, encoding="utf-8")


SUITE = """
- name: pairs
  type: sts
  path: pairs.jsonl
"""


def loaded(checkout: Path, folder: Path, words: list[str]) -> Figures:
    """Run one command in a process of its own; count the files of the package that it has loaded."""
    environment = {
        **os.environ,
        "PYTHONPATH": str(checkout / "src"),
        "DISTILVEC_CACHE": str(folder / f"cache-{words[0]}"),
    }
    result = folder / f"{words[0]}.json"
    line = [sys.executable, "-c", LOADED, str(result), *words]
    done = subprocess.run(line, cwd=folder, env=environment, capture_output=True, text=True)
    if not result.exists():
        raise SystemExit(f"{' '.join(words)} of {checkout}:\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
    content = json.loads(result.read_text(encoding="utf-8"))
    if content["status"] not in (0, 1):  # 1: `check` says that the model does not fit
        raise SystemExit(f"{' '.join(words)} of {checkout}: {content['status']}\n{done.stderr[-2000:]}")
    paths = [Path(name) for name in content["files"]]
    modules = [path for path in paths if path.name != "__init__.py"]
    return {
        "modules": len(modules),
        "modules of verbs": sum("verbs" in path.parts for path in modules),
        "lines": sum(path.read_text(encoding="utf-8").count("\n") for path in paths),
    }


if __name__ == "__main__":
    main()
