"""An encoder for mteb 2 around our embedders, for one model or for a pair (query embedder, document embedder).

What each side of a pair embeds is the same as in evaluate.py:

    STS, PairClassification                   query side: sentence1     document side: sentence2
    Classification, MultilabelClassification  query side: test rows     document side: the rows the classifier is fitted to
    Retrieval, Reranking and their kind       query side: queries       document side: documents

Only the last line has roles of its own; all other texts get the document role's prompt.
Note: the prompts are our embedder's, by role; mteb's prompts by task for instruction-tuned models are not used.
"""

from __future__ import annotations

import hashlib
import importlib
import os
import re
import sys
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from distilvec.config.schema import Role
from distilvec.core.errors import DistilvecError
from distilvec.core.extras import require_extra
from distilvec.evaluation.evaluator import Embedder, EmbeddingCache, embed_checked

Array = np.ndarray[Any, Any]

PAIR_TYPES = ("STS", "PairClassification")
CLASS_TYPES = ("Classification", "MultilabelClassification")
SEARCH_TYPES = ("Retrieval", "Reranking", "InstructionRetrieval", "InstructionReranking")
_PROBES = ("A probe.", "Was steht hier? 42 çok güzel", " ".join(f"word {number}" for number in range(1000)))


class MtebModel:
    """An mteb 2 encoder: the query embedder for the query side, the document embedder for all else; similarity is the cosine.

    `memo` keeps vectors, so that columns that share a model and a task embed each text once. `revision` tells mteb's result
    cache one state of the weights from another. Errors of `encode`: DistilvecError for tasks that are not text, faulty
    vectors, or two different widths.
    """

    def __init__(
        self, query: Embedder, document: Embedder, revision: str | None = None, memo: EmbeddingCache | None = None
    ) -> None:
        import_mteb()
        from mteb.models.model_meta import ModelMeta

        self.query, self.document, self.memo = query, document, memo if memo is not None else EmbeddingCache()
        self._widths: dict[str, int] = {}
        name = query.name if query is document else f"{query.name}+{document.name}"
        safe = re.sub(r"[^\w.+-]+", "_", name).strip("_.")[:100] or "model"
        # A revision of None would make mteb take whatever it finds in its cache.
        self.mteb_model_meta: Any = ModelMeta.create_empty(
            {"name": f"distilvec/{safe}", "revision": revision or "unknown"}
        )

    def encode(
        self,
        inputs: Iterable[Mapping[str, Any]],
        *,
        task_metadata: Any,
        hf_split: str,
        prompt_type: Any = None,
        **_: Any,
    ) -> Array:
        """float32 [texts, width] of mteb's batches, in their order."""
        texts: list[str] = []
        for batch in inputs:
            if "text" not in batch:
                raise DistilvecError(
                    f"[--mteb] task '{task_metadata.name}' holds {', '.join(batch)}; expected texts. Leave the task out."
                )
            texts += batch["text"]
        side = _side(task_metadata, hf_split, prompt_type)
        role: Role = side if task_metadata.type not in (*PAIR_TYPES, *CLASS_TYPES) else "document"
        vectors = self.memo.vectors(self.query if side == "query" else self.document, texts, role)
        self._widths[side] = vectors.shape[1]
        if len(set(self._widths.values())) > 1:
            raise DistilvecError(
                f"[--teacher] '{self.query.name}' has width {self._widths['query']}, '{self.document.name}' {self._widths['document']}. "
                "Asymmetric evaluation needs models that share a space."
            )
        return vectors

    def similarity(self, first: Any, second: Any) -> Any:
        """Cosine of every row with every row, float32 tensor [first, second]."""
        from mteb.similarity_functions import cos_sim

        return cos_sim(first, second)

    def similarity_pairwise(self, first: Any, second: Any) -> Any:
        """Cosine of row i with row i, float32 tensor [rows]."""
        from mteb.similarity_functions import pairwise_cos_sim

        return pairwise_cos_sim(first, second)


def identities(models: Mapping[str, tuple[Embedder, Embedder]]) -> dict[int, str]:
    """What tells each model's vectors from another's: its manifest's fingerprint, or that of the vectors of a few texts."""
    found: dict[int, str] = {}
    for model in {id(model): model for pair in models.values() for model in pair}.values():
        manifest = getattr(model, "manifest", None)
        if manifest is not None:
            found[id(model)] = str(manifest().fingerprint)
            continue
        roles: tuple[Role, ...] = ("query", "document")
        vectors = [embed_checked(model, _PROBES, role).tobytes() for role in roles]
        found[id(model)] = hashlib.blake2b(b"".join(vectors), digest_size=8).hexdigest()
    return found


def import_mteb(cache: Path | None = None) -> Any:
    """The package. Importing it makes its default cache folder: below `cache` or in a temporary place, not in the user's home."""
    if "mteb" in sys.modules or os.environ.get("MTEB_CACHE"):
        return _import()
    with tempfile.TemporaryDirectory() as temporary:
        os.environ["MTEB_CACHE"] = str(cache or temporary)
        try:
            return _import()
        finally:
            del os.environ["MTEB_CACHE"]


def _side(task_metadata: Any, hf_split: str, prompt_type: Any) -> Role:
    """Which embedder takes the texts: mteb's prompt type says so, except for classifiers, whose test rows are the queries."""
    if task_metadata.type in CLASS_TYPES:
        return "query" if hf_split in task_metadata.eval_splits else "document"
    return (
        "query"
        if prompt_type is not None and str(getattr(prompt_type, "value", prompt_type)) == "query"
        else "document"
    )


def _import() -> Any:
    require_extra("mteb", "--mteb")
    return importlib.import_module("mteb")
