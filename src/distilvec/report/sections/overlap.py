"""overlap@10 of held-out texts: before and after training, by source."""

from __future__ import annotations

from distilvec.core.similarity import NEIGHBOR_COUNT
from distilvec.evaluation.overlap import Judgement, Overlap, OverlapShare
from distilvec.report.section import PageSection, make_section, notes
from distilvec.report.tables import Cell, Table, number_cell, words
from distilvec.report.values import Report
from distilvec.report.verdicts import compatibility_note, wider_text

INDEX = (
    "{queries:,} stored texts that were not trained on search the {candidates:,} others twice: with their stored "
    "vector, and with the student's vector. overlap@10 is the share of equal texts in both top {depth}; {wider}."
)
LOG = (
    "{queries:,} held-out queries search all {texts:,} rows of the index twice: with the vector that {maker} gives "
    "them, and with the student's vector. overlap@10 is the share of equal texts in both top {depth}; {wider}."
)
TEACHER = (
    "{queries:,} validation texts search {candidates:,} texts of the corpus (of {texts:,}), with the teacher and with "
    "the student. overlap@10 is the share of the teacher's {depth} nearest texts that the student finds; the text "
    "itself does not count."
)
COLUMNS = (
    " Alone: the student embeds all texts. Among the teacher's vectors: the student embeds only the validation text."
)
TRAINED = " Trained texts: training texts as queries. If this is much higher, you need more texts."


def section(report: Report) -> PageSection | None:
    """Return the shares with their intervals, and what they mean for a search among the teacher's vectors."""
    judgement = report.overlap
    if judgement is None:
        return None
    note = None if report.record is None else compatibility_note(report.record)
    return make_section(
        "overlap@10",
        "" if note is None else f"{note.title}. {note.text}",
        overlap_table(judgement),
        notes(judgement_note(judgement)),
        source_table(judgement),
    )


def judgement_note(judgement: Judgement) -> str:
    """Return how the shares were measured."""
    text = INDEX if judgement.origin == "index" else TEACHER
    sentences = (text if judgement.log is None else LOG).format(
        maker=None if judgement.log is None else judgement.log.made_by,
        queries=judgement.queries,
        candidates=judgement.candidates,
        texts=judgement.texts,
        depth=NEIGHBOR_COUNT,
        wider=wider_text(judgement),
    )
    if judgement.origin == "teacher" and judgement.student.among is not None:
        sentences += COLUMNS
    return sentences + (TRAINED if judgement.trained is not None else "")


def overlap_table(judgement: Judgement) -> Table:
    """Return a row each for the student, the student before training, the gain, and texts that were trained on."""
    rows = {
        "before training": judgement.start,
        "student": judgement.student,
        "gain": judgement.gain,
        "student, trained texts": judgement.trained,
    }
    measured = {name: shares for name, shares in rows.items() if shares is not None}
    return _overlap_table("overlap-table", "overlap@10 of the models", "Model", judgement, measured)


def source_table(judgement: Judgement) -> Table | None:
    """Return a row for each source or language; None for a single one."""
    if not judgement.sources:
        return None
    rows = {f"{source.name} ({source.queries:,} queries)": source.shares for source in judgement.sources}
    return _overlap_table("overlap-sources", "The student by source", "Source", judgement, rows)


def _overlap_table(name: str, caption: str, title: str, judgement: Judgement, rows: dict[str, Overlap]) -> Table:
    columns = {}
    if judgement.student.among is not None:
        where = "in the index" if judgement.origin == "index" else "among the teacher's vectors"
        columns[where] = [shares.among for shares in rows.values()]
    if judgement.student.alone is not None:
        columns["alone"] = [shares.alone for shares in rows.values()]
    body = []
    for row, label in enumerate(rows):
        cells = [share_cell(column[row], sign=label == "gain") for column in columns.values()]
        body.append([*words(label), *cells])
    return Table(name, caption, [title, *columns], body)


def share_cell(share: OverlapShare | None, sign: bool = False) -> Cell:
    """Return a share with its interval; a gain has its sign."""
    if share is None:
        return number_cell(None)
    low, high = (number_cell(value, 2, sign).text for value in (share.low, share.high))
    return Cell(number_cell(share.mean, 2, sign).text, share.mean, f"[{low}, {high}]")
