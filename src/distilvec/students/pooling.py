"""Hidden states to one vector a text, layer by layer as the backbone computes them, so that no hidden state is kept for it."""

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

from distilvec.students.layers import layer_list

Kind = Literal["mean", "cls", "lasttoken"]
KINDS: tuple[Kind, ...] = get_args(Kind)
Pool = Callable[[Tensor], Tensor]


def full_precision(states: Tensor) -> Tensor:
    """In float32, or float64 where they are; the same tensor where nothing changes."""
    return states.to(torch.promote_types(states.dtype, torch.float32))


def pooling_weights(mask: Bool[Tensor, "batch tokens"], kind: Kind) -> Float[Tensor, "batch one tokens"]:
    """What each token counts for in its text's vector; a row sums to 1 and is 0 at padding, on whichever side that is.

    "mean" weighs the tokens alike, "cls" takes the first token, "lasttoken" the last one.
    """
    if kind == "mean":
        chosen = mask.float()
    else:
        first = (mask if kind == "cls" else mask.flip(-1)).int().argmax(-1)
        chosen = F.one_hot(first if kind == "cls" else mask.shape[-1] - 1 - first, mask.shape[-1]).float()
    return (chosen / chosen.sum(-1, keepdim=True).clamp_min(1.0)).unsqueeze(1)


def pool_states(
    states: Float[Tensor, "batch tokens inner"], weights: Float[Tensor, "batch one tokens"]
) -> Float[Tensor, "batch inner"]:
    """The weighted sum of a text's states in full precision.

    For the gradient only the weights are kept, neither the states nor a mask of their shape, and twice differentiable. The
    weights are kept out of the sight of gradient checkpointing, which would count them with its layer's own tensors.
    """
    with torch.autocast(states.device.type, enabled=False), own_saving():
        states = full_precision(states)
        return torch.bmm(weights.to(states.dtype), states).squeeze(1)


@contextmanager
def pooling_inputs(backbone: PreTrainedModel, wanted: set[int], pool: Pool | None) -> Iterator[dict[int, Tensor]]:
    """Pool the input of the layers `wanted` (0 is the first) while the block runs; the answer fills up by layer.

    Each is pooled when its layer is about to run and not after the whole pass, so that its gradient, as large as the
    states, is added to theirs when the backward pass comes by and does not wait there from the start.
    """
    found: dict[int, Tensor] = {}

    def listen(number: int) -> Callable[..., None]:
        def hook(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            assert pool is not None
            found[number] = pool(args[0] if args else kwargs["hidden_states"])

        return hook

    layers = layer_list(backbone)[1] if wanted else nn.ModuleList()
    handles = [layers[number].register_forward_pre_hook(listen(number), with_kwargs=True) for number in sorted(wanted)]
    try:
        yield found
    finally:
        for handle in handles:
            handle.remove()


def own_saving() -> saved_tensors_hooks:
    """Within it, what is saved for the gradient is kept here and hidden from hooks further out.

    It is kept detached (autograd ties it to its graph again): a saved result that knows its own graph would keep that graph, and
    all its memory, where no backward pass frees it.
    """
    return saved_tensors_hooks(Tensor.detach, lambda tensor: tensor)
