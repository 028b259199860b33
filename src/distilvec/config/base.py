"""The base of every section of a recipe or suite: refused values, and the types that several sections share."""

from __future__ import annotations

import math
import re
import reprlib
import types
from typing import Annotated, Any, Union, get_args, get_origin

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationInfo, field_validator
from pydantic.config import JsonDict

# Upper bounds of sizes. Each is far above what any run takes. A number beyond is a slip of the keyboard that would fill the
# memory or go on for years.
MOST_TOKENS = 1_000_000  # of a text: more than any model reads
MOST_BATCH_TOKENS = 10_000_000  # of a batch: vectors of 1,024 numbers take 40 GB
MOST_ROWS = 1_000_000  # of a batch, a window or a shard: the same
MOST_STEPS = 1_000_000_000  # of training: thirty years at one a second
MOST_EPOCHS = 1_000_000
MOST_UNITS = 65_536  # of a layer: the widest published ones have 53,248
MOST_VOCABULARY = 10_000_000  # tokens: forty times the largest published vocabularies
MOST_DRAWS = 100_000  # of a bootstrap: an interval's third digit no longer changes
MOST_NAME_BYTES = 200  # file systems allow 255, of which scratch names and endings take some

# Marks in a field's `json_schema_extra`.
MODEL: JsonDict = {"path": "model"}  # a path if it begins with '.', else an id or a folder's name
CODE: JsonDict = {"path": "code"}  # a path if it ends with '.py'
WORKING: JsonDict = {"path": "working"}  # relative to the current folder
CHANGES: JsonDict = {"path": "changes"}  # dotted keys of the recipe with their values
GRID: JsonDict = {"path": "grid"}  # dotted keys of the recipe with lists of values
LABELS: JsonDict = {"labels": True}  # values that are compared, not counted: booleans are allowed, and mean 1 and 0

_EXCERPT = reprlib.Repr()
_EXCERPT.maxstring = _EXCERPT.maxother = _EXCERPT.maxlong = 60
_EXCERPT.maxlevel, _EXCERPT.maxdict, _EXCERPT.maxlist = 2, 3, 4
_CONTROL = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")


def excerpt(value: Any) -> str:
    """A value for a message: its first part where it is long, deep or an expanded alias."""
    return _EXCERPT.repr(value)


def key_text(part: Any) -> str:
    """A key for the brackets of a message: on one line, short, without brackets of its own."""
    text = re.sub(r"[\[\]\s]", "?", _CONTROL.sub("?", str(part)[:61]))
    return (text or "''") if len(text) <= 60 else f"{text[:60]}…"


def check_name(text: Any) -> str:
    """The text; ValueError where it could not name a file inside a folder."""
    if not isinstance(text, str):
        raise ValueError(f"expected text; found {excerpt(text)}")
    fits = len(text.encode("utf-8", "surrogatepass")) <= MOST_NAME_BYTES and not _CONTROL.search(text)
    if not fits or not text.strip() or text.startswith(".") or "/" in text or "\\" in text:
        raise ValueError(
            f"{excerpt(text)} cannot name files. Use 1 to {MOST_NAME_BYTES} characters without '/', '\\' and control characters, and "
            "no '.' at the beginning"
        )
    return text


def check_label(text: str) -> str:
    """The text; ValueError where it is empty, too long for a table, or has control characters."""
    if not text.strip() or len(text) > MOST_NAME_BYTES or _CONTROL.search(text):
        raise ValueError(
            f"{excerpt(text)} cannot name anything. Use 1 to {MOST_NAME_BYTES} characters without control characters"
        )
    return text


Name = Annotated[str, AfterValidator(check_name)]  # of files and folders
Label = Annotated[str, AfterValidator(check_label)]  # in tables alone
Seed = Annotated[int, Field(ge=0, lt=2**63)]


class Section(BaseModel):
    """A part of a recipe. Refused are unknown keys, booleans in the place of numbers, NaN and infinity."""

    model_config = ConfigDict(extra="forbid", frozen=True, protected_namespaces=(), allow_inf_nan=False)

    @field_validator("*", mode="before")
    @classmethod
    def check_numbers(cls, value: Any, info: ValidationInfo) -> Any:
        """Refuse a boolean where a number is expected, and numbers that are not finite, at any depth."""
        field = cls.model_fields[str(info.field_name)]
        if not _of_sections(field.annotation) and not_finite(value):
            raise ValueError(f"expected finite numbers; found {excerpt(value)}")
        if field.json_schema_extra != LABELS and _boolean_for_number(field.annotation, value):
            raise ValueError(f"expected a number, not a boolean; found {excerpt(value)}")
        return value


def not_finite(value: Any) -> bool:
    """Whether a value is, or holds at any depth, NaN or infinity."""
    if isinstance(value, dict):
        return any(map(not_finite, value.values()))
    return (
        any(map(not_finite, value))
        if isinstance(value, (list, tuple))
        else isinstance(value, float) and not math.isfinite(value)
    )


def _boolean_for_number(annotation: Any, value: Any) -> bool:
    kinds = members(annotation)
    if isinstance(value, bool):
        return bool not in kinds and (int in kinds or float in kinds)
    if isinstance(value, (list, tuple)):
        return any(_boolean_for_number(child(annotation, place), item) for place, item in enumerate(value))
    if isinstance(value, dict) and not any(is_section(kind) for kind in kinds):
        return any(_boolean_for_number(child(annotation, key), item) for key, item in value.items())
    return False


# -- annotations -----------------------------------------------------------------------------------------------------


def members(annotation: Any) -> tuple[Any, ...]:
    """The types that an annotation allows, one by one, without None."""
    origin = get_origin(annotation)
    if origin is Annotated:
        return members(get_args(annotation)[0])
    if origin in (Union, types.UnionType):
        return tuple(kind for part in get_args(annotation) for kind in members(part))
    return () if annotation in (None, type(None)) else (annotation,)


def is_section(kind: Any) -> bool:
    """Whether a type is a Section."""
    return isinstance(kind, type) and issubclass(kind, Section)


def _of_sections(annotation: Any) -> bool:
    """Whether a value is a section or a list of sections, which check their own fields."""
    return any(map(is_section, (*members(annotation), *members(child(annotation, 0)))))


def child(annotation: Any, part: Any) -> Any:
    """The annotation at a key or place inside a value; None where the annotation has nothing there."""
    for kind in members(annotation):
        origin, inner = get_origin(kind), get_args(kind)
        if is_section(kind) and part in kind.model_fields:
            return kind.model_fields[part].annotation
        if origin is dict:
            return inner[1]
        if origin is list and isinstance(part, int):
            return inner[0]
        if origin is tuple and isinstance(part, int):
            return inner[min(part, len(inner) - 1)]
    return None
