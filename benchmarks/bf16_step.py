"""Where the time of a bf16 training step on a CPU goes: the step, the same without a cast inside, its products alone.

    python -m benchmarks.bf16_step --json results/bf16_step.json

The student is three layers of all-MiniLM-L6-v2, batches have 32 texts of 48 tokens, one thread. `autocast` is the step
as training takes it: fp32 weights, activations that are cast for products. In `no casts` weights are cast once a step,
and activations stay bf16 from layer to layer. `products` multiplies matrices of the shapes of all linear layers, once
forward and twice backward, and nothing else. Milliseconds of the processor, medians; the ways alternate. A step can
become faster by at most the difference to its products, unless the products themselves do.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from sentence_transformers import SentenceTransformer
from torch import Tensor, nn
from torch.func import functional_call

from benchmarks.markdown import markdown_table
from benchmarks.stopwatch import machine
from distilvec.core.batch import TextBatch
from distilvec.core.device import fast_bf16
from distilvec.core.files import write_json
from distilvec.core.outputs import OutputSpec
from distilvec.models.load import resolve_model
from distilvec.students.encoder import Encoder
from distilvec.students.layers import cut_layers

TEXTS, TOKENS, LAYERS = 32, 48, [0, 2, 4]
STEPS, WARM = 20, 3
BF16 = torch.bfloat16


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, required=True)
    arguments = parser.parse_args()
    if not fast_bf16("cpu"):
        raise SystemExit("this processor has no bf16 products: training computes in fp32.")
    torch.set_num_threads(1)
    result = {"machine": machine(), "milliseconds": measure()}
    write_json(arguments.json, result)
    print(json.dumps(result, indent=1))
    print(table(result))


def measure() -> dict[str, float]:
    """Milliseconds of the processor for each way."""
    ways = {"autocast": autocast_step(), "no casts": native_step(), "products": products()}
    times: dict[str, list[float]] = {name: [] for name in ways}
    for number in range(WARM + STEPS):
        for name, step in ways.items():
            began = time.process_time()
            step()
            if number >= WARM:
                times[name].append(1000 * (time.process_time() - began))
    return {name: round(statistics.median(values), 1) for name, values in times.items()}


def student() -> Encoder:
    """Three layers, with dropout off as in a regression."""
    model = SentenceTransformer(resolve_model("all-MiniLM-L6-v2"), device="cpu")
    model[0].model = cut_layers(model[0].auto_model, LAYERS)
    return Encoder(model.eval())


def batch() -> TextBatch:
    """Random tokens; no padding."""
    mask = torch.ones(TEXTS, TOKENS, dtype=torch.int64)
    tokens = {"input_ids": torch.randint(1000, 20_000, mask.shape), "attention_mask": mask}
    return TextBatch(torch.arange(TEXTS), tokens, mask.bool())


def autocast_step() -> Callable[[], None]:
    """A step as training takes it."""
    encoder, texts = student(), batch()

    def embed() -> Tensor:
        with torch.autocast("cpu", BF16):
            embedding = encoder(texts, OutputSpec(embedding=True)).embedding
        assert embedding is not None
        return embedding

    return trained(encoder, embed)


def native_step() -> Callable[[], None]:
    """A step with a bf16 copy of the weights, and bf16 activations from layer to layer."""
    encoder, texts = student(), batch()
    backbone = encoder.backbone
    tables = {id(layer.weight) for layer in backbone.modules() if isinstance(layer, nn.Embedding)}
    for layer in backbone.modules():
        if isinstance(layer, nn.Embedding):
            layer.register_forward_hook(lambda layer, inputs, rows: rows.to(BF16))

    def embed() -> Tensor:
        parameters = backbone.named_parameters()
        copies = {name: weight.to(BF16) for name, weight in parameters if id(weight) not in tables}
        output = functional_call(backbone, copies, (), {**texts.tokens, "return_dict": True})
        return F.normalize(output.last_hidden_state.float().mean(1), dim=-1)

    return trained(encoder, embed)


def trained(encoder: Encoder, embed: Callable[[], Tensor]) -> Callable[[], None]:
    """A step of AdamW towards random vectors."""
    optimizer = torch.optim.AdamW(encoder.parameters(), lr=1e-4, fused=True)
    target = F.normalize(torch.randn(TEXTS, 384), dim=-1)

    def step() -> None:
        (embed() - target).norm(dim=-1).mean().backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return step


def products() -> Callable[[], None]:
    """The products of all linear layers: the result, the gradient of the input, the gradient of the weights."""
    factors = []
    for layer in student().backbone.modules():
        if isinstance(layer, nn.Linear):
            rows, weight = torch.randn(TEXTS * TOKENS, layer.in_features, dtype=BF16), layer.weight.detach().to(BF16)
            factors.append((rows, weight, torch.randn(TEXTS * TOKENS, layer.out_features, dtype=BF16)))

    def step() -> None:
        for rows, weight, gradient in factors:
            F.linear(rows, weight)
            torch.mm(gradient, weight)
            torch.mm(gradient.T, rows)

    return step


def table(result: dict[str, Any]) -> str:
    """The ways as Markdown."""
    whole = result["milliseconds"]["autocast"]
    lines = [[name, f"{value:,.0f}", f"{value / whole:.2f}"] for name, value in result["milliseconds"].items()]
    return markdown_table(["a bf16 step", "milliseconds of the processor", "share of the step"], lines)


if __name__ == "__main__":
    main()
