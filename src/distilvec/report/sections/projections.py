"""Texts and tokens in the plane of the teacher's principal components (evaluation/projection.py)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from distilvec.evaluation.projection import SentencePlane, SeparatePlanes, TokenPlane
from distilvec.report.figures import Points
from distilvec.report.planes import Plane, draw_planes
from distilvec.report.scores import in_order
from distilvec.report.section import Figure, Section, folded, make_section
from distilvec.report.tables import Cell, number, pivot
from distilvec.report.values import Report

MOST_TEXTS = 100  # in a plane: more are not told apart
NOTE = (
    "The plane of the teacher's two principal components. A line joins a text by the teacher (hollow) and by the "
    "student. Disparity is what a rotation leaves of their difference: 0 is the same picture."
)


@dataclass(frozen=True)
class PlaneTexts:
    """The texts of a plane: the group of each, and its beginning."""

    groups: list[str]
    labels: list[str]


@dataclass(frozen=True)
class ModelTokens:
    """Tokens of a sentence in a plane: the model, with its likeness to the teacher, tokens and points."""

    model: str
    tokens: Sequence[str]
    points: Points
    note: str = ""


@dataclass(frozen=True)
class SentenceTokens:
    """A sentence and its tokens by each model."""

    text: str
    models: list[ModelTokens]


def section(report: Report) -> Section | None:
    """Return planes of sentences, of tokens, and of tokens in each model's own plane."""
    joint = [] if report.projections is None else [_joint(plane) for plane in report.projections.tokens]
    separate = [_separate(planes) for planes in report.tokens]
    planes = folded(
        "Show the planes",
        None if report.projections is None else sentence_figure(report.projections.sentences),
        token_figure("tokens", "Tokens in one plane", joint, joint=True),
        token_figure("token_planes", "Tokens by model (in brackets: likeness)", separate),
    )
    return make_section("Texts and tokens in the plane", NOTE if planes.content else "", planes)


def sentence_figure(sentences: SentencePlane) -> Figure | None:
    """Return one plane for the student before and after training, each with the teacher's points."""
    names = ("teacher", "student", "untrained")
    sets = in_order({name: sentences.points[name] for name in names if name in sentences.points})
    if len(sets) < 2 or "teacher" not in sets:
        return None
    notes = {}
    for model in sets:
        measures = []
        if model in sentences.disparity:
            measures.append(f"disparity {sentences.disparity[model]:.3f}")
        if model in sentences.disparity_aligned:
            measures.append(f"aligned {sentences.disparity_aligned[model]:.3f}")
        notes[model] = ", ".join(measures)
    count = len(sentences.groups)
    title = "Texts in the plane"
    chosen: Sequence[int] = range(count)
    if count > MOST_TEXTS:
        chosen = [count * number // MOST_TEXTS for number in range(MOST_TEXTS)]
        title += f" ({MOST_TEXTS} of {count})"
    texts = PlaneTexts([sentences.groups[row] for row in chosen], [sentences.labels[row] for row in chosen])
    shown = {model: [points[row] for row in chosen] for model, points in sets.items()}
    return plane_figure("sentences", title, shown, notes, texts)


def plane_figure(
    name: str, title: str, sets: Mapping[str, Points], notes: Mapping[str, str], texts: PlaneTexts, raw: bool = False
) -> Figure:
    """Return one plane per set: the same texts by teacher (hollow) and set.

    `raw`: every set, the teacher too, has a plane of its own axes.
    """
    hover_texts = [
        f"{group}: {label}" if label else group for group, label in zip(texts.groups, texts.labels, strict=True)
    ]
    planes = []
    for model, points in sets.items():
        if raw:
            planes.append(Plane(model, points, texts.groups, note=notes.get(model, ""), texts=hover_texts))
        elif model != "teacher":
            reference = sets["teacher"]
            planes.append(Plane(model, points, texts.groups, reference, notes.get(model, ""), texts=hover_texts))
    entries = []
    for model, points in sets.items():
        for count, (group, label, point) in enumerate(zip(texts.groups, texts.labels, points, strict=True), 1):
            entries.append(((group, f"{count} {label}"), model, _position(point)))
    data = pivot(f"data-{name}", f"{title}, positions", ["Group", "Text"], entries)
    across = 2 if len(planes) <= 6 else 3
    return Figure(name, title, partial(draw_planes, planes, across, aligned=not raw), data)


def token_figure(name: str, title: str, sentences: Sequence[SentenceTokens], joint: bool = False) -> Figure | None:
    """Return one row per sentence: tokens by teacher (hollow) and student in a joint plane, or a plane per model."""
    if not sentences or not all(len(tokens.points) for row in sentences for tokens in row.models):
        return None
    planes: list[Plane] = []
    entries: list[Any] = []
    for sentence in sentences:
        if joint:
            teacher, student = sentence.models
            planes.append(
                Plane(
                    sentence.text,
                    student.points,
                    reference=teacher.points,
                    labels=teacher.tokens,
                    texts=student.tokens,
                )
            )
        for one in sentence.models:
            if not joint:
                text = sentence.text if one.model == "teacher" else ""
                planes.append(Plane(text, one.points, note=f"{one.model}{one.note}", labels=one.tokens))
            for count, (token, point) in enumerate(zip(one.tokens, one.points, strict=True), 1):
                entries.append(((sentence.text, f"{count} {token}"), one.model, _position(point)))
    data = pivot(f"data-{name}", f"{title}, positions", ["Sentence", "Token"], entries)
    across = 1 if joint else len(sentences[0].models)
    return Figure(name, title, partial(draw_planes, planes, across, aligned=False), data)


def _joint(plane: TokenPlane) -> SentenceTokens:
    """A sentence in one plane: the teacher, then the student."""
    teacher = ModelTokens("teacher", plane.tokens, plane.teacher)
    student = ModelTokens("student", plane.student_tokens or plane.tokens, plane.student)
    return SentenceTokens(plane.text, [teacher, student])


def _separate(planes: SeparatePlanes) -> SentenceTokens:
    """A sentence with a plane for each model, and the likeness to the teacher after the model's name."""
    names = ("teacher", "student", "finetuned", "untrained")
    models = []
    for model, tokens in in_order({name: planes.models[name] for name in names if name in planes.models}).items():
        likeness = planes.likeness.get(model)
        note = "" if likeness is None else f" ({likeness:.2f})"
        models.append(ModelTokens(model, tokens.tokens, tokens.places, note))
    return SentenceTokens(planes.text, models)


def _position(point: Sequence[float]) -> Cell:
    return Cell(", ".join(number(value, 3) for value in point))
