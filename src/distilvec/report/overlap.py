"""The judgement by overlap@10 in words: one sentence for terminal, page and card, and what it means for a search.

`index_reason` decides from the numbers alone whether a model fits an index, and if not, why; `index_advice` words it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from distilvec.core.similarity import NEIGHBOR_COUNT
from distilvec.evaluation.overlap import DOUBTFUL, FITS, WIDER, Judgement
from distilvec.report.record import RunRecord
from distilvec.report.tables import number
from distilvec.teachers.agreement import Disagreement

# Of an existing model: why its vectors disagree with the stored ones (teachers/agreement.py), "chance", "far"; of a
# training: "own space", "not learned", "too short".
Reason = Literal["fits", "in part", "own space", "chance", "far", "not learned", "too short"] | Disagreement


@dataclass(frozen=True)
class CompatibilityNote:
    """Whether queries of the student can search the teacher's vectors: a title, and what follows from it."""

    title: str
    text: str


def overlap_sentence(judgement: Judgement) -> str:
    """Return the sentence that every report of the student begins with, without a full stop."""
    student, start = judgement.student, judgement.start
    whose = "the index's" if judgement.origin == "index" else "the teacher's"
    parts, before = [], []
    if student.among is not None:
        where = "" if judgement.origin == "index" else " among the teacher's vectors"
        parts.append(f"finds {student.among.mean:.2f} of {whose} ten nearest{where} (overlap@10) {student.among.text}")
        if start is not None and start.among is not None:
            before.append(f"{start.among.mean:.2f}")
    if student.alone is not None:
        alone = f"{student.alone.mean:.2f}"
        where = "ten nearest with its own vectors (overlap@10)"
        first = f"finds {alone} of {whose} {where}" if not parts else f"{alone} alone"
        parts.append(f"{first} {student.alone.text}")
        if start is not None and start.alone is not None:
            before.append(f"{start.alone.mean:.2f}")
    earlier = f"; before training {' and '.join(before)}" if before else ""
    return ", ".join(parts) + earlier


def compatibility_note(record: RunRecord) -> CompatibilityNote | None:
    """Return what a student's record says of a search among the teacher's vectors; None without a teacher."""
    teacher, judgement = record.teacher, record.overlap
    if teacher is None or teacher.unread:
        return None
    measured = "" if judgement is None else f"It {overlap_sentence(judgement)}. "
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
            f"It was trained into the teacher's space. {measured}Measure its overlap@10 "
            "before it searches the teacher's vectors.",
        )
    if judgement.origin == "index":
        title = f"Teacher-compatible: {judgement.compatibility}"
        return CompatibilityNote(title, f"{measured}{index_advice(judgement)}")
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
    """Return the overlap@10 that the student has in its first 100, in words."""
    share = judgement.student.among_wider or 0.0
    whose = "the index's" if judgement.origin == "index" else "the teacher's"
    return (
        f"its first {WIDER} of {judgement.candidates:,} hold {number(100 * share, 1)}% of {whose} top {NEIGHBOR_COUNT}"
    )


def index_reason(judgement: Judgement) -> Reason:
    """Return whether a model fits an index, or in part, and if not, why.

    A judgement with a `start` is of a student that was trained on the index: its vectors are what training made them,
    so that the reason is one of the training. Another model has its vectors from elsewhere, and the stored ones are
    compared with them.
    """
    share, agreement = judgement.share, judgement.agreement
    disagreement = None if agreement is None else agreement.reason
    if judgement.start is not None:
        if share is None or judgement.compatibility is None:
            return "own space"
        if judgement.compatibility == "yes":
            return "fits"
        if disagreement == "cut texts":
            return disagreement
        if judgement.compatibility == "in part":
            return "in part"
        gain = None if judgement.gain is None else judgement.gain.among
        has_learned = share.low > judgement.by_chance and (gain is None or gain.low > 0)
        return "too short" if has_learned else "not learned"

    fits = judgement.compatibility == "yes"
    if disagreement is not None and not (fits and disagreement in ("cut texts", "heading")):
        return disagreement
    if fits:
        return "fits"
    if judgement.compatibility == "in part":
        return "in part"
    return "chance" if share is None or share.low <= judgement.by_chance else "far"


def index_advice(judgement: Judgement, distill: str = "distilvec distill INDEX") -> str:
    """Return whether to switch the queries of an index to a model, why not, and the next step.

    `distill` is the command that trains a student for this index; only the advice on an existing model names it.
    """
    reason = index_reason(judgement)
    agreement = judgement.agreement
    verdict = "Do not switch: "
    if judgement.compatibility == "yes":
        verdict = "The model fits the index. Switch, and compare answers on real queries for some days."
    elif judgement.compatibility == "in part":
        verdict = f"The model fits in part: {wider_text(judgement)}."
    rank = "Rank its top 100 again with the large model or a cross-encoder"
    longer = "train longer (--epochs), keep more layers, or read more of the index (--limit)"
    train = f"Train one for this index: {distill}."
    texts = {
        "fits": "",
        "in part": f"{rank}, or {longer}." if judgement.start is not None else f"{rank}. {train}",
        "own space": "its method gives the student vectors of its own, which cannot be compared with the stored ones. "
        "Take another one, such as redact (method.name).",
        "chance": "the model finds no more of the index's top 10 than chance would. Its vectors are of another space, "
        f"or the index's texts are not those of its vectors: look at their order and ids. {train}",
        "far": f"the model is in the index's space, and not close enough. {train}",
        "not learned": "training has not brought the student to the stored vectors. Either it was far too short, or "
        "the texts are not those of the vectors: look at their order, their ids, and whether one model made all.",
        "too short": f"training has brought the student nearer, and not near enough: {longer}.",
    }
    text = texts.get(reason, "")
    if agreement is not None and not text:
        text = agreement.text
        if reason == "other space":
            text = f"{text} {train}"
    if verdict.endswith(": ") and text[:4] == "The ":
        text = f"t{text[1:]}"
    return f"{verdict.rstrip()} {text}".strip()
