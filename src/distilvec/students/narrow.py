"""Narrower feed-forward layers: the neurons that matter most, and a new fit of the weights that read them.

Papers: Hassibi and Stork, "Second Order Derivatives for Network Pruning: Optimal Brain Surgeon" (what leaving out
costs, and the fit); Kurtic et al., "ZipLM: Inference-Aware Structured Pruning of Language Models" (whole neurons).
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import cast

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence
from transformers import PreTrainedModel

from distilvec.core.errors import DistilvecError
from distilvec.students.layers import layer_list, rebuild

_TEXTS, _BATCH = 2048, 32  # of the corpus, which the choice reads, and at once
_SHARE = 64  # one in 64 of the neurons left goes at a time: two that do the same should not go together
_RIDGE = 1e-5  # of the mean variance, so that neurons that never differ have a solution
# what a layer calls the linear layers into its neurons and the one out of them
_NAMES = (
    (("intermediate.dense",), "output.dense"),  # BERT, RoBERTa, XLM-R, ELECTRA
    (("mlp.gate_proj", "mlp.up_proj"), "mlp.down_proj"),  # Qwen, Mistral, Gemma
    (("mlp.Wi",), "mlp.Wo"),  # ModernBERT: values and gates in one
)


@torch.no_grad()
def narrow(backbone: PreTrainedModel, size: int, tokens: Sequence[Sequence[int]] = ()) -> PreTrainedModel:
    """Return the backbone with `size` neurons in every feed-forward layer; a new model of the same class.

    `tokens` are ids of texts. In each layer, the neurons are left out whose loss changes the layer's output on these
    texts least (mean squared error), and the others' outgoing weights are fitted to the old output by least squares.
    Without texts, the neurons with the smallest outgoing weights are left out.

    Errors: DistilvecError for more neurons than there are, and for feed-forward layers of another kind.
    """
    config = copy.deepcopy(backbone.config)
    text, (path, layers) = config.get_text_config(), layer_list(backbone)
    total = getattr(text, "intermediate_size", None)
    names = next((names for names in _NAMES if _has(layers[0], names[1])), None)
    if names is None or not isinstance(total, int):
        raise DistilvecError(
            f"[student.intermediate_size] the feed-forward layers of {type(backbone).__name__} are of another kind "
            "than BERT's, Qwen's, Mistral's, Gemma's and ModernBERT's. Leave it out."
        )
    if not 1 <= size <= total:
        raise DistilvecError(f"[student.intermediate_size] found {size}; give a number from 1 to {total}.")
    if size == total:
        return backbone
    into, out = names
    linears = [cast(nn.Linear, layer.get_submodule(out)) for layer in layers]
    weights = dict(backbone.state_dict())
    for number, (linear, moments) in enumerate(zip(linears, _moments(backbone, linears, tokens), strict=True)):
        kept, fitted, bias = _fit(linear, size, *moments)
        weights[f"{path}.{number}.{out}.weight"] = fitted
        if bias is not None:
            weights[f"{path}.{number}.{out}.bias"] = bias
        for name in (f"{path}.{number}.{part}.{kind}" for part in into for kind in ("weight", "bias")):
            if name in weights:
                halves = weights[name].unflatten(0, (-1, total))
                weights[name] = halves[:, kept].flatten(0, 1)
    text.intermediate_size = size
    return rebuild(backbone, config, weights)


def _has(layer: nn.Module, name: str) -> bool:
    """Return whether a layer has a linear layer of this name."""
    return any(found == name for found, _ in layer.named_modules())


def _moments(
    backbone: PreTrainedModel, linears: Sequence[nn.Linear], tokens: Sequence[Sequence[int]]
) -> list[tuple[Float[Tensor, " n"], Float[Tensor, "n n"]]]:
    """Return the mean and the covariance of what each linear layer reads; without texts 0 and 1."""
    sizes, device = [linear.weight.shape[1] for linear in linears], next(backbone.parameters()).device
    if not tokens:
        return [(torch.zeros(n, dtype=torch.float64), torch.eye(n, dtype=torch.float64)) for n in sizes]
    sums = [torch.zeros(n, dtype=torch.float64) for n in sizes]
    products = [torch.zeros(n, n, dtype=torch.float64) for n in sizes]
    count, mask = 0, torch.empty(0)

    def keep(number: int, read: Tensor) -> None:
        rows = read[mask].float()
        sums[number] += rows.sum(0).double().cpu()
        products[number] += (rows.T @ rows).double().cpu()

    hooks = [
        linear.register_forward_pre_hook(lambda _, inputs, number=number: keep(number, inputs[0]))
        for number, linear in enumerate(linears)
    ]
    training = backbone.training
    backbone.eval()
    try:
        texts = sorted(tokens[:_TEXTS], key=len)
        for start in range(0, len(texts), _BATCH):
            rows = [torch.tensor(text) for text in texts[start : start + _BATCH]]
            ids = pad_sequence(rows, batch_first=True).to(device)
            lengths = torch.tensor([len(row) for row in rows], device=device)
            mask = torch.arange(ids.shape[1], device=device) < lengths[:, None]
            backbone(input_ids=ids, attention_mask=mask.long())
            count += int(lengths.sum())
    finally:
        for hook in hooks:
            hook.remove()
        backbone.train(training)
    means = [total / count for total in sums]
    return [(mean, product / count - torch.outer(mean, mean)) for mean, product in zip(means, products, strict=True)]


def _fit(
    linear: nn.Linear, size: int, mean: Float[Tensor, " n"], covariance: Float[Tensor, "n n"]
) -> tuple[Int[Tensor, " size"], Float[Tensor, "hidden size"], Float[Tensor, " hidden"] | None]:
    """Return the neurons to keep, ascending, the weights that read them, and the bias, None for a layer without one.

    With the inverse of the covariance, P, neuron j costs |w_j|^2 / P_jj; leaving out a set D changes the weights of
    the others, S, by - P_SD P_DD^-1 W_D, and P_SS by - P_SD P_DD^-1 P_DS. A layer without bias cannot correct the mean,
    so its weights are fitted to the second moments instead of the covariance.
    """
    old = linear.weight.double().T.cpu()
    bias: Tensor | None = linear.bias
    gram = covariance if bias is not None else covariance + torch.outer(mean, mean)
    gram = gram + torch.eye(len(gram), dtype=gram.dtype) * (_RIDGE * gram.diagonal().mean())
    inverse, read, kept = torch.linalg.inv(gram), old, torch.arange(len(old))
    while len(kept) > size:
        order = (read.square().sum(1) / inverse.diagonal()).argsort(stable=True)
        count = min(max(1, len(kept) // _SHARE), len(kept) - size)
        gone, stay = order[:count], order[count:].sort().values
        share = torch.linalg.solve(inverse[gone][:, gone], inverse[gone][:, stay])
        read = read[stay] - share.T @ read[gone]
        inverse = inverse[stay][:, stay] - inverse[stay][:, gone] @ share
        kept = kept[stay]
    like = linear.weight
    moved = None if bias is None else (bias.double().cpu() + mean @ old - mean[kept] @ read).to(like)
    return kept, read.T.contiguous().to(like), moved
