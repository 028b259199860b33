"""A teacher's cache filled by several processes: on Ray, or in shares without a server (job arrays)."""

from __future__ import annotations

from functools import partial

from distilvec.core.errors import DistilvecError, about
from distilvec.core.log import log
from distilvec.core.storage import Remote
from distilvec.pipeline.caches import (
    open_cache,
    own_cache,
    pull_cache,
    push_cache,
    reads_tokens,
    remote_cache,
    show_filling,
    token_source,
)
from distilvec.pipeline.job import Job, Teacher
from distilvec.pipeline.prepare import align_tokens, tokenize_for
from distilvec.pipeline.student import student_tokenizer
from distilvec.teachers.cache.fill import Compute, compute_tokens, compute_vectors, count_missing, fill_steps
from distilvec.teachers.cache.parts import Share, fill_share, is_part, merge, part_folders
from distilvec.teachers.cache.store import TeacherCache
from distilvec.teachers.model_embedder import ModelEmbedder
from distilvec.teachers.ray_workers import RayOptions, RayWorkers


def fill_on_ray(job: Job, teacher: Teacher, options: RayOptions) -> TeacherCache:
    """Fill the cache by worker processes; this process reads texts and writes shards, and loads no model."""
    _refuse_others(teacher, "--ray")
    if reads_tokens(teacher):
        raise DistilvecError(
            f"{job.recipe.name} stores token signals of {teacher.info.name}; workers on Ray compute sentence vectors "
            "only.",
            "Use --shard i/n and `distilvec cache merge`.",
            key="--ray",
        )
    cache, corpus = open_cache(job, teacher), teacher.corpus
    if not (missing := count_missing(cache, corpus)):
        push_cache(job, teacher, cache)
        return cache
    device, rows = job.recipe.train.device, len(corpus)
    with RayWorkers(options, teacher.section, device, cache.manifest, corpus) as workers, about(teacher.key):
        steps = fill_steps(cache, corpus, workers.compute, workers.ahead)
        show_filling(job, cache, f"teacher {teacher.info.name}", steps, rows, rows - missing)
    return cache


def fill_one_share(job: Job, teacher: Teacher, share: Share) -> TeacherCache:
    """Compute one share of the shards that the cache lacks; return its cache, in a folder next to the whole one."""
    _refuse_others(teacher, "--shard")
    cache, corpus = own_cache(job, teacher), teacher.corpus
    with teacher.load(job.recipe.train.device) as model, about(teacher.key):
        assert isinstance(model, ModelEmbedder)
        compute: Compute = partial(compute_vectors, cache.manifest, corpus, model)
        if reads_tokens(teacher):
            tokenizer = student_tokenizer(job)
            alignment = None if tokenizer is None else align_tokens(job, tokenizer, model)
            source = token_source(job, teacher, model, tokenize_for(job, teacher, model), alignment)
            compute = partial(compute_tokens, cache.manifest, corpus, source)
        pull_cache(job.recipe, share.folder(cache.folder))
        part = share.open(cache)
        steps = fill_share(cache, part, share, corpus, compute)
        show_filling(job, part, f"share {share.number} of {share.count}", steps, len(corpus) // share.count)
        return part


def merge_shares(job: Job, teacher: Teacher) -> TeacherCache:
    """Put the shares next to a teacher's cache into the cache. DistilvecError if rows are missing afterwards."""
    cache = own_cache(job, teacher)
    remotes: dict[str, Remote] = {}  # copies of shares, by the folder's name
    if job.recipe.cache.remote is not None:
        with about("cache.remote"):
            remote_root = Remote(job.recipe.cache.remote)
        remotes = {name: remote_root.below(name) for name in remote_root.folders() if is_part(name, cache.folder)}
    for name, part in remotes.items():
        part.pull(cache.folder.with_name(name))
    folders = part_folders(cache.folder)
    log(f"{merge(cache, folders):,} shards from {len(folders)} folders merged into {cache.folder}")
    if remote := remote_cache(job.recipe, cache.folder):
        remote.push(cache.folder)
    for part in remotes.values():
        part.remove()
    if missing := count_missing(cache, teacher.corpus):
        raise DistilvecError(
            f"{missing:,} of {len(teacher.corpus):,} texts have no vectors in {cache.folder} yet; found were "
            f"{', '.join(folder.name for folder in folders) or 'no shares'}, which are merged.",
            "Compute the other shares, or fill the cache: distilvec cache fill.",
            key="--shard",
        )
    return cache


def _refuse_others(teacher: Teacher, option: str) -> None:
    """DistilvecError for a teacher that is no model on the machine."""
    if teacher.section.local_model is None:
        kind = "is behind an API, whose concurrency is teacher.api.concurrency" if teacher.section.api else "is a table"
        raise DistilvecError(f"the teacher {teacher.info.name} {kind}.", "Leave the option out.", key=option)
