"""What `python -m benchmarks.density` counts."""

from __future__ import annotations

from benchmarks.density import density_table, measure, size_table

SOURCE = '''"""A module.

With a second paragraph."""

import os
from typing import (
    Any,
)

# a comment
NAME = "# no comment"  # behind code


class Box:
    """A box."""

    def get(self, key: Any) -> Any:
        import json

        a, b = 1, 2
        rows = [a for a in range(3) if a]
        return (json, rows) if key else b


def fail() -> None:
    raise ValueError
'''


def test_every_kind_of_line_and_expression_is_counted_once(tmp_path):
    (tmp_path / "box.py").write_text(SOURCE)
    density = measure(tmp_path)
    assert (density.files, density.lines, density.classes) == (1, 26, 1)
    assert (density.imports, density.docstrings, density.comments, density.blank) == (4, 3, 1, 9)
    assert density.function_lines == [2, 6]
    assert (density.comprehensions, density.conditional_expressions, density.double_assignments) == (1, 1, 1)
    assert (density.raises, density.any_types) == (1, 2)


def test_tables_have_a_line_for_each_folder(tmp_path):
    (tmp_path / "box.py").write_text(SOURCE)
    densities = {"box": measure(tmp_path), "empty": measure(tmp_path / "none")}
    assert "| box | 1 | 26 |" in size_table(densities)
    assert density_table(densities).splitlines()[-1] == "| empty | 0.0 | 0.0 | 0.0 | 0.0 | 0.0 |"
