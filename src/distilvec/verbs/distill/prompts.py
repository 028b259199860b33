"""The prompts of the model that made an index, found by embedding some of its texts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from distilvec.config.schema import Role
from distilvec.core.log import log
from distilvec.evaluation.metrics import cosine_pairs
from distilvec.teachers.model_embedder import ModelEmbedder
from distilvec.teachers.open import open_model
from distilvec.teachers.table_embedder import TableEmbedder

SAMPLE = 64  # stored texts that a candidate embeds
SAME = 0.99  # mean cosine from which on a candidate is the index's own model


@dataclass(frozen=True)
class Candidate:
    """A model that may have made the index: mean cosine with the stored vectors, with the best of its prompts."""

    model: str
    cosine: float
    prompt: str
    prompts: dict[Role, str]

    @property
    def same(self) -> bool:
        """Whether the index's vectors are this model's."""
        return self.cosine >= SAME


def recognize(index: TableEmbedder, candidates: Sequence[str]) -> list[Candidate]:
    """Embed a sample of stored texts with every candidate and each of its prompts; the most alike first.

    A candidate of another dim has cosine 0.
    """
    texts, vectors = index.documents()
    chosen = np.linspace(0, len(texts) - 1, min(SAMPLE, len(texts))).astype(int)
    sample = [texts[row] for row in chosen]
    compared = []
    for name in candidates:
        with open_model(name, key="made_by") as model:
            compared.append(_compare(model, name, sample, vectors[chosen]))
    return sorted(compared, key=lambda candidate: candidate.cosine, reverse=True)


def _compare(model: ModelEmbedder, name: str, texts: list[str], vectors: Any) -> Candidate:
    """Return a candidate with the prompt that comes nearest to the stored vectors, float32 [texts, dim]."""
    if model.dim != vectors.shape[1]:
        return Candidate(name, 0.0, "", dict(model.prompts))
    cosines = {}
    for prompt in dict.fromkeys(["", *model.prompts.values()]):
        embedded = model.embed_prompted([prompt + text for text in texts])
        cosines[prompt] = float(cosine_pairs(embedded, vectors).mean())
    best = max(cosines, key=lambda prompt: cosines[prompt])
    return Candidate(name, cosines[best], best, dict(model.prompts))


def infer_prompts(index: TableEmbedder, candidates: Sequence[str]) -> dict[str, str]:
    """Return the prompts of the candidate whose vectors the index has; none without one. What was found is logged."""
    compared = recognize(index, candidates)
    for candidate in compared:
        cosine = f"mean cosine {candidate.cosine:.3f} with the stored vectors"
        log(f"{candidate.model}: {cosine}, prompt {candidate.prompt!r}")
    best = compared[0]
    if not best.same:
        log("none of these models has made the index; it is taken without prompts")
        return {}
    prompts = {"query": best.prompts["query"], "document": best.prompt}
    if prompts["query"] != prompts["document"]:
        log("queries have another prompt than documents: name query texts with --queries, so that the student sees it")
    return {role: prompt for role, prompt in prompts.items() if prompt}
