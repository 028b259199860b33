"""What a teacher's vectors depend on, written beside every cache and compared before one is used."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any

import torch

from distilvec.config.recipe import fingerprint
from distilvec.config.schema import Role
from distilvec.core.errors import DistilvecError, explain, first_line
from distilvec.core.hashing import combine, hash_files
from distilvec.teachers.cache.layout import Signal, TokenSettings

FORMAT = 1
_WEIGHTS = (".safetensors", ".bin")
_SETTINGS = (".json", ".txt", ".model", ".py")
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
_FURTHER = (
    "pre_dense_width",
    "vector_width",
    "tokens",
)  # fields that add signals to the embedding and change none of the others
_LATER = ("vector_width", "tokens", "attention")  # fields that older caches do not have: left out where they are None


@dataclass(frozen=True)
class Manifest:
    """Everything that changes a vector. Widths are dimensions, `max_length` tokens; None means it does not apply.

    `weights` hashes the model's parameters, configuration, pooling and tokenizer. The same weights in another place
    give the same vectors, so `model` and `revision` count only where the weights differ. `pre_dense_width` is set where
    the pooled vector before the first Dense layer is stored as well, `vector_width` where that which a task's head reads
    is, `tokens` where the teacher's tokens are.
    """

    model: str
    revision: str | None
    weights: str
    prompts: dict[Role, str]
    pooling: str | None
    normalized: bool
    width: int
    pre_dense_width: int | None
    max_length: int | None
    truncation_side: str | None
    truncate_dim: int | None
    compute_dtype: str
    backend: str
    store_dtype: str = "float16"
    vector_width: int | None = None
    tokens: TokenSettings | None = None
    attention: str | None = None  # "bidirectional" where a causal mask was lifted

    @property
    def signals(self) -> dict[str, Signal]:
        """What a row has, by name."""
        widths = {"embedding": self.width, "pre_dense": self.pre_dense_width, "vector": self.vector_width}
        vectors = {name: Signal(width, self.store_dtype) for name, width in widths.items() if width is not None}
        return vectors | (self.tokens.signals if self.tokens else {})

    def settings(self) -> dict[str, Any]:
        """The fields by name, as they are written down."""
        return {name: value for name, value in asdict(self).items() if name not in _LATER or value is not None}

    @property
    def fingerprint(self) -> str:
        """16 hexadecimal digits that change when a vector could."""
        return fingerprint(
            FORMAT, {name: value for name, value in self.settings().items() if name not in ("model", "revision")}
        )

    @property
    def answers(self) -> frozenset[str]:
        """The fingerprints of all manifests whose signals a cache of this one holds: its own, and those with fewer signals."""
        further = {name: {getattr(self, name), None} for name in _FURTHER}
        return frozenset(
            replace(self, **dict(zip(further, values, strict=True))).fingerprint
            for values in product(*further.values())
        )

    def stored_as(self, dtype: str) -> Manifest:
        """The same vectors kept as float16 or float32."""
        return replace(self, store_dtype=dtype)

    def differences(self, other: Manifest) -> list[str]:
        """One line for each field in which `other` (what is expected) is not like this one (what was found)."""
        both = self.tokens is not None and other.tokens is not None
        found, expected = (_flat(manifest) if both else vars(manifest) for manifest in (self, other))
        names = [name for name in {**found, **expected} if found.get(name) != expected.get(name)]
        if self.weights == other.weights:
            names = [name for name in names if name not in ("model", "revision")]
        return [f"{name}: found {found.get(name)!r}, expected {expected.get(name)!r}" for name in names]

    def to_json(self) -> str:
        """The file's content; the same for equal manifests."""
        content = {"format": FORMAT, "fingerprint": self.fingerprint, "manifest": self.settings()}
        return json.dumps(content, indent=1, ensure_ascii=False) + "\n"


def read_manifest(path: Path) -> Manifest:
    """The manifest of a cache. DistilvecError if the file is damaged or of a newer format."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        if content["format"] != FORMAT:
            raise DistilvecError(
                f"[cache.path] {path} has format {content['format']}; this version reads format {FORMAT}. Use the version that wrote it."
            )
        found = parse_manifest(content["manifest"])
        if content.get("fingerprint", found.fingerprint) != found.fingerprint:
            raise ValueError("its fields do not match its fingerprint")
    except PermissionError as error:
        raise DistilvecError(str(explain(error, "cache.path", path))) from error
    except (ValueError, KeyError, TypeError, AttributeError, OSError, RecursionError) as error:
        raise DistilvecError(
            f"[cache.path] {path} cannot be read as a teacher cache's manifest ({first_line(error)}). Restore the file, or remove the "
            "folder to compute it again."
        ) from None
    return found


def parse_manifest(fields: dict[str, Any]) -> Manifest:
    """The manifest from its fields. TypeError for fields that it has not."""
    tokens = fields.get("tokens")
    layers = {name: tuple(tokens[name]) for name in ("hidden_layers", "gram_layers")} if tokens else {}
    return Manifest(**{**fields, "tokens": TokenSettings(**{**tokens, **layers}) if tokens else None})


def hash_folder(folder: Path) -> str:
    """A hash of a model folder's weights, configuration and tokenizer files: their names and contents, streamed.

    Of weights that are stored twice, only the .safetensors files count: those are loaded.
    """
    paths = [path for path in sorted(folder.rglob("*")) if path.is_file() and _counts(path.relative_to(folder))]
    safe: dict[Path, list[str]] = {path.parent: [] for path in paths}
    for path in paths:
        safe[path.parent] += [path.name] if path.suffix == ".safetensors" else []
    loaded = [path for path in paths if path.suffix != ".bin" or not _replaced(path.name, safe[path.parent])]
    return hash_files(loaded, folder, "teacher.model")


def hash_modules(model: torch.nn.Module, *settings: Any) -> str:
    """A hash of a model in memory: every tensor of its state, and settings such as its tokenizer's file as text."""
    parts = [
        (name, f"{tensor.dtype}{tuple(tensor.shape)}" + _hash_tensor(tensor))
        for name, tensor in sorted(model.state_dict().items())
    ]
    return combine([*parts, ("settings", repr(settings))])


def _flat(manifest: Manifest) -> dict[str, Any]:
    """The fields by name, those about tokens one by one."""
    tokens = {f"tokens.{name}": value for name, value in vars(manifest.tokens).items()}
    return {**vars(manifest), "tokens": None, **tokens}


def _counts(path: Path) -> bool:
    if path.name in _IGNORED or any(part in _IGNORED_FOLDERS or part.startswith(".") for part in path.parts):
        return False
    return path.suffix in _WEIGHTS or path.suffix in _SETTINGS


def _replaced(name: str, safe: list[str]) -> bool:
    """Whether one of the .safetensors files of the same folder is loaded instead of this .bin file."""
    if name.startswith("pytorch_model"):
        return any(other.startswith("model") for other in safe)
    return "adapter_model.safetensors" in safe if name.startswith("adapter_model") else bool(safe)


def _hash_tensor(tensor: torch.Tensor) -> str:
    content = tensor.detach().cpu().contiguous().flatten().view(torch.uint8)
    return hashlib.blake2b(content.numpy().data, digest_size=16).hexdigest()
