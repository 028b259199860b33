"""The corpus's tokens aligned once: pairs of positions in the student's and the teacher's tokens, memory-mapped."""

from __future__ import annotations

import contextlib
import json
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from transformers import PreTrainedTokenizerBase

from distilvec.alignment.align import Aligned, Aligner, mapping_rates
from distilvec.config.recipe import fingerprint
from distilvec.core.artifacts import META, Column, open_column, open_or_build
from distilvec.core.batch import Alignment, Text
from distilvec.core.outputs import AlignmentKind
from distilvec.data.corpus import Corpus
from distilvec.data.corpus_files import Progress, Rows
from distilvec.data.tokens import row_chunks
from distilvec.models.tokenizers import tokenizer_hash

FORMAT = 1


class AlignmentStore:
    """The pairs of every corpus row; made by `build_alignment`, or opened from its folder.

    `counts` [rows] int32 of pairs; `student_lengths` and `teacher_lengths` [rows] int32 of tokens, as in the token stores.
    `report`: rows, and as `Aligned.report` and `mapping_rates`. Errors: OSError, ValueError, KeyError for a damaged folder.
    """

    def __init__(self, folder: Path) -> None:
        meta = json.loads((folder / META).read_text(encoding="utf-8"))
        self.folder = folder
        self.fingerprint: str = meta["fingerprint"]
        self.kind: AlignmentKind = meta["kind"]
        self.report: dict[str, float] = meta["report"]
        self.student_lengths: npt.NDArray[np.int32] = open_column(folder / "student_lengths.npy")
        self.teacher_lengths: npt.NDArray[np.int32] = open_column(folder / "teacher_lengths.npy")
        self.counts: npt.NDArray[np.int32] = open_column(folder / "counts.npy")
        self._offsets: Rows = open_column(folder / "offsets.npy")
        self._student: npt.NDArray[Any] = open_column(folder / "student.npy")
        self._teacher: npt.NDArray[Any] = open_column(folder / "teacher.npy")
        self._shares: npt.NDArray[np.float32] | None = (
            open_column(folder / "shares.npy") if self.kind == "overlap" else None
        )
        rows = {len(self.student_lengths), len(self.teacher_lengths), len(self.counts), len(self._offsets) - 1}
        pairs = {
            int(self._offsets[-1]),
            len(self._student),
            len(self._teacher),
            *([] if self._shares is None else [len(self._shares)]),
        }
        if len(rows) > 1 or len(pairs) > 1:
            raise ValueError(f"{folder}: columns of different lengths")

    def __len__(self) -> int:
        return len(self.counts)

    def batch(self, rows: Rows) -> Alignment:
        """The rows' pairs, [batch, most pairs of a row, 2] int64, -1 fills up; float32 shares of kind "overlap", filled with 0."""
        counts = self.counts[rows].astype(np.int64)
        columns = np.arange(counts.max(initial=0))
        real = columns < counts[:, None]
        places = (self._offsets[rows][:, None] + columns)[real]
        pairs = np.full((*real.shape, 2), -1, dtype=np.int64)
        pairs[real] = np.stack([self._student[places], self._teacher[places]], axis=1)
        if self._shares is None:
            return Alignment(torch.from_numpy(pairs))
        shares = np.zeros(real.shape, dtype=np.float32)
        shares[real] = self._shares[places]
        return Alignment(torch.from_numpy(pairs), torch.from_numpy(shares))


def build_alignment(
    corpus: Corpus,
    student_tokenizer: PreTrainedTokenizerBase,
    student_max_length: int,
    teacher_tokenizer: PreTrainedTokenizerBase,
    teacher_max_length: int,
    kind: AlignmentKind,
    folder: Path,
    progress: Progress | None = None,
) -> AlignmentStore:
    """Align the prompted texts into `folder`, or reopen it if it is complete and was made of the same things.

    Positions are those of the token stores: special tokens and `max_length` count as there. `progress("aligning", rows)`.
    Errors: DistilvecError for slow tokenizers, for a `max_length` that leaves no room, or if no disk space is left.
    """
    aligner = Aligner(student_tokenizer, student_max_length, teacher_tokenizer, teacher_max_length, kind, corpus.paired)
    side = getattr(teacher_tokenizer, "truncation_side", "right")
    hashes = [
        tokenizer_hash(student_tokenizer),
        student_max_length,
        tokenizer_hash(teacher_tokenizer),
        teacher_max_length,
        side,
    ]
    mark = fingerprint(FORMAT, corpus.fingerprint, len(corpus), kind, *hashes)
    positions = np.int16 if max(student_max_length, teacher_max_length) <= np.iinfo(np.int16).max else np.int32

    def build(place: Path) -> dict[str, Any]:
        report = _write(place, corpus, aligner, positions, progress or (lambda stage, rows: None))
        return {"kind": kind, "report": {**report, **mapping_rates(report)}}

    return open_or_build(folder, mark, "alignment", int(corpus.offsets[-1]), build, AlignmentStore)


def _write(
    place: Path, corpus: Corpus, aligner: Aligner, positions: npt.DTypeLike, progress: Progress
) -> dict[str, int]:
    """Align chunk by chunk into the columns; the report."""
    report: Counter[str] = Counter(rows=len(corpus))
    kinds: dict[str, npt.DTypeLike] = {
        "counts": np.int32,
        "offsets": np.int64,
        "student": positions,
        "teacher": positions,
    }
    kinds |= {
        "student_lengths": np.int32,
        "teacher_lengths": np.int32,
        **({"shares": np.float32} if aligner.kind == "overlap" else {}),
    }
    with contextlib.ExitStack() as stack:
        out = {name: stack.enter_context(Column(place / f"{name}.npy", kind)) for name, kind in kinds.items()}
        out["offsets"].append(np.zeros(1))
        done = pairs = 0
        for found in _aligned(corpus, aligner):
            out["counts"].append(found.counts)
            out["offsets"].append(pairs + np.cumsum(found.counts))
            out["student"].append(found.pairs[:, 0])
            out["teacher"].append(found.pairs[:, 1])
            out["student_lengths"].append(np.maximum(found.student_lengths, 1))  # a text without tokens is kept as one
            out["teacher_lengths"].append(np.maximum(found.teacher_lengths, 1))
            if found.shares is not None:
                out["shares"].append(found.shares)
            report.update(found.report)
            pairs, done = pairs + len(found.pairs), done + len(found.counts)
            progress("aligning", done)
    return dict(report)


def _aligned(corpus: Corpus, aligner: Aligner) -> Iterator[Aligned]:
    """Chunk after chunk; the tokenizers are one chunk ahead, in a thread of their own."""
    with ThreadPoolExecutor(1) as ahead:

        def start(rows: range) -> tuple[list[Text], Any]:
            texts = corpus.prompted(rows)
            return texts, ahead.submit(aligner.encode, texts)

        chunks = row_chunks(corpus.offsets)
        waiting = [start(rows) for rows in islice(chunks, 1)]
        while waiting:
            texts, encoding = waiting.pop()
            waiting = [start(rows) for rows in islice(chunks, 1)]
            yield aligner.align(texts, encoding.result())
