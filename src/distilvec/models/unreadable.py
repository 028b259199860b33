"""Clear errors for models that cannot be read, and checks of models that load and yet cannot work."""

from __future__ import annotations

import errno
import pickle
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

import torch
from tokenizers import Tokenizer
from transformers import PreTrainedTokenizerBase

from distilvec.core.errors import DistilvecError, explain, explained, first_line
from distilvec.core.files import files_below
from distilvec.core.model_name import MODEL_FILES
from distilvec.models.parts import is_static, max_length, text_tokenizer, tokens_without_row

Kind = Literal["model", "tokenizer", "adapter", "causal language model"]
_ABSENT = (errno.ENOENT, errno.ENOTDIR, errno.EISDIR)  # for these the message names the model, not the missing file
_LONGEST = 1000  # characters of a name
PROBE = "a text"


@contextmanager
def readable(name: str, key: str, kind: Kind = "model") -> Iterator[None]:
    """Turn the libraries' errors inside, while they read the model `name`, into "[key] cannot load NAME: reason."

    A name that cannot be a model is refused first.
    """
    check_place(name, key, kind)
    try:
        yield
    except DistilvecError as error:
        if error.key != "model" or key == "model":
            raise
        raise error.renamed(key) from error
    except Exception as error:  # the libraries raise any kind: ZeroDivisionError for no heads, tokenizers bare ones
        machine = not isinstance(error, UnicodeError) and not (isinstance(error, OSError) and error.errno in _ABSENT)
        explanation = explain(error, key) if machine else None
        untrusted = how_to_trust(key) if "trust_remote_code" in str(error) else None
        raise (explanation or _unreadable(name, key, kind, _reason(error), untrusted)) from error


def check_place(name: str, key: str, kind: Kind = "model") -> None:
    """Raise DistilvecError for a name that is neither a model's folder nor an id: a file, a dangling link."""
    with explained(key, Path(name)):
        if reason := _no_model(name, kind):
            raise _unreadable(name, key, kind, reason)


def check_model(model: Any, name: str, key: str) -> None:
    """Raise DistilvecError for weights, sizes, tokens and lengths with which no model can work."""
    check_weights(model, name, key)
    _check_numbers(model, name, key)
    if not isinstance(getattr(model[0], "tokenizer", None), (PreTrainedTokenizerBase, Tokenizer)):
        return
    tokenizer = text_tokenizer(model)
    check_tokenizer(tokenizer, name, key)
    special = 0 if is_static(model) else tokenizer.num_special_tokens_to_add(pair=False)
    if max_length(model) <= special:
        raise DistilvecError(
            f"{name} reads {max_length(model)} tokens, of which {special} are special ones: nothing of a text.",
            "Correct max_seq_length in its sentence_bert_config.json, or model_max_length in tokenizer_config.json.",
            key=key,
        )
    added = tokenizer.added_tokens_decoder  # they may be marks of images, and are refused in a text
    beyond = [token for number, token in tokens_without_row(model).items() if number not in added]
    if beyond:
        raise DistilvecError(
            f"the tokenizer of {name} has {len(tokenizer):,} tokens, and the model's table has no row for "
            f"{len(beyond):,} of them, such as '{beyond[0]}'.",
            "Take the tokenizer that belongs to the model.",
            key=key,
        )


def refuse_several_parts(backbone: Any, name: str, key: str) -> None:
    """Raise DistilvecError for a model that no student can be cut from: texts and images (or sounds) have parts each.

    CLIP, SigLIP, CLAP and their like have `get_text_features` for the part that reads texts; the layers and tables that
    a student is cut from would be those of any part. As the teacher of another model they work.
    """
    if hasattr(backbone, "get_text_features"):
        raise DistilvecError(
            f"{name} ({type(backbone).__name__}) has a part for texts beside others, so that no student can be cut "
            "from it.",
            "Name a text model to begin with (--student, student.model); this one can teach it.",
            key=key,
        )


def _check_numbers(model: Any, name: str, key: str) -> None:
    """Raise DistilvecError for a length or a width that the model's settings state and that is no number above 0."""
    sizes = {
        "max_seq_length": model.max_seq_length,
        "truncate_dim": model.truncate_dim,
        "embedding_dimension": stated_width(model),
    }
    for setting, size in sizes.items():
        if size is not None and (not isinstance(size, int | float) or size < 1):
            problem = f"{name} states {setting} {size!r}; expected a number of 1 or more."
            raise DistilvecError(problem, "Correct its settings, or save the model again.", key=key)


