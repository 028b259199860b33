"""Two-dimensional pictures of embeddings, laid over each other so that equal places mean equal vectors.

The teacher's vectors T (rows are texts) set the picture: their two first principal components span it, and every column
of the teacher's width is projected with that same mean and those same components. Whether a column is turned first:

- A teacher-compatible student already lives in the teacher's space. Turning it would hide errors, so it is drawn as it is.
- A column that holds the teacher's geometry in other axes is turned onto it by orthogonal Procrustes after centring
  (Schönemann 1966), without scale. Fitted and judged on the same texts, a rotation of d dimensions fits any n <= d texts
  perfectly, random vectors included. So texts are dealt into folds and each is turned by what the other folds say.
- `align="auto"` takes whichever of the two lies closer to the teacher, column by column.

A column of another width has a space of its own: its own two principal components are shifted, turned and scaled onto the
teacher's picture (four numbers, so nothing can be overfitted); equal places then mean a similar shape only.

The experts of a mixture are trained through projections of their own, so that their axes are not the teacher's, and a joint
PCA would lay axes over each other that have nothing to do with each other. What can be shared is the geometry: each set's
unit vectors are centred, brought to one size, cut to their widest axes and turned onto the teacher's, fold by fold.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from scipy.linalg import orthogonal_procrustes
from sklearn.decomposition import PCA

from distilvec.core.errors import DistilvecError

Array = np.ndarray[Any, Any]
Align = Literal["auto", "always", "never"]
TokenStates = tuple[list[str], Array]  # the tokens of a text, their states float32 [tokens, width]

FOLDS = 5
DIGITS = 5  # of the coordinates in report.json
AXES = 16  # principal components of an expert's outputs that are turned onto the teacher's


@dataclass(frozen=True)
class Placed:
    """A column in the teacher's picture: places [n, 2], residuals over the teacher's sum of squares (0 = equal) and if it was turned.

    `raw` is None where the widths differ; `aligned` is what remains after alignment.
    """

    places: Array
    raw: float | None
    aligned: float
    turned: bool

    @property
    def disparity(self) -> float:
        """The residual of the vectors as they are, or the only one there is."""
        return self.aligned if self.raw is None else self.raw


@dataclass(frozen=True)
class Picture:
    """The plane of the teacher's vectors: the vectors [n, width], their principal components, their sum of squares."""

    vectors: Array
    components: PCA
    total: float

    @property
    def places(self) -> Array:
        """The teacher's own places [n, 2]."""
        return self.project(self.vectors)

    def project(self, vectors: Array) -> Array:
        """Places [n, 2] of vectors of the teacher's width."""
        found: Array = self.components.transform(vectors)
        return found


def project_sentences(
    vectors: Mapping[str, Array], align: Align = "auto", reference: str = "teacher"
) -> dict[str, Any]:
    """report.json's coordinates of each column, with what is left between it and the teacher.

    `vectors` maps columns to [n, width of the column], the same n texts in the same order. Gives each column's [[x, y], ...],
    `disparity` and `disparity_aligned` (residual sum of squares over the teacher's, as it is and after alignment; 0 = equal)
    and `aligned` (was the drawn column turned?). Errors: DistilvecError for no reference, other numbers of texts, fewer
    than three texts, vectors that are not finite or all equal.
    """
    if reference not in vectors:
        raise DistilvecError(
            f"[projections] the projection needs the vectors of '{reference}'; found {', '.join(vectors) or 'none'}."
        )
    picture = draw_plane(vectors[reference], reference)
    placed = {name: place(name, found, picture, align) for name, found in vectors.items() if name != reference}
    return {
        reference: _listed(picture.places),
        **{name: _listed(column.places) for name, column in placed.items()},
        "disparity": {name: round(column.disparity, 6) for name, column in placed.items()},
        "disparity_aligned": {name: round(column.aligned, 6) for name, column in placed.items()},
        "aligned": {name: column.turned for name, column in placed.items()},
    }


