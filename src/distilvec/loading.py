"""Loads any model; a student's mixture of experts with our own class, never with code from its folder.

sentence-transformers runs a class that is not its own only with `trust_remote_code=True`, and then from the file that lies
in the model's folder. A student's experts are distilvec's, so here they need no such trust.
"""

from __future__ import annotations

import json
import shutil
import tempfile
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from sentence_transformers import SentenceTransformer
from sentence_transformers.util import load_dir_path, load_file_path

from distilvec.errors import DistilvecError
from distilvec.students.experts import CONFIG, WEIGHTS, Experts

EXPERTS_FILE = "distilvec_experts.py"  # the copy of students/experts.py beside a student; it may never move: saved models name it
EXPERTS_TYPE = "distilvec_experts.Experts"
OURS = (EXPERTS_TYPE, "distilvec.students.experts.Experts")  # the second is what sentence-transformers itself writes
_UNREADABLE = (OSError, ValueError, TypeError, KeyError, RuntimeError, SafetensorError)
_OF_THE_HUB = ("token", "cache_folder", "revision", "local_files_only")


def load(path_or_id: str | Path, device: str | None = None, **kwargs: Any) -> SentenceTransformer:
    """The model in a folder or of a hub id, as `SentenceTransformer(path_or_id, device=device, **kwargs)` gives it.

    Only a mixture of experts needs no `trust_remote_code`: it is built by this package's class. Code of others is refused by
    sentence-transformers as ever. Errors: DistilvecError where the files of the experts are damaged or do not belong to the
    model; for all else sentence-transformers' own.
    """
    source = str(path_or_id)
    entries = _entries(source, kwargs)
    if not any(_is_ours(entry) for entry in entries):
        return SentenceTransformer(source, device=device, **kwargs)
    folder = Path(load_dir_path(source, "", **_of_the_hub(kwargs)) or source)
    with tempfile.TemporaryDirectory(prefix="distilvec-load-") as place:
        twin = Path(shutil.copytree(folder, Path(place) / "model", copy_function=_link))
        (twin / "modules.json").unlink()
        (twin / EXPERTS_FILE).unlink(missing_ok=True)
        rest = [entry for entry in entries if not _is_ours(entry)]
        named = [{**entry, "name": str(number)} for number, entry in enumerate(rest)]
        (twin / "modules.json").write_text(json.dumps(named), encoding="utf-8")
        try:
            model = SentenceTransformer(str(twin), device=device, **kwargs)
        except Exception as error:  # whatever it is, it is about the model's own folder
            error.args = tuple(part.replace(str(twin), source) if isinstance(part, str) else part for part in error.args)
            raise
    for number, entry in enumerate(entries):
        if _is_ours(entry):
            experts = _load_experts(folder / entry["path"], _width(model, number))
            model.insert(number, experts.to(model.device, next(model.parameters()).dtype))
    return model


def _entries(source: str, kwargs: dict[str, Any]) -> list[dict[str, Any]]:
    """What modules.json says; [] where there is none, or none that can be read, which is for sentence-transformers to say."""
    if not Path(source).is_dir() and "/" not in source:  # an id without an owner is sentence-transformers' own
        return []
    path = load_file_path(source, "modules.json", **_of_the_hub(kwargs))
    try:
        entries = json.loads(Path(path).read_text(encoding="utf-8")) if path else []
    except (OSError, ValueError):
        return []
    return entries if isinstance(entries, list) and all(isinstance(entry, dict) for entry in entries) else []


def _load_experts(folder: Path, width: int | None) -> Experts:
    """The experts in a folder, for vectors of this width (None: not known)."""
    try:
        experts = Experts.load(str(folder))
    except _UNREADABLE as error:
        reason = (str(error).strip() or "no message").splitlines()[0]
        raise DistilvecError(
            f"{folder} does not hold the mixture of experts that modules.json names: {type(error).__name__}: {reason} "
            f"Expected {CONFIG} and {WEIGHTS} as distilvec saves them. Copy the whole model again, or save it again from its run."
        ) from error
    if width not in (None, experts.dim):
        raise DistilvecError(
            f"{folder} holds experts for vectors of width {experts.dim}; those of the model before them have {width}. "
            "They belong to another model: copy the whole one again, or save it again from its run."
        )
    return experts


def _width(model: SentenceTransformer, number: int) -> int | None:
    """The width of the vectors that the modules before this one give, None if they do not say."""
    say = getattr(model[number - 1], "get_embedding_dimension", None) if number else None
    return None if say is None else say()


def _is_ours(entry: dict[str, Any]) -> bool:
    return entry.get("type") in OURS and "path" in entry


def _of_the_hub(kwargs: dict[str, Any]) -> dict[str, Any]:
    return {name: kwargs[name] for name in _OF_THE_HUB if name in kwargs}


def _link(source: str, target: str) -> None:
    """A link instead of a copy, where the system allows links."""
    try:
        Path(target).symlink_to(Path(source).resolve())
    except OSError:
        shutil.copy2(source, target)
