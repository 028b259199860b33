"""A table of vectors as an embedder and a teacher: vectors that exist already, from an API or another system."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any, ClassVar, cast

import numpy as np
import numpy.typing as npt

from distilvec.config.schema import Role, TeacherSection
from distilvec.core.batch import Text
from distilvec.core.errors import DistilvecError, about, each_about
from distilvec.core.hashing import combine, hash_files
from distilvec.core.info import TeacherInfo
from distilvec.core.similarity import Similarity, SimilaritySource
from distilvec.core.vectors import evenly_spread, first_dims
from distilvec.data.corpus import LONGEST_TEXT, Corpus, text_key
from distilvec.data.corpus_files import as_keys, clean_text
from distilvec.data.origins import COLUMN, document_key, names_documents, origin_numbers
from distilvec.teachers.agreement import SAME, compare_vectors
from distilvec.teachers.api_embedder import ApiEmbedder
from distilvec.teachers.cache.fill import (
    Batches,
    FillStep,
    FillSteps,
    Unfinished,
    compute_vectors,
    count_missing,
    fill_steps,
    key_chunks,
)
from distilvec.teachers.cache.index import KeyIndex, WantedKeys
from distilvec.teachers.cache.manifest import Manifest, hash_named
from distilvec.teachers.cache.parquet import TableRows, VectorTable, append_rows
from distilvec.teachers.cache.signals import Array
from distilvec.teachers.cache.store import TeacherCache, beginning
from distilvec.teachers.embedder import kept_dims
from distilvec.teachers.encode import EmbeddedBatch
from distilvec.teachers.model_embedder import ModelEmbedder
from distilvec.teachers.sources import Kind

_KEY = ".vectors"  # of the section, in errors
_ROUNDED = 2**-7  # a length of 1 that bfloat16 has computed: the sum's root and each quotient are rounded by 2**-8
_QUANTIZED = 0.5  # a length of 1 in the copy of an index that quantizes
_FEW = 0.1  # share of vectors that may have length 1 at random
_MEASURED = 65_536  # rows whose lengths are measured when the table is opened; all are when the cache is filled
SAMPLE = 64  # stored texts that are embedded again
_SAME_LENGTH = 0.05  # how far the mean length may be from that of the stored vectors, as a share of it

OpenMaker = Callable[[], ModelEmbedder | ApiEmbedder]


class TableEmbedder:
    """A Parquet table as a Teacher (teachers/open.py), and as the embedder of the texts that it holds.

    It has no tokens, so its input has no maximum length. A row without a role counts for its text in every role.
    Training texts that it lacks are embedded by `section.made_by`, the model or API that made it, which `open_maker`
    opens (teachers/open.py).
    `normalized`: all vectors have length 1, as far as numbers of 8 bits can have it. `similarity` is the section's, to
    which `local_table` adds what an index states; without it the table is compared by cosine. Under a stated cosine
    lengths mean nothing: all vectors are given with length 1.
    """

    kind: ClassVar[Kind] = "table"

    def __init__(self, section: TeacherSection, open_maker: OpenMaker | None = None) -> None:
        assert section.vectors is not None
        path = Path(section.vectors)
        self.section = section
        self.open_maker = open_maker
        self.name = section.name or path.stem
        self.prompts: dict[Role, str] = {"query": "", "document": "", **(section.prompts or {})}
        with about(_KEY, path):
            self.table = VectorTable(path, self.prompts, columns=section.columns)
            self.normalized = section.similarity == "cosine" or self._measure()
        self.dim = kept_dims(section.truncate_dim, self.table.dims["embedding"])
        self.pre_dense_dim = self.table.dims.get("pre_dense")
        self.similarity: Similarity = section.similarity or "cosine"
        self.similarity_source = self._similarity_source()

    def __enter__(self) -> TableEmbedder:
        return self

    def __exit__(self, *error: object) -> None:
        """Nothing to free: rows are read from the file when they are needed."""

    @property
    def shown(self) -> str:
        """The table in messages: its path, or its name, which the copy of an index has from the index."""
        return self.section.name or str(self.table.path)

    def info(self) -> TeacherInfo:
        """The table's vectors; nothing is known of a model."""
        return TeacherInfo(
            dim=self.dim,
            normalized=self.normalized,
            prompts=self.prompts,
            name=self.name,
            revision=self.section.revision,
            weight=self.section.weight,
            pre_dense_dim=self.pre_dense_dim,
            similarity=self.similarity,
        )

    def manifest(self, store_dtype: str = "float16", pre_dense: bool = False) -> Manifest:
        """Settings that the vectors depend on; the table's files are read for their content's hash."""
        if pre_dense and self.pre_dense_dim is None:
            missing = f"{self.shown} has no column teacher_embedding_pre_dense."
            raise DistilvecError(missing, "Add the column.", key=_KEY)
        return Manifest(
            model=self.name,
            weights=self._content(),
            prompts=self.prompts,
            normalized=self.normalized,
            width=self.dim,
            pre_dense_width=self.pre_dense_dim if pre_dense else None,
            truncate_dim=self.section.truncate_dim,
            compute_dtype=self.table.type,
            backend="table",
            store_dtype=store_dtype,
        )

    def _content(self) -> str:
        """A hash of the table's files, of the columns that are chosen, and of the model that made it.

        A file may hold several vectors of a text.
        """
        with about(_KEY):
            files = hash_files(self.table.paths)
        made_by = self.section.made_by
        if not self.section.columns and made_by is None:
            return files
        parts = [("table", files)]
        if self.section.columns:
            parts += sorted(self.table.names.items())
        if made_by is not None:
            with about(".made_by", made_by):
                parts.append(("made by", hash_named(made_by)))
        return combine(parts)

    def fill_steps(self, cache: TeacherCache, corpus: Corpus) -> FillSteps:
        """Put the vectors of the corpus's texts into the cache, in the table's order; resumed exactly after a kill.

        Texts that the table lacks come last, embedded by the model that made it. Texts that neither has, and rows of
        one text that differ, are refused before anything is written.
        """
        if not count_missing(cache, corpus):
            return
        self.check_texts(corpus, cache.signals, cache)
        with cache.writing():
            missing = _missing_keys(cache, corpus)
            done = len(corpus) - len(missing)
            for new in append_rows(cache, self.rows(cache.signals), WantedKeys(missing)):
                done += new
                yield FillStep(done, len(corpus), done)
            del missing  # before the cache's own keys need their memory
        if count_missing(cache, corpus):
            yield from self._embed_missing(cache, corpus)

    def check_texts(self, corpus: Corpus, signals: Collection[str], cache: TeacherCache | None) -> None:
        """DistilvecError for texts that neither the table nor the cache has, and rows of one text that differ.

        What both lack is no error where the model that made the table embeds such texts.
        """
        with about(_KEY, self.shown):
            stored = self.table.check_conflicts(signals, refuse=self.section.repeats is None)
        if self.section.made_by is None or set(signals) != {"embedding"}:
            self._refuse_missing(cache, corpus, stored)

    def _embed_missing(self, cache: TeacherCache, corpus: Corpus) -> FillSteps:
        """Embed the rows that the cache lacks with the model that made the table."""
        assert self.open_maker is not None
        with self.open_maker() as embedder:
            self._refuse_unstated_prompt(embedder.name, embedder.prompts["query"], corpus)
            maker = Maker(embedder, self.dim, self.normalized)
            maker.check(*self._sample(SAMPLE))
            compute = partial(compute_vectors, cache.manifest, corpus, maker)
            with closing(fill_steps(cache, corpus, compute)) as steps:
                yield from steps

    def _refuse_unstated_prompt(self, maker: str, prompt: str, corpus: Corpus) -> None:
        """Raise DistilvecError if the maker gives queries a prompt, and nothing says whether the table's had it."""
        if prompt and self.section.prompts is None and "query" in corpus.roles:
            raise DistilvecError(
                f"{maker} puts {prompt!r} before queries, and no prompts of the table are stated.",
                f"State them: teacher.prompts='{json.dumps({'query': prompt})}', or '{{}}' if queries get none.",
                key=".prompts",
            )

    def _sample(self, count: int) -> tuple[list[str], Array]:
        """Return some stored texts with their prompts, documents if the first rows have any, and their vectors."""
        rows = self._first_embedded_rows()
        prompt = self.prompts["document" if rows.is_document.any() else "query"]
        if rows.is_document.any():
            rows = rows.select(rows.is_document)
        rows = rows.select(slice(count))
        return [prompt + text for text in rows.texts], rows.vectors["embedding"]

    def _first_embedded_rows(self) -> TableRows:
        """Return the usable rows of the first chunk that has any.

        An API refuses empty texts, and a vector that is zero or not finite says nothing of the model.
        """
        for rows in self.rows(["embedding"]):
            is_vector, _ = _real_and_unit(rows.vectors["embedding"], _ROUNDED)
            rows = rows.select((rows.texts != "") & is_vector)
            if len(rows.texts):
                return rows
        problem = f"{self.shown} has no row with a text and a vector that is not zero."
        raise DistilvecError(problem, "Check the columns.", key=_KEY)

    def absent(self, corpus: Corpus) -> int:
        """Count the corpus's rows that have no vector in the table."""
        return sum(int((self._index.positions(keys) < 0).sum()) for _, keys in key_chunks(corpus))

    def embed_batches(self, texts: Sequence[str], role: Role = "document") -> Iterator[EmbeddedBatch]:
        """Look all texts up at once: the table is read from its beginning to its end."""
        yield EmbeddedBatch(np.arange(len(texts)), {"embedding": self.embed(texts, role)}, 1.0)

    def embed(self, texts: Sequence[str], role: Role = "document") -> Array:
        """float32 [n, dim] of texts in the table, in their order; each must be there."""
        keys, first, back = np.unique(self._keys_of(texts, role), return_index=True, return_inverse=True)
        index = KeyIndex()
        index.add(keys)
        vectors = np.zeros((len(texts), self.dim), dtype=np.float32)
        present = np.zeros(len(keys), dtype=bool)
        for rows in self.rows(["embedding"]):
            slots = index.positions(rows.keys)
            new_rows = np.flatnonzero(slots >= 0)
            # Backwards: of rows of one text the first is written last
            new_rows = new_rows[~present[slots[new_rows]]][::-1]
            vectors[first[slots[new_rows]]] = rows.vectors["embedding"][new_rows]
            present[slots[new_rows]] = True
        lacking = np.flatnonzero(~present[back])
        if len(lacking):
            raise DistilvecError(
                f"{len(lacking):,} of {len(texts):,} texts have no vector in {self.shown}, such as "
                f"{beginning(texts[lacking[0]])}.",
                "Add their vectors, or name a model.",
                key=_KEY,
            )
        repeated = np.flatnonzero(first[back] != np.arange(len(texts)))
        vectors[repeated] = vectors[first[back[repeated]]]
        return vectors

    def lacking(self, texts: Sequence[str], role: Role = "document") -> int:
        """Count the texts that have no vector in the table."""
        return int((~self.holds(texts, role)).sum())

    def holds(self, texts: Sequence[str], role: Role = "document") -> npt.NDArray[np.bool_]:
        """Say for each text whether it has a vector in the table."""
        present: npt.NDArray[np.bool_] = self._index.positions(self._keys_of(texts, role)) >= 0
        return present

    def documents(self) -> tuple[list[str], Array]:
        """The table's distinct texts with the role of documents, in order, and their vectors float32 [n, dim]."""
        texts: list[str] = []
        vectors = np.empty((self.table.rows_of_files, self.dim), dtype=np.float32)
        for rows in self._distinct_documents(["embedding"]):
            vectors[len(texts) : len(texts) + len(rows)] = rows.vectors["embedding"]
            texts += rows.texts.tolist()
        return texts, vectors[: len(texts)]

    @property
    def all_rows(self) -> int | None:
        """Rows of the index of which a part was drawn (`limit`); None where all of them are read."""
        return None if self.table.notes is None else self.table.notes.all_rows

    @cached_property
    def origins(self) -> npt.NDArray[np.int64]:
        """The numbers of the origins of `documents`, [n]: by the table's column of documents, else by shared words."""
        texts: list[str] = []
        documents: list[object] = []
        for rows in self._distinct_documents(()):
            texts += rows.texts.tolist()
            documents += rows.origins.tolist()
        if not self._names_documents(len({str(document) for document in documents}), len(documents)):
            return origin_numbers(texts)
        return origin_numbers(texts, documents)

    def _names_documents(self, values: int, rows: int) -> bool:
        """Whether the column of documents names them: it is stated, or ours, or has many values."""
        is_stated = "origin" in (self.section.columns or {}) or self.table.names.get("origin") == COLUMN
        return is_stated or names_documents(values, rows)

    @cached_property
    def named_documents(self) -> int:
        """The number of documents that the rows are parts of, by their column; 0 where it names none."""
        if "origin" not in self.table.names:
            return 0
        names: set[int] = set()
        count = 0
        for rows in self.rows(()):
            rows = rows.select(_is_text(rows))
            names.update(document_key(name) for name in set(rows.origins.tolist()) if name is not None)
            count += len(rows)
        return len(names) if self._names_documents(len(names), count) else 0

    def document_rows(self, by_name: bool) -> Iterator[tuple[TableRows, npt.NDArray[np.uint64]]]:
        """All rows with the role of documents and their vectors, batch by batch, and the key of each row's document.

        Without `by_name`, and where a row has no name of its document, rows of one text are a document.
        """
        for rows in self.rows(["embedding"]):
            rows = rows.select(_is_text(rows))
            keys = np.ascontiguousarray(rows.keys).view(np.uint64).reshape(-1, 2)[:, 0].copy()
            if by_name:
                for row, name in enumerate(rows.origins.tolist()):
                    if name is not None:
                        keys[row] = document_key(name)
            yield rows, keys

    def _distinct_documents(self, signals: Iterable[str]) -> Iterator[TableRows]:
        """The first row of each text with the role of documents, in order."""
        seen = KeyIndex()
        for rows in self.rows(signals):
            rows = rows.select(_is_text(rows))
            first = np.sort(np.unique(rows.keys, return_index=True)[1])
            first = first[seen.positions(rows.keys[first]) < 0]
            seen.add(rows.keys[first])
            yield rows.select(first)

    def ids(self, texts: Sequence[str]) -> list[str]:
        """The ids of stored texts, of several rows the first one's; row numbers from 0 in a table without ids."""
        with about(_KEY, self.shown):
            numbers = self.table.ids({clean_text(text, LONGEST_TEXT) for text in texts})
        return [numbers[clean_text(text, LONGEST_TEXT)] for text in texts]

    def some_documents(self, count: int) -> tuple[list[str], Array]:
        """At most `count` texts with the role of documents, evenly spread over the table, and their vectors.

        The table is read twice, some thousand rows at a time.
        """
        chosen = evenly_spread(sum(int(_is_text(rows).sum()) for rows in self.rows(())), count)
        texts: list[str] = []
        vectors = [np.empty((0, self.dim), dtype=np.float32)]
        passed = 0
        for rows in self.rows(["embedding"]):
            rows = rows.select(_is_text(rows))
            here = chosen[(chosen >= passed) & (chosen < passed + len(rows))] - passed
            passed += len(rows)
            texts += rows.texts[here].tolist()
            vectors.append(rows.vectors["embedding"][here])
        return texts, np.concatenate(vectors)

    @cached_property
    def _index(self) -> KeyIndex:
        with about(_KEY, self.shown):
            return self.table.check_conflicts(())

    def _keys_of(self, texts: Sequence[str], role: Role) -> Any:
        return as_keys(text_key(self.prompts[role], clean_text(text, LONGEST_TEXT)) for text in texts)

    def rows(self, signals: Iterable[str]) -> Iterator[TableRows]:
        """The table's rows in order, cut to `dim` dimensions. DistilvecError if only some vectors have length 1."""
        tolerance = _QUANTIZED if self.table.notes is not None and self.table.notes.is_quantized else _ROUNDED
        for rows in each_about(self.table.rows(signals), _KEY, self.shown):
            if "embedding" in rows.vectors and self.section.similarity == "cosine":
                cut = rows.vectors["embedding"][:, : self.dim]
                rows.vectors["embedding"] = cut / np.maximum(np.linalg.norm(cut, axis=1, keepdims=True), 1e-12)
            elif "embedding" in rows.vectors:
                real, close = _real_and_unit(rows.vectors["embedding"], tolerance)
                wrong = real & ~close
                if self.normalized and wrong.any():
                    text = beginning(rows.texts[int(np.argmax(wrong))])
                    raise DistilvecError(
                        f"{self.shown}: other vectors have length 1, but not the vector of {text}.",
                        "Normalise all vectors, or no vector.",
                        key=_KEY,
                    )
                rows.vectors["embedding"] = first_dims(rows.vectors["embedding"], self.dim, self.normalized)
            yield rows

    def _similarity_source(self) -> SimilaritySource:
        notes = self.table.notes
        if self.section.similarity is None:
            return "unit vectors" if self.normalized else "nobody"
        if notes is None or notes.similarity != self.section.similarity:
            return "user"
        return "store" if notes.is_default else "index"

    def _measure(self) -> bool:
        """True if the first vectors have length 1, but for zero vectors and a few others."""
        measured = unit = 0
        for rows in self.table.rows(["embedding"]):
            real, close = _real_and_unit(rows.vectors["embedding"], _ROUNDED)
            measured += int(real.sum())
            unit += int((real & close).sum())
            if measured >= _MEASURED:
                break
        return unit > _FEW * measured

    def _refuse_missing(self, cache: TeacherCache | None, corpus: Corpus, table: KeyIndex) -> None:
        """DistilvecError for texts of the corpus that are neither in the cache nor in the table."""
        missing = []
        for _, keys in key_chunks(corpus):
            is_missing = table.positions(keys) < 0
            if cache is not None:
                is_missing &= cache.positions(keys) < 0
            missing.append(is_missing)
        rows = np.flatnonzero(np.concatenate(missing))
        if rows.size:
            separate = " With task.encode=separate, pairs are looked up as two texts." if corpus.paired else ""
            raise DistilvecError(
                f"{len(rows):,} of the corpus's {len(corpus):,} texts have no vector in {self.shown}, such as "
                f"{beginning(corpus.stored(rows[:1])[0])}.",
                "Remove these texts, add their vectors, or name the model or API that made the table, which embeds "
                f"them: --made-by (teacher.made_by).{separate}",
                key=_KEY,
            )


