"""The teachers' side of a run: what is wanted of them, and for each whether a cache answers or the model itself in every step."""

from __future__ import annotations

import gc
import inspect
import re
from dataclasses import replace
from functools import cached_property, reduce
from operator import or_
from pathlib import Path
from typing import TYPE_CHECKING

from transformers import PreTrainedTokenizerBase

from distilvec import recipe as recipes
from distilvec.batch import Encoded, TextBatch, Wants
from distilvec.data.aligned import AlignmentStore, build_alignment
from distilvec.data.tokens import TokenStore, build_tokens, plain_copy, tokenizer_hash
from distilvec.errors import DistilvecError
from distilvec.objective import Objective, OtherTeacher, Sizes
from distilvec.progress import progress, say
from distilvec.run_task import teacher_head
from distilvec.schema import TeacherSection
from distilvec.spans import special_around
from distilvec.students.build import TeacherFacts
from distilvec.students.encoder import Encoder
from distilvec.students.head import TaskHead
from distilvec.teachers.cache import TeacherCache
from distilvec.teachers.compress import token_settings
from distilvec.teachers.forward import CPU_TOKENS
from distilvec.teachers.live import LiveTeacher
from distilvec.teachers.local import LocalTeacher, load_teacher, resolve_model
from distilvec.teachers.manifest import Manifest
from distilvec.teachers.precompute import count_missing, fill_cache
from distilvec.teachers.token_fill import MOST_ROWS, TokenSource, fill_tokens
from distilvec.teachers.vectors import VectorsTeacher, fill_from_table
from distilvec.train.data import CachedTeacher, SeveralTeachers, Teacher, uncached

if TYPE_CHECKING:
    from distilvec.run import Run

UNLIMITED = 1_000_000


class NoTeacher:
    """Stands where nothing is wanted of the teacher."""

    def signals(self, batch: TextBatch) -> Encoded:
        """Nothing."""
        return Encoded()


