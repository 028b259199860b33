"""One of a run's teachers: what is known of it, its cache, and whether that answers or the model itself in every step."""

from __future__ import annotations

import gc
import inspect
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from transformers import PreTrainedTokenizerBase

from distilvec.alignment.offsets import special_around
from distilvec.alignment.store import AlignmentStore, build_alignment
from distilvec.config import recipe as recipes
from distilvec.config.schema import TeacherSection
from distilvec.core.batch import TextBatch
from distilvec.core.errors import DistilvecError
from distilvec.core.info import UNLIMITED
from distilvec.core.log import log, progress
from distilvec.core.outputs import ModelOutputs, OutputSpec
from distilvec.core.task_head import TaskHead
from distilvec.data.corpus import Corpus, with_prompts
from distilvec.data.tokens import TokenStore, build_tokens
from distilvec.models.tokenizers import plain_copy, tokenizer_hash
from distilvec.pipeline.record import teacher_record
from distilvec.pipeline.supervised import teacher_head
from distilvec.report.model_card import TeacherRecord
from distilvec.students.build import TeacherInfo
from distilvec.teachers.cache.codec import token_settings
from distilvec.teachers.cache.fill import count_missing, fill_cache
from distilvec.teachers.cache.fill_tokens import MOST_ROWS, TokenSource, fill_tokens
from distilvec.teachers.cache.manifest import Manifest
from distilvec.teachers.cache.reuse import complete_cache
from distilvec.teachers.cache.store import MANIFEST, TeacherCache
from distilvec.teachers.encode import CPU_TOKENS
from distilvec.teachers.live import LiveTeacher
from distilvec.teachers.model import LocalTeacher, load_teacher, resolve_model
from distilvec.teachers.precomputed import VectorsTeacher, fill_from_table
from distilvec.train.dataset import CachedTeacher, Teacher, uncached

if TYPE_CHECKING:
    from distilvec.pipeline.run import Run


class NoTeacher:
    """Stands where nothing is wanted of the teacher."""

    def signals(self, batch: TextBatch) -> ModelOutputs:
        """Nothing."""
        return ModelOutputs()


