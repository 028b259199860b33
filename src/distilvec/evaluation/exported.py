"""Exported files as embedders: an ONNX or OpenVINO file next to the model folder that it was made of."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from sentence_transformers import SentenceTransformer

from distilvec.config.schema import Role
from distilvec.core.errors import DistilvecError
from distilvec.core.extras import require_extra
from distilvec.core.similarity import Similarity
from distilvec.formats.onnx import OUTPUTS, OnnxEmbedder, token_limit, tokenize
from distilvec.formats.openvino import OpenvinoEmbedder
from distilvec.models.load import load_model, model_similarity, role_prompts
from distilvec.teachers.encode import TextProgress

BATCH = 8
Array = np.ndarray[Any, Any]


class Runnable(Protocol):
    """A model from tokens to named outputs: `formats.onnx.Graph`, `OnnxEmbedder`, or OpenVINO's."""

    def run(self, tokens: Any, outputs: Sequence[str] = ...) -> list[Array]:
        """Return the named outputs, by default the vectors alone."""


READERS: dict[str, Callable[[Path], Runnable]] = {".onnx": OnnxEmbedder, ".xml": OpenvinoEmbedder}


@dataclass(frozen=True, eq=False)
class TextEncoder:
    """Embedder that runs tokens of `model`, at most `tokens` of a text, through PyTorch or an exported file.

    Queries are encoded one by one and documents in padded batches, as in use: the int8 scales of activations depend on
    the batch.
    """

    name: str
    model: SentenceTransformer
    runnable: Runnable
    tokens: int

    @property
    def dim(self) -> int:
        """Dimensions of the vectors."""
        return int(self.model.get_embedding_dimension() or 0)

    @property
    def similarity(self) -> Similarity:
        """How the model's vectors are compared."""
        return model_similarity(self.model, self.name)

    def embed(self, texts: Sequence[str], role: Role = "document", progress: TextProgress | None = None) -> Array:
        """Return vectors, float32 [texts, dim], with the prompt of the role prepended."""
        return self.outputs(texts, role, OUTPUTS[0], progress)

    def vectors(self, prompted: Sequence[str]) -> Array:
        """Return vectors of texts that have their prompts, each run alone: in int8, too, none depends on others."""
        found = [self.runnable.run(tokenize(self.model, [text], self.tokens), OUTPUTS[:1])[0] for text in prompted]
        return np.concatenate(found)

    def outputs(self, texts: Sequence[str], role: Role, name: str, progress: TextProgress | None = None) -> Array:
        """Return one output of the texts, in their order; the shortest are run first."""
        prompt, order = role_prompts(self.model)[role], sorted(range(len(texts)), key=lambda row: len(texts[row]))
        size = BATCH if role == "document" and self.model[0].tokenizer.pad_token is not None else 1
        batches = [[prompt + texts[row] for row in order[start : start + size]] for start in range(0, len(order), size)]
        found, texts_done, characters_done = [], 0, 0
        characters = max(1, sum(map(len, texts)))
        for batch in batches:
            found.append(self.runnable.run(tokenize(self.model, batch, self.tokens), [name])[0])
            texts_done += len(batch)
            characters_done += sum(len(text) - len(prompt) for text in batch)
            if progress is not None:
                progress(texts_done, characters_done / characters)
        return np.asarray(np.concatenate(found)[np.argsort(order)])


def is_exported(model: Any) -> bool:
    """Return whether a model is named by an exported file, not by a folder or an id."""
    return isinstance(model, (str, os.PathLike)) and Path(model).suffix in READERS


def open_exported(path: Path, key: str) -> TextEncoder:
    """Open an exported file; tokenizer, prompts and maximum length are those of the model folder that has it.

    Errors: DistilvecError with the key for a file that is absent or outside of a model folder, or cannot be read.
    """
    folder = folder_around(path, key)
    require_extra("openvino" if path.suffix == ".xml" else "onnx", key)
    model = load_model(str(folder), key)
    return TextEncoder(f"{folder.name}/{path.name}", model, READERS[path.suffix](path), token_limit(model) or 10**6)


def folder_around(path: Path, key: str) -> Path:
    """Return the model folder that an exported file is in; DistilvecError with the key if there is none."""
    if not path.is_file():
        raise DistilvecError(key, f"there is no file {path}.", "Export the model first.")
    folder = next((parent for parent in path.resolve().parents if (parent / "modules.json").is_file()), None)
    if folder is None:
        raise DistilvecError(
            key,
            f"{path} is in no model folder, and its tokenizer is not in the file.",
            "Name the file that `distilvec export` wrote below the model's folder.",
        )
    return folder
