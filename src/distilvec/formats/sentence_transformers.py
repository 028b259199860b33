"""Portable student folders, read alike by sentence-transformers 5.1 to 6 and transformers 4.57 to 5.

sentence-transformers 5.4 and transformers 5 changed module names, pooling and length settings, the tokenizer's class
and RoPE settings. Older readers fail on such folders, or load another model without a warning.

A student with experts comes with the file that defines them, which plain sentence-transformers runs with
`trust_remote_code=True`. distilvec.load and ONNX need no such trust.

Limits: modules are a Transformer or a StaticEmbedding, and further modules of sentence-transformers or Experts. Those
that are neither Pooling, Dense nor Normalize are written by themselves.
transformers 4 reads a ModernBERT only with full attention in every n-th layer, beginning with the first.

Two models may share a folder, one tower for queries and one for documents, which the Router reads:

modules.json  router_config.json     read alike by sentence-transformers 5.1 to 6
query/  document/                    the towers, each a portable model folder of its own
"""

from __future__ import annotations

import copy
import inspect
import json
import os
import shutil
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import sentence_transformers
import torch
import transformers
from safetensors import SafetensorError
from safetensors.torch import save_file
from sentence_transformers import SentenceTransformer
from transformers import PreTrainedTokenizerBase

from distilvec.core.errors import DistilvecError, about, first_line
from distilvec.core.files import remove, scratch, write_file
from distilvec.core.hashing import checksum_once
from distilvec.core.info import UNLIMITED, Role
from distilvec.formats import replace
from distilvec.formats.read_back import check_saved
from distilvec.formats.replace import recover_student as recover_student
from distilvec.models.checks import stated_width
from distilvec.models.experts import Experts
from distilvec.models.load import EXPERTS_FILE, EXPERTS_TYPE
from distilvec.students.after_pooling import first_dims_layer

POOLING_FLAGS = {
    "cls": "pooling_mode_cls_token",
    "mean": "pooling_mode_mean_tokens",
    "max": "pooling_mode_max_tokens",
    "mean_sqrt_len_tokens": "pooling_mode_mean_sqrt_len_tokens",
    "weightedmean": "pooling_mode_weightedmean_tokens",
    "lasttoken": "pooling_mode_lasttoken",
}
FIRST = ("Transformer", "StaticEmbedding")
SETTINGS = "config_sentence_transformers.json"
ROLES = ("bos", "eos", "unk", "sep", "pad", "cls", "mask")  # of special tokens
ROUTER_TYPE = "sentence_transformers.models.Router"
DEFAULT_ROUTE = "document"  # the route of `encode`, as in Router.for_query_document


def save_student(
    model: SentenceTransformer,
    folder: Path,
    distillation: dict[str, Any],
    card: str,
    extra_files: Callable[[Path], None] = lambda folder: None,
    texts: Sequence[str] | None = (),
) -> None:
    """Write the student, `distillation.json` and the model card (`README.md`) as `folder`, whole or not at all.

    Files that distilvec did not write stay. If nothing would change, nothing is written. `distillation.json` gets the
    checksums of all other files (`files`). Weights are fp32. `extra_files` may write further files
    into the folder that it gets. What was written is read back and compared (formats/read_back.py), on some `texts` as
    well; with None it is not, as of a student whose training goes on.
    """

    def write(new: Path) -> None:
        saved = in_float32(model)
        write_modules(saved, new)
        extra_files(new)
        if texts is not None:
            check_saved(new, saved, texts)

    save_folder(folder, write, distillation, card)


def save_folder(folder: Path, write: Callable[[Path], None], distillation: dict[str, Any], card: str) -> None:
    """Replace `folder` by a new folder with the files of `write`, the card and the record; see `save_student`."""
    with about("", folder):
        recover_student(folder)
    replace.check_replaceable(folder)
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
        write_model_json(new / replace.RECORD, {**distillation, replace.FILES: replace.checksums(new)})
        if replace.is_unchanged(target, replace.read_record(new) or {}):
            return
        _sync_tree(new)  # before the move: a name on the disk must never lead to content that is not there yet
        replace.replace_folder(new, target)
    except (OSError, SafetensorError) as error:
        raise DistilvecError(
            f"cannot write the student to {folder}: {first_line(error)}. The earlier content is kept.",
            "Free space or choose another folder.",
        ) from error
    finally:
        remove(new)