class TeacherSide:
    """One of a run's teachers: the model or table, what is known of it, and its cache. Its parts are lazy, like the run's.

    `key` is where it stands in the recipe: teacher, or more_teachers.0 and so on.
    """

    def __init__(self, run: Run, section: TeacherSection, key: str = "teacher") -> None:
        self.run, self.section, self.key = run, section, key

    # -- what is known of it -----------------------------------------------------------------------------------------

    @cached_property
    def teacher(self) -> LocalTeacher | VectorsTeacher:
        """The teacher, loaded; `release` frees it. Of several teachers, only those that run in every step are in memory together."""
        for side in self.run.sides:
            if side is not self:
                side.release()
        with self._errors():
            return (
                VectorsTeacher(self.section)
                if self.section.vectors
                else load_teacher(self.section, self.run.recipe.train.device)
            )

    @contextmanager
    def _errors(self) -> Iterator[None]:
        """An error inside names the keys of this teacher's own section."""
        try:
            yield
        except DistilvecError as error:
            if "[teacher." not in str(error) or self.key == "teacher":
                raise
            raise DistilvecError(str(error).replace("[teacher.", f"[{self.key}.")) from error

    @cached_property
    def info(self) -> TeacherInfo:
        """What student and method must know of it."""
        teacher, section = self.teacher, self.section
        info = TeacherInfo(
            teacher.width,
            teacher.normalized,
            teacher.max_length or UNLIMITED,
            teacher.prompts,
            resolve_model(section.model) if section.model else None,
            teacher.name,
            section.revision,
            pre_dense_width=teacher.pre_dense_width,
        )
        if not isinstance(teacher, LocalTeacher) or not hasattr(teacher.model[0], "auto_model"):
            return info
        config = teacher.model[0].auto_model.config.get_text_config()
        tokenizer = teacher.model.tokenizer
        return replace(
            info,
            hidden_width=config.hidden_size,
            layers=config.num_hidden_layers,
            heads=config.num_attention_heads,
            tokenizer=tokenizer_hash(tokenizer),
            special=special_tokens(tokenizer),
        )

    @cached_property
    def about(self) -> TeacherRecord:
        """What a record says of it, whatever is wanted of it."""
        return teacher_record(self.teacher, self.own.fingerprint)

    @cached_property
    def own(self) -> Manifest:
        """What its vectors depend on, without what else is wanted of it."""
        with self._errors():
            return self.teacher.manifest(self.run.recipe.cache.dtype)

    @cached_property
    def corpus(self) -> Corpus:
        """The run's corpus as this teacher reads it: behind its own prompts."""
        return with_prompts(self.run.corpus, self.info.prompts, self.run.root / "keys")

    @cached_property
    def head(self) -> TaskHead | None:
        """Its head, where it was fine-tuned for the recipe's task."""
        with self._errors():
            return None if self.run.examples is None else teacher_head(self.section, self.run.examples)

    @cached_property
    def live(self) -> bool:
        """Whether it runs in every step: because the recipe says so, or no cache keeps what is wanted of it."""
        return self.run.required != OutputSpec() and (self.section.live or bool(uncached(self.run.required)))

    @cached_property
    def manifest(self) -> Manifest:
        """What everything that is wanted of it depends on."""
        required, section, made = self.run.required, self.run.recipe.cache, self.own
        if required.pre_dense:
            with self._errors():
                made = self.teacher.manifest(section.dtype, required.pre_dense)
        if required.logits or required.vector:
            made = replace(made, vector_width=self.info.hidden_width)
        if required.tokens is None:
            return made
        tokenizer, length = self.run.student_tokenizer
        settings = token_settings(
            required.tokens, section.hidden, self.info.hidden_width, tokenizer_hash(tokenizer), length
        )
        return replace(made, tokens=settings)

    @property
    def record(self) -> TeacherRecord:
        """Its part of distillation.json."""
        found: TeacherRecord = {**self.about, "fingerprint": self.manifest.fingerprint}
        if self.live:
            found["live"] = True
        return {**found, "weight": self.section.weight} if len(self.run.sides) > 1 else found

    # -- its tokens, the alignment, the cache ------------------------------------------------------------------------

    @cached_property
    def tokens(self) -> TokenStore:
        """Its own tokens of the corpus, kept below the root by content."""
        run, teacher = self.run, self.teacher
        assert isinstance(teacher, LocalTeacher)
        tokenizer, length = teacher.model.tokenizer, teacher.max_length
        side = getattr(tokenizer, "truncation_side", "right")
        typed = "token_type_ids" in inspect.signature(teacher.model[0].auto_model.forward).parameters
        name = recipes.fingerprint(
            self.corpus.fingerprint, length, tokenizer_hash(tokenizer), *([side] if side == "left" else [])
        )
        return build_tokens(self.corpus, tokenizer, length, run.root / "tokens" / name, token_types=typed, side=side)

    @cached_property
    def alignment(self) -> AlignmentStore | None:
        """The pairs of the student's tokens and its own; None where nothing that is wanted depends on them."""
        run = self.run
        kind = run.required.tokens.alignment if run.required.tokens else None
        if kind is None:
            return None
        teacher = self.teacher
        assert isinstance(teacher, LocalTeacher)
        (own, length), other = run.student_tokenizer, teacher.model.tokenizer
        name = recipes.fingerprint(
            run.corpus.fingerprint, kind, tokenizer_hash(own), length, tokenizer_hash(other), teacher.max_length
        )
        return build_alignment(run.corpus, own, length, other, teacher.max_length, kind, run.root / "alignments" / name)

    @cached_property
    def cache(self) -> TeacherCache:
        """Its own cache, opened or created (not yet filled); or one that holds more than is wanted, and that of every row."""
        folder = self.cache_folder(self.info.name, self.manifest.fingerprint)
        wider = (
            None
            if folder == self.run.recipe.cache.path
            else complete_cache(folder, self.manifest.fingerprint, self.corpus)
        )
        return self.own_cache() if wider is None else wider

    def own_cache(self) -> TeacherCache:
        """The cache of what is wanted of it and nothing else, opened or created (of a folder that the recipe names, what is there)."""
        rows = self.run.recipe.cache.shard_rows
        rows = rows if self.manifest.tokens is None else min(rows, MOST_ROWS)
        return TeacherCache.create_or_open(
            self.cache_folder(self.info.name, self.manifest.fingerprint), self.manifest, rows
        )

    def cache_folder(self, teacher: str, fingerprint: str) -> Path:
        """Where the vectors of the teacher with this name and these settings lie: of several, each in a folder of its own."""
        run = self.run
        path = run.recipe.cache.path
        if path is not None and len(run.sides) == 1:
            return path
        if path is not None and (path / MANIFEST).exists():
            raise DistilvecError(
                f"[cache.path] {path} is the cache of one teacher; the recipe has {len(run.sides)}, each with a folder below cache.path. "
                "Choose another folder (without cache.path, every teacher finds its own)."
            )
        slug = re.sub(r"[^A-Za-z0-9.]+", "-", teacher).strip("-")
        return (path or run.root / "teachers") / f"{slug}-{fingerprint}"

    def fill(self) -> TeacherCache:
        """The cache, filled with every row of the corpus."""
        cache, corpus = self.cache, self.corpus
        table = self.section.vectors is not None
        missing = count_missing(cache, corpus)
        if not missing:
            return cache
        self._refuse_wider(cache, missing)
        teacher, several = self.teacher, f" {self.info.name}" if len(self.run.sides) > 1 else ""
        with progress(
            f"teacher table{several}" if table else f"teacher{several}", len(corpus), "texts", len(corpus) - missing
        ) as advance:

            def tell(done: int, total: int) -> None:
                advance(done, "")

            if isinstance(teacher, VectorsTeacher):
                with self._errors():
                    fill_from_table(cache, corpus, teacher, tell)
            elif cache.manifest.tokens is None and cache.manifest.vector_width is None:
                fill_cache(cache, corpus, teacher, tell)
            else:
                fill_tokens(cache, corpus, self.token_source(), tell)
        return cache

    def _refuse_wider(self, cache: TeacherCache, missing: int) -> None:
        """DistilvecError for a cache that lacks rows, and of which more would have to be computed than is wanted here."""
        found, wanted = cache.manifest, self.manifest
        inside = (
            found.tokens is not None or found.vector_width is not None
        )  # computed with the wants of the recipe that fills it
        if inside and found.signals != wanted.signals:
            raise DistilvecError(
                f"[cache.path] {cache.folder} lacks {missing:,} of the corpus's rows and keeps of each {', '.join(found.signals)}; this "
                f"recipe computes {', '.join(wanted.signals)} alone. Fill it with the recipe it was made by, or choose another cache.path."
            )

    def token_source(self) -> TokenSource:
        """What a cache of its tokens is computed from: the model, its tokens of every row, the alignment."""
        teacher, run = self.teacher, self.run
        assert isinstance(teacher, LocalTeacher)
        device = teacher.model.device
        required = replace(run.required, logits=False) | OutputSpec(embedding=True, vector=run.required.logits)
        budget = self.section.batch_tokens
        budget = min(budget, CPU_TOKENS) if device.type == "cpu" else budget
        return TokenSource(
            LiveTeacher(teacher, self.tokens, required), self.tokens.lengths, self.alignment, budget, device
        )

    # -- who answers -------------------------------------------------------------------------------------------------

    def answering(self, required: OutputSpec) -> Teacher:
        """Who answers these wants."""
        if required == OutputSpec():
            return NoTeacher()
        if self.live:
            assert isinstance(self.teacher, LocalTeacher)
            return LiveTeacher(self.teacher, self.tokens, required, self.head)
        return CachedTeacher(self.cache, self.corpus.keys, required, self.head)

    def prepare(self) -> None:
        """Fill the cache, or say why the teacher runs in every step."""
        if self.run.required == OutputSpec():
            return
        if self.live:
            self.say_live()
        else:
            self.fill()

    def say_live(self) -> None:
        """Say why the teacher runs in every step."""
        found = uncached(self.run.required)
        why = f"the method wants {', '.join(found)}, which no cache keeps" if found else f"{self.key}.live is set"
        log(f"teacher {self.info.name}: runs in every step ({why})")

    def release(self) -> None:
        """Free the model's memory, unless it runs in every step; it is loaded again where it is needed."""
        known = "required" in self.run.__dict__
        if "teacher" not in self.__dict__ or (self.live if known else self.section.live):
            return
        assert self.info and self.about and (not known or self.manifest)  # what needs the model, as long as it is there
        self.__dict__.pop("teacher")
        gc.collect()


def special_tokens(tokenizer: PreTrainedTokenizerBase) -> tuple[int, int] | None:
    """How many special tokens begin and end every text; None where that is not known."""
    copy = plain_copy(tokenizer)
    return None if copy is None else special_around(copy)
