"""Caching and training on a GPU against sentence-transformers: BERT of base and large size with random weights.

    python -m benchmarks.gpu --json results/gpu.json
    python -m benchmarks.gpu --json FILE --sizes tiny --device cpu --texts 64 --repeats 1      anywhere, in a minute

Caching: ours is everything that filling a cache does (tokenizing, the model, checks, float16 shards); the peer is
`SentenceTransformer.encode` at its best batch size, tried first, with its weights in the same precision. Training: the
un-squared L2 distance to the cached vectors on both sides, the same weights, texts, size of batches and rate
(benchmarks/training.py has both sides). Sides alternate; figures are medians. bf16 on both sides where the device has
it. The peer needs sentence-transformers 6.2: the data collator of 6.0 takes one number as the label of a text. In the
JSON, by size:

    caching, training       texts a second of each side, their ratio, peak GPU megabytes
    share_of_peak           of the rate of a large bf16 matrix product, measured first (6 x parameters x tokens a text
                            in training, 2 x in caching); padding is not counted
    busy                    share of samples in which a kernel ran, by nvidia-smi, while ours worked; absent on the CPU
"""

from __future__ import annotations

import argparse
import copy
import gc
import json
import logging
import os
import shutil
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Pooling, Transformer
from tokenizers import BertWordPieceTokenizer
from transformers import BertConfig, BertModel, BertTokenizerFast

from benchmarks.markdown import markdown_table
from benchmarks.stopwatch import machine
from benchmarks.texts import sample_texts
from benchmarks.training import Ours, Peer
from distilvec.config.schema import CorpusSection, MethodSection, Recipe, SourceSection, TeacherSection
from distilvec.config.student import StudentSection
from distilvec.core.device import fast_bf16
from distilvec.core.files import write_json
from distilvec.pipeline.job import Job
from distilvec.pipeline.resolve import resolve
from distilvec.pipeline.student import untrained_student
from distilvec.teachers.cache.fill import fill_cache
from distilvec.teachers.cache.store import TeacherCache
from distilvec.teachers.open import load_teacher

SIZES = {  # layers, dims, heads, vocabulary; base and large have BERT's own
    "tiny": (2, 64, 2, 1000),
    "base": (12, 768, 12, 30522),
    "large": (24, 1024, 16, 30522),
}
BATCH_SIZES = (32, 128, 512)  # tried for the peer's encode
LEARNING_RATE = 1e-4  # of both sides


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, required=True)
    parser.add_argument("--sizes", nargs="+", choices=list(SIZES), default=["base", "large"])
    parser.add_argument("--texts", type=int, default=16384, help="texts a round")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--batch-size", type=int, default=128, help="texts a step of training, both sides")
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument(
        "--data", type=Path, default=None, help="english_text.jsonl.gz; generated texts where it is absent"
    )
    arguments = parser.parse_args()
    if arguments.device == "cuda" and not torch.cuda.is_available():
        raise SystemExit("[--device] no GPU is here. Give --device cpu --sizes tiny to try the command.")
    logging.disable(logging.WARNING)
    precision = "bf16" if fast_bf16(arguments.device) else "fp32"
    report: dict[str, Any] = {
        "machine": torch.cuda.get_device_name() if arguments.device == "cuda" else machine(),
        "torch": torch.__version__,
        "precision": precision,
        "matmul_tflops": float(f"{matmul_rate(arguments.device, precision):.3g}"),
        "texts_a_round": arguments.texts,
        "batch_size": arguments.batch_size,
    }
    for size in arguments.sizes:
        with tempfile.TemporaryDirectory() as folder:
            os.environ["DISTILVEC_CACHE"] = folder
            report[size] = measure(size, Path(folder), precision, report["matmul_tflops"], arguments)
        write_json(arguments.json, report)
    print(json.dumps(report, indent=1))


