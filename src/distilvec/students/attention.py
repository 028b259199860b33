"""One attention function for every architecture: the fast kernel, cheap dropout, and attention maps on request.

It is registered with transformers under the name `distilvec`, for BERT, XLM-R, ModernBERT, Gemma 3, Qwen 3, Mistral and
others. Maps are computed again in the requested layers only, and only their requested rows; everything else keeps the
fused kernel, which returns no maps (transformers 5: `output_attentions` under SDPA gives an empty tuple).

An architecture with an attention of its own (MPNet) returns its maps when asked to; in training they have its dropout.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel
from transformers.integrations.sdpa_attention import repeat_kv, sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

from distilvec.core.device import full_precision
from distilvec.core.errors import DistilvecError
from distilvec.core.outputs import Projections
from distilvec.students.dropout import dropout as fast_dropout
from distilvec.students.pooling import own_saving

NAME = "distilvec"


@dataclass(frozen=True)
class Inputs:
    """What the weights of an attention follow from.

    query: [batch, heads, tokens, head dim]; key: the same, or with fewer heads that several queries share
    mask: booleans, or numbers that are added to the scores; None: all tokens, or the earlier ones if `is_causal`
    scaling: of the scores; None: 1 / sqrt(head dim)
    is_causal: None: as the module says
    position_bias: [batch or 1, heads, tokens, tokens], added to the scores (T5)
    """

    module: nn.Module
    query: Tensor
    key: Tensor
    mask: Tensor | None = None
    scaling: float | None = None
    is_causal: bool | None = None
    position_bias: Tensor | None = None

    @property
    def scale(self) -> float:
        """The factor of the scores."""
        return self.query.shape[-1] ** -0.5 if self.scaling is None else self.scaling

    @property
    def sees_earlier_tokens_only(self) -> bool:
        """Whether attention without a mask sees earlier tokens only."""
        return bool(getattr(self.module, "is_causal", False) if self.is_causal is None else self.is_causal)


@dataclass
class Recording:
    """Attention to keep of a forward pass, by layers numbered from 1, and the kept maps and projections.

    `rows` [texts, rows]: token positions of the requested rows of the maps, of the first texts; -1 fills up. None: all
    rows.
    """

    attention_layers: tuple[int, ...]
    projection_layers: tuple[int, ...] = ()
    rows: Tensor | None = None
    maps: dict[int, Tensor] = field(default_factory=dict)
    projections: dict[int, Projections] = field(default_factory=dict)

    def keep_returned(self, maps: tuple[Tensor, ...]) -> None:
        """Keep what an architecture itself returns: the maps [texts, heads, tokens, tokens] of all its layers."""
        for number in self.attention_layers:
            if 0 < number <= len(maps):
                weights = maps[number - 1].mean(1)
                self.maps[number] = weights if self.rows is None else _chosen_rows(weights, self.rows)


_recording: ContextVar[Recording | None] = ContextVar("recording", default=None)


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
    """Scaled dot-product attention: query [batch, heads, tokens, head dim] to [batch, tokens, heads, head dim]."""
    recording = _recording.get()
    inputs = Inputs(module, query, key, attention_mask, scaling, is_causal, kwargs.get("position_bias"))
    layer = getattr(module, "layer_idx", None)
    number = 0 if layer is None else layer + 1
    if recording is not None and number in recording.projection_layers:
        recording.projections[number] = Projections(query, key, value)
    whole = False
    if recording is not None and number in recording.attention_layers:
        whole = recording.rows is None
        if recording.rows is not None:
            recording.maps[number] = attention_rows(inputs, recording.rows)
    on_cpu_with_dropout = dropout > 0.0 and query.device.type == "cpu"
    if not whole and not on_cpu_with_dropout:
        kwargs |= {"dropout": dropout, "scaling": scaling, "is_causal": is_causal}
        return fused_attention(module, query, key, value, attention_mask, **kwargs)
    weights = attention_weights(inputs)
    if whole:
        assert recording is not None
        recording.maps[number] = weights.mean(1)
    if on_cpu_with_dropout:
        weights = fast_dropout(weights, dropout)
    groups = query.shape[1] // value.shape[1]
    return torch.matmul(weights, repeat_kv(value, groups)).transpose(1, 2).contiguous(), None


def fused_attention(
    module: nn.Module, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, **kwargs: Any
) -> tuple[Tensor, None]:
    """The fused kernel, in float32 for gradients of bf16 or fp16 on a CPU.

    `query` [batch, heads, tokens, dim], `key` and `value` with as many or fewer heads; returns
    [batch, tokens, heads, dim] and no weights.
    The kernel's backward pass in these types makes many small products, which cost more to set up than to compute.
    """
    on_cpu = query.device.type == "cpu"
    dtype = query.dtype
    if on_cpu and torch.is_autocast_enabled(
        "cpu"
    ):  # rotary positions make float32 queries, which are cast back as well
        dtype = torch.get_autocast_dtype("cpu")
    has_gradient = torch.is_grad_enabled() and (query.requires_grad or key.requires_grad or value.requires_grad)
    if not (on_cpu and has_gradient and dtype in (torch.bfloat16, torch.float16)):
        return sdpa_attention_forward(module, query, key, value, mask, **kwargs)
    mask = _full_precision_bias(mask)
    kwargs["position_bias"] = _full_precision_bias(kwargs.get("position_bias"))
    query, key, value = map(full_precision, (query, key, value))
    with torch.autocast("cpu", enabled=False):
        output, _ = sdpa_attention_forward(module, query, key, value, mask, **kwargs)
    return output.to(dtype), None


def _full_precision_bias(bias: Tensor | None) -> Tensor | None:
    """Return what is added to scores in float32; a mask of booleans stays one."""
    if bias is None or bias.dtype == torch.bool:
        return bias
    return full_precision(bias)


def attention_weights(inputs: Inputs) -> Tensor:
    """softmax(Q K' / sqrt(head dim)) as [batch, heads, tokens, tokens]; masked keys have weight 0."""
    query, key, mask = inputs.query, inputs.key, inputs.mask
    scores = torch.matmul(query * inputs.scale, repeat_kv(key, query.shape[1] // key.shape[1]).transpose(2, 3))
    if inputs.position_bias is not None:
        scores = scores + inputs.position_bias
    if mask is None and inputs.sees_earlier_tokens_only:
        tokens = scores.shape[-1]
        mask = torch.ones(tokens, tokens, dtype=torch.bool, device=scores.device).tril()
    if mask is not None:
        scores = scores.add_(_added(mask, scores.dtype))
    return scores.softmax(-1)


def attention_rows(inputs: Inputs, rows: Tensor) -> Tensor:
    """Rows `rows` [texts, rows] of the head-averaged map as [texts, rows, tokens] in full precision; 0 for a row -1.

    Only these rows are computed, for the first `len(rows)` texts. Tensors saved for the gradient are hidden from
    gradient checkpointing, which would count them with its layer's own and miss them when it runs the layer again.
    """
    query, key = inputs.query, inputs.key
    texts, count = rows.shape
    heads, tokens, dim = query.shape[1:]
    groups = key.shape[1]
    positions = rows.clamp_min(0)
    with own_saving():
        index = positions[:, None, :, None].expand(texts, heads, count, dim)
        queries = query[:texts].gather(2, index) * inputs.scale
        # heads that share keys become rows of one product, so that keys are not repeated
        queries = queries.reshape(texts, groups, heads // groups * count, dim)
        scores = full_precision(torch.matmul(queries, key[:texts].transpose(2, 3))).view(texts, heads, count, tokens)
        numbers = torch.arange(texts, device=rows.device)[:, None]
        if inputs.position_bias is not None:
            biases = inputs.position_bias[:texts].expand(texts, -1, tokens, tokens)
            scores = scores + biases[numbers, :, positions].transpose(1, 2)
        if inputs.mask is not None:
            text_masks = inputs.mask[:texts].expand(texts, -1, tokens, tokens)
            scores = scores + _added(text_masks[numbers, :, positions].transpose(1, 2), scores.dtype)
        elif inputs.sees_earlier_tokens_only:
            is_later = torch.arange(tokens, device=rows.device) > positions[..., None]
            scores = scores + _added(~is_later[:, None], scores.dtype)
        return scores.softmax(-1).mean(1) * (rows >= 0)[..., None]


def _chosen_rows(weights: Tensor, rows: Tensor) -> Tensor:
    """Return the rows [texts, rows] of maps [more texts, tokens, tokens]; 0 for a row -1."""
    texts = len(rows)
    numbers = torch.arange(texts, device=rows.device)[:, None]
    return weights[:texts][numbers, rows.clamp_min(0)] * (rows >= 0)[..., None]


def _added(mask: Tensor, dtype: torch.dtype) -> Tensor:
    """A mask to add to scores; masked_fill is much slower on a CPU."""
    if mask.dtype != torch.bool:
        return mask
    return torch.zeros((), dtype=dtype, device=mask.device).where(mask, torch.finfo(dtype).min)


@contextmanager
def recording(
    attention_layers: tuple[int, ...], projection_layers: tuple[int, ...] = (), rows: Tensor | None = None
) -> Iterator[Recording]:
    """Keep head-averaged attention maps (their `rows`) and projections of these layers (from 1) of a forward pass."""
    recorded = Recording(attention_layers, projection_layers, rows)
    token = _recording.set(recorded if attention_layers or projection_layers else None)
    try:
        yield recorded
    finally:
        _recording.reset(token)
    missing = sorted({*attention_layers} - {*recorded.maps} | {*projection_layers} - {*recorded.projections})
    if missing:
        raise DistilvecError(
            f"the attention of layers {missing} (numbered from 1) cannot be read: the architecture does not return it, "
            "and does not have transformers' attention interface with SDPA.",
            "Take another architecture, or a method without attention outputs.",
            key="method.name",
        )


def attention_mask(**kwargs: Any) -> Tensor | None:
    """Transformers' mask for SDPA, kept in training steps even if nothing is padded.

    A look at the mask would wait for the device, and a batch without padding comes without a mask (core/batch.py).
    """
    if torch.is_grad_enabled() and kwargs.get("attention_mask") is not None:
        kwargs |= {"allow_is_causal_skip": False, "allow_is_bidirectional_skip": False}
    mask: Tensor | None = sdpa_mask(**kwargs)
    return mask


def has_interface(backbone: PreTrainedModel) -> bool:
    """Return whether the backbone's attention is that of this module, as after `install_attention`."""
    return getattr(backbone.config, "_attn_implementation", None) == NAME


def install_attention(backbone: PreTrainedModel) -> None:
    """Make a backbone that uses SDPA use this function; backbones on other kernels stay as they are."""
    if getattr(backbone.config, "_attn_implementation", None) == "sdpa":
        AttentionInterface.register(NAME, attention_forward)
        AttentionMaskInterface.register(NAME, attention_mask)
        backbone.set_attn_implementation(NAME)
        for name, module in backbone.named_modules():
            numbers = [int(part) for part in name.split(".") if part.isdigit()]
            if hasattr(module, "is_causal") and not hasattr(module, "layer_idx") and len(numbers) == 1:
                module.layer_idx = numbers[0]  # DistilBERT does not number its own
