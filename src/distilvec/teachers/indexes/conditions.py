"""The conditions of `teacher.where`: which rows of an index are read. Columns narrow, values of one column widen.

A value is one of its column's type: "2024" is a number in a column of numbers. None is a row without a value.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from distilvec.core.arrow import top_column
from distilvec.core.errors import DistilvecError, about
from distilvec.data.readers import field_of
from distilvec.data.task_rows import shown_value, some_of
from distilvec.teachers.cache.columns import check_column

Value = str | int | bool | None  # of a recipe; those of the command line are texts
Where = Mapping[str, Sequence[Value]]

KEY = "teacher.where"
_BOOLEANS = {"true": True, "1": True, "false": False, "0": False}
_SCANNED = 100_000  # values of a column, for a message


def read_where(where: Mapping[str, Value | list[Value]] | None) -> dict[str, list[Value]]:
    """Return the values of each column as a list."""
    return {name: values if isinstance(values, list) else [values] for name, values in (where or {}).items()}


def check_names(where: Where, names: Sequence[str], origin: str) -> None:
    """DistilvecError for a column that the index does not have."""
    for name in where:
        check_column(name, names, origin, KEY)


def no_row(where: Where, values: Iterable[tuple[str, Iterable[Any]]], origin: str) -> DistilvecError:
    """Return the error for conditions that no row meets: it says which values there are of each column."""
    conditions = []
    for name, allowed in where.items():
        conditions += [f"{name}={'null' if value is None else text_of(value)}" for value in allowed]
    parts = []
    for name, column in values:
        distinct: dict[str, None] = {}
        for _, value in zip(range(_SCANNED), column, strict=False):
            distinct[shown_value(value) if value is not None else "null"] = None
        parts.append(f"{name} has {some_of(distinct) or 'no value'}")
    problem = f"{origin} has no row with {' and '.join(conditions)}: {'; '.join(parts)}."
    return DistilvecError(problem, "Name values that there are.", key=KEY)


def meets(where: Where, row: Mapping[str, Any]) -> bool:
    """Whether a row has an allowed value in each column; names may be those of inner fields."""
    return all(is_allowed(field_of(row, name), allowed) for name, allowed in where.items())


def is_allowed(value: Any, allowed: Sequence[Value]) -> bool:
    """Whether a value is one of those allowed; of a list one of its values is enough."""
    if value is None:
        return None in allowed
    if isinstance(value, list):
        return any(is_allowed(item, allowed) for item in value)
    for candidate in allowed:
        if candidate is None:
            continue
        if isinstance(value, bool):
            if as_boolean(candidate) is value:
                return True
        elif isinstance(value, (int, float)):
            if as_number(candidate) == value:
                return True
        elif str(value) == text_of(candidate):
            return True
    return False


def text_of(value: str | int) -> str:
    """A value in the words of the command line: a recipe's true is "true"."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def as_boolean(value: str | int) -> bool | None:
    """True or False by its word or number; None for another value."""
    return _BOOLEANS.get(text_of(value).lower())


def as_number(value: str | int) -> int | float | None:
    """A whole number as such, which may have more digits than a float; None for what is no number."""
    try:
        return int(value)
    except ValueError:
        try:
            return float(value)
        except ValueError:
            return None


def sql_condition(where: Where, column: Callable[[str], str], placeholder: str) -> tuple[str, list[str]]:
    """The conditions in SQL, and their parameters as texts, which a database reads as values of the columns' types.

    `column` gives the SQL of a column, and `placeholder` stands for a parameter.
    """
    conditions = ["TRUE"]
    parameters = []
    for name, allowed in where.items():
        either = []
        for value in allowed:
            if value is None:
                either.append(f"{column(name)} IS NULL")
            else:
                either.append(f"{column(name)} = {placeholder}")
                parameters.append(text_of(value))
        conditions.append(f"({' OR '.join(either)})")
    return " AND ".join(conditions), parameters


def arrow_condition(where: Where, schema: pa.Schema) -> pc.Expression | None:
    """The conditions as an expression of Arrow; None where there are none."""
    whole: pc.Expression | None = None
    for name, allowed in where.items():
        top = top_column(name, schema.names)
        names = [top] if name == top else [top, *name[len(top) + 1 :].split(".")]
        kind = schema.field(top).type
        for inner in names[1:]:
            kind = kind.field(inner).type
        field = pc.field(*names)
        if pa.types.is_dictionary(kind):
            kind = kind.value_type
            field = field.cast(kind)
        condition = field.isin(pa.array(arrow_values(name, allowed, kind), kind))
        if None in allowed:
            condition = condition | field.is_null()
        whole = condition if whole is None else whole & condition
    return whole


def arrow_values(name: str, allowed: Sequence[Value], kind: pa.DataType) -> list[Any]:
    """The allowed values but None, in the type of their column."""
    values = []
    for value in allowed:
        if value is not None:
            with about(KEY, name):
                values.append(pa.scalar(text_of(value)).cast(kind).as_py())
    return values
