"""A model on this machine as an embedder: the vectors of `encode`, faster; and a Router of two such models."""

from __future__ import annotations

import gc
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from sentence_transformers import SentenceTransformer
from tokenizers import Tokenizer
from transformers import PreTrainedTokenizerBase

from distilvec.alignment.offsets import special_around
from distilvec.config.schema import TeacherSection
from distilvec.core.batch import Text
from distilvec.core.device import pick_device, warn_slow_bf16
from distilvec.core.errors import DistilvecError
from distilvec.core.info import Role, TeacherInfo
from distilvec.core.model_name import ModelName
from distilvec.core.similarity import Similarity
from distilvec.core.vectors import first_dims
from distilvec.data.corpus import Corpus
from distilvec.models.checks import PROBE, check_vector
from distilvec.models.load import (
    evaluating,
    folder_of,
    load_with_settings,
    model_name,
    model_similarity,
    resolve_model,
    role_prompts,
    tokenizer_notes,
    unused_prompts,
)
from distilvec.models.parts import max_length, tokens_without_row
from distilvec.models.settings import ModelSettings, PlainSettings
from distilvec.models.tokenizers import plain_copy, tokenizer_hash
from distilvec.teachers.cache.evaluation_vectors import open_evaluation_cache, stored_batches
from distilvec.teachers.cache.fill import FillSteps, compute_vectors, fill_steps
from distilvec.teachers.cache.manifest import Manifest, hash_model, hash_modules
from distilvec.teachers.cache.store import TeacherCache
from distilvec.teachers.encode import (
    BATCH_TOKENS,
    EmbeddedBatch,
    Forward,
    Vectors,
    check_tokens,
    collect,
    plan_batches,
    runs_directly,
)
from distilvec.teachers.fast_linear import autocast_forward, pack_linears, use_bfloat16

CHARACTERS_A_TOKEN = 4
_WINDOW = 16384  # texts sorted by length together
_NOT_HASHED = ("transformers_version", "_name_or_path", "dtype", "architectures")


@dataclass(frozen=True)
class ModelFiles:
    """Origin of a model: its folder or id, the settings it was loaded with, and the place and commit of its files."""

    model: ModelName
    settings: ModelSettings = field(default_factory=ModelSettings)
    folder: Path | None = None
    commit: str | None = None


