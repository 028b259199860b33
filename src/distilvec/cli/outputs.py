"""What the verbs that only measure check before the work: output files, numbers."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from pathlib import Path

from distilvec.core.errors import DistilvecError
from distilvec.core.files import check_output_file, check_output_folder

_OF_A_RUN = (
    "recipe.yaml", "train.fingerprint", "metrics.jsonl", "distillation.json", "report.json", "report.html", "samples.npz",
    "sharpness.json", "sweep.json",
)  # fmt: skip


def check_outputs(files: Sequence[tuple[str, Path | None]], inputs: Iterable[Path | None] = ()) -> None:
    """DistilvecError unless every (option, file) could be written, is named once, and is no input and no file of a run."""
    read = {path.resolve() for path in inputs if path is not None}
    known: dict[Path, str] = {}
    for key, path in files:
        if path is None:
            continue
        check_output_file(path, key)
        place = path.resolve()
        if place in known:
            raise DistilvecError(f"[{key}] {path} is written by {known[place]} as well. Give each a file of its own.")
        in_a_run = any((place.parent / name).exists() for name in ("recipe.yaml", "sweep.json"))
        if place in read or (place.name in _OF_A_RUN and in_a_run):
            raise DistilvecError(f"[{key}] {path} is what is read here, and would be lost. Choose another path.")
        known[place] = key


def pictures_of(path: Path | None, key: str) -> list[tuple[str, Path | None]]:
    """The files that a picture at `path` is written to: as SVG and as PNG."""
    return [] if path is None else [(key, path.with_name(f"{path.stem}{ending}")) for ending in (".svg", ".png")]


def check_page(path: Path | None, key: str) -> None:
    """DistilvecError where the folder of a page's pictures could not be made."""
    if path is not None:
        check_output_folder(path.with_name(f"{path.stem}-figures"), key)


def check_positive(value: float, key: str) -> None:
    """DistilvecError for a number that is not above 0, or not finite."""
    if not (math.isfinite(value) and value > 0):
        raise DistilvecError(f"[{key}] found {value:g}. Give a number above 0.")
