"""Two-dimensional projections of embeddings and token states.

Sentences share the plane of the teacher's two first principal components, rotated first by orthogonal Procrustes
(Schönemann 1966) if that leaves a smaller residual. A rotation of d dimensions fits any n <= d texts perfectly, so each
fold of texts is rotated by the other folds. Vectors of another dim have their own plane, shifted, rotated and scaled
onto the teacher's.

Token planes (DistillMoE, figures 3 and 4) are each model's own. The words that two tokenizers share rotate a plane onto
the teacher's, and the cosines between all pairs of words compare geometries (Kriegeskorte et al. 2008).
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.linalg import orthogonal_procrustes
from sklearn.decomposition import PCA

from distilvec.alignment.offsets import ORDINARY, SpanReader, join
from distilvec.core.errors import DistilvecError

Array = np.ndarray[Any, Any]
Point = tuple[float, float]
TokenStates = tuple[list[str], Array]  # the tokens of a text, their states float32 [tokens, dim]

FOLDS = 5
DIGITS = 5  # of the coordinates in report.json
AXES = 16  # principal components of an expert's outputs that are rotated onto the teacher's
FEWEST_WORDS = 4  # for a comparison of geometries
LENGTHS = (6, 9)  # words of the sentences that are drawn
_WORD = re.compile(r"\w+|[^\w\s]")


@dataclass(frozen=True)
class ExpertPlane:
    """Texts by the teacher, by each expert and by their mixture; `raw`: in planes of their own."""

    teacher: list[Point]
    experts: list[list[Point]]
    mixture: list[Point]
    raw: list[list[Point]]
    likeness: list[float]
    axes: int
    variance: float
    groups: list[str]
    labels: list[str]


@dataclass(frozen=True)
class SentencePlane:
    """The same texts by several models in the plane of the teacher (evaluation/projection.py).

    disparity: the residual to the teacher; disparity_aligned: after rotation; aligned: the rotated one is drawn
    """

    points: dict[str, list[Point]]
    disparity: dict[str, float]
    disparity_aligned: dict[str, float]
    aligned: dict[str, bool]
    labels: list[str]
    groups: list[str]


@dataclass(frozen=True)
class TokenPlane:
    """Tokens of a text by teacher and student in one plane; `student_tokens` where they differ from the teacher's."""

    text: str
    tokens: list[str]
    teacher: list[Point]
    student: list[Point]
    student_tokens: list[str] | None = None


@dataclass(frozen=True)
class PlacedTokens:
    """Tokens of a text in the plane of one model."""

    tokens: list[str]
    places: list[Point]


@dataclass(frozen=True)
class SeparatePlanes:
    """Tokens of a text, each model's in a plane of its own, and the likeness of each model to the teacher."""

    text: str
    models: dict[str, PlacedTokens]
    likeness: dict[str, float | None]


@dataclass(frozen=True)
class Plane:
    """Two first principal components of vectors [n, dim]; `points` [n, 2] are the vectors in the plane."""

    vectors: Array
    components: PCA
    points: Array


def fit_plane(vectors: Array, name: str, axes: int = 2) -> Plane:
    """Plane of vectors [n, dim]. Errors: DistilvecError for fewer than 3, equal or not finite vectors."""
    found = _checked(vectors, name)
    if not np.ptp(found, axis=0).any():
        raise DistilvecError(
            f"all {len(found)} vectors of '{name}' are equal.", "Choose different texts.", key="projections"
        )
    components = PCA(n_components=min(axes, len(found)), svd_solver="full").fit(found)
    return Plane(found, components, components.transform(found))


# -- sentences -------------------------------------------------------------------------------------------------------


