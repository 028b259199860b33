"""The YAML of recipes, overrides, suites and task lists: PyYAML's safe loader with the numbers and words of YAML 1.2.

1e-5 is a number; on, off, yes and no are words; dates and 1:30 are text; 010 is ten. Underscores in numbers (1_000) and
merge keys (<<) work as in YAML 1.1. Refused are repeated keys, all tags but those of plain data, control characters and
deep nesting.
"""

from __future__ import annotations

import re
import stat
from pathlib import Path
from typing import Any

import yaml

from distilvec.config.base import excerpt
from distilvec.core.errors import DistilvecError, about, first_line

MOST_LEVELS = 64  # lists and mappings inside each other
MOST_BYTES = 4_000_000  # of a file

_TAG = "tag:yaml.org,2002:"
_INT = re.compile(r"^[-+]?([0-9][0-9_]*|0x[0-9a-fA-F][0-9a-fA-F_]*|0o[0-7][0-7_]*)$")
_FLOAT = re.compile(
    r"^[-+]?((\.[0-9][0-9_]*|[0-9][0-9_]*(\.[0-9_]*)?)([eE][-+]?[0-9]+)?|\.(inf|Inf|INF))$|^\.(nan|NaN|NAN)$"
)
_RESOLVERS = {  # tag: (pattern, first characters). The order counts: an integer matches the pattern of a float too
    "null": (re.compile(r"^(~|null|Null|NULL|)$"), ["~", "n", "N", ""]),
    "bool": (re.compile(r"^(true|True|TRUE|false|False|FALSE)$"), list("tTfF")),
    "int": (_INT, list("-+0123456789")),
    "float": (_FLOAT, list("-+0123456789.")),
    "merge": (re.compile(r"^<<$"), ["<"]),
}
_REFUSED = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f\ud800-\udfff]")


class _Loader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]  # libyaml, where installed
    """Builds plain data: dict, list, str, int, float, bool, None."""

    yaml_implicit_resolvers: dict[str, Any] = {}  # noqa: RUF012 - a constant; without those of YAML 1.1
    yaml_constructors = {  # noqa: RUF012 - without !!set, !!binary, !!timestamp
        tag: yaml.SafeLoader.yaml_constructors[tag]
        for tag in (None, f"{_TAG}null", f"{_TAG}bool", f"{_TAG}seq", f"{_TAG}map")
    }

    def construct_document(self, node: yaml.Node) -> Any:
        """Build all values whole, none in two steps: so a list that holds itself is an error."""
        return self.construct_object(node, deep=True)

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        """Build a mapping; yaml.MarkedYAMLError for a repeated key, and for a list or mapping as a key."""
        keys = set()
        for key_node, _ in node.value:
            if not isinstance(key_node, yaml.ScalarNode):
                raise _refused("a list or mapping cannot be a key", key_node)
            key = "<<" if key_node.tag == f"{_TAG}merge" else self.construct_object(key_node)
            if key in keys:
                raise _refused(f"key {excerpt(key)} is repeated", key_node)
            keys.add(key)
        return super().construct_mapping(node, deep=True)


class _Dumper(getattr(yaml, "CSafeDumper", yaml.SafeDumper)):  # type: ignore[misc]
    """Puts quotes around text that `load_yaml` would read as a number."""


def _number(loader: _Loader, node: yaml.ScalarNode) -> int | float:
    text = loader.construct_scalar(node).replace("_", "").lower()
    try:
        if node.tag == f"{_TAG}float":
            return float(text.replace(".inf", "inf").replace(".nan", "nan"))
        return int(text, 0) if "x" in text or "o" in text else int(text)
    except ValueError:
        raise _refused(f"{excerpt(text)} ({len(text):,} digits) is not a number", node) from None


def _text(loader: _Loader, node: yaml.ScalarNode) -> str:
    text: str = loader.construct_scalar(node)
    if control := _REFUSED.search(text):
        raise _refused(f"character U+{ord(control[0]):04X} is not allowed in text", node)
    return text


for _name, (_pattern, _first) in _RESOLVERS.items():
    _Loader.add_implicit_resolver(_TAG + _name, _pattern, _first)
for _name in ("int", "float"):
    _Loader.add_constructor(_TAG + _name, _number)
    _Dumper.add_implicit_resolver(_TAG + _name, *_RESOLVERS[_name])
_Loader.add_constructor(f"{_TAG}str", _text)


def read_yaml(path: Path, key: str, fix: str) -> Any:
    """The content of a YAML file, such as a "recipe", the `key` of errors about it."""
    with about(key, path):
        if not stat.S_ISREG(path.stat().st_mode):
            raise DistilvecError(f"{path} is {'a folder' if path.is_dir() else 'not a regular file'}.", fix)
        if path.stat().st_size > MOST_BYTES:
            raise DistilvecError(f"{path} has more than {MOST_BYTES:,} bytes.", fix)
        return load_yaml(path.read_bytes().decode("utf-8-sig"), str(path))


def load_yaml(text: str, origin: str) -> Any:
    """The content of a YAML text; the error names `origin`, the line and the problem."""
    line = ""
    try:
        text.encode()
        _check_levels(text)
        return _copied(yaml.load(text, Loader=_Loader))
    except yaml.MarkedYAMLError as error:
        problem = error.problem or error.context or "unknown syntax"
        if error.problem_mark is not None:
            line = f"line {error.problem_mark.line + 1}, column {error.problem_mark.column + 1}: "
    except yaml.YAMLError as error:  # control characters
        problem = first_line(error)
    except UnicodeEncodeError as error:
        problem = f"text that is not valid Unicode at character {error.start}"
    raise DistilvecError(f"{origin} is not valid YAML: {line}{problem.rstrip('.')}.")


def dump_yaml(content: Any) -> str:
    """Plain data as YAML that `load_yaml` reads back."""
    return yaml.dump(content, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=120)


def _refused(problem: str, node: Any) -> yaml.MarkedYAMLError:
    return yaml.MarkedYAMLError(problem=problem, problem_mark=node.start_mark)


def _check_levels(text: str) -> None:
    """Refuse deep nesting before libyaml builds nodes: its recursion would overflow the stack and end the process."""
    level = 0
    for event in yaml.parse(text, Loader=_Loader):
        if isinstance(event, yaml.CollectionStartEvent):
            level += 1
        elif isinstance(event, yaml.CollectionEndEvent):
            level -= 1
        if level > MOST_LEVELS:
            raise _refused(f"more than {MOST_LEVELS} lists and mappings inside each other", event)


def _copied(value: Any) -> Any:
    """Copy every alias, which is the same object as its anchor: an override changes one of them only."""
    if isinstance(value, dict):
        return {key: _copied(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_copied(inner) for inner in value]
    return value
