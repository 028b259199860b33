"""Python objects as files for a recipe: models, texts and vectors, stored by content below the cache root."""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, TypeAlias

import numpy as np
from sentence_transformers import SentenceTransformer

from distilvec.core.errors import DistilvecError, about
from distilvec.core.files import absolute_path, acquire_lock, files_below, remove, scratch, sync, sync_folder
from distilvec.core.hashing import checksum_once, combine, hash_files
from distilvec.teachers.indexes.stores import is_index
from distilvec.teachers.sources import index_keys


class TextDataset(Protocol):
    """A `datasets.Dataset` with a column of texts; that library need not be installed."""

    def to_parquet(self, path: str) -> Any:
        """Write the rows as a Parquet file."""


Texts: TypeAlias = str | Path | Sequence[str] | TextDataset
Model: TypeAlias = str | Path | SentenceTransformer


def teacher_keys(teacher: Model | np.ndarray[Any, Any], texts: Texts, root: Path) -> dict[str, Any]:
    """Return the recipe's `teacher` section: a model, a table or index, or vectors [texts, dim] of a list of texts."""
    if isinstance(teacher, (str, Path)) and is_index(teacher):
        with about("teacher"):
            return index_keys(teacher)
    if not isinstance(teacher, np.ndarray):
        return {"model": saved_model_name(teacher, root, "teacher")}
    import pyarrow as pa
    import pyarrow.parquet as pq

    if isinstance(texts, (str, Path)) or hasattr(texts, "to_parquet"):
        raise DistilvecError(
            "an array of vectors needs the list of its texts; found a file or a data set.", key="texts"
        )
    listed = _list_texts(texts)
    if teacher.ndim != 2 or len(teacher) != len(listed):
        raise DistilvecError(
            f"expected vectors [{len(listed)}, dim], one for each text; found shape {list(teacher.shape)}.",
            key="teacher",
        )
    values = np.ascontiguousarray(teacher, dtype=np.float32)
    column = pa.FixedSizeListArray.from_arrays(pa.array(values.reshape(-1)), values.shape[1])
    table = pa.table({"text": listed, "teacher_embedding_final": column})
    return {"vectors": _store_input(root, "vectors-{}.parquet", lambda path: pq.write_table(table, path))}


def saved_model_name(model: Model, root: Path, key: str) -> str:
    """Return a model's id or folder; an object is saved below `root`, named by the content of what it saves."""
    if isinstance(model, (str, Path)):
        return str(model)
    if not isinstance(model, SentenceTransformer):
        expected = "a model's id, folder or SentenceTransformer"
        raise DistilvecError(f"expected {expected}; found {type(model).__name__}.", key=key)
    # Only the saved files have all that changes a vector: each module's settings, the tokenizer, the backbone's heads.
    # They do not state prompts, and not a length that was set after loading
    settings = repr((model.prompts, model.max_seq_length, model.truncate_dim))
    return _store_input(
        root, "model-{}", lambda path: model.save_pretrained(str(path), create_model_card=False), settings
    )


def source_keys(texts: Texts, root: Path) -> list[dict[str, Any]]:
    """Return the recipe's `corpus.sources`: a file or folder, a list of texts, or a data set with a column of texts."""
    if isinstance(texts, (str, Path)):
        return [{"path": str(absolute_path(Path(texts)))}]
    data: Any = texts
    if hasattr(data, "to_parquet"):
        path = _store_input(root, "dataset-{}.parquet", lambda path: data.to_parquet(str(path)))
        return [{"path": path, "name": "texts"}]
    listed = _list_texts(texts)

    def write(path: Path) -> None:
        with path.open("w", encoding="utf-8") as file:
            file.writelines(json.dumps({"text": text}) + "\n" for text in listed)

    return [{"path": _store_input(root, "texts-{}.jsonl", write), "name": "texts"}]


def _list_texts(texts: Any) -> list[str]:
    is_listed = isinstance(texts, Iterable) and not isinstance(texts, Mapping)  # of a mapping it would be the keys
    listed = list(texts) if is_listed else [texts]
    wrong = [type(item).__name__ for item in listed if not isinstance(item, str)]
    if wrong or not listed:
        finding = f"{wrong[0]} among them" if wrong else "no texts"
        raise DistilvecError(f"expected a file, a folder, a list of texts or a data set; found {finding}.", key="texts")
    return listed


def _store_input(root: Path, name: str, write: Callable[[Path], Any], settings: str = "") -> str:
    """Return the path of an input below `root`, its name with a hash of content and `settings` for {}.

    `write` makes the file or folder each time: what is there already is compared with it, since it may be damaged.
    """
    folder = root / "inputs"
    new = scratch(folder / name.format(secrets.token_hex(4)))  # threads of one process may store other content
    with about("cache.root", folder):
        folder.mkdir(parents=True, exist_ok=True)
        try:
            remove(new)
            write(new)
            content = _input_content(new)
            path = folder / name.format(combine([("content", content), ("stated", settings)])[:16])
            with acquire_lock(folder / ".lock", str(path), wait=True):
                if not path.exists() or _input_content(path) != content:
                    sync(new)  # a name without its content must not outlast a power cut
                    remove(path)
                    new.rename(path)
                    sync_folder(folder)
        finally:
            remove(new)
    return str(path)


def _input_content(path: Path) -> str:
    """A hash of a file, or of all files of a folder."""
    return hash_files(files_below(path), path) if path.is_dir() else checksum_once(path)