def project_sentences(
    vectors: Mapping[str, Array], labels: Sequence[str] = (), groups: Sequence[str] = ()
) -> SentencePlane:
    """Project the texts of each model, with the residual to the model "teacher".

    `vectors` maps models to [n, dim of the model], the same n texts in the same order; `labels` and `groups` are those
    of the texts. The disparities are residual sums of squares over the teacher's, 0 = equal. Errors: DistilvecError as
    `fit_plane`.
    """
    plane = fit_plane(vectors["teacher"], "teacher")
    points = {"teacher": _listed(plane.points)}
    disparity = {}
    disparity_aligned = {}
    aligned = {}
    for name in vectors:
        if name == "teacher":
            continue
        checked = _checked(vectors[name], name)
        if checked.shape[1] == plane.vectors.shape[1]:
            rotated = rotate(checked, plane.vectors)
            residual = _residual(checked, plane)
            residual_aligned = _residual(rotated, plane)
            is_aligned = residual_aligned < residual
            projected = plane.components.transform(rotated if is_aligned else checked)
        else:
            # without a common space there is nothing but the aligned points to draw
            projected, residual = _onto(fit_plane(checked, name).points, plane.points)
            residual_aligned = residual
            is_aligned = True
        points[name] = _listed(projected)
        disparity[name] = round(residual, 6)
        disparity_aligned[name] = round(residual_aligned, 6)
        aligned[name] = is_aligned
    return SentencePlane(
        points=points,
        disparity=disparity,
        disparity_aligned=disparity_aligned,
        aligned=aligned,
        labels=list(labels),
        groups=list(groups),
    )


def rotate(vectors: Array, target: Array) -> Array:
    """Vectors [n, dim] shifted and rotated onto target [n, dim], each fold by the best rotation of the other folds."""
    rotated, folds = np.empty_like(vectors), np.arange(len(vectors)) % FOLDS
    for fold in range(min(FOLDS, len(vectors))):
        fit, kept = folds != fold, folds == fold
        centre, aim = vectors[fit].mean(axis=0), target[fit].mean(axis=0)
        rotation, _ = orthogonal_procrustes(vectors[fit] - centre, target[fit] - aim)
        rotated[kept] = (vectors[kept] - centre) @ rotation + aim
    return rotated


def _residual(vectors: Array, plane: Plane) -> float:
    return float(((vectors - plane.vectors) ** 2).sum() / ((plane.vectors - plane.vectors.mean(axis=0)) ** 2).sum())


def _onto(points: Array, target: Array) -> tuple[Array, float]:
    """Points [n, 2] shifted, rotated and scaled onto others; the residual over their sum of squares."""
    own, aim = points - points.mean(axis=0), target - target.mean(axis=0)
    rotation, scale = orthogonal_procrustes(own, aim)
    moved = own @ rotation * (scale / (own**2).sum())
    return moved + target.mean(axis=0), float(((moved - aim) ** 2).sum() / (aim**2).sum())


# -- experts ---------------------------------------------------------------------------------------------------------


