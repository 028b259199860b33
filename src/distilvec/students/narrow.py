"""Narrower feed-forward layers: the neurons that matter most, and a new fit of the weights that read them.

Papers: Hassibi and Stork, "Second Order Derivatives for Network Pruning: Optimal Brain Surgeon" (what leaving out
costs, and the fit); Kurtic et al., "ZipLM: Inference-Aware Structured Pruning of Language Models" (whole neurons).
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import cast

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence
from transformers import PreTrainedModel

from distilvec.core.errors import DistilvecError
from distilvec.students.layers import rebuild

_TEXTS = 2048  # that are read
_LENGTH = 512  # tokens of each
_BATCH = 32  # texts at once
_BYTES = 1 << 31  # of covariances in memory
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

    `tokens` are ids of texts. In each layer, the neurons are removed whose removal changes the layer's output on these
    texts least (mean squared error), and the outgoing weights of the others are fitted to the old output by least
    squares. Without texts, the neurons with the smallest outgoing weights are removed.
    """
    config = copy.deepcopy(backbone.config)
    text = config.get_text_config()
    layers, into, out = feed_forward_names(backbone)
    total = text.intermediate_size
    if not 1 <= size <= total:
        raise DistilvecError(f"found {size}; give a number from 1 to {total}.", key="student.intermediate_size")
    if size == total:
        return backbone
    weights = dict(backbone.state_dict())
    linears = {f"{layer}.{out}": cast(nn.Linear, backbone.get_submodule(f"{layer}.{out}")) for layer in layers}
    for layer, (name, moments) in zip(layers, _moments(backbone, linears, tokens), strict=True):
        neurons, fitted, bias = _fit(linears[name], size, moments)
        weights[f"{name}.weight"] = fitted
        if bias is not None:
            weights[f"{name}.bias"] = bias
        for part in into:
            for key in (f"{layer}.{part}.weight", f"{layer}.{part}.bias"):
                if key in weights:  # one layer may hold gates and values, one block of `total` rows each
                    weights[key] = weights[key].unflatten(0, (-1, total))[:, neurons].flatten(0, 1)
    text.intermediate_size = size
    return rebuild(backbone, config, weights)


def feed_forward_names(backbone: PreTrainedModel) -> tuple[list[str], tuple[str, ...], str]:
    """Return the names of the layers, and what a layer calls the linear layers into its neurons and out of them."""
    text = backbone.config.get_text_config()
    neurons = getattr(text, "intermediate_size", None)  # of Gemma 3n a list, one for each layer
    shapes = {name: part.weight.shape for name, part in backbone.named_modules() if isinstance(part, nn.Linear)}
    for into, out in _NAMES:
        layers = []
        for name in shapes:
            layer = name.removesuffix(f".{out}")
            if name.endswith(f".{out}") and all(f"{layer}.{part}" in shapes for part in into):
                layers.append(layer)
        columns = {shapes[f"{layer}.{out}"][1] for layer in layers}
        rows = {shapes[f"{layer}.{part}"][0] for layer in layers for part in into}
        # ModernBERT's one linear layer into the neurons has rows for values and for gates
        have_neurons = isinstance(neurons, int) and columns == {neurons} and rows in ({neurons}, {2 * neurons})
        if len(layers) == text.num_hidden_layers and have_neurons:
            return layers, into, out
    raise DistilvecError(
        f"the feed-forward layers of {type(backbone).__name__} are of another kind than BERT's, Qwen's, Mistral's, "
        "Gemma's and ModernBERT's.",
        "Leave it out.",
        key="student.intermediate_size",
    )


@dataclass(frozen=True)
class _Moments:
    """Mean and covariance of what a linear layer reads."""

    mean: Float[Tensor, " n"]
    covariance: Float[Tensor, "n n"]


