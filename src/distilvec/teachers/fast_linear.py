"""Fast linear layers of a frozen model: bf16 weights on request, and oneDNN's packed layout on the CPU.

A packed matrix product reached 102-108 GFLOP/s a core in fp32 and 190-207 in bf16, a plain one 84-98 and 161-194 (AMD
EPYC, 384 x 1536). The operators are private ones of torch, so each layer is tried first. If they are missing or give
other values, the layer stays as it is.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from distilvec.core.device import keep_few_kernels

_LARGEST = 4_000_000_000  # bytes of weights; the packed copy takes as much again
_SMALLEST = 4096  # weights in a layer


def use_bfloat16(backbone: nn.Module) -> None:
    """Keep linear weights in bf16 and everything else (embeddings, norms, sums) in fp32, for a model under autocast.

    Minimum cosine to fp32 on all-MiniLM-L6-v2: 0.99991; bf16 throughout gives 0.99980.
    """
    backbone.float()
    for module in backbone.modules():
        if type(module) is nn.Linear:
            module.to(torch.bfloat16)


def autocast_forward(module: nn.Module) -> None:
    """Run a model's first module under bf16 autocast, its results in fp32, whoever calls it.

    Linear layers in bf16 refuse the fp32 states that reach them outside of autocast.
    """
    forward = module.forward

    def forward_in_bfloat16(*arguments: Any, **options: Any) -> Any:
        device = next(module.parameters()).device.type
        with torch.autocast(device, torch.bfloat16):
            features = forward(*arguments, **options)
        for name, value in features.items():
            if isinstance(value, Tensor) and value.dtype == torch.bfloat16:
                features[name] = value.float()
        return features

    module.forward = forward_in_bfloat16


def pack_linears(backbone: nn.Module) -> int:
    """Give the backbone's linear layers a packed forward, for inference on the CPU only; return the number of layers.

    The weights themselves, and so state_dict, stay; later changes of them have no effect.
    """
    layers = []
    for module in backbone.modules():
        if type(module) is nn.Linear and module.weight.numel() >= _SMALLEST and is_faster_packed(module.weight.dtype):
            layers.append(module)
    size = sum(layer.weight.nbytes for layer in layers)
    keep_few_kernels()  # every batch of texts has another shape
    if size > _LARGEST or any(layer.weight.device.type != "cpu" for layer in layers):
        return 0
    for packed, layer in enumerate(layers):
        forward = _packed_forward(layer)
        if forward is None:
            return packed
        layer.forward = forward  # type: ignore[method-assign,assignment]
    return len(layers)


def is_faster_packed(dtype: torch.dtype) -> bool:
    """Whether packed weights of this type are faster here: not fp32 ones on a processor without AVX-512.

    There MKL's plain product is ahead, and the copy is saved.
    """
    return dtype == torch.bfloat16 or torch.backends.cpu.get_cpu_capability() != "AVX2"


def _packed_forward(layer: nn.Linear) -> Callable[[Tensor], Tensor] | None:
    """Return the layer's function on packed weights; None if packing does not work here or gives other values.

    torch has no public call for a linear layer on oneDNN's packed weights. These two operators are the ones that
    torch.compile itself emits on the CPU; their names and arguments may change with any release. So this is the only
    place that names them, each layer is tried on a few values, and a layer that fails keeps torch's own forward.
    """
    weight = layer.weight.detach()
    bias = None if layer.bias is None else layer.bias.detach()
    dtype = weight.dtype
    try:
        product = torch.ops.mkldnn._linear_pointwise
        with torch.no_grad():
            packed = torch.ops.mkldnn._reorder_linear_weight(weight.contiguous())
            probe = torch.linspace(-1, 1, 8 * layer.in_features).reshape(2, 4, -1).to(dtype)
            values = product(probe, packed, bias, "none", [], "")
            expected = functional.linear(probe, weight, bias)
    except (AttributeError, RuntimeError, NotImplementedError):
        return None
    tolerance = 1e-4 if dtype == torch.float32 else 3e-2
    largest = float(expected.abs().max())
    if not torch.allclose(values.float(), expected.float(), rtol=tolerance, atol=tolerance * largest):
        return None

    def forward(states: Tensor) -> Tensor:
        result: Tensor = product(states.to(dtype), packed, bias, "none", [], "")
        return result

    return forward
