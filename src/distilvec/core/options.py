"""Options of methods: annotations with ranges, and the one check of a recipe's `method.options`.

Options outside their annotation are refused before the method is built. A range that depends on the models is checked
by the method, with `option_error`.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Iterable, Sequence
from types import SimpleNamespace, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

from pydantic import Field, TypeAdapter, ValidationError

from distilvec.core.errors import DistilvecError, nearest

Share = Annotated[float, Field(ge=0, le=1)]
Positive = Annotated[float, Field(gt=0)]
NonNegative = Annotated[float, Field(ge=0)]
Count = Annotated[int, Field(ge=1)]

_PLAIN = {float: "a number", int: "a whole number", bool: "true or false", str: "text", type(None): "null"}
_BOUNDS = {"gt": "above", "ge": "of at least", "lt": "below", "le": "of at most", "min_length": "of at least length"}


def check_options(name: str, constructor: Callable[..., None], options: dict[str, Any]) -> None:
    """Check options against a constructor: names, those without default, types and ranges.

    The first three parameters (self, context, weights) are not options. A list may be given for a tuple, a whole number
    for a float.
    """
    parameters = dict(list(inspect.signature(constructor).parameters.items())[3:])
    refuse_unknown(options, parameters, "method.options", f"{name} has no option")
    for option, parameter in parameters.items():
        required = parameter.default is parameter.empty and parameter.kind is not parameter.VAR_KEYWORD
        if required and option not in options:
            raise DistilvecError(
                f"is missing, and {name} has no default for it.", "Set it.", key=f"method.options.{option}"
            )
    # Other parameters may be of types that the file imports for a checker alone
    own = {name: kind for name, kind in constructor.__annotations__.items() if name in options}
    hints = get_type_hints(
        SimpleNamespace(__annotations__=own), inspect.unwrap(constructor).__globals__, include_extras=True
    )
    for option, value in options.items():
        kind = hints.get(option, Any)
        try:
            adapter = TypeAdapter(kind, config={"arbitrary_types_allowed": True})
            adapter.validate_json(json.dumps(value, default=str), strict=True)
        except ValidationError:
            raise option_error(option, value, in_words(kind)) from None


def option_error(option: str, value: Any, expected: str) -> DistilvecError:
    """Return the error for a value of `method.options` outside of its range."""
    return DistilvecError(
        f"found {value!r}; expected {expected}.", "Correct the option.", key=f"method.options.{option}"
    )


def refuse_unknown(given: Iterable[str], allowed_names: Iterable[str], key: str, problem: str) -> None:
    """Raise the error for the first of `given` that is not among `allowed_names`, with the most similar of these."""
    allowed_names = list(allowed_names)
    for name in given:
        if name not in allowed_names:
            hint = nearest(name, allowed_names) or "."
            raise DistilvecError(
                f"{problem} '{name}'{hint} Known: {', '.join(allowed_names) or 'none'}.", key=f"{key}.{name}"
            )


def in_words(kind: Any) -> str:
    """Return an annotation as readers of recipes know it."""
    origin, parts = get_origin(kind), get_args(kind)
    if origin is Annotated:
        bounds = []
        for part in parts[1:]:
            # pydantic's Field has a list of limits, another annotation is one itself
            for limit in getattr(part, "metadata", [part]):
                bounds += [f"{words} {getattr(limit, key)}" for key, words in _BOUNDS.items() if hasattr(limit, key)]
        return f"{in_words(parts[0])} {' and '.join(bounds)}"
    if origin is Literal:
        return f"one of {', '.join(map(str, parts))}"
    if origin in (Union, UnionType):
        return " or ".join(map(in_words, parts))
    if origin in (list, tuple, Sequence):
        return f"a list of these: {in_words(parts[0])}"
    if origin is dict:
        return "a mapping"
    return _PLAIN.get(kind, getattr(kind, "__name__", str(kind)))
