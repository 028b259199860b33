"""The base of every section of a recipe or suite: types that sections share, marks of keys, the values that it refuses.

Every problem of a section is told at once, by its dotted key and with the nearest known one.
"""

from __future__ import annotations

import glob
import math
import re
import reprlib
import types
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Annotated, Any, ClassVar, Self, Union, get_args, get_origin

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    ValidationError,
    ValidationInfo,
    field_validator,
    model_validator,
)  # fmt: skip
from pydantic_core import PydanticCustomError

from distilvec.core.addresses import Address
from distilvec.core.errors import DistilvecError, nearest

# Upper bounds of sizes, each far above what any run takes: a larger number is a typing error.
MOST_TOKENS, MOST_ROWS = 1_000_000, 1_000_000  # of a text; of a batch or shard
MOST_NAME_BYTES = 200  # file systems allow 255, of which scratch names and endings take some

_SYNONYMS = {"lr": "learning_rate", "bs": "batch_size", "wd": "weight_decay", "num_epochs": "epochs"}
_EXCERPT = reprlib.Repr()
_EXCERPT.maxstring = _EXCERPT.maxother = _EXCERPT.maxlong = 60
_EXCERPT.maxlevel, _EXCERPT.maxdict, _EXCERPT.maxlist = 2, 3, 4
_CONTROL = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")


def excerpt(value: Any) -> str:
    """A value for a message: its first part where it is long or deep."""
    return _EXCERPT.repr(value)


def key_text(part: Any) -> str:
    """A key for the brackets of a message: on one line, short, without brackets of its own.

    Nor does it begin with a dot, by which it would be taken for a relative key (`about`).
    """
    text = re.sub(r"[\[\]\s]|^\.+", "?", _CONTROL.sub("?", str(part)[:61]))
    return (text or "''") if len(text) <= 60 else f"{text[:60]}…"


def check_name(text: Any) -> str:
    """Return the text; ValueError where it could not name a file inside a folder."""
    if not isinstance(text, str):
        raise ValueError(f"expected text; found {excerpt(text)}")
    fits = len(text.encode("utf-8", "surrogatepass")) <= MOST_NAME_BYTES and not _CONTROL.search(text)
    if not fits or not text.strip() or text.startswith(".") or "/" in text or "\\" in text:
        raise ValueError(
            f"{excerpt(text)} cannot name files. Use 1 to {MOST_NAME_BYTES} characters without '/', '\\' and control "
            "characters, and no '.' at the beginning"
        )
    return text


def as_name(text: str, default: str) -> str:
    """Return the text as a name that `check_name` accepts; `default` where nothing is left of it."""
    name = _CONTROL.sub("-", text).replace("/", "-").replace("\\", "-").lstrip(".")
    name = name.encode()[:MOST_NAME_BYTES].decode(errors="ignore")
    return name if name.strip() else default


def check_label(text: str) -> str:
    """Return the text; ValueError where it is empty, too long for a table, or has control characters."""
    if not text.strip() or len(text) > MOST_NAME_BYTES or _CONTROL.search(text):
        raise ValueError(f"{excerpt(text)}: use 1 to {MOST_NAME_BYTES} characters without control characters")
    return text


Name = Annotated[str, AfterValidator(check_name)]  # of files and folders
Label = Annotated[str, AfterValidator(check_label)]  # in tables alone
Seed = Annotated[int, Field(ge=0, lt=2**63)]
Tokens = Annotated[int, Field(gt=0, le=MOST_TOKENS)]
BatchTokens = Annotated[int, Field(gt=0, le=10_000_000)]  # vectors of 1,024 numbers take 40 GB
Rows = Annotated[int, Field(gt=0, le=MOST_ROWS)]
Steps = Annotated[int, Field(gt=0)]
Epochs = Annotated[int, Field(gt=0, le=1_000_000)]
Units = Annotated[int, Field(gt=0, le=65_536)]  # of a layer: the largest published ones have 53,248
VocabularySize = Annotated[int, Field(gt=0, le=10_000_000)]  # forty times the largest published ones


# -- marks -------------------------------------------------------------------------------------------------------------
# A mark stands inside an annotation: Annotated[str, PathMark(...)]. Pydantic ignores it; config/paths.py reads it.


@dataclass(frozen=True)
class PathMark:
    """Says which texts of a key are paths, relative to the recipe's folder. In a field of type Path all of them are.

    `is_path` gets the text, and the folder that a relative path would start at. `unless` is a key of the same section
    beside which no text is a path.
    """

    is_path: Callable[[str, Path], bool]
    unless: str | None = None


class Mark(Enum):
    """What else the values of a key are."""

    CHANGES = "dotted keys of the recipe with their values"
    GRID = "dotted keys of the recipe with lists of values"
    LABELS = "labels that are compared, not counted: booleans are allowed, and mean 1 and 0"


