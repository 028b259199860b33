"""Jasper's triplet: memory at batch 512 against the naive form's at batch 64, and time against the number of pairs.

    python -m benchmarks.triplet --json FILE

The naive form compares all pairs of pairs of texts at once, as the published code does. Each case is one loss with its
gradient, in a process of its own: median of several times, and the peak of the process's own memory (RssAnon) less what
it held before. `exponent` is the slope of log time over log pairs, B(B-1)/2, over the larger half of the batches: 1 is
linear.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from benchmarks.memory import Peak
from distilvec.core.files import write_json
from distilvec.losses.ranking import relative_triplet
from distilvec.losses.relations import cosine_relations

WIDTH, MARGIN = 256, 0.015
CASES = [("naive", 32), ("naive", 64), *(("distilvec", batch) for batch in (32, 64, 128, 256, 512, 1024))]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, required=True)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--largest", type=int, default=1024, help="the largest batch")
    parser.add_argument("--one", nargs=2, default=None, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.one:
        print(json.dumps(measure(arguments.one[0], int(arguments.one[1]), arguments.repeats)))
        return
    cases = []
    for form, batch in CASES:
        if batch <= arguments.largest:
            line = [
                sys.executable,
                "-m",
                "benchmarks.triplet",
                "--json",
                "-",
                "--repeats",
                str(arguments.repeats),
                "--one",
                form,
                str(batch),
            ]
            done = subprocess.run(line, check=True, capture_output=True, text=True, cwd=Path(__file__).parents[1])
            cases.append(json.loads(done.stdout.splitlines()[-1]))
            print(cases[-1], flush=True)
    report = summary(cases)
    write_json(arguments.json, report)
    print({name: value for name, value in report.items() if name != "cases"})


def measure(form: str, batch: int, repeats: int) -> dict[str, Any]:
    """One form at one batch size: milliseconds of loss and gradient, and peak memory in MB."""
    generator = torch.Generator().manual_seed(0)
    student, teacher = (torch.randn(batch, WIDTH, generator=generator) for _ in range(2))
    run(form, student[:8], teacher[:8])  # loads what is loaded once
    with Peak(0.001) as validation_outputs:
        value = run(form, student, teacher)
    seconds = []
    for _ in range(repeats):
        began = time.perf_counter()
        run(form, student, teacher)
        seconds.append(time.perf_counter() - began)
    peak = validation_outputs.megabytes - validation_outputs.samples[0]
    return {
        "form": form,
        "batch": batch,
        "ms": round(1000 * statistics.median(seconds), 3),
        "peak_mb": round(peak, 1),
        "loss": value,
    }


def run(form: str, student: Tensor, teacher: Tensor) -> float:
    """The loss and its gradient."""
    leaf = student.clone().requires_grad_()
    ours, theirs = cosine_relations(leaf[None]), cosine_relations(teacher[None])[0]
    loss = relative_triplet(ours, theirs, MARGIN).mean() if form == "distilvec" else naive(ours[0], theirs)
    torch.autograd.backward(loss)
    return float(loss)


def naive(student: Tensor, teacher: Tensor) -> Tensor:
    """All pairs of pairs at once: four numbers and a sign for each."""
    first, second = torch.triu_indices(len(teacher), len(teacher), 1)
    ours, theirs = student[first, second], teacher[first, second]
    one, other = torch.triu_indices(len(ours), len(ours), 1)
    sign = torch.where(theirs[one] > theirs[other], 1.0, -1.0)
    return F.relu(MARGIN - sign * (ours[one] - ours[other])).mean()


def summary(cases: list[dict[str, Any]]) -> dict[str, Any]:
    """The marks: memory at 512 over the naive form's at 64, and the growth of time with the number of pairs."""
    found = {(case["form"], case["batch"]): case for case in cases}
    batches = sorted(batch for form, batch in found if form == "distilvec")
    larger = batches[len(batches) // 2 :] if len(batches) > 2 else batches
    report: dict[str, Any] = {
        "cases": cases,
        "machine": f"{torch.get_num_threads()} threads, torch {torch.__version__}",
    }
    if len(larger) > 1:
        pairs = [batch * (batch - 1) / 2 for batch in larger]
        times = [found["distilvec", batch]["ms"] for batch in larger]
        report["exponent"] = round(float(np.polyfit(np.log(pairs), np.log(times), 1)[0]), 3)
    if ("distilvec", 512) in found and ("naive", 64) in found:
        report["memory_ratio_512_to_naive_64"] = round(
            found["distilvec", 512]["peak_mb"] / found["naive", 64]["peak_mb"], 3
        )
    return report


if __name__ == "__main__":
    main()
