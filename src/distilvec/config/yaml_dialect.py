"""The one YAML dialect of recipes, overrides, suites and task lists.

Of YAML 1.2: 1e-5 is a number; on, off, yes and no are words; dates are text; 010 is ten and 1:30 is text. Of YAML 1.1:
underscores in numbers (1_000) and merge keys (<<). Refused are repeated keys, keys that are lists or mappings, tags but
!!str, control characters and deep nesting.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import yaml

from distilvec.config.base import excerpt
from distilvec.core.errors import DistilvecError, explained, first_line

MOST_LEVELS = 64  # lists and mappings inside each other
MOST_BYTES = 4_000_000  # of a file

_INT = re.compile(r"^[-+]?([0-9][0-9_]*|0x[0-9a-fA-F][0-9a-fA-F_]*|0o[0-7][0-7_]*)$")
_FLOAT = re.compile(
    r"^[-+]?((\.[0-9][0-9_]*|[0-9][0-9_]*(\.[0-9_]*)?)([eE][-+]?[0-9]+)?|\.(inf|Inf|INF))$|^\.(nan|NaN|NAN)$"
)
_WORDS: dict[str, Any] = dict.fromkeys(("", "~", "null", "Null", "NULL"))
_WORDS |= {word: word[0] in "tT" for word in ("true", "True", "TRUE", "false", "False", "FALSE")}
_REFUSED = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f\ud800-\udfff]")
_TAG = "tag:yaml.org,2002:"
_PLAIN = "plain"  # the tag of text without quotes and without a tag of its own


class _Loader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]  # libyaml, where installed
    """Parses YAML to nodes, whose tags mean nothing but quoted or plain."""

    yaml_implicit_resolvers = {None: [(_PLAIN, re.compile(""))]}  # noqa: RUF012 - a constant of the class


class _Dumper(getattr(yaml, "CSafeDumper", yaml.SafeDumper)):  # type: ignore[misc]
    """Puts quotes around text that `load_yaml` would read as a number."""


for _name, _pattern in (("int", _INT), ("float", _FLOAT)):
    _Dumper.add_implicit_resolver(_TAG + _name, _pattern, list("-+0123456789."))  # type: ignore[no-untyped-call]


def read_yaml(path: Path, key: str, fix: str) -> Any:
    """The content of a YAML file; DistilvecError with `key` for one that cannot be read, or is no UTF-8 or no YAML."""
    with explained(key, path):
        if not path.exists() and not path.is_symlink():
            raise DistilvecError(key, f"{key} not found: {path}.", fix)
        if path.exists() and not path.is_file():
            raise DistilvecError(key, f"{path} is {'a folder' if path.is_dir() else 'no regular file'}.", fix)
        if path.stat().st_size > MOST_BYTES:
            raise DistilvecError(key, f"{path} has more than {MOST_BYTES:,} bytes.", fix)
        content = path.read_bytes()
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise DistilvecError(key, f"{path} is not a UTF-8 text file: {first_line(error)}.", fix) from None
    return load_yaml(text, key, str(path))


def load_yaml(text: str, key: str, origin: str) -> Any:
    """The content of a YAML text; DistilvecError with `key`, which names `origin`, the line and the problem."""
    mark = None
    try:
        text.encode()
        _check_levels(text)
        node = yaml.compose(text, Loader=_Loader)
        return None if node is None else _value(node)
    except yaml.MarkedYAMLError as error:
        problem, mark = error.problem or error.context or "unknown syntax", error.problem_mark
    except yaml.YAMLError as error:  # control characters
        problem = first_line(error)
    except UnicodeEncodeError as error:
        problem = f"text that is not valid Unicode at character {error.start}"
    line = f"line {mark.line + 1}, column {mark.column + 1}: " if mark is not None else ""
    raise DistilvecError(key, f"{origin} is not valid YAML: {line}{problem.rstrip('.')}.")


def dump_yaml(content: Any) -> str:
    """Plain data as YAML that `load_yaml` reads back."""
    return yaml.dump(content, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=120)


def _refused(problem: str, node: Any) -> yaml.MarkedYAMLError:
    return yaml.MarkedYAMLError(problem=problem, problem_mark=node.start_mark)


def _check_levels(text: str) -> None:
    """Refuse deep nesting before libyaml composes nodes, which is recursive."""
    level = 0
    for event in yaml.parse(text, Loader=_Loader):
        level += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        if level > MOST_LEVELS:
            raise _refused(f"more than {MOST_LEVELS} lists and mappings inside each other", event)


def _value(node: Any, level: int = 0) -> Any:
    """Return plain data of a node, with a copy for every alias. `level`: the number of lists and mappings around it."""
    if level > MOST_LEVELS:  # only an alias to a list around it comes this far: `_check_levels` has seen the text
        raise _refused(f"more than {MOST_LEVELS} lists and mappings inside each other", node)
    if node.tag not in (_PLAIN, f"{_TAG}str", f"{_TAG}seq", f"{_TAG}map"):
        raise _refused(f"tag {excerpt(node.tag)} is not allowed here", node)
    if isinstance(node, yaml.ScalarNode):
        return _scalar(node)
    if isinstance(node, yaml.SequenceNode):
        return [_value(item, level + 1) for item in node.value]
    return _mapping(node, level + 1)


def _mapping(node: Any, level: int) -> dict[Any, Any]:
    """Return a mapping with what its merge key (<<) brings; its own keys win."""
    own: dict[Any, Any] = {}
    merged: dict[Any, Any] | None = None
    for key_node, value_node in node.value:
        merges = key_node.tag == _PLAIN and key_node.value == "<<"
        key = _value(key_node, level)
        if isinstance(key, (list, dict)):
            raise _refused(f"a {'list' if isinstance(key, list) else 'mapping'} as a key; expected a word", node)
        if merged is not None if merges else key in own:
            raise _refused(f"key {excerpt(key)} is repeated", key_node)
        value = _value(value_node, level)
        if merges:
            merged = _merged(value, key_node)
        else:
            own[key] = value
    return {**(merged or {}), **own}


def _merged(value: Any, node: Any) -> dict[Any, Any]:
    """The keys that `<<` brings: of a mapping, or of several of which the first ones win."""
    parts = value if isinstance(value, list) else [value]
    if not all(isinstance(part, dict) for part in parts):
        raise _refused(f"<< takes a mapping or a list of mappings; found {excerpt(value)}", node)
    return {key: inner for part in reversed(parts) for key, inner in part.items()}


def _scalar(node: Any) -> Any:
    """The value of a text, which is a number or a word such as true if it is plain."""
    text = node.value
    if found := _REFUSED.search(text):
        raise _refused(f"character U+{ord(found[0]):04X} is not allowed in text", node)
    if node.tag != _PLAIN:
        return text
    if text in _WORDS:
        return _WORDS[text]
    number = text.replace("_", "").lower()
    try:
        if _INT.match(text):
            return int(number, 16 if "x" in number else 8 if "o" in number else 10)
        return float(number.replace(".inf", "inf").replace(".nan", "nan")) if _FLOAT.match(text) else text
    except (ValueError, OverflowError):
        raise _refused(f"a number of {len(text):,} digits", node) from None