def _is_model_path(text: str, folder: Path) -> bool:
    """Return whether a model's name is a path, by its beginning, or since there is such a file or folder.

    Libraries take a folder named like an id of the hub for the model as well. `{task}` stands for any text.
    """
    if text.startswith((".", "~")):
        return True
    if "\0" in text:  # in no path: the system raises
        return False
    pattern = glob.escape(str(folder / text)).replace("{task}", "*")
    return bool(glob.glob(pattern))  # noqa: PTH207 - it may be absolute


FolderOrId = Annotated[str, PathMark(_is_model_path)]  # else an id of the hub
# "teacher" is the teacher's model, also beside a folder of that name
StudentModelName = Annotated[str, PathMark(lambda text, folder: text != "teacher" and _is_model_path(text, folder))]
TeacherModelName = Annotated[str, PathMark(_is_model_path, unless="api")]  # there it is the server's name of a model
CodeName = Annotated[str, PathMark(lambda text, _: text.endswith(".py"))]  # else the name of a method
IndexName = Annotated[Path | str, PathMark(lambda text, _: "://" not in text)]  # else an address
WorkingPath = Annotated[Path, PathMark(lambda text, _: text.startswith("~"))]  # stays relative to the current folder
Changes = Annotated[dict[str, Any], Mark.CHANGES]
Grid = Annotated[dict[str, Annotated[list[Any], Field(min_length=1)]], Mark.GRID]


def key(default: Any, description: str, **limits: float) -> Any:
    """A field with its default, description and limits (gt, ge, lt, le, min_length)."""
    return Field(default, description=description, **limits)  # type: ignore[call-overload]


class Section(BaseModel):
    """A part of a recipe. Unknown keys, booleans for numbers, NaN and infinity are refused."""

    model_config = ConfigDict(extra="forbid", frozen=True, protected_namespaces=(), allow_inf_nan=False)
    one_of: ClassVar[tuple[str, ...]] = ()  # keys of which exactly one is given
    text_key: ClassVar[str | None] = None  # a text in place of the section is this key (config/paths.py)

    @field_validator("*", mode="before")
    @classmethod
    def check_numbers(cls, value: Any, info: ValidationInfo) -> Any:
        """Refuse a boolean for a number, and numbers that are not finite, at any depth."""
        annotation = child(cls, info.field_name)
        if problem := _number_problem(annotation, value, labels=Mark.LABELS in marks(annotation)):
            raise ValueError(f"{problem}; found {excerpt(value)}")
        return value

    @field_validator("*", mode="before")
    @classmethod
    def check_passwords(cls, value: Any, info: ValidationInfo) -> Any:
        """Refuse an address with a password in any key: recipes, reports and logs would show it. It is not quoted."""
        if _has_password(child(cls, info.field_name), value):
            raise ValueError(
                "the address holds a password, which would end up in recipes and logs. Remove it, and set an "
                "environment variable instead. An @ that belongs to a path or name is written as %40"
            )
        return value

    @model_validator(mode="after")
    def check_one_of(self) -> Self:
        """Refuse none or several of the keys in `one_of`."""
        present = [name for name in self.one_of if getattr(self, name) is not None]
        if self.one_of and len(present) != 1:
            *names, last = map(repr, self.one_of)
            problem = f"give exactly one of {', '.join(names)} and {last}"
            if present and "model" in self.one_of:
                problem += f"; found both. To replace the recipe's, set the whole section: {{{present[0]}: ...}}"
            raise ValueError(problem)
        return self

    def refuse_unread(self, names: Iterable[str], reader: str) -> None:
        """Refuse keys that `reader`, of this section, does not read, unless they have their defaults."""
        for name in names:
            value = getattr(self, name)
            if value != type(self).model_fields[name].default:
                raise refused(name, f"found {excerpt(value)}; {reader} does not read this key. Remove it")


def refused(field: str, problem: str) -> PydanticCustomError:
    """The error of a section's validator, under the key of one of the section's fields."""
    return PydanticCustomError("value_error", "{problem}", {"problem": problem, "field": field})


def _number_problem(annotation: Any, value: Any, labels: bool) -> str | None:
    """Why a value is not a number of the annotation; None if it is, or where a section checks its own fields."""
    allowed = kinds(annotation)
    if isinstance(value, bool):
        wants_number = bool not in allowed and (int in allowed or float in allowed)
        return "expected a number, not a boolean" if wants_number and not labels else None
    if isinstance(value, float) and not math.isfinite(value):
        return "expected finite numbers"
    items: Iterable[tuple[Any, Any]] = ()
    if isinstance(value, dict) and not any(map(is_section, allowed)):
        items = value.items()
    elif isinstance(value, (list, tuple)):
        items = enumerate(value)
    for part, item in items:
        if problem := _number_problem(child(annotation, part), item, labels):
            return problem
    return None


