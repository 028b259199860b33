"""The one YAML dialect of recipes, overrides, suites and task lists.

Of YAML 1.2: 1e-5 is a number; on, off, yes and no are words; dates are text; 010 is ten and 1:30 is text. Of YAML 1.1:
underscores in numbers (1_000) and merge keys (<<). Refused are repeated keys, keys that are lists or mappings, tags of
other languages, control characters, deep nesting and aliases that expand to very many values.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from distilvec.config.base import excerpt
from distilvec.core.errors import DistilvecError, explained, first_line

MOST_VALUES = 100_000  # of a document, aliases expanded
MOST_LEVELS = 64  # lists and mappings inside each other
MOST_BYTES = 4_000_000  # of a file

_NUMBER_STARTS = list("-+0123456789.")
_INT = re.compile(r"^[-+]?([0-9][0-9_]*|0x[0-9a-fA-F][0-9a-fA-F_]*|0o[0-7][0-7_]*)$")
_FLOAT = re.compile(
    r"^[-+]?((\.[0-9][0-9_]*|[0-9][0-9_]*(\.[0-9_]*)?)([eE][-+]?[0-9]+)?|\.(inf|Inf|INF))$|^\.(nan|NaN|NAN)$"
)
_WORDS: dict[str, Any] = dict.fromkeys(("", "~", "null", "Null", "NULL"))
_WORDS |= {word: word[0] in "tT" for word in ("true", "True", "TRUE", "false", "False", "FALSE")}
_REFUSED = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f\ud800-\udfff]")
_TAG = "tag:yaml.org,2002:"
_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # libyaml, where it is installed, is faster


def read_yaml(path: Path, key: str, fix: str) -> Any:
    """The content of a YAML file. Errors: DistilvecError with `key` for what cannot be read, is no UTF-8 text or no YAML."""
    with explained(key, path):
        if not path.exists() and not path.is_symlink():
            raise DistilvecError(f"[{key}] {key} not found: {path}. {fix}")
        if path.exists() and not path.is_file():
            raise DistilvecError(f"[{key}] {path} is {'a folder' if path.is_dir() else 'no regular file'}. {fix}")
        if path.stat().st_size > MOST_BYTES:
            raise DistilvecError(f"[{key}] {path} has more than {MOST_BYTES:,} bytes. {fix}")
        content = path.read_bytes()
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise DistilvecError(f"[{key}] {path} is not a UTF-8 text file: {first_line(error)}. {fix}") from None
    return load_yaml(text, key, str(path))


def load_yaml(text: str, key: str, origin: str) -> Any:
    """The content of a YAML text. Errors: DistilvecError with `key`, which names `origin`, the place in it and the problem."""
    try:
        text.encode()
        return _Builder().build(yaml.parse(text, Loader=_LOADER))
    except _Refused as error:
        problem, mark = error.args
    except yaml.MarkedYAMLError as error:
        problem, mark = error.problem or error.context or "unknown syntax", error.problem_mark
    except yaml.YAMLError as error:  # control characters
        problem, mark = first_line(error), None
    except UnicodeEncodeError as error:
        problem, mark = f"text that is not valid Unicode at character {error.start}", None
    place = f"line {mark.line + 1}, column {mark.column + 1}: " if mark is not None else ""
    raise DistilvecError(f"[{key}] {origin} is not valid YAML: {place}{problem.rstrip('.')}.")


def dump_yaml(content: Any) -> str:
    """Plain data as YAML that `load_yaml` reads back."""
    return yaml.dump(content, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=120)


class _Refused(Exception):
    """A problem and its mark."""


class _Builder:
    """Makes plain data of YAML's events. Aliases are copied, so that a change at one place shows at no other."""

    def __init__(self) -> None:
        self.anchors: dict[str, tuple[Any, int]] = {}  # value and how many values it holds
        self.open: set[str] = set()  # anchors of lists and mappings that have not ended
        self.count = self.level = 0

    def build(self, events: Iterator[Any]) -> Any:
        """The one document, None if there is none."""
        found: Any = None
        documents = 0
        for event in events:
            if isinstance(event, yaml.DocumentStartEvent):
                documents += 1
                if documents > 1:
                    raise _Refused("a second document begins; expected one", event.start_mark)
            elif isinstance(event, (yaml.AliasEvent, yaml.ScalarEvent, yaml.CollectionStartEvent)):
                found = self._value(event, events)
        return found

    def _value(self, event: Any, events: Iterator[Any]) -> Any:
        if isinstance(event, yaml.AliasEvent):
            return self._alias(event)
        before, anchor = self.count, event.anchor
        self._add(1, event)
        if isinstance(event, yaml.ScalarEvent):
            value = _scalar(event)
        else:
            self.level += 1
            if self.level > MOST_LEVELS:
                raise _Refused(f"more than {MOST_LEVELS} lists and mappings inside each other", event.start_mark)
            if anchor is not None:
                self.open.add(anchor)
            value = (
                self._sequence(event, events)
                if isinstance(event, yaml.SequenceStartEvent)
                else self._mapping(event, events)
            )
            self.open.discard(anchor)
            self.level -= 1
        if anchor is not None:
            self.anchors[anchor] = value, self.count - before
        return value

    def _alias(self, event: Any) -> Any:
        name = str(event.anchor)
        if name in self.open:
            raise _Refused(f"alias *{name[:40]} stands inside of what it repeats", event.start_mark)
        if name not in self.anchors:
            raise _Refused(f"alias *{name[:40]} has no anchor before it", event.start_mark)
        value, size = self.anchors[name]
        self._add(size, event)
        return copy.deepcopy(value)

    def _add(self, size: int, event: Any) -> None:
        self.count += size
        if self.count > MOST_VALUES:
            raise _Refused(f"more than {MOST_VALUES:,} values (aliases expanded)", event.start_mark)

    def _sequence(self, start: Any, events: Iterator[Any]) -> list[Any]:
        _check_tag(start, "seq")
        found = []
        while not isinstance(event := next(events), yaml.SequenceEndEvent):
            found.append(self._value(event, events))
        return found

    def _mapping(self, start: Any, events: Iterator[Any]) -> dict[Any, Any]:
        _check_tag(start, "map")
        own: dict[Any, Any] = {}
        inherited: dict[Any, Any] | None = None
        while not isinstance(event := next(events), yaml.MappingEndEvent):
            merges = isinstance(event, yaml.ScalarEvent) and event.value == "<<" and event.implicit[0]
            key = "<<" if merges else self._value(event, events)
            if isinstance(key, (list, dict)):
                raise _Refused(
                    f"a {'list' if isinstance(key, list) else 'mapping'} as a key; expected a word", event.start_mark
                )
            if inherited is not None if merges else key in own:
                raise _Refused(f"key {excerpt(key)} stands twice", event.start_mark)
            value = self._value(next(events), events)
            if merges:
                inherited = _merged(value, event)
            else:
                own[key] = value
        return {**(inherited or {}), **own}


