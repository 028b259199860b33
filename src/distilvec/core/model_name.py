"""The name of a model, as everything that loads one takes it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

BUILTIN = "all-MiniLM-L6-v2"  # that a package of the extra `quickstart` brings
MODEL_FILES = frozenset({"modules.json", "config.json", "adapter_config.json"})  # a model's folder has one of them


@dataclass(frozen=True)
class ModelName:
    """A model's folder or its id on the hub, the revision there, and whether code that comes with it may run."""

    name: str
    revision: str | None = None
    trusted: bool = False

    def __str__(self) -> str:
        return self.name

    @property
    def options(self) -> dict[str, Any]:
        """Revision and trust, as keywords of transformers and sentence-transformers."""
        return {"revision": self.revision, "trust_remote_code": self.trusted}
