"""The texts of a job: corpus, labeled examples, evaluation suite, and the student's vocabulary made from them."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from transformers import PreTrainedTokenizerFast

from distilvec.config import recipe as recipes
from distilvec.config.schema import CorpusSection, EvaluationSection, Recipe, TeacherSection
from distilvec.config.student import StudentSection
from distilvec.core.artifacts import ArtifactStore, open_or_build
from distilvec.core.errors import DistilvecError, about
from distilvec.core.info import TeacherInfo
from distilvec.core.log import log
from distilvec.core.run_folder import RunFolder
from distilvec.data.corpus import (
    Corpus,
    build_corpus,
    corpus_fingerprint,
    excluded_fingerprint,
    excluded_line,
)
from distilvec.data.examples import (
    Examples,
    Labelled,
    build_examples,
    check_same_files,
    examples_fingerprint,
    read_split,
)
from distilvec.evaluation.stored import stored_tasks
from distilvec.evaluation.suite import load_suite, read_suite, suite_texts
from distilvec.evaluation.tasks import Task
from distilvec.models.load import load_tokenizer
from distilvec.models.tokenizers import tokenizer_hash
from distilvec.students.build import required_source

if TYPE_CHECKING:
    from distilvec.teachers.table_embedder import TableEmbedder
    from distilvec.vocabulary.choose import Texts
    from distilvec.vocabulary.trim import ChosenVocabulary

VOCABULARY_FORMAT = 5  # of a stored vocabulary, raised with every change of the choice of its tokens
_ROWS = 4096  # of a corpus, read together
_SUITE_BYTES = 2_000_000
_REPORTED_ROWS = 200_000


def load_tasks(section: EvaluationSection, store: ArtifactStore, teacher: TeacherSection | None = None) -> list[Task]:
    """Read the evaluation suite, and make the tasks of `evaluation.stored`; empty if the recipe names none."""
    suite: list[Task] = []
    if section.builtin is not None:
        suite = _builtin_tasks(section, store)
    elif section.suite is not None:
        suite = load_suite(section.suite)
    if section.stored is None:
        return suite
    table = stored_table(teacher, "evaluation.stored")
    with about("teacher"):
        return [*suite, *stored_tasks(table, section.stored)]


def stored_table(teacher: TeacherSection | None, key: str) -> TableEmbedder:
    """Open the teacher's table. DistilvecError with the key that asks for its texts where the teacher is a model."""
    if teacher is None or teacher.vectors is None:
        raise DistilvecError("the teacher is a model, without stored texts.", "Leave the key out.", key=key)

    from distilvec.teachers.table_embedder import TableEmbedder

    with about("teacher"):
        return TableEmbedder(teacher)


def _builtin_tasks(section: EvaluationSection, store: ArtifactStore) -> list[Task]:
    from distilvec.data import docstrings

    key = recipes.fingerprint(docstrings.FORMAT, sys.version)

    def build(folder: Path) -> dict[str, Any]:
        docstrings.write_retrieval_task(folder, seed=0)
        return {}

    folder = store.folder("suites", f"{section.builtin}-{key}")
    return open_or_build(folder, key, "suite", _SUITE_BYTES, build, lambda folder: load_suite(folder / "suite.yaml"))


def check_domains(recipe: Recipe) -> None:
    """DistilvecError for a task of the suite with `domain: out` whose file the run trains on."""
    files = []
    if recipe.corpus:
        files += [source.path.resolve() for source in recipe.corpus.sources if source.path]
    if recipe.task:
        files += [recipe.task.path.resolve()]
    for task in read_suite(recipe.evaluation.suite) if recipe.evaluation.suite else ():
        task_file = task.path.resolve()
        if task.domain == "out" and any(
            task_file == file or task_file in file.parents or file in task_file.parents for file in files
        ):
            raise DistilvecError(
                f"{recipe.evaluation.suite}: task '{task.name}' has domain: out, but the run trains on texts of "
                f"{task_file.name}.",
                "Set domain: in, leave the key out, or take another suite.",
                key="evaluation.suite",
            )


def load_examples(recipe: Recipe, teacher: TeacherInfo, store: ArtifactStore) -> Examples | None:
    """Read the labeled examples of the recipe's task; None if it has no task."""
    if recipe.task is None:
        return None
    name = examples_fingerprint(recipe.task, teacher.prompts)
    examples = build_examples(recipe.task, teacher.prompts, store.folder("tasks", name))
    log(examples.line)
    return examples


def test_split(recipe: Recipe, examples: Examples) -> Labelled:
    """Read the test rows of the recipe's task."""
    section = recipe.task
    assert section is not None
    prompts = examples.corpus.prompts
    rows = read_split(section, section.test_split, prompts.get(section.role, ""), examples.classes, examples.scale)
    check_same_files(section, prompts, examples.corpus.fingerprint)
    return rows


def load_corpus(recipe: Recipe, teacher: TeacherInfo, tasks: list[Task], store: ArtifactStore) -> Corpus:
    """Read the training texts; texts of the evaluation suite are left out."""
    section = recipe.corpus
    assert section is not None
    excluded = suite_texts(tasks, section.exclude_evaluation == "documents") if section.exclude_evaluation else {}
    name = corpus_fingerprint(section, teacher.prompts, excluded_fingerprint(excluded))
    folder = store.folder("corpora", name)
    corpus = build_corpus(section, teacher.prompts, folder, excluded, progress_logger())
    dropped = "; ".join(left_out(corpus.report))
    more = f"; left out: {dropped}" if dropped else ""
    log(f"corpus: {corpus.report['kept']:,} texts, {corpus.report['holdout']:,} of them for validation{more}")
    for line in below_limits(corpus.report, section):
        log(f"warning: {line}")
    return corpus


