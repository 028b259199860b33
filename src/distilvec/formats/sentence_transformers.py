"""Portable student folders, read alike by sentence-transformers 5.1 to 6 and transformers 4.57 to 5.

sentence-transformers 5.4 and transformers 5 changed module names, pooling and length settings, the tokenizer's class
and RoPE settings. Older readers fail on such folders, or load another model without a warning.

A student with experts comes with the file that defines them, which plain sentence-transformers runs with
`trust_remote_code=True`. distilvec.load and ONNX need no such trust.

Limits: modules are Transformer, Pooling, Experts, Dense and Normalize. transformers 4 reads a ModernBERT only with full
attention in every n-th layer, beginning with the first.
"""

from __future__ import annotations

import copy
import inspect
import json
import os
import shutil
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import sentence_transformers
import torch
import transformers
from safetensors import SafetensorError
from safetensors.torch import save_file
from sentence_transformers import SentenceTransformer
from transformers import PreTrainedTokenizerBase

from distilvec.core.errors import DistilvecError, first_line
from distilvec.core.files import remove, scratch
from distilvec.core.info import UNLIMITED
from distilvec.formats import replace
from distilvec.formats.replace import recover_student as recover_student
from distilvec.models.experts import Experts
from distilvec.models.load import EXPERTS_FILE, EXPERTS_TYPE, OURS

Layout = Literal["portable", "current"]

POOLING_FLAGS = {
    "cls": "pooling_mode_cls_token",
    "mean": "pooling_mode_mean_tokens",
    "max": "pooling_mode_max_tokens",
    "mean_sqrt_len_tokens": "pooling_mode_mean_sqrt_len_tokens",
    "weightedmean": "pooling_mode_weightedmean_tokens",
    "lasttoken": "pooling_mode_lasttoken",
}
SETTINGS = "config_sentence_transformers.json"
ROLES = ("bos", "eos", "unk", "sep", "pad", "cls", "mask")  # of special tokens


def save_student(
    model: SentenceTransformer,
    folder: Path,
    distillation: dict[str, Any],
    card: str,
    layout: Layout = "portable",
    extra_files: Callable[[Path], None] = lambda folder: None,
    key: str = "student",
) -> None:
    """Write the student, `distillation.json` and the model card (`README.md`) as `folder`, whole or not at all.

    Files that distilvec did not write stay. If nothing would change, nothing is written. `distillation.json` gets the
    checksums of all other files (`files`). Weights are fp32. `layout="current"` keeps the files of the installed
    sentence-transformers. `extra_files` may write further files into the folder that it gets.
    Errors: DistilvecError with `key` if `folder` holds anything but a model that distilvec wrote, cannot be written, or
    the model has a module that the portable layout cannot hold; the earlier content is then untouched.
    """

    def write(new: Path) -> None:
        write_modules(in_float32(model), new, layout)
        extra_files(new)

    save_folder(folder, write, distillation, card, key)


def save_folder(
    folder: Path, write: Callable[[Path], None], distillation: dict[str, Any], card: str, key: str = "student"
) -> None:
    """Replace `folder` by a new folder with the files of `write`, the card and the record; see `save_student`."""
    recover_student(folder)
    replace.check_replaceable(folder, key)
    target = replace.real(folder)
    new = scratch(target)
    try:
        remove(new)
        new.mkdir(parents=True)
        (new / "README.md").write_text(card, encoding="utf-8")
        write(new)
        mode = (new / "README.md").stat().st_mode
        for weights in new.rglob("*.safetensors"):  # safetensors makes files that only their owner reads
            weights.chmod(mode)
        write_json(new / replace.RECORD, {**distillation, replace.FILES: replace.checksums(new)})
        if replace.is_unchanged(target, replace.read_record(new) or {}):
            return
        if target.is_dir():
            replace.carry_over(target, new)
        _sync_tree(new)
        replace.replace_folder(new, target)
    except (OSError, SafetensorError) as error:
        raise DistilvecError(
            key,
            f"cannot write the student to {folder}: {first_line(error)}. The earlier content is kept.",
            "Free space or choose another folder.",
        ) from error
    finally:
        remove(new)


def replace_texts(folder: Path, distillation: dict[str, Any], card: str, similarity: str, key: str = "student") -> None:
    """Replace the record and the model card of a saved student, and how it says that vectors are compared.

    The model is not loaded: its files are linked. Whole or not at all, as `save_student`, with the same errors.
    """

    def write(new: Path) -> None:
        for name in (replace.read_record(folder) or {}).get(replace.FILES, ()):
            if name != "README.md":
                replace.link(folder / name, new / name)
        for module in json.loads((new / "modules.json").read_text(encoding="utf-8")):
            (new / module["path"]).mkdir(exist_ok=True)  # a normalisation has a folder without files
        path = new / SETTINGS
        settings = json.loads(path.read_text(encoding="utf-8"))
        if settings.get("similarity_fn_name") != similarity:
            path.unlink()  # a link: the earlier student keeps its own file
            write_json(path, {**settings, "similarity_fn_name": similarity})

    save_folder(folder, write, distillation, card, key)