def check_weights(model: Any, name: str, key: str) -> None:
    """Raise DistilvecError for weights that are not finite numbers."""
    for weight, values in model.named_parameters():
        if not values.is_floating_point() or values.is_meta:  # meta: offloaded to the disk
            continue
        if not torch.isfinite(values.detach().sum(dtype=torch.float32)):
            raise DistilvecError(
                f"{name} has weights that are not finite numbers: {weight}.", "Copy or train the model again.", key=key
            )


def check_tokenizer(tokenizer: Any, name: str, key: str) -> None:
    """Raise DistilvecError for a tokenizer of special tokens alone, which transformers makes if files are missing."""
    if len(tokenizer) <= len(set(tokenizer.all_special_ids) | set(getattr(tokenizer, "added_tokens_decoder", ()))):
        raise _unreadable(name, key, "tokenizer", "its files are missing or hold special tokens alone")


@contextmanager
def vector_expected(model: Any, name: str, key: str) -> Iterator[None]:
    """Turn the failures of a model that is run inside, for the text PROBE, into a DistilvecError."""
    try:
        yield
    except DistilvecError:
        raise
    except Exception as error:  # the model's modules raise any kind
        kinds = ", ".join(type(module).__name__ for module in model)
        no_vector = DistilvecError(
            f"{name} gives no vector for a text: {type(error).__name__}: {first_line(error)}. Found modules {kinds}; "
            "expected a transformer, then a pooling.",
            "Copy or save the model again.",
            key=key,
        )
        raise (explain(error, key) or no_vector) from error


def check_vector(vector: Any, model: Any, name: str, key: str) -> None:
    """Raise DistilvecError if a vector that the model gave is not finite, or of another width than it states."""
    vector = torch.as_tensor(vector)
    if not torch.isfinite(vector).all():
        raise DistilvecError(
            f"{name} gives vectors that are not finite numbers.", "Copy or train the model again.", key=key
        )
    stated, width = stated_width(model), vector.shape[-1]
    if stated is not None and width not in (stated, model.get_embedding_dimension()):
        raise DistilvecError(
            f"{name} states vectors of {stated} dimensions and gives {width}, which would be cut in silence.",
            "Correct the dimension of its pooling (1_Pooling/config.json), or save the model again.",
            key=key,
        )


def stated_width(model: Any) -> int | None:
    """Return the width that the last module with one states, without `truncate_dim`, which cuts on purpose."""
    for module in reversed(list(model)):
        width = getattr(module, "get_embedding_dimension", lambda: None)()
        if width is not None:
            return int(width)
    return None


def how_to_trust(key: str) -> str:
    """Return the setting that lets the model's own code run."""
    section = key.rpartition(".")[0]
    if section == "student.vocabulary":
        return "Code of a tokenizer is not run: save it as a tokenizer.json, and give that"
    if section:
        return f"If you trust its authors' code, set {section}.trust_remote_code=true in a recipe of `distilvec run`"
    return (
        "If you trust its authors' code, give --trust-remote-code (export, transplant, align, finetune) or set "
        "trust_remote_code in a recipe"
    )


def _no_model(name: str, kind: Kind) -> str | None:
    """Return the reason why no model can have this name, or None."""
    if not name.strip():
        return "the name is empty"
    if len(name) > _LONGEST:
        return f"a name of {len(name):,} characters is too long"
    path = Path(name)
    if path.is_dir():
        found = kind == "tokenizer" or any(entry.name in MODEL_FILES for entry in path.iterdir())
        if not found:
            return f"the folder holds none of {', '.join(sorted(MODEL_FILES))}"
        pipes = files_below(path, accept=lambda entry: entry.exists() and not entry.is_file() and not entry.is_dir())
        return f"{pipes[0]} is not a file" if pipes else None
    if path.is_symlink() and not path.exists():
        return "the link leads nowhere"
    if path.exists():
        return "it is a file, not a folder"
    if name.startswith((".", "/", "~")) or "\\" in name or name.count("/") > 1:
        return "there is no such folder"
    return None


def _reason(error: Exception) -> str:
    if isinstance(error, pickle.UnpicklingError):
        return "its weights are a pickle file that is damaged or may run code; such files are not read"
    if "ignore_mismatched_sizes" in str(error):
        return "its weights have other shapes than its configuration states"
    return f"{type(error).__name__}: {first_line(error)}".rstrip(" .:!…")


def _unreadable(name: str, key: str, kind: Kind, reason: str, fix: str | None = None) -> DistilvecError:
    problem = {"model": "cannot load", "tokenizer": "no tokenizer in"}.get(kind, f"no {kind} in")
    shown = name if len(name) <= _LONGEST else f"{name[:60]}…"
    fix = fix or "Expected a folder or an id on the hub"
    return DistilvecError(f"{problem} {shown or 'no name'}: {reason}.", f"{fix}.", key=key)
