"""Static students against model2vec's own training, on the same vectors of the same texts.

    pip install --no-deps --target M2V model2vec==0.10.0 'skeletoken>=0.6,<0.7'
    python -m benchmarks.static_training WORKSPACE --teacher all-mpnet-base-v2 --model2vec M2V --json FILE

The teacher embeds 10,500 English texts once, of which 10,000 are trained on. Ours: `distilvec distill TABLE --student
TEACHER --layers 0`. The peer: model2vec's distillation of the teacher (256 dims), then `StaticModelForSimilarity.fit`
with its defaults, which stop when a tenth of the texts no longer improves. Quality is the share of the teacher's ten
nearest of 3,000 of the texts that is found for the 500 others, paired by text. Seconds are the processor's, of each
whole training, in one thread. WORKSPACE keeps the vectors and both students.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from tokenizers import Tokenizer

from benchmarks.markdown import markdown_table
from benchmarks.results import workspace_parser
from benchmarks.stopwatch import busy_note, machine, spent
from distilvec.core.files import write_json
from distilvec.core.model_name import ModelName
from distilvec.evaluation.overlap import overlap_by_query
from distilvec.evaluation.significance import mean_interval
from distilvec.formats.onnx import OnnxEmbedder
from distilvec.models.load import load_model
from distilvec.verbs.export.export import export_model
from experiments.linear_layer import english_texts

TRAINED, NEW, CANDIDATES = 10_000, 500, 3000
DIMS = 256  # of model2vec's distillation
ROUNDS, BATCH = 5, 256
Array = np.ndarray[Any, Any]
Encode = Callable[[list[str]], Array]


@dataclass(frozen=True)
class Trained:
    """A static student: its ways to embed by name, the first of which is judged, and what its training took."""

    encode: Mapping[str, Encode]
    parameters: int
    processor_seconds: float


def main() -> None:
    parser = workspace_parser(__doc__, "--teacher")
    parser.add_argument("--model2vec", type=Path, required=True, help="the folder of pip install --target")
    arguments = parser.parse_args()
    load = os.getloadavg()[0]
    torch.set_num_threads(1)
    sys.path.append(str(arguments.model2vec.resolve()))
    teacher, folder = str(arguments.teacher.resolve()), arguments.workspace.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    texts = [" ".join(text.split()) for text in english_texts(TRAINED + NEW)]
    vectors = teacher_vectors(teacher, texts, folder)
    students = {
        "distilvec": student_of_distilvec(teacher, folder),
        "model2vec": student_of_model2vec(teacher, texts[:TRAINED], vectors[:TRAINED], folder),
    }
    rates = texts_per_second(
        {way: encode for student in students.values() for way, encode in student.encode.items()}, texts
    )
    candidates, queries = vectors[:CANDIDATES], vectors[TRAINED:]
    rows, shares = {}, {}
    for name, student in students.items():
        encode = next(iter(student.encode.values()))
        shares[name] = overlap_by_query(queries, candidates, encode(texts[TRAINED:]), candidates)
        rows[name] = {
            "parameters": student.parameters,
            "processor_seconds": student.processor_seconds,
            "overlap": list(mean_interval(shares[name])),
            "texts_per_second": {way: rates[way] for way in student.encode},
        }
    change = mean_interval(shares["distilvec"] - shares["model2vec"], least=-1)
    result = {"rows": rows, "overlap_change": list(change), "machine": machine(), "busy": busy_note(load)}
    write_json(arguments.json, result)
    print(static_table(result))


def teacher_vectors(teacher: str, texts: list[str], folder: Path) -> Array:
    """Return the teacher's vectors, embedded once; those of the training texts are also a table."""
    file = folder / "vectors.npy"
    if not file.exists():
        np.save(file, load_model(ModelName(teacher)).encode(texts, batch_size=64))
    vectors: Array = np.load(file)
    rows = pa.FixedSizeListArray.from_arrays(pa.array(vectors[:TRAINED].reshape(-1)), vectors.shape[1])
    pq.write_table(pa.table({"text": texts[:TRAINED], "embedding": rows}), folder / "table.parquet")
    return vectors


