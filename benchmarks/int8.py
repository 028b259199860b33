"""The int8 forms side by side: how fast at lengths and batches that servers see, and how near to PyTorch.

    python -m benchmarks.int8 [NAME=FOLDER ...] --json results/int8.json       on a quiet machine, two minutes a model

Every model is written as `onnx`, `onnx-int8` and `openvino-int8` and run on one thread. The forms take turns at each
shape, batch x tokens; times are medians. `alone`: the lowest cosine of a text's vector alone to its vector in a batch
of eight. `overlap`: overlap@10 with PyTorch on Cranfield, 100 queries and 200 documents.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.exports import SUITE
from benchmarks.markdown import markdown_table
from benchmarks.results import earlier_results
from benchmarks.stopwatch import machine
from benchmarks.texts import sample_texts
from distilvec.core.files import write_json
from distilvec.core.model_name import BUILTIN, ModelName
from distilvec.formats.onnx import OnnxEmbedder, graph_inputs
from distilvec.formats.openvino import OpenvinoEmbedder
from distilvec.models.load import load_model, resolve_model
from distilvec.verbs.export.export import FORMS, export_model

COMPARED = ("onnx", "onnx-int8", "openvino-int8")
PEER = "onnx-int8"
SHAPES = ((1, 32), (1, 128), (8, 32), (8, 128))
ROUNDS, CALLS = 30, 4
Array = np.ndarray[Any, Any]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", default=[BUILTIN], help="NAME=FOLDER or a model")
    parser.add_argument("--json", type=Path, required=True)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    result = earlier_results(arguments.json, {"models": {}})
    result["machine"] = machine()
    for given in arguments.models:
        name, _, folder = given.rpartition("=")
        with tempfile.TemporaryDirectory() as scratch:
            result["models"][name or Path(folder).name] = compared(resolve_model(folder), Path(scratch))
        write_json(arguments.json, result)
    print(int8_table(result))


def compared(model: str, scratch: Path) -> dict[str, dict[str, Any]]:
    """Write every form of a model and measure it."""
    rows: dict[str, dict[str, Any]] = {}
    embedders: dict[str, OnnxEmbedder | OpenvinoEmbedder] = {}
    for form in COMPARED:
        exported = export_model(model, form, scratch / FORMS[form].file, suite=SUITE, force=True)
        measured = exported.forms[form]
        rows[form] = {
            "megabytes": round(measured.megabytes, 1),
            "mean_cosine": round(measured.mean_cosine, 5),
            "overlap": round(measured.overlap, 4),
        }
        is_openvino = exported.path.suffix == ".xml"
        embedders[form] = OpenvinoEmbedder(exported.path) if is_openvino else OnnxEmbedder(exported.path)
    times = alternating_times(embedders)
    tokens = tokens_of_texts(model)
    for form, embedder in embedders.items():
        rows[form]["milliseconds"] = {shape: round(1000 * seconds, 3) for shape, seconds in times[form].items()}
        rows[form]["alone"] = round(lowest_cosine_alone(embedder, tokens), 5)
    return rows


def alternating_times(embedders: Mapping[str, OnnxEmbedder | OpenvinoEmbedder]) -> dict[str, dict[str, float]]:
    """Return each form's median seconds of a call by shape ("1x32"); the forms take turns."""
    generator = np.random.default_rng(0)
    medians: dict[str, dict[str, float]] = defaultdict(dict)
    for batch, length in SHAPES:
        tokens = {
            "input_ids": generator.integers(1000, 20_000, (batch, length)),
            "attention_mask": np.ones((batch, length), dtype=np.int64),
        }
        seconds: dict[str, list[float]] = defaultdict(list)
        for _ in range(ROUNDS):
            for form, embedder in embedders.items():
                embedder.run(tokens)  # the other forms have emptied the processor's caches
                began = time.perf_counter()
                for _ in range(CALLS):
                    embedder.run(tokens)
                seconds[form].append((time.perf_counter() - began) / CALLS)
        for form, values in seconds.items():
            medians[form][f"{batch}x{length}"] = statistics.median(values)
    return medians


def tokens_of_texts(model: str) -> list[dict[str, Array]]:
    """Return the tokens of eight texts together, and of each of them alone."""
    loaded = load_model(ModelName(model))
    texts, _ = sample_texts(8)
    return [
        {name: values.numpy() for name, values in graph_inputs(loaded, part).items()}
        for part in [texts, *([text] for text in texts)]
    ]


def lowest_cosine_alone(embedder: OnnxEmbedder | OpenvinoEmbedder, tokens: list[dict[str, Array]]) -> float:
    """Return the lowest cosine of a text's vector in a batch to its vector alone."""
    together = embedder.run(tokens[0])[0]
    cosines = []
    for vector, single in zip(together, tokens[1:], strict=True):
        alone = embedder.run(single)[0][0]
        cosines.append(alone @ vector / np.linalg.norm(alone) / np.linalg.norm(vector))
    return float(min(cosines))


def int8_table(result: Mapping[str, Any]) -> str:
    """One line per model and form; at each shape how many times faster than `onnx-int8` it is."""
    shapes = [f"{batch}x{length}" for batch, length in SHAPES]
    head = ["model", "form", "MB", "mean cosine", "overlap@10", "alone and in a batch", *shapes]
    lines = []
    for model, rows in result["models"].items():
        for form, row in rows.items():
            ratios = [rows[PEER]["milliseconds"][shape] / row["milliseconds"][shape] for shape in shapes]
            cells = [f"{row['megabytes']:.1f}", f"{row['mean_cosine']:.4f}", f"{row['overlap']:.3f}"]
            lines.append([model, f"`{form}`", *cells, f"{row['alone']:.4f}", *(f"{ratio:.2f}" for ratio in ratios)])
    return markdown_table(head, lines, columns="ll" + "r" * 8)


if __name__ == "__main__":
    main()