def _missing_keys(cache: TeacherCache, corpus: Corpus) -> KeyIndex:
    """The keys of the corpus that the cache lacks."""
    missing = KeyIndex()
    for _, keys in key_chunks(corpus):
        missing.add(keys[cache.positions(keys) < 0])
    return missing


def _is_text(rows: TableRows) -> npt.NDArray[np.bool_]:
    """Return which rows are documents with a text, bool [n]."""
    is_text: npt.NDArray[np.bool_] = rows.is_document & (rows.texts != "")
    return is_text


def _real_and_unit(vectors: Array, tolerance: float) -> tuple[Any, Any]:
    """Two masks [n]: vectors that are neither zero nor NaN or infinite, and vectors of length 1."""
    real = vectors.any(axis=1) & np.isfinite(vectors).all(axis=1)
    return real, np.abs(np.linalg.norm(vectors, axis=1) - 1) <= tolerance


def mean_length(vectors: Array) -> float:
    """Return the mean length of the vectors [n, dim] that are finite and not zero; there must be one."""
    lengths = np.linalg.norm(vectors, axis=1)
    return float(lengths[np.isfinite(lengths) & (lengths > 0)].mean())


@dataclass(frozen=True)
class Maker:
    """Computes vectors as a table stores them: cut to its `dim`, and of length 1 where the table's are `normalized`."""

    embedder: ModelEmbedder | ApiEmbedder
    dim: int
    normalized: bool

    def batches(self, prompted: Sequence[Text], pre_dense: bool = False) -> Batches:
        """Embed texts with their prompts, batch by batch; see ModelEmbedder.batches."""
        assert not pre_dense
        try:
            with closing(cast(Batches, self.embedder.batches(prompted))) as batches:
                for batch in batches:
                    yield replace(batch, signals={"embedding": self._as_stored(batch.embedding)})
        except Unfinished as part:  # of an API: what it has answered is paid for, and stored
            signals = {"embedding": self._as_stored(part.signals["embedding"])}
            raise Unfinished(part.rows, signals) from part.__cause__

    def check(self, prompted: Sequence[str], stored: Array) -> None:
        """Raise DistilvecError if the vectors of stored texts, float32 [n, dim], are not this model's."""
        name = self.embedder.name
        if self.embedder.dim < self.dim:
            problem = f"{name} has {self.embedder.dim} dimensions, the table {self.dim}."
            raise DistilvecError(problem, "Name the model that made the table.", key=".made_by")
        embedded = self._as_stored(self.embedder.embed_prompted(prompted))
        agreement = compare_vectors(embedded, stored, stored)
        if agreement.cosine < SAME:
            raise DistilvecError(
                f"{name} did not make the table: its vectors of {len(prompted)} stored texts have a mean cosine of "
                f"{agreement.cosine:.3f} with the stored ones, expected {SAME} or more.",
                agreement.text or "Name the model that made the table, and the prompts it was given.",
                key=".made_by",
            )
        length, stored_length = mean_length(embedded), mean_length(stored)
        if abs(length - stored_length) > _SAME_LENGTH * stored_length:
            raise DistilvecError(
                f"the vectors of {name} have a mean length of {length:.3g}, the stored vectors of the same texts "
                f"{stored_length:.3g}: new texts would get vectors of another scale.",
                "Name the model as it made the table, without the last step that gives vectors the length 1; or store "
                "vectors of length 1.",
                key=".made_by",
            )

    def _as_stored(self, vectors: Array) -> Array:
        vectors = first_dims(vectors, self.dim, self.normalized)
        if self.normalized:
            vectors = vectors / np.linalg.norm(vectors, axis=1, keepdims=True).clip(1e-12)
        return vectors