def finish_student(
    folder: Path, model: SentenceTransformer, distillation: dict[str, Any], card: str, texts: Sequence[str] = ()
) -> None:
    """Replace the record and the model card of a saved student, and how it says that vectors are compared.

    Its other files are linked into the new save, which is read back and compared with the `model` that was loaded of
    them. Errors as `save_student`.
    """

    def write(new: Path) -> None:
        for name in (replace.read_record(folder) or {}).get(replace.FILES, ()):
            if name != "README.md":
                replace.link(folder / name, new / name)
        path = new / SETTINGS
        settings = json.loads(path.read_text(encoding="utf-8"))
        if settings.get("similarity_fn_name") != model.similarity_fn_name:
            path.unlink()  # a link: the earlier student keeps its own file
            write_model_json(path, {**settings, "similarity_fn_name": model.similarity_fn_name})
        check_saved(new, model, texts)

    save_folder(folder, write, distillation, card)


def replace_card(folder: Path, card: str) -> None:
    """Write the model card of a saved student again, and its checksum: the next save would take it for another's."""
    path = folder / "README.md"
    write_file(path, card)
    record = replace.read_record(folder) or {}
    if replace.FILES in record:
        record[replace.FILES][path.name] = checksum_once(path)
        write_file(folder / replace.RECORD, model_json_text(record))


def in_float32(model: SentenceTransformer) -> SentenceTransformer:
    """Return the model itself if its weights are fp32, else an fp32 copy."""
    if all(value.dtype == torch.float32 for value in model.state_dict().values() if value.is_floating_point()):
        return model
    return copy.deepcopy(model).float()


def write_modules(model: SentenceTransformer, folder: Path) -> None:
    """Write modules.json and the modules into a folder; errors as `save_student`."""
    if any(isinstance(module, Experts) for module in model):
        shutil.copyfile(inspect.getfile(Experts), folder / EXPERTS_FILE)
    modules = list(model)
    width, dim = stated_width(model), model.truncate_dim
    if width is not None and dim is not None and dim < width:  # a setting that versions before 6 do not read
        modules.append(first_dims_layer(width, dim))
    entries = []
    for number, module in enumerate(modules):
        kind = type(module).__name__
        is_experts = isinstance(module, Experts)
        is_stock = type(module).__module__.startswith("sentence_transformers.")
        if not (is_experts or is_stock) or (kind in FIRST) != (number == 0):
            raise DistilvecError(
                f"module {number} is a {kind} of {type(module).__module__}; a student is a Transformer or a "
                "StaticEmbedding, and further modules of sentence-transformers.",
                "Name a model without it.",
                key="student.model",
            )
        path = f"{number}_{kind}" if number else ""
        (folder / path).mkdir(exist_ok=True)
        write = _WRITERS.get(kind, _write_as_it_is)
        write(module, folder / path)
        # The old name of the class, which all versions know; the one of 5.4 and later is unknown to earlier ones
        reference = EXPERTS_TYPE if is_experts else f"sentence_transformers.models.{kind}"
        entries.append({"idx": number, "name": str(number), "path": path, "type": reference})
    write_model_json(folder / "modules.json", entries)
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
    write_model_json(folder / SETTINGS, settings)


def _write_transformer(transformer: Any, folder: Path) -> None:
    backbone = transformer.auto_model
    tokenizer = transformer.tokenizer
    length = transformer.max_seq_length
    backbone.save_pretrained(str(folder))
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    write_model_json(folder / "config.json", portable_config(config))
    tokenizer.save_pretrained(str(folder))
    if not (folder / "tokenizer.json").exists():
        raise DistilvecError(
            "the student's tokenizer is slow, without tokenizer.json.",
            "Take a model with a fast one.",
            key="student.tokenizer",
        )
    state = json.loads((folder / "tokenizer.json").read_text(encoding="utf-8"))
    # Settings of the last call, which would apply to every reader's calls
    state["truncation"] = None
    state["padding"] = None
    write_model_json(folder / "tokenizer.json", state)
    reads_token_types = "token_type_ids" in inspect.signature(backbone.forward).parameters
    config = tokenizer_config(tokenizer, length, reads_token_types)
    write_model_json(folder / "tokenizer_config.json", config)
    special = {key: config[key] for key in config if key.removesuffix("_token") in ROLES}
    write_model_json(folder / "special_tokens_map.json", special)  # fastembed before 0.9 reads nothing else
    if length is not None and length > UNLIMITED:
        length = None  # such numbers overflow in readers
    settings = {"max_seq_length": length, "do_lower_case": bool(transformer.do_lower_case)}
    write_model_json(folder / "sentence_bert_config.json", settings)


