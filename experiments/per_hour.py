"""What brings a small student of a larger teacher nearest to its retrieval in an hour of a CPU: one change at a time.

    python -m experiments.per_hour --teacher MPNET_FOLDER --json results/per_hour.json --out runs/per_hour

Runs recipes/sweeps/per_hour.yaml in one thread; a killed command goes on where it stopped. The minutes are the
processor's: of the training with its validation, and of the teacher's pass over the texts, at the rate that was
measured on 1,000 of them. The table is printed at the end.
"""

from __future__ import annotations

import argparse
import random
import statistics
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch

from benchmarks.markdown import markdown_table
from benchmarks.results import earlier_results
from benchmarks.stopwatch import machine, processor_time
from distilvec.config.schema import Recipe
from distilvec.core.files import write_json
from distilvec.data.readers import read_rows
from distilvec.pipeline.decide import hardware_dtype
from distilvec.pipeline.run import run
from distilvec.teachers.model_embedder import ModelEmbedder
from distilvec.teachers.open import open_teacher
from distilvec.verbs.run.sweep import Member, expand_sweep
from experiments.real_teachers import row_of

RECIPE = Path(__file__).parents[1] / "recipes" / "sweeps" / "per_hour.yaml"
CHANGES = {
    "base": "20,000 texts, three passes, batches of 32, AdamW",
    "texts": "60,000 texts, one pass",
    "passes": "nine passes",
    "batch-128": "batches of 128",
    "batch-8": "batches of 8",
    "muon": "Muon for the layers' matrices",
}
TIMED_TEXTS = 1000  # of the teacher
TASKS = {"cranfield": "Cranfield", "xquad-en": "XQuAD"}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--teacher", required=True)
    parser.add_argument("--json", type=Path, required=True, help="the rows, written run by run")
    parser.add_argument("--out", type=Path, default=Path("runs/per_hour"), help="folder of the runs")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    results = earlier_results(arguments.json, {"machine": machine(), "teacher_texts_per_second": None, "rows": {}})
    members = list(expand_sweep(RECIPE, [f"teacher={{model: {arguments.teacher}}}"]))
    if results["teacher_texts_per_second"] is None:
        results["teacher_texts_per_second"] = teacher_rate(members[0].recipe)
    for member in members:
        name = member.name.split(",")[0]
        if name not in results["rows"]:
            results["rows"][name] = measured(member, arguments.out / member.name)
            write_json(arguments.json, results)
            print(name, results["rows"][name], flush=True)
    print(table(results))


def teacher_rate(recipe: Recipe) -> float:
    """Return the texts that a recipe's teacher embeds in a second of the processor, in the precision of a run."""
    assert recipe.teacher is not None
    section = recipe.teacher.model_copy(update={"dtype": hardware_dtype("cpu")})
    texts = list(drawn_texts(recipe))
    with open_teacher(section, "cpu") as embedder:
        assert isinstance(embedder, ModelEmbedder)
        embedder.embed_prompted(texts[:64])
        began = processor_time()
        embedder.embed_prompted(texts)
        return len(texts) / (processor_time() - began)


def drawn_texts(recipe: Recipe) -> Iterator[str]:
    """Yield TIMED_TEXTS texts of a recipe's sources, of each as large a share as the recipe takes."""
    assert recipe.corpus is not None
    limits = [source.limit or 0 for source in recipe.corpus.sources]
    for source, limit in zip(recipe.corpus.sources, limits, strict=True):
        assert source.path is not None
        rows = [row for _, row in read_rows(source.path) if isinstance(row, Mapping)]
        texts = list(dict.fromkeys(str(row["text"]) for row in rows))
        yield from random.Random(0).sample(texts, round(TIMED_TEXTS * limit / sum(limits)))


def measured(member: Member, folder: Path) -> dict[str, Any]:
    """Return the row of a run with the processor's minutes of its training.

    A run that was killed trains again from its start, since the time before was not kept.
    """
    times: list[float] = []

    def clock(step: int, metrics: Mapping[str, float]) -> None:
        times.append(processor_time())

    finished = run(member.recipe, folder, restart=folder.exists(), callbacks=[clock])
    assert finished is not None and finished.record.training is not None
    training = finished.record.training
    minutes = (times[-1] - times[0]) / 60
    return {**row_of(folder), "texts": training.texts, "epochs": training.epochs, "processor_minutes": minutes}


def table(results: Mapping[str, Any]) -> str:
    """Return a line for each change, the largest share of the teacher's asymmetric retrieval first."""
    head = ["change", "minutes of the teacher", "of the training", "distance", "overlap@10"]
    head += [f"{title}, %" for title in TASKS.values()] + [f"{title}, asymmetric, %" for title in TASKS.values()]
    rows = sorted(results["rows"].items(), key=lambda item: -mean_share(item[1], "asymmetric"))
    lines = []
    for name, row in rows:
        teacher = row["texts"] / row["epochs"] / results["teacher_texts_per_second"] / 60
        overlap = row["overlap"]["student"]["among"]
        cells = [f"{teacher:.1f}", f"{row['processor_minutes']:.1f}", f"{row['distance']['student']:.3f}"]
        cells.append("{mean:.3f} [{low:.3f}, {high:.3f}]".format(**overlap))
        cells += [f"{share(row, column, task):.1f}" for column in ("student", "asymmetric") for task in TASKS]
        lines.append([CHANGES[name], *cells])
    return markdown_table(head, lines, columns="l" + "r" * (len(head) - 1))


def share(row: Mapping[str, Any], column: str, task: str) -> float:
    """Return a score in percent of the teacher's."""
    scores = row["scores"]
    return float(100 * scores[column][task] / scores["teacher"][task])


def mean_share(row: Mapping[str, Any], column: str) -> float:
    """Return the mean share over the tasks."""
    return statistics.mean(share(row, column, task) for task in TASKS)


if __name__ == "__main__":
    main()
