"""Settings that a teacher's vectors depend on, written into every cache and compared before one is used."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from itertools import combinations
from pathlib import Path
from typing import Any

import torch

from distilvec.config.recipe import fingerprint
from distilvec.config.schema import Role
from distilvec.core.errors import DistilvecError, about, first_line
from distilvec.core.files import files_below
from distilvec.core.hashing import combine, hash_files
from distilvec.core.model_name import ModelName
from distilvec.formats.replace import CHANGED
from distilvec.models.load import folder_of
from distilvec.teachers.cache.signals import Signal, TokenSettings

FORMAT = 3
# Pages, pictures and weights of other libraries. Every other file counts, since a tokenizer's may have any name
_IGNORED_SUFFIXES = (".md", ".pdf", ".png", ".jpg", ".svg", ".onnx", ".h5", ".msgpack", ".ot", ".gguf", ".pyc", ".log")
# written by tools for people, or recorded as fields of their own
_IGNORED_FILES = {
    "config_sentence_transformers.json",
    "data_config.json",
    "distilvec_experts.py",
    "distillation.json",
    "exports.json",
    "requirements.txt",
    "training_args.bin",
}
_IGNORED_FOLDERS = {"onnx", "openvino"}
_OPTIONAL_SIGNALS = ("pre_dense_width", "vector_width", "tokens")  # fields that add signals and change no other one
_ORIGIN = ("model", "revision")  # where the weights come from, which changes no vector


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """Everything that changes a vector, by the names in manifest.json. None means that a field does not apply.

    Widths count dimensions, `max_length` counts tokens. `weights` hashes the model's parameters, configuration, pooling
    and tokenizer; the same weights from another folder give the same vectors, so `model` and `revision` count only if
    the weights differ. Stored in addition to embeddings: the pooled vectors before the first Dense layer if
    `pre_dense_width` is set, the vectors that a task's head reads if `vector_width` is, token signals if `tokens` is.
    `attention` is "bidirectional" for a lifted causal mask, `endpoint` the server of an API: host, port, path.
    """

    model: str
    revision: str | None = None
    weights: str
    prompts: dict[Role, str]
    pooling: str | None = None
    normalized: bool
    width: int
    pre_dense_width: int | None = None
    max_length: int | None = None
    truncation_side: str | None = None
    truncate_dim: int | None = None
    compute_dtype: str
    backend: str
    store_dtype: str = "float16"
    vector_width: int | None = None
    tokens: TokenSettings | None = None
    attention: str | None = None
    endpoint: str | None = None

    @property
    def signals(self) -> dict[str, Signal]:
        """Signals of a row, by name."""
        widths = {"embedding": self.width, "pre_dense": self.pre_dense_width, "vector": self.vector_width}
        signals = {name: Signal(width, self.store_dtype) for name, width in widths.items() if width is not None}
        if self.tokens:
            signals.update(self.tokens.signals)
        return signals

    def settings(self) -> dict[str, Any]:
        """Fields by name, as they are written down."""
        return asdict(self)

    @property
    def fingerprint(self) -> str:
        """16 hexadecimal digits that change if a vector could."""
        settings = self.settings()
        for name in _ORIGIN:
            del settings[name]
        return fingerprint(FORMAT, settings)

    @property
    def subsets(self) -> frozenset[str]:
        """Fingerprints of the manifests with fewer signals: a cache of this manifest has all that theirs would have."""
        fingerprints = set()
        for count in range(1, len(_OPTIONAL_SIGNALS) + 1):
            for names in combinations(_OPTIONAL_SIGNALS, count):
                without: dict[str, Any] = dict.fromkeys(names)
                fingerprints.add(replace(self, **without).fingerprint)
        return frozenset(fingerprints - {self.fingerprint})

    def differences(self, expected: Manifest) -> list[str]:
        """One line for each field that differs from the expected manifest."""
        fields = self._flat(expected)
        expected_fields = expected._flat(self)
        lines = []
        for name in {**fields, **expected_fields}:
            if name in _ORIGIN and self.weights == expected.weights:
                continue
            value = fields.get(name)
            expected_value = expected_fields.get(name)
            if value != expected_value:
                lines.append(f"{name}: found {value!r}, expected {expected_value!r}")
        return lines

    def _flat(self, other: Manifest) -> dict[str, Any]:
        """Fields by name; those about tokens one by one if both manifests have such."""
        fields = dict(vars(self))
        if self.tokens is not None and other.tokens is not None:
            fields["tokens"] = None
            for name, value in vars(self.tokens).items():
                fields[f"tokens.{name}"] = value
        return fields

    def check_equal(self, expected: Manifest, what: str) -> None:
        """Raise DistilvecError that lists the differing fields of `what`, such as a path."""
        differences = self.differences(expected)
        if differences:
            lines = "".join(f"\n  {line}" for line in differences)
            raise DistilvecError(
                f"{what} holds other vectors:{lines}\nSet these back in the recipe, or use another path."
            )

    def to_json(self) -> str:
        """Content of manifest.json; the same for equal manifests."""
        content = {"format": FORMAT, "fingerprint": self.fingerprint, "manifest": self.settings()}
        return json.dumps(content, indent=1, ensure_ascii=False) + "\n"


def read_manifest(path: Path) -> Manifest:
    """The manifest of a cache. DistilvecError if the file is damaged or has another format."""
    with about("cache.path", path):
        try:
            content = json.loads(path.read_text(encoding="utf-8"))
            if content["format"] != FORMAT:
                raise ValueError(f"format {content['format']}, while this version reads format {FORMAT}")
            manifest = parse_manifest(content["manifest"])
            if content.get("fingerprint", manifest.fingerprint) != manifest.fingerprint:
                raise ValueError("its fields do not match its fingerprint")
        except PermissionError:
            raise
        except (ValueError, KeyError, TypeError, AttributeError, OSError, RecursionError) as error:
            raise DistilvecError(
                f"{path} cannot be read as a teacher cache's manifest ({first_line(error)}).",
                "Restore the file, or remove the folder to compute it again.",
            ) from None
    return manifest


def parse_manifest(fields: dict[str, Any]) -> Manifest:
    """The manifest from its fields. TypeError for unknown fields."""
    tokens = fields.get("tokens")
    if not tokens:
        return Manifest(**{**fields, "tokens": None})
    layers = {name: tuple(tokens[name]) for name in ("hidden_layers", "gram_layers")}  # JSON has lists
    return Manifest(**{**fields, "tokens": TokenSettings(**{**tokens, **layers})})


def hash_folder(folder: Path) -> str:
    """A hash of a model folder's weights, configuration and tokenizer files: their names and contents, streamed.

    A .bin file does not count if a .safetensors file is loaded instead.
    """
    paths = []
    for path in files_below(folder):
        if _is_hashed(path.relative_to(folder)):
            paths.append(path)
    names_by_folder: dict[Path, set[str]] = {}
    for path in paths:
        if path.suffix == ".safetensors":
            names_by_folder.setdefault(path.parent, set()).add(path.name)
    loaded = []
    for path in paths:
        if path.suffix != ".bin" or not _is_replaced(path.name, names_by_folder.get(path.parent, set())):
            loaded.append(path)
    return hash_files(loaded, folder)


def _is_hashed(path: Path) -> bool:
    # a file that was changed by hand is kept beside the one that is read
    if path.suffix in _IGNORED_SUFFIXES or path.suffix.startswith(CHANGED) or path.name in _IGNORED_FILES:
        return False
    return not any(part in _IGNORED_FOLDERS or part.startswith(".") for part in path.parts)


def _is_replaced(name: str, safetensors: set[str]) -> bool:
    """Whether one of the .safetensors files in its folder is loaded instead of a .bin file."""
    if name.startswith("pytorch_model"):
        return any(other.startswith("model") for other in safetensors)
    if name.startswith("adapter_model"):
        return "adapter_model.safetensors" in safetensors
    return bool(safetensors)


def hash_model(folder: Path, adapters: Sequence[str] | None) -> str:
    """A hash of a model's folder and of the adapters that are merged into it; those not on this machine by name."""
    model_hash = hash_folder(folder)
    names = [*_base_models(folder), *(adapters or ())]
    if not names:
        return model_hash
    return combine([("model", model_hash), *(("adapter", hash_named(name)) for name in names)])