def _write_as_it_is(module: Any, folder: Path) -> None:
    """Let a module write itself: its files are the same in all versions."""
    module.save(str(folder))


def _write_pooling(pooling: Any, folder: Path) -> None:
    """Write config.json with one flag per mode."""
    modes = pooling.pooling_mode
    if isinstance(modes, str):
        modes = (modes,)
    flags = {flag: mode in modes for mode, flag in POOLING_FLAGS.items()}
    config = {"word_embedding_dimension": pooling.embedding_dimension, **flags}
    write_model_json(folder / "config.json", {**config, "include_prompt": pooling.include_prompt})


def _write_dense(dense: Any, folder: Path) -> None:
    config = dense.get_config_dict()
    portable = {name: config.pop(name) for name in ("in_features", "out_features", "bias", "activation_function")}
    # What is left are settings of newer readers. They are written where they change anything: an older reader has no
    # such arguments, and refuses them
    features = {name: value for name, value in config.items() if name in ("module_input_name", "module_output_name")}
    if set(features.values()) <= {"sentence_embedding"}:
        config = {name: value for name, value in config.items() if name not in features}
    portable |= {name: value for name, value in config.items() if value}
    write_model_json(folder / "config.json", portable)
    weights = {name: value.detach().cpu().contiguous() for name, value in dense.state_dict().items()}
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})


_WRITERS: dict[str, Callable[[Any, Path], None]] = {
    "Transformer": _write_transformer,
    "Pooling": _write_pooling,
    "Dense": _write_dense,
    "Normalize": lambda module, folder: None,
}


def tokenizer_config(tokenizer: PreTrainedTokenizerBase, max_length: int, token_types: bool) -> dict[str, Any]:
    """Return tokenizer_config.json for a tokenizer in tokenizer.json, with a class that every transformers has."""
    # Each key is here for some version of the libraries. A change needs the test with the oldest versions, too
    # (tests/formats/oldest_stack.py): a wrong key gives other tokens there, and no error.
    inputs = [name for name in tokenizer.model_input_names if token_types or name != "token_type_ids"]
    config: dict[str, Any] = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": max_length,
        "padding_side": tokenizer.padding_side,
        "truncation_side": tokenizer.truncation_side,
        "model_input_names": inputs,
        "clean_up_tokenization_spaces": bool(getattr(tokenizer, "clean_up_tokenization_spaces", False)),
    }
    pre_tokenizer = tokenizer.backend_tokenizer.pre_tokenizer
    if pre_tokenizer is not None:
        add_prefix_space = json.loads(pre_tokenizer.__getstate__()).get("add_prefix_space")
        if add_prefix_space is not None:
            # Without the key transformers 4 removes the space that a byte-level tokenizer puts before a text, and the
            # first word becomes other tokens
            config["add_prefix_space"] = add_prefix_space
    tokens = {f"{role}_token": getattr(tokenizer, f"{role}_token", None) for role in ROLES}
    config |= {role: str(token) for role, token in tokens.items() if token is not None}
    # transformers 5 renamed the list; it still reads the old key, transformers 4 reads no other
    more = getattr(tokenizer, "extra_special_tokens", None) or getattr(tokenizer, "additional_special_tokens", None)
    if more:
        config["additional_special_tokens"] = [str(token) for token in more]
    return config


def portable_config(config: dict[str, Any]) -> dict[str, Any]:
    """Return config.json with the keys of transformers 4 in addition to those of transformers 5.

    Without them transformers 4 loads the model with its defaults and says nothing: a RoPE base of 10000, global
    attention in every third layer. The keys of transformers 5 stay beside them.
    """
    portable = dict(config)
    if "dtype" in portable:  # both versions read the old name
        portable["torch_dtype"] = portable.pop("dtype")
    if portable.get("is_causal") is False:
        warnings.warn(
            "transformers 4 ignores is_causal in config.json and would run this model with a causal mask; the model "
            "needs transformers 5.",
            stacklevel=2,
        )
    portable.update(_rope_keys(portable.get("model_type"), portable.get("rope_parameters") or {}))
    if portable.get("model_type") == "modernbert" and portable.get("layer_types"):
        # transformers 5 lists the kind of each layer, transformers 4 has one number n: full attention in the layers
        # 0, n, 2n, ... The number that stands there is that of the model before its layers were pruned.
        portable.pop("global_attn_every_n_layers", None)
        every = _full_attention_interval(portable["layer_types"])
        if every is not None:
            portable["global_attn_every_n_layers"] = every
        else:
            warnings.warn(
                f"transformers 4 cannot express a ModernBERT with layers {portable['layer_types']}; this student needs "
                "transformers 5. For older readers every n-th layer, beginning with the first, needs full attention.",
                stacklevel=2,
            )
    return dict(sorted(portable.items()))


