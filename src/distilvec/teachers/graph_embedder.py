"""The file of an export as an embedder: an ONNX or OpenVINO graph, with the tokenizer of the model it was made of."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from sentence_transformers import SentenceTransformer

from distilvec.core.errors import DistilvecError
from distilvec.core.extras import require_extra
from distilvec.core.info import Role
from distilvec.core.model_name import ModelName
from distilvec.core.similarity import Similarity
from distilvec.core.vectors import first_dims
from distilvec.formats.onnx import OUTPUTS, OnnxEmbedder, graph_inputs
from distilvec.formats.openvino import OpenvinoEmbedder
from distilvec.models.load import load_model, model_similarity, role_prompts
from distilvec.models.parts import can_pad, max_length, tokens_without_row
from distilvec.teachers.encode import EmbeddedBatch, check_tokens, collect

BATCH = 8
Array = np.ndarray[Any, Any]


class Runnable(Protocol):
    """A model from tokens to named outputs: `formats.onnx.Graph`, `OnnxEmbedder`, or OpenVINO's."""

    def run(self, tokens: Any, outputs: Sequence[str] = ...) -> list[Array]:
        """Return the named outputs, by default the vectors alone."""


READERS: dict[str, Callable[[Path], Runnable]] = {".onnx": OnnxEmbedder, ".xml": OpenvinoEmbedder}


@dataclass(frozen=True, eq=False)
class GraphEmbedder:
    """Runs the tokens of `model`, at most `most_tokens` of a text, through a graph: an exported file, or PyTorch's own.

    Queries are encoded one by one and documents in padded batches, as in use: the int8 scales of activations depend on
    the batch.
    """

    name: str
    model: SentenceTransformer
    runnable: Runnable
    most_tokens: int

    @property
    def dim(self) -> int:
        """Dimensions of the vectors."""
        return int(self.model.get_embedding_dimension() or 0)

    @property
    def prompts(self) -> dict[Role, str]:
        """The model's prompts."""
        return role_prompts(self.model.prompts)

    @property
    def similarity(self) -> Similarity:
        """How the model's vectors are compared."""
        return model_similarity(self.model, self.name)

    @property
    def normalized(self) -> bool:
        """Whether vectors have length 1."""
        return type(self.model[-1]).__name__ == "Normalize" and self.model.truncate_dim is None

    @property
    def max_length(self) -> int:
        """The longest input in tokens."""
        return max_length(self.model)

    @cached_property
    def _tokens_without_row(self) -> dict[int, str]:
        return tokens_without_row(self.model)

    def embed(self, texts: Sequence[str], role: Role = "document") -> Array:
        """Return vectors, float32 [texts, dim], with the prompt of the role prepended."""
        return collect(self.embed_batches(texts, role), len(texts), self.dim)

    def embed_batches(self, texts: Sequence[str], role: Role = "document") -> Iterator[EmbeddedBatch]:
        """Embed batch by batch, the shortest texts first."""
        for batch in self._batches(texts, role, OUTPUTS[0]):
            vectors = first_dims(batch.embedding, self.dim, self.normalized)
            yield EmbeddedBatch(batch.rows, {"embedding": vectors}, batch.work)

    def embed_prompted(self, prompted: Sequence[str]) -> Array:
        """Return float32 [texts, dim] of texts that have their prompts, each run alone: in int8 batches change them."""
        check_tokens(self.model, self._tokens_without_row, prompted, self.name)
        vectors = []
        for text in prompted:
            vectors += self.runnable.run(graph_inputs(self.model, [text], self.most_tokens), OUTPUTS[:1])
        return first_dims(np.concatenate(vectors), self.dim, self.normalized)

    def outputs(self, texts: Sequence[str], role: Role, name: str) -> Array:
        """Return one output of the texts, in their order."""
        batches = list(self._batches(texts, role, name))
        back = np.argsort(np.concatenate([batch.rows for batch in batches]))
        return np.asarray(np.concatenate([batch.embedding for batch in batches])[back])

    def _batches(self, texts: Sequence[str], role: Role, name: str) -> Iterator[EmbeddedBatch]:
        """Compute one output of the texts, as "embedding"; the shortest are run first."""
        prompt = self.prompts[role]
        check_tokens(self.model, self._tokens_without_row, [prompt + text for text in texts], self.name)
        order = np.array(sorted(range(len(texts)), key=lambda row: len(texts[row])), dtype=np.int64)
        batch_size = BATCH if role == "document" and can_pad(self.model) else 1
        characters = max(1, sum(len(text) for text in texts))
        for start in range(0, len(order), batch_size):
            rows = order[start : start + batch_size]
            batch = [texts[row] for row in rows]
            tokens = graph_inputs(self.model, [prompt + text for text in batch], self.most_tokens)
            (values,) = self.runnable.run(tokens, [name])
            yield EmbeddedBatch(rows, {"embedding": values}, sum(len(text) for text in batch) / characters)


def open_exported(path: Path, trust_remote_code: bool = False) -> GraphEmbedder:
    """Open an exported file; tokenizer, prompts and maximum length are those of the model folder that has it."""
    folder = model_folder(path)
    require_extra("openvino" if path.suffix == ".xml" else "onnx", "")
    model = load_model(ModelName(str(folder), trusted=trust_remote_code))
    model_similarity(model, path.name)
    return GraphEmbedder(f"{folder.name}/{path.name}", model, READERS[path.suffix](path), max_length(model))


def model_folder(path: Path) -> Path:
    """Return the model folder that an exported file is in."""
    # The file may be a link into a model's folder, or one out of it, as in the hub's cache
    for folder in (*path.absolute().parents, *path.resolve().parents):
        if (folder / "modules.json").is_file():
            return folder
    raise DistilvecError(
        f"{path} is in no model folder, and its tokenizer is not in the file.",
        "Name the file that `distilvec export` wrote below the model's folder.",
    )
