"""How vectors are compared, by the names of sentence-transformers."""

from __future__ import annotations

from typing import Literal, get_args

from distilvec.core.errors import DistilvecError

Similarity = Literal["cosine", "dot", "euclidean"]  # euclidean: the negative distance
# Who says how the vectors of a table are compared: the user, the index, its store where an index states nothing, the
# vectors, whose length of 1 makes all similarities rank alike, or nobody
SimilaritySource = Literal["user", "index", "store", "unit vectors", "nobody"]
NEIGHBOR_COUNT = 10  # of a text or a query: overlap@10, nDCG@10 and the lists of rankings have as many
FEWEST_CANDIDATES = 20  # among fewer other texts, ten neighbours say nothing
SIMILARITIES: tuple[Similarity, ...] = get_args(Similarity)


def read_similarity(name: str, origin: str, fix: str) -> Similarity:
    """Return the similarity that a model or an index states. Errors: DistilvecError for one that is not scored here."""
    for similarity in SIMILARITIES:
        if name == similarity:
            return similarity
    names = ", ".join(SIMILARITIES)
    raise DistilvecError(f"{origin} compares vectors by {name}; distilvec scores by {names}.", fix)