def hash_named(name: str) -> str:
    """A hash of the folder of a model or an adapter; its name if it is not on this machine, or behind an API."""
    folder = None
    with suppress(OSError, ValueError):  # no model can have this name: whoever loads it says so
        folder = folder_of(ModelName(name))[0]
    return name if folder is None else hash_folder(folder)


def _base_models(folder: Path) -> list[str]:
    """The models that adapters in a folder are put on: their weights are part of the model, and lie elsewhere."""
    names = []
    for path in files_below(folder):
        if path.name == "adapter_config.json":
            text = path.read_text(encoding="utf-8")
            try:
                name = json.loads(text).get("base_model_name_or_path")
            except (ValueError, AttributeError, RecursionError):
                continue  # damaged: loading the model says so
            if isinstance(name, str) and name:
                names.append(name)
    return names


def hash_modules(model: torch.nn.Module, *settings: Any) -> str:
    """A hash of a model in memory: every tensor of its state, and settings such as its tokenizer's file as text."""
    parts = []
    for name, tensor in sorted(model.state_dict().items()):
        content = tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy()
        digest = hashlib.blake2b(content.data, digest_size=16).hexdigest()
        parts.append((name, f"{tensor.dtype}{tuple(tensor.shape)}{digest}"))
    return combine([*parts, ("settings", repr(settings))])
