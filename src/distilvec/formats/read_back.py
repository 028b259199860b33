"""A saved model is read back before it counts: its folder must give a stranger the vectors of the model in memory.

Names of weights, adapters, precisions and new versions of the libraries can each leave a folder that loads without a
word and gives other vectors: transformers draws weights that it does not find at random. One comparison sees them all.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
from sentence_transformers import SentenceTransformer

from distilvec.core.errors import DistilvecError, first_line
from distilvec.core.info import Role
from distilvec.core.vectors import cosine_pairs, spread_items
from distilvec.models.experts import Experts
from distilvec.models.load import evaluating

COMPARED = 16  # texts: every other one is read as a query, the rest as documents
LOWEST_COSINE = 0.9999  # other kernels and devices differ by less
LENGTHS = 0.001  # largest relative difference of a vector's length
_LONGEST = 2_000  # characters of a text: a model of 8,192 tokens takes seconds for one that is longer
PROBES = (
    "cats",
    "how do wings produce lift at low speed",
    "Vectors of a student are compared with those of its teacher, text by text; what counts is the largest difference.",
    "Grüße aus Köln, çok güzel bir gün, и ещё немного текста, 他们在河边散步。",
    "def mean(values):\n    return sum(values) / len(values)  # raises ZeroDivisionError for no values",
    "The boundary layer grows along the plate until it becomes turbulent. " * 40,
)
Vectors = npt.NDArray[np.float32]


def check_saved(
    folder: Path, model: SentenceTransformer | Mapping[Role, SentenceTransformer], texts: Sequence[str]
) -> None:
    """Raise DistilvecError if plain sentence-transformers reads another model in `folder`.

    `model` is what was saved, or the model of each role of a Router. Compared are 16 vectors: of an empty text, of
    texts in several scripts, and of some of `texts`, the shortest to the longest. The worst cosine and the lengths
    count.
    Code of the model's own may run where it runs already, in the model in memory.
    """
    towers: Mapping[Role, SentenceTransformer] = (
        {"query": model, "document": model} if isinstance(model, SentenceTransformer) else model
    )
    by_length = sorted(dict.fromkeys(text[:_LONGEST] for text in texts), key=len)
    compared = ["", *PROBES, *spread_items(by_length, COMPARED - len(PROBES) - 1)]
    expected = {role: _embed(tower, compared, role) for role, tower in towers.items()}
    trusted = any(_has_own_code(tower) for tower in towers.values())
    try:
        # the hub is not asked: all that the folder needs is in it, or was read before
        saved = SentenceTransformer(str(folder), device="cpu", trust_remote_code=trusted, local_files_only=True)
        found = {role: _embed(saved, compared, role) for role in towers}
    except Exception as error:  # the libraries raise any kind
        reason = f"sentence-transformers cannot read what was written: {type(error).__name__}: {first_line(error)}"
        raise _not_saved(reason) from error
    for role, vectors in expected.items():
        if (difference := _difference(vectors, found[role])) is not None:
            raise _not_saved(f"sentence-transformers reads other vectors in what was written: {difference}")


def _embed(model: SentenceTransformer, texts: Sequence[str], role: Role) -> Vectors:
    """Return the vectors of the texts that are read in this role, float32 [texts, dim]; 0 for numbers that are none."""
    part = list(texts[::2] if role == "query" else texts[1::2])
    encode = model.encode_query if role == "query" else model.encode_document
    with evaluating(model):
        vectors = encode(part, batch_size=COMPARED, convert_to_tensor=True, show_progress_bar=False)
    return np.nan_to_num(vectors.float().cpu().numpy())


def _has_own_code(model: SentenceTransformer) -> bool:
    """Return whether a part of the model is defined by a file that came with it, or by the one of our experts."""
    return any(
        isinstance(module, Experts) or type(module).__module__.startswith("transformers_modules.")
        for module in model.modules()
    )


def _difference(expected: Vectors, found: Vectors) -> str | None:
    """Say in words how the vectors differ, both [texts, dim]; None where they agree."""
    if found.shape != expected.shape:
        return f"{found.shape[1]} dimensions instead of {expected.shape[1]}"
    lengths, found_lengths = np.linalg.norm(expected, axis=1), np.linalg.norm(found, axis=1)
    are_vectors = (lengths > 0) | (found_lengths > 0)  # an empty text may have none
    worst = float(np.min(cosine_pairs(expected, found)[are_vectors], initial=1.0))
    if worst < LOWEST_COSINE:
        return f"the worst cosine of {COMPARED} texts is {worst:.4f}"
    differing = np.abs(found_lengths - lengths) > LENGTHS * lengths
    if differing.any():
        row = int(np.argmax(differing))
        return f"a vector of length {lengths[row]:.3f} has length {found_lengths[row]:.3f}"
    return None


def _not_saved(problem: str) -> DistilvecError:
    return DistilvecError(
        f"{problem}. The earlier content is kept.",
        "Try other versions of transformers and sentence-transformers, or another model.",
    )