def _has_password(annotation: Any, value: Any) -> bool:
    """Whether a value is or holds an address with a password; sections inside check their own fields."""
    if isinstance(value, (str, Path)):
        return Address.parse(value).had_secret
    if isinstance(value, dict) and not any(map(is_section, kinds(annotation))):
        return any(_has_password(child(annotation, part), item) for part, item in value.items())
    if isinstance(value, (list, tuple)):
        return any(_has_password(child(annotation, part), item) for part, item in enumerate(value))
    return False


# -- annotations -----------------------------------------------------------------------------------------------------


def kinds(annotation: Any) -> tuple[Any, ...]:
    """The types that an annotation allows, one by one, without None."""
    origin = get_origin(annotation)
    if origin is Annotated:
        return kinds(get_args(annotation)[0])
    if origin in (Union, types.UnionType):
        return tuple(kind for part in get_args(annotation) for kind in kinds(part))
    return () if annotation in (None, type(None)) else (annotation,)


def is_section(kind: Any) -> bool:
    """Return whether a type is a Section."""
    return isinstance(kind, type) and issubclass(kind, Section)


def child(annotation: Any, part: Any) -> Any:
    """The annotation at a key or index inside a value; None where the annotation has nothing there."""
    for kind in kinds(annotation):
        origin, inner = get_origin(kind), get_args(kind)
        if is_section(kind) and part in kind.model_fields:
            field = kind.model_fields[part]
            return Annotated[(field.annotation, *field.metadata)] if field.metadata else field.annotation
        if origin is dict:
            return inner[1]
        if origin in (list, tuple) and isinstance(part, int):
            return inner[min(part, len(inner) - 1)]
    return None


def marks(annotation: Any) -> tuple[Any, ...]:
    """The metadata of an annotation and of the types that it allows."""
    origin = get_origin(annotation)
    if origin is Annotated:
        inner, *metadata = get_args(annotation)
        return (*metadata, *marks(inner))
    if origin in (Union, types.UnionType):
        return tuple(mark for part in get_args(annotation) for mark in marks(part))
    return ()


# -- problems ---------------------------------------------------------------------------------------------------------


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
        count = f"{len(self.problems)} problem{'s' if len(self.problems) > 1 else ''}"
        return "\n  ".join([f"{self.origin}: {count}.", *map(str, self.problems)])


def invalid(key: str, origin: str | None, problems: Sequence[DistilvecError]) -> DistilvecError:
    """The error for a recipe or section: its one problem under the problem's own key, or a list of them under `key`."""
    if len(problems) > 1:
        return Problems(origin or "the recipe", problems, key)
    (error,) = problems
    place = f" In {origin}." if origin else ""
    return DistilvecError(f"{error.problem} {error.fix}".rstrip() + place, key=error.key)


def explain(error: ValidationError, section: type[Section], before: str = "") -> list[DistilvecError]:
    """Every problem that pydantic found in a section; `before` precedes every key."""
    problems: dict[str, str] = {}
    for problem in error.errors():
        # Of a key that allows several types the first problem is told
        problems.setdefault(_key(problem, section, before), _problem(problem, section))
    errors = []
    for key, text in problems.items():
        is_told_inside = any(inner.startswith(f"{key}.") for inner in problems)  # the value is a section, with problems
        if not is_told_inside:
            errors.append(DistilvecError(text, key=key))
    return errors


def unknown(name: Any, names: Iterable[str]) -> str:
    """The nearest of the names, and all of them: "; did you mean 'epochs'? Known here: ..."."""
    names = list(names)
    return f"{nearest(str(name)[:100], names) or '.'} Known here: {', '.join(names) or 'none'}."


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
    if "field" in problem.get("ctx", {}):
        parts += [problem["ctx"]["field"]]
    return ".".join(map(key_text, parts)) or "recipe"


def _problem(problem: Any, section: type[Section]) -> str:
    if problem["type"] == "extra_forbidden":
        inner: Any = section
        for part in problem["loc"][:-1]:
            inner = child(inner, part) or inner  # pydantic's names for the types of a union are not keys
        fields = list(next(kind for kind in kinds(inner) if is_section(kind)).model_fields)
        name = str(problem["loc"][-1])
        is_recipe = {"name", "student"} <= set(fields)
        if is_recipe:
            fields.append("variants")
        deeper = keys_named(name, section)
        if is_recipe and deeper:
            return f"unknown key; did you mean '{deeper[0]}'? `distilvec recipes schema` lists all keys."
        if _SYNONYMS.get(name) in fields:
            name = _SYNONYMS[name]
        return f"unknown key{unknown(name, fields)}"
    text = problem["msg"].removeprefix("Value error, ").rstrip(".")
    value = "" if problem["type"] in ("missing", "value_error") else f"; found {excerpt(problem['input'])}"
    return f"{text}{value}."
