"""The precision of a teacher whose recipe leaves it open (`teacher.dtype: auto`).

bfloat16 where the processor or GPU multiplies it faster than float32, by its features (core/device.py). It is decided
once: the run folder's recipe.yaml has the value, so that a resumed run keeps it on another machine. A machine that
fills a cache which another one has begun takes the precision of that cache. Vectors of both precisions have caches of
their own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Literal

from distilvec.config import recipe as recipes
from distilvec.config.schema import Recipe, TeacherSection
from distilvec.core.artifacts import ArtifactStore
from distilvec.core.device import fast_bf16, pick_device
from distilvec.core.errors import DistilvecError
from distilvec.core.run_folder import RunFolder
from distilvec.core.storage import Remote
from distilvec.data.corpus import Corpus
from distilvec.pipeline.caches import cache_folder
from distilvec.teachers.cache.fill import count_missing, superset_caches
from distilvec.teachers.cache.manifest import Manifest
from distilvec.teachers.cache.parts import is_part, part_folders
from distilvec.teachers.cache.store import MANIFEST, TeacherCache

Dtype = Literal["float32", "bfloat16"]
DTYPES: tuple[Dtype, ...] = ("float32", "bfloat16")


def is_open(section: TeacherSection) -> bool:
    """Whether the precision of a teacher is still to be decided: that of a model on this machine alone."""
    return section.dtype == "auto" and section.local_model is not None


def hardware_dtype(device: str) -> Dtype:
    """Return the precision that the device computes faster; `device` as in train.device."""
    return "bfloat16" if fast_bf16(pick_device(device)) else "float32"


def with_dtype(manifest: Manifest, section: TeacherSection, dtype: str) -> Manifest:
    """Return a teacher's manifest for another precision."""
    words = [dtype] if section.quantize is None else [dtype, section.quantize]
    return replace(manifest, compute_dtype=" ".join(words))


def with_earlier_dtypes(recipe: Recipe, run: RunFolder) -> Recipe:
    """Return the recipe with the precisions that an earlier run in its folder has decided for the same teachers."""
    if not run.marker.exists() or not run.recipe.exists():
        return recipe
    try:
        earlier = recipes.load(run.recipe)
    except DistilvecError:  # written by hand, or by another version: `claim_folder` compares it with this one
        return recipe
    now, before = ([one.teacher, *one.more_teachers] for one in (recipe, earlier))
    unchanged = [
        one.model_dump(exclude={"dtype"}) == other.model_dump(exclude={"dtype"})
        for one, other in zip(now, before, strict=False)
    ]
    return with_dtypes(recipe, before) if len(now) == len(before) and all(unchanged) else recipe


def with_dtypes(recipe: Recipe, decided: Sequence[TeacherSection]) -> Recipe:
    """Return the recipe with the precisions of these sections, which are its teachers', where it leaves them open."""
    sections = [
        section.model_copy(update={"dtype": other.dtype}) if is_open(section) else section
        for section, other in zip([recipe.teacher, *recipe.more_teachers], decided, strict=True)
    ]
    return recipe.model_copy(update={"teacher": sections[0], "more_teachers": sections[1:]})


def begun_dtype(
    recipe: Recipe, store: ArtifactStore, teacher: str, manifests: Mapping[Dtype, Manifest], corpus: Corpus
) -> Dtype | None:
    """Return the precision in which a teacher's vectors of the corpus have been begun; None for none.

    Of two it is the one with more of the corpus's texts, on a tie the first of `manifests`. A remote cache comes before
    the folders on this machine.
    """
    folders = {dtype: cache_folder(recipe, store, teacher, one.fingerprint) for dtype, one in manifests.items()}
    if recipe.cache.remote is not None:
        names = Remote(recipe.cache.remote, "cache.remote").folders()
        pushed = [dtype for dtype, folder in folders.items() if _is_among(folder, names)]
        if len(pushed) == 1:
            return pushed[0]
    rows: dict[Dtype, int] = {}
    for dtype, folder in folders.items():
        count = _begun_rows(folder, manifests[dtype].fingerprint, corpus)
        if count is not None:
            rows[dtype] = count
    return max(rows, key=lambda dtype: rows[dtype], default=None)


def _is_among(folder: Path, names: Sequence[str]) -> bool:
    return any(name == folder.name or is_part(name, folder) for name in names)


def _begun_rows(folder: Path, fingerprint: str, corpus: Corpus) -> int | None:
    """Count the corpus's texts in a cache, or in one with more signals next to it; None if it has not been begun.

    A cache that holds other texts alone has not: its precision may be another machine's choice of long ago.
    """
    caches = superset_caches(folder, fingerprint)
    with suppress(DistilvecError):  # a damaged cache: reported when it is opened
        if (folder / MANIFEST).exists():
            cache = TeacherCache.open(folder)
            if fingerprint in (cache.manifest.fingerprint, *cache.manifest.subsets):
                caches.append(cache)
    rows = max((len(corpus) - count_missing(cache, corpus) for cache in caches), default=0)
    is_new = any(len(cache) == 0 for cache in caches) or bool(part_folders(folder))
    return rows if rows or is_new else None
