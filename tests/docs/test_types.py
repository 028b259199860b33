"""mypy over the Python blocks of README and of all pages: the package has the types that they show."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from blocks import PAGES, ROOT, blocks_of

LOOSE = "# mypy: allow-redefinition, allow-untyped-defs, allow-incomplete-defs, allow-untyped-calls\n"


@pytest.mark.slow
def test_blocks_have_right_types(tmp_path):
    """The blocks of a page are one module, since they continue one another; a block that is a file is its own."""
    pytest.importorskip("mypy")
    (tmp_path / "shelf.py").write_text(f"{LOOSE}def open(path): ...\n", encoding="utf-8")  # the store of an example
    for page in PAGES:
        blocks = [block for block in blocks_of(page) if block.language == "python"]
        modules = {block.note: block.code for block in blocks if block.marker == "file"}
        modules[f"{page.stem.lower()}_page.py"] = "".join(block.code for block in blocks if block.marker != "file")
        for name, code in modules.items():
            if code:
                (tmp_path / name.replace("-", "_")).write_text(LOOSE + code, encoding="utf-8")
    command = [sys.executable, "-m", "mypy", "--config-file", ROOT / "pyproject.toml", tmp_path]
    environment = {**os.environ, "MYPYPATH": "src"}  # with the names and the cache of `mypy` in this folder
    checked = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert checked.returncode == 0, checked.stdout.replace(f"{tmp_path}/", "")
