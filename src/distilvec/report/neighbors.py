"""The judgement by neighbours in words: one sentence for terminal, page and card, and what it means for a search."""

from __future__ import annotations

from dataclasses import dataclass

from distilvec.evaluation.neighbors import DEPTH, DOUBTFUL, FITS, WIDER, Judgement
from distilvec.report.record import RunRecord
from distilvec.report.tables import number


@dataclass(frozen=True)
class CompatibilityNote:
    """Whether queries of the student can search the teacher's vectors: a title, and what follows from it."""

    title: str
    text: str


def neighbors_sentence(judgement: Judgement) -> str:
    """Return the sentence that every report of the student begins with, without a full stop."""
    student, start = judgement.student, judgement.start
    whose = "the index's" if judgement.origin == "index" else "the teacher's"
    parts, before = [], []
    if student.among is not None:
        where = "" if judgement.origin == "index" else " among the teacher's vectors"
        parts.append(f"finds {student.among.mean:.2f} of {whose} top 10{where} {student.among.text}")
        if start is not None and start.among is not None:
            before.append(f"{start.among.mean:.2f}")
    if student.alone is not None:
        alone = f"{student.alone.mean:.2f}"
        first = f"finds {alone} of {whose} top 10 with its own vectors" if not parts else f"{alone} alone"
        parts.append(f"{first} {student.alone.text}")
        if start is not None and start.alone is not None:
            before.append(f"{start.alone.mean:.2f}")
    earlier = f"; before training {' and '.join(before)}" if before else ""
    return ", ".join(parts) + earlier


def compatibility_note(record: RunRecord) -> CompatibilityNote | None:
    """Return what a student's record says of a search among the teacher's vectors; None without a teacher."""
    teacher, judgement = record.teacher, record.neighbors
    if teacher is None or teacher.unread:
        return None
    measured = "" if judgement is None else f"It {neighbors_sentence(judgement)}. "
    if not record.in_teacher_space:
        width = None if record.student is None else record.student.width
        widths = ""
        if teacher.width and teacher.width != width:
            widths = f"Its vectors have {width or '?'} dimensions, the teacher's {teacher.width}. "
        return CompatibilityNote(
            "Teacher-compatible: no", f"{widths}{measured}Compare vectors of this model only with each other."
        )
    if judgement is None or judgement.compatibility is None:
        return CompatibilityNote(
            "Teacher-compatible: not measured",
            f"It was trained into the teacher's space. {measured}Measure how many of the teacher's neighbours it finds "
            "before it searches the teacher's vectors.",
        )
    if judgement.compatibility == "yes":
        return CompatibilityNote(
            "Teacher-compatible: yes",
            f"{measured}So one can embed queries with this model and search documents that the teacher embedded, keep "
            "an index the teacher made, or move between the two without embedding documents again.",
        )
    if judgement.compatibility == "in part":
        return CompatibilityNote(
            "Teacher-compatible: in part",
            f"{measured}Among the teacher's vectors {wider_text(judgement)}: rank these again with the teacher or a "
            "cross-encoder, or train longer.",
        )
    return CompatibilityNote(
        "Not yet teacher-compatible",
        f"{measured}From {DOUBTFUL:g} on a search among the teacher's vectors is worth ranking again, from {FITS:g} on "
        "it stands for the teacher's own. Compare vectors of this model only with each other, or train longer.",
    )


def wider_text(judgement: Judgement) -> str:
    """Return the share of the neighbours that the student has in its first 100, in words."""
    share = judgement.student.among_wider or 0.0
    whose = "the index's" if judgement.origin == "index" else "the teacher's"
    return f"its first {WIDER} of {judgement.candidates:,} hold {number(100 * share, 1)}% of {whose} top {DEPTH}"
