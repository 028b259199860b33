"""Loading of models that are too large: weights in 8 or 4 bits, layers spread over devices, main memory and disk."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import torch
from sentence_transformers import SentenceTransformer
from torch import Tensor

from distilvec.core.extras import require_extra
from distilvec.models.settings import ModelSettings, setting_key


def placement(settings: ModelSettings, device: str, key: str) -> dict[str, Any]:
    """Keywords of `from_pretrained` for `quantize` and `device_map`; empty without both.

    Such a model is loaded to its devices in the precision it computes in, and is not moved after that.
    4-bit weights are NF4 (QLoRA, Dettmers et al. 2023), 8-bit ones LLM.int8 (Dettmers et al. 2022).
    Errors: DistilvecError if bitsandbytes is missing.
    """
    if settings.quantize is None and settings.device_map is None:
        return {}
    dtype = torch.bfloat16 if settings.dtype == "bfloat16" else torch.float32
    keywords: dict[str, Any] = {"dtype": dtype, "device_map": settings.device_map or {"": device}}
    if settings.quantize is not None:
        require_extra("quantize", setting_key(key, "quantize"))
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


def count_parameters(weights: Iterable[Tensor]) -> int:
    """Number of parameters; of 4-bit weights, which are stored two in a byte, their own number."""
    count = 0
    for weight in weights:
        state = getattr(weight, "quant_state", None)
        count += math.prod(getattr(state, "shape", weight.shape))
    return count
