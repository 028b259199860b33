"""What a model takes: parameters, megabytes on disk, memory of a process that encodes with it; and the machine it runs on.

Run as a program it is that process: `python -m distilvec.evaluation.memory FOLDER BATCH TOKENS THREADS` prints one
line of JSON.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import json
import os
import platform
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sentence_transformers import SentenceTransformer
from torch import Tensor

from distilvec.core.errors import explained
from distilvec.models.load import load

_SAMPLE_SECONDS = 0.002
_SECONDS = 600  # the most a measurement of memory may take
_WEIGHTS = (".safetensors", ".bin")


def model_facts(
    model: SentenceTransformer, folder: Path, batch: int | None, tokens: int | None, threads: int
) -> dict[str, Any]:
    """Parameters, token-embedding parameters, megabytes of weights (10^6 bytes), and memory if a batch is given.

    The model is saved to `folder`, which must be new. Errors: DistilvecError if it cannot be saved.
    """
    with explained("speed", folder.parent):
        model.save_pretrained(str(folder), create_model_card=False)
    size = sum(path.stat().st_size for path in folder.rglob("*") if path.suffix in _WEIGHTS)
    table = model[0].auto_model.get_input_embeddings()
    memory = measure_memory(folder, batch, tokens, threads) if batch is not None and tokens is not None else None
    return {
        "parameters": sum(weight.numel() for weight in model.parameters()),
        "embedding_parameters": sum(weight.numel() for weight in table.parameters()),
        "megabytes": size / 1e6,
        "memory_mb": memory["memory_mb"] if memory else None,
        "memory": memory,
    }


def measure_memory(folder: Path, batch: int, tokens: int, threads: int) -> dict[str, Any]:
    """Peak resident memory (10^6 bytes) of a fresh process that loads a saved model and encodes one batch twice.

    `memory_mb` is the growth from before loading to the peak, `loading_mb` that to after loading, `method` how it was
    read: sampled by psutil every 2 ms while encoding, or without psutil the process's high-water mark, which counts
    peaks of loading too. `problem` instead of figures if the process fails.
    """
    command = [sys.executable, "-m", "distilvec.evaluation.memory", str(folder), str(batch), str(tokens), str(threads)]
    setting = {"batch_size": batch, "tokens": tokens, "memory_mb": None}
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_SECONDS, check=True)
        return setting | json.loads(done.stdout.strip().splitlines()[-1])
    except subprocess.CalledProcessError as error:
        return setting | {"problem": (error.stderr.strip() or f"exit status {error.returncode}").splitlines()[-1]}
    except (OSError, subprocess.TimeoutExpired, ValueError, IndexError) as error:
        return setting | {"problem": str(error)}


def machine_facts() -> dict[str, Any]:
    """Processor, cores this process may use, threads, and versions; None for what is not installed."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return {
        "processor": _processor(),
        "cores": cores,
        "threads": torch.get_num_threads(),
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        **{name: _version(name) for name in ("torch", "transformers", "onnxruntime")},
    }


def random_tokens(model: SentenceTransformer, batch: int, tokens: int) -> dict[str, Tensor]:
    """`input_ids` of ordinary tokens and an `attention_mask` of ones, int64 [batch, tokens]; the same at every call."""
    tokenizer, table = model[0].tokenizer, model[0].auto_model.get_input_embeddings()
    ordinary = np.setdiff1d(np.arange(min(len(tokenizer), table.num_embeddings)), tokenizer.all_special_ids)
    ids = torch.from_numpy(np.random.default_rng(0).choice(ordinary, (batch, tokens)).astype(np.int64))
    return {"input_ids": ids, "attention_mask": torch.ones_like(ids)}


def _processor() -> str:
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.processor() or platform.machine()


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


# -- inside the fresh process ----------------------------------------------------------------------------------------


def report_memory(folder: str, batch: int, tokens: int, threads: int) -> dict[str, Any]:
    """Load the model, encode the batch twice, and say how far this process grew."""
    torch.set_num_threads(threads)
    resident, method = _reader()
    before = resident()
    model = load(folder, device="cpu", trust_remote_code=True).eval()  # code that the caller runs already
    inputs = random_tokens(model, batch, tokens)
    loaded = resident()
    with torch.inference_mode(), _peak(resident) as peak:
        for _ in range(2):
            model(dict(inputs))
    return {"memory_mb": (max(peak) - before) / 1e6, "loading_mb": (loaded - before) / 1e6, "method": method}


def _reader() -> tuple[Callable[[], int], str]:
    """How to read this process's resident bytes, and the name of the way."""
    try:
        import psutil
    except ImportError:
        import resource

        unit = 1 if sys.platform == "darwin" else 1024
        return (
            lambda: unit * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss,
            "resource: high-water mark of the process",
        )
    process = psutil.Process()
    return lambda: int(process.memory_info().rss), "psutil: sampled every 2 ms"


@contextlib.contextmanager
def _peak(resident: Callable[[], int]) -> Iterator[list[int]]:
    """A list that gets readings until the block ends, the last one after it."""
    readings, stop = [resident()], threading.Event()

    def sample() -> None:
        while not stop.wait(_SAMPLE_SECONDS):
            readings.append(resident())

    sampler = threading.Thread(target=sample, daemon=True)
    sampler.start()
    try:
        yield readings
    finally:
        stop.set()
        sampler.join()
        readings.append(resident())


if __name__ == "__main__":
    print(json.dumps(report_memory(sys.argv[1], *map(int, sys.argv[2:5]))))
