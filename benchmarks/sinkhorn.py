"""Batched Sinkhorn with masks against POT called text by text, at equal values.

    python -m benchmarks.sinkhorn --json FILE

Problems are as EMO's: up to 40 x 45 tokens padded to one size, costs from 0 to 1, uneven masses of sum 1, epsilon 0.1.
Both sides stop at the same error of the marginals, which both look at every 10 iterations ("tolerance"), or after 100
iterations whatever the error ("fixed"). POT's `ot.sinkhorn` is given each text without its padding, as NumPy arrays of
float64 and of float32 and as torch tensors of float32; `ratio` is over the fastest of them. Times are medians of
alternating rounds.
"""

from __future__ import annotations

import argparse
import statistics
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import ot
import torch
from torch import Tensor

from distilvec.core.files import write_json
from distilvec.losses.transport import transport_cost

EPSILON = 0.1
STOPS = {"tolerance": (1000, 1e-6), "fixed": (100, 0.0)}  # iterations, error
FORMS: dict[str, Callable[[Tensor], Any]] = {
    "pot_numpy_float64": lambda x: x.double().numpy(),
    "pot_numpy_float32": lambda x: x.numpy(),
    "pot_torch_float32": lambda x: x,
}


@dataclass(frozen=True)
class Problems:
    """Costs and masses, 0 at padding; `sizes` [problems, 2] are those without padding."""

    sizes: list[tuple[int, int]]
    cost: Tensor
    nu: Tensor
    mu: Tensor


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, required=True)
    parser.add_argument("--problems", type=int, default=32)
    parser.add_argument("--student", type=int, default=40, help="the student's tokens at most")
    parser.add_argument("--teacher", type=int, default=45, help="the teacher's tokens at most")
    parser.add_argument("--rounds", type=int, default=41)
    arguments = parser.parse_args()
    problems = draw(arguments.problems, arguments.student, arguments.teacher)
    report: dict[str, Any] = {
        "problems": f"{arguments.problems} of {arguments.student} x {arguments.teacher} tokens at most, epsilon {EPSILON}",  # noqa: E501
        "machine": f"{torch.get_num_threads()} threads, torch {torch.__version__}, POT {ot.__version__}",
    }
    for name, (iterations, tolerance) in STOPS.items():
        report[name] = measure(problems, iterations, tolerance, arguments.rounds)
        print(name, report[name], flush=True)
    write_json(arguments.json, report)


def draw(count: int, student: int, teacher: int) -> Problems:
    """Random problems of three quarters of the size up to all of it."""
    generator = torch.Generator().manual_seed(0)
    shortest = (max(1, 3 * student // 4), max(1, 3 * teacher // 4))
    ours = torch.randint(shortest[0], student + 1, (count,), generator=generator)
    theirs = torch.randint(shortest[1], teacher + 1, (count,), generator=generator)
    ours[0], theirs[0] = student, teacher
    nu, mu = (
        torch.randn(count, width, generator=generator)
        .where(torch.arange(width) < lengths[:, None], -torch.inf)
        .softmax(1)
        for width, lengths in ((student, ours), (teacher, theirs))
    )
    cost = torch.rand(count, student, teacher, generator=generator)
    return Problems(list(zip(ours.tolist(), theirs.tolist(), strict=True)), cost, nu, mu)


def measure(problems: Problems, iterations: int, tolerance: float, rounds: int) -> dict[str, Any]:
    """Milliseconds of each form, the largest difference of a value to POT's in float64, and the ratio."""
    forms: dict[str, Callable[[], Any]] = {"distilvec": lambda: batched(problems, iterations, tolerance)}
    for name, form in FORMS.items():
        samples = [tuple(form(x) for x in sample) for sample in unpadded(problems)]
        forms[name] = lambda samples=samples: one_by_one(samples, iterations, tolerance)  # type: ignore[misc]
    values = {name: np.array([float(value) for value in run()]) for name, run in forms.items()}
    seconds: dict[str, list[float]] = {name: [] for name in forms}
    for _ in range(rounds):
        for name, run in forms.items():
            began = time.perf_counter()
            run()
            seconds[name].append(time.perf_counter() - began)
    ms = {name: round(1000 * statistics.median(times), 3) for name, times in seconds.items()}
    differs = float(np.abs(values["distilvec"] - values["pot_numpy_float64"]).max())
    return {
        "ms": ms,
        "largest_difference": differs,
        "ratio": round(min(ms[name] for name in FORMS) / ms["distilvec"], 1),
    }


def batched(problems: Problems, iterations: int, tolerance: float) -> Tensor:
    """All values at once."""
    return transport_cost(
        problems.cost, problems.nu, problems.mu, epsilon=EPSILON, iterations=iterations, tolerance=tolerance
    )


def unpadded(problems: Problems) -> list[tuple[Tensor, Tensor, Tensor]]:
    """Each problem's masses and costs without padding."""
    return [
        (problems.nu[row, :student], problems.mu[row, :teacher], problems.cost[row, :student, :teacher].contiguous())
        for row, (student, teacher) in enumerate(problems.sizes)
    ]


def one_by_one(samples: list[tuple[Any, ...]], iterations: int, tolerance: float) -> list[Any]:
    """POT's plan and cost, sample by sample."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # POT warns where the iterations end before the error is reached
        return [
            (ot.sinkhorn(a, b, c, EPSILON, numItermax=iterations, stopThr=tolerance) * c).sum() for a, b, c in samples
        ]


if __name__ == "__main__":
    main()
