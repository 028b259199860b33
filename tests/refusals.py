"""A block that is refused, by the key of its error: the sentences may change."""

from contextlib import contextmanager

import pytest

from distilvec.core.errors import DistilvecError, about, user_error


@contextmanager
def refused(key, word=""):
    """The block raises what the user can fix (`user_error`) with this key, or one such problem of several.

    The printed text has the word: the name of a file, a number. Code that is called without the `about` of its section
    has a relative key (".model"), or "".
    """
    with pytest.raises(Exception) as caught:
        yield caught
    error = user_error(caught.value)
    if error is None:
        raise caught.value
    problems = getattr(error, "problems", ())
    keys = [error.key, *(problem.key for problem in problems if isinstance(problem, DistilvecError))]
    assert key in keys
    assert word in str(error)


@contextmanager
def refused_teacher(key, word=""):
    """As `refused`, inside the section of a recipe that names the teacher."""
    with refused(key, word) as caught, about("teacher"):
        yield caught
