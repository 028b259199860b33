"""Docstrings, comments, messages and documentation use the words of the glossary (DESIGN.md, prose rules)."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SOURCES = sorted((ROOT / "src").rglob("*.py"))
PAGES = sorted([ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md")])
GLOSSARY = {  # what is not used: what is
    r"wants?|wanted": "required, requires",
    r"behind (a|an|the|its|their|another|other|no|one|which)\b[^.]{0,25}\bprompts?": "with the prompt prepended",
    r"wider": "superset (cache), larger",
    r"anew": "again, from scratch",
    r"(?<!question )(?<!quotation )(?<!punctuation )(?<!order )marks?": "fingerprint, target",
    r"stands?|stood|lies|lay": "is, is stored",
    r"besides?": "alongside, in addition to",
    r"says?|said|tells?|told": "log, report",
    r"facts?": "info, metadata",
    r"members?": "texts per example, runs",
    r"kept students?": "saved checkpoints",
    r"held[- ]out": "validation",
    r"masses": "attention weights received",
    r"sights?|watched|watches": "snapshot, monitor",
    r"mended": "fixed",
    r"imitated?|imitates": "emulated",
    r"by chance": "at random",
    r"so many": "n",
    r"(?<!in )(?<!in-)(?<!takes )(?<!decimal )(?<!take )places?": "location, section",
    r"goes on a word": "continuation token",
    r"frames?": "special-token template",
    r"(embedding|hidden|teacher|student|vector)('s)? widths?": "dim, hidden size",
}
REFUSED = re.compile("|".join(rf"(?P<w{n}>\b(?:{words})\b)" for n, words in enumerate(GLOSSARY)), re.IGNORECASE)
OPENINGS = re.compile(r"\s*(What|Which|How|Where|Whose|That)\b")


def _refused(text):
    for found in REFUSED.finditer(text):
        number = int(found.lastgroup[1:])
        yield f"{found.group()!r} (use: {list(GLOSSARY.values())[number]})"


def _prose(path):
    """(line, text) of a module's comments, and of its strings that hold words: docstrings and messages."""
    source = path.read_text(encoding="utf-8")
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            yield token.start[0], token.string
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and " " in node.value:
            yield node.lineno, node.value


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT / "src")))
def test_sources_use_the_glossary(path):
    assert [f"{path.name}:{line}: {word}" for line, text in _prose(path) for word in _refused(text)] == []


@pytest.mark.parametrize("path", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_pages_use_the_glossary(path):
    text = re.sub(r"```.*?```|`[^`\n]*`|\]\([^)]*\)", "", path.read_text(encoding="utf-8"), flags=re.DOTALL)
    assert [f"{number}: {word}" for number, line in enumerate(text.splitlines(), 1) for word in _refused(line)] == []


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT / "src")))
def test_docstrings_begin_with_a_verb_or_a_term(path):
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    tree = ast.parse(path.read_text(encoding="utf-8"))
    found = [ast.get_docstring(node) or "" for node in ast.walk(tree) if isinstance(node, documented)]
    assert [text.partition("\n")[0] for text in found if OPENINGS.match(text)] == []


def test_the_glossary_is_enforced():
    assert list(_refused("what it wants stands beside it")) and not list(_refused("the required outputs are stored"))
