"""Saves a student as a folder that old and new sentence-transformers, transformers and servers read alike.

sentence-transformers 5.4 and transformers 5 each changed what they write: module names, pooling and length settings, the
tokenizer's class, RoPE settings. Older readers then fail, or go on with another model (a missing linear layer, a RoPE base
of 10000). The portable layout is the one all of them read: sentence-transformers 5.1 and 6, transformers 4.57 and 5.

A mixture of experts is the one module that is not sentence-transformers' own: the file that defines it comes along, and plain
sentence-transformers runs it where `trust_remote_code=True` says so. distilvec.load and ONNX need no such thing.

Limits, all of the old readers: the portable layout holds Transformer, Pooling, Experts, Dense and Normalize modules only, and
transformers 4 can express a ModernBERT only if global attention falls on every n-th layer, beginning with the first; any
other cut of one loads in transformers 5 alone, and saving it says so.
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
from distilvec.formats.replace import (
    FILES,
    RECORD,
    carry_over,
    check_replaceable,
    checksums,
    is_unchanged,
    read_record,
    real,
    replace_folder,
)
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
SPECIAL_TOKENS = ("bos", "eos", "unk", "sep", "pad", "cls", "mask")


def save_student(
    model: SentenceTransformer,
    folder: Path,
    distillation: dict[str, Any],
    card: str,
    layout: Layout = "portable",
    beside: Callable[[Path], None] = lambda folder: None,
    key: str = "student",
) -> None:
    """Write the student, `distillation.json` and the model card (`README.md`) as `folder`, whole or not at all.

    The folder is written under a scratch name, synced to disk and renamed. An earlier student there is replaced at the end, but
    for files that distilvec did not write, which stay; where nothing would change, the folder is left alone. `distillation.json`
    gets the checksums of all other files (`files`). Weights are saved in fp32. `layout="current"` keeps the installed
    sentence-transformers' own files. The folder loads with `SentenceTransformer(folder)` alone, or, where the student has experts,
    with `trust_remote_code=True`. `beside` may write further files into the folder before it takes its place.
    Errors: DistilvecError with `key` if `folder` holds something else than a model that distilvec wrote, cannot be written, or the
    model has a module that the portable layout cannot hold; what was there before is then untouched.
    """
    recover_student(folder)
    check_replaceable(folder, key)
    place = real(folder)
    new = scratch(place)
    try:
        remove(new)
        new.mkdir(parents=True)
        _write(in_float32(model), new, layout)
        (new / "README.md").write_text(card, encoding="utf-8")
        beside(new)
        mode = (new / "README.md").stat().st_mode
        for weights in new.rglob("*.safetensors"):  # safetensors gives its files to the owner alone
            weights.chmod(mode)
        _write_json(new / RECORD, {**distillation, FILES: checksums(new)})
        if is_unchanged(place, read_record(new) or {}):
            return
        if place.is_dir():
            carry_over(place, new)
        _sync_tree(new)
        replace_folder(new, place)
    except (OSError, SafetensorError) as error:
        raise DistilvecError(
            f"[{key}] cannot write the student to {folder}: {first_line(error)}. What was there before is kept. "
            "Free space or choose another folder."
        ) from error
    finally:
        remove(new)


def in_float32(model: SentenceTransformer) -> SentenceTransformer:
    """The model itself if its weights are fp32, else a copy that is."""
    if all(value.dtype == torch.float32 for value in model.state_dict().values() if value.is_floating_point()):
        return model
    return copy.deepcopy(model).float()


def _write(model: SentenceTransformer, folder: Path, layout: Layout) -> None:
    if layout == "current":
        model.save_pretrained(str(folder), create_model_card=False)
        if any(isinstance(module, Experts) for module in model):
            entries = json.loads((folder / "modules.json").read_text(encoding="utf-8"))
            _write_json(
                folder / "modules.json",
                [{**entry, "type": EXPERTS_TYPE} if entry["type"] in OURS else entry for entry in entries],
            )
            _write_experts_file(folder)
        return
    modules = list(model)
    entries = []
    for number, module in enumerate(modules):
        kind = type(module).__name__
        ours = isinstance(module, Experts)
        if (kind == "Transformer") != (number == 0) or not (
            ours or kind in ("Transformer", "Pooling", "Dense", "Normalize")
        ):
            raise DistilvecError(
                f"[student.model] the portable layout holds a Transformer, then Pooling, Experts, Dense and Normalize; module {number} "
                f"is a {kind} of {type(module).__module__}. Save with layout 'current', which newer sentence-transformers read; "
                "a student with experts must have been loaded by distilvec.load."
            )
        path = "" if number == 0 else f"{number}_{kind}"
        (folder / path).mkdir(exist_ok=True)
        entries.append(
            {
                "idx": number,
                "name": str(number),
                "path": path,
                "type": EXPERTS_TYPE if ours else f"sentence_transformers.models.{kind}",
            }
        )
        if kind == "Transformer":
            _write_transformer(module, folder)
        elif kind == "Pooling":
            _write_json(folder / path / "config.json", pooling_config(module))
        elif kind == "Dense":
            _write_dense(module, folder / path)
        elif ours:
            module.save(str(folder / path))
            _write_experts_file(folder)
    _write_json(folder / "modules.json", entries)
    versions = {
        "sentence_transformers": sentence_transformers.__version__,
        "transformers": transformers.__version__,
        "pytorch": torch.__version__,
    }
    _write_json(
        folder / "config_sentence_transformers.json",
        {
            "model_type": "SentenceTransformer",
            "__version__": versions,
            "prompts": dict(model.prompts),
            "default_prompt_name": model.default_prompt_name,
            "similarity_fn_name": model.similarity_fn_name,
        },
    )


def _write_transformer(transformer: Any, folder: Path) -> None:
    backbone, tokenizer = transformer.auto_model, transformer.tokenizer
    backbone.save_pretrained(str(folder))
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    _write_json(folder / "config.json", portable_config(config))
    tokenizer.save_pretrained(str(folder))
    if not (folder / "tokenizer.json").exists():
        raise DistilvecError(
            "[student.tokenizer] the student's tokenizer has no tokenizer.json: it is no fast tokenizer. Take a model that has one."
        )
    state = json.loads((folder / "tokenizer.json").read_text(encoding="utf-8"))
    state["truncation"] = state["padding"] = None  # left over from the last call, not a property of the tokenizer
    _write_json(folder / "tokenizer.json", state)
    length = transformer.max_seq_length
    forward = inspect.signature(backbone.forward).parameters
    _write_json(
        folder / "tokenizer_config.json", tokenizer_config(tokenizer, length, token_types="token_type_ids" in forward)
    )
    stated = (
        length if length is not None and length <= UNLIMITED else None
    )  # a huge number stands for no limit, and overflows
    _write_json(
        folder / "sentence_bert_config.json",
        {"max_seq_length": stated, "do_lower_case": bool(transformer.do_lower_case)},
    )


def _write_dense(dense: Any, folder: Path) -> None:
    config = dense.get_config_dict()
    kept = {name: config.pop(name) for name in ("in_features", "out_features", "bias", "activation_function")}
    named = {
        config.pop("module_input_name", "sentence_embedding"),
        config.pop("module_output_name", "sentence_embedding"),
    }
    if named != {"sentence_embedding"} or any(config.values()):
        raise DistilvecError(
            f"[student.dense] the portable layout cannot hold a Dense module with {config or named}. Save with layout 'current'."
        )
    _write_json(folder / "config.json", kept)
    weights = {name: value.detach().cpu().contiguous() for name, value in dense.state_dict().items()}
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})


def _write_experts_file(folder: Path) -> None:
    shutil.copyfile(inspect.getfile(Experts), folder / EXPERTS_FILE)


def tokenizer_config(tokenizer: PreTrainedTokenizerBase, max_length: int, token_types: bool) -> dict[str, Any]:
    """tokenizer_config.json for a tokenizer that lives in tokenizer.json: a class every transformers knows, and its roles."""
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
        config["add_prefix_space"] = space  # which transformers 4 otherwise takes from byte-level tokenizers
    for role in SPECIAL_TOKENS:
        token = getattr(tokenizer, f"{role}_token", None)
        if token is not None:
            config[f"{role}_token"] = str(token)
    more = getattr(tokenizer, "extra_special_tokens", None) or getattr(tokenizer, "additional_special_tokens", None)
    if more:
        config["additional_special_tokens"] = [str(token) for token in more]
    return config


def pooling_config(pooling: Any) -> dict[str, Any]:
    """1_Pooling/config.json with one flag a mode."""
    modes = (pooling.pooling_mode,) if isinstance(pooling.pooling_mode, str) else tuple(pooling.pooling_mode)
    flags = {flag: mode in modes for mode, flag in POOLING_FLAGS.items()}
    return {"word_embedding_dimension": pooling.embedding_dimension, **flags, "include_prompt": pooling.include_prompt}


def portable_config(config: dict[str, Any]) -> dict[str, Any]:
    """config.json with the keys of transformers 4 beside those of transformers 5, which reads both.

    Without them transformers 4 takes its defaults in silence: a RoPE base of 10000, global attention in every third layer.
    """
    portable = dict(config)
    if "dtype" in portable:
        portable["torch_dtype"] = portable.pop("dtype")
    portable.update(_rope_keys(portable.get("model_type"), portable.get("rope_parameters") or {}))
    if portable.get("model_type") == "modernbert" and portable.get("layer_types"):
        kinds = portable["layer_types"]
        portable.pop("global_attn_every_n_layers", None)  # of the model it was cut from
        steps = [
            n
            for n in range(1, len(kinds) + 1)
            if all((kind == "full_attention") == (i % n == 0) for i, kind in enumerate(kinds))
        ]
        if steps:
            portable["global_attn_every_n_layers"] = steps[0]
        else:
            warnings.warn(
                f"transformers 4 cannot express a ModernBERT with layers {kinds}; this student needs transformers 5. "
                "For older readers keep layers such that every n-th, beginning with the first, has full attention.",
                stacklevel=2,
            )
    return dict(sorted(portable.items()))


def _rope_keys(model_type: str | None, rope: dict[str, Any]) -> dict[str, Any]:
    """transformers 4's names for RoPE settings: one base, or one for full and one for sliding attention."""
    full, sliding = rope.get("full_attention", rope), rope.get("sliding_attention")
    if "rope_theta" not in full:
        return {}
    keys = {"rope_theta": full["rope_theta"]}
    if sliding is not None:
        full_name, sliding_name = {"modernbert": ("global_rope_theta", "local_rope_theta")}.get(
            str(model_type), ("rope_theta", "rope_local_base_freq")
        )
        keys = {full_name: full["rope_theta"], sliding_name: sliding["rope_theta"]}
    if full.get("rope_type", "default") != "default":
        keys["rope_scaling"] = {name: value for name, value in full.items() if name != "rope_theta"}
    return keys


def _sync_tree(folder: Path) -> None:
    for path in [*folder.rglob("*"), folder]:
        if not path.is_symlink():
            _sync(path)


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _write_json(path: Path, content: Any) -> None:
    path.write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