def _merged(value: Any, event: Any) -> dict[Any, Any]:
    """What `<<` brings: a mapping, or several of which the first ones win."""
    found: dict[Any, Any] = {}
    for part in reversed(value if isinstance(value, list) else [value]):
        if not isinstance(part, dict):
            raise _Refused(f"<< takes a mapping or a list of mappings; found {excerpt(value)}", event.start_mark)
        found |= part
    return found


def _check_tag(event: Any, kind: str) -> None:
    if event.tag not in (None, "!", _TAG + kind):
        raise _Refused(f"tag {excerpt(event.tag)} is not allowed here", event.start_mark)


def _scalar(event: Any) -> Any:
    text, tag = event.value, event.tag
    if found := _REFUSED.search(text):
        raise _Refused(f"character U+{ord(found[0]):04X} is not allowed in text", event.start_mark)
    if tag in (None, "!"):
        return _plain(text, event) if event.implicit[0] else text
    if tag == f"{_TAG}str":
        return text
    value = _plain(text, event)
    if tag == f"{_TAG}float" and type(value) is int:
        return float(value)
    if tag != {int: f"{_TAG}int", float: f"{_TAG}float", bool: f"{_TAG}bool", type(None): f"{_TAG}null"}.get(
        type(value)
    ):
        raise _Refused(f"tag {excerpt(tag)} does not go with {excerpt(text)}", event.start_mark)
    return value


def _plain(text: str, event: Any) -> Any:
    """The value of a scalar without quotes."""
    if text in _WORDS:
        return _WORDS[text]
    number = text.replace("_", "").lower()
    try:
        if _INT.match(text):
            return int(number, 16 if "x" in number else 8 if "o" in number else 10)
        return float(number.replace(".inf", "inf").replace(".nan", "nan")) if _FLOAT.match(text) else text
    except (ValueError, OverflowError):
        raise _Refused(f"a number of {len(text):,} digits", event.start_mark) from None


class _Dumper(yaml.SafeDumper):
    """Puts quotes around text that `load_yaml` would read as a number."""


for _name, _pattern in (("int", _INT), ("float", _FLOAT)):
    _Dumper.add_implicit_resolver(_TAG + _name, _pattern, _NUMBER_STARTS)  # type: ignore[no-untyped-call]
