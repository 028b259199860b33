"""What is saved when layers are chosen, and what it costs in distance.

    python -m benchmarks.layer_choice NAME=FOLDER [...] --counts 3 6 --json results/layer_choice.json

For each model and number of layers to keep, `best_layers` chooses twice, as before a training: by the distances of 512
texts alone where every choice runs all of its layers, and as it is, with a glance at 32 texts and with the layers that
two choices begin with run once. The distance is that to the whole model's vectors. Of up to 300 choices all are
compared, else layers are added one by one. Seconds are those of the processor, one thread.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from sentence_transformers import SentenceTransformer

from benchmarks.markdown import markdown_table
from benchmarks.results import earlier_results
from benchmarks.stopwatch import machine, spent
from benchmarks.texts import sample_texts
from distilvec.core.files import write_json
from distilvec.models.load import resolve_model
from distilvec.students.layer_choice import FirstLayers, best_layers

TEXTS, GLANCE = 512, 32


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="+", help="NAME=FOLDER")
    parser.add_argument("--counts", type=int, nargs="+", default=[3, 6])
    parser.add_argument("--json", type=Path, required=True)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    result = earlier_results(arguments.json, {"rows": {}})
    result["machine"] = machine()
    for given in arguments.models:
        name, _, folder = given.rpartition("=")
        model = SentenceTransformer(resolve_model(folder), device="cpu").float()
        for count in arguments.counts:
            result["rows"][f"{name}, {count}"] = compared(model, count)
            write_json(arguments.json, result)
            print(name, count, result["rows"][f"{name}, {count}"], flush=True)
    print(choice_table(result))


def compared(model: SentenceTransformer, count: int) -> dict[str, Any]:
    """Choose by every layer and every text, and as it is."""
    texts, _ = sample_texts(TEXTS)
    target = torch.from_numpy(model.encode(texts))

    def distance(number: int) -> float:
        vectors = torch.from_numpy(model.encode(texts[:number]))
        return float((vectors - target[:number]).norm(dim=-1).mean())

    choose = partial(best_layers, model[0].auto_model, count, partial(distance, TEXTS))
    with patch.object(FirstLayers, "run_once", lambda *numbers: nullcontext()):
        alone = chosen(choose)
    return {"alone": alone, "glance": chosen(partial(choose, partial(distance, GLANCE)))}


def chosen(choose: Callable[[], tuple[list[int], Mapping[tuple[int, ...], float]]]) -> dict[str, Any]:
    """Return the layers, their distance, how many distances were asked for, and the processor's seconds."""
    found: list[Any] = []
    seconds = spent(lambda: found.extend(choose())).processor_seconds
    layers, distances = found
    distance = distances[tuple(layers)]
    return {"layers": layers, "distance": distance, "choices": len(distances), "processor_seconds": round(seconds, 1)}


def choice_table(result: Mapping[str, Any]) -> str:
    """One line per model and number of layers."""
    head = ["model, layers", "every layer, all texts", "distance", "s", "as it is", "distance", "s", "ratio"]
    lines = []
    for name, row in result["rows"].items():
        cells: list[str] = [name]
        for side in ("alone", "glance"):
            figures = row[side]
            layers = ", ".join(map(str, figures["layers"]))
            cells += [layers, f"{figures['distance']:.4f}", f"{figures['processor_seconds']:.0f}"]
        ratio = row["glance"]["processor_seconds"] / row["alone"]["processor_seconds"]
        lines.append([*cells, f"{ratio:.2f}"])
    return markdown_table(head, lines)


if __name__ == "__main__":
    main()
