"""Loading of teachers that are too large: weights in 8 or 4 bits, layers spread over devices, main memory and disk."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from distilvec.config.schema import TeacherSection
from distilvec.core.extras import require_extra


def placement(section: TeacherSection, device: str) -> dict[str, Any]:
    """Keywords of `from_pretrained` for `quantize` and `device_map`; empty without both.

    Such a model is loaded to its devices in the precision it computes in, and is not moved after that.
    4-bit weights are NF4 (QLoRA, Dettmers et al. 2023), 8-bit ones LLM.int8 (Dettmers et al. 2022).
    Errors: DistilvecError if bitsandbytes is missing.
    """
    if section.quantize is None and section.device_map is None:
        return {}
    dtype = torch.bfloat16 if section.dtype == "bfloat16" else torch.float32
    found: dict[str, Any] = {"dtype": dtype, "device_map": section.device_map or {"": device}}
    if section.quantize is not None:
        require_extra("quantize", "teacher.quantize")
        from transformers import BitsAndBytesConfig

        four = {"load_in_4bit": True, "bnb_4bit_quant_type": "nf4", "bnb_4bit_compute_dtype": dtype}
        options = four if section.quantize == "4bit" else {"load_in_8bit": True}
        found["quantization_config"] = BitsAndBytesConfig(**options)
    return found


def count_parameters(weights: Iterable[Tensor]) -> int:
    """Number of parameters; of 4-bit weights, which are stored two in a byte, their own number."""
    shapes = (getattr(getattr(weight, "quant_state", None), "shape", weight.shape) for weight in weights)
    return sum(math.prod(shape) for shape in shapes)
