"""Disk, time and cost of teacher vectors with several workers, extrapolated from the plan's sample."""

from __future__ import annotations

from dataclasses import dataclass

from distilvec.core.duration import duration
from distilvec.core.files import folder_bytes
from distilvec.data.tokens import TokenStore
from distilvec.pipeline.job import Teacher

SIZES = {"100 M": 10**8, "1 B": 10**9}  # texts like those of the corpus
KEY_BYTES = 20  # of memory a text, in the process that fills or reads a cache


@dataclass(frozen=True)
class Fleet:
    """`workers` machines or GPUs like the one that the sample runs on, and the price of one for an hour, if any."""

    workers: int
    hourly_price: float | None = None


@dataclass(frozen=True)
class _TextCost:
    """What a text costs on average: seconds of one worker, bytes of its vectors, bytes of the text and its tokens."""

    seconds: float
    vector_bytes: float
    text_bytes: float


def fleet_lines(
    fleet: Fleet, teacher: Teacher, missing: int, seconds: float, vector_bytes: float, tokens: TokenStore
) -> list[list[str]]:
    """Rows for the corpus and for the sizes of SIZES; a text takes `seconds` of one worker and `vector_bytes`.

    Time is that of the model alone, divided by the workers. Disk has the vectors, the corpus and the student's tokens.
    """
    text_bytes = (folder_bytes(teacher.corpus.folder) + folder_bytes(tokens.folder)) / len(teacher.corpus)
    cost = _TextCost(seconds, vector_bytes, text_bytes)
    workers = "1 worker" if fleet.workers == 1 else f"{fleet.workers:,} workers"
    lines = [[f"with {workers}", _line(fleet, cost, missing)]]
    for name, count in SIZES.items():
        lines.append([f"  {name} texts", _line(fleet, cost, count)])
    return lines


def _line(fleet: Fleet, cost: _TextCost, texts: int) -> str:
    seconds = texts * cost.seconds
    price = "" if fleet.hourly_price is None else f", cost {seconds / 3600 * fleet.hourly_price:,.2f}"
    time = duration(seconds / fleet.workers)
    vectors = _size(texts * cost.vector_bytes)
    text_files = _size(texts * cost.text_bytes)
    keys = _size(texts * KEY_BYTES)
    return f"about {time}{price}; {vectors} of vectors, {text_files} of texts and tokens; keys in memory {keys}"


def _size(count: float) -> str:
    """A number of bytes in MB, GB or TB."""
    if count >= 1e12:
        return f"{count / 1e12:,.1f} TB"
    if count >= 1e9:
        return f"{count / 1e9:,.1f} GB"
    return f"{count / 1e6:,.1f} MB"
