"""Settings that a model is loaded with."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

MODEL_FILES = frozenset({"modules.json", "config.json", "adapter_config.json"})  # a model's folder has one of them


@dataclass(frozen=True)
class PlainSettings:
    """What a plain Hugging Face model does not state: the pooling of its tokens, unit length, and the longest input."""

    pooling: str
    normalize: bool
    max_length: int


@dataclass(frozen=True, kw_only=True)
class ModelSettings:
    """Settings that a model is loaded with; by default it is loaded as its folder states, in float32.

    `pooling` and `normalize` are for plain Hugging Face models; `plain` are published settings of such a model, for
    what is not set here. `dtype` bfloat16: linear weights alone, see teachers/fast_linear.py. `adapters` are merged one
    after another. `device_map` spreads the layers over devices: a plan of accelerate, or devices by module.
    """

    revision: str | None = None
    trust_remote_code: bool = False
    pooling: str | None = None
    normalize: bool | None = None
    plain: PlainSettings | None = None
    max_length: int | None = None
    dtype: Literal["float32", "bfloat16"] = "float32"
    attention: Literal["own", "bidirectional"] = "own"
    adapters: tuple[str, ...] = ()
    quantize: Literal["8bit", "4bit"] | None = None
    device_map: str | Mapping[str, Any] | None = None

    @property
    def lifted(self) -> str | None:
        """The attention, if it is not the model's own."""
        return None if self.attention == "own" else self.attention


def setting_key(key: str, setting: str) -> str:
    """Return the key of a setting next to the model's key: teacher.pooling for teacher.model.

    A key without a section, such as an argument of a function, has no settings: it names the model in every error.
    """
    section, dot, _ = key.rpartition(".")
    return f"{section}.{setting}" if dot else key