def in_float32(model: SentenceTransformer) -> SentenceTransformer:
    """Return the model itself if its weights are fp32, else an fp32 copy."""
    if all(value.dtype == torch.float32 for value in model.state_dict().values() if value.is_floating_point()):
        return model
    return copy.deepcopy(model).float()


def write_modules(model: SentenceTransformer, folder: Path, layout: Layout = "portable") -> None:
    """Write modules.json and the modules into a folder; errors as `save_student`."""
    if any(isinstance(module, Experts) for module in model):
        shutil.copyfile(inspect.getfile(Experts), folder / EXPERTS_FILE)
    if layout == "current":
        model.save_pretrained(str(folder), create_model_card=False)
        entries = json.loads((folder / "modules.json").read_text(encoding="utf-8"))
        write_json(
            folder / "modules.json",
            [{**entry, "type": EXPERTS_TYPE if entry["type"] in OURS else entry["type"]} for entry in entries],
        )
        return
    entries = []
    for number, module in enumerate(model):
        kind, ours = type(module).__name__, isinstance(module, Experts)
        if (kind == "Transformer") != (number == 0) or kind not in _WRITERS or (kind == "Experts" and not ours):
            raise DistilvecError(
                "student.model",
                f"module {number} is a {kind} of {type(module).__module__}; the portable layout is Transformer, then "
                "Pooling, Experts, Dense, Normalize.",
                "Save with layout 'current', or load a student with experts by distilvec.load.",
            )
        path = f"{number}_{kind}" if number else ""
        (folder / path).mkdir(exist_ok=True)
        _WRITERS[kind](module, folder / path)
        reference = EXPERTS_TYPE if ours else f"sentence_transformers.models.{kind}"
        entries.append({"idx": number, "name": str(number), "path": path, "type": reference})
    write_json(folder / "modules.json", entries)
    write_settings(folder, dict(model.prompts), model.similarity_fn_name, model.default_prompt_name)


def write_settings(folder: Path, prompts: dict[str, str], similarity: str | None, default: str | None = None) -> None:
    """Write config_sentence_transformers.json."""
    versions = {
        "sentence_transformers": sentence_transformers.__version__,
        "transformers": transformers.__version__,
        "pytorch": torch.__version__,
    }
    settings = {
        "model_type": "SentenceTransformer",
        "__version__": versions,
        "prompts": prompts,
        "default_prompt_name": default,
        "similarity_fn_name": similarity,
    }
    write_json(folder / SETTINGS, settings)


def _write_transformer(transformer: Any, folder: Path) -> None:
    backbone, tokenizer, length = transformer.auto_model, transformer.tokenizer, transformer.max_seq_length
    backbone.save_pretrained(str(folder))
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    write_json(folder / "config.json", portable_config(config))
    tokenizer.save_pretrained(str(folder))
    if not (folder / "tokenizer.json").exists():
        raise DistilvecError(
            "student.tokenizer",
            "the student's tokenizer is slow, without tokenizer.json.",
            "Take a model with a fast one.",
        )
    state = json.loads((folder / "tokenizer.json").read_text(encoding="utf-8"))
    state["truncation"] = state["padding"] = None  # settings of the last call
    write_json(folder / "tokenizer.json", state)
    token_types = "token_type_ids" in inspect.signature(backbone.forward).parameters
    about = tokenizer_config(tokenizer, length, token_types)
    write_json(folder / "tokenizer_config.json", about)
    special = [key for key in about if key.removesuffix("_token") in ROLES]
    write_json(folder / "special_tokens_map.json", {key: about[key] for key in special})  # fastembed before 0.9
    stated = length if length is not None and length <= UNLIMITED else None  # larger numbers overflow in readers
    settings = {"max_seq_length": stated, "do_lower_case": bool(transformer.do_lower_case)}
    write_json(folder / "sentence_bert_config.json", settings)


def _write_pooling(pooling: Any, folder: Path) -> None:
    """Write config.json with one flag per mode."""
    modes = (pooling.pooling_mode,) if isinstance(pooling.pooling_mode, str) else tuple(pooling.pooling_mode)
    flags = {flag: mode in modes for mode, flag in POOLING_FLAGS.items()}
    config = {"word_embedding_dimension": pooling.embedding_dimension, **flags}
    write_json(folder / "config.json", {**config, "include_prompt": pooling.include_prompt})


