"""From a job to everything that training reads: the student at its start, tokens, alignment, and teachers that answer
from a cache or run in every step.
"""

from __future__ import annotations

import copy
import inspect
from contextlib import nullcontext
from dataclasses import dataclass, replace

import torch
from sentence_transformers import SentenceTransformer
from transformers import PreTrainedTokenizerBase

from distilvec.alignment.store import AlignmentStore, build_alignment
from distilvec.config import recipe as recipes
from distilvec.core.device import pick_device
from distilvec.core.errors import DistilvecError
from distilvec.core.log import begin_phase, log
from distilvec.core.outputs import OutputSpec
from distilvec.core.processes import main_first
from distilvec.data.corpus import Corpus
from distilvec.data.tokens import TokenStore, build_tokens
from distilvec.models.parts import is_static, max_length, text_tokenizer
from distilvec.models.tokenizers import expect_boundary, tokenizer_hash
from distilvec.models.weights import load_mapped, map_weights
from distilvec.pipeline.caches import fill, open_cache, push_cache, reads_tokens
from distilvec.pipeline.data import PreparedData, ReadyTeacher
from distilvec.pipeline.job import START, TEACHER, TEXTS, Job, Teacher
from distilvec.pipeline.objectives import make_objective
from distilvec.pipeline.start import Start, check_start, find_start
from distilvec.pipeline.student import student_tokenizer, trainable, untrained_student
from distilvec.pipeline.texts import progress_logger
from distilvec.students.encoder import Encoder
from distilvec.teachers.cache.fill import count_missing
from distilvec.teachers.cache.store import TeacherCache
from distilvec.teachers.cached import uncached
from distilvec.teachers.model_embedder import ModelEmbedder
from distilvec.train.sharding import shard, sharding
from distilvec.train.stages import check_stage


@dataclass(frozen=True)
class Prepared:
    """Everything that training reads. `student` is at its start; the first stage that is trained changes it."""

    data: PreparedData
    start: Start
    student: Encoder


def prepare(job: Job) -> Prepared:
    """Build the student, make the data ready, fit the start. What is stored is reused."""
    check_shards(job)
    # Where layers are still to be chosen, the student of the chosen ones takes this one's place and is fitted then
    student = untrained_student(job, fitted=not job.recipe.student.chooses)
    check_start(job, student)
    encoder = trainable(job, student)
    for stage in job.stages:
        check_stage(stage, encoder, make_objective(stage, job.context))

    data = prepare_data(job, student)
    job.loaded.release_untaken()
    load_mapped(student)  # where it was built for its description, its weights have waited for the teacher
    begin_phase(START)
    with main_first():
        start, model = find_start(job, data, student)
    if model is not student:
        encoder = trainable(job, model)
    if not sharding(job.recipe.train) and job.recipe.student.lora is None:
        # A copy of the student as training finds it: it is judged and shown beside the trained one
        job.loaded.start = copy.deepcopy(encoder.model)
        map_weights(job.loaded.start, job.store.root)  # until the training is done
    return Prepared(shard_teachers(data), start, encoder)


def prepare_data(job: Job, student: SentenceTransformer) -> PreparedData:
    """Tokenize the corpus for the `student`, align tokens, fill the caches, load live teachers; what is stored is
    reused.
    """
    begin_phase(TEXTS)
    with main_first():
        log_live(job)
        tokens = tokenize_corpus(job, job.corpus, student)
        query_tokens = None if job.pairs is None else tokenize_corpus(job, job.pairs.corpus, student)
        alignment: AlignmentStore | None = None
        ready = []
        begin_phase(TEACHER)
        for teacher in job.teachers:
            ready_teacher, pairs = prepare_teacher(job, teacher, text_tokenizer(student))
            ready.append(ready_teacher)
            alignment = alignment or pairs
    return PreparedData(job, tokens, alignment, tuple(ready), query_tokens)


def cached_teachers(job: Job) -> list[Teacher]:
    """List the teachers that have a cache. DistilvecError if there is none."""
    log_live(job)
    cached = [teacher for teacher in job.teachers if not teacher.live]
    if not cached:
        names = ", ".join(teacher.info.name for teacher in job.teachers)
        raise DistilvecError(
            f"{job.recipe.name} runs {names} in every step: there is nothing to cache.", key="teacher.live"
        )
    return cached


def log_live(job: Job) -> None:
    """Log the teachers that run in every step, with the reason."""
    not_stored = uncached(job.required)
    for teacher in job.teachers:
        if teacher.live:
            reason = f"{teacher.key}.live is set"
            if not_stored:
                reason = f"the method requires {', '.join(not_stored)}, which no cache stores"
            log(f"teacher {teacher.info.name}: runs in every step ({reason})")


def fill_whole_cache(job: Job, teacher: Teacher) -> TeacherCache:
    """Fill a teacher's cache with every row of the corpus; what is stored is kept."""
    cache = prepare_teacher(job, teacher, student_tokenizer(job))[0].cache
    return open_cache(job, teacher) if cache is None else cache


