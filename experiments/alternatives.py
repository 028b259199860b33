"""What a user would take instead of a student: static vectors by model2vec, distilled from the same teacher.

    pip install 'model2vec[distill]'                              in an environment of its own
    python -m experiments.alternatives distil static-256 --dim 256         there
    python -m experiments.alternatives score static-256 --json results/alternatives.json
    python -m experiments.alternatives latency static-256=FOLDER 5m-pieces=RUN/student 'int8=FILE' --json FILE

Layers cut without training are the column "untrained" of each student's own record. `python -m experiments.readme`
writes the line of docs/results.md. latency: one query at a time, from text to vector, the models in turn, on an idle
machine; NAME=PATH, a folder or an exported file.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.results import earlier_results
from benchmarks.stopwatch import machine
from distilvec.core.files import write_json
from distilvec.evaluation.aggregate import AVERAGE, RETRIEVAL, retention
from distilvec.evaluation.evaluator import Score

TEACHER = "all-MiniLM-L6-v2"
QUERIES = ("what chord devices are used for supersonic flow", "how do i dispute a card payment")
SUITE = Path(__file__).parents[1] / "recipes" / "suites" / "english.yaml"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("action", choices=["distil", "score", "latency"])
    parser.add_argument("folders", nargs="+", metavar="FOLDER", help="of a model; latency: NAME=FOLDER or NAME=FILE")
    parser.add_argument("--dim", type=int, default=256, help="dimensions after the principal components")
    parser.add_argument("--json", type=Path, default=None)
    arguments = parser.parse_args()
    if arguments.action == "distil":
        distil(Path(arguments.folders[0]), arguments.dim)
    elif arguments.action == "score":
        score(Path(arguments.folders[0]), arguments.json)
    else:
        models = dict(given.split("=", 1) for given in arguments.folders)
        write_json(arguments.json, latencies(models))


def distil(folder: Path, dim: int) -> None:
    """Make a SentenceTransformer of static vectors with model2vec's defaults."""
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.models import StaticEmbedding

    from distilvec.models.load import resolve_model

    model = StaticEmbedding.from_distillation(resolve_model(TEACHER), pca_dims=dim, device="cpu")
    SentenceTransformer(modules=[model]).save(str(folder))


def score(folder: Path, path: Path) -> None:
    """Score the model on the eight English tasks, and add the scores to `path`."""
    from sentence_transformers import SentenceTransformer

    import distilvec

    scores = distilvec.evaluate(str(folder), SUITE, teacher=TEACHER)
    model = SentenceTransformer(str(folder), device="cpu")
    found = earlier_results(path, {})
    found[folder.name] = {
        "parameters": sum(weight.numel() for weight in model.parameters()),
        "scores": scores.to_dataframe().to_dict("records"),
    }
    write_json(path, found)


def latencies(given: Mapping[str, str], repeats: int = 400) -> dict[str, Any]:
    """Milliseconds from one query's text to its vector, for the teacher and these models: medians of calls in turn."""
    from sentence_transformers import SentenceTransformer

    from distilvec.evaluation.speed import Timing, interleaved
    from distilvec.models.load import resolve_model
    from distilvec.teachers.open import open_embedder
    from distilvec.teachers.sources import source_kind

    calls: dict[str, Any] = {}
    for name, model in {TEACHER: resolve_model(TEACHER), **given}.items():
        if source_kind(model) == "export":
            calls[name] = partial(open_embedder(model).embed, role="query")
        else:
            calls[name] = SentenceTransformer(str(model), device="cpu").encode
    taken = interleaved([partial(_encode_each, call) for call in calls.values()], Timing(20, repeats, 20.0))
    rows = {
        name: {"median_ms": round(1e3 * statistics.median(seconds) / len(QUERIES), 3), "calls": len(seconds)}
        for name, seconds in zip(calls, taken, strict=True)
    }
    return {"machine": machine(), "queries": len(QUERIES), "models": rows}


def _encode_each(encode: Any) -> None:
    for query in QUERIES:
        encode([query])


def latency_line(found: Mapping[str, Any]) -> str:
    """One query at a time, from text to vector."""
    rows = found["models"]
    parts = [f"{name} {row['median_ms']:.2f} ms" for name, row in rows.items()]
    return (
        f"One query at a time, from its text to its vector, the models in turn, medians: {', '.join(parts)} "
        f"({found['machine']}; `python -m experiments.alternatives latency`)."
    )


def alternatives_line(found: Mapping[str, Any]) -> str:
    """What static vectors keep of the teacher."""
    kept = {name: kept_by_static(model) for name, model in found.items()}
    parts = [
        f"{name} ({model['parameters'] / 1e6:.1f} M parameters) keeps {kept[name][AVERAGE]:.1f}% of the teacher's "
        f"average, {kept[name][RETRIEVAL]:.1f}% of retrieval"
        for name, model in found.items()
    ]
    return (
        "Without any training: static vectors, which model2vec distils from the same teacher, in a space of their "
        f"own. {'; '.join(parts)} (`python -m experiments.alternatives`)."
    )


def kept_by_static(model: Mapping[str, Any]) -> dict[str, float]:
    """The averages of a scored model in % of its teacher's."""
    ours, theirs = (
        [Score(row["task"], row["type"], row["metric"], row[side]) for row in model["scores"]]
        for side in ("student", "teacher")
    )
    return retention(ours, theirs)


if __name__ == "__main__":
    main()
