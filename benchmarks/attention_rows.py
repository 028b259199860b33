"""What some rows of the attention maps cost over a forward pass that keeps no attention.

    python -m benchmarks.attention_rows --json results/attention_rows.json

all-MiniLM-L6-v2 whole, batches of random tokens (their values do not matter): texts of 20 to 30 tokens, padded, and of
128. Of the last two layers a third of each text's rows is kept. `inference` is a forward pass without gradient,
`training` one with dropout that keeps what the gradient needs, `step` (--kinds) that and its backward pass, through the
rows too. --ways maps: whole maps as well. The ways take turns, in the opposite order every other round; times are
median rounds, ratios medians of the rounds' ratios to `plain`. With one thread (OMP_NUM_THREADS=1) times are the
processor's, which others on the machine hardly change.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from sentence_transformers import SentenceTransformer
from torch import Tensor

from distilvec.core.batch import TextBatch
from distilvec.core.device import keep_memory, pick_device
from distilvec.core.files import write_json
from distilvec.core.outputs import ModelOutputs, OutputSpec
from distilvec.models.load import BUILTIN, resolve_model
from distilvec.students.encoder import Encoder

LENGTHS = {"25": (20, 30), "128": (128, 128)}  # tokens of the shortest and the longest text
MARK = 1.10  # of a forward pass that keeps no attention
PLAIN, ROWS = OutputSpec(embedding=True), OutputSpec(embedding=True, attention_layers=(-2, -1))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, required=True)
    parser.add_argument("--rounds", type=int, default=31)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--lengths", nargs="+", choices=list(LENGTHS), default=list(LENGTHS))
    parser.add_argument("--kinds", nargs="+", choices=list(KINDS), default=["inference", "training"])
    parser.add_argument("--ways", nargs="+", choices=["rows", "maps"], default=["rows"])
    parser.add_argument("--device", default="auto")
    arguments = parser.parse_args()
    device = pick_device(arguments.device)
    keep_memory()  # as in training
    encoder = Encoder(SentenceTransformer(resolve_model(BUILTIN), device=device))
    report: dict[str, Any] = {"mark": MARK, "rounds": arguments.rounds, "batch": arguments.batch}
    report["machine"] = (
        f"{device}, {torch.get_num_threads()} threads, {torch.backends.cpu.get_cpu_capability()}, torch "
        f"{torch.__version__}"
    )
    for length in arguments.lengths:
        batch, rows = make_batch(arguments.batch, LENGTHS[length], device)
        report[length] = {}
        for kind in arguments.kinds:
            found = measure(encoder, batch, rows, kind, ["plain", *arguments.ways], arguments.rounds)
            report[length][kind] = found
            print(f"{length:>4} tokens, {kind:<9} {found}", flush=True)
            write_json(arguments.json, report)


def measure(
    encoder: Encoder, batch: TextBatch, rows: Tensor, kind: str, ways: list[str], rounds: int
) -> dict[str, float]:
    """Milliseconds of each way, and what the others take of `plain`'s."""
    run, device = KINDS[kind], batch.rows.device.type
    encoder.train(kind != "inference")
    for way in ways:
        run(encoder, batch, way, rows)
    seconds: dict[str, list[float]] = {way: [] for way in ways}
    for number in range(rounds):
        for way in ways if number % 2 else ways[::-1]:
            began = now(device)
            run(encoder, batch, way, rows)
            seconds[way].append(now(device) - began)
    ratios = {
        way: statistics.median(a / b for a, b in zip(seconds[way], seconds["plain"], strict=True)) for way in ways[1:]
    }
    milliseconds = {f"{way}_ms": round(1000 * statistics.median(values), 2) for way, values in seconds.items()}
    return {**milliseconds, **{way: round(ratio, 4) for way, ratio in ratios.items()}}


def make_batch(texts: int, lengths: tuple[int, int], device: str) -> tuple[TextBatch, Tensor]:
    """Random texts of these lengths, and a third of each one's positions."""
    generator = torch.Generator().manual_seed(0)
    sizes = torch.randint(lengths[0], lengths[1] + 1, (texts,), generator=generator)
    mask = torch.arange(int(sizes.max())) < sizes[:, None]
    ids = torch.randint(1000, 30000, mask.shape, generator=generator) * mask
    tokens = {"input_ids": ids} if bool(mask.all()) else {"input_ids": ids, "attention_mask": mask.long()}
    order = torch.rand(mask.shape, generator=generator).masked_fill(~mask, 2.0).argsort(1)[:, : mask.shape[1] // 3]
    rows = order.where(torch.arange(order.shape[1]) < sizes[:, None] // 3, -1)
    batch = TextBatch(torch.arange(texts), tokens, torch.zeros(texts, dtype=torch.long))
    return batch.to(torch.device(device)), rows.to(device)


def infer(encoder: Encoder, batch: TextBatch, way: str, rows: Tensor) -> None:
    """A forward pass without gradient."""
    with torch.no_grad():
        train(encoder, batch, way, rows)


def train(encoder: Encoder, batch: TextBatch, way: str, rows: Tensor) -> ModelOutputs:
    """A forward pass."""
    ways: dict[str, Callable[[], ModelOutputs]] = {
        "plain": lambda: encoder(batch, PLAIN),
        "rows": lambda: encoder(batch, ROWS, rows),
        "maps": lambda: encoder(batch, ROWS),
    }
    return ways[way]()


def step(encoder: Encoder, batch: TextBatch, way: str, rows: Tensor) -> None:
    """A forward pass and the backward pass of a loss on all that it gives."""
    encoder.zero_grad(set_to_none=True)
    found = train(encoder, batch, way, rows)
    assert found.embedding is not None
    loss = found.embedding[:, 0].sum()
    for kept in found.attentions.values():
        loss = loss + kept.square().sum()
    torch.autograd.backward(loss)


KINDS: dict[str, Callable[[Encoder, TextBatch, str, Tensor], Any]] = {
    "inference": infer,
    "training": train,
    "step": step,
}


def now(device: str) -> float:
    """Seconds, when the device has done what it was told; of this process's own computing where that is one thread's."""  # noqa: E501
    if device == "cuda":
        torch.cuda.synchronize()
    return time.process_time() if device == "cpu" and torch.get_num_threads() == 1 else time.perf_counter()


if __name__ == "__main__":
    main()