def prepare_teacher(
    job: Job, teacher: Teacher, tokenizer: PreTrainedTokenizerBase | None
) -> tuple[ReadyTeacher, AlignmentStore | None]:
    """Make one teacher ready, with the alignment of its tokens if the method requires one.

    `tokenizer` is the student's, None if the method aligns no tokens. A cached teacher's model is loaded if rows are
    missing, or for its tokenizer, and freed at the end.
    """
    if job.required == OutputSpec():
        return ReadyTeacher(teacher), None
    cache = None if teacher.live else open_cache(job, teacher)
    kind = job.required.tokens.alignment if job.required.tokens else None
    if cache is not None and kind is None and not count_missing(cache, teacher.corpus):
        push_cache(job, teacher, cache)
        return ReadyTeacher(teacher, cache), None
    loaded = teacher.load(job.recipe.train.device, teacher.live and sharding(job.recipe.train))
    with nullcontext() if teacher.live else loaded:
        alignment, tokens = None, None
        if isinstance(loaded, ModelEmbedder) and kind is not None:
            assert tokenizer is not None
            alignment = align_tokens(job, tokenizer, loaded)
        if isinstance(loaded, ModelEmbedder) and (teacher.live or reads_tokens(teacher)):
            tokens = tokenize_for(job, teacher, loaded)
        if cache is None:
            assert isinstance(loaded, ModelEmbedder)
            return ReadyTeacher(teacher, None, loaded, tokens), alignment
        if count_missing(cache, teacher.corpus):
            fill(job, teacher, cache, loaded, tokens, alignment)
        else:
            push_cache(job, teacher, cache)
        return ReadyTeacher(teacher, cache), alignment


def check_shards(job: Job) -> None:
    """DistilvecError if a live teacher cannot be sharded, as the recipe requires."""
    for teacher in job.teachers if sharding(job.recipe.train) else ():
        for name in ("quantize", "device_map"):
            if teacher.live and getattr(teacher.section, name) is not None:
                raise DistilvecError(
                    "a live teacher of this kind cannot be sharded.",
                    "Remove the key, or set train.shard=false.",
                    key=f"{teacher.key}.{name}",
                )


def shard_teachers(data: PreparedData) -> PreparedData:
    """Shard the live teachers over the processes, if the recipe asks for it. All processes call this."""
    if not sharding(data.job.recipe.train):
        return data
    teachers = []
    for teacher in data.teachers:
        encoder = None
        if teacher.model is not None:
            encoder = Encoder(teacher.model.model.requires_grad_(False))
            shard(encoder, torch.device(pick_device(data.job.recipe.train.device)))
        teachers.append(replace(teacher, encoder=encoder))
    return replace(data, teachers=tuple(teachers))


def tokenize_corpus(job: Job, corpus: Corpus, student: SentenceTransformer) -> TokenStore:
    """Tokenize the corpus for the student; stored by content."""
    tokenizer, length = text_tokenizer(student), max_length(student)
    if corpus.paired and not is_static(student):  # the mean of a table's rows has no order
        expect_boundary(tokenizer)
    name = recipes.fingerprint(corpus.fingerprint, length, tokenizer_hash(tokenizer))
    return build_tokens(
        corpus, tokenizer, length, job.store.folder("tokens", name), progress_logger(), _reads_types(student)
    )


def tokenize_for(job: Job, teacher: Teacher, model: ModelEmbedder) -> TokenStore:
    """Tokenize the corpus for a teacher; stored by content."""
    tokenizer, length = model.model.tokenizer, model.max_length
    side = getattr(tokenizer, "truncation_side", "right")
    parts = [teacher.corpus.fingerprint, length, tokenizer_hash(tokenizer)]
    if side == "left":
        parts.append(side)
    folder = job.store.folder("tokens", recipes.fingerprint(*parts))
    return build_tokens(teacher.corpus, tokenizer, length, folder, token_types=_reads_types(model.model), side=side)


def align_tokens(job: Job, tokenizer: PreTrainedTokenizerBase, model: ModelEmbedder) -> AlignmentStore:
    """Align the tokens of the student's tokenizer with the teacher's; stored by content."""
    assert job.required.tokens is not None and job.required.tokens.alignment is not None
    kind, length = job.required.tokens.alignment, job.student_length
    teacher_tokenizer, teacher_length = model.model.tokenizer, model.max_length
    hashes = [tokenizer_hash(tokenizer), length, tokenizer_hash(teacher_tokenizer), teacher_length]
    folder = job.store.folder("alignments", recipes.fingerprint(job.corpus.fingerprint, kind, *hashes))
    return build_alignment(job.corpus, tokenizer, length, teacher_tokenizer, teacher_length, kind, folder)


def _reads_types(model: SentenceTransformer) -> bool:
    """Whether the model has a backbone that reads token types (BERT's segments)."""
    return not is_static(model) and "token_type_ids" in inspect.signature(model[0].auto_model.forward).parameters
