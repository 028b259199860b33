"""Fully sharded data parallel (torch's FSDP2): each process holds its part of an encoder's weights, nothing else.

A layer's weights are gathered just before the layer runs, forward and backward, and released after it; its gradients
are averaged and split. So weights, gradients and the optimizer's state take 1 / n of their memory in n processes.
Values are those of whole weights: a checkpoint and a saved student hold whole tensors and do not show the shards.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from sentence_transformers import SentenceTransformer
from torch import Tensor, nn

from distilvec.config.training import TrainSection
from distilvec.core import processes
from distilvec.core.outputs import ModelOutputs, Projections
from distilvec.students.encoder import Encoder
from distilvec.students.layers import layer_list

_PLAIN = "plain_copy"  # of a sharded encoder: its model on the meta device, where weights take no memory


def sharding(train: TrainSection) -> bool:
    """Return whether to shard: the recipe asks for it, and there are several processes."""
    return train.shard and processes.world_size() > 1


def shard(encoder: Encoder, device: torch.device, bf16: bool = False) -> None:
    """Shard the encoder in place, layer by layer, then what is left of it; frozen and trained parameters.

    The main process's values count. Each layer moves to the device by itself, so the whole model never needs to fit.
    With `bf16`, layers are gathered in bf16: autocast would keep a copy in bf16 of all layers until the backward pass.
    Embeddings, later modules and gradients stay in fp32.
    """
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    parameters = {id(p): nn.Parameter(p.detach().to("meta"), p.requires_grad) for p in encoder.model.parameters()}
    plain = copy.deepcopy(encoder.model, dict(parameters))
    object.__setattr__(encoder, _PLAIN, plain)  # no submodule of the encoder
    in_bf16 = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32, cast_forward_inputs=False)
    mesh = init_device_mesh(device.type, (processes.world_size(),))
    _, layers = layer_list(encoder.backbone)
    for part in (*layers, encoder):
        processes.broadcast(part.to(device))
        policy = in_bf16 if bf16 and part is not encoder else MixedPrecisionPolicy()
        fully_shard(part, mesh=mesh, reshard_after_forward=True, mp_policy=policy)
    warnings.filterwarnings("ignore", "FSDP2-wrapped module .* returned a view")  # nothing changes outputs in place
    encoder.register_forward_hook(partial(_gather_for_inner_outputs, layers))


def _gather_for_inner_outputs(layers: nn.ModuleList, encoder: nn.Module, inputs: Any, outputs: ModelOutputs) -> None:
    """Gather a layer's weights for the gradient of its attention maps, or of its queries, keys and values.

    FSDP itself gathers them for the gradient of the layer's output only, which the loss may not use.
    """

    def gather(layer: Any, gradient: Tensor) -> None:
        layer.unshard()

    inner: list[tuple[int, Tensor | Projections]] = [*outputs.attentions.items(), *outputs.projections.items()]
    for number, output in inner:
        layer = layers[number - 1 if number > 0 else number]
        values = (output.query, output.key, output.value) if isinstance(output, Projections) else (output,)
        for value in values:
            if value.requires_grad:
                value.register_hook(partial(gather, layer))  # type: ignore[no-untyped-call]


def local_part(value: Any) -> Tensor:
    """Return the part of a sharded tensor that is here, detached; any other tensor itself."""
    part: Tensor = value.detach().to_local() if processes.is_sharded(value) else value
    return part


def like(value: Tensor, parameter: Any) -> Tensor:
    """Return a copy of a whole tensor on a parameter's device, sharded as the parameter is."""
    if not processes.is_sharded(parameter):
        return value.to(parameter.device, copy=True)
    from torch.distributed.tensor import distribute_tensor

    return distribute_tensor(value, parameter.device_mesh, parameter.placements, src_data_rank=None).clone()


def gathered(tensors: Mapping[str, Any]) -> dict[str, Tensor]:
    """Return the tensors, sharded ones whole in the CPU's memory of the main process; the others get none of these.

    Every process must call this.
    """
    whole_tensors = {}
    for name, value in tensors.items():
        if not processes.is_sharded(value):
            whole_tensors[name] = value
            continue
        with processes.exchange():  # all processes take part, or the others wait for ever
            whole = value.detach().full_tensor()
        if processes.is_main():
            whole_tensors[name] = whole.cpu()
    return whole_tensors


@contextmanager
def whole_model(encoder: Encoder) -> Iterator[SentenceTransformer | None]:
    """Give the encoder's model in the main process, with whole weights, and None in others. All must enter this."""
    plain = getattr(encoder, _PLAIN, None)
    if plain is None:
        yield encoder.model if processes.is_main() else None
        return
    weights = gathered(encoder.model.state_dict())
    if not processes.is_main():
        yield None
        return
    model = copy.deepcopy(plain)
    model.load_state_dict(weights, assign=True)
    yield model.to("cpu")


def gradient_norm(gradients: Iterable[Tensor]) -> Tensor:
    """Return the norm of all gradients, of which sharded ones are spread over the processes."""
    sharded: list[Tensor] = []
    plain: list[Tensor] = []
    for gradient in gradients:
        group = sharded if processes.is_sharded(gradient) else plain
        group.append(local_part(gradient))
    norm = torch.nn.utils.get_total_norm(plain)
    if not sharded:
        return norm
    squared = processes.total(torch.nn.utils.get_total_norm(sharded).square())
    return (squared + norm.to(squared.device).square()).sqrt()


def clip_gradients(parameters: Iterable[nn.Parameter], most: float) -> Tensor:
    """Scale the gradients to a norm of at most `most`, as `torch.nn.utils.clip_grad_norm_`; return the norm before."""
    gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
    norm = gradient_norm(gradients)
    if gradients:
        scale = (most / (norm + 1e-6)).clamp(max=1.0)
        torch._foreach_mul_([local_part(gradient) for gradient in gradients], scale)
    return norm