def measure(size: str, folder: Path, precision: str, peak: float, arguments: argparse.Namespace) -> dict[str, Any]:
    """Both jobs of one model size."""
    texts, origin = sample_texts(arguments.texts * arguments.repeats + 128, arguments.data)
    (folder / "texts.txt").write_text("\n".join(texts), encoding="utf-8")
    make_model(size, texts, folder / "model")
    recipe = Recipe(
        name="benchmark",
        teacher=TeacherSection(model=str(folder / "model"), dtype="bfloat16" if precision == "bf16" else "float32"),
        student=StudentSection(model="teacher"),
        corpus=CorpusSection(sources=[SourceSection(path=folder / "texts.txt")]),
        method=MethodSection(name="redact"),
    )
    job = resolve(recipe, folder / "run")
    caching, cache = measure_caching(job, folder, precision, arguments)
    training = measure_training(job, cache, precision, arguments)
    tokens = training.pop("tokens_a_text")
    parameters = sum(p.numel() for p in untrained_student(job)[0].auto_model.encoder.parameters() if p.ndim == 2)
    for passes, found in ((2, caching), (6, training)):
        flops = passes * parameters * tokens * found["texts_per_second"]["ours"]
        found["share_of_peak"] = round(flops / 1e12 / peak, 4)
    return {"texts": origin, "tokens_a_text": round(tokens, 2), "caching": caching, "training": training}


def make_model(size: str, texts: list[str], folder: Path) -> None:
    """A BERT with random weights and a WordPiece tokenizer of these texts, as a SentenceTransformer folder."""
    layers, dims, heads, vocabulary = SIZES[size]
    trainer = BertWordPieceTokenizer()
    trainer.train_from_iterator(texts, vocab_size=vocabulary, show_progress=False)
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=vocabulary,
        hidden_size=dims,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        intermediate_size=4 * dims,
    )
    plain = folder.with_name(f"{folder.name}-bert")
    BertModel(config).save_pretrained(plain)
    BertTokenizerFast(tokenizer_object=trainer._tokenizer, model_max_length=512).save_pretrained(plain)
    backbone = Transformer(str(plain), max_seq_length=512)
    SentenceTransformer(modules=[backbone, Pooling(dims)], device="cpu").save(str(folder))
    shutil.rmtree(plain)


