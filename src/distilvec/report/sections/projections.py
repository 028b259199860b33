"""Texts and tokens in the plane of the teacher's principal components (evaluation/projection.py)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from distilvec.report.figures import Points
from distilvec.report.planes import Plane, draw_planes
from distilvec.report.scores import by_model
from distilvec.report.section import Figure, Section, get, make_section
from distilvec.report.tables import Cell, Part, number, pivot

Sets = dict[str, tuple[Sequence[str], Points, str]]  # model: tokens, points, note


def section(report: Part) -> Section | None:
    """Return planes of sentences, of tokens, and of tokens in each model's own plane."""
    sentences, tokens, own = (get(report, path) for path in ("projections.sentences", "projections.tokens", "tokens"))
    sets = by_model({name: sentences.get(name) for name in ("teacher", "student", "untrained")})
    measures = {"disparity": get(sentences, "disparity"), "aligned": get(sentences, "disparity_aligned")}
    known = [
        (model, f"{title} {values[model]:.3f}")
        for title, values in measures.items()
        for model in sets
        if values.get(model) is not None
    ]
    notes = {model: ", ".join(text for name, text in known if name == model) for model in sets}
    shown = len(sets) > 1 and "teacher" in sets
    return make_section(
        "Texts and tokens in the plane",
        plane_figure("sentences", "Texts in the plane", sets, notes, sentences) if shown else None,
        token_figure("tokens", "Tokens in one plane", [_joint(row) for row in tokens], joint=True),
        token_figure("token_planes", "Tokens by model (in brackets: likeness)", [_separate(row) for row in own]),
    )


def plane_figure(
    name: str, title: str, sets: Mapping[str, Points], notes: Mapping[str, str], about: Part, raw: bool = False
) -> Figure:
    """Return one plane per set: the same texts by teacher (hollow) and set; `about` has their groups and labels.

    `raw`: every set, the teacher too, has a plane of its own axes.
    """
    teacher = sets["teacher"]
    groups, labels = about.get("groups") or ["texts"] * len(teacher), about.get("labels") or [""] * len(teacher)
    reference = () if raw else teacher
    drawn = [other for other in sets if raw or other != "teacher"]
    texts = [f"{group}: {label}" if label else group for group, label in zip(groups, labels, strict=True)]
    planes = [Plane(other, sets[other], groups, reference, notes.get(other, ""), texts=texts) for other in drawn]
    keys = [(group, f"{count} {label}") for count, (group, label) in enumerate(zip(groups, labels, strict=True), 1)]
    entries = ((key, other, _position(point)) for other in sets for key, point in zip(keys, sets[other], strict=True))
    data = pivot(f"data-{name}", f"{title}, positions", ["Group", "Text"], entries)
    return Figure(name, title, partial(draw_planes, planes, 2 if len(planes) <= 6 else 3, not raw), data)


def token_figure(name: str, title: str, rows: list[tuple[str, Sets]], joint: bool = False) -> Figure | None:
    """Return one row per sentence: tokens by teacher (hollow) and student in a joint plane, or a plane per model."""
    if not rows or not all(len(points) for _, sets in rows for _, points, _ in sets.values()):
        return None
    planes, entries = list[Plane](), list[Any]()
    for text, sets in rows:
        if joint:
            ours, theirs = sets["student"], sets["teacher"]
            planes.append(Plane(text, ours[1], (), theirs[1], labels=theirs[0], texts=ours[0]))
        for model, (tokens, points, note) in sets.items():
            if not joint:
                planes.append(Plane(text if model == "teacher" else "", points, (), (), f"{model}{note}", tokens))
            for count, (token, point) in enumerate(zip(tokens, points, strict=True), 1):
                entries.append(((text, f"{count} {token}"), model, _position(point)))
    data = pivot(f"data-{name}", f"{title}, positions", ["Sentence", "Token"], entries)
    return Figure(name, title, partial(draw_planes, planes, 1 if joint else len(rows[0][1]), aligned=False), data)


def _joint(row: Part) -> tuple[str, Sets]:
    """A sentence of `projections.tokens`."""
    ours = (row.get("student_tokens") or row["tokens"], row.get("student") or (), "")
    return row["text"], {"teacher": (row["tokens"], row.get("teacher") or (), ""), "student": ours}


def _separate(row: Part) -> tuple[str, Sets]:
    """A sentence of `tokens`, with the likeness to the teacher after each model's name."""
    notes = {name: f" ({value:.2f})" for name, value in row["likeness"].items() if value is not None}
    models = by_model({name: row.get(name) for name in ("teacher", "student", "finetuned", "untrained")})
    return row["text"], {name: (one["tokens"], one["places"], notes.get(name, "")) for name, one in models.items()}


def _position(point: Sequence[float]) -> Cell:
    return Cell(", ".join(number(value, 3) for value in point))