def project_experts(
    teacher: Array, experts: Sequence[Array], mixture: Array, groups: Sequence[str] = (), labels: Sequence[str] = ()
) -> ExpertPlane:
    """Project a teacher's vectors [n, dim], each expert's outputs and their mixture [n, other].

    Experts have axes of their own: their unit vectors are centred, brought to one size, and rotated in their first
    principal components. `likeness` (of each expert, then of the mixture) is the correlation with the teacher over the
    rotated axes: 1 is the teacher's geometry, 0 nothing in common. `axes` is their number, `variance` their share of
    the teacher's variance. `raw` are the planes before rotation (DistillMoE, figure 2), the mixture's last.
    Errors: DistilvecError as `fit_plane`.
    """
    outputs = {"teacher": teacher}
    for number, expert in enumerate(experts, 1):
        outputs[f"expert {number}"] = expert
    outputs["mixture"] = mixture
    axes = max(2, min(AXES, len(teacher) // FOLDS, *(vectors.shape[1] for vectors in outputs.values())))

    planes = {}
    points = {}
    for name, vectors in outputs.items():
        checked = _checked(vectors, name)
        lengths = np.linalg.norm(checked, axis=1, keepdims=True)
        planes[name] = fit_plane(checked / np.maximum(lengths, 1e-12), name, axes)
        size = np.sqrt((planes[name].points ** 2).sum(1).mean())
        points[name] = planes[name].points / size

    target = points.pop("teacher")
    raw = []
    rotated = []
    likeness = []
    for unrotated in points.values():
        turned = rotate(unrotated, target)
        correlation = (turned * target).sum() / np.sqrt((turned**2).sum() * (target**2).sum())
        raw.append(_listed(unrotated[:, :2]))
        rotated.append(_listed(turned[:, :2]))
        likeness.append(round(float(correlation), 4))
    variance = float(planes["teacher"].components.explained_variance_ratio_.sum())
    return ExpertPlane(
        teacher=_listed(target[:, :2]),
        experts=rotated[:-1],
        mixture=rotated[-1],
        raw=raw,
        likeness=likeness,
        axes=axes,
        variance=round(variance, 4),
        groups=list(groups),
        labels=list(labels),
    )


# -- tokens ----------------------------------------------------------------------------------------------------------


def token_states(model: Any, texts: Sequence[str]) -> list[TokenStates]:
    """Last hidden states of each text's tokens, without special tokens, padding and prompt.

    `model` is a SentenceTransformer; texts are truncated to its maximum length. Tokens are spelled as by the tokenizer.
    """
    tokenizer = model.tokenizer
    special = list(set(tokenizer.all_special_ids) - {getattr(tokenizer, "unk_token_id", None)})
    rows = []
    for row in model.encode(list(texts), prompt="", output_value=None, show_progress_bar=False):
        ids = row["input_ids"].cpu().numpy()
        kept = row["attention_mask"].bool().cpu().numpy() & ~np.isin(ids, special)
        states = row["token_embeddings"].float().cpu().numpy()
        rows.append((tokenizer.convert_ids_to_tokens(ids[kept].tolist()), states[kept]))
    return rows


def project_tokens(
    texts: Sequence[str], teacher: Sequence[TokenStates], student: Sequence[TokenStates]
) -> list[TokenPlane]:
    """Project the tokens of teacher and student, all in one plane; one row a text.

    If both have the same tokens, states of one space (equal dims, residual below 1) are projected as they are, others
    from their own plane onto the teacher's. With other tokens only the centres coincide: see `student_tokens`.
    """
    plane = fit_plane(np.concatenate([states for _, states in teacher]), "teacher")
    own = fit_plane(np.concatenate([states for _, states in student]), "student")
    shared = [tokens for tokens, _ in teacher] == [tokens for tokens, _ in student]
    points = own.points + plane.points.mean(axis=0)
    if shared:
        points = _onto(own.points, plane.points)[0]
        if own.vectors.shape[1] == plane.vectors.shape[1] and _residual(own.vectors, plane) < 1:
            points = plane.components.transform(own.vectors)
    ends = [np.cumsum([len(tokens) for tokens, _ in states])[:-1] for states in (teacher, student)]
    rows = zip(texts, teacher, student, np.split(plane.points, ends[0]), np.split(points, ends[1]), strict=True)
    planes = []
    for text, (tokens, _), (others, _), left, right in rows:
        planes.append(TokenPlane(text, tokens, _listed(left), _listed(right), None if shared else others))
    return planes


def draw_sentences(texts: Sequence[str], count: int, seed: int = 0) -> list[str]:
    """`count` texts drawn by seed, those of 6 to 9 words first, then those nearest to that length."""
    known = sorted({" ".join(text.split()) for text in texts} - {""})
    excess = {text: max(LENGTHS[0] - len(text.split()), len(text.split()) - LENGTHS[1], 0) for text in known}
    drawn = [known[number] for number in np.random.default_rng(seed).permutation(len(known))]
    return sorted(drawn, key=excess.__getitem__)[:count]  # stable: texts of equal length stay in the drawn order


def project_token_planes(texts: Sequence[str], models: Mapping[str, Any]) -> list[SeparatePlanes]:
    """Project tokens, one row a text; `models` are SentenceTransformers by name, "teacher" among them.

    Coordinates have mean square 1. `likeness` is for each other model the correlation of the cosines between words with
    the teacher's, None for too few words in common. A text with fewer than three tokens in one of the models is left
    out.
    """
    found = {name: _words_of_tokens(model, texts) for name, model in models.items()}
    rows = []
    for number, text in enumerate(texts):
        parts = {name: sentences[number] for name, sentences in found.items()}
        if any(len(tokens) < 3 for tokens, _, _ in parts.values()):
            continue
        placed, likeness = {}, {}
        _, states, words = parts["teacher"]
        target = _scaled_points(states, "teacher")
        for name, (tokens, own_states, own_words) in parts.items():
            points = target
            if name != "teacher":
                points = _rotate_words(_scaled_points(own_states, name), own_words, target, words)
            placed[name] = PlacedTokens(tokens, _listed(points))
            if name != "teacher":
                likeness[name] = word_likeness(own_states, own_words, states, words)
        rows.append(SeparatePlanes(text, placed, likeness))
    return rows


def _words_of_tokens(model: Any, texts: Sequence[str]) -> list[tuple[list[str], Array, Array]]:
    """Tokens of each text as the text spells them, states [tokens, dim], numbers of their words (-1: none)."""
    states = token_states(model, texts)
    try:
        reader = SpanReader(model.tokenizer, model.max_seq_length or 512)
    except DistilvecError:  # a slow tokenizer has no offsets
        return [(tokens, found, np.full(len(tokens), -1)) for tokens, found in states]
    rows = []
    for text, (tokens, found) in zip(texts, states, strict=True):
        spans = reader.place(reader.encode([text]), join([text]))
        ordinary = spans.roles == ORDINARY
        starts, ends = spans.starts[ordinary], spans.ends[ordinary]
        if len(starts) != len(tokens):  # the model has a preprocessing of its own
            rows.append((tokens, found, np.full(len(tokens), -1)))
            continue
        numbers, begins = np.full(len(text) + 1, -1), set()
        for number, word in enumerate(_WORD.finditer(text)):
            numbers[word.start() : word.end()] = number
            begins.add(word.start())
        shown = [
            token if first == last else f"{'' if first in begins else '·'}{text[first:last]}"
            for token, first, last in zip(tokens, starts.tolist(), ends.tolist(), strict=True)
        ]
        rows.append((shown, found, np.where(ends > starts, numbers[starts], -1)))
    return rows


def _scaled_points(states: Array, name: str) -> Array:
    points = fit_plane(states, name).points
    return np.asarray(points / max(np.sqrt((points**2).sum(1).mean()), 1e-12))


def _rotate_words(points: Array, words: Array, target: Array, others: Array) -> Array:
    """Points rotated or mirrored so that their words are nearest to the target's; unchanged without common words."""
    left, right = _shared_words(points, words, target, others)
    return np.asarray(points @ orthogonal_procrustes(left, right)[0]) if len(left) > 1 else points


def word_likeness(states: Array, words: Array, other_states: Array, others: Array) -> float | None:
    """Correlation between two models of the cosines of all pairs of words, centred on the sentence's mean."""
    left, right = _shared_words(states, words, other_states, others)
    if len(left) < FEWEST_WORDS:
        return None
    cosines = []
    for rows in (left, right):
        centred = rows - rows.mean(axis=0)
        unit = centred / np.maximum(np.linalg.norm(centred, axis=1, keepdims=True), 1e-12)
        cosines.append((unit @ unit.T)[np.triu_indices(len(unit), 1)])
    return None if min(found.std() for found in cosines) < 1e-9 else round(float(np.corrcoef(*cosines)[0, 1]), 4)


def _shared_words(rows: Array, words: Array, other_rows: Array, others: Array) -> tuple[Array, Array]:
    """Mean rows of every word that both have, float64 [words, dim] each."""
    shared = sorted({*words.tolist()} & {*others.tolist()} - {-1})
    if not shared:
        return np.empty((0, 2)), np.empty((0, 2))
    left, right = (
        np.stack([found[numbers == word].mean(axis=0) for word in shared]).astype(np.float64)
        for found, numbers in ((rows, words), (other_rows, others))
    )
    return left, right


def _checked(vectors: Array, name: str) -> Array:
    found = np.asarray(vectors, dtype=np.float64)
    bad = int((~np.isfinite(found)).reshape(len(found), -1).any(axis=1).sum())
    if found.ndim != 2 or len(found) < 3 or found.shape[1] < 2 or bad:
        problem = f"an array of shape {found.shape} with NaN or infinite numbers in {bad} rows"
        raise DistilvecError(
            f"'{name}' has {problem}.", "Give at least 3 finite vectors of 2 dimensions.", key="projections"
        )
    return found


def _listed(points: Array) -> list[Point]:
    return [(x, y) for x, y in np.round(points, DIGITS).tolist()]
