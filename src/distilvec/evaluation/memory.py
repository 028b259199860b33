"""Size of a model: parameters, megabytes on disk, memory of a process that encodes with it; and the machine it runs on.

`python -m distilvec.evaluation.memory FOLDER BATCH TOKENS THREADS` is that process; it prints one line of JSON.
"""

from __future__ import annotations

import importlib.metadata
import json
import os
import platform
import re
import subprocess
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import torch
from pydantic import FiniteFloat
from sentence_transformers import SentenceTransformer
from torch import Tensor

from distilvec.core.errors import about
from distilvec.models.load import load
from distilvec.models.parts import is_static, text_tokenizer, token_table

_SAMPLE_SECONDS = 0.002
MOST_SECONDS = 600.0  # of a memory measurement
_WEIGHTS = (".safetensors", ".bin")


@dataclass(frozen=True)
class ModelSize:
    """Size of a model; `megabytes` of fp32 weights, `memory_mb` of its process (both 10^6 bytes)."""

    parameters: int | None = None
    embedding_parameters: int | None = None
    megabytes: FiniteFloat | None = None
    memory_mb: float | None = None
    memory: dict[str, Any] | None = None
    largest_batch_under_100_ms: dict[str, int | None] = field(default_factory=dict)
    largest_batch_by_backend: dict[str, dict[str, int | None]] = field(default_factory=dict)


def measure_size(
    model: SentenceTransformer, folder: Path, setting: tuple[int, int] | None, seconds: float = MOST_SECONDS
) -> ModelSize:
    """Parameters, token-embedding parameters, megabytes of weights (10^6 bytes), memory at a (batch, tokens) setting.

    The model is saved to `folder`, which must be new; its memory is measured for at most `seconds`.
    """
    with about("speed", folder.parent):
        model.save_pretrained(str(folder), create_model_card=False)
    size = sum(path.stat().st_size for path in folder.rglob("*") if path.suffix in _WEIGHTS)
    memory = None if setting is None else measure_memory(folder, *setting, torch.get_num_threads(), seconds)
    return ModelSize(
        parameters=sum(weight.numel() for weight in model.parameters()),
        embedding_parameters=sum(weight.numel() for weight in token_table(model).parameters()),
        megabytes=size / 1e6,
        memory_mb=memory["memory_mb"] if memory else None,
        memory=memory,
    )


def measure_memory(
    folder: Path, batch: int, tokens: int, threads: int, seconds: float = MOST_SECONDS
) -> dict[str, Any]:
    """Peak resident memory (10^6 bytes) of a fresh process that loads a saved model and encodes one batch twice.

    `memory_mb` is the growth from before loading to the peak, `loading_mb` that to after loading. Or `problem`, if the
    process fails or takes more than `seconds`.
    """
    arguments = [str(folder), str(batch), str(tokens), str(threads)]
    # -P: without it Python imports modules of the current folder first
    command = [sys.executable, "-P", "-m", "distilvec.evaluation.memory", *arguments]
    setting = {"batch_size": batch, "tokens": tokens, "memory_mb": None}
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=max(0.01, seconds), check=True)
        return setting | json.loads(done.stdout.strip().splitlines()[-1])
    except subprocess.TimeoutExpired:
        return setting | {"problem": f"it takes more than {max(0.0, seconds):.0f} s"}
    except (subprocess.SubprocessError, OSError, ValueError, IndexError) as error:
        lines = str(getattr(error, "stderr", None) or error).strip().splitlines()
        return setting | {"problem": lines[-1]}


def machine_info() -> dict[str, Any]:
    """Processor, cores this process may use, threads, versions; None for packages that are not installed."""
    cpuinfo, packages = Path("/proc/cpuinfo"), ("torch", "transformers", "onnxruntime")
    names = re.findall(r"^model name\s*: (.*)$", cpuinfo.read_text(), re.MULTILINE) if cpuinfo.is_file() else []
    distributions = {name: next(iter(importlib.metadata.distributions(name=name)), None) for name in packages}
    return {
        "processor": names[0] if names else platform.processor() or platform.machine(),
        "cores": len(psutil.Process().cpu_affinity()) if hasattr(psutil.Process, "cpu_affinity") else os.cpu_count(),
        "threads": torch.get_num_threads(),
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        **{name: None if package is None else package.version for name, package in distributions.items()},
    }


def random_tokens(model: SentenceTransformer, batch: int, tokens: int, of_graph: bool = False) -> dict[str, Tensor]:
    """`input_ids` of ordinary tokens and an `attention_mask` of ones, int64 [batch, tokens]; the same at every call.

    A static model in PyTorch reads flat ids, with the `offsets` of the texts; its exported graph reads what others do.
    """
    tokenizer, table = text_tokenizer(model), token_table(model)
    ordinary = np.setdiff1d(np.arange(min(len(tokenizer), table.num_embeddings)), tokenizer.all_special_ids)
    ids = torch.from_numpy(np.random.default_rng(0).choice(ordinary, (batch, tokens)).astype(np.int64))
    if is_static(model) and not of_graph:
        return {"input_ids": ids.flatten(), "offsets": torch.arange(batch) * tokens}
    return {"input_ids": ids, "attention_mask": torch.ones_like(ids)}


def peak_memory(call: Callable[[], Any]) -> int:
    """Highest resident bytes of this process while `call` runs, sampled every 2 ms."""
    process, stop = psutil.Process(), threading.Event()
    readings: list[int] = [process.memory_info().rss]

    def sample() -> None:
        while not stop.wait(_SAMPLE_SECONDS):
            readings.append(process.memory_info().rss)

    sampler = threading.Thread(target=sample, daemon=True)
    sampler.start()
    try:
        call()
    finally:
        stop.set()
        sampler.join()
    return max(*readings, process.memory_info().rss)


def _measure_this_process(folder: str, batch: int, tokens: int, threads: int) -> dict[str, Any]:
    """Load the model, encode the batch twice, and return the growth of this process."""
    torch.set_num_threads(threads)
    before = psutil.Process().memory_info().rss
    model = load(folder, device="cpu", trust_remote_code=True).eval()  # code that the caller runs already
    inputs = random_tokens(model, batch, tokens)
    loaded = psutil.Process().memory_info().rss
    with torch.inference_mode():
        peak = peak_memory(lambda: [model(dict(inputs)) for _ in range(2)])
    sizes = {"memory_mb": (peak - before) / 1e6, "loading_mb": (loaded - before) / 1e6}
    return {**sizes, "method": "psutil: sampled every 2 ms"}


if __name__ == "__main__":
    print(json.dumps(_measure_this_process(sys.argv[1], *map(int, sys.argv[2:5]))))
