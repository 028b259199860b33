"""How dense the code is: a description of a folder of Python files, as two Markdown tables.

    python -m benchmarks.density                      src/distilvec
    python -m benchmarks.density FOLDER [FOLDER...]   a line for each, to compare

The first table has shares of lines and the sizes of functions in lines; the second counts expressions per 1,000 lines
that are neither blank nor comment. A blank line inside a docstring is blank; a line with code and a comment behind it
is no comment line; imports are those at the top of modules. Nothing is compared with a limit.
"""

from __future__ import annotations

import argparse
import ast
import io
import statistics
import tokenize
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.markdown import markdown_table

ROOT = Path(__file__).parents[1]
LONG = 40  # lines of a function that a reader can still take in at once
COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


@dataclass
class Density:
    """Counts over the files of a folder. `function_lines` has the length of each function, its decorators left out."""

    files: int = 0
    lines: int = 0
    imports: int = 0
    docstrings: int = 0
    comments: int = 0
    blank: int = 0
    classes: int = 0
    function_lines: list[int] = field(default_factory=list)
    comprehensions: int = 0
    conditional_expressions: int = 0
    double_assignments: int = 0
    raises: int = 0
    any_types: int = 0

    def share(self, lines: int) -> str:
        """Return lines as per cent of all lines."""
        return f"{100 * lines / max(self.lines, 1):.1f}"

    def per_thousand(self, count: int) -> str:
        """Return a count per 1,000 lines that are neither blank nor comment."""
        rate = 1000 * count / max(self.lines - self.blank - self.comments, 1)
        return f"{rate:.1f}" if rate < 10 else f"{rate:.0f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", nargs="*", type=Path, default=[ROOT / "src" / "distilvec"], metavar="FOLDER")
    arguments = parser.parse_args()
    densities = {name_of(folder): measure(folder) for folder in arguments.folders}
    print(size_table(densities))
    print()
    print(density_table(densities))


def name_of(folder: Path) -> str:
    """Return the folder as it was given; the package of this checkout by its name alone."""
    return "distilvec" if folder == ROOT / "src" / "distilvec" else str(folder)


def measure(folder: Path) -> Density:
    """Count over all Python files below a folder."""
    density = Density()
    for path in sorted(folder.rglob("*.py")):
        add_file(density, path.read_text(encoding="utf-8"))
    return density


def add_file(density: Density, source: str) -> None:
    """Add the counts of one file."""
    tree = ast.parse(source)
    lines = source.splitlines()
    docstrings = [number for number in docstring_lines(tree) if lines[number - 1].strip()]
    density.files += 1
    density.lines += len(lines)
    density.docstrings += len(docstrings)
    density.comments += comment_lines(source)
    density.blank += sum(not line.strip() for line in lines)

    density.imports += sum(height(node) for node in tree.body if isinstance(node, (ast.Import, ast.ImportFrom)))

    for node in ast.walk(tree):
        if isinstance(node, FUNCTIONS):
            density.function_lines.append(height(node))
        elif isinstance(node, ast.ClassDef):
            density.classes += 1
        elif isinstance(node, COMPREHENSIONS):
            density.comprehensions += 1
        elif isinstance(node, ast.IfExp):
            density.conditional_expressions += 1
        elif isinstance(node, ast.Raise):
            density.raises += 1
        elif isinstance(node, ast.Assign):
            density.double_assignments += is_double(node)
        elif is_any(node):
            density.any_types += 1


def height(node: ast.stmt) -> int:
    """Return the number of lines of a statement."""
    return (node.end_lineno or node.lineno) - node.lineno + 1


def is_double(node: ast.Assign) -> bool:
    """Return whether an assignment is `a, b = x, y`."""
    return isinstance(node.value, ast.Tuple) and isinstance(node.targets[0], ast.Tuple)


def is_any(node: ast.AST) -> bool:
    """Return whether an expression is `Any` or `typing.Any`; its import is none."""
    if isinstance(node, ast.Attribute):
        return node.attr == "Any"
    return isinstance(node, ast.Name) and node.id == "Any"


def docstring_lines(tree: ast.Module) -> set[int]:
    """Return the numbers of the lines that docstrings take."""
    numbers: set[int] = set()
    for node in ast.walk(tree):
        if not isinstance(node, (ast.Module, ast.ClassDef, *FUNCTIONS)):
            continue
        if ast.get_docstring(node, clean=False) is not None:
            text = node.body[0]
            numbers.update(range(text.lineno, text.lineno + height(text)))
    return numbers


def comment_lines(source: str) -> int:
    """Count the lines that hold nothing but a comment."""
    lines = source.splitlines()
    return sum(lines[row - 1].lstrip().startswith("#") for row in comment_rows(source))


def comment_rows(source: str) -> Iterator[int]:
    """Yield the number of every line with a comment; a # inside a string is none."""
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            yield token.start[0]


def size_table(densities: dict[str, Density]) -> str:
    """Return the table of lines and functions; shares in per cent."""
    head = [
        "", "files", "lines", "imports", "doc", "comments", "blank", "functions", "median", "above 40", "classes",
    ]  # fmt: skip
    lines = []
    for name, density in densities.items():
        lengths = density.function_lines or [0]
        long = sum(length > LONG for length in lengths)
        cells = [
            name,
            f"{density.files:,}",
            f"{density.lines:,}",
            *map(density.share, (density.imports, density.docstrings, density.comments, density.blank)),
            f"{len(density.function_lines):,}",
            f"{statistics.median(lengths):g}",
            f"{100 * long / len(lengths):.0f} %",
            f"{density.classes:,}",
        ]
        lines.append(cells)
    return markdown_table(head, lines)


def density_table(densities: dict[str, Density]) -> str:
    """Return the table of expressions per 1,000 lines that are neither blank nor comment."""
    head = ["", "comprehensions", "conditional expressions", "`a, b = x, y`", "raise", "`Any`"]
    lines = []
    for name, density in densities.items():
        counts = (
            density.comprehensions,
            density.conditional_expressions,
            density.double_assignments,
            density.raises,
            density.any_types,
        )
        lines.append([name, *map(density.per_thousand, counts)])
    return markdown_table(head, lines)


if __name__ == "__main__":
    main()
