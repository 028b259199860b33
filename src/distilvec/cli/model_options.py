"""Options that several verbs share, and errors that name a verb's options in the place of a recipe's keys."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Annotated

import typer

from distilvec.core.errors import DistilvecError

TrustRemoteCode = Annotated[
    bool, typer.Option("--trust-remote-code", help="Run code that comes with the model; only if you trust its authors.")
]
_SOURCE = re.compile(r"^\[corpus\.sources\.[0-9]+\.(\w+)[^\]\n]*\]", re.MULTILINE)


@contextmanager
def named_options(options: Mapping[str, str]) -> Iterator[None]:
    """Errors inside name options: `options` by the recipe's key; keys of corpus.sources are --column and --texts."""
    try:
        yield
    except DistilvecError as error:
        text = str(error)
        key = re.match(r"\[([^\]\n]+)\]", text)
        if key is not None and key[1] in options:
            text = f"[{options[key[1]]}]{text[key.end() :]}"
        text = _SOURCE.sub(lambda found: "[--column]" if found[1] == "column" else "[--texts]", text)
        if text == str(error):
            raise
        raise DistilvecError(text) from error
