"""The tokens of a few sentences in planes of each model's own, side by side: DistillMoE's figures 3 and 4.

Each plane is that of the two first principal components of the model's own states of a sentence's tokens, so models of any
width and any tokenizer can be looked at beside each other. What two tokenizers have in common are the words: by their
places (the mean of their tokens') a plane is turned or mirrored onto the teacher's, and by the cosines between all pairs
of words, in full width, their geometry is compared (representational similarity analysis, Kriegeskorte et al. 2008).
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from scipy.linalg import orthogonal_procrustes

from distilvec.alignment.offsets import ORDINARY, SpanReader, join
from distilvec.core.errors import DistilvecError
from distilvec.evaluation.projection import DIGITS, draw_plane, token_states

Array = np.ndarray[Any, Any]
FEWEST_WORDS = 4  # below which words tell nothing of a geometry
LENGTHS = (6, 9)  # words of the sentences that are drawn
_WORD = re.compile(r"\w+|[^\w\s]")


def draw_sentences(texts: Sequence[str], count: int, seed: int = 0) -> list[str]:
    """So many of the texts, drawn by seed from those of 6 to 9 words, or else from those that are nearest to that."""

    def away(text: str) -> int:
        words = len(text.split())
        return max(LENGTHS[0] - words, words - LENGTHS[1], 0)

    known = sorted({" ".join(text.split()) for text in texts} - {""})
    near = [known[place] for place in np.random.default_rng(seed).permutation(len(known))]
    return sorted(near, key=away)[:count]  # stable: within a length the drawn order stays


def project_token_planes(
    texts: Sequence[str], models: Mapping[str, Any], reference: str = "teacher"
) -> list[dict[str, Any]]:
    """report.json's token planes, a row a text; `models` are SentenceTransformers by column, `reference` among them.

    A row holds the text, for each column its tokens and their places [[x, y], ...] (mean square 1), and `likeness`: for each other
    column the correlation of the cosines between words with the reference's, None where there are too few words in common.
    A text of which one of the models has fewer than three tokens is left out.
    """
    found = {name: _read(model, texts) for name, model in models.items()}
    rows = []
    for number, text in enumerate(texts):
        sides = {name: sentences[number] for name, sentences in found.items()}
        if any(len(tokens) < 3 for tokens, _, _ in sides.values()):
            continue
        row: dict[str, Any] = {"text": text, "likeness": {}}
        own = sides[reference]
        aim = _own_places(own[1], reference)
        for name, (tokens, states, words) in sides.items():
            places = aim if name == reference else _turned(_own_places(states, name), words, aim, own[2])
            row[name] = {"tokens": tokens, "places": np.round(places, DIGITS).tolist()}
            if name != reference:
                row["likeness"][name] = _likeness(states, words, own[1], own[2])
        rows.append(row)
    return rows


def _read(model: Any, texts: Sequence[str]) -> list[tuple[list[str], Array, Array]]:
    """Of each text the tokens as they stand in it, their states [tokens, width] and the number of the word each belongs to (-1: none)."""
    states = token_states(model, texts)
    try:
        reader = SpanReader(model.tokenizer, model.max_seq_length or 512)
    except DistilvecError:  # a slow tokenizer does not say where its tokens lie
        return [(tokens, found, np.full(len(tokens), -1)) for tokens, found in states]
    rows = []
    for text, (tokens, found) in zip(texts, states, strict=True):
        placed = reader.place(reader.encode([text]), join([text]))
        ordinary = placed.roles == ORDINARY
        starts, ends = placed.starts[ordinary], placed.ends[ordinary]
        if len(starts) != len(tokens):  # the model reads its texts in a way of its own
            rows.append((tokens, found, np.full(len(tokens), -1)))
            continue
        words = np.full(len(text) + 1, -1)
        for number, word in enumerate(_WORD.finditer(text)):
            words[word.start() : word.end()] = number
        owner = np.where(ends > starts, words[starts], -1)
        begun = {match.start() for match in _WORD.finditer(text)}
        shown = [
            token if first == last else f"{'' if first in begun else '·'}{text[first:last]}"
            for token, first, last in zip(tokens, starts.tolist(), ends.tolist(), strict=True)
        ]
        rows.append((shown, found, owner))
    return rows


def _own_places(states: Array, name: str) -> Array:
    """Places [tokens, 2] in the states' own plane, of mean square 1."""
    places = draw_plane(states, name).places
    scaled: Array = places / max(np.sqrt((places**2).sum(1).mean()), 1e-12)
    return scaled


def _turned(places: Array, words: Array, aim: Array, theirs: Array) -> Array:
    """Places turned or mirrored so that the words lie as near to the reference's as they can; as they are without common words."""
    shared = sorted({*words.tolist()} & {*theirs.tolist()} - {-1})
    if len(shared) < 2:
        return places
    turned: Array = places @ orthogonal_procrustes(_means(places, words, shared), _means(aim, theirs, shared))[0]
    return turned


def _likeness(states: Array, words: Array, others: Array, theirs: Array) -> float | None:
    """Correlation of the cosines between all pairs of words, centred on the sentence's mean, between two models."""
    shared = sorted({*words.tolist()} & {*theirs.tolist()} - {-1})
    if len(shared) < FEWEST_WORDS:
        return None
    pairs = np.triu_indices(len(shared), 1)
    ours, own = (
        _cosines(_means(rows, numbers, shared))[pairs] for rows, numbers in ((states, words), (others, theirs))
    )
    if min(ours.std(), own.std()) < 1e-9:
        return None
    return round(float(np.corrcoef(ours, own)[0, 1]), 4)


def _means(rows: Array, words: Array, shared: Sequence[int]) -> Array:
    return np.stack([rows[words == number].mean(axis=0) for number in shared]).astype(np.float64)


def _cosines(rows: Array) -> Array:
    centred = rows - rows.mean(axis=0)
    unit = centred / np.maximum(np.linalg.norm(centred, axis=1, keepdims=True), 1e-12)
    cosines: Array = unit @ unit.T
    return cosines
