"""A recipe's text for another folder: comments stay, relative paths lead to the same files."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from distilvec.config.paths import resolve_tree
from distilvec.config.recipe import read_tree
from distilvec.config.schema import Recipe

_PLAIN = re.compile(r"[\w/.~+-]+")  # a path that needs no quotes in YAML


def moved_text(path: Path) -> str:
    """The text of a recipe file, to be stored in any folder.

    A relative path becomes absolute if its file exists. If not, it stays as it is, and a comment on its line says so.
    """
    resolved = resolve_tree(read_tree(path), path.parent.resolve(), Recipe)
    text = path.read_text(encoding="utf-8-sig")
    changes: dict[tuple[int, int], str] = {}  # by place in the text
    for node, place in _paths(yaml.compose(text, Loader=yaml.SafeLoader), resolved):
        if Path(place).exists():
            changes[node.start_mark.index, node.end_mark.index] = _quoted(place)
        else:
            end = text.find("\n", node.end_mark.index)
            end = len(text) if end < 0 else end
            changes[end, end] = "  # not found; set a path of your own"
    for (start, end), new in sorted(changes.items(), reverse=True):
        text = text[:start] + new + text[end:]
    return text


def _quoted(path: str) -> str:
    return path if _PLAIN.fullmatch(path) else json.dumps(path, ensure_ascii=False)


def _paths(node: Any, value: Any) -> Iterator[tuple[yaml.ScalarNode, str]]:
    """Scalars whose value `resolve_tree` changed, with the absolute path. What a merge key brings is met at its anchor."""
    if isinstance(node, yaml.MappingNode) and isinstance(value, dict):
        values = {str(key): inner for key, inner in value.items()}
        for key, inner in node.value:
            yield from _paths(inner, values.get(str(key.value)))
    elif isinstance(node, yaml.SequenceNode) and isinstance(value, list):
        for inner, item in zip(node.value, value, strict=True):
            yield from _paths(inner, item)
    elif isinstance(node, yaml.ScalarNode) and isinstance(value, str) and value != node.value:
        yield node, value
