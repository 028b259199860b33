"""Settings that a model is loaded with: its own, weights in 8 or 4 bits, layers spread over devices and disk."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import torch
from sentence_transformers import SentenceTransformer

from distilvec.core.extras import require_extra


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


def placement(settings: ModelSettings, device: str) -> dict[str, Any]:
    """Keywords of `from_pretrained` for `quantize` and `device_map`; empty without both.

    Such a model is loaded to its devices in the precision it computes in, and is not moved after that.
    4-bit weights are NF4 (QLoRA, Dettmers et al. 2023), 8-bit ones LLM.int8 (Dettmers et al. 2022).
    """
    if settings.quantize is None and settings.device_map is None:
        return {}
    dtype = torch.bfloat16 if settings.dtype == "bfloat16" else torch.float32
    keywords: dict[str, Any] = {"dtype": dtype, "device_map": settings.device_map or {"": device}}
    if settings.quantize is not None:
        require_extra("quantize", "..quantize")
        from transformers import BitsAndBytesConfig

        if settings.quantize == "4bit":
            config = BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_compute_dtype=dtype)
        else:
            config = BitsAndBytesConfig(load_in_8bit=True)
        keywords["quantization_config"] = config
    return keywords


def is_placed(model: SentenceTransformer) -> bool:
    """Whether `placement` has loaded this model: in 8 or 4 bits, or in parts on several devices or a disk."""
    backbone = getattr(model[0], "auto_model", None)
    return getattr(backbone, "hf_device_map", None) is not None or bool(getattr(backbone, "is_quantized", False))
