"""The teacher's side of a run: what is wanted of it, and whether a cache answers or the model itself in every step."""

from __future__ import annotations

import inspect
from dataclasses import replace
from functools import reduce
from operator import or_
from typing import TYPE_CHECKING

from transformers import PreTrainedTokenizerBase

from distilvec import recipe as recipes
from distilvec.batch import Encoded, TextBatch, Wants
from distilvec.data.aligned import AlignmentStore, build_alignment
from distilvec.data.tokens import TokenStore, build_tokens, plain_copy, tokenizer_hash
from distilvec.errors import DistilvecError
from distilvec.objective import Objective, Sizes
from distilvec.progress import progress, say
from distilvec.spans import special_around
from distilvec.students.build import TeacherFacts
from distilvec.students.encoder import Encoder
from distilvec.teachers.compress import token_settings
from distilvec.teachers.forward import CPU_TOKENS
from distilvec.teachers.live import LiveTeacher
from distilvec.teachers.local import LocalTeacher, resolve_model
from distilvec.teachers.manifest import Manifest
from distilvec.teachers.precompute import count_missing, fill_cache
from distilvec.teachers.token_fill import TokenSource, fill_tokens
from distilvec.teachers.vectors import VectorsTeacher, fill_from_table
from distilvec.train.data import CachedTeacher, Teacher, uncached

if TYPE_CHECKING:
    from distilvec.run import Run

UNLIMITED = 1_000_000


class NoTeacher:
    """Stands where nothing is wanted of the teacher."""

    def signals(self, batch: TextBatch) -> Encoded:
        """Nothing."""
        return Encoded()


# -- what is known of it -----------------------------------------------------------------------------------------------


def teacher_facts(run: Run) -> TeacherFacts:
    """What student and method must know of the teacher."""
    teacher, section = run.teacher, run.recipe.teacher
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


def sizes(run: Run, encoder: Encoder) -> Sizes:
    """What an objective may know of student and teacher."""
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
    )


def _special(tokenizer: PreTrainedTokenizerBase) -> tuple[int, int] | None:
    copy = plain_copy(tokenizer)
    return None if copy is None else special_around(copy)


# -- what is wanted of it, and who answers -----------------------------------------------------------------------------


def wanted(run: Run) -> Wants:
    """What all stages want of the teacher; without labels also the embeddings that the held-out distance needs."""
    encoder = Encoder(run.student())
    wants = reduce(or_, (run.objective(encoder, stage).teacher_wants for stage in run.stages), watched(run))
    inside = wants.tokens or wants.logits or wants.pooled_layers or uncached(wants)
    if inside and isinstance(run.teacher, VectorsTeacher):
        raise DistilvecError(
            f"[teacher.vectors] {run.teacher.name} is a table of vectors; {run.recipe.method.name} also wants what is inside of the model. "
            "Set teacher.model, or choose a method that learns from embeddings alone."
        )
    return wants


def watched(run: Run) -> Wants:
    """What is looked at on the held-out rows, whatever the method itself reads."""
    return Wants(embedding=run.examples is None)


def is_live(run: Run) -> bool:
    """Whether the teacher runs in every step: because the recipe says so, or no cache keeps what is wanted of it."""
    return run.wants != Wants() and (run.recipe.teacher.live or bool(uncached(run.wants)))


def manifest(run: Run) -> Manifest:
    """What everything that is wanted of the teacher depends on."""
    wants, section = run.wants, run.recipe.cache
    made = run.teacher.manifest(section.dtype, wants.pre_dense)
    if wants.logits or wants.pooled_layers:
        made = replace(made, pooled_width=run.facts.hidden_width)
    if wants.tokens is None:
        return made
    tokenizer, length = run.student_tokenizer
    return replace(made, tokens=token_settings(wants.tokens, section.hidden, run.facts.hidden_width, tokenizer_hash(tokenizer), length))


def answering(run: Run, objective: Objective) -> Teacher:
    """Who answers what this objective wants."""
    wants = objective.teacher_wants | watched(run)
    if wants == Wants():
        return NoTeacher()
    if run.live:
        assert isinstance(run.teacher, LocalTeacher)
        return LiveTeacher(run.teacher, teacher_tokens(run), wants, run.teacher_head)
    return CachedTeacher(run.cache, run.corpus.keys, wants, run.teacher_head)


def say_live(run: Run) -> None:
    """A line that says why the teacher runs in every step."""
    found = uncached(run.wants)
    why = f"the method wants {', '.join(found)}, which no cache keeps" if found else "teacher.live is set"
    say(f"teacher {run.facts.name}: runs in every step ({why})")


# -- tokens, alignment, cache ------------------------------------------------------------------------------------------


def teacher_tokens(run: Run) -> TokenStore:
    """The teacher's own tokens of the corpus, kept below the root by content."""
    teacher = run.teacher
    assert isinstance(teacher, LocalTeacher)
    tokenizer, length = teacher.model.tokenizer, teacher.max_length
    side = getattr(tokenizer, "truncation_side", "right")
    typed = "token_type_ids" in inspect.signature(teacher.model[0].auto_model.forward).parameters
    name = recipes.fingerprint(run.corpus.fingerprint, length, tokenizer_hash(tokenizer), *([side] if side == "left" else []))
    return build_tokens(run.corpus, tokenizer, length, run.root / "tokens" / name, token_types=typed, side=side)


def alignment(run: Run) -> AlignmentStore | None:
    """The pairs of student's and teacher's tokens, where a stage wants the teacher's tokens."""
    if run.wants.tokens is None:
        return None
    teacher, kind = run.teacher, run.wants.tokens.alignment
    assert isinstance(teacher, LocalTeacher)
    (own, length), other = run.student_tokenizer, teacher.model.tokenizer
    name = recipes.fingerprint(run.corpus.fingerprint, kind, tokenizer_hash(own), length, tokenizer_hash(other), teacher.max_length)
    return build_alignment(run.corpus, own, length, other, teacher.max_length, kind, run.root / "alignments" / name)


def fill(run: Run) -> None:
    """Fill the run's cache with every row of the corpus."""
    teacher, cache, corpus = run.teacher, run.cache, run.corpus
    kind = "teacher table" if isinstance(teacher, VectorsTeacher) else "teacher"
    done = 0 if isinstance(teacher, VectorsTeacher) else len(corpus) - count_missing(cache, corpus)
    with progress(kind, len(corpus), "texts", done) as advance:

        def tell(done: int, total: int) -> None:
            advance(done, "")

        if isinstance(teacher, VectorsTeacher):
            fill_from_table(cache, corpus, teacher, tell)
        elif cache.manifest.tokens is None and cache.manifest.pooled_width is None:
            fill_cache(cache, corpus, teacher, tell)
        elif done < len(corpus):
            fill_tokens(cache, corpus, token_source(run, teacher), tell)


def token_source(run: Run, teacher: LocalTeacher) -> TokenSource:
    """What a cache of the teacher's tokens is computed from: the model, its tokens of every row, the alignment."""
    tokens, device = teacher_tokens(run), teacher.model.device
    pooled = Wants(pooled_layers=(-1,)) if run.wants.logits else Wants()
    wants = replace(run.wants, logits=False) | Wants(embedding=True) | pooled
    budget = run.recipe.teacher.batch_tokens
    budget = min(budget, CPU_TOKENS) if device.type == "cpu" else budget
    return TokenSource(LiveTeacher(teacher, tokens, wants), tokens.lengths, run.alignment, budget, device)
