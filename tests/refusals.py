"""A block that is refused, by the key of its error: the sentences may change."""

from contextlib import contextmanager

import pytest

from distilvec.core.errors import DistilvecError


@contextmanager
def refused(key, word=""):
    """The block raises a DistilvecError with this key, or with one such problem among several.

    The printed text has the word: the name of a file, a number.
    """
    with pytest.raises(DistilvecError) as caught:
        yield caught
    problems = getattr(caught.value, "problems", ())
    assert key in [caught.value.key, *(problem.key for problem in problems if isinstance(problem, DistilvecError))]
    assert word in str(caught.value)
