"""Caches that hold more of a teacher than is wanted: they answer for it, and the teacher need not run again."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from distilvec.core.errors import DistilvecError
from distilvec.data.corpus import Corpus
from distilvec.teachers.cache.fill import count_missing
from distilvec.teachers.cache.manifest import read_manifest
from distilvec.teachers.cache.store import MANIFEST, TeacherCache


def wider_caches(folder: Path, fingerprint: str) -> list[TeacherCache]:
    """The caches beside `folder` that hold all signals of the manifest with this fingerprint, and more; damaged ones are passed over."""
    found = []
    for path in sorted(folder.parent.glob(f"*/{MANIFEST}")):
        with suppress(DistilvecError):
            manifest = read_manifest(path)
            if fingerprint in manifest.answers - {manifest.fingerprint}:
                found.append(TeacherCache.open(path.parent))
    return found


def complete_cache(folder: Path, fingerprint: str, corpus: Corpus) -> TeacherCache | None:
    """A wider cache beside `folder` that has every row of the corpus, where `folder` itself has not; None where there is none."""
    candidates = wider_caches(folder, fingerprint)
    if not candidates or ((folder / MANIFEST).exists() and not count_missing(TeacherCache.open(folder), corpus)):
        return None
    return next((cache for cache in candidates if not count_missing(cache, corpus)), None)
