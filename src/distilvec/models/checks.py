"""Checks of models: names that none can have, and models that load and yet cannot work."""

from __future__ import annotations

import copy
import difflib
import logging
import pickle
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from huggingface_hub import try_to_load_from_cache
from safetensors import safe_open
from tokenizers import Tokenizer
from transformers import PreTrainedModel, PreTrainedTokenizerBase
from transformers.utils import SAFE_WEIGHTS_NAME, cached_file

from distilvec.core.errors import DistilvecError
from distilvec.core.files import files_below
from distilvec.core.log import log
from distilvec.core.model_name import BUILTIN, MODEL_FILES, ModelName
from distilvec.models.parts import is_static, max_length, text_tokenizer, tokens_without_row

PROBE = "a text"
SILENT_SECONDS = 3.0  # of a search on the hub, before a line says so
HOW_TO_TRUST = (
    "If you trust its authors' code, give --trust-remote-code, or set trust_remote_code=true beside the model in a "
    "recipe."
)
_LONGEST = 1000  # characters of a name
_UNREAD = re.compile(r"(^|\.)pooler\.")  # BERT's layer for pairs of sentences, which many models lack and none reads
_BUFFER = ".position_ids"  # of BERT, which earlier versions of transformers saved
_LAYER = re.compile(r"\.\d+\.")


# -- names -------------------------------------------------------------------------------------------------------------


def check_place(name: str, is_tokenizer: bool = False) -> None:
    """Raise DistilvecError for a name that is neither a model's folder nor an id: a file, a dangling link."""
    reason = _no_model(name, is_tokenizer)
    if reason is not None:
        excerpt = name if len(name) <= _LONGEST else f"{name[:60]}…"
        raise DistilvecError(f"cannot load {excerpt or 'no name'}: {reason}.", "Expected a folder or an id on the hub.")


def _no_model(name: str, is_tokenizer: bool) -> str | None:
    """Return the reason why no model can have this name, or None."""
    if not name.strip():
        return "the name is empty"
    if len(name) > _LONGEST:
        return f"a name of {len(name):,} characters is too long"
    path = Path(name)
    if path.is_dir():
        if not is_tokenizer and not any(entry.name in MODEL_FILES for entry in path.iterdir()):
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


@contextmanager
def reading(model: ModelName) -> Iterator[None]:
    """Say what the libraries' first sentences leave out when they refuse code, a pickle file or weights of a model.

    Every other error stays as it is.
    """
    try:
        with _telling_of_the_hub(model.name):
            yield
    except DistilvecError:
        raise
    except Exception as error:
        fix = "Expected a folder or an id on the hub."
        if isinstance(error, pickle.UnpicklingError):
            reason = "its weights are a pickle file that is damaged or may run code; such files are not read"
        elif "ignore_mismatched_sizes" in str(error):
            reason = "its weights have other shapes than its configuration states"
        elif "trust_remote_code" in str(error):
            reason, fix = "it comes with code of its own, which was not run", HOW_TO_TRUST
        else:
            raise
        raise DistilvecError(f"cannot load {model}: {reason}.", fix) from error


@contextmanager
def _telling_of_the_hub(name: str) -> Iterator[None]:
    """Log after SILENT_SECONDS that a model which is not on this machine is looked for, and a near name."""
    is_id = re.fullmatch(r"[\w.-]+(/[\w.-]+)?", name) is not None and not Path(name).exists()
    if not is_id or isinstance(try_to_load_from_cache(name, "config.json"), str):
        yield
        return
    near = difflib.get_close_matches(name, [BUILTIN, BUILTIN.lower()], n=1, cutoff=0.9)
    hint = f"; did you mean {BUILTIN}?" if near and name != BUILTIN else ""
    timer = threading.Timer(SILENT_SECONDS, log, [f"looking for {name} on huggingface.co{hint}"])
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


# -- weights -----------------------------------------------------------------------------------------------------------


