"""How long two ordinary commands take from the first word to the page, by the source of two checkouts.

    git clone -q . /tmp/before && git -C /tmp/before checkout -q COMMIT
    python -m benchmarks.totals /tmp/before . --teachers FOLDER --json FILE        about 40 minutes on two quiet cores

mpnet → 5M on 10,000 English texts in three passes, and all-MiniLM-L6-v2 → 5M on 1,407 docstrings as the tutorial has
it; a row that FILE has already stays. Every command begins with an empty cache; the checkouts take turns. A phase is
what the command prints as "2/5 teacher". The students of both sides are compared on texts that neither has seen: the
share of the teacher's ten nearest that is found among the teacher's vectors, paired by text.
"""

from __future__ import annotations

import argparse
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.before_after import commit
from benchmarks.markdown import markdown_table
from benchmarks.results import earlier_results
from benchmarks.stopwatch import busy_note, machine, processor_time
from distilvec.core.files import write_json
from distilvec.core.model_name import ModelName
from distilvec.data.docstrings import docstrings
from distilvec.evaluation.overlap import overlap_by_query
from distilvec.evaluation.significance import mean_interval
from distilvec.models.load import load_model
from experiments.linear_layer import english_texts

NEW = 500
PHASES = ("start of the command", "texts", "teacher", "start", "training", "evaluation")
_PHASE = re.compile(r"\d/\d (\w+)$")


@dataclass(frozen=True)
class Job:
    """A command, its texts, and texts that its student has not seen."""

    teacher: str
    words: tuple[str, ...]
    texts: list[str]
    new: list[str]


def jobs() -> dict[str, Job]:
    """Return what is timed."""
    english = [" ".join(text.split()) for text in english_texts(10_000 + NEW)]
    short = [" ".join(docstring.text.split()) for docstring in docstrings()]
    return {
        "mpnet, 10,000 texts": Job("mpnet", ("--size", "5M", "--epochs", "3"), english[:10_000], english[10_000:]),
        "MiniLM, 1,407 texts": Job("minilm", ("--size", "5M"), short[:1407], short[1407:]),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("before", type=Path)
    parser.add_argument("after", type=Path)
    parser.add_argument("--teachers", type=Path, required=True)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--json", type=Path, required=True)
    arguments = parser.parse_args()
    sides = {"before": arguments.before.resolve(), "after": arguments.after.resolve()}
    commits = {side: commit(checkout) for side, checkout in sides.items()}
    results = earlier_results(arguments.json, {"machine": machine(), "rows": {}})
    rows = results["rows"]
    for name, job in jobs().items():
        if name not in rows:
            rows[name] = {**measured(name, job, sides, arguments), **commits}
            write_json(arguments.json, results)
    print(table(rows))


def measured(name: str, job: Job, sides: Mapping[str, Path], arguments: argparse.Namespace) -> dict[str, Any]:
    """Return the seconds of both sides, and how much more of the teacher's nearest texts the student of after finds."""
    teacher = arguments.teachers.resolve() / job.teacher
    load = os.getloadavg()[0]
    seconds: dict[str, list[dict[str, float]]] = defaultdict(list)
    found: dict[str, list[np.ndarray]] = defaultdict(list)
    for number in range(arguments.rounds):
        for side in sorted(sides, reverse=number % 2 == 1):
            phases, shares = timed(sides[side], teacher, job)
            seconds[side].append(phases)
            found[side].append(shares)
            print(f"{name}, round {number + 1}, {side}: {phases}", file=sys.stderr, flush=True)
    change = np.mean(found["after"], axis=0) - np.mean(found["before"], axis=0)
    return {
        "seconds": {side: medians(seconds[side]) for side in sides},
        "overlap": {side: float(np.mean(found[side])) for side in sides},
        "overlap_change": [float(number) for number in mean_interval(change, least=-1)],
        "rounds": arguments.rounds,
        "busy": busy_note(load),
    }


def timed(checkout: Path, teacher: Path, job: Job) -> tuple[dict[str, float], np.ndarray]:
    """Run the command of a checkout; return the seconds of its phases, and what its student finds of each new text."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "texts.txt").write_text("\n".join(job.texts), encoding="utf-8")
        environment = {**os.environ, "PYTHONPATH": str(checkout / "src"), "DISTILVEC_CACHE": str(folder / "cache")}
        line = [sys.executable, "-m", "distilvec", "distill", str(teacher), "texts.txt", *job.words, "--out", "run"]
        phase, seconds = PHASES[0], dict.fromkeys(PHASES, 0.0)
        processor, began = processor_time(), time.monotonic()
        last = began
        process = subprocess.Popen(
            line, cwd=folder, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
        )
        assert process.stderr is not None
        for printed in process.stderr:
            begins = _PHASE.match(printed.strip())
            if begins:
                now = time.monotonic()
                seconds[phase] += now - last
                phase, last = begins[1], now
        assert process.wait() == 0
        ended = time.monotonic()
        seconds[phase] += ended - last
        total = {"total": ended - began, "processor": processor_time() - processor}
        return {**seconds, **total}, shares(folder / "run" / "student", teacher, job)


def shares(student: Path, teacher: Path, job: Job) -> np.ndarray:
    """Return overlap@10 of each new text, among the teacher's vectors of the texts."""
    model = load_model(ModelName(str(teacher)))
    known, new = (model.encode(texts, batch_size=64) for texts in (job.texts[:3000], job.new))
    vectors = load_model(ModelName(str(student))).encode(job.new, batch_size=64)
    return overlap_by_query(new, known, vectors, known)


def medians(rounds: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Return the median of every phase, the total, and what is neither the teacher's pass nor training."""
    middle = {name: statistics.median(phases[name] for phases in rounds) for name in rounds[0]}
    around = middle["total"] - middle["teacher"] - middle["training"]
    return {name: round(value, 1) for name, value in middle.items()} | {"around": round(around, 1)}


def table(rows: Mapping[str, Any]) -> str:
    """Return a line for each command."""
    head = ["command", "seconds before", "after", "after / before", "neither teacher nor training, before", "after"]
    head.append("overlap@10, after less before")
    lines = []
    for name, row in rows.items():
        before, after = row["seconds"]["before"], row["seconds"]["after"]
        cells = [f"{before['total']:.0f}", f"{after['total']:.0f}", f"{after['total'] / before['total']:.2f}"]
        cells += [f"{side['around']:.0f} ({side['around'] / side['total']:.0%})" for side in (before, after)]
        lines.append([name, *cells, "{:+.3f} [{:+.3f}, {:+.3f}]".format(*row["overlap_change"])])
    return markdown_table(head, lines, columns="l" + "r" * (len(head) - 1))


if __name__ == "__main__":
    main()
