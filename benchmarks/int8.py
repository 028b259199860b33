"""The int8 forms side by side: how fast at lengths and batches that servers see, and how near to PyTorch.

    python -m benchmarks.int8 [NAME=FOLDER ...] --json results/int8.json [--peer-python PYTHON]      on a quiet machine

Every model is written as `onnx`, `onnx-int8` and `openvino-int8` and run on one thread. The forms take turns at each
shape, batch x tokens; times are medians, by the clock and by the processor's time. `alone`: the lowest cosine of a
text's vector alone to its vector in a batch of eight. `overlap`: overlap@10 with PyTorch on Cranfield, 100 queries and
200 documents. Two minutes a model.

With PYTHON, of an environment with `sentence-transformers[openvino]` and `datasets`, sentence-transformers' own
`export_static_quantized_openvino_model` takes turns with them, with its defaults but for its texts: 128 of
english_text, because its own are on the hub. Its pooling is not in the file and not timed. It and `openvino-int8` run
in bf16 as well, which OpenVINO takes by itself where the processor has it. Five minutes a model.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import tempfile
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sentence_transformers import SentenceTransformer

from benchmarks.exports import SUITE
from benchmarks.markdown import markdown_table
from benchmarks.results import earlier_results
from benchmarks.stopwatch import busy_note, machine
from benchmarks.texts import sample_texts
from distilvec.core.files import write_json
from distilvec.core.model_name import BUILTIN, ModelName
from distilvec.evaluation.parity import measure_parity
from distilvec.formats.onnx import OUTPUTS, Graph, export_copy, graph_inputs
from distilvec.models.load import load_model, resolve_model
from distilvec.teachers.graph_embedder import READERS, Runnable
from distilvec.verbs.export.export import FORMS, export_model, parity_task

COMPARED = ("onnx", "onnx-int8", "openvino-int8")
BASE = "onnx-int8"  # what the others are compared with
PEER = "export_static_quantized_openvino_model"
SHAPES = ((1, 32), (1, 128), (8, 32), (8, 128))
ROUNDS, CALLS = 15, 4
CALIBRATION = 128  # texts, as many as the peer reads of its own
Array = np.ndarray[Any, Any]


def main() -> None:
    load = os.getloadavg()[0]
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", default=[BUILTIN], help="NAME=FOLDER or a model")
    parser.add_argument("--json", type=Path, required=True)
    parser.add_argument(
        "--peer-python", metavar="PYTHON", help="of an environment with sentence-transformers[openvino]"
    )
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    result = earlier_results(arguments.json, {"models": {}})
    result |= {"machine": machine(), "load_before": round(load, 2)}
    for given in arguments.models:
        name, _, folder = given.rpartition("=")
        with tempfile.TemporaryDirectory() as scratch:
            rows = compared(resolve_model(folder), Path(scratch), arguments.peer_python)
        result["models"][name or Path(folder).name] = rows
        write_json(arguments.json, result)
    print(int8_table(result))


def compared(model: str, scratch: Path, python: str | None) -> dict[str, dict[str, Any]]:
    """Write every form of a model and measure it, with the peer's if there is a `python` that has it."""
    rows: dict[str, dict[str, Any]] = {}
    runnables: dict[str, Runnable] = {}
    for form in COMPARED:
        exported = export_model(model, form, scratch / FORMS[form].file, suite=SUITE, force=True)
        rows[form] = nearness(exported.forms[form])
        runnables[form] = READERS[exported.path.suffix](exported.path)
    loaded = load_model(ModelName(model))
    if python is not None:
        files = openvino_files(model, loaded, scratch, python)
        graph, task = Graph(export_copy(loaded)).eval(), parity_task(Path(model), SUITE)
        rows |= {form: nearness(measure_parity(graph, file, task, file.megabytes)) for form, file in files.items()}
        runnables |= files
    times = alternating_times(runnables, len(loaded.tokenizer))
    tokens = tokens_of_texts(loaded)
    for form, runnable in runnables.items():
        rows[form] |= times[form]
        rows[form]["alone"] = round(lowest_cosine_alone(runnable, tokens), 5)
    return rows


def nearness(measured: Any) -> dict[str, float]:
    """Return the size of a form and how near it is to PyTorch, of its parity."""
    return {
        "megabytes": round(measured.megabytes, 1),
        "mean_cosine": round(measured.mean_cosine, 5),
        "overlap": round(measured.overlap, 4),
    }


class OpenvinoFile:
    """A file in a precision, with the modules of sentence-transformers that are not in it."""

    def __init__(self, path: Path, precision: str, behind: Sequence[torch.nn.Module] = ()) -> None:
        import openvino

        settings = {"INFERENCE_NUM_THREADS": 1, "INFERENCE_PRECISION_HINT": precision}
        self.model = openvino.Core().compile_model(str(path), "CPU", settings)
        self.inputs = [entry.any_name for entry in self.model.inputs]
        self.megabytes = (path.stat().st_size + path.with_suffix(".bin").stat().st_size) / 1e6
        self.behind = behind

    def run(self, tokens: Mapping[str, Any], outputs: Sequence[str] = OUTPUTS[:1]) -> list[Array]:
        """Return the vectors."""
        if not self.behind:
            return [np.asarray(self.model(self.feed(tokens))[name]) for name in outputs]
        features = {"token_embeddings": torch.from_numpy(self.states(tokens))}
        features["attention_mask"] = torch.as_tensor(tokens["attention_mask"])
        for module in self.behind:
            features = module(features)
        return [features["sentence_embedding"].numpy()]

    def states(self, tokens: Mapping[str, Any]) -> Array:
        """Return the first output of the file."""
        return np.asarray(self.model(self.feed(tokens))[0])

    def feed(self, tokens: Mapping[str, Any]) -> dict[str, Array]:
        """Return the inputs of the file; token types are zero."""
        ids = np.asarray(tokens["input_ids"])
        return {name: np.asarray(tokens[name]) if name in tokens else np.zeros_like(ids) for name in self.inputs}