class ModelEmbedder:
    """A SentenceTransformer as an embedder (teachers/embedder.py) and as a teacher (teachers/open.py).

    `dim` counts the dimensions of an embedding after `truncate_dim` (cut, then normalized again if the model
    normalizes; what a folder's own setting cuts is not, as in sentence-transformers), `pre_dense_dim` those of the
    pooled vector before the first Dense layer, None without such a layer. `files` is None for a model that was made in
    memory, such as a student in training. The model is not changed.

    Args:
        batch_tokens: tokens in a batch; by default the device's (`batch_budget`)
        prompts: by role, instead of the model's own
        similarity: instead of the one that the model states
    """

    def __init__(
        self,
        model: SentenceTransformer,
        name: str,
        batch_tokens: int | None = None,
        prompts: dict[Role, str] | None = None,
        *,
        similarity: Similarity | None = None,
        truncate_dim: int | None = None,
        files: ModelFiles | None = None,
    ) -> None:
        modules = list(model)
        self.model = model
        self.name = name
        self.batch_tokens = batch_tokens
        self.files = files or ModelFiles(ModelName(name))
        self.prompts: dict[Role, str] = role_prompts(model.prompts) | (prompts or {})
        self.notes: tuple[str, ...] = () if prompts is not None else unused_prompts(model, self.prompts)
        ignores_prompts = any(getattr(module, "include_prompt", True) is False for module in modules)
        if ignores_prompts and any(self.prompts.values()):
            raise DistilvecError(
                f"found {self.prompts}; {name} leaves the prompt's tokens out of its pooling (include_prompt false).",
                "Remove the prompts (teacher.prompts in a recipe, else config_sentence_transformers.json), or set "
                "include_prompt to true in the config.json of its pooling.",
                key="..prompts",
            )
        own_cut = getattr(model, "truncate_dim", None)
        self.normalized = type(modules[-1]).__name__ == "Normalize" and own_cut is None
        self.similarity: Similarity = similarity or model_similarity(model, name)
        self.max_length = max_length(model)
        self.truncate_dim = truncate_dim or own_cut
        full = int(model.get_embedding_dimension() or 0)
        self.dim = min(full, self.truncate_dim or full)
        dense = [int(module.in_features) for module in modules[1:] if type(module).__name__ == "Dense"]
        self.pre_dense_dim: int | None = dense[0] if dense else None
        bfloat16 = self.settings.dtype == "bfloat16"
        self._forward = Forward(model, batch_tokens, self.max_length, bfloat16) if runs_directly(model) else None
        self._evaluation_cache: TeacherCache | None = None  # of evaluation texts: keep_in
        self._tokens_without_row = tokens_without_row(model)

    def __enter__(self) -> ModelEmbedder:
        return self

    def __exit__(self, *error: object) -> None:
        """Free the model's memory."""
        self._forward = None
        del self.model
        gc.collect()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()

    @property
    def settings(self) -> ModelSettings:
        """The settings that the model was loaded with."""
        return self.files.settings

    def info(self) -> TeacherInfo:
        """Description of the teacher's vectors, input and layers."""
        info = TeacherInfo(
            dim=self.dim,
            normalized=self.normalized,
            max_length=self.max_length,
            prompts=self.prompts,
            model=resolve_model(self.files.model.name),
            name=self.name,
            revision=self.files.model.revision,
            adapters=list(self.settings.adapters) or None,
            pre_dense_dim=self.pre_dense_dim,
            similarity=self.similarity,
            pooling=self._pooling(),
            attention=self.settings.lifted,
            notes=self.notes,
        )
        if not hasattr(self.model[0], "auto_model"):
            return info
        config = self.model[0].auto_model.config.get_text_config()
        return replace(
            info,
            hidden_size=config.hidden_size,
            layers=config.num_hidden_layers,
            heads=config.num_attention_heads,
            tokenizer=tokenizer_hash(self.model.tokenizer),
            special_tokens=special_tokens(self.model.tokenizer),
        )

    def manifest(self, store_dtype: str = "float16", pre_dense: bool = False) -> Manifest:
        """Settings that the vectors depend on; reads the model's files. `pre_dense`: store such vectors as well."""
        files, settings = self.files, self.settings
        if files.folder is not None:
            weights = hash_model(files.folder, settings.adapters)
        else:
            weights = hash_modules(self.model, *_hashed_settings(self.model))
        return Manifest(
            model=files.model.name,
            revision=files.commit,
            weights=weights,
            prompts=self.prompts,
            pooling=self._pooling(),
            normalized=self.normalized,
            width=self.dim,
            pre_dense_width=self.pre_dense_dim if pre_dense else None,
            max_length=self.max_length,
            truncation_side=getattr(getattr(self.model[0], "tokenizer", None), "truncation_side", None),
            truncate_dim=self.truncate_dim,
            compute_dtype=f"{settings.dtype} {settings.quantize}" if settings.quantize else settings.dtype,
            backend="sentence-transformers",
            store_dtype=store_dtype,
            attention=self.settings.lifted,
        )

    def _pooling(self) -> str | None:
        """The pooling of tokens; None for a model whose own module pools them."""
        for module in self.model:
            if type(module).__name__ == "Pooling":
                modes = module.pooling_mode
                return modes if isinstance(modes, str | None) else "+".join(modes)
        return None

    def fill_steps(self, cache: TeacherCache, corpus: Corpus) -> FillSteps:
        """Embed the rows that the cache lacks."""
        return fill_steps(cache, corpus, partial(compute_vectors, cache.manifest, corpus, self))

    def embed(self, texts: Sequence[str], role: Role = "document") -> npt.NDArray[np.float32]:
        """Return float32 [texts, dim], with the role's prompt prepended; see `keep_in` for texts that are stored."""
        return collect(self.embed_batches(texts, role), len(texts), self.dim)

    def embed_batches(self, texts: Sequence[str], role: Role = "document") -> Iterator[EmbeddedBatch]:
        """Embed batch by batch, those that are stored first, then the longest texts."""
        prompt = self.prompts.get(role, "")
        if self._evaluation_cache is not None:
            return stored_batches(self._evaluation_cache, self, texts, prompt)
        return self.batches([prompt + text for text in texts])

    def embed_prompted(self, prompted: Sequence[str]) -> npt.NDArray[np.float32]:
        """Return float32 [texts, dim] of texts that have their prompts."""
        return collect(self.batches(prompted), len(prompted), self.dim)

    def keep_in(self, root: Path, manifest: Manifest) -> None:
        """From now on keep the vectors of `embed` below this cache root, and read those that are there.

        `manifest` is this teacher's, with any signals.
        """
        self._evaluation_cache = open_evaluation_cache(root, manifest)

    def signals(self, prompted: Sequence[Text], pre_dense: bool = False) -> Vectors:
        """ "embedding" [n, dim] and optionally "pre_dense" [n, pre_dense_dim] of texts with prompts, float32."""
        vectors = {"embedding": np.empty((len(prompted), self.dim), dtype=np.float32)}
        if pre_dense:
            vectors["pre_dense"] = np.empty((len(prompted), self.pre_dense_dim or 0), dtype=np.float32)
        for batch in self.batches(prompted, pre_dense):
            for name, values in batch.signals.items():
                vectors[name][batch.rows] = values
        return vectors

    def batches(self, prompted: Sequence[Text], pre_dense: bool = False) -> Iterator[EmbeddedBatch]:
        """Embed texts with prompts batch by batch, with the signals of `signals`; of many texts some at a time."""
        if pre_dense and (self.pre_dense_dim is None or self._forward is None):
            kinds = ", ".join(type(module).__name__ for module in self.model)
            raise DistilvecError(
                f"{self.name} has no Dense layer with readable input; found modules {kinds}.",
                "Take another teacher, or a method without pre-dense vectors.",
                key=".model",
            )
        for start in range(0, len(prompted), _WINDOW):
            texts = prompted[start : start + _WINDOW]
            check_tokens(self.model, self._tokens_without_row, texts, self.name)
            for batch in self._uncut(texts, pre_dense):
                vectors = first_dims(batch.embedding, self.dim, self.normalized)
                signals = {**batch.signals, "embedding": vectors}
                yield EmbeddedBatch(start + batch.rows, signals, batch.work * len(texts) / len(prompted))

    def lengths(self, prompted: Sequence[Text]) -> npt.NDArray[np.int64]:
        """Tokens of texts with prompts, as the model reads them; a model of its own kind: estimated from characters."""
        if self._forward is None:
            characters = np.array([len(text) if isinstance(text, str) else sum(map(len, text)) for text in prompted])
            return np.minimum(characters // CHARACTERS_A_TOKEN + 1, self.max_length).astype(np.int64)
        return np.array([len(ids) for ids in self._forward.tokenize(prompted)[0]], dtype=np.int64)

    def autocast(self) -> torch.autocast:
        """The precision that the backbone runs in."""
        return torch.autocast(self.model.device.type, torch.bfloat16, enabled=self.settings.dtype == "bfloat16")

    def _uncut(self, prompted: Sequence[Text], pre_dense: bool = False) -> Iterator[EmbeddedBatch]:
        """Compute the vectors as the model gives them, before they are cut to the teacher's dim."""
        return self._encode(prompted) if self._forward is None else self._forward.batches(prompted, pre_dense)

    def _encode(self, prompted: Sequence[Text]) -> Iterator[EmbeddedBatch]:
        """Vectors by the model's own `encode`, in batches of about `batch_tokens`: a long text is alone."""
        lengths = self.lengths(prompted)
        budget = self.batch_tokens or BATCH_TOKENS
        for rows in plan_batches(lengths, budget, budget):
            texts: list[Any] = [prompted[row] for row in rows]
            with evaluating(self.model):
                vectors = self.model.encode(
                    texts, prompt="", batch_size=len(rows), convert_to_tensor=True, show_progress_bar=False
                )
            signals = {"embedding": vectors.float().cpu().numpy()}
            yield EmbeddedBatch(rows, signals, float(lengths[rows].sum() / lengths.sum()))


def load_embedder(
    section: TeacherSection, device: str = "auto", *, sharded: bool = False, role: Role = "document"
) -> ModelEmbedder:
    """Load the model of a folder or hub id, ready to compute; of a Router the model for this role.

    `sharded`: the model stays on the CPU as it is, and shards of it go to the devices later.
    """
    model = section.named_model
    assert model is not None
    settings = model_settings(section)
    target = pick_device(device)
    loaded = load_with_settings(model, settings, target, role)
    placed = settings.quantize is not None or settings.device_map is not None
    backbone = getattr(loaded[0], "auto_model", loaded[0])
    if settings.dtype == "bfloat16":
        warn_slow_bf16(target, "teacher.dtype=float32")
        for module in list(loaded)[1:]:
            module.float()
        autocast_forward(loaded[0])
        if not placed:
            use_bfloat16(backbone)
    if not placed:
        if target == "cpu" and not sharded:
            pack_linears(backbone)
        loaded.to("cpu" if sharded else target)
    embedder = ModelEmbedder(
        loaded.eval(),
        section.name or model_name(model.name),
        section.batch_tokens,
        section.stated_prompts,
        similarity=section.similarity,
        truncate_dim=section.truncate_dim,
        files=ModelFiles(model, settings, *folder_of(model)),
    )
    embedder.notes = (*embedder.notes, *tokenizer_notes(model, loaded))
    probe = next(embedder._uncut([PROBE]))
    check_vector(probe.embedding, loaded, model.name)
    return embedder


def model_settings(section: TeacherSection) -> ModelSettings:
    """Return the settings that a section's model is loaded with.

    `dtype: auto` is float32 here: a job decides it before (pipeline/decide.py).
    """
    preset = section.known
    plain = None
    if preset is not None and preset.pooling is not None:
        plain = PlainSettings(preset.pooling, preset.normalize, preset.max_length)
    return ModelSettings(
        pooling=section.pooling,
        normalize=section.normalize,
        plain=plain,
        max_length=section.max_length,
        dtype="bfloat16" if section.dtype == "bfloat16" else "float32",
        attention=section.attention,
        adapters=tuple(section.adapters or ()),
        quantize=section.quantize,
        device_map=section.device_map,
    )


def special_tokens(tokenizer: PreTrainedTokenizerBase) -> tuple[int, int] | None:
    """Number of special tokens that begin and that end every text; None if that is not known."""
    plain = plain_copy(tokenizer)
    return None if plain is None else special_around(plain)


def _hashed_settings(model: SentenceTransformer) -> list[Any]:
    """Settings of all modules, configuration and tokenizer of a model in memory: what its weights do not show."""
    first: Any = model[0]
    config = first.auto_model.config.to_diff_dict() if hasattr(first, "auto_model") else {}
    hashed = {name: value for name, value in config.items() if name not in _NOT_HASHED}
    settings: list[Any] = [getattr(module, "get_config_dict", dict)() for module in model]
    layers = [(name, type(module).__name__, module.extra_repr()) for name, module in model.named_modules()]
    tokenizer = getattr(first, "tokenizer", None)
    backend = getattr(tokenizer, "backend_tokenizer", tokenizer if isinstance(tokenizer, Tokenizer) else None)
    return [hashed, settings, layers, backend.to_str() if backend is not None else None]


@dataclass(frozen=True, eq=False)
class RoutedEmbedder:
    """Gives the vectors of `encode_query` and `encode_document`."""

    query: ModelEmbedder
    document: ModelEmbedder

    @property
    def name(self) -> str:
        """The Router's name."""
        return self.document.name

    @property
    def dim(self) -> int:
        """Dimensions of a vector."""
        return self.document.dim

    @property
    def prompts(self) -> Mapping[Role, str]:
        """Texts that are put before a query and before a document."""
        return self.document.prompts

    @property
    def similarity(self) -> Similarity:
        """How the vectors are compared."""
        return self.document.similarity

    def of(self, role: Role) -> ModelEmbedder:
        """Return the model for texts of this role."""
        return self.query if role == "query" else self.document

    def embed(self, texts: Sequence[str], role: Role = "document") -> npt.NDArray[np.float32]:
        """Return float32 [texts, dim], with the role's prompt prepended."""
        return self.of(role).embed(texts, role)

    def embed_batches(self, texts: Sequence[str], role: Role = "document") -> Iterator[EmbeddedBatch]:
        """Embed batch by batch."""
        return self.of(role).embed_batches(texts, role)