def _write_dense(dense: Any, folder: Path) -> None:
    config = dense.get_config_dict()
    kept = {name: config.pop(name) for name in ("in_features", "out_features", "bias", "activation_function")}
    names = {config.pop(f"module_{end}_name", "sentence_embedding") for end in ("input", "output")}
    if names != {"sentence_embedding"} or any(config.values()):
        raise DistilvecError(
            "student.dense",
            f"the portable layout cannot hold a Dense module with {config or names}.",
            "Save with layout 'current'.",
        )
    write_json(folder / "config.json", kept)
    weights = {name: value.detach().cpu().contiguous() for name, value in dense.state_dict().items()}
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})


_WRITERS: dict[str, Callable[[Any, Path], None]] = {
    "Transformer": _write_transformer,
    "Pooling": _write_pooling,
    "Experts": lambda experts, folder: experts.save(str(folder)),
    "Dense": _write_dense,
    "Normalize": lambda module, folder: None,
}


def tokenizer_config(tokenizer: PreTrainedTokenizerBase, max_length: int, token_types: bool) -> dict[str, Any]:
    """Return tokenizer_config.json for a tokenizer in tokenizer.json, with a class that every transformers has."""
    inputs = [name for name in tokenizer.model_input_names if token_types or name != "token_type_ids"]
    config: dict[str, Any] = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": max_length,
        "padding_side": tokenizer.padding_side,
        "truncation_side": tokenizer.truncation_side,
        "model_input_names": inputs,
        "clean_up_tokenization_spaces": bool(getattr(tokenizer, "clean_up_tokenization_spaces", False)),
    }
    before = tokenizer.backend_tokenizer.pre_tokenizer
    if before is not None and (space := json.loads(before.__getstate__()).get("add_prefix_space")) is not None:
        config["add_prefix_space"] = space  # without the key transformers 4 removes the space of byte-level tokenizers
    tokens = {f"{role}_token": getattr(tokenizer, f"{role}_token", None) for role in ROLES}
    config |= {role: str(token) for role, token in tokens.items() if token is not None}
    more = getattr(tokenizer, "extra_special_tokens", None) or getattr(tokenizer, "additional_special_tokens", None)
    if more:
        config["additional_special_tokens"] = [str(token) for token in more]
    return config


def portable_config(config: dict[str, Any]) -> dict[str, Any]:
    """Return config.json with the keys of transformers 4 in addition to those of transformers 5.

    Without them transformers 4 uses its defaults: a RoPE base of 10000, global attention in every third layer.
    """
    portable = dict(config)
    if "dtype" in portable:
        portable["torch_dtype"] = portable.pop("dtype")
    if portable.get("is_causal") is False:
        warnings.warn(
            "transformers 4 ignores is_causal in config.json and would run this model with a causal mask; the model "
            "needs transformers 5.",
            stacklevel=2,
        )
    portable.update(_rope_keys(portable.get("model_type"), portable.get("rope_parameters") or {}))
    if portable.get("model_type") == "modernbert" and portable.get("layer_types"):
        full = [kind == "full_attention" for kind in portable["layer_types"]]
        steps = [n for n in range(1, len(full) + 1) if full == [layer % n == 0 for layer in range(len(full))]]
        portable.pop("global_attn_every_n_layers", None)  # of the model before its layers were pruned
        if steps:
            portable["global_attn_every_n_layers"] = steps[0]
        else:
            warnings.warn(
                f"transformers 4 cannot express a ModernBERT with layers {portable['layer_types']}; this student needs "
                "transformers 5. For older readers every n-th layer, beginning with the first, needs full attention.",
                stacklevel=2,
            )
    return dict(sorted(portable.items()))


def _rope_keys(model_type: str | None, rope: dict[str, Any]) -> dict[str, Any]:
    """Return transformers 4's RoPE settings: one base, or one for full and one for sliding attention."""
    full, sliding = rope.get("full_attention", rope), rope.get("sliding_attention")
    if "rope_theta" not in full:
        return {}
    names = ("rope_theta", "rope_local_base_freq")
    if model_type == "modernbert" and sliding is not None:
        names = ("global_rope_theta", "local_rope_theta")
    keys = {names[0]: full["rope_theta"]}
    if sliding is not None:
        keys[names[1]] = sliding["rope_theta"]
    if full.get("rope_type", "default") != "default":
        keys["rope_scaling"] = {name: value for name, value in full.items() if name != "rope_theta"}
    return keys


def _sync_tree(folder: Path) -> None:
    """Wait until all files of a folder are on the disk."""
    for path in [*folder.rglob("*"), folder]:
        if not path.is_symlink():
            handle = os.open(path, os.O_RDONLY)
            try:
                os.fsync(handle)
            finally:
                os.close(handle)


def write_json(path: Path, content: Any) -> None:
    """Write JSON as sentence-transformers does."""
    path.write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