def project_tokens(
    texts: Sequence[str], teacher: Sequence[TokenStates], student: Sequence[TokenStates]
) -> list[dict[str, Any]]:
    """report.json's token pictures, one a text, all in one plane: tokens and places of the teacher's and the student's states.

    Where both cut every text into the same tokens, states of one space (equal widths, residual below the teacher's sum
    of squares) are drawn as they are, others from their own plane, shifted, turned and scaled onto the teacher's. With other
    tokens nothing says which belongs to which, so only the centres are put on each other, and `student_tokens` is added.
    Errors: DistilvecError as `project_sentences`, and if the three sequences differ in length.
    """
    if not len(texts) == len(teacher) == len(student):
        raise DistilvecError(
            f"[projections] expected states of {len(texts)} texts; found {len(teacher)} of the teacher, {len(student)} of the student."
        )
    picture = draw_plane(np.concatenate([states for _, states in teacher]), "teacher")
    states = _checked(np.concatenate([found for _, found in student]), "student")
    shared = [tokens for tokens, _ in teacher] == [tokens for tokens, _ in student]
    if not shared:
        own = draw_plane(states, "student").places
        places = own + picture.places.mean(axis=0)
    elif states.shape[1] == picture.vectors.shape[1] and _residual(states, picture) < 1:
        places = picture.project(states)
    else:
        places = _own_plane(states, "student", picture)[0]
    theirs, ours = _by_text(picture.places, teacher), _by_text(places, student)
    rows = zip(texts, teacher, student, theirs, ours, strict=True)
    return [
        {
            "text": text,
            "tokens": tokens,
            **({} if shared else {"student_tokens": others}),
            "teacher": _listed(left),
            "student": _listed(right),
        }
        for text, (tokens, _), (others, _), left, right in rows
    ]


