"""The cache of a job's teacher: its folder, and how it is filled."""

from __future__ import annotations

import re
from contextlib import closing
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from distilvec.alignment.store import AlignmentStore
from distilvec.config.schema import Recipe
from distilvec.core.artifacts import ArtifactStore
from distilvec.core.errors import DistilvecError, about
from distilvec.core.log import progress
from distilvec.core.outputs import OutputSpec
from distilvec.core.storage import Pusher, Remote
from distilvec.data.corpus_files import KEY_BYTES, Rows
from distilvec.data.tokens import TokenStore
from distilvec.pipeline.job import Job, Teacher
from distilvec.teachers.cache.fill import (
    TOKEN_SHARD_ROWS,
    FillSteps,
    TokenSource,
    complete_cache,
    compute_tokens,
    count_missing,
    fill_steps,
    superset_caches,
)
from distilvec.teachers.cache.store import MANIFEST, TeacherCache
from distilvec.teachers.cached import LiveTeacher
from distilvec.teachers.embedder import is_table
from distilvec.teachers.encode import BATCH_TOKENS, batch_budget
from distilvec.teachers.model_embedder import ModelEmbedder
from distilvec.teachers.open import OpenTeacher
from distilvec.teachers.sources import source_kind

OFFSET_BYTES = 8  # of a row's offset in a signal of uneven length


def cache_folder(recipe: Recipe, store: ArtifactStore, teacher: str, fingerprint: str) -> Path:
    """Return the folder of a teacher's cache. With `cache.path` each of several teachers has a folder below it."""
    path, several = recipe.cache.path, bool(recipe.more_teachers)
    if path is not None and not several:
        return path
    if path is not None and (path / MANIFEST).exists():
        raise DistilvecError(
            f"{path} is the cache of one teacher; the recipe has {1 + len(recipe.more_teachers)}.",
            "Choose another folder, or remove cache.path.",
            key="cache.path",
        )
    name = f"{re.sub(r'[^A-Za-z0-9.]+', '-', teacher).strip('-')}-{fingerprint}"
    return store.folder("teachers", name) if path is None else path / name


def find_cache(recipe: Recipe, store: ArtifactStore, teacher: str, fingerprint: str) -> TeacherCache:
    """Open the cache that a finished run was trained from, or a superset of it."""
    folder = cache_folder(recipe, store, teacher, fingerprint)
    pull_cache(recipe, folder)
    if folder.exists():
        return TeacherCache.open(folder)
    if supersets := superset_caches(folder, fingerprint):
        return max(supersets, key=len)
    raise DistilvecError(
        f"the vectors of {teacher} are no longer in {folder}.",
        "Compute them again: distilvec cache fill with the run's recipe.yaml.",
        key="cache",
    )


def remote_cache(recipe: Recipe, folder: Path) -> Remote | None:
    """Return the remote copy of a cache's folder, below `cache.remote` under the folder's name; None without it."""
    if recipe.cache.remote is None:
        return None
    with about("cache.remote"):
        return Remote(recipe.cache.remote).below(folder.name)


def pull_cache(recipe: Recipe, folder: Path) -> None:
    """Make a cache's folder equal to its remote copy, if the recipe and the address have one."""
    if remote := remote_cache(recipe, folder):
        remote.pull(folder)


def folder_of_cache(job: Job, teacher: Teacher) -> Path:
    """Return the folder of the cache of a job's teacher, whether it exists or not."""
    return cache_folder(job.recipe, job.store, teacher.info.name, teacher.manifest.fingerprint)


def superset_cache(job: Job, teacher: Teacher) -> TeacherCache | None:
    """Find a complete cache that stores more than is required; None with `cache.path`."""
    folder = folder_of_cache(job, teacher)
    if folder == job.recipe.cache.path:
        return None
    return complete_cache(folder, teacher.manifest.fingerprint, teacher.corpus)


def open_cache(job: Job, teacher: Teacher) -> TeacherCache:
    """Open a complete superset of the teacher's cache, else its own; with `cache.remote` as it is there."""
    superset = superset_cache(job, teacher)
    return own_cache(job, teacher) if superset is None else superset


def begun_cache(job: Job, teacher: Teacher) -> TeacherCache | None:
    """Open the teacher's cache, or a complete superset of it; None where nothing is stored yet."""
    folder, cache = folder_of_cache(job, teacher), superset_cache(job, teacher)
    if cache is None and folder.exists() and (folder.is_file() or any(folder.iterdir())):
        cache = open_cache(job, teacher)
    return cache


def missing_rows(job: Job, teacher: Teacher) -> tuple[Path, int]:
    """Return the folder of the teacher's cache, or of a superset, and the number of rows that it lacks."""
    cache = begun_cache(job, teacher)
    if cache is None:
        return folder_of_cache(job, teacher), len(teacher.corpus)
    return cache.folder, count_missing(cache, teacher.corpus)


def cached_vectors(job: Job, rows: Any) -> Any:
    """Read the teacher's vectors of rows of the corpus from its cache; None without a cache, or where it lacks one."""
    teacher = job.teacher
    if teacher.live:
        return None
    cache = superset_cache(job, teacher)
    if cache is None and not folder_of_cache(job, teacher).exists():
        return None
    cache = own_cache(job, teacher) if cache is None else cache
    positions = cache.positions(teacher.corpus.keys[rows])
    return None if (positions < 0).any() else cache.read(positions)


