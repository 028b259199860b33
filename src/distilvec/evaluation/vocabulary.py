"""A student with a tokenizer of its own: what that changes, by language, on a sample of the corpus."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from sentence_transformers import SentenceTransformer

from distilvec.core.info import UNLIMITED
from distilvec.data.corpus import Corpus
from distilvec.models.tokenizers import plain_copy, tokenizer_hash
from distilvec.teachers.model import LocalTeacher
from distilvec.vocabulary.compare import compare_tokenizers, parameter_counts

MOST_TEXTS = 2000  # of a language
SEED = 0  # of every draw


def vocabulary_report(teacher: LocalTeacher | None, student: LocalTeacher, corpus: Corpus | None) -> dict[str, Any]:
    """What report.json holds as "vocabulary": `compare_tokenizers` of teacher and student at the student's length, with "parameters".

    {} where both have one tokenizer, where there is no local teacher, no corpus, or a tokenizer that is not a fast one.
    """
    if teacher is None or corpus is None:
        return {}
    models = {"before": teacher.model, "after": student.model}
    if not all(_readable(model) for model in models.values()):
        return {}
    before, after = (model.tokenizer for model in models.values())
    if tokenizer_hash(before) == tokenizer_hash(after):
        return {}
    limit = student.max_length if student.max_length < UNLIMITED else None
    found = compare_tokenizers(before, after, language_texts(corpus), limit)
    for side, model in models.items():
        found[side]["parameters"] = parameter_counts(model)
    return {**found, "names": {"before": "teacher", "after": "student"}}


def language_texts(corpus: Corpus) -> dict[str, list[str]]:
    """At most 2,000 texts of each language, without prompts, held-out ones first, drawn by seed; of pairs both texts.

    A source that names no language stands for itself, by its name.
    """
    labels = [language or name for language, name in zip(corpus.languages, corpus.source_names, strict=True)]
    found = {}
    for label in dict.fromkeys(labels):
        sources = [number for number, other in enumerate(labels) if other == label]
        rows = _drawn(corpus, corpus.holdout_rows, sources, MOST_TEXTS)
        if len(rows) < MOST_TEXTS:
            rows = np.concatenate([rows, _drawn(corpus, corpus.train_rows, sources, MOST_TEXTS - len(rows))])
        texts = [part for text in corpus.texts(np.sort(rows)) for part in ([text] if isinstance(text, str) else text)]
        if texts:
            found[label] = texts
    return found


def _drawn(corpus: Corpus, rows: npt.NDArray[np.int64], sources: Sequence[int], count: int) -> npt.NDArray[np.int64]:
    """So many of the rows that are of these sources, or all there are."""
    own = rows[np.isin(corpus.sources[rows], sources)]
    return own if len(own) <= count else np.random.default_rng(SEED).choice(own, count, replace=False)


def _readable(model: SentenceTransformer) -> bool:
    """Whether a model is a transformer with a fast tokenizer."""
    return hasattr(model[0], "auto_model") and plain_copy(model.tokenizer) is not None
