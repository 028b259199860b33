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


def fleet_lines(
    fleet: Fleet, teacher: Teacher, missing: int, a_text: tuple[float, float], stored: TokenStore
) -> list[list[str]]:
    """Rows for the corpus and for the sizes of SIZES; `a_text` has seconds of one worker and bytes of its signals.

    Time is that of the model alone, divided by the workers. Disk has the vectors, the corpus and the student's tokens.
    """
    seconds, size = a_text
    texts = (folder_bytes(teacher.corpus.folder) + folder_bytes(stored.folder)) / len(teacher.corpus)

    def row(count: int) -> str:
        hours = count * seconds / 3600
        cost = "" if fleet.hourly_price is None else f", cost {hours * fleet.hourly_price:,.2f}"
        disk = f"{_bytes(count * size)} of vectors, {_bytes(count * texts)} of texts and tokens"
        return (
            f"about {duration(hours * 3600 / fleet.workers)}{cost}; {disk}; keys in memory {_bytes(count * KEY_BYTES)}"
        )

    title = f"with {fleet.workers:,} worker{'s' * (fleet.workers > 1)}"
    return [[title, row(missing)], *([f"  {name} texts", row(count)] for name, count in SIZES.items())]


def _bytes(count: float) -> str:
    unit, size = next(
        (unit, size) for unit, size in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6)) if count >= size or size == 1e6
    )
    return f"{count / size:,.1f} {unit}"
