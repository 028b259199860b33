"""Teacher caching speed against SentenceTransformer.encode: same texts, same model (all-MiniLM-L6-v2), alternated runs.

    python -m benchmarks.caching --json FILE

The peer runs at its best batch size, tried first, in fp32 and in bf16 (weights loaded as bf16). Ours is everything that
filling a cache does: tokenising, the model, checks, and writing float16 shards. bf16 is measured where the processor
has it. Figures are medians; in the JSON:

    ratio_fp32          ours in fp32 over the peer in fp32
    ratio_bf16          ours in bf16 over the peer as it is called by default, in fp32
    ratio_bf16_vs_bf16  ours in bf16 over the peer with its weights in bf16
    processor_ratio_*   the same of processor time: on a busy machine compare this
    load_before         load average when the command began; a run on a busy machine says so
    minimum_cosine      of each side's vectors to the peer's in fp32 (float32, before they are stored)
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import statistics
import tempfile
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import sentence_transformers
import torch
import transformers
from sentence_transformers import SentenceTransformer

from benchmarks.stopwatch import busy_note, spent
from benchmarks.texts import sample_texts
from distilvec.config.schema import CorpusSection, SourceSection, TeacherSection
from distilvec.core.device import fast_bf16
from distilvec.core.files import write_json
from distilvec.core.vectors import cosine_pairs
from distilvec.data.corpus import Corpus, build_corpus
from distilvec.models.load import resolve_model
from distilvec.teachers.cache.fill import fill_cache
from distilvec.teachers.cache.store import TeacherCache
from distilvec.teachers.model_embedder import ModelEmbedder
from distilvec.teachers.open import load_teacher

MODEL = "all-MiniLM-L6-v2"
Vectors = npt.NDArray[np.float32]


def main() -> None:
    load = os.getloadavg()[0]
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, required=True)
    parser.add_argument("--texts", type=int, default=4096)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument(
        "--data", type=Path, default=None, help="english_text.jsonl.gz; generated texts where it is absent"
    )
    parser.add_argument("--batch-sizes", type=int, nargs="+", default=[8, 16, 32, 64, 128], help="tried for the peer")
    arguments = parser.parse_args()
    logging.disable(logging.WARNING)
    with tempfile.TemporaryDirectory() as folder:
        report = measure(arguments.texts, arguments.repeats, arguments.batch_sizes, arguments.data, Path(folder))
    report |= {"load_before": round(load, 2), "cores": os.cpu_count()}
    write_json(arguments.json, report)
    print(json.dumps(report, indent=1))
    if note := busy_note(load):
        print(note)


def measure(count: int, repeats: int, sizes: list[int], data: Path | None, folder: Path) -> dict[str, Any]:
    """Both sides in both precisions, in turn; everything the JSON holds."""
    texts, origin = sample_texts(count, data)
    corpus = _corpus(texts, folder)
    texts = corpus.stored(range(len(corpus)))
    precisions = {"fp32": torch.float32}
    if fast_bf16("cpu"):
        precisions["bf16"] = torch.bfloat16

    peers = {name: _peer(dtype) for name, dtype in precisions.items()}
    teachers = {name: _ours(str(dtype).removeprefix("torch.")) for name, dtype in precisions.items()}
    tried = {name: _try_sizes(peer, texts[: max(512, count // 4)], sizes) for name, peer in peers.items()}
    best = {name: max(rates, key=lambda size: rates[size]) for name, rates in tried.items()}

    vectors = {f"peer_{name}": _encode(peer, texts, best[name]) for name, peer in peers.items()}
    for name, teacher in teachers.items():
        vectors[f"ours_{name}"] = teacher.embed(texts)
    cosines = {side: float(cosine_pairs(rows, vectors["peer_fp32"]).min()) for side, rows in vectors.items()}

    seconds: dict[str, list[float]] = {side: [] for side in vectors}
    processor: dict[str, list[float]] = {side: [] for side in vectors}
    for turn in range(repeats):
        for name in precisions:
            cache = TeacherCache.create_or_open(folder / f"{name}-{turn}", teachers[name].manifest())
            jobs: dict[str, Callable[[], Any]] = {
                f"peer_{name}": partial(_encode, peers[name], texts, best[name]),
                f"ours_{name}": partial(fill_cache, cache, corpus, teachers[name]),
            }
            for side, job in jobs.items():
                embedding = spent(job)
                seconds[side].append(embedding.seconds)
                processor[side].append(embedding.processor_seconds)

    rates = {side: len(texts) / statistics.median(values) for side, values in seconds.items()}
    work = {side: statistics.median(values) for side, values in processor.items()}
    return {
        **_rounded(_ratios(rates, work), 3),
        "minimum_cosine": _rounded(cosines, 7),
        "texts_per_second": _rounded(rates, 1),
        "seconds": {side: [round(value, 2) for value in values] for side, values in seconds.items()},
        "processor_seconds": {side: [round(value, 2) for value in values] for side, values in processor.items()},
        "peer_batch_sizes": {name: _rounded(by_size, 1) for name, by_size in tried.items()},
        "texts": len(texts),
        "text_origin": origin,
        "model": MODEL,
        "threads": torch.get_num_threads(),
        "versions": {
            "torch": torch.__version__,
            "transformers": transformers.__version__,
            "sentence-transformers": sentence_transformers.__version__,
        },
    }


def _ratios(rates: Mapping[str, float], work: Mapping[str, float]) -> dict[str, float]:
    """Our speed over the peer's, by texts a second and by processor time."""
    ratios = {
        "ratio_fp32": rates["ours_fp32"] / rates["peer_fp32"],
        "processor_ratio_fp32": work["peer_fp32"] / work["ours_fp32"],
    }
    if "ours_bf16" in rates:
        ratios |= {
            "ratio_bf16": rates["ours_bf16"] / rates["peer_fp32"],
            "ratio_bf16_vs_bf16": rates["ours_bf16"] / rates["peer_bf16"],
            "processor_ratio_bf16": work["peer_fp32"] / work["ours_bf16"],
            "processor_ratio_bf16_vs_bf16": work["peer_bf16"] / work["ours_bf16"],
        }
    return ratios


def _rounded(values: Mapping[Any, float], digits: int) -> dict[str, float]:
    return {str(key): round(value, digits) for key, value in values.items()}


def _corpus(texts: list[str], folder: Path) -> Corpus:
    (folder / "texts.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts), encoding="utf-8")
    section = CorpusSection(sources=[SourceSection(path=folder / "texts.jsonl")])
    return build_corpus(section, {"query": "", "document": ""}, folder / "corpus")


def _peer(dtype: torch.dtype) -> SentenceTransformer:
    return SentenceTransformer(resolve_model(MODEL), device="cpu", model_kwargs={"dtype": dtype})


def _ours(dtype: Any) -> ModelEmbedder:
    return load_teacher(TeacherSection(model=MODEL, dtype=dtype), "cpu")


def _encode(model: SentenceTransformer, texts: list[str], size: int) -> Vectors:
    found: Vectors = (
        model.encode(texts, batch_size=size, convert_to_tensor=True, show_progress_bar=False).float().numpy()
    )
    return found


def _try_sizes(model: SentenceTransformer, texts: list[str], sizes: list[int]) -> dict[int, float]:
    """Texts a second by batch size, after one batch to warm up."""
    _encode(model, texts[:32], 32)
    return {size: len(texts) / spent(partial(_encode, model, texts, size)).seconds for size in sizes}


if __name__ == "__main__":
    main()