def project_experts(teacher: Array, experts: Sequence[Array], mixture: Array) -> dict[str, Any]:
    """report.json's coordinates of a teacher's vectors [n, width], of each expert's outputs and of what the gate makes of them [n, other].

    All in the plane of the teacher's two widest axes. `likeness` (of each expert, then of the mixture) is the correlation with
    the teacher over the axes that were turned, each text placed by what the other folds say: 1 is the teacher's geometry, 0
    nothing in common. `axes` says how many these are, `variance` how much of the teacher's variance they hold.
    Errors: DistilvecError as `project_sentences`.
    """
    sets = {
        "teacher": teacher,
        **{f"expert {number}": found for number, found in enumerate(experts, 1)},
        "mixture": mixture,
    }
    checked = {name: _checked(found, name) for name, found in sets.items()}
    axes = max(2, min(AXES, len(teacher) // FOLDS, *(found.shape[1] for found in checked.values())))
    target, variance = _widest(checked.pop("teacher"), "teacher", axes)
    turned = [turn(_widest(found, name, axes)[0], target) for name, found in checked.items()]
    likeness = [float((found * target).sum() / np.sqrt((found**2).sum() * (target**2).sum())) for found in turned]
    *places, mixed = [_listed(found[:, :2]) for found in turned]
    return {
        "teacher": _listed(target[:, :2]), "experts": places, "mixture": mixed, "likeness": [round(value, 4) for value in likeness],
        "axes": axes, "variance": round(variance, 4),
    }  # fmt: skip


def token_states(model: Any, texts: Sequence[str]) -> list[TokenStates]:
    """The last hidden states of each text's tokens, special tokens and padding left out, without a prompt.

    `model` is a SentenceTransformer; texts are cut to its maximum length. Token by token they stand as the tokenizer
    spells them ("##ing", "▁wing").
    """
    tokenizer = model.tokenizer
    special = set(tokenizer.all_special_ids) - {getattr(tokenizer, "unk_token_id", None)}
    found = model.encode(list(texts), prompt="", output_value=None, show_progress_bar=False)
    rows = []
    for row in found:
        real = row["attention_mask"].bool().cpu().numpy()
        ids = row["input_ids"].cpu().numpy()
        kept = real & ~np.isin(ids, list(special))
        states = row["token_embeddings"].float().cpu().numpy()
        rows.append((tokenizer.convert_ids_to_tokens(ids[kept].tolist()), states[kept]))
    return rows


# -- the plane and the ways onto it -----------------------------------------------------------------------------------


def draw_plane(vectors: Array, name: str) -> Picture:
    """The plane of the two first principal components of vectors [n, width]."""
    checked = _checked(vectors, name)
    total = float(((checked - checked.mean(axis=0)) ** 2).sum())
    if total == 0:
        raise DistilvecError(
            f"[projections] all {len(checked)} vectors of '{name}' are equal, so there is nothing to draw. Choose different texts."
        )
    return Picture(checked, PCA(n_components=2, svd_solver="full").fit(checked), total)


def place(name: str, vectors: Array, picture: Picture, align: Align = "auto") -> Placed:
    """A column's vectors [n, width of the column] in the teacher's picture."""
    found = _checked(vectors, name)
    if len(found) != len(picture.vectors):
        raise DistilvecError(
            f"[projections] '{name}' has vectors of {len(found)} texts, the teacher of {len(picture.vectors)}. Embed the same texts."
        )
    if found.shape[1] != picture.vectors.shape[1]:
        places, left = _own_plane(found, name, picture)
        return Placed(places, None, left, True)
    turned = turn(found, picture.vectors)
    raw, aligned = _residual(found, picture), _residual(turned, picture)
    use = align == "always" or (align == "auto" and aligned < raw)
    return Placed(picture.project(turned if use else found), raw, aligned, use)


def turn(vectors: Array, target: Array) -> Array:
    """vectors [n, width] shifted and turned onto target [n, width], each fold by the rotation that fits the others best."""
    turned, folds = np.empty_like(vectors), np.arange(len(vectors)) % FOLDS
    for fold in range(min(FOLDS, len(vectors))):
        fit, kept = folds != fold, folds == fold
        centre, aim = vectors[fit].mean(axis=0), target[fit].mean(axis=0)
        rotation, _ = orthogonal_procrustes(vectors[fit] - centre, target[fit] - aim)
        turned[kept] = (vectors[kept] - centre) @ rotation + aim
    return turned


def _widest(vectors: Array, name: str, axes: int) -> tuple[Array, float]:
    """Unit vectors centred, in the coordinates of their widest axes, of mean square 1; and the share of the variance these hold."""
    unit = vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12)
    picture = draw_plane(unit, name)
    components = PCA(n_components=min(axes, len(unit)), svd_solver="full").fit(picture.vectors)
    places = components.transform(picture.vectors)
    return places / np.sqrt((places**2).sum(1).mean()), float(components.explained_variance_ratio_.sum())


def _own_plane(vectors: Array, name: str, picture: Picture) -> tuple[Array, float]:
    """A column's own plane shifted, turned and scaled onto the teacher's places; its residual there, over their sum of squares."""
    own, aim = draw_plane(vectors, name).places, picture.places
    centre, middle = own.mean(axis=0), aim.mean(axis=0)
    rotation, scale = orthogonal_procrustes(own - centre, aim - middle)
    places = (own - centre) @ rotation * (scale / ((own - centre) ** 2).sum()) + middle
    return places, float(((places - aim) ** 2).sum() / ((aim - middle) ** 2).sum())


def _residual(vectors: Array, picture: Picture) -> float:
    return float(((vectors - picture.vectors) ** 2).sum() / picture.total)


def _checked(vectors: Array, name: str) -> Array:
    found = np.asarray(vectors, dtype=np.float64)
    if found.ndim != 2 or len(found) < 3 or found.shape[1] < 2:
        raise DistilvecError(
            f"[projections] a picture of '{name}' needs at least 3 vectors of at least 2 dimensions; found an array of shape {found.shape}."
        )
    if not np.isfinite(found).all():
        raise DistilvecError(
            f"[projections] the vectors of '{name}' hold NaN or infinite numbers in {int((~np.isfinite(found)).any(axis=1).sum())} rows."
        )
    return found


def _by_text(places: Array, states: Sequence[TokenStates]) -> list[Array]:
    return np.split(places, np.cumsum([len(tokens) for tokens, _ in states])[:-1])


def _listed(places: Array) -> list[list[float]]:
    listed: list[list[float]] = np.round(places, DIGITS).tolist()
    return listed