def _moments(
    backbone: PreTrainedModel, linears: Mapping[str, nn.Linear], tokens: Sequence[Sequence[int]]
) -> Iterator[tuple[str, _Moments | None]]:
    """Yield the moments of each linear layer by name, None without texts; no more at a time than memory allows."""
    if not tokens:
        yield from dict.fromkeys(linears).items()
        return
    drawn = np.random.default_rng(0).permutation(len(tokens))[:_TEXTS]
    texts = sorted((torch.tensor(tokens[row][:_LENGTH]) for row in drawn.tolist()), key=len)
    names = list(linears)
    step = max(1, _BYTES // (8 * linears[names[0]].in_features ** 2))
    for start in range(0, len(names), step):
        moments = _read(backbone, {name: linears[name] for name in names[start : start + step]}, texts)
        for name in list(moments):
            yield name, moments.pop(name)  # the caller frees each covariance, which is large, before the next one


def _read(backbone: PreTrainedModel, linears: Mapping[str, nn.Linear], texts: Sequence[Tensor]) -> dict[str, _Moments]:
    """Run the backbone on texts, the shortest first, and return the moments of what these linear layers read."""
    device = next(backbone.parameters()).device
    count = sum(map(len, texts))
    mask = torch.empty(0)  # of the batch that runs; the hooks read it
    sums = {name: torch.zeros(linear.in_features, dtype=torch.float64) for name, linear in linears.items()}
    products = {name: torch.zeros(len(total), len(total), dtype=torch.float64) for name, total in sums.items()}

    def add(name: str, states: Tensor) -> None:
        rows = states[:, : mask.shape[1]][mask].float()  # Longformer pads on the right to whole windows
        sums[name] += rows.sum(0).double().cpu()
        products[name] += (rows.T @ rows).double().cpu()

    hooks = [
        linear.register_forward_pre_hook(lambda _, inputs, name=name: add(name, inputs[0]))
        for name, linear in linears.items()
    ]
    training = backbone.training
    backbone.eval()
    try:
        for start in range(0, len(texts), _BATCH):
            rows = texts[start : start + _BATCH]
            ids = pad_sequence(list(rows), batch_first=True).to(device)
            lengths = torch.tensor([len(row) for row in rows], device=device)
            mask = torch.arange(ids.shape[1], device=device) < lengths[:, None]
            backbone(input_ids=ids, attention_mask=mask.long())
    finally:
        for hook in hooks:
            hook.remove()
        backbone.train(training)
    moments = {}
    for name, total in sums.items():
        mean = total / count
        covariance = products.pop(name).div_(count).sub_(torch.outer(mean, mean))
        moments[name] = _Moments(mean, covariance)
    return moments


def _fit(
    linear: nn.Linear, size: int, moments: _Moments | None
) -> tuple[Int[Tensor, " size"], Float[Tensor, "hidden size"], Float[Tensor, " hidden"] | None]:
    """Return the neurons to keep, ascending, the weights that read them, and the bias, None for a layer without one.

    A layer without bias cannot correct the mean, so its weights are fitted to the second moments instead of the
    covariance.
    """
    weight = linear.weight
    bias = cast(Tensor | None, linear.bias)
    if moments is None:
        neurons = weight.float().square().sum(0).topk(size).indices.sort().values.cpu()
        return neurons, weight[:, neurons], bias
    whole = weight.double().T.cpu()
    mean = moments.mean
    gram = moments.covariance if bias is not None else moments.covariance + torch.outer(mean, mean)
    neurons, fitted = _remove(whole, gram, size)
    fitted_bias = None
    if bias is not None:  # the mean of the output stays
        fitted_bias = (bias.double().cpu() + mean @ whole - mean[neurons] @ fitted).to(weight)
    return neurons, fitted.T.contiguous().to(weight), fitted_bias


def _remove(
    weights: Float[Tensor, "neurons hidden"], gram: Float[Tensor, "neurons neurons"], size: int
) -> tuple[Int[Tensor, " size"], Float[Tensor, "size hidden"]]:
    """Remove the neurons that cost least, a share at a time; the `size` that stay, ascending, and their weights.

    With the inverse of the covariance, P, neuron j costs |w_j|^2 / P_jj; removing a set D changes the weights of the
    others, S, by - P_SD P_DD^-1 W_D, and P_SS by - P_SD P_DD^-1 P_DS.
    """
    ridge = torch.eye(len(gram), dtype=gram.dtype) * (_RIDGE * gram.diagonal().mean())
    inverse = torch.linalg.inv(gram + ridge)
    neurons = torch.arange(len(weights))
    while len(neurons) > size:
        costs = weights.square().sum(1) / inverse.diagonal()
        count = min(max(1, len(neurons) // _SHARE), len(neurons) - size)
        order = costs.argsort(stable=True)
        removed, kept = order[:count], order[count:].sort().values
        share = torch.linalg.solve(inverse[removed][:, removed], inverse[removed][:, kept])  # P_DD^-1 P_DS
        weights = weights[kept] - share.T @ weights[removed]
        inverse = inverse[kept][:, kept] - inverse[kept][:, removed] @ share
        neurons = neurons[kept]
    return neurons, weights
