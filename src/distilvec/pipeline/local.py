"""A recipe whose indexes are local tables: the copies of indexes, and their texts as sources of the corpus."""

from __future__ import annotations

from pathlib import Path

from distilvec.config.schema import Recipe, SourceSection, TeacherSection
from distilvec.core.errors import DistilvecError
from distilvec.core.log import log
from distilvec.teachers.indexes.copy import local_table
from distilvec.teachers.table_embedder import TableEmbedder


def with_local_tables(recipe: Recipe, root: Path) -> Recipe:
    """The recipe with every teacher's index as a Parquet table, copied below `root` if it is none.

    Sources `builtin: teacher` become the table of the first teacher. Errors: DistilvecError for an index that cannot be
    read, and for such a source where the teacher is a model.
    """
    teacher = local_table(recipe.teacher, root)
    changes: dict[str, object] = {"teacher": teacher}
    if recipe.more_teachers:
        changes["more_teachers"] = [local_table(section, root) for section in recipe.more_teachers]
    if recipe.corpus is not None and any(source.builtin == "teacher" for source in recipe.corpus.sources):
        sources = [_table_source(source, row, teacher) for row, source in enumerate(recipe.corpus.sources)]
        changes["corpus"] = recipe.corpus.model_copy(update={"sources": sources})
    return recipe.model_copy(update=changes)


def log_similarity(section: TeacherSection, normalized: bool) -> None:
    """Log how vectors are read that state no similarity; where all have length 1, every similarity ranks alike.

    The section is one that `local_table` returned, which has what an index states, and its name.
    """
    if section.similarity is not None or section.local_model is not None or normalized:
        return
    origin = section.name or section.vectors or "the API"
    log(
        f"{origin}: no similarity is stated, and not all vectors have length 1: they are compared by cosine. "
        "If your search takes the inner product or the distance, state it: teacher.similarity (--similarity) is dot or "
        "euclidean."
    )


def _table_source(source: SourceSection, position: int, teacher: TeacherSection) -> SourceSection:
    """Return the source of the texts in the teacher's table in place of `builtin: teacher`; others as they are."""
    if source.builtin != "teacher":
        return source
    if teacher.vectors is None:
        raise DistilvecError(
            "the teacher is a model, without texts of its own.",
            "Give a path.",
            key=f"corpus.sources.{position}.builtin",
        )
    embedder = TableEmbedder(teacher)
    columns = embedder.table.names
    changes: dict[str, object] = {
        "builtin": None,
        "path": Path(teacher.vectors),
        "column": columns["text"],
        "origin": (teacher.columns or {}).get("origin"),
        "name": source.name or embedder.name.replace("/", "-"),
    }
    if "role" in columns and not source.where:
        changes["where"] = {columns["role"]: [source.role, None]}  # a row without a role counts for both
    return source.model_copy(update=changes)
