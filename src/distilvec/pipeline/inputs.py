"""Python objects as files for a recipe: models, texts and vectors, stored by content below the cache root."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from distilvec.core.errors import DistilvecError, explained
from distilvec.core.files import remove, scratch

if TYPE_CHECKING:
    from datasets import Dataset
    from sentence_transformers import SentenceTransformer

    Texts: TypeAlias = str | Path | Sequence[str] | Dataset
    Model: TypeAlias = str | Path | SentenceTransformer


def teacher_keys(teacher: Model | np.ndarray[Any, Any], texts: Texts, root: Path) -> dict[str, Any]:
    """Return the recipe's `teacher` section for a model, a Parquet table, or vectors [texts, dim] of a list of texts.

    Errors: DistilvecError if the numbers of vectors and texts differ, or if vectors come without a list of texts.
    """
    if isinstance(teacher, np.ndarray):
        return {"vectors": str(_store_vectors(teacher, texts, root))}
    if isinstance(teacher, (str, Path)) and Path(teacher).suffix == ".parquet":
        return {"vectors": str(Path(teacher).resolve())}
    return {"model": model_name(teacher, root, "teacher")}


def model_name(model: Model, root: Path, key: str) -> str:
    """Return a model's id or folder; an object is saved below `root` by the content of its weights and settings."""
    if isinstance(model, (str, Path)):
        return str(model)
    from sentence_transformers import SentenceTransformer

    from distilvec.teachers.cache.manifest import hash_modules

    if not isinstance(model, SentenceTransformer):
        raise DistilvecError(
            f"[{key}] expected a model's id, folder or SentenceTransformer; found {type(model).__name__}."
        )
    settings = [type(module).__name__ for module in model], model.prompts, model.max_seq_length, model.truncate_dim
    name = hash_modules(model, *settings)[:16]

    def write(path: Path) -> None:
        model.save_pretrained(str(path), create_model_card=False)

    return str(_store(root / "inputs" / f"model-{name}", write))


def source_keys(texts: Texts, root: Path) -> list[dict[str, Any]]:
    """Return the recipe's `corpus.sources` for a file or folder, a list of texts, or a data set with a column of texts.

    Errors: DistilvecError for anything else, an empty list, or an item that is no text.
    """
    if isinstance(texts, (str, Path)):
        return [{"path": str(Path(texts).resolve())}]
    if hasattr(texts, "to_parquet"):
        return [{"path": str(_store_dataset(texts, root)), "name": "texts"}]
    listed = _listed(texts)
    digest = hashlib.blake2b(digest_size=8)
    for text in listed:
        digest.update(
            len(text.encode("utf-8", "surrogatepass")).to_bytes(8, "little") + text.encode("utf-8", "surrogatepass")
        )
    lines = (json.dumps({"text": text}) + "\n" for text in listed)

    def write(path: Path) -> None:
        with path.open("w", encoding="utf-8") as file:
            file.writelines(lines)

    return [{"path": str(_store(root / "inputs" / f"texts-{digest.hexdigest()}.jsonl", write)), "name": "texts"}]


def _listed(texts: Any) -> list[str]:
    listed = list(texts) if isinstance(texts, Iterable) else [texts]
    wrong = [type(item).__name__ for item in listed if not isinstance(item, str)]
    if wrong or not listed:
        found = f"{wrong[0]} among them" if wrong else "no texts"
        raise DistilvecError(f"[texts] expected a file, a folder, a list of texts or a data set; found {found}.")
    return listed


def _store_vectors(vectors: np.ndarray[Any, Any], texts: Texts, root: Path) -> Path:
    """Store texts and their vectors as a Parquet table."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    if isinstance(texts, (str, Path)) or hasattr(texts, "to_parquet"):
        raise DistilvecError(
            "[texts] vectors as an array need the list of their texts. Give a list, or a Parquet table as the teacher."
        )
    listed = _listed(texts)
    if vectors.ndim != 2 or len(vectors) != len(listed):
        raise DistilvecError(
            f"[teacher] expected vectors [{len(listed)}, dim], one for each text; found shape {list(vectors.shape)}."
        )
    values = np.ascontiguousarray(vectors, dtype=np.float32)
    name = hashlib.blake2b(
        values.tobytes() + "\0".join(listed).encode("utf-8", "surrogatepass"), digest_size=8
    ).hexdigest()

    def write(path: Path) -> None:
        column = pa.FixedSizeListArray.from_arrays(pa.array(values.reshape(-1)), values.shape[1])
        pq.write_table(pa.table({"text": listed, "teacher_embedding_final": column}), path)

    return _store(root / "inputs" / f"vectors-{name}.parquet", write)


def _store_dataset(dataset: Any, root: Path) -> Path:
    """Store a data set as Parquet, named by its own fingerprint."""
    return _store(
        root / "inputs" / f"dataset-{dataset._fingerprint}.parquet", lambda place: dataset.to_parquet(str(place))
    )


def _store(path: Path, write: Callable[[Path], None]) -> Path:
    """Return `path`; `write` makes it, whole or not at all, if it is missing."""
    with explained("cache.root", path):
        if not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            new = scratch(path)
            try:
                remove(new)
                write(new)
                if not path.exists():
                    new.rename(path)
            finally:
                remove(new)
    return path
