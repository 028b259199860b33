"""Messages about what does not fit the schema: every problem by its dotted key, with the nearest known one."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from pydantic import ValidationError

from distilvec.config.base import Section, child, excerpt, is_section, key_text, kinds
from distilvec.core.errors import DistilvecError, nearest

_LONGEST = 600  # characters of a problem
_LONGEST_LIST = 2200  # characters of all problems of a message
_LONGEST_PATH = 300  # characters of a file's name in front of them
_LONGEST_NAMES = 300  # characters of known names
_SYNONYMS = {"lr": "learning_rate", "bs": "batch_size", "wd": "weight_decay", "num_epochs": "epochs"}


class Problems(DistilvecError):
    """All problems of a file or section: "[key] ORIGIN: 2 problems.", then each on its own line.

    Args:
        origin: the file, for the message
        problems: errors, each with its own key, or lines of text
        key: the file's or the section's
    """

    def __init__(self, origin: str, problems: Sequence[DistilvecError | str], key: str = "") -> None:
        super().__init__("", key=key)
        self.origin = origin
        self.problems = tuple(problems)
        self.problem = self._lines()

    def look_up(self, names: Mapping[str, str]) -> None:
        """Take the names of arguments in the place of all keys."""
        super().look_up(names)
        for problem in self.problems:
            if isinstance(problem, DistilvecError):
                problem.look_up(names)
        self.problem = self._lines()

    def _lines(self) -> str:
        lines: list[str] = []
        for problem in self.problems:
            if sum(map(len, lines)) > _LONGEST_LIST - _LONGEST:
                lines.append(f"and {len(self.problems) - len(lines)} more.")
                break
            lines.append(_short(str(problem), _LONGEST))
        count = f"{len(self.problems)} problem{'s' if len(self.problems) > 1 else ''}"
        return "\n  ".join([f"{_short(self.origin, _LONGEST_PATH)}: {count}.", *lines])


def invalid(key: str, origin: str | None, problems: Sequence[DistilvecError]) -> DistilvecError:
    """The error for a recipe or section: its one problem under the problem's own key, or a list of them under `key`."""
    if len(problems) > 1:
        return Problems(origin or "the recipe", problems, key)
    error = problems[0]
    room = _LONGEST - len(f"[{error.key}] ")
    problem = _short(f"{error.problem} {error.fix}".rstrip(), room)
    if origin:
        problem += f" In {_short(origin, _LONGEST_PATH)}."
    return DistilvecError(problem, key=error.key)


def explain(error: ValidationError, section: type[Section], before: str = "") -> list[DistilvecError]:
    """Every problem that pydantic found in a section; `before` precedes every key."""
    problems: dict[str, str] = {}
    for problem in error.errors():
        key = _key(problem, section, before)
        if key not in problems:
            problems[key] = _problem(problem, section)
        elif "; found " in problems[key]:  # another type that the key allows
            earlier, found, value = problems[key].rpartition("; found ")
            problems[key] = f"{earlier}, or {problem['msg'].removeprefix('Input should be ')}{found}{value}"
    inside = {key for key in problems if any(other.startswith(f"{key}.") for other in problems)}  # of another type
    return [DistilvecError(problem, key=key) for key, problem in problems.items() if key not in inside]


def unknown(name: Any, known: Iterable[str]) -> str:
    """The nearest known name, and the known ones: "; did you mean 'epochs'? Known here: ..."."""
    known = list(known)
    shown: list[str] = []
    for known_name in known:
        if sum(map(len, shown)) > _LONGEST_NAMES:
            shown.append(f"and {len(known) - len(shown)} more")
            break
        shown.append(_short(known_name, _LONGEST_NAMES))
    return f"{nearest(str(name)[:100], known) or '.'} Known here: {', '.join(shown) or 'none'}."


def keys_named(name: str, section: type[Section]) -> list[str]:
    """The dotted keys of a section whose last part has this name, those nearest to the top first."""
    name = _SYNONYMS.get(name, name)
    return sorted(
        (key for key in _dotted_keys(section) if key.rpartition(".")[2] == name), key=lambda key: key.count(".")
    )


def _dotted_keys(section: type[Section], before: str = "") -> Iterator[str]:
    for name, field in section.model_fields.items():
        yield before + name
        for kind in kinds(field.annotation):
            if is_section(kind):
                yield from _dotted_keys(kind, f"{before}{name}.")


def _key(problem: Any, section: type[Section], before: str) -> str:
    """The dotted key of a problem, without pydantic's own names for the types of a union."""
    annotation: Any = section
    parts = [part for part in before.split(".") if part]
    loc = [part for part in problem["loc"] if part != "[key]"]
    for number, part in enumerate(loc):
        inner = child(annotation, part)
        if inner is not None or (number == len(loc) - 1 and problem["type"] in ("extra_forbidden", "invalid_key")):
            parts.append(part)
        annotation = inner if inner is not None else annotation
    parts += [problem["ctx"]["field"]] if "field" in problem.get("ctx", {}) else []
    return ".".join(map(key_text, parts)) or "recipe"


def _problem(problem: Any, section: type[Section]) -> str:
    if problem["type"] == "extra_forbidden":
        inner: Any = section
        for part in problem["loc"][:-1]:
            inner = child(inner, part) or inner  # pydantic's names for the types of a union are not keys
        known = list(next(kind for kind in kinds(inner) if is_section(kind)).model_fields)
        name = str(problem["loc"][-1])
        is_recipe = {"name", "student"} <= set(known)
        if is_recipe:
            known.append("variants")
        deeper = keys_named(name, section)
        if is_recipe and deeper:
            return f"unknown key; did you mean '{deeper[0]}'? `distilvec recipes schema` lists all keys."
        if _SYNONYMS.get(name) in known:
            name = _SYNONYMS[name]
        return f"unknown key{unknown(name, known)}"
    text = problem["msg"].removeprefix("Value error, ").rstrip(".")
    found = "" if problem["type"] in ("missing", "value_error") else f"; found {excerpt(problem['input'])}"
    return f"{text}{found}."


def _short(text: str, longest: int) -> str:
    return text if len(text) <= longest else f"{text[: longest - 1]}…"
