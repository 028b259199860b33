"""One attention function for every architecture: the fast kernel, cheap dropout, and attention maps on request.

It is registered with transformers under the name `distilvec`, so BERT, XLM-R, ModernBERT, Gemma 3, Qwen 3 and Mistral
use it alike. Maps are recomputed only in the layers that are wanted; everything else keeps the fused kernel, which
returns none (trap T2 of transformers 5: `output_attentions` under SDPA gives an empty tuple).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel
from transformers.integrations.sdpa_attention import repeat_kv, sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

from distilvec.students.dropout import dropout as fast_dropout

NAME = "distilvec"
_recorder: ContextVar[dict[int, Tensor] | None] = ContextVar("recorder", default=None)


def attention_forward(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    is_causal: bool | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """Scaled dot-product attention; query is [batch, heads, tokens, head width], the answer [batch, tokens, heads, head width]."""
    wanted = _recorder.get()
    layer = getattr(module, "layer_idx", None)
    record = wanted is not None and layer is not None and layer + 1 in wanted
    on_cpu_with_dropout = dropout > 0.0 and query.device.type == "cpu" and kwargs.get("position_bias") is None
    if not record and not on_cpu_with_dropout:
        return sdpa_attention_forward(
            module, query, key, value, attention_mask, dropout=dropout, scaling=scaling, is_causal=is_causal, **kwargs
        )
    weights = attention_weights(module, query, key, attention_mask, scaling, is_causal)
    if record:
        assert wanted is not None and layer is not None
        wanted[layer + 1] = weights.mean(1)
    if on_cpu_with_dropout:
        weights = fast_dropout(weights, dropout)
    groups = query.shape[1] // value.shape[1]
    return torch.matmul(weights, repeat_kv(value, groups)).transpose(1, 2).contiguous(), None


def attention_weights(
    module: nn.Module, query: Tensor, key: Tensor, mask: Tensor | None, scaling: float | None, is_causal: bool | None
) -> Tensor:
    """softmax(Q K' / sqrt(head width)) as [batch, heads, tokens, tokens]; masked keys have weight 0."""
    scaling = query.shape[-1] ** -0.5 if scaling is None else scaling
    scores = torch.matmul(query * scaling, repeat_kv(key, query.shape[1] // key.shape[1]).transpose(2, 3))
    if mask is None and (getattr(module, "is_causal", False) if is_causal is None else is_causal):
        tokens = scores.shape[-1]
        mask = torch.ones(tokens, tokens, dtype=torch.bool, device=scores.device).tril()
    if mask is not None:
        if mask.dtype == torch.bool:  # added, not filled in: masked_fill is much slower on a processor
            lowest = torch.finfo(scores.dtype).min
            mask = torch.zeros((), dtype=scores.dtype, device=mask.device).where(mask, lowest)
        scores = scores.add_(mask)
    return scores.softmax(-1)


@contextmanager
def recording(layers: tuple[int, ...]) -> Iterator[dict[int, Tensor]]:
    """Collect head-averaged attention maps of these layers (numbered from 1) during a forward pass."""
    maps: dict[int, Tensor] = dict.fromkeys(layers, torch.empty(0))
    token = _recorder.set(maps if layers else None)
    try:
        yield maps
    finally:
        _recorder.reset(token)


def install_attention(backbone: PreTrainedModel) -> None:
    """Make the backbone use this function where it uses SDPA (backbones on other kernels are left alone)."""
    if getattr(backbone.config, "_attn_implementation", None) == "sdpa":
        AttentionInterface.register(NAME, attention_forward)
        AttentionMaskInterface.register(NAME, sdpa_mask)
        backbone.set_attn_implementation(NAME)
