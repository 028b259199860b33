"""A model on this machine as a teacher, and as the embedder of evaluation: the vectors of `encode`, faster."""

from __future__ import annotations

import gc
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.models import Normalize, Pooling, Transformer
from sentence_transformers.util import is_sentence_transformer_model
from transformers import AutoConfig, PreTrainedTokenizerBase

from distilvec.alignment.offsets import special_around
from distilvec.config.presets import Preset
from distilvec.config.schema import Role, TeacherSection
from distilvec.core.batch import Text
from distilvec.core.device import pick_device, warn_slow_bf16
from distilvec.core.errors import DistilvecError
from distilvec.core.info import UNLIMITED, TeacherInfo
from distilvec.data.corpus import Corpus
from distilvec.models.adapters import merge_adapters
from distilvec.models.bidirectional import lift_causal_mask
from distilvec.models.limits import position_limit
from distilvec.models.load import BUILTIN as BUILTIN
from distilvec.models.load import evaluating, folder_of, load, model_similarity, no_pooling, role_prompts, with_owner
from distilvec.models.load import resolve_model as resolve_model
from distilvec.models.tokenizers import plain_copy, tokenizer_hash
from distilvec.models.unreadable import check_model, check_outputs, readable
from distilvec.teachers.cache.fill import Progress, fill_cache
from distilvec.teachers.cache.kept import embed_kept, open_kept
from distilvec.teachers.cache.manifest import Manifest, hash_model, hash_modules
from distilvec.teachers.cache.store import TeacherCache
from distilvec.teachers.encode import (
    Forward,
    TextProgress,
    Vectors,
    cut_dimensions,
    plan_batches,
    runs_directly,
)
from distilvec.teachers.fast_linear import autocast_forward, pack_linears, use_bfloat16
from distilvec.teachers.placement import placement

CHARACTERS_A_TOKEN = 4
_WINDOW = 16384  # texts sorted by length together
_NOT_HASHED = ("transformers_version", "_name_or_path", "dtype", "architectures")


