"""Settings that a teacher's vectors depend on, written into every cache and compared before one is used."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from itertools import chain, combinations
from pathlib import Path
from typing import Any

import torch

from distilvec.config.recipe import fingerprint
from distilvec.config.schema import Role
from distilvec.core.errors import DistilvecError, explained, first_line
from distilvec.core.hashing import combine, hash_files
from distilvec.models.load import folder_of
from distilvec.teachers.cache.signals import Signal, TokenSettings

FORMAT = 2
_HASHED = (".safetensors", ".bin", ".json", ".txt", ".model", ".py")
# written by tools for people, or recorded as fields of their own
_IGNORED = {
    "config_sentence_transformers.json",
    "data_config.json",
    "distilvec_experts.py",
    "distillation.json",
    "model.safetensors.index.json",
    "pytorch_model.bin.index.json",
    "requirements.txt",
    "training_args.bin",
}
_IGNORED_FOLDERS = {"onnx", "openvino"}
_FURTHER = ("pre_dense_width", "vector_width", "tokens")  # fields that add signals and change none of the others


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """Everything that changes a vector, by the names in manifest.json. None means that a field does not apply.

    Widths count dimensions, `max_length` counts tokens. `weights` hashes the model's parameters, configuration, pooling
    and tokenizer; the same weights from another folder give the same vectors, so `model` and `revision` count only if
    the weights differ. Stored in addition to embeddings: the pooled vectors before the first Dense layer if
    `pre_dense_width` is set, the vectors that a task's head reads if `vector_width` is, token signals if `tokens` is.
    `attention` is "bidirectional" for a lifted causal mask, `endpoint` the host of an API.
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
        vectors = {name: Signal(width, self.store_dtype) for name, width in widths.items() if width is not None}
        return vectors | (self.tokens.signals if self.tokens else {})

    def settings(self) -> dict[str, Any]:
        """Fields by name, as they are written down."""
        return asdict(self)

    @property
    def fingerprint(self) -> str:
        """16 hexadecimal digits that change if a vector could."""
        settings = self.settings()
        return fingerprint(FORMAT, {name: settings[name] for name in settings if name not in ("model", "revision")})

    @property
    def subsets(self) -> frozenset[str]:
        """Fingerprints of the manifests with fewer signals, all of which a cache of this one holds."""
        dropped = chain.from_iterable(combinations(_FURTHER, n) for n in range(len(_FURTHER) + 1))
        cleared: list[dict[str, Any]] = [dict.fromkeys(names) for names in dropped]
        return frozenset(replace(self, **fields).fingerprint for fields in cleared) - {self.fingerprint}

    def differences(self, other: Manifest) -> list[str]:
        """One line for each field that differs from `other`, the expected manifest."""
        found, expected = self._flat(other), other._flat(self)
        same = ("model", "revision") if self.weights == other.weights else ()
        names = [name for name in {**found, **expected} if found.get(name) != expected.get(name) and name not in same]
        return [f"{name}: found {found.get(name)!r}, expected {expected.get(name)!r}" for name in names]

    def _flat(self, other: Manifest) -> dict[str, Any]:
        """Fields by name; those about tokens one by one if both manifests have such."""
        if self.tokens is None or other.tokens is None:
            return vars(self)
        return {**vars(self), "tokens": None} | {f"tokens.{name}": value for name, value in vars(self.tokens).items()}

    def check_equal(self, expected: Manifest, key: str, what: str) -> None:
        """DistilvecError with the key that lists the differing fields of `what`, such as a path."""
        if differences := self.differences(expected):
            listed = "".join(f"\n  {line}" for line in differences)
            problem = f"{what} holds other vectors:{listed}\nSet these back in the recipe, or use another path."
            raise DistilvecError(key, problem)

    def to_json(self) -> str:
        """Content of manifest.json; the same for equal manifests."""
        content = {"format": FORMAT, "fingerprint": self.fingerprint, "manifest": self.settings()}
        return json.dumps(content, indent=1, ensure_ascii=False) + "\n"


def read_manifest(path: Path) -> Manifest:
    """The manifest of a cache. DistilvecError if the file is damaged or of a newer format."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        if content["format"] != FORMAT:
            raise ValueError(f"format {content['format']}, while this version reads format {FORMAT}")
        found = parse_manifest(content["manifest"])
        if content.get("fingerprint", found.fingerprint) != found.fingerprint:
            raise ValueError("its fields do not match its fingerprint")
    except PermissionError:
        with explained("cache.path", path):
            raise
    except (ValueError, KeyError, TypeError, AttributeError, OSError, RecursionError) as error:
        raise DistilvecError(
            "cache.path",
            f"{path} cannot be read as a teacher cache's manifest ({first_line(error)}).",
            "Restore the file, or remove the folder to compute it again.",
        ) from None
    return found


def parse_manifest(fields: dict[str, Any]) -> Manifest:
    """The manifest from its fields. TypeError for unknown fields."""
    tokens = fields.get("tokens")
    layers = {name: tuple(tokens[name]) for name in ("hidden_layers", "gram_layers")} if tokens else {}
    return Manifest(**{**fields, "tokens": TokenSettings(**{**tokens, **layers}) if tokens else None})


def hash_folder(folder: Path) -> str:
    """A hash of a model folder's weights, configuration and tokenizer files: their names and contents, streamed.

    A .bin file does not count if a .safetensors file is loaded instead.
    """
    found = [path.relative_to(folder) for path in sorted(folder.rglob("*")) if path.is_file()]
    found = [
        path
        for path in found
        if path.suffix in _HASHED
        and path.name not in _IGNORED
        and not any(part in _IGNORED_FOLDERS or part.startswith(".") for part in path.parts)
    ]
    safe = [path for path in found if path.suffix == ".safetensors"]
    loaded = [path for path in found if path.suffix != ".bin" or not _is_replaced(path, safe)]
    return hash_files([folder / path for path in loaded], folder, "teacher.model")


def hash_model(folder: Path, adapters: Sequence[str] | None) -> str:
    """A hash of a model's folder and of the adapters that are merged into it; those not on this machine by name."""
    own = hash_folder(folder)
    if not adapters:
        return own
    found = ((name, folder_of(name, None)[0]) for name in adapters)
    return combine([("model", own), *(("adapter", hash_folder(path) if path else name) for name, path in found)])


def _is_replaced(path: Path, safe: list[Path]) -> bool:
    """True if a .safetensors file of the same folder is loaded instead of this .bin file."""
    others = [other.name for other in safe if other.parent == path.parent]
    if path.name.startswith("pytorch_model"):
        return any(other.startswith("model") for other in others)
    return "adapter_model.safetensors" in others if path.name.startswith("adapter_model") else bool(others)


def hash_modules(model: torch.nn.Module, *settings: Any) -> str:
    """A hash of a model in memory: every tensor of its state, and settings such as its tokenizer's file as text."""
    parts = []
    for name, tensor in sorted(model.state_dict().items()):
        content = tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy()
        digest = hashlib.blake2b(content.data, digest_size=16).hexdigest()
        parts.append((name, f"{tensor.dtype}{tuple(tensor.shape)}{digest}"))
    return combine([*parts, ("settings", repr(settings))])
