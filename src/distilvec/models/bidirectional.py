"""Removal of a decoder's causal mask, so that every token sees every other one (LLM2Vec, section 2.1)."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from distilvec.core.errors import DistilvecError

_KINDS = {"full_attention", "sliding_attention"}
_TOKENS = 3


def lift_causal_mask(backbone: nn.Module, name: str) -> None:
    """Make a decoder (Mistral, Qwen, Llama and similar) attend in both directions, in place.

    transformers 5 builds masks for both directions if the configuration has `is_causal` false, and hands that to the
    attention of every layer. The result is tried: the first token's state must depend on the last token, with a mask
    and without. Call it before layers are packed or of mixed precision. A saved model keeps `is_causal` in its
    config.json, so that transformers 5 loads it without a mask; such a model stays as it is.

    Note: a layer with a sliding window W lets a token see those that are at most W away, on either side, as
    transformers makes such windows; the causal window is W - 1 tokens back.
    """
    problem = f"found 'bidirectional'; {name}"
    if not isinstance(backbone, PreTrainedModel):
        raise DistilvecError(f"{problem} is a {type(backbone).__name__}, which has no attention.", "Remove the key.")
    config = backbone.config.get_text_config()
    unknown_kinds = sorted({*(getattr(config, "layer_types", None) or ())} - _KINDS)
    if not unknown_kinds:
        before = getattr(config, "is_causal", None)
        if _sees_the_last(backbone, padded=False):
            if before is False:
                return
            raise DistilvecError(f"{problem} has no causal mask: its tokens see each other already.", "Remove the key.")
        config.is_causal = False
        layers = sum(hasattr(module, "is_causal") for module in backbone.modules())
        if layers == config.num_hidden_layers and all(_sees_the_last(backbone, padded) for padded in (False, True)):
            return
        del config.is_causal
        if before is not None:
            config.is_causal = before
    reason = "masks that are not from transformers' masking functions"
    if unknown_kinds:
        reason = f"layers of {', '.join(unknown_kinds)}"
    raise DistilvecError(
        f"found 'bidirectional'; the causal mask of {name} ({type(backbone).__name__}) cannot be lifted: it has "
        f"{reason}.",
        "Remove the key, or take a decoder such as Mistral, Qwen 3 or Llama.",
    )


def _sees_the_last(backbone: PreTrainedModel, padded: bool) -> bool:
    """True if the first token's state depends on the last of three tokens; `padded` adds a position of padding."""
    trained = backbone.training
    backbone.eval()
    positions = torch.arange(_TOKENS + padded, device=backbone.device)[None]
    inputs = backbone.get_input_embeddings()(positions).detach()
    mask = (positions < _TOKENS).long() if padded else None
    with torch.enable_grad():
        inputs.requires_grad_()
        state: Tensor = backbone(inputs_embeds=inputs, attention_mask=mask).last_hidden_state[0, 0].float()
        slope = torch.linspace(-1, 1, len(state), device=state.device)  # a plain sum is constant behind a norm
        (gradient,) = torch.autograd.grad(state @ slope, inputs)
    backbone.train(trained)
    return bool(gradient[0, _TOKENS - 1].any())