class TeacherSide:
    """One of a run's teachers: the model or table, what is known of it, and its cache. Its parts are lazy, like the run's."""

    def __init__(self, run: Run, section: TeacherSection) -> None:
        self.run, self.section = run, section

    # -- what is known of it -----------------------------------------------------------------------------------------

    @cached_property
    def teacher(self) -> LocalTeacher | VectorsTeacher:
        """The teacher, loaded; `release` frees it before training."""
        return VectorsTeacher(self.section) if self.section.vectors else load_teacher(self.section, self.run.recipe.train.device)

    @cached_property
    def facts(self) -> TeacherFacts:
        """What student and method must know of it."""
        teacher, section = self.teacher, self.section
        facts = TeacherFacts(
            teacher.width,
            teacher.normalized,
            teacher.max_length or UNLIMITED,
            teacher.prompts,
            resolve_model(section.model) if section.model else None,
            teacher.name,
            section.revision,
        )
        if not isinstance(teacher, LocalTeacher) or not hasattr(teacher.model[0], "auto_model"):
            return facts
        config = teacher.model[0].auto_model.config.get_text_config()
        tokenizer = teacher.model.tokenizer
        return replace(
            facts,
            hidden_width=config.hidden_size,
            layers=config.num_hidden_layers,
            heads=config.num_attention_heads,
            tokenizer=tokenizer_hash(tokenizer),
            special=_special(tokenizer),
        )

    @cached_property
    def head(self) -> TaskHead | None:
        """Its head, where it was fine-tuned for the recipe's task."""
        return None if self.run.examples is None else teacher_head(self.section, self.run.examples)

    @cached_property
    def live(self) -> bool:
        """Whether it runs in every step: because the recipe says so, or no cache keeps what is wanted of it."""
        return self.run.wants != Wants() and (self.section.live or bool(uncached(self.run.wants)))

    @cached_property
    def manifest(self) -> Manifest:
        """What everything that is wanted of it depends on."""
        wants, section = self.run.wants, self.run.recipe.cache
        made = self.teacher.manifest(section.dtype, wants.pre_dense)
        if wants.logits or wants.vector:
            made = replace(made, vector_width=self.facts.hidden_width)
        if wants.tokens is None:
            return made
        tokenizer, length = self.run.student_tokenizer
        settings = token_settings(wants.tokens, section.hidden, self.facts.hidden_width, tokenizer_hash(tokenizer), length)
        return replace(made, tokens=settings)

    # -- its tokens, the alignment, the cache ------------------------------------------------------------------------

    @cached_property
    def tokens(self) -> TokenStore:
        """Its own tokens of the corpus, kept below the root by content."""
        run, teacher = self.run, self.teacher
        assert isinstance(teacher, LocalTeacher)
        tokenizer, length = teacher.model.tokenizer, teacher.max_length
        side = getattr(tokenizer, "truncation_side", "right")
        typed = "token_type_ids" in inspect.signature(teacher.model[0].auto_model.forward).parameters
        name = recipes.fingerprint(run.corpus.fingerprint, length, tokenizer_hash(tokenizer), *([side] if side == "left" else []))
        return build_tokens(run.corpus, tokenizer, length, run.root / "tokens" / name, token_types=typed, side=side)

    @cached_property
    def alignment(self) -> AlignmentStore | None:
        """The pairs of the student's tokens and its own; None where nothing that is wanted depends on them."""
        run, teacher = self.run, self.teacher
        kind = run.wants.tokens.alignment if run.wants.tokens else None
        if kind is None:
            return None
        assert isinstance(teacher, LocalTeacher)
        (own, length), other = run.student_tokenizer, teacher.model.tokenizer
        name = recipes.fingerprint(run.corpus.fingerprint, kind, tokenizer_hash(own), length, tokenizer_hash(other), teacher.max_length)
        return build_alignment(run.corpus, own, length, other, teacher.max_length, kind, run.root / "alignments" / name)

    @cached_property
    def cache(self) -> TeacherCache:
        """Its cache, opened or created (not yet filled)."""
        rows = self.run.recipe.cache.shard_rows
        rows = rows if self.manifest.tokens is None else min(rows, MOST_ROWS)
        return TeacherCache.create_or_open(self.cache_folder(self.teacher.name, self.manifest.fingerprint), self.manifest, rows)

    def cache_folder(self, teacher: str, fingerprint: str) -> Path:
        """Where the vectors of the teacher with this name and these settings lie."""
        run = self.run
        path = run.recipe.cache.path
        if path is not None and not run.recipe.more_teachers:
            return path
        slug = re.sub(r"[^A-Za-z0-9.]+", "-", teacher).strip("-")
        return (path or run.root / "teachers") / f"{slug}-{fingerprint}"

    def fill(self) -> TeacherCache:
        """The cache, filled with every row of the corpus."""
        teacher, cache, corpus = self.teacher, self.cache, self.run.corpus
        kind = "teacher table" if isinstance(teacher, VectorsTeacher) else "teacher"
        done = 0 if isinstance(teacher, VectorsTeacher) else len(corpus) - count_missing(cache, corpus)
        with progress(kind, len(corpus), "texts", done) as advance:

            def tell(done: int, total: int) -> None:
                advance(done, "")

            if isinstance(teacher, VectorsTeacher):
                fill_from_table(cache, corpus, teacher, tell)
            elif cache.manifest.tokens is None and cache.manifest.vector_width is None:
                fill_cache(cache, corpus, teacher, tell)
            elif done < len(corpus):
                fill_tokens(cache, corpus, self.token_source(), tell)
        return cache

    def token_source(self) -> TokenSource:
        """What a cache of its tokens is computed from: the model, its tokens of every row, the alignment."""
        teacher, run = self.teacher, self.run
        assert isinstance(teacher, LocalTeacher)
        device = teacher.model.device
        wants = replace(run.wants, logits=False) | Wants(embedding=True, vector=run.wants.logits)
        budget = run.recipe.teacher.batch_tokens
        budget = min(budget, CPU_TOKENS) if device.type == "cpu" else budget
        return TokenSource(LiveTeacher(teacher, self.tokens, wants), self.tokens.lengths, self.alignment, budget, device)

    # -- who answers -------------------------------------------------------------------------------------------------

    def answering(self, wants: Wants) -> Teacher:
        """Who answers these wants."""
        if wants == Wants():
            return NoTeacher()
        if self.live:
            assert isinstance(self.teacher, LocalTeacher)
            return LiveTeacher(self.teacher, self.tokens, wants, self.head)
        return CachedTeacher(self.cache, self.run.corpus.keys, wants, self.head)

    def prepare(self) -> None:
        """Fill the cache, or say why the teacher runs in every step."""
        if self.run.wants == Wants():
            return
        if self.live:
            found = uncached(self.run.wants)
            why = f"the method wants {', '.join(found)}, which no cache keeps" if found else "teacher.live is set"
            say(f"teacher {self.facts.name}: runs in every step ({why})")
        else:
            self.fill()

    def release(self) -> None:
        """Free the model's memory, unless it runs in every step; it is loaded again where it is needed."""
        if not self.live:
            assert self.facts and self.manifest
            self.__dict__.pop("teacher", None)
            gc.collect()