class LocalTeacher:
    """A SentenceTransformer as a Teacher (teachers/teacher.py); `load_teacher` and `wrap_model` make one.

    `dim` counts the dimensions of an embedding after `truncate_dim` (cut, then normalised again if the model
    normalises), `pre_dense_dim` those of the pooled vector before the first Dense layer, None without such a layer.
    `folder` and `commit` are the origin of the model's files. `dtype: auto` is float32 here: a job decides it before
    (pipeline/precision.py), and a model that is judged computes as its users will.
    """

    def __init__(
        self, model: SentenceTransformer, section: TeacherSection, folder: Path | None = None, commit: str | None = None
    ) -> None:
        modules = list(model)
        if section.dtype == "auto":
            section = section.model_copy(update={"dtype": "float32"})
        self.model, self.section, self.folder, self.commit = model, section, folder, commit
        self.name = section.name or model_name(str(section.model))
        self.prompts: dict[Role, str] = role_prompts(model) | (section.stated_prompts or {})
        if any(getattr(module, "include_prompt", True) is False for module in modules) and any(self.prompts.values()):
            raise DistilvecError(
                "teacher.prompts",
                f"found {self.prompts}; {self.name} leaves the prompt's tokens out of its pooling (include_prompt "
                "false).",
                "Set both prompts to '' or choose another teacher.",
            )
        self.normalized = type(modules[-1]).__name__ == "Normalize"
        self.similarity = section.similarity or model_similarity(model, self.name)
        self.max_length = _max_length(model)
        self.truncate_dim = section.truncate_dim or getattr(model, "truncate_dim", None)
        full = int(model.get_embedding_dimension() or 0)
        self.dim = min(full, self.truncate_dim or full)
        dense = [int(module.in_features) for module in modules[1:] if type(module).__name__ == "Dense"]
        self.pre_dense_dim: int | None = dense[0] if dense else None
        arguments = model, section.batch_tokens, self.max_length, section.dtype == "bfloat16"
        self._forward = Forward(*arguments) if runs_directly(model) else None
        self._kept: TeacherCache | None = None  # of evaluation texts: keep_in

    def __enter__(self) -> LocalTeacher:
        return self

    def __exit__(self, *error: object) -> None:
        """Free the model's memory."""
        self._forward = None
        del self.model
        gc.collect()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()

    def info(self) -> TeacherInfo:
        """Description of the teacher's vectors, input and layers."""
        info = TeacherInfo(
            dim=self.dim,
            normalized=self.normalized,
            max_length=self.max_length,
            prompts=self.prompts,
            model=resolve_model(str(self.section.model)),
            name=self.name,
            revision=self.section.revision,
            adapters=self.section.adapters,
            weight=self.section.weight,
            pre_dense_dim=self.pre_dense_dim,
            similarity=self.similarity,
            pooling=self._pooling(),
            attention=self._attention(),
        )
        if not hasattr(self.model[0], "auto_model"):
            return info
        config, tokenizer = self.model[0].auto_model.config.get_text_config(), self.model.tokenizer
        return replace(
            info,
            hidden_size=config.hidden_size,
            layers=config.num_hidden_layers,
            heads=config.num_attention_heads,
            tokenizer=tokenizer_hash(tokenizer),
            special_tokens=special_tokens(tokenizer),
        )

    def manifest(self, store_dtype: str = "float16", pre_dense: bool = False) -> Manifest:
        """Settings that the vectors depend on; reads the model's files. `pre_dense`: store such vectors as well."""
        return Manifest(
            model=str(self.section.model),
            revision=self.commit,
            weights=hash_model(self.folder, self.section.adapters)
            if self.folder
            else hash_modules(self.model, *_settings(self.model[0])),
            prompts=self.prompts,
            pooling=self._pooling(),
            normalized=self.normalized,
            width=self.dim,
            pre_dense_width=self.pre_dense_dim if pre_dense else None,
            max_length=self.max_length,
            truncation_side=getattr(getattr(self.model[0], "tokenizer", None), "truncation_side", None),
            truncate_dim=self.truncate_dim,
            compute_dtype=" ".join(filter(None, (self.section.dtype, self.section.quantize))),
            backend="sentence-transformers",
            store_dtype=store_dtype,
            attention=self._attention(),
        )

    def _pooling(self) -> str | None:
        """The pooling of tokens; None for a model whose own module pools them."""
        modes = next((module.pooling_mode for module in self.model if type(module).__name__ == "Pooling"), None)
        return modes if isinstance(modes, str | None) else "+".join(modes)

    def _attention(self) -> str | None:
        return None if self.section.attention == "own" else self.section.attention

    def fill(self, cache: TeacherCache, corpus: Corpus, progress: Progress | None = None) -> None:
        """Embed the rows that the cache lacks; see `fill_cache`."""
        fill_cache(cache, corpus, self, progress)

    def embed(
        self, texts: Sequence[str], role: Role = "document", progress: TextProgress | None = None
    ) -> npt.NDArray[np.float32]:
        """float32 [n, dim] in the order of the texts, with the role's prompt prepended; kept texts are read."""
        prompt = self.prompts.get(role, "")
        if self._kept is not None:
            return embed_kept(self._kept, self, texts, prompt, progress)
        return self.signals([prompt + text for text in texts], progress=progress)["embedding"]

    def keep_in(self, root: Path, manifest: Manifest) -> None:
        """From now on keep the vectors of `embed` below this cache root, and read those that are there.

        `manifest` is this teacher's, with any signals.
        """
        self._kept = open_kept(root, manifest)

    def signals(
        self, prompted: Sequence[Text], pre_dense: bool = False, progress: TextProgress | None = None
    ) -> Vectors:
        """ "embedding" [n, dim] and optionally "pre_dense" [n, pre_dense_dim] of texts with prompts, float32.

        `progress(texts, share of their tokens)` is called after every batch. Errors: DistilvecError for pre-dense
        vectors of a model that has no Dense layer.
        """
        dims = {"embedding": self.dim, **({"pre_dense": self.pre_dense_dim or 0} if pre_dense else {})}
        if pre_dense and (self.pre_dense_dim is None or self._forward is None):
            kinds = ", ".join(type(module).__name__ for module in self.model)
            raise DistilvecError(
                "teacher.model",
                f"{self.name} has no Dense layer with readable input; found modules {kinds}.",
                "Take another teacher, or a method without pre-dense vectors.",
            )
        found = {name: np.empty((len(prompted), dim), dtype=np.float32) for name, dim in dims.items()}
        for start in range(0, len(prompted), _WINDOW):
            texts = prompted[start : start + _WINDOW]

            def advance(done: int, share: float, before: int = start, size: int = len(texts)) -> None:
                if progress is not None:
                    progress(before + done, (before + share * size) / len(prompted))

            for name, values in self._window(texts, pre_dense, advance).items():
                found[name][start : start + _WINDOW] = values
        return found

    def lengths(self, prompted: Sequence[Text]) -> npt.NDArray[np.int64]:
        """Tokens of texts with prompts, as the model reads them; a model of its own kind: estimated from characters."""
        if self._forward is None:
            characters = np.array([sum(map(len, [text] if isinstance(text, str) else text)) for text in prompted])
            return np.minimum(characters // CHARACTERS_A_TOKEN + 1, self.max_length).astype(np.int64)
        return np.array([len(ids) for ids in self._forward.tokenize(prompted)[0]], dtype=np.int64)

    def autocast(self) -> torch.autocast:
        """The precision that the backbone runs in."""
        return torch.autocast(self.model.device.type, torch.bfloat16, enabled=self.section.dtype == "bfloat16")

    def _window(
        self, prompted: Sequence[Text], pre_dense: bool = False, progress: TextProgress | None = None
    ) -> Vectors:
        signals = self._uncut(prompted, pre_dense, progress)
        signals["embedding"] = cut_dimensions(signals["embedding"], self.dim, self.normalized)
        return signals

    def _uncut(
        self, prompted: Sequence[Text], pre_dense: bool = False, progress: TextProgress | None = None
    ) -> Vectors:
        """Compute the vectors as the model gives them, before they are cut to the teacher's dim."""
        if self._forward is not None:
            return self._forward.run(prompted, pre_dense, progress)
        return {"embedding": self._encode(prompted, progress)}

    def _encode(self, prompted: Sequence[Text], progress: TextProgress | None) -> npt.NDArray[np.float32]:
        """Vectors by the model's own `encode`, in batches of about `batch_tokens`: a long text is alone."""
        lengths, budget = self.lengths(prompted), self.section.batch_tokens
        batches = plan_batches(lengths, budget, budget)
        results, texts_done, tokens_done = [], 0, 0
        for rows in batches:
            texts: list[Any] = [prompted[row] for row in rows]
            with evaluating(self.model):
                vectors = self.model.encode(
                    texts, prompt="", batch_size=len(rows), convert_to_tensor=True, show_progress_bar=False
                )
            results.append(vectors.float().cpu().numpy())
            texts_done, tokens_done = texts_done + len(rows), tokens_done + int(lengths[rows].sum())
            if progress is not None:
                progress(texts_done, tokens_done / int(lengths.sum()))
        found: npt.NDArray[np.float32] = np.concatenate(results)[np.argsort(np.concatenate(batches))]
        return found


def load_teacher(
    section: TeacherSection, device: str = "auto", key: str = "teacher.model", sharded: bool = False
) -> LocalTeacher:
    """The recipe's teacher: a SentenceTransformer folder or id, or a plain Hugging Face model with a stated pooling.

    `device`: auto, cpu, cuda or mps. `sharded`: the model stays on the CPU, and shards of it go there later. `key`
    names the model in messages. Errors: DistilvecError for a model that cannot be loaded or gives no finite vectors, a
    plain model without `pooling`, and for `max_length` or `truncate_dim` beyond the model's.
    """
    if section.model is None:
        raise DistilvecError(key, "expected a model; found a table of vectors (teacher.vectors).", "Name a model.")
    source, target = resolve_model(section.model), pick_device(device)
    with readable(section.model, key):
        placed = placement(section, target)
        model = _load(section, source, key, placed)
        check_model(model, section.model, key)
    _limit_length(section, model)
    full, asked = int(model.get_embedding_dimension() or 0), section.truncate_dim
    if asked is not None and asked > full:
        raise DistilvecError(
            "teacher.truncate_dim", f"found {asked}; {section.model} has {full}.", "Give at most that."
        )
    backbone = getattr(model[0], "auto_model", model[0])
    merge_adapters(backbone, section.adapters or ())
    if section.attention == "bidirectional":
        lift_causal_mask(backbone, section.model)
    if section.dtype == "bfloat16":
        warn_slow_bf16(target, "teacher.dtype=float32")
        for module in list(model)[1:]:
            module.float()
        autocast_forward(model[0])
        if not placed:
            use_bfloat16(backbone)
    if not placed:
        if target == "cpu" and not sharded:
            pack_linears(backbone)
        model.to("cpu" if sharded else target)
    teacher = LocalTeacher(model.eval(), section, *folder_of(source, section.revision))
    check_outputs(lambda texts: teacher._uncut(texts)["embedding"], model, section.model, key)
    return teacher


def wrap_model(
    model: SentenceTransformer, name: str, batch_tokens: int = 4096, prompts: dict[Role, str] | None = None
) -> LocalTeacher:
    """A model in memory, such as a student in training, as an embedder; the model itself is not changed."""
    return LocalTeacher(model, TeacherSection(model=name, name=name, batch_tokens=batch_tokens, prompts=prompts))


def special_tokens(tokenizer: PreTrainedTokenizerBase) -> tuple[int, int] | None:
    """Number of special tokens that begin and that end every text; None if that is not known."""
    plain = plain_copy(tokenizer)
    return None if plain is None else special_around(plain)


def _load(section: TeacherSection, source: str, key: str, placed: dict[str, Any]) -> SentenceTransformer:
    # 'auto' keeps a checkpoint's own precision: linear weights go to bf16 from there, the rest to fp32
    weights: dict[str, Any] = {"dtype": "auto" if section.dtype == "bfloat16" else torch.float32, **placed}
    device = None if placed else "cpu"
    common: dict[str, Any] = {"revision": section.revision, "trust_remote_code": section.trust_remote_code}
    if is_sentence_transformer_model(with_owner(source), revision=section.revision):
        for name, value in (("pooling", section.pooling), ("normalize", section.normalize)):
            if value is not None:
                problem = f"found {value!r}; {section.model} states its own (modules.json)"
                raise DistilvecError(f"teacher.{name}", f"{problem}.", "Remove the key.")
        return load(source, device, model_kwargs=weights, **common)
    AutoConfig.from_pretrained(source, **common)  # fails if there is no model at all
    preset = section.known or Preset(())
    kind = section.pooling or preset.pooling
    if kind is None:
        if key != "teacher.model":
            raise no_pooling(section.model or source, key)
        raise DistilvecError(
            "teacher.pooling",
            f"{section.model} is a plain Hugging Face model, without a pooling of its tokens.",
            "Set teacher.pooling to mean, cls or lasttoken, and teacher.normalize to true for vectors of length 1.",
        )
    kwargs = {"model_kwargs": {**weights, **common}, "processor_kwargs": {**common}, "config_kwargs": {**common}}
    transformer = Transformer(source, **kwargs)
    transformer.modality_config = {"text": transformer.modality_config["text"]}  # texts as they are, no chat template
    if preset.pooling is not None:
        transformer.max_seq_length = preset.max_length
    unit = section.normalize if section.normalize is not None else preset.pooling is not None and preset.normalize
    modules = [transformer, Pooling(transformer.get_embedding_dimension(), kind), *([Normalize()] if unit else [])]
    return SentenceTransformer(modules=modules, device=device, model_kwargs=placed)


def _limit_length(section: TeacherSection, model: SentenceTransformer) -> None:
    """Set the recipe's limit, or the model's positions if its own limit is greater."""
    backbone, asked = getattr(model[0], "auto_model", None), section.max_length
    positions = None if backbone is None else position_limit(backbone)
    special = 0 if backbone is None else model[0].tokenizer.num_special_tokens_to_add(pair=False)
    if asked is not None and not special < asked <= (positions or asked):
        raise DistilvecError(
            "teacher.max_length",
            f"found {asked}; {section.model} has positions for {positions} tokens, of which {special} special ones.",
            f"Give at least {special + 1}, and at most that.",
        )
    if asked is not None or (positions is not None and _max_length(model) > positions):
        model.max_seq_length = asked or positions


def _max_length(model: SentenceTransformer) -> int:
    length = model.max_seq_length
    return UNLIMITED if length is None or length > UNLIMITED else int(length)


def model_name(model: str) -> str:
    """A model's id, or the name of its folder; a student that a run left has the run's name."""
    folder = Path(model).resolve()
    if not folder.is_dir():
        return model
    return folder.parent.name if folder.name in ("student", "last") else folder.name


def _settings(first: Any) -> list[Any]:
    """Configuration and tokenizer of a model in memory."""
    config = first.auto_model.config.to_diff_dict() if hasattr(first, "auto_model") else {}
    kept = {name: config[name] for name in config if name not in _NOT_HASHED}
    backend = getattr(getattr(first, "tokenizer", None), "backend_tokenizer", None)
    return [kept, backend.to_str() if backend is not None else None]
