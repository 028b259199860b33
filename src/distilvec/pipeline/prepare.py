"""The data of a run: the texts (a corpus, or a task's examples), the suite it is scored on, the student's tokens."""

from __future__ import annotations

import inspect
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from sentence_transformers import SentenceTransformer
from transformers import PreTrainedTokenizerFast

from distilvec.config import recipe as recipes
from distilvec.config.schema import CorpusSection
from distilvec.core.artifacts import open_or_build
from distilvec.core.errors import DistilvecError
from distilvec.core.log import log
from distilvec.data import docstrings
from distilvec.data.corpus import Corpus, build_corpus, corpus_fingerprint, excluded_fingerprint
from distilvec.data.labeled import Examples, Labelled, build_examples, examples_fingerprint, read_split
from distilvec.data.tokens import TokenStore, build_tokens
from distilvec.evaluation.suite import load_suite, suite_texts
from distilvec.evaluation.tasks import Task
from distilvec.models.load import load_tokenizer
from distilvec.models.tokenizers import tokenizer_hash
from distilvec.vocabulary.choose import Texts, choose, kept_vocabulary
from distilvec.vocabulary.load import read_tokenizer
from distilvec.vocabulary.pieces import Pieces

_ROWS = 4096  # of a corpus read at once
_SUITE_BYTES = 2_000_000

if TYPE_CHECKING:
    from distilvec.pipeline.run import Run


def suite(run: Run) -> list[Task]:
    """The evaluation suite; empty where the recipe names none."""
    section = run.recipe.evaluation
    if section.builtin:
        mark = recipes.fingerprint(docstrings.FORMAT, sys.version)
        folder = run.root / "suites" / f"{section.builtin}-{mark}"
        return open_or_build(
            folder, mark, "suite", _SUITE_BYTES, _write_suite, lambda folder: load_suite(folder / "suite.yaml")
        )
    return load_suite(section.suite) if section.suite else []


def _write_suite(folder: Path) -> dict[str, Any]:
    docstrings.write_retrieval_task(folder, seed=0)
    return {}


def examples(run: Run) -> Examples | None:
    """The labelled examples of the recipe's task; None where it names none."""
    if run.recipe.task is None:
        return None
    section, prompts = run.recipe.task, run.info.prompts
    found = build_examples(section, prompts, run.root / "tasks" / examples_fingerprint(section, prompts))
    log(found.line)
    return found


def test_split(run: Run) -> Labelled:
    """The test rows of the recipe's task."""
    section, parts = run.recipe.task, run.examples
    assert section is not None and parts is not None
    return read_split(
        section, section.test_split, parts.corpus.prompts.get(section.role, ""), parts.classes, parts.scale
    )


def corpus(run: Run) -> Corpus:
    """The training texts, with no text of the evaluation suite among them."""
    if run.examples is not None:
        return run.examples.corpus
    section, prompts, size = run.recipe.corpus, run.info.prompts, run.recipe.train.batch_size
    assert section is not None
    excluded = (
        list(suite_texts(run.tasks, section.exclude_evaluation == "documents")) if section.exclude_evaluation else []
    )
    name = corpus_fingerprint(section, prompts, size, excluded_fingerprint(excluded))
    found = build_corpus(section, prompts, size, run.root / "corpora" / name, excluded, progress_logger())
    log(
        f"corpus: {found.report['kept']:,} texts, {found.report['holdout']:,} held out{_dropped(found.report, section)}"
    )
    return found


def left_out(report: dict[str, Any], section: CorpusSection) -> list[str]:
    """How many rows a corpus left out, each with its reason; empty where it left out none."""
    parts = "documents, queries" if section.exclude_evaluation == "documents" else "queries"
    reasons = {
        "duplicates": "duplicates",
        "empty": "empty",
        "excluded": f"of the evaluation suite: {parts} and labelled test texts (corpus.exclude_evaluation)",
        "left_out": "beyond the limits of their sources",
    }
    return [f"{report[name]:,} {reason}" for name, reason in reasons.items() if report.get(name)]


def _dropped(report: dict[str, Any], section: CorpusSection) -> str:
    found = "; ".join(left_out(report, section))
    return f"; left out: {found}" if found else ""


def vocabulary(run: Run) -> PreTrainedTokenizerFast | None:
    """The tokenizer that the student gets in the place of its backbone's; None where it keeps that."""
    section, model = run.recipe.student.vocabulary, run.recipe.student.model
    if section is None:
        return None
    if model == "teacher":
        model = run.info.model
    if model is None:
        raise DistilvecError(
            "[student.vocabulary] needs student.model: a fresh backbone has the tokenizer of student.tokenizer, or none."
        )
    pieces = Pieces(load_tokenizer(model, "student.model"), "the backbone's tokenizer", "student.model")
    corpus = run.corpus
    made_of = [
        section.model_dump(exclude={"compose", "keep_norm"}),
        corpus.fingerprint,
        tokenizer_hash(pieces.tokenizer),
    ]
    if section.tokenizer is not None:
        made_of.append(
            tokenizer_hash(read_tokenizer(section.tokenizer, pieces))
        )  # what is in it counts, not its name alone
    place = run.root / "vocabularies" / recipes.fingerprint(*made_of)
    with run.processes.main_process_first():
        made, figures = kept_vocabulary(place, lambda: choose(section, pieces, texts_by_language(corpus)))
    log(f"vocabulary: {figures['before']:,} -> {figures['tokens']:,} tokens")
    return made


def texts_by_language(corpus: Corpus) -> dict[str, Texts]:
    """The training texts of each language; of sources without one, by their name."""
    names = [language or name for language, name in zip(corpus.languages, corpus.source_names, strict=True)]
    number = np.array([list(dict.fromkeys(names)).index(name) for name in names])

    def reader(wanted: int) -> Texts:
        rows = corpus.train_rows[number[corpus.sources[corpus.train_rows]] == wanted]

        def read() -> Iterator[str]:
            yield from {prompt for prompt in corpus.prompts.values() if prompt}  # which stand before every text
            for first in range(0, len(rows), _ROWS):
                for text in corpus.texts(rows[first : first + _ROWS]):
                    yield from (text,) if isinstance(text, str) else text

        return read

    return {name: reader(place) for place, name in enumerate(dict.fromkeys(names))}


def cache_root() -> Path:
    """Where everything that runs share is kept: $DISTILVEC_CACHE, else ~/.cache/distilvec."""
    return Path(os.environ.get("DISTILVEC_CACHE", Path.home() / ".cache" / "distilvec"))


def build_token_store(root: Path, corpus: Corpus, model: SentenceTransformer) -> TokenStore:
    """The student's tokens of the corpus, kept below `root` by content."""
    tokenizer, length = model.tokenizer, model.max_seq_length
    name = recipes.fingerprint(corpus.fingerprint, length, tokenizer_hash(tokenizer))
    typed = "token_type_ids" in inspect.signature(model[0].auto_model.forward).parameters
    return build_tokens(corpus, tokenizer, length, root / "tokens" / name, progress_logger(), typed)


def progress_logger() -> Any:
    """A progress callback for stages whose size is not known beforehand: a line every 200,000 rows."""
    last: dict[str, int] = {}

    def tell(stage: str, rows: int) -> None:
        if rows // 200_000 > last.get(stage, 0):
            last[stage] = rows // 200_000
            log(f"{stage}: {rows:,} rows")

    return tell