def left_out(report: dict[str, Any]) -> list[str]:
    """List how many rows a corpus left out, each with its reason."""
    reasons = {"duplicates": "duplicates", "empty": "empty", "left_out": "beyond the limits of their sources"}
    lines = [f"{report[name]:,} {reason}" for name, reason in reasons.items() if report.get(name)]
    return [*lines, excluded_line(report)] if report.get("excluded") else lines


def below_limits(report: dict[str, Any], section: CorpusSection) -> list[str]:
    """List the sources that give fewer texts than their limit."""
    lines = []
    for source, count in zip(section.sources, report["sources"], strict=True):
        if source.limit is not None and count["kept"] < source.limit:
            texts = f"{count['kept']:,} distinct texts, fewer than its limit of {source.limit:,}"
            whole = source.sample != "first" or count["read"] - count["empty"] - count["excluded"] < source.limit
            others = f"{texts}: the others of its first texts are repeated. Take sample: random, or a larger limit"
            lines.append(f"{source.label} {'has' if whole else 'gives'} {texts if whole else others}")
    return lines


@dataclass(frozen=True)
class StudentVocabulary:
    """The vocabulary of a student: as it is stored under `fingerprint`, and the student's `tokenizer`."""

    fingerprint: str
    stored: ChosenVocabulary
    tokenizer: PreTrainedTokenizerFast

    def keep(self, run: RunFolder) -> None:
        """Store it in the run folder: another version of a library, on another machine, may choose other tokens."""
        from distilvec.vocabulary.choose import kept_vocabulary

        kept_vocabulary(run.vocabulary, self.fingerprint, lambda: self.stored)


def load_vocabulary(
    section: StudentSection, teacher: TeacherInfo, corpus: Corpus, store: ArtifactStore, run: RunFolder
) -> StudentVocabulary | None:
    """Return the tokenizer of `student.vocabulary`: that of the run, a stored one, or one chosen or trained on the
    corpus; None if the backbone keeps its own.
    """
    vocabulary = section.vocabulary
    if vocabulary is None:
        return None

    from distilvec.vocabulary.choose import choose, kept_vocabulary, stored_vocabulary
    from distilvec.vocabulary.edit import fast_tokenizer
    from distilvec.vocabulary.load import read_tokenizer
    from distilvec.vocabulary.pieces import Pieces

    model = required_source(section, teacher)
    key = "student.model" if section.model else "student.tokenizer"
    with about(key, model.name):
        tokenizer = load_tokenizer(model)
        pieces = Pieces(tokenizer, "the backbone's tokenizer")
    parts = [
        VOCABULARY_FORMAT,
        vocabulary.model_dump(exclude={"compose", "keep_norm"}),
        corpus.fingerprint,
        tokenizer_hash(pieces.tokenizer),
    ]
    template = tokenizer  # whose length, sides and roles the new tokenizer has
    if vocabulary.tokenizer is not None:
        template = read_tokenizer(vocabulary.tokenizer, pieces)
        parts.append(tokenizer_hash(template))  # its content counts, not its name alone
    name = recipes.fingerprint(*parts)
    stored = stored_vocabulary(run.vocabulary, name)
    if stored is None:
        folder = store.folder("vocabularies", name)
        stored = kept_vocabulary(folder, name, lambda: choose(vocabulary, pieces, texts_by_language(corpus)))
    log(f"vocabulary: {stored.figures['before']:,} -> {stored.figures['tokens']:,} tokens")
    for note in stored.notes:
        log(f"vocabulary: {note}")
    # It may have been stored for another model with the same tokens
    return StudentVocabulary(name, stored, fast_tokenizer(Pieces(stored.tokenizer).state, template))


def texts_by_language(corpus: Corpus) -> dict[str, Texts]:
    """Return readers of the training texts by language, with their prompts; sources without one go by their name.

    Every prompt of the teacher comes first: the student puts it before queries also where no training text is one.
    """
    distinct = list(dict.fromkeys(corpus.source_labels))
    numbers = np.array([distinct.index(label) for label in corpus.source_labels])

    def reader(number: int) -> Texts:
        rows = corpus.train_rows[numbers[corpus.sources[corpus.train_rows]] == number]

        def read() -> Iterator[str]:
            yield from filter(None, dict.fromkeys(corpus.prompts.values()))
            for first in range(0, len(rows), _ROWS):
                # Behind a prompt the first word of a text may have other tokens: "ĠWhat" instead of "What".
                for text in corpus.prompted(rows[first : first + _ROWS]):
                    yield from (text,) if isinstance(text, str) else text

        return read

    return {label: reader(number) for number, label in enumerate(distinct)}


def progress_logger() -> Callable[[str, int], None]:
    """Return a callback for stages of unknown size: one log line for every 200,000 rows."""
    last: dict[str, int] = {}

    def report(stage: str, rows: int) -> None:
        if rows // _REPORTED_ROWS > last.get(stage, 0):
            last[stage] = rows // _REPORTED_ROWS
            log(f"{stage}: {rows:,} rows")

    return report