def check_complete(backbone: PreTrainedModel, model: ModelName, subfolder: str, quantized: bool = False) -> None:
    """Raise DistilvecError if a network's files lack weights, or have weights of layers that it leaves out.

    transformers draws weights that a file lacks at random, and drops layers beyond `num_hidden_layers`; it tells so in
    its log alone, or on request. sentence-transformers does not hand the request on, so it is made for a second network
    on the meta device: the files' names are read, their weights are not. Names that are the network's own need none.
    `quantized`: on loading, not in the files.
    """
    if _has_own_names(backbone, model, subfolder):
        return
    kind = type(backbone)
    if kind.__name__ == "T5Gemma2Encoder":  # sentence-transformers changes how its weights are called in a whole model
        kind = type(kind.__name__, (kind,), {"__module__": kind.__module__, "base_model_prefix": "model.encoder"})
    config = copy.deepcopy(backbone.config)
    if quantized:
        del config.quantization_config
    with _silent(logging.getLogger("transformers"), logging.getLogger("transformers.modeling_utils")):  # said before
        network, report = kind.from_pretrained(
            model.name,
            config=config,
            subfolder=subfolder,
            revision=model.revision,
            device_map="meta",
            output_loading_info=True,
        )
    if getattr(backbone, "_hf_peft_config_loaded", False):  # until it is merged
        _check_adapter(backbone, report, model)
    else:
        _check_names(network, report, model)


def _has_own_names(backbone: PreTrainedModel, model: ModelName, subfolder: str) -> bool:
    """Return whether model.safetensors has just the network's weights: transformers renames none of them then."""
    if getattr(backbone.config, "transformers_weights", None) is not None:  # the name of another file
        return False
    options: dict[str, Any] = {"revision": model.revision, "_raise_exceptions_for_missing_entries": False}
    path = cached_file(model.name, f"{subfolder}/{SAFE_WEIGHTS_NAME}".lstrip("/"), **options)
    if path is None:
        return False
    with safe_open(path, framework="pt") as file:
        names = {name for name in file.keys() if not name.endswith(_BUFFER)}  # noqa: SIM118 - it is no dictionary
    return all(_UNREAD.search(weight) for weight in names ^ set(backbone.state_dict()))


@contextmanager
def _silent(*loggers: logging.Logger) -> Iterator[None]:
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)


def _check_names(network: PreTrainedModel, report: dict[str, Any], model: ModelName) -> None:
    # A class of transformers that has the name of the folder's own, and is of another version of the network
    untrusted = type(network).__module__.startswith("transformers.") and getattr(network.config, "auto_map", None)
    trust = f"{HOW_TO_TRUST} Its weights are for that code." if untrusted else None
    weights = set(network.state_dict())
    missing = sorted(weight for weight in report["missing_keys"] if not _UNREAD.search(weight))
    if missing:
        raise DistilvecError(
            f"{model} does not have {len(missing)} of the {len(weights)} weights in its config.json, such as "
            f"{missing[0]}; they would be random numbers.",
            trust or "Copy the whole model again, or correct its config.json (num_hidden_layers).",
        )
    first_layer = {_LAYER.sub(".0.", weight) for weight in weights}
    surplus = sorted(weight for weight in report["unexpected_keys"] if _LAYER.sub(".0.", weight) in first_layer)
    if surplus:
        raise DistilvecError(
            f"{model} has weights of more layers than its config.json states, such as {surplus[0]}; they would be left "
            "out.",
            trust
            or "Correct num_hidden_layers in its config.json, or save the model with the layers that it is to have.",
        )


def _check_adapter(backbone: PreTrainedModel, report: dict[str, Any], model: ModelName) -> None:
    misfits = sorted([*report["missing_keys"], *report["unexpected_keys"]])
    if misfits:
        raise DistilvecError(
            f"{model} is an adapter that does not fit its base ({type(backbone).__name__}): {len(misfits)} of its "
            f"weights and the base's layers do not meet, such as {misfits[0]}.",
            "Correct base_model_name_or_path in its adapter_config.json, copy the adapter again, or merge it by peft "
            "(merge_and_unload) and save the whole model.",
        )


