"""The base of every section of a recipe or suite: refused values, types that sections share, and their annotations."""

from __future__ import annotations

import math
import re
import reprlib
import types
from collections.abc import Iterable
from typing import Annotated, Any, ClassVar, Self, Union, get_args, get_origin

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationInfo, field_validator, model_validator
from pydantic.config import JsonDict
from pydantic_core import PydanticCustomError

# Upper bounds of sizes, each far above what any run takes: a larger number is a typing error.
MOST_TOKENS, MOST_ROWS = 1_000_000, 1_000_000  # of a text; of a batch or shard
MOST_DRAWS = 100_000  # of a bootstrap: an interval's third digit no longer changes
MOST_NAME_BYTES = 200  # file systems allow 255, of which scratch names and endings take some

# Kinds of a field, in its `json_schema_extra`. Fields of type Path are relative to the recipe's folder without one.
MODEL: JsonDict = {"path": "model"}  # a path if it begins with '.', else an id or a folder's name
CODE: JsonDict = {"path": "code"}  # a path if it ends with '.py'
INDEX: JsonDict = {"path": "index"}  # an address if it holds '://', else a path
WORKING: JsonDict = {"path": "working"}  # relative to the current folder
CHANGES: JsonDict = {"path": "changes"}  # dotted keys of the recipe with their values
GRID: JsonDict = {"path": "grid"}  # dotted keys of the recipe with lists of values
LABELS: JsonDict = {"labels": True}  # values that are compared, not counted: booleans are allowed, and mean 1 and 0

_EXCERPT = reprlib.Repr()
_EXCERPT.maxstring = _EXCERPT.maxother = _EXCERPT.maxlong = 60
_EXCERPT.maxlevel, _EXCERPT.maxdict, _EXCERPT.maxlist = 2, 3, 4
_CONTROL = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")


def excerpt(value: Any) -> str:
    """A value for a message: its first part where it is long or deep."""
    return _EXCERPT.repr(value)


def key_text(part: Any) -> str:
    """A key for the brackets of a message: on one line, short, without brackets of its own."""
    text = re.sub(r"[\[\]\s]", "?", _CONTROL.sub("?", str(part)[:61]))
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


def key(default: Any, description: str, extra: JsonDict | None = None, **limits: float) -> Any:
    """A field with its default, description, kind (MODEL, ...) and limits (gt, ge, lt, le, min_length)."""
    return Field(default, description=description, json_schema_extra=extra, **limits)  # type: ignore[call-overload, no-any-return]


class Section(BaseModel):
    """A part of a recipe. Refused are unknown keys, booleans for numbers, NaN and infinity."""

    model_config = ConfigDict(extra="forbid", frozen=True, protected_namespaces=(), allow_inf_nan=False)
    one_of: ClassVar[tuple[str, ...]] = ()  # keys of which exactly one is given

    @field_validator("*", mode="before")
    @classmethod
    def check_numbers(cls, value: Any, info: ValidationInfo) -> Any:
        """Refuse a boolean for a number, and numbers that are not finite, at any depth."""
        field = cls.model_fields[str(info.field_name)]
        if problem := _number_problem(field.annotation, value, field.json_schema_extra == LABELS):
            raise ValueError(f"{problem}; found {excerpt(value)}")
        return value

    @model_validator(mode="after")
    def check_one_of(self) -> Self:
        """Refuse none or several of the keys in `one_of`."""
        given = [name for name in self.one_of if getattr(self, name) is not None]
        if self.one_of and len(given) != 1:
            *names, last = map(repr, self.one_of)
            whole = f"; found both. To replace a recipe's, set the whole section: {{{given[0]}: ...}}" if given else ""
            both = whole if "model" in self.one_of else ""
            raise ValueError(f"give exactly one of {', '.join(names)} and {last}{both}")
        return self


def refused(field: str, problem: str) -> PydanticCustomError:
    """The error of a section's validator, under the key of one of the section's fields."""
    return PydanticCustomError("value_error", "{problem}", {"problem": problem, "field": field})


def _number_problem(annotation: Any, value: Any, labels: bool) -> str | None:
    """Why a value is no number of the annotation; None if it is, or where a section checks its own fields."""
    allowed = kinds(annotation)
    if isinstance(value, dict) and any(map(is_section, allowed)):
        return None
    if isinstance(value, bool):
        number = bool not in allowed and (int in allowed or float in allowed)
        return "expected a number, not a boolean" if number and not labels else None
    if isinstance(value, float) and not math.isfinite(value):
        return "expected finite numbers"
    items: Iterable[tuple[Any, Any]] = value.items() if isinstance(value, dict) else ()
    items = enumerate(value) if isinstance(value, (list, tuple)) else items
    problems = (_number_problem(child(annotation, key), item, labels) for key, item in items)
    return next((problem for problem in problems if problem), None)


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
            return kind.model_fields[part].annotation
        if origin is dict:
            return inner[1]
        if origin in (list, tuple) and isinstance(part, int):
            return inner[min(part, len(inner) - 1)]
    return None


def field_kind(annotation: Any, part: Any) -> Any:
    """The kind (MODEL, ...) of a section's field."""
    fields = (kind.model_fields.get(part) for kind in kinds(annotation) if is_section(kind))
    return next((field.json_schema_extra for field in fields if field is not None), None)
