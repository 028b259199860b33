"""How a model's vectors of stored texts agree with the stored ones; where they do not, the reason that the rows show.

A low mean cosine has many causes, and each leaves another pattern: a heading before every text moves all vectors the
same way, a second model leaves two groups of rows, a cut hurts long texts alone, and vectors in another order are equal
to those of other texts.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from sentence_transformers import SentenceTransformer
from transformers import PreTrainedTokenizerBase

from distilvec.core.info import UNLIMITED
from distilvec.core.similarity import NEIGHBOR_COUNT
from distilvec.core.vectors import cosine_pairs
from distilvec.models.parts import max_length

Array = np.ndarray[Any, Any]
Ids = Callable[[Sequence[int]], Sequence[str]]
Disagreement = Literal["order", "two models", "cut texts", "heading", "other space"]

SAME = 0.99  # cosine from which on two vectors of a text are of one model
NEAR, FAR = 0.9, 0.5  # cosines of rows that are of one space, and of rows that are not
FEW = 0.05  # share of the rows that says nothing
CUT = 0.05  # cosine that texts lose which are longer than the model reads, more than others do
# Of all that separates two vectors, the share that is the same for all texts: 0.3 to 0.6 behind a heading or a prompt,
# below 0.05 for texts that are cut and for students
COMMON = 0.2
FOUND = 0.5  # MRR@10 of texts that a model of the same space finds by their stored vectors
SHOWN = 5  # ids
_BLOCK = 8192  # stored vectors in a block


@dataclass(frozen=True)
class Agreement:
    """A model's vectors of stored texts beside the stored vectors, row by row.

    rows: that were compared; stored vectors that are zero or not finite say nothing of a model, and do not count
    cosine: mean over the rows, 0 without any
    known_item: MRR@10 of the texts' own vectors in a search among all stored ones
    common: the share of the mean square difference that is the same for all rows, from 0 to 1
    near, far: rows with a cosine of NEAR or more, of FAR or less
    moved: rows whose vector is stored with another text
    other_ids: ids of the first rows that are far or moved
    longer: texts that are longer than the `max_length` tokens that the model reads, and cut; None where not known
    cosine_longer, cosine_whole: mean over these texts, and over the others
    """

    rows: int
    cosine: float
    known_item: float = 0.0
    common: float = 0.0
    near: int = 0
    far: int = 0
    moved: int = 0
    other_ids: tuple[str, ...] = ()
    longer: int | None = None
    max_length: int | None = None
    cosine_longer: float | None = None
    cosine_whole: float | None = None

    @property
    def reason(self) -> Disagreement | None:
        """Why the vectors differ; None where they do not, or where the rows do not tell."""
        few = FEW * self.rows
        if self.moved > few:
            return "order"
        if self.far > few and self.near > few and self.near + self.far >= self.rows - few:
            return "two models"
        if self.known_item >= FOUND and self.common >= COMMON and self.cosine < SAME:
            return "heading"
        if self._loses_by_cuts:
            return "cut texts"
        return "other space" if self.cosine < FAR else None

    @property
    def _loses_by_cuts(self) -> bool:
        if not self.longer or self.longer <= FEW * self.rows or self.cosine_longer is None:
            return False
        if self.cosine_whole is None:  # every text is cut
            return FAR <= self.cosine_longer < SAME - CUT
        return self.cosine_whole >= FAR and self.cosine_longer < self.cosine_whole - CUT

    @property
    def text(self) -> str:
        """The reason as a sentence, with what to do; empty without one."""
        if self.reason is None:
            return ""
        examples = f", such as those of the ids {', '.join(self.other_ids)}" if self.other_ids else ""
        sentences = {
            "order": f"{self.moved:,} of {self.rows:,} texts have the vectors of other texts{examples}: look at the "
            "order and the ids of texts and vectors.",
            "two models": f"The stored vectors are of two models: {self.near:,} of {self.rows:,} are this one's, "
            f"{self.far:,} are not{examples}. Embed these again.",
            "cut texts": f"{self.longer or 0:,} of {self.rows:,} texts are longer than the {self.max_length} tokens "
            f"that it reads, and their vectors differ (mean cosine {_shown(self.cosine_longer)}, others "
            f"{_shown(self.cosine_whole)}): let it read more (max_seq_length), or store shorter texts.",
            "heading": "The stored vectors seem to be of other texts, or behind a heading or a prompt: all differ from "
            f"the model's in the same way (mean cosine {self.cosine:.2f}). Say what stood before each text: "
            "--document-prompt of `distilvec distill`, with --made-by.",
            "other space": f"The model's vectors have a mean cosine of {self.cosine:.2f} with the stored ones, so it "
            "is of another space, or reads another prompt.",
        }
        return sentences[self.reason]


def compare_vectors(
    embedded: Array,
    stored: Array,
    candidates: Array,
    ids: Ids = lambda rows: (),
    is_longer: Array | None = None,
    max_length: int | None = None,
) -> Agreement:
    """Compare a model's vectors [rows, dim or more] with those `stored` of the same texts [rows, dim].

    Longer vectors are cut. `candidates` [n, dim] are all stored vectors; `ids` returns the ids of rows, none if they
    are not known. `is_longer`, bool [rows], are the texts of more than the `max_length` tokens that the model reads,
    None where that is not known.
    """
    rows = np.flatnonzero(np.isfinite(stored).all(axis=1) & stored.any(axis=1))
    if not len(rows):
        return Agreement(0, 0.0)
    model_vectors = _unit(embedded[rows, : stored.shape[1]])
    stored_unit = _unit(stored[rows])
    cosines = cosine_pairs(model_vectors, stored_unit)
    nearest, ahead = np.full(len(rows), -1.0), np.zeros(len(rows), dtype=np.int64)
    for start in range(0, len(candidates), _BLOCK):
        block_cosines = model_vectors @ _unit(np.nan_to_num(candidates[start : start + _BLOCK])).T
        nearest = np.maximum(nearest, block_cosines.max(axis=1))
        ahead += (block_cosines > cosines[:, None] + 1e-6).sum(axis=1)  # rounding
    difference = stored_unit - model_vectors
    squares = (difference**2).sum(axis=1).mean()
    is_far, is_moved = cosines <= FAR, (nearest >= SAME) & (cosines < SAME - CUT)
    others = rows[is_far | is_moved][:SHOWN]
    lengths: dict[str, Any] = {}
    if is_longer is not None:
        longer = is_longer[rows]
        lengths = {
            "longer": int(longer.sum()),
            "max_length": max_length,
            "cosine_longer": _mean(cosines[longer]),
            "cosine_whole": _mean(cosines[~longer]),
        }
    return Agreement(
        rows=len(rows),
        cosine=float(cosines.mean()),
        known_item=float(np.where(ahead < NEIGHBOR_COUNT, 1 / (1 + ahead), 0).mean()),
        common=float((difference.mean(axis=0) ** 2).sum() / squares) if squares > 0 else 0.0,
        near=int((cosines >= NEAR).sum()),
        far=int(is_far.sum()),
        moved=int(is_moved.sum()),
        other_ids=tuple(ids(others.tolist())) if len(others) else (),
        **lengths,
    )


def longer_texts(model: SentenceTransformer, prompted: Sequence[str]) -> Array | None:
    """Return which texts with their prompts have more tokens than a model reads, bool [texts]; None if it has no limit.

    None as well without a tokenizer of transformers.
    """
    limit, tokenizer = max_length(model), getattr(model[0], "tokenizer", None)
    if limit >= UNLIMITED or not isinstance(tokenizer, PreTrainedTokenizerBase):
        return None
    tokens = tokenizer(list(prompted), truncation=True, max_length=limit + 1, padding=False)["input_ids"]
    return np.array([len(row) > limit for row in tokens])


def _unit(vectors: Array) -> Array:
    """Vectors [n, dim] with the length 1, float32; zero stays zero."""
    lengths = np.linalg.norm(vectors.astype(np.float32), axis=1, keepdims=True)
    return np.asarray(vectors / np.where(lengths > 0, lengths, 1), dtype=np.float32)


def _mean(values: Array) -> float | None:
    return float(values.mean()) if len(values) else None


def _shown(cosine: float | None) -> str:
    return "not known" if cosine is None else f"{cosine:.2f}"
