"""Pictures of embeddings in the plane of the teacher's principal components (projection.py makes the coordinates)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from distilvec.report.figure_style import (
    BLUE,
    COLUMN_COLOURS,
    COLUMN_MARKERS,
    INK,
    MARKERS,
    SERIES,
    figure_style,
    new_figure,
    place_labels,
    shortened,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Part = Mapping[str, Any]
Rows = Sequence[Mapping[str, Any]]


@figure_style()
def sentences_figure(sentences: Part) -> Figure:
    """The same texts as teacher and student (and untrained student) place them; a short line joins equal texts."""
    columns = [name for name in ("student", "untrained") if sentences.get(name)]
    teacher, groups = np.asarray(sentences["teacher"]), sentences.get("groups") or ["texts"] * len(sentences["teacher"])
    kinds = list(dict.fromkeys(groups))
    everything = np.concatenate([teacher, *(np.asarray(sentences[name]) for name in columns)])
    centre, half = (everything.min(axis=0) + everything.max(axis=0)) / 2, 0.55 * np.ptp(everything, axis=0).max()
    figure = new_figure(3.1 + 0.2 * (len(kinds) // 3))
    panels = figure.subplots(1, len(columns), squeeze=False).ravel()
    for axes, column in zip(panels, columns, strict=True):
        places = np.asarray(sentences[column])
        axes.plot(*np.stack([teacher, places], axis=1).transpose(2, 1, 0), color=INK, alpha=0.4, linewidth=0.8)
        for number, kind in enumerate(kinds):
            rows = np.array([group == kind for group in groups])
            style = {"color": SERIES[number % 6], "marker": MARKERS[number % 8], "linestyle": "none", "markersize": 5}
            axes.plot(*teacher[rows].T, fillstyle="none", markeredgewidth=1.0, **style)
            axes.plot(*places[rows].T, label=kind, alpha=0.85, markeredgewidth=0, **style)
        raw, aligned = ((sentences.get(key) or {}).get(column) for key in ("disparity", "disparity_aligned"))
        axes.set_title(column)
        figures = [f"disparity {raw:.3f}"] * (raw is not None) + [f"aligned {aligned:.3f}"] * (aligned is not None)
        axes.set_xlabel(", ".join(figures), fontsize=8.5)
    for axes in panels:
        axes.set(
            xticks=[],
            yticks=[],
            aspect="equal",
            xlim=(centre[0] - half, centre[0] + half),
            ylim=(centre[1] - half, centre[1] + half),
        )
        axes.spines[:].set(visible=True, alpha=0.3)
    handles, names = panels[0].get_legend_handles_labels()
    figure.legend(
        handles,
        [shortened(name, 20) for name in names],
        loc="outside lower center",
        ncols=3,
        title="hollow: teacher; filled: the same texts in the column",
        title_fontsize=8.5,
    )
    return figure


@figure_style()
def tokens_figure(tokens: Rows) -> Figure:
    """The tokens of each sentence where the teacher's (hollow) and the student's (filled) last layer puts them."""
    figure = new_figure(0.45 + 2.4 * len(tokens))
    grid = figure.subplots(len(tokens), 1, squeeze=False).ravel()
    for axes, row in zip(grid, tokens, strict=True):
        teacher, student = np.asarray(row["teacher"]), np.asarray(row["student"])
        if "student_tokens" not in row:
            axes.plot(*np.stack([teacher, student], axis=1).transpose(2, 1, 0), color=INK, alpha=0.4, linewidth=0.8)
        axes.plot(*teacher.T, "o", color=INK, fillstyle="none", label="teacher")
        axes.plot(*student.T, "o", color=BLUE, label="student")
        axes.set(xticks=[], yticks=[])
        axes.set_title(shortened(row["text"], 60), fontsize=8.5, loc="left")
        axes.margins(0.12, 0.16)
        axes.spines[:].set(visible=True, alpha=0.3)
    figure.legend(*grid[0].get_legend_handles_labels(), loc="outside lower center", ncols=2)
    for axes, row in zip(grid, tokens, strict=True):
        ends = [tuple(place) for place in row["student"]]
        middles = (
            []
            if "student_tokens" in row
            else [tuple(np.add(*pair) / 2) for pair in zip(row["teacher"], row["student"], strict=True)]
        )
        place_labels(axes, row["teacher"], [shortened(token, 14) for token in row["tokens"]], ends + middles)
    return figure


@figure_style()
def token_planes_figure(rows: Rows) -> Figure:
    """One row a sentence, one panel a model: its tokens in the model's own plane, turned so that words lie as the teacher's do."""
    columns = [name for name in ("teacher", "student", "untrained") if name in rows[0]]
    figure = new_figure(0.15 + 2.25 * len(rows))
    grid = figure.subplots(len(rows), len(columns), squeeze=False)
    for panels, row in zip(grid, rows, strict=True):
        for axes, column in zip(panels, columns, strict=True):
            places = np.asarray(row[column]["places"])
            axes.plot(*places.T, COLUMN_MARKERS[column], color=COLUMN_COLOURS[column], markersize=4)
            likeness = row["likeness"].get(column)
            axes.set_xlabel(column if likeness is None else f"{column} ({likeness:.2f})", fontsize=8.5)
            axes.set(xticks=[], yticks=[])
            axes.margins(0.2, 0.14)
            axes.spines[:].set(visible=True, alpha=0.3)
        panels[0].set_title(shortened(row["text"], 64), fontsize=8.5, loc="left", in_layout=False)
    figure.supxlabel("in brackets: likeness to the teacher's geometry", fontsize=8.5)
    for panels, row in zip(grid, rows, strict=True):
        for axes, column in zip(panels, columns, strict=True):
            place_labels(
                axes,
                [tuple(place) for place in row[column]["places"]],
                [shortened(token, 12) for token in row[column]["tokens"]],
            )
    return figure


def describe_token_planes(rows: Rows) -> str:
    """The sentences, and how like the teacher's the geometry of their words is."""
    sentences = []
    for row in rows:
        counts = [
            f"{len(row[name]['tokens'])} of the {name}" for name in ("teacher", "student", "untrained") if name in row
        ]
        values = [f"{name} {value:.2f}" for name, value in row["likeness"].items() if value is not None]
        sentences.append(
            f"“{row['text']}”: tokens {', '.join(counts)}" + (f"; likeness {', '.join(values)}." if values else ".")
        )
    text = "Last states of the tokens of sentences drawn by seed, each model's in the plane of its own two widest axes, turned so that words "
    text += "lie as the teacher's do; a dot before a piece says that it goes on with a word. Likeness: the correlation with the teacher of "
    return f"{text}the cosines between all pairs of words (1: the same geometry, 0: nothing in common). {' '.join(sentences)}"