def measure_caching(
    job: Job, folder: Path, precision: str, arguments: argparse.Namespace
) -> tuple[dict[str, Any], TeacherCache]:
    """Texts a second of filling a cache and of the peer's encode; and a filled cache."""
    device, texts = arguments.device, job.corpus.stored(range(len(job.corpus)))
    dtype = torch.bfloat16 if precision == "bf16" else torch.float32
    peer = SentenceTransformer(str(folder / "model"), device=device, model_kwargs={"dtype": dtype})
    ours = load_teacher(job.recipe.teacher, device)
    warm = texts[: min(len(texts), 512)]
    ours.embed(warm)
    tried = {size: clock(partial(encode, peer, texts[: len(texts) // 4], size), device)[0] for size in BATCH_SIZES}
    best = min(tried, key=tried.__getitem__)
    seconds: dict[str, list[float]] = {"ours": [], "peer": []}
    memory: dict[str, list[float]] = {"ours": [], "peer": []}
    busy: list[float] = []
    for turn in range(arguments.repeats):
        cache = TeacherCache.create_or_open(folder / f"cache-{turn}", ours.manifest())
        with sampled_use(device, busy):
            figures = {"ours": clock(partial(fill_cache, cache, job.corpus, ours), device)}
        figures["peer"] = clock(partial(encode, peer, texts, best), device)
        for name, (spent, megabytes) in figures.items():
            seconds[name].append(spent)
            memory[name].append(megabytes)
    rates = {name: len(texts) / statistics.median(values) for name, values in seconds.items()}
    return {**summary(rates, memory, busy, device), "peer_batch_size": best}, cache


def measure_training(job: Job, cache: TeacherCache, precision: str, arguments: argparse.Namespace) -> dict[str, Any]:
    """Texts a second of both training loops, from the same weights on the same texts."""
    device, student = arguments.device, untrained_student(job)
    settings = (precision, LEARNING_RATE, device, arguments.batch_size)
    ours = Ours(job, cache, copy.deepcopy(student), *settings)
    peer = Peer(job, cache, student, *settings)
    rounds = np.array_split(job.corpus.train_rows[: arguments.texts * arguments.repeats], arguments.repeats)
    rates: dict[str, list[float]] = {"ours": [], "peer": []}
    memory: dict[str, list[float]] = {"ours": [], "peer": []}
    busy: list[float] = []
    for number, rows in enumerate([rounds[0][: 4 * arguments.batch_size], *rounds]):  # the first, short one warms up
        for name, side in (("ours", ours), ("peer", peer)):
            with sampled_use(device, busy if name == "ours" and number else []):
                seconds: list[float] = []  # the loop's own: what a side prepares before it does not count
                _, megabytes = clock(lambda: seconds.append(side.train(rows).seconds), device)  # noqa: B023
            if number:
                rates[name].append(len(rows) / seconds[0])
                memory[name].append(megabytes)
    medians = {name: statistics.median(values) for name, values in rates.items()}
    tokens = float(ours.tokens.lengths[job.corpus.train_rows].mean())
    return {**summary(medians, memory, busy, device), "tokens_a_text": tokens}


def summary(rates: dict[str, float], memory: dict[str, list[float]], busy: list[float], device: str) -> dict[str, Any]:
    """The figures of one job."""
    found: dict[str, Any] = {
        "ratio": round(rates["ours"] / rates["peer"], 3),
        "texts_per_second": {name: round(rate, 1) for name, rate in rates.items()},
    }
    if device == "cuda":
        found["peak_megabytes"] = {name: round(max(values)) for name, values in memory.items()}
        found["busy"] = round(statistics.mean(busy), 3) if busy else None
    return found


def encode(model: SentenceTransformer, texts: list[str], size: int) -> None:
    """The peer's vectors, as NumPy: what a user would store."""
    model.encode(texts, batch_size=size, show_progress_bar=False)


def clock(job: Callable[[], Any], device: str) -> tuple[float, float]:
    """Seconds of a job, and the peak of GPU memory that torch held during it, in MB (0 on the CPU)."""
    gc.collect()
    if device == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
        torch.cuda.synchronize()
    began = time.perf_counter()
    job()
    if device == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - began, torch.cuda.max_memory_allocated() / 2**20 if device == "cuda" else 0.0


@contextmanager
def sampled_use(device: str, found: list[float]) -> Iterator[None]:
    """Append nvidia-smi's share of time in which a kernel ran, sampled five times a second; nothing on the CPU."""
    if device != "cuda":
        yield
        return
    command = ["nvidia-smi", "--query-gpu=utilization.gpu", "--format=csv,noheader,nounits", "--loop-ms=200"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield
        finally:
            process.terminate()
            lines = process.communicate()[0].splitlines()
    found += [float(line) / 100 for line in lines[2:] if line.strip().isdigit()]


def gpu_table(found: dict[str, Any]) -> str:
    """Return a line for each job and model size of a report."""
    head = ["BERT, job", "distilvec, texts/s", "peer, texts/s", "ratio", "GPU busy, %"]
    lines = []
    for size in SIZES:
        for job in ("caching", "training"):
            row = found.get(size, {}).get(job)
            if row is not None:
                rates = [f"{row['texts_per_second'][side]:,.0f}" for side in ("ours", "peer")]
                cells = [f"{size}, {job}", *rates, f"{row['ratio']:.2f}", f"{100 * row['busy']:.0f}"]
                lines.append(cells)
    rounds = f"{found['texts_a_round']:,} texts a round, batches of {found['batch_size']} in training"
    setting = f"{found['machine']}, torch {found['torch']}, {found['precision']}, {rounds}."
    return f"{markdown_table(head, lines)}\n\n{setting}"


def matmul_rate(device: str, precision: str) -> float:
    """Measured rate of a large matrix product, in TFLOP/s (best of ten)."""
    size = 8192 if device == "cuda" else 1024
    dtype = torch.bfloat16 if precision == "bf16" else torch.float32
    a, b = (torch.randn(size, size, device=device, dtype=dtype) for _ in range(2))
    a @ b
    return 2 * size**3 / min(clock(partial(torch.matmul, a, b), device)[0] for _ in range(10)) / 1e12


if __name__ == "__main__":
    main()
