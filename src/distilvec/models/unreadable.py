"""Models that cannot be read become one clear line; those that load and yet cannot work are refused."""

from __future__ import annotations

import errno
import pickle
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

import torch
from huggingface_hub.errors import HfHubHTTPError
from safetensors import SafetensorError

from distilvec.core.errors import UNREADABLE, DistilvecError, explain, explained, first_line

Kind = Literal["model", "tokenizer", "causal language model"]
_MODEL_FILES = ("modules.json", "config.json", "adapter_config.json")
_RAISED = (
    *UNREADABLE,
    SafetensorError,
    *HfHubHTTPError.__bases__,
)  # these are its HTTP client's own, which differ by version
_ABSENT = (
    errno.ENOENT,
    errno.ENOTDIR,
    errno.EISDIR,
)  # for these the model itself is named, not the file that was not found
_FIXES = {
    "model": "Expected a SentenceTransformer or Hugging Face model: its folder, or its id on the hub",
    "tokenizer": "Expected the folder or id of a model",
    "causal language model": "Expected a causal language model with its tokenizer: its folder, or its id on the hub",
}
_PICKLE = "its weights are a pickle file that is damaged or holds more than tensors, which may run code; such files are not read"
_NO_FOLDER = "there is no such folder"
_LONGEST = 1000  # characters of a name
_PROBE = "a text"


@contextmanager
def readable(name: str, key: str, kind: Kind = "model") -> Iterator[None]:
    """Turn what libraries raise inside, while they read the model `name`, into "[key] cannot load NAME, a folder: reason. Fix."

    What is no model at all is refused before anything inside runs.
    """
    check_place(name, key, kind)
    try:
        yield
    except DistilvecError as error:
        if not str(error).startswith("[model] ") or key == "model":
            raise
        raise DistilvecError(f"[{key}] {str(error).removeprefix('[model] ')}") from error
    except Exception as error:
        if not isinstance(error, _RAISED) and type(error) is not Exception:  # tokenizers raises bare ones
            raise
        machine = not isinstance(error, UnicodeError) and not (isinstance(error, OSError) and error.errno in _ABSENT)
        message = explain(error, key) if machine else None
        raise DistilvecError(message or _message(name, key, kind, _reason(error), error)) from error


def check_place(name: str, key: str, kind: Kind = "model") -> None:
    """DistilvecError for a name that can be neither a model's folder nor an id: a file, a folder without a model, a dangling link."""
    if reason := _no_model(name, key, kind):
        raise DistilvecError(_message(name, key, kind, reason))


def check_model(model: Any, name: str, key: str) -> None:
    """DistilvecError for weights that are not numbers, an empty tokenizer, or one with more ids than the embedding table has rows."""
    check_weights(model, name, key)
    backbone = getattr(model[0], "auto_model", None)
    tokenizer: Any = getattr(model[0], "tokenizer", None)
    if backbone is None or not hasattr(tokenizer, "get_vocab"):
        return
    check_tokenizer(tokenizer, name, key)
    try:
        table = backbone.get_input_embeddings()
    except NotImplementedError:  # a model of several parts, such as CLIP
        return
    rows = getattr(table, "num_embeddings", None)
    if rows is not None and len(tokenizer) > rows:
        added = set(tokenizer.added_tokens_decoder)  # those of images and the like may have no row
        beyond = [token for token, number in tokenizer.get_vocab().items() if number >= rows and number not in added]
        if beyond:
            raise DistilvecError(
                f"[{key}] the tokenizer of {name} has {len(tokenizer):,} tokens, its embedding table {rows:,} rows: "
                f"'{beyond[0]}' has none. Take the tokenizer that belongs to the model."
            )


