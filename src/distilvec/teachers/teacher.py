"""The interface of a kind of teacher, and the one that a recipe names."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

from distilvec.config.schema import TeacherSection
from distilvec.core.info import TeacherInfo
from distilvec.data.corpus import Corpus
from distilvec.teachers.api import ApiTeacher
from distilvec.teachers.cache.fill import Progress
from distilvec.teachers.cache.manifest import Manifest
from distilvec.teachers.cache.store import TeacherCache
from distilvec.teachers.model import LocalTeacher, load_teacher
from distilvec.teachers.precomputed import VectorsTeacher


class Teacher(Protocol):
    """One kind of teacher. To add a kind:

    1. Write a class with these methods in a new file of this folder; api.py, model.py and precomputed.py are examples.
    2. Add the keys that name it to TeacherSection, and a line to `open_teacher`.

    A kind that computes vectors text by text needs `signals(prompted, pre_dense, progress)`, which returns float32
    [n, dim] by signal, and `fill` is `fill_cache(cache, corpus, self, progress)`. A kind that runs in every step has a
    `model` (LiveTeacher). Its memory is freed at the end of a `with` block; `info()` and `manifest()` come before that.
    """

    name: str

    def info(self) -> TeacherInfo:
        """Description of the teacher: all that students and methods know of it."""
        ...

    def manifest(self, store_dtype: str = "float16", pre_dense: bool = False) -> Manifest:
        """Settings that the vectors depend on; two teachers with equal fingerprints share a cache."""
        ...

    def fill(self, cache: TeacherCache, corpus: Corpus, progress: Progress | None = None) -> None:
        """Append the vectors of the corpus's rows that the cache lacks, as `cache.signals` has them."""
        ...

    def __enter__(self) -> Teacher:
        """The teacher itself."""
        ...

    def __exit__(self, *error: object) -> None:
        """Free the memory."""
        ...


OpenTeacher = LocalTeacher | VectorsTeacher | ApiTeacher


def open_teacher(
    section: TeacherSection, device: str = "auto", counts: Path | None = None, sharded: bool = False
) -> OpenTeacher:
    """The teacher that a recipe names; an API's requests are counted in the file `counts`.

    `sharded`: a model stays on the CPU, since it is going to be sharded.

    Errors: DistilvecError for a model, API or table that cannot be used.
    """
    if section.api is not None:
        return ApiTeacher(section, counts)
    return VectorsTeacher(section) if section.vectors else load_teacher(section, device, sharded=sharded)
