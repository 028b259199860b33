"""Hidden states to one vector a text, layer by layer as the backbone computes them, so that no state is kept."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Literal, get_args

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from transformers import PreTrainedModel

from distilvec.core.device import full_precision
from distilvec.students.layers import layer_list

Kind = Literal["mean", "cls", "lasttoken"]
KINDS: tuple[Kind, ...] = get_args(Kind)
Pool = Callable[[Tensor], Tensor]


def pooling_weights(mask: Bool[Tensor, "batch tokens"], kind: Kind) -> Float[Tensor, "batch one tokens"]:
    """Weight of each token in its text's vector; a row sums to 1 and is 0 at padding, on either side.

    "mean" weighs the tokens alike, "cls" takes the first token, "lasttoken" the last one.
    """
    if kind == "mean":
        weights = mask.float()
    else:
        tokens = mask.shape[-1]
        first_token = mask.int().argmax(-1)
        last_token = tokens - 1 - mask.flip(-1).int().argmax(-1)
        weights = F.one_hot(first_token if kind == "cls" else last_token, tokens).float()
    return (weights / weights.sum(-1, keepdim=True).clamp_min(1.0)).unsqueeze(1)


def pool_states(
    states: Float[Tensor, "batch tokens inner"], weights: Float[Tensor, "batch one tokens"]
) -> Float[Tensor, "batch inner"]:
    """The weighted sum of a text's states in full precision.

    Only the weights are saved for the gradient, neither the states nor a mask of their shape; twice differentiable. The
    weights are hidden from gradient checkpointing, which would count them with its layer's own tensors.
    """
    with torch.autocast(states.device.type, enabled=False), own_saving():
        states = full_precision(states)
        return torch.bmm(weights.to(states.dtype), states).squeeze(1)


@contextmanager
def pooling_inputs(backbone: PreTrainedModel, numbers: set[int], pool: Pool | None) -> Iterator[dict[int, Tensor]]:
    """Pool the input of these layers (0 is the first) while the block runs; the result fills up by layer.

    A layer's input is pooled just before the layer runs. Pooled after the whole pass, its gradient, as large as the
    states, would wait in memory from the start of the backward pass.
    """
    pooled: dict[int, Tensor] = {}

    def listen(number: int) -> Callable[..., None]:
        def hook(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            assert pool is not None
            pooled[number] = pool(args[0] if args else kwargs["hidden_states"])

        return hook

    layers = layer_list(backbone)[1] if numbers else nn.ModuleList()
    handles = [layers[number].register_forward_pre_hook(listen(number), with_kwargs=True) for number in sorted(numbers)]
    try:
        yield pooled
    finally:
        for handle in handles:
            handle.remove()


def own_saving() -> saved_tensors_hooks:
    """Context that keeps tensors saved for the gradient here, hidden from outer hooks.

    Tensors are kept detached (autograd ties them to their graph again): a saved result that knows its own graph would
    keep that graph, and all its memory, until a backward pass.
    """
    return saved_tensors_hooks(Tensor.detach, lambda tensor: tensor)