# -- all of them -------------------------------------------------------------------------------------------------------


def sizes(run: Run, encoder: Encoder) -> Sizes:
    """What an objective may know of student and teachers."""
    facts, tokenizer = run.facts, encoder.model.tokenizer
    return Sizes(
        encoder.hidden_width,
        encoder.layers,
        facts.width,
        facts.normalized,
        teacher_hidden_width=facts.hidden_width,
        teacher_layers=facts.layers,
        embedding_width=encoder.model.get_embedding_dimension(),
        task=None if run.examples is None else run.examples.facts,
        teacher_logits=run.teacher_head is not None,
        same_tokenizer=facts.tokenizer is not None and facts.tokenizer == tokenizer_hash(tokenizer),
        student_heads=encoder.backbone.config.get_text_config().num_attention_heads,
        teacher_heads=facts.heads,
        student_special=_special(tokenizer),
        teacher_special=facts.special,
        experts=encoder.experts,
        teacher_weight=run.recipe.teacher.weight,
        others=tuple(_other(side) for side in run.sides[1:]),
    )


def _other(side: TeacherSide) -> OtherTeacher:
    facts = side.facts
    return OtherTeacher(facts.width, facts.normalized, facts.hidden_width, facts.layers, side.section.weight)


def _special(tokenizer: PreTrainedTokenizerBase) -> tuple[int, int] | None:
    copy = plain_copy(tokenizer)
    return None if copy is None else special_around(copy)


def wanted(run: Run) -> Wants:
    """What all stages want of every teacher; without labels also the embeddings that the held-out distance needs."""
    encoder = Encoder(run.student())
    wants = reduce(or_, (run.objective(encoder, stage).teacher_wants for stage in run.stages), watched(run))
    inside = wants.tokens or wants.logits or wants.vector or uncached(wants)
    for side in run.sides:
        if inside and isinstance(side.teacher, VectorsTeacher):
            raise DistilvecError(
                f"[teacher.vectors] {side.teacher.name} is a table of vectors; {run.recipe.method.name} also wants what is inside of the "
                "model. Set teacher.model, or choose a method that learns from embeddings alone."
            )
    return wants


def watched(run: Run) -> Wants:
    """What is looked at on the held-out rows, whatever the method itself reads."""
    return Wants(embedding=run.examples is None)


def answering(run: Run, objective: Objective) -> Teacher:
    """Who answers what this objective wants."""
    wants = objective.teacher_wants | watched(run)
    first, *others = (side.answering(wants) for side in run.sides)
    return SeveralTeachers(first, others) if others else first