def student_of_distilvec(teacher: str, folder: Path) -> Trained:
    """Train a static student on the table, unless it is there; return what it takes and how it embeds."""
    line = [sys.executable, "-m", "distilvec", "distill", str(folder / "table.parquet"), "--student", teacher]
    line += ["--layers", "0", "--out", str(folder / "ours"), "evaluation.parts=[]"]
    environment = os.environ | {"DISTILVEC_CACHE": str(folder / "cache"), "OMP_NUM_THREADS": "1"}
    seconds = timed_once(lambda: subprocess.run(line, env=environment, check=True), folder / "ours.json")
    student = str(folder / "ours" / "student")
    model = load_model(ModelName(student))
    file = folder / "ours.onnx"
    if not file.exists():
        export_model(student, "onnx", file)
    ways: dict[str, Encode] = {
        "sentence-transformers": partial(model.encode, batch_size=BATCH),
        "ONNX": by_graph(file, model.tokenizer),
    }
    return Trained(ways, sum(parameter.numel() for parameter in model.parameters()), seconds)


def by_graph(file: Path, tokenizer: Tokenizer) -> Encode:
    """Return the function that embeds texts with an ONNX file, those of similar length together."""
    graph = OnnxEmbedder(file)
    width = graph.session.get_outputs()[0].shape[1]
    padding = Tokenizer.from_str(tokenizer.to_str())
    padding.enable_padding()

    def encode(texts: list[str]) -> Array:
        by_length = sorted(range(len(texts)), key=lambda row: len(texts[row]))
        vectors: Array = np.empty((len(texts), width), dtype=np.float32)
        for start in range(0, len(texts), BATCH):
            rows = by_length[start : start + BATCH]
            batch = padding.encode_batch([texts[row] for row in rows], add_special_tokens=False)
            ids = [text.ids for text in batch]
            mask = [text.attention_mask for text in batch]
            vectors[rows] = graph.encode_tokens({"input_ids": ids, "attention_mask": mask})
        return vectors

    return encode


def student_of_model2vec(teacher: str, texts: list[str], vectors: Array, folder: Path) -> Trained:
    """Distil and train with model2vec, unless it is there; return what it takes and how it embeds."""
    from model2vec import StaticModel
    from model2vec.distill import distill
    from model2vec.train.similarity import StaticModelForSimilarity

    start, trained = folder / "model2vec", folder / "model2vec.pt"

    def train() -> None:
        distill(teacher, pca_dims=DIMS).save_pretrained(str(start))
        model = StaticModelForSimilarity.from_static_model(model=StaticModel.from_pretrained(str(start)))
        model.fit(texts, torch.from_numpy(vectors), device="cpu")
        torch.save(model.state_dict(), trained)

    seconds = timed_once(train, folder / "model2vec.json")
    model = StaticModelForSimilarity.from_static_model(
        model=StaticModel.from_pretrained(str(start)), out_dim=vectors.shape[1]
    )
    model.load_state_dict(torch.load(trained, weights_only=True))
    parameters = sum(parameter.numel() for parameter in model.parameters())
    return Trained({"model2vec": model.eval().encode}, parameters, seconds)


def timed_once(work: Callable[[], Any], file: Path) -> float:
    """Return the seconds of the processor that the work took, when it was done."""
    if not file.exists():
        file.write_text(json.dumps(spent(work).processor_seconds), encoding="utf-8")
    return float(json.loads(file.read_text(encoding="utf-8")))


def texts_per_second(encodes: Mapping[str, Encode], texts: list[str]) -> dict[str, float]:
    """Return how many texts a second of the processor each embeds; they alternate, medians."""
    seconds: dict[str, list[float]] = {name: [] for name in encodes}
    for encode in encodes.values():
        encode(texts[:BATCH])
    for _ in range(ROUNDS):
        for name, encode in encodes.items():
            seconds[name].append(spent(partial(encode, texts)).processor_seconds)
    return {name: round(len(texts) / statistics.median(times)) for name, times in seconds.items()}


def static_table(result: Mapping[str, Any]) -> str:
    """Return a line for each side, with the paired difference below."""
    head = ["static student", "parameters", "training, seconds of the processor", "overlap@10", "texts/s"]
    lines = []
    for name, row in result["rows"].items():
        cells = [f"{row['parameters'] / 1e6:.1f} M", f"{row['processor_seconds']:.0f}"]
        cells.append("{:.3f} [{:.3f}, {:.3f}]".format(*row["overlap"]))
        cells.append(", ".join(f"{rate:,} ({way})" for way, rate in row["texts_per_second"].items()))
        lines.append([name, *cells])
    change = "{:+.3f} [{:+.3f}, {:+.3f}]".format(*result["overlap_change"])
    return f"{markdown_table(head, lines, columns='lrrrr')}\n\nDifference of overlap@10, paired by text: {change}."


if __name__ == "__main__":
    main()