def own_cache(job: Job, teacher: Teacher) -> TeacherCache:
    """Open or create the cache of exactly the required signals; with `cache.path` that folder as it is."""
    rows = job.recipe.cache.shard_rows
    pull_cache(job.recipe, folder_of_cache(job, teacher))
    made_by = teacher.section.made_by
    costs_money = teacher.section.api is not None or (made_by is not None and source_kind(made_by) == "api")
    if teacher.manifest.tokens is not None or costs_money:  # what a kill loses is not in a shard yet
        rows = min(rows, TOKEN_SHARD_ROWS)
    return TeacherCache.create_or_open(folder_of_cache(job, teacher), teacher.manifest, rows)


def fill(
    job: Job, teacher: Teacher, cache: TeacherCache, model: OpenTeacher,
    tokens: TokenStore | None, alignment: AlignmentStore | None,
) -> None:  # fmt: skip
    """Compute the rows of the corpus that the cache lacks."""
    corpus, missing = teacher.corpus, count_missing(cache, teacher.corpus)
    _refuse_other_signals(cache, teacher, missing)
    what = "teacher table" if is_table(model) else "teacher"
    what = f"{what} {teacher.info.name}" if len(job.teachers) > 1 else what
    if tokens is None or not isinstance(model, ModelEmbedder):
        steps = model.fill_steps(cache, corpus)
    else:
        source = token_source(job, teacher, model, tokens, alignment)
        steps = fill_steps(cache, corpus, partial(compute_tokens, cache.manifest, corpus, source))
    with about(teacher.key):
        show_filling(job, cache, what, steps, len(corpus), len(corpus) - missing)


def show_filling(job: Job, cache: TeacherCache, what: str, steps: FillSteps, texts: int, done: int = 0) -> None:
    """Fill a cache by these steps and show them; with `cache.remote` it is pushed each minute, and at the end."""
    remote = remote_cache(job.recipe, cache.folder)
    push = None if remote is None else Pusher(remote, cache.folder)
    # closing: the cache is held for writing until the last step
    with progress(what, texts, "texts", done) as advance, closing(steps):
        for step in steps:
            advance(step.done, step.note, step.work)
            if push is not None:
                push()
    if remote is not None:
        remote.push(cache.folder)


def push_cache(job: Job, teacher: Teacher, cache: TeacherCache) -> None:
    """Send what `cache.remote` lacks of a complete cache: the command that filled it may have been killed on the way.

    A superset is another recipe's, which has not been compared with the address.
    """
    remote = remote_cache(job.recipe, cache.folder)
    if remote is not None and cache.folder == folder_of_cache(job, teacher):
        remote.push(cache.folder)


def token_source(
    job: Job, teacher: Teacher, model: ModelEmbedder, tokens: TokenStore, alignment: AlignmentStore | None
) -> TokenSource:
    """Combine what token signals are computed from: the model, its tokens of every row, the alignment."""
    required = replace(job.required, logits=False) | OutputSpec(embedding=True, vector=job.required.logits)
    device = model.model.device
    # The default of any device: a batch has the states of all layers
    budget = batch_budget(teacher.section.batch_tokens or BATCH_TOKENS, device)
    return TokenSource(LiveTeacher(model, tokens, required), tokens.lengths, alignment, budget, device)


def bytes_of_a_text(teacher: Teacher, lengths: Rows | None = None, pairs: Rows | None = None) -> float:
    """Return the bytes that a text takes in the teacher's cache, on average.

    `lengths` [n] are the teacher's tokens of some texts, needed for a cache with token signals. `pairs` [n] are those
    of them that are aligned with tokens of the student; by default all.
    """
    size = float(KEY_BYTES)
    settings, info = teacher.manifest.tokens, teacher.info
    for name, signal in teacher.manifest.signals.items():
        item_bytes = signal.width * np.dtype(signal.dtype).itemsize
        if not signal.uneven:
            size += item_bytes
            continue
        assert settings is not None and lengths is not None
        counted_pairs = lengths if pairs is None else pairs
        if settings.special_tokens == "drop":
            counted_pairs = np.maximum(counted_pairs - sum(info.special_tokens or ()), 0)
        size += OFFSET_BYTES + float(settings.items(name, lengths, counted_pairs).mean()) * item_bytes
    return size


def reads_tokens(teacher: Teacher) -> bool:
    """Whether the teacher's cache is filled from its own tokens: it stores more than sentence vectors."""
    return teacher.manifest.tokens is not None or teacher.manifest.vector_width is not None


def _refuse_other_signals(cache: TeacherCache, teacher: Teacher, missing: int) -> None:
    """DistilvecError for a superset that lacks rows: this recipe cannot compute all that it stores."""
    stored, required = cache.manifest, teacher.manifest
    inside = stored.tokens is not None or stored.vector_width is not None
    if inside and stored.signals != required.signals:
        raise DistilvecError(
            f"{cache.folder} lacks {missing:,} of the corpus's rows and stores {', '.join(stored.signals)}; this "
            f"recipe computes {', '.join(required.signals)}.",
            "Fill it with the recipe it was made by, or choose another cache.path.",
            key="cache.path",
        )