def check_weights(model: Any, name: str, key: str) -> None:
    """DistilvecError for weights that are not finite numbers."""
    for weight, values in model.named_parameters():
        if (
            values.is_floating_point()
            and values.numel()
            and not torch.isfinite(values.detach().sum(dtype=torch.float32))
        ):
            raise DistilvecError(
                f"[{key}] {name} has weights that are not finite numbers: {weight}. Copy or train the model again."
            )


def check_tokenizer(tokenizer: Any, name: str, key: str) -> None:
    """DistilvecError for a tokenizer that knows special tokens alone: transformers makes such a one where its files are missing."""
    if len(tokenizer) <= len(set(tokenizer.all_special_ids) | set(getattr(tokenizer, "added_tokens_decoder", ()))):
        raise DistilvecError(_message(name, key, "tokenizer", "its files are missing or hold special tokens alone"))


def check_outputs(embed: Callable[[list[str]], Any], model: Any, name: str, key: str) -> None:
    """DistilvecError where `embed`, which runs the model, gives no finite vector for a text."""
    try:
        vector = torch.as_tensor(embed([_PROBE]))
    except DistilvecError:
        raise
    except UNREADABLE as error:
        kinds = ", ".join(type(module).__name__ for module in model)
        raise DistilvecError(
            explain(error, key)
            or f"[{key}] {name} gives no vector for a text: {type(error).__name__}: {first_line(error)}. Found modules {kinds}; "
            "expected a transformer, then a pooling. Copy or save the model again."
        ) from error
    if not torch.isfinite(vector).all():
        raise DistilvecError(
            f"[{key}] {name} gives vectors that are not finite numbers. Copy or train the model again."
        )


def how_to_trust(key: str) -> str:
    """What to set so that code of a model's own is run."""
    section = key.rpartition(".")[0]
    if section == "student.vocabulary":
        return "Code of a tokenizer is not run: save it as a tokenizer.json, and give that"
    if section:
        return f"If you trust its authors' code, set {section}.trust_remote_code=true in a recipe of `distilvec run`"
    return "If you trust its authors' code, give --trust-remote-code (export, transplant, align, finetune) or set it in a recipe"


def _no_model(name: str, key: str, kind: Kind) -> str | None:
    """Why the name can be no model, None where it may be one."""
    if not name.strip():
        return "the name is empty"
    if len(name) > _LONGEST:
        return f"a name of {len(name):,} characters is too long"
    path = Path(name)
    with explained(key, path):
        if path.is_dir():
            inside = {entry.name for entry in path.iterdir()}
            return (
                None
                if kind == "tokenizer" or inside & set(_MODEL_FILES)
                else f"it holds none of {', '.join(_MODEL_FILES)}"
            )
        if path.is_symlink() and not path.exists():
            return "the link leads nowhere"
        if path.exists():
            return "it is a file, not a folder"
        if name.startswith((".", "/", "~")) or "\\" in name or name.count("/") > 1:
            return _NO_FOLDER
    return None


def _reason(error: Exception) -> str:
    if isinstance(error, pickle.UnpicklingError):
        return _PICKLE
    if "ignore_mismatched_sizes" in str(error):
        return "its weights have other shapes than its configuration states"
    return f"{type(error).__name__}: {first_line(error)}"


def _message(name: str, key: str, kind: Kind, reason: str, error: Exception | None = None) -> str:
    if not name.strip() or len(name) > _LONGEST:
        return f"[{key}] {reason}. {_FIXES[kind]}."
    path, place = Path(name), "a hub id (or a folder that is not there)"
    if path.exists():
        place = "a folder" if path.is_dir() else "a file"
    elif reason == _NO_FOLDER or path.is_symlink():
        place = "a link" if path.is_symlink() else "a path"
    what = {"model": "cannot load", "tokenizer": "no tokenizer in"}.get(kind, f"no {kind} in")
    fix = how_to_trust(key) if error is not None and "trust_remote_code" in str(error) else _FIXES[kind]
    return f"[{key}] {what} {name}, {place}: {reason.strip().rstrip('.:!…')}. {fix}."
