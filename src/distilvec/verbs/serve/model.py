"""The model that a server holds: vectors as `SentenceTransformer.encode` gives them, and the lengths of texts."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from distilvec.models.load import model_name
from distilvec.models.static import text_tokenizer
from distilvec.teachers.graph_embedder import GraphEmbedder, model_folder
from distilvec.teachers.model_embedder import ModelEmbedder
from distilvec.teachers.open import expect_kind, open_embedder
from distilvec.verbs.serve.batcher import Vectors


class ServedModel:
    """A model folder, hub id or exported file, loaded once. One thread at a time calls `embed`, any `count_tokens`.

    Errors: DistilvecError with the key "model" for a model that cannot be loaded.
    """

    def __init__(
        self, model: str, name: str | None = None, device: str = "auto", trust_remote_code: bool = False
    ) -> None:
        expect_kind(model, ("model", "export"), "model")
        embedder = open_embedder(model, device=device, trust_remote_code=trust_remote_code)
        assert isinstance(embedder, (ModelEmbedder, GraphEmbedder))
        if name is None:
            exported = isinstance(embedder, GraphEmbedder)
            name = model_name(str(model_folder(Path(model), "model") if exported else model))
        self.name = name
        self.dim = embedder.dim
        self.normalized = embedder.normalized
        self.prompts = embedder.prompts
        self.max_length = embedder.max_length
        self._embedder = embedder
        # Threads that count tokens share this copy, whose truncation nobody sets while another thread uses it.
        self._counter: Any = copy.deepcopy(text_tokenizer(embedder.model).backend_tokenizer)
        self._counter.no_truncation()
        self._counter.no_padding()

    def embed(self, prompted: Sequence[str]) -> Vectors:
        """Return float32 [n, dim] of texts that have their prompts; longer ones are cut."""
        return self._embedder.embed_prompted(prompted)

    def count_tokens(self, prompted: Sequence[str]) -> list[int]:
        """Return the tokens of each text, special tokens counted, nothing cut."""
        return [len(encoding.ids) for encoding in self._counter.encode_batch_fast(list(prompted))]
