"""The model that a server holds: vectors as `SentenceTransformer.encode` gives them, and the lengths of texts."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

from distilvec.config.schema import TeacherSection
from distilvec.serving.batcher import Vectors
from distilvec.teachers.model import load_teacher


class ServedModel:
    """A model folder or hub id, loaded once. `embed` is called by one thread at a time, `count_tokens` by any.

    Errors: DistilvecError with the key "model" for a model that cannot be loaded.
    """

    def __init__(
        self, model: str, name: str | None = None, device: str = "auto", trust_remote_code: bool = False
    ) -> None:
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
        return self._teacher.signals(prompted)["embedding"]

    def count_tokens(self, prompted: Sequence[str]) -> list[int]:
        """Return the tokens of each text, special tokens counted, nothing cut."""
        return [len(found.ids) for found in self._counter.encode_batch_fast(list(prompted))]
