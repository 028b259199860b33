"""A model on this machine as a teacher, and as the embedder of evaluation: the vectors `encode` gives, faster.

Loading settles what the vectors depend on (pooling, prompts, length, precision); the manifest writes it down.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.models import Normalize, Pooling, Transformer
from sentence_transformers.util import is_sentence_transformer_model
from transformers import AutoConfig
from transformers.utils import cached_file

from distilvec.config.schema import Role, TeacherSection
from distilvec.core.batch import Text
from distilvec.core.device import pick_device, warn_slow_bf16
from distilvec.core.errors import DistilvecError
from distilvec.core.info import UNLIMITED
from distilvec.models.limits import position_limit
from distilvec.models.load import BUILTIN as BUILTIN
from distilvec.models.load import evaluating, load, no_pooling, with_owner
from distilvec.models.load import resolve_model as resolve_model
from distilvec.models.unreadable import check_model, check_outputs, readable
from distilvec.teachers.bidirectional import lift_causal_mask
from distilvec.teachers.cache.manifest import Manifest, hash_folder, hash_modules
from distilvec.teachers.cache.validate import cut_dimensions
from distilvec.teachers.encode import Forward, runs_directly
from distilvec.teachers.fast_linear import pack_linears, use_bfloat16

_WINDOW = 16384  # texts sorted by length together
_PROMPT_NAMES: dict[Role, tuple[str, ...]] = {"query": ("query",), "document": ("document", "passage", "corpus")}
Vectors = dict[str, npt.NDArray[np.float32]]


class LocalTeacher:
    """A SentenceTransformer with its prompts; `load_teacher` and `wrap_model` make one.

    `width` counts the dimensions of an embedding after `truncate_dim` (cut, then normalised again where the model
    normalises), `pre_dense_width` those of the pooled vector before the first Dense layer, None where there is none.
    """

    def __init__(
        self,
        model: SentenceTransformer,
        name: str,
        *,
        prompts: dict[Role, str] | None = None,
        batch_tokens: int = 4096,
        truncate_dim: int | None = None,
        dtype: str = "float32",
        attention: Literal["own", "bidirectional"] = "own",
        origin: tuple[str, str | None, Path | None] | None = None,
    ) -> None:
        modules = list(model)
        self.model, self.name = model, name
        self.prompts: dict[Role, str] = {role: _own_prompt(model, role) for role in _PROMPT_NAMES} | (prompts or {})
        self.normalized = type(modules[-1]).__name__ == "Normalize"
        self.max_length = _max_length(model)
        self.truncate_dim = truncate_dim or getattr(model, "truncate_dim", None)
        full = int(model.get_embedding_dimension() or 0)
        self.width = min(full, self.truncate_dim or full)
        dense = [module for module in modules[1:] if type(module).__name__ == "Dense"]
        self.pre_dense_width: int | None = int(dense[0].in_features) if dense else None
        self._dtype, self._batch_tokens, self._attention = dtype, batch_tokens, attention
        self._origin = origin or (name, None, None)  # model, revision, folder
        self._forward = (
            Forward(model, batch_tokens, self.max_length, dtype == "bfloat16") if runs_directly(model) else None
        )
        _refuse_excluded_prompts(modules, self.prompts)

    def embed(self, texts: Sequence[str], role: Role = "document") -> npt.NDArray[np.float32]:
        """float32 [n, width] in the order of the texts, the role's prompt put in front."""
        return self.signals([self.prompts.get(role, "") + text for text in texts])["embedding"]

    def probe(self, texts: list[str]) -> npt.NDArray[np.float32]:
        """float32 [n, width] of a few texts as they are: whether the model works, before anything is made with it."""
        return self._window(texts, False, None)["embedding"]

    def signals(
        self, prompted: Sequence[Text], pre_dense: bool = False, progress: Callable[[int], None] | None = None
    ) -> Vectors:
        """ "embedding" [n, width] and, if asked for, "pre_dense" [n, pre_dense_width] of texts that hold their prompts.

        `progress(texts)` is called after every batch. Errors: DistilvecError if the model has no Dense layer to look behind.
        """
        if pre_dense and self.pre_dense_width is None:
            raise DistilvecError(
                f"[teacher.model] {self.name} has no Dense layer, so no pre-dense vectors; found modules {self._kinds()}."
            )
        parts = [
            self._window(prompted[start : start + _WINDOW], pre_dense, _from(progress, start))
            for start in range(0, len(prompted), _WINDOW)
        ]
        widths = {"embedding": self.width, **({"pre_dense": self.pre_dense_width or 0} if pre_dense else {})}
        empty = {name: np.empty((0, width), dtype=np.float32) for name, width in widths.items()}
        if len(parts) == 1:
            return parts[0]
        return {name: np.concatenate([part[name] for part in [empty, *parts]]) for name in widths}

    def manifest(self, store_dtype: str = "float16", pre_dense: bool = False) -> Manifest:
        """What these vectors depend on; `pre_dense` if such vectors are to be stored as well. Reads the model's files once."""
        model, revision, folder = self._origin
        first, tokenizer = self.model[0], getattr(self.model[0], "tokenizer", None)
        pooling = next((module.pooling_mode for module in self.model if type(module).__name__ == "Pooling"), None)
        return Manifest(
            model=model,
            revision=revision,
            weights=hash_folder(folder) if folder else hash_modules(self.model, *_settings(first, tokenizer)),
            prompts=self.prompts,
            pooling=pooling if isinstance(pooling, str | None) else "+".join(pooling),
            normalized=self.normalized,
            width=self.width,
            pre_dense_width=self.pre_dense_width if pre_dense else None,
            max_length=self.max_length,
            truncation_side=getattr(tokenizer, "truncation_side", None),
            truncate_dim=self.truncate_dim,
            compute_dtype=self._dtype,
            backend="sentence-transformers",
            store_dtype=store_dtype,
            attention=None if self._attention == "own" else self._attention,
        )

    def autocast(self) -> torch.autocast:
        """The precision the backbone is to run in."""
        return torch.autocast(self.model.device.type, torch.bfloat16, enabled=self._dtype == "bfloat16")

    def _window(
        self, prompted: Sequence[Text], pre_dense: bool, progress: Callable[[int], None] | None
    ) -> dict[str, npt.NDArray[np.float32]]:
        if self._forward is not None:
            signals = self._forward.run(prompted, pre_dense, progress)
        elif pre_dense:
            raise DistilvecError(
                f"[teacher.model] the pre-dense vectors of {self.name} cannot be read: found modules {self._kinds()}."
            )
        else:
            size = max(1, self._batch_tokens // 128)
            with evaluating(self.model), self.autocast():
                found = self.model.encode(
                    list(prompted), prompt="", batch_size=size, convert_to_tensor=True, show_progress_bar=False
                )
            signals = {"embedding": found.float().cpu().numpy()}
            if progress:
                progress(len(prompted))
        signals["embedding"] = cut_dimensions(signals["embedding"], self.width, self.normalized)
        return signals

    def _kinds(self) -> str:
        return ", ".join(type(module).__name__ for module in self.model)


def load_teacher(section: TeacherSection, device: str = "auto", key: str = "teacher.model") -> LocalTeacher:
    """The recipe's teacher: a SentenceTransformer folder or id, or a plain Hugging Face model with a stated pooling.

    `device`: auto, cpu, cuda or mps. `key` is the recipe's key or the option that names the model, for messages.
    Errors: DistilvecError if it cannot be loaded or gives no finite vectors, if a plain model comes without `pooling`, if
    `max_length` or `truncate_dim` is more than the model has.
    """
    if section.model is None:
        raise DistilvecError(f"[{key}] expected a model; found a table of vectors (teacher.vectors). Name a model.")
    source = resolve_model(section.model)
    with readable(section.model, key):
        model = _load(section, source, key)
        check_model(model, section.model, key)
    _set_length(section, model)
    full = int(model.get_embedding_dimension() or 0)
    if section.truncate_dim is not None and section.truncate_dim > full:
        raise DistilvecError(
            f"[teacher.truncate_dim] found {section.truncate_dim}; {section.model} has {full} dimensions. Give at most that."
        )
    folder, revision = folder_of(source, section.revision)
    place = pick_device(device)
    backbone = model[0] if not hasattr(model[0], "auto_model") else model[0].auto_model
    if section.attention == "bidirectional":
        lift_causal_mask(backbone, section.model)
    if section.dtype == "bfloat16":
        warn_slow_bf16(place, "teacher.dtype=float32")
        use_bfloat16(backbone)
        for module in list(model)[1:]:
            module.float()
    if place == "cpu":
        pack_linears(backbone)
    model.to(place)
    teacher = LocalTeacher(
        model.eval(),
        section.name or (_folder_name(Path(section.model)) if Path(section.model).is_dir() else section.model),
        prompts=section.prompts,
        batch_tokens=section.batch_tokens,
        truncate_dim=section.truncate_dim,
        dtype=section.dtype,
        attention=section.attention,
        origin=(section.model, revision, folder),
    )
    check_outputs(teacher.probe, model, section.model, key)
    return teacher


def wrap_model(
    model: SentenceTransformer, name: str, batch_tokens: int = 4096, prompts: dict[Role, str] | None = None
) -> LocalTeacher:
    """A model in memory, such as a student in training, as an embedder; the model itself is not changed."""
    return LocalTeacher(model, name, batch_tokens=batch_tokens, prompts=prompts)


# -- loading ---------------------------------------------------------------------------------------------------------


def _load(section: TeacherSection, source: str, key: str) -> SentenceTransformer:
    # 'auto' keeps a checkpoint's own precision: linear weights go to bf16 from there, the rest to fp32
    weights: dict[str, Any] = {"dtype": torch.float32 if section.dtype == "float32" else "auto"}
    if is_sentence_transformer_model(with_owner(source), revision=section.revision):
        for key, value in (("pooling", section.pooling), ("normalize", section.normalize)):
            if value is not None:
                raise DistilvecError(
                    f"[teacher.{key}] found {value!r}; {section.model} states its own (modules.json). Remove the key."
                )
        return load(
            source, "cpu", revision=section.revision, trust_remote_code=section.trust_remote_code, model_kwargs=weights
        )
    common: dict[str, Any] = {"revision": section.revision, "trust_remote_code": section.trust_remote_code}
    AutoConfig.from_pretrained(source, **common)  # fails where there is no model at all
    if section.pooling is None and key != "teacher.model":
        raise DistilvecError(no_pooling(section.model or source, key))
    if section.pooling is None:
        raise DistilvecError(
            f"[teacher.pooling] {section.model} is a plain Hugging Face model: it does not say how tokens become one vector. "
            "Set teacher.pooling to mean, cls or lasttoken, and teacher.normalize to true if its vectors are meant to have length 1."
        )
    transformer = Transformer(
        source, model_kwargs={**weights, **common}, processor_kwargs=dict(common), config_kwargs=dict(common)
    )
    transformer.modality_config = {"text": transformer.modality_config["text"]}  # texts as they are, no chat template
    modules = [
        transformer,
        Pooling(transformer.get_embedding_dimension(), section.pooling),
        *([Normalize()] if section.normalize else []),
    ]
    return SentenceTransformer(modules=modules, device="cpu")


def _folder_name(folder: Path) -> str:
    """What to call the model in a folder; one that a run left is called as the run."""
    folder = folder.resolve()
    return folder.parent.name if folder.name in ("student", "last") else folder.name


def _set_length(section: TeacherSection, model: SentenceTransformer) -> None:
    """Take the recipe's limit, if it gives one, and never more than the model has positions for."""
    first = model[0]
    positions = position_limit(first.auto_model) if hasattr(first, "auto_model") else None
    if section.max_length is not None:
        if positions is not None and section.max_length > positions:
            raise DistilvecError(
                f"[teacher.max_length] found {section.max_length}; {section.model} has positions for {positions} tokens. Give at most that."
            )
        special = first.tokenizer.num_special_tokens_to_add(pair=False) if hasattr(first, "auto_model") else 0
        if section.max_length <= special:
            raise DistilvecError(
                f"[teacher.max_length] found {section.max_length}; its tokenizer adds {special} special ones: give at least {special + 1}."
            )
        model.max_seq_length = section.max_length
    elif positions is not None and _max_length(model) > positions:
        model.max_seq_length = positions


def folder_of(source: str, revision: str | None) -> tuple[Path | None, str | None]:
    """Where the model's files lie, and the commit they are of (None for a folder of one's own)."""
    if Path(source).is_dir():
        return Path(source), revision
    for name in ("modules.json", "config.json"):
        found = cached_file(
            with_owner(source),
            name,
            revision=revision,
            local_files_only=True,
            _raise_exceptions_for_missing_entries=False,
        )
        if found is not None:
            folder = Path(found).parent
            return folder, folder.name
    return None, revision


# -- what the vectors depend on --------------------------------------------------------------------------------------


def _own_prompt(model: SentenceTransformer, role: Role) -> str:
    own = getattr(model, "prompts", None) or {}
    return next((own[name] for name in _PROMPT_NAMES[role] if own.get(name)), "")


def _max_length(model: SentenceTransformer) -> int:
    length = model.max_seq_length
    return UNLIMITED if length is None or length > UNLIMITED else int(length)


def _refuse_excluded_prompts(modules: list[Any], prompts: dict[Role, str]) -> None:
    excluding = any(getattr(module, "include_prompt", True) is False for module in modules)
    if excluding and any(prompts.values()):
        raise DistilvecError(
            f"[teacher.prompts] found prompts {prompts} for a model that leaves the prompt's tokens out of its pooling "
            "(include_prompt false), which is not supported yet. Set both prompts to '' or choose another teacher."
        )


def _settings(first: Any, tokenizer: Any) -> list[Any]:
    config = first.auto_model.config.to_diff_dict() if hasattr(first, "auto_model") else {}
    names = ("transformers_version", "_name_or_path", "dtype", "architectures")
    backend = getattr(tokenizer, "backend_tokenizer", None)
    return [
        {key: value for key, value in config.items() if key not in names},
        backend.to_str() if backend is not None else None,
    ]


def _from(progress: Callable[[int], None] | None, start: int) -> Callable[[int], None] | None:
    return None if progress is None else lambda done: progress(start + done)