def check_weights(model: torch.nn.Module, name: str) -> None:
    """Raise DistilvecError for weights that are not finite numbers."""
    for weight, values in model.named_parameters():
        if not values.is_floating_point() or values.is_meta:  # meta: offloaded to the disk
            continue
        if not torch.isfinite(values.detach().sum(dtype=torch.float32)):
            raise DistilvecError(
                f"{name} has weights that are not finite numbers: {weight}.", "Copy or train the model again."
            )


def refuse_several_parts(backbone: Any, name: str) -> None:
    """Raise DistilvecError for a model that no student can be cut from: texts and images (or sounds) have parts each.

    CLIP, SigLIP, CLAP and their like have `get_text_features` for the part that reads texts; the layers and tables that
    a student is cut from would be those of any part. As the teacher of another model they work.
    """
    if hasattr(backbone, "get_text_features"):
        raise DistilvecError(
            f"{name} ({type(backbone).__name__}) has a part for texts beside others, so that no student can be cut "
            "from it.",
            "Name a text model to begin with (--student, student.model); this one can teach it.",
        )


# -- tokens, lengths and vectors ---------------------------------------------------------------------------------------


def check_model(model: Any, name: str) -> None:
    """Raise DistilvecError for weights, sizes, tokens and lengths with which no model can work."""
    check_weights(model, name)
    sizes = {"truncate_dim": model.truncate_dim, "embedding_dimension": stated_width(model)}
    for setting, size in sizes.items():
        if size is not None and (not isinstance(size, int | float) or size < 1):
            raise DistilvecError(
                f"{name} states {setting} {size!r}; expected a number of 1 or more.",
                "Correct its settings, or save the model again.",
            )
    if not isinstance(getattr(model[0], "tokenizer", None), (PreTrainedTokenizerBase, Tokenizer)):
        return
    tokenizer = text_tokenizer(model)
    check_tokenizer(tokenizer, name)
    special = 0 if is_static(model) else tokenizer.num_special_tokens_to_add(pair=False)
    if max_length(model) <= special:
        raise DistilvecError(
            f"{name} reads {max_length(model)} tokens, of which {special} are special tokens: no text is left.",
            "Correct max_seq_length in its sentence_bert_config.json, or model_max_length in tokenizer_config.json.",
        )
    added = tokenizer.added_tokens_decoder  # they may be marks of images, and are refused in a text
    beyond = [token for number, token in tokens_without_row(model).items() if number not in added]
    if beyond:
        raise DistilvecError(
            f"the tokenizer of {name} has {len(tokenizer):,} tokens, and the model's table has no row for "
            f"{len(beyond):,} of them, such as '{beyond[0]}'.",
            "Take the tokenizer that belongs to the model.",
        )


def check_tokenizer(tokenizer: Any, name: str) -> None:
    """Raise DistilvecError for a tokenizer of special tokens alone, which transformers makes if files are missing."""
    if len(tokenizer) <= len(set(tokenizer.all_special_ids) | set(getattr(tokenizer, "added_tokens_decoder", ()))):
        raise DistilvecError(
            f"no tokenizer in {name}: its files are missing or hold only special tokens.",
            "Expected a folder or an id on the hub.",
        )


def check_vector(vector: Any, model: Any, name: str) -> None:
    """Raise DistilvecError if a vector that the model gave is not finite, or of another width than it states."""
    vector = torch.as_tensor(vector)
    if not torch.isfinite(vector).all():
        raise DistilvecError(f"{name} gives vectors that are not finite numbers.", "Copy or train the model again.")
    stated_dims, width = stated_width(model), vector.shape[-1]
    if stated_dims is not None and width not in (stated_dims, model.get_embedding_dimension()):
        raise DistilvecError(
            f"{name} states vectors of {stated_dims} dimensions and gives {width}, which would be cut in silence.",
            "Correct the dimension of its pooling (1_Pooling/config.json), or save the model again.",
        )


def stated_width(model: Any) -> int | None:
    """Return the width that the last module with one states, without `truncate_dim`, which cuts on purpose."""
    for module in reversed(list(model)):
        width = getattr(module, "get_embedding_dimension", lambda: None)()
        if width is not None:
            return int(width)
    return None