def _full_attention_interval(layer_types: list[str]) -> int | None:
    """Return the least n such that exactly the layers 0, n, 2n, ... have full attention; None without such an n."""
    is_full = [kind == "full_attention" for kind in layer_types]
    for every in range(1, len(is_full) + 1):
        if is_full == [layer % every == 0 for layer in range(len(is_full))]:
            return every
    return None


def _rope_keys(model_type: str | None, rope: dict[str, Any]) -> dict[str, Any]:
    """Return transformers 4's RoPE settings: one base, or one for full and one for sliding attention.

    transformers 5 has all of them in `rope_parameters`, by the kind of attention if there are two.
    """
    full = rope.get("full_attention", rope)
    sliding = rope.get("sliding_attention")
    if "rope_theta" not in full:
        return {}
    # ModernBERT has names of its own; with two bases the other models (Gemma 3) call the second one local
    full_name = "rope_theta"
    sliding_name = "rope_local_base_freq"
    if model_type == "modernbert" and sliding is not None:
        full_name = "global_rope_theta"
        sliding_name = "local_rope_theta"
    keys = {full_name: full["rope_theta"]}
    if sliding is not None:
        keys[sliding_name] = sliding["rope_theta"]
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


def write_model_json(path: Path, content: Any) -> None:
    """Write JSON as sentence-transformers does."""
    path.write_text(model_json_text(content), encoding="utf-8")


def model_json_text(content: Any) -> str:
    """Return JSON as sentence-transformers writes it."""
    return json.dumps(content, indent=2, ensure_ascii=False) + "\n"


def save_router(
    query: SentenceTransformer,
    document: SentenceTransformer,
    folder: Path,
    distillation: dict[str, Any],
    card: str,
) -> None:
    """Write both towers as one model that `encode_query` and `encode_document` route to, whole or not at all.

    Prompts and similarity are the towers' own.
    """
    towers: dict[Role, SentenceTransformer] = {"query": query, "document": document}
    prompts: dict[str, str] = {role: (tower.prompts or {}).get(role, "") for role, tower in towers.items()}

    def write(new: Path) -> None:
        for role, tower in towers.items():
            (new / role).mkdir()
            _write_tower(tower, new / role, role)
        write_model_json(new / "modules.json", [{"idx": 0, "name": "0", "path": "", "type": ROUTER_TYPE}])
        write_model_json(new / "router_config.json", _router_config(new, towers))
        write_settings(new, prompts, query.similarity_fn_name)
        check_saved(new, towers, ())

    save_folder(folder, write, distillation, card)


def _write_tower(tower: SentenceTransformer, folder: Path, role: str) -> None:
    if any(isinstance(module, Experts) for module in tower):
        raise DistilvecError(
            f"the {role} tower has experts, which sentence-transformers cannot load in a Router.",
            "Use both models by themselves.",
        )
    try:
        write_modules(in_float32(tower), folder)
    except DistilvecError as error:
        raise DistilvecError(f"the {role} tower cannot be saved: {error.problem}", error.fix) from error


def _router_config(folder: Path, towers: Mapping[Role, SentenceTransformer]) -> dict[str, Any]:
    """Return the Router's settings; a module's id is its folder, relative to the Router's."""
    types: dict[str, str] = {}
    structure: dict[str, list[str]] = {}
    for role in towers:
        modules = json.loads((folder / role / "modules.json").read_text(encoding="utf-8"))
        tower = {(Path(role) / module["path"]).as_posix(): module["type"] for module in modules}
        types |= tower
        structure[role] = list(tower)
    return {
        "types": types,
        "structure": structure,
        "parameters": {"default_route": DEFAULT_ROUTE, "allow_empty_key": True},
    }
