"""Aligned tokens of a corpus on disk: pairs of positions in the student's and the teacher's tokens, memory-mapped."""

from __future__ import annotations

import contextlib
import json
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import torch
from transformers import PreTrainedTokenizerBase

from distilvec.config.recipe import fingerprint
from distilvec.core.artifacts import META, Column, open_column, open_or_build
from distilvec.core.batch import Alignment
from distilvec.core.log import Advance, progress
from distilvec.core.outputs import AlignmentKind
from distilvec.data.corpus import Corpus
from distilvec.data.corpus_files import Rows
from distilvec.data.tokens import row_chunks
from distilvec.models.tokenizers import tokenizer_hash

if TYPE_CHECKING:
    from distilvec.alignment.align import Aligned, Aligner

FORMAT = 2


class AlignmentStore:
    """Pairs of every corpus row, from the folder of `build_alignment`.

    `counts` [rows] int32 of pairs; `student_lengths` and `teacher_lengths` [rows] int32 of tokens. `report`: rows, and
    the values of `Aligned.report` and `mapping_rates`.
    """

    def __init__(self, folder: Path) -> None:
        meta = json.loads((folder / META).read_text(encoding="utf-8"))
        self.folder = folder
        self.fingerprint: str = meta["fingerprint"]
        self.kind: AlignmentKind = meta["kind"]
        self.report: dict[str, float] = meta["report"]
        columns = {name: open_column(folder / f"{name}.npy") for name in _columns(self.kind, np.int32)}
        self.student_lengths: npt.NDArray[np.int32] = columns["student_lengths"]
        self.teacher_lengths: npt.NDArray[np.int32] = columns["teacher_lengths"]
        self.counts: npt.NDArray[np.int32] = columns["counts"]
        self._offsets: Rows = columns["offsets"]
        self._student = columns["student"]
        self._teacher = columns["teacher"]
        self._shares = columns.get("shares")
        rows = len(self._offsets) - 1
        pairs = int(self._offsets[-1])
        sizes = {"offsets": rows + 1, "student": pairs, "teacher": pairs, "shares": pairs}
        if any(len(column) != sizes.get(name, rows) for name, column in columns.items()):
            raise ValueError(f"{folder}: columns of different lengths")

    def __len__(self) -> int:
        return len(self.counts)

    def batch(self, rows: Rows) -> Alignment:
        """Return the rows' pairs [batch, most pairs of a row, 2] int64, padded by -1; of "overlap" float32 shares."""
        counts = self.counts[rows].astype(np.int64)
        columns = np.arange(counts.max(initial=0))
        is_pair = columns < counts[:, None]
        stored = (self._offsets[rows][:, None] + columns)[is_pair]
        pairs = np.full((*is_pair.shape, 2), -1, dtype=np.int64)
        pairs[is_pair] = np.stack([self._student[stored], self._teacher[stored]], axis=1)
        if self._shares is None:
            return Alignment(torch.from_numpy(pairs))
        shares = np.zeros(is_pair.shape, dtype=np.float32)
        shares[is_pair] = self._shares[stored]
        return Alignment(torch.from_numpy(pairs), torch.from_numpy(shares))


def build_alignment(
    corpus: Corpus,
    student_tokenizer: PreTrainedTokenizerBase,
    student_max_length: int,
    teacher_tokenizer: PreTrainedTokenizerBase,
    teacher_max_length: int,
    kind: AlignmentKind,
    folder: Path,
) -> AlignmentStore:
    """Align the prompted texts into `folder`, or reopen the folder if it is complete and has the same inputs.

    Positions are those of the token stores. The work has a bar.
    """
    from distilvec.alignment.align import Aligner, mapping_rates  # for the methods that align tokens

    aligner = Aligner(student_tokenizer, student_max_length, teacher_tokenizer, teacher_max_length, kind, corpus.paired)
    student = tokenizer_hash(student_tokenizer)
    teacher = tokenizer_hash(teacher_tokenizer)
    inputs = [student, student_max_length, teacher, teacher_max_length]
    side = getattr(teacher_tokenizer, "truncation_side", "right")
    key = fingerprint(FORMAT, corpus.fingerprint, len(corpus), kind, *inputs, side)
    positions = np.int16 if max(student_max_length, teacher_max_length) <= np.iinfo(np.int16).max else np.int32

    def build(target: Path) -> dict[str, Any]:
        with progress("aligning tokens", len(corpus), "texts") as advance:
            report = _write(target, corpus, aligner, positions, advance)
        return {"kind": kind, "report": {**report, **mapping_rates(report)}}

    return open_or_build(folder, key, "alignment", int(corpus.offsets[-1]), build, AlignmentStore)


def _columns(kind: AlignmentKind, positions: npt.DTypeLike) -> dict[str, npt.DTypeLike]:
    """Return the files of a store and their types."""
    lengths: dict[str, npt.DTypeLike] = dict.fromkeys(("counts", "student_lengths", "teacher_lengths"), np.int32)
    shares: dict[str, npt.DTypeLike] = {"shares": np.float32} if kind == "overlap" else {}
    return {**lengths, "offsets": np.int64, "student": positions, "teacher": positions, **shares}


def _write(
    target: Path, corpus: Corpus, aligner: Aligner, positions: npt.DTypeLike, advance: Advance
) -> dict[str, int]:
    """Align chunk by chunk into the columns; return the report."""
    report: Counter[str] = Counter(rows=len(corpus))
    with contextlib.ExitStack() as stack:
        kinds = _columns(aligner.kind, positions).items()
        out = {name: stack.enter_context(Column(target / f"{name}.npy", kind)) for name, kind in kinds}
        out["offsets"].append(np.zeros(1))
        done = pairs = 0
        for chunk in _aligned(corpus, aligner):
            out["counts"].append(chunk.counts)
            out["offsets"].append(pairs + np.cumsum(chunk.counts))
            out["student"].append(chunk.pairs[:, 0])
            out["teacher"].append(chunk.pairs[:, 1])
            # The token stores hold a text without tokens as one token, too
            out["student_lengths"].append(np.maximum(chunk.student_lengths, 1))
            out["teacher_lengths"].append(np.maximum(chunk.teacher_lengths, 1))
            if chunk.shares is not None:
                out["shares"].append(chunk.shares)
            report.update(chunk.report)
            pairs += len(chunk.pairs)
            done += len(chunk.counts)
            advance(done)
    return dict(report)


def _aligned(corpus: Corpus, aligner: Aligner) -> Iterator[Aligned]:
    """Yield chunk after chunk; the next chunk is tokenized meanwhile in a thread."""
    with ThreadPoolExecutor(1) as ahead:
        waiting = None
        for rows in row_chunks(corpus.offsets):
            texts = corpus.prompted(rows)
            submitted = texts, ahead.submit(aligner.encode, texts)
            if waiting is not None:
                yield aligner.align(waiting[0], waiting[1].result())
            waiting = submitted
        if waiting is not None:
            yield aligner.align(waiting[0], waiting[1].result())
