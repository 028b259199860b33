"""What a minute of training adds to a student that is fitted alone (train.epochs: 0).

    python -m experiments.fitted WORKSPACE --teachers FOLDER --json results/fitted.json

`minilm` and `mpnet` of FOLDER become students of 5M on the same texts of english_text (docs/data.md), first without a
step, then with as many steps as one thread here takes in sixty seconds of its processor, in the same run folder. The
row has the seconds, of the processor and of the clock: other work may share the machine. WORKSPACE keeps the runs, so
that the same command resumes; a training that was stopped has no seconds, and its run is to be deleted.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

import distilvec
from benchmarks.markdown import markdown_table
from benchmarks.results import earlier_results, workspace_parser
from distilvec.core.files import write_json
from distilvec.pipeline.finished_run import FinishedRun
from experiments.linear_layer import english_texts

TEACHERS = {"minilm": "all-MiniLM-L6-v2", "mpnet": "all-mpnet-base-v2"}
TEXTS, SIZE = 4000, "5M"
STEPS = 590  # of 32 texts


def main() -> None:
    arguments = workspace_parser(__doc__, "--teachers").parse_args()
    torch.set_num_threads(1)
    arguments.workspace.mkdir(parents=True, exist_ok=True)
    texts = arguments.workspace / "texts.txt"
    if not texts.exists():
        texts.write_text("\n".join(" ".join(text.split()) for text in english_texts(TEXTS)), encoding="utf-8")
    report = earlier_results(arguments.json, {"texts": TEXTS, "size": SIZE, "rows": {}})
    for name in TEACHERS:
        if name not in report["rows"]:
            report["rows"][name] = measure((arguments.teachers / name).resolve(), texts, arguments.workspace / name)
            write_json(arguments.json, report)
    print(table(report))


def measure(teacher: Path, texts: Path, folder: Path) -> dict[str, Any]:
    """Return overlap@10 of the student without a step, and after the seconds of training."""
    fitted = distilvec.distill(str(teacher), texts, size=SIZE, epochs=0, out=folder)
    assert fitted is not None and fitted.record.training is not None
    row = {"fitted": overlaps(fitted), "start": fitted.record.training.start}
    seconds: dict[int, tuple[float, float]] = {}

    def note(step: int, metrics: Mapping[str, float]) -> None:
        seconds.setdefault(step, (time.process_time(), time.perf_counter()))

    steps = {"train.max_steps": STEPS}
    trained = distilvec.distill(str(teacher), texts, size=SIZE, overrides=steps, out=folder, callbacks=[note])
    assert trained is not None and trained.record.training is not None
    if 0 not in seconds:  # a part of the training was in a process before this one
        raise SystemExit(f"{folder} was trained in another process: delete it and start again.")
    (first, first_clock), (last, last_clock) = seconds[0], seconds[max(seconds)]
    return row | {
        "trained": overlaps(trained),
        "steps": trained.record.training.steps,
        "best_step": trained.record.training.best_step,
        "processor_seconds": round(last - first, 1),
        "clock_seconds": round(last_clock - first_clock, 1),
    }


def overlaps(run: FinishedRun) -> dict[str, list[float]]:
    """Return overlap@10 with its interval, among the teacher's vectors and alone."""
    judgement = run.record.overlap
    assert judgement is not None
    shares = {"among": judgement.student.among, "alone": judgement.student.alone}
    return {name: [share.mean, share.low, share.high] for name, share in shares.items() if share is not None}


def table(report: Mapping[str, Any]) -> str:
    """Return a line for each teacher: overlap@10 among its vectors, fitted and trained."""
    head = ["teacher", f"fitted, {report['size']}", "trained", "steps", "seconds of the processor"]
    lines = []
    for name, row in report["rows"].items():
        cells = [f"{mean:.2f} [{low:.2f}, {high:.2f}]" for mean, low, high in shares(row)]
        lines.append([TEACHERS[name], *cells, f"{row['steps']:,}", f"{row['processor_seconds']:.0f}"])
    return markdown_table(head, lines, columns="lrrrr")


def shares(row: Mapping[str, Any]) -> list[list[float]]:
    """Return the share among the teacher's vectors before and after, each with its interval."""
    return [row[when]["among"] for when in ("fitted", "trained")]


if __name__ == "__main__":
    main()
