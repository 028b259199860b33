"""The conditions of `teacher.where`: which rows of an index are read. Columns narrow, values of one column widen.

A value is one of its column's type: "2024" is a number in a column of numbers. None is a row without a value.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from distilvec.core.arrow import top_column
from distilvec.core.errors import DistilvecError, nearest
from distilvec.data.readers import field_of
from distilvec.data.task_rows import shown_value, some_of

Value = str | int | None
Where = Mapping[str, Sequence[Value]]

KEY = "teacher.where"
_TRUE = ("true", "1")
_SCANNED = 100_000  # values of a column, for a message


def read_where(where: Mapping[str, Value | list[Value]] | None) -> dict[str, list[Value]]:
    """Return the values of each column as a list."""
    return {name: values if isinstance(values, list) else [values] for name, values in (where or {}).items()}


def check_names(where: Where, names: Sequence[str], origin: str) -> None:
    """DistilvecError for a column that the index does not have."""
    for name in where:
        if name not in names:
            hint = nearest(name, names) or "."
            raise DistilvecError(f"{origin} has no column '{name}' ({some_of(names)}){hint}", "Correct it.", key=KEY)


def no_row(where: Where, values: Iterable[tuple[str, Iterable[Any]]], origin: str) -> DistilvecError:
    """Return the error for conditions that no row meets: it says which values there are of each column."""
    conditions = []
    for name, allowed in where.items():
        conditions += [f"{name}={'null' if value is None else value}" for value in allowed]
    found = []
    for name, column in values:
        distinct: dict[str, None] = {}
        for _, value in zip(range(_SCANNED), column, strict=False):
            distinct[shown_value(value) if value is not None else "null"] = None
        found.append(f"{name} has {some_of(distinct) or 'no value'}")
    problem = f"{origin} has no row with {' and '.join(conditions)}: {'; '.join(found)}."
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
            if value == (str(candidate).lower() in _TRUE):
                return True
        elif isinstance(value, (int, float)):
            if as_number(candidate) == value:
                return True
        elif str(value) == str(candidate):
            return True
    return False


def as_number(value: str | int) -> int | float | None:
    """A whole number as such, which may have more digits than a float; None for what is no number."""
    try:
        return int(value)
    except ValueError:
        try:
            return float(value)
        except ValueError:
            return None


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
            try:
                values.append(pa.scalar(str(value)).cast(kind).as_py())
            except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
                raise DistilvecError(f"'{name}' holds {kind}; {value!r} is not one.", "Correct it.", key=KEY) from None
    return values
