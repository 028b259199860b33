"""The model that a server holds: vectors as `SentenceTransformer.encode` gives them, and the lengths of texts."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from distilvec.config.schema import TeacherSection
from distilvec.evaluation.exported import TextEncoder, folder_around, is_exported, open_exported
from distilvec.serving.batcher import Vectors
from distilvec.teachers.encode import cut_dimensions
from distilvec.teachers.model import load_teacher, model_name, wrap_model


class ServedModel:
    """A model folder, hub id or exported file, loaded once. One thread at a time calls `embed`, any `count_tokens`.

    Errors: DistilvecError with the key "model" for a model that cannot be loaded.
    """

    def __init__(
        self, model: str, name: str | None = None, device: str = "auto", trust_remote_code: bool = False
    ) -> None:
        self._exported: TextEncoder | None = None
        if is_exported(model):
            self._exported = open_exported(Path(model), "model")
            name = name or model_name(str(folder_around(Path(model), "model")))
            self._teacher = wrap_model(self._exported.model, name)
        else:
            section = TeacherSection(model=model, name=name, trust_remote_code=trust_remote_code)
            self._teacher = load_teacher(section, device, key="model")
        self.name, self.dim, self.normalized = self._teacher.name, self._teacher.dim, self._teacher.normalized
        self.prompts, self.max_length = self._teacher.prompts, self._teacher.max_length
        tokenizer = self._teacher.model.tokenizer
        self._counter: Any = copy.deepcopy(tokenizer.backend_tokenizer)  # one that no other thread changes
        self._counter.no_truncation()
        self._counter.no_padding()

    def embed(self, prompted: Sequence[str]) -> Vectors:
        """Return float32 [n, dim] of texts that have their prompts; longer ones are cut."""
        if self._exported is None:
            return self._teacher.signals(prompted)["embedding"]
        return cut_dimensions(self._exported.vectors(prompted), self.dim, self.normalized)

    def count_tokens(self, prompted: Sequence[str]) -> list[int]:
        """Return the tokens of each text, special tokens counted, nothing cut."""
        return [len(found.ids) for found in self._counter.encode_batch_fast(list(prompted))]