def openvino_files(model: str, loaded: SentenceTransformer, scratch: Path, python: str) -> dict[str, OpenvinoFile]:
    """Write the peer's file by its own Python; return it in both precisions, and ours in bf16."""
    name = Path(FORMS["openvino-int8"].file)
    texts, _ = sample_texts(CALIBRATION, seed=1)
    (scratch / "texts").mkdir()
    lines = "\n".join(json.dumps({"sentence": text}) for text in texts)
    (scratch / "texts" / "train.jsonl").write_text(lines, encoding="utf-8")
    script = Path(__file__).with_name("static_openvino.py")
    environment = {"PATH": os.environ["PATH"], "HF_HUB_OFFLINE": "1", "HF_HOME": str(scratch)}
    command = [python, "-I", str(script), model, str(scratch / "peer"), str(scratch / "texts")]
    done = subprocess.run(command, env=environment, check=False, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{script.name} failed:\n{done.stderr[-2000:]}")
    behind = list(loaded)[1:]
    return {
        "openvino-int8, bf16": OpenvinoFile(scratch / name, "bf16"),
        PEER: OpenvinoFile(scratch / "peer" / name, "f32", behind),
        f"{PEER}, bf16": OpenvinoFile(scratch / "peer" / name, "bf16", behind),
    }


def alternating_times(runnables: Mapping[str, Runnable], vocabulary: int) -> dict[str, dict[str, dict[str, float]]]:
    """Return each form's median milliseconds of a call by shape ("1x32"), of both clocks; the forms take turns."""
    generator = np.random.default_rng(0)
    clocks = {"milliseconds": time.perf_counter, "processor_milliseconds": time.process_time}
    medians: dict[str, dict[str, dict[str, float]]] = {form: defaultdict(dict) for form in runnables}
    calls = {form: one.states if isinstance(one, OpenvinoFile) else one.run for form, one in runnables.items()}
    for batch, length in SHAPES:
        tokens = {
            "input_ids": generator.integers(vocabulary, size=(batch, length)),
            "attention_mask": np.ones((batch, length), dtype=np.int64),
        }
        spent: dict[str, list[list[float]]] = defaultdict(list)
        for _ in range(ROUNDS):
            for form, call in calls.items():
                call(tokens)  # the other forms have emptied the processor's caches
                began = [clock() for clock in clocks.values()]
                for _ in range(CALLS):
                    call(tokens)
                spent[form].append([clock() - start for clock, start in zip(clocks.values(), began, strict=True)])
        for form, values in spent.items():
            for name, seconds in zip(clocks, zip(*values, strict=True), strict=True):
                medians[form][name][f"{batch}x{length}"] = round(1000 * statistics.median(seconds) / CALLS, 3)
    return medians


def tokens_of_texts(loaded: SentenceTransformer) -> list[dict[str, Array]]:
    """Return the tokens of eight texts together, and of each of them alone."""
    texts, _ = sample_texts(8)
    return [
        {name: values.numpy() for name, values in graph_inputs(loaded, part).items()}
        for part in [texts, *([text] for text in texts)]
    ]


def lowest_cosine_alone(runnable: Runnable, tokens: list[dict[str, Array]]) -> float:
    """Return the lowest cosine of a text's vector in a batch to its vector alone."""
    together = runnable.run(tokens[0])[0]
    cosines = []
    for vector, single in zip(together, tokens[1:], strict=True):
        alone = runnable.run(single)[0][0]
        cosines.append(alone @ vector / np.linalg.norm(alone) / np.linalg.norm(vector))
    return float(min(cosines))


def int8_table(result: Mapping[str, Any]) -> str:
    """One line per model and form; at each shape how many times faster than `onnx-int8` it is, by the clock."""
    shapes = [f"{batch}x{length}" for batch, length in SHAPES]
    head = ["model", "form", "MB", "mean cosine", "overlap@10", "alone and in a batch", *shapes]
    lines = []
    for model, rows in result["models"].items():
        for form, row in rows.items():
            ratios = [rows[BASE]["milliseconds"][shape] / row["milliseconds"][shape] for shape in shapes]
            cells = [f"{row['megabytes']:.1f}", f"{row['mean_cosine']:.4f}", f"{row['overlap']:.3f}"]
            lines.append([model, f"`{form}`", *cells, f"{row['alone']:.4f}", *(f"{ratio:.2f}" for ratio in ratios)])
    table = markdown_table(head, lines, columns="ll" + "r" * 8)
    return "\n\n".join([table, *filter(None, [busy_note(result.get("load_before", 0))])])


if __name__ == "__main__":
    main()
