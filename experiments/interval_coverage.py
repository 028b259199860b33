"""How often the intervals of `evaluate`, `compare` and reports hold the true value, by simulation; they say 95%.

    python -m experiments.interval_coverage --json results/interval_coverage.json

Test sets are drawn from made populations, whose true scores are those of a very large test set. Values are like those
of real runs: nDCG@10 of one relevant document, at the same rank for most queries; labels that differ on 5% of the
rows; shares of ten neighbours; similarities that follow graded scores. Takes about two minutes on one core.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.markdown import markdown_table
from distilvec.core.files import write_json
from distilvec.evaluation.evaluator import Sample
from distilvec.evaluation.significance import average_interval, score_interval

Pair = tuple[Sample, Sample]
Draw = Callable[[int, np.random.Generator], Pair]  # results of two models on so many test rows

TESTS, POPULATION = 1000, 400_000
RANKS = np.array([0.36, 0.13, 0.08, 0.06, 0.05, 0.04, 0.03, 0.03, 0.02, 0.02, 0.18])  # the last: below 10
GAINS = np.append(1 / np.log2(np.arange(2, 12)), 0)


@dataclass(frozen=True)
class Coverage:
    """Share of tests whose interval holds the true value, of a score and of a difference; mean widths in points.

    excluded: share of tests of two equally good models whose interval excludes 0; None for models that differ
    """

    metric: str
    rows: int
    score: float
    score_width: float
    difference: float
    difference_width: float
    excluded: float | None = None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, required=True)
    parser.add_argument("--tests", type=int, default=TESTS)
    arguments = parser.parse_args()
    rows = []
    for metric, sizes, draw in CASES:
        for size in sizes:
            rows.append(asdict(coverage(metric, size, draw, arguments.tests)))
            print(rows[-1], flush=True)
    write_json(arguments.json, {"tests": arguments.tests, "rows": rows})


def coverage(metric: str, size: int, draw: Draw, tests: int) -> Coverage:
    """Return how often the intervals of `tests` test sets hold the score and the difference of the population."""
    generator = np.random.default_rng([0, size, len(metric)])
    first, second = draw(POPULATION, generator)
    is_equal = metric.startswith("equal")
    score = 100 * first.row_values.mean()
    difference = 0.0 if is_equal else score - 100 * second.row_values.mean()
    score_bounds, difference_bounds = [], []
    for _ in range(tests):
        pair = draw(size, generator)
        interval = score_interval(pair[0])
        assert interval is not None
        score_bounds.append(interval)
        change = average_interval([pair])
        difference_bounds.append((change.low, change.high))
    of_score, of_difference = np.array(score_bounds), np.array(difference_bounds)
    return Coverage(
        metric,
        size,
        held(of_score, score),
        float(np.diff(of_score).mean()),
        held(of_difference, difference),
        float(np.diff(of_difference).mean()),
        1 - held(of_difference, 0.0) if is_equal else None,
    )


def held(bounds: np.ndarray[Any, Any], value: float) -> float:
    """Share of the bounds [tests, 2] that hold the value."""
    return float(np.mean((bounds[:, 0] <= value) & (value <= bounds[:, 1])))


# -- populations -----------------------------------------------------------------------------------------------------


def of_search(values: np.ndarray[Any, Any]) -> Sample:
    return Sample("retrieval", "ndcg@10", values, np.ones(len(values)))


def search(rows: int, generator: np.random.Generator) -> Pair:
    """Two of five queries change their rank, for the worse more often than for the better."""
    first = generator.choice(11, rows, p=RANKS)
    moved = np.clip(first + generator.integers(-2, 5, rows), 0, 10)
    second = np.where(generator.random(rows) < 0.4, moved, first)
    return of_search(GAINS[first]), of_search(GAINS[second])


def equal_search(rows: int, generator: np.random.Generator) -> Pair:
    """Two equally good models: which of two ranks is whose is chance."""
    first, second = search(rows, generator)
    is_swapped = generator.random(rows) < 0.5
    values = (
        np.where(is_swapped, second.predicted, first.predicted),
        np.where(is_swapped, first.predicted, second.predicted),
    )
    return of_search(values[0]), of_search(values[1])


def equal_scores(rows: int, generator: np.random.Generator) -> Pair:
    """Two equally good models that differ on every query."""
    return of_search(generator.beta(2, 1, rows)), of_search(generator.beta(2, 1, rows))


def overlap(rows: int, generator: np.random.Generator) -> Pair:
    """Shares of ten neighbours, of a student and of its start."""
    difficulty = generator.beta(6, 2, rows)
    shares = generator.binomial(10, difficulty) / 10, generator.binomial(10, 0.85 * difficulty) / 10
    return of_search(shares[0]), of_search(shares[1])


def labels(rows: int, generator: np.random.Generator) -> Pair:
    """Two models that are right on 90% of the rows, and differ on 5%."""
    gold = generator.integers(4, size=rows)
    first = np.where(generator.random(rows) < 0.9, gold, (gold + 1) % 4)
    other = np.where(first == gold, (gold + 1) % 4, gold)
    second = np.where(generator.random(rows) < 0.05, other, first)
    return Sample("classification", "accuracy", first, gold), Sample("classification", "accuracy", second, gold)


def labels_by_class(rows: int, generator: np.random.Generator) -> Pair:
    """The same by macro F1; some classes are rare."""
    gold = generator.choice(4, size=rows, p=[0.5, 0.3, 0.1, 0.1])
    first = np.where(generator.random(rows) < 0.85, gold, generator.integers(4, size=rows))
    second = np.where(generator.random(rows) < 0.15, generator.integers(4, size=rows), first)
    return Sample("classification", "macro_f1", first, gold), Sample("classification", "macro_f1", second, gold)


def graded(rows: int, generator: np.random.Generator) -> Pair:
    """Similarities that follow scores of 0 to 5."""
    gold = np.round(generator.uniform(0, 5, rows), 1)
    shared = gold + generator.normal(0, 0.8, rows)
    first, second = (shared + generator.normal(0, noise, rows) for noise in (0.3, 0.6))
    return Sample("sts", "spearman", first, gold), Sample("sts", "spearman", second, gold)


def matches(rows: int, generator: np.random.Generator) -> Pair:
    """Similarities of pairs, of which two in five match."""
    gold = generator.random(rows) < 0.4
    shared = 1.5 * gold + generator.normal(0, 1, rows)
    first, second = (shared + generator.normal(0, noise, rows) for noise in (0.3, 0.6))
    return Sample("pair", "average_precision", first, gold), Sample("pair", "average_precision", second, gold)


CASES: tuple[tuple[str, tuple[int, ...], Draw], ...] = (
    ("nDCG@10", (10, 20, 50, 200), search),
    ("overlap@10", (10, 20, 60), overlap),
    ("accuracy, 5% of the rows differ", (200, 1000), labels),
    ("macro F1", (200,), labels_by_class),
    ("Spearman", (50, 200), graded),
    ("average precision", (50, 200), matches),
    ("equal models, nDCG@10", (5, 7, 10, 20), equal_search),
    ("equal models, every query differs", (5, 7, 10), equal_scores),
)


def coverage_table(report: Mapping[str, Any]) -> str:
    """Return a line for each metric and number of rows."""
    head = ["metric", "queries or rows", "interval of a score holds", "of a difference", "names a winner of two equals"]
    lines = []
    for row in report["rows"]:
        excluded = "" if row["excluded"] is None else f"{100 * row['excluded']:.1f}%"
        cells = [
            row["metric"],
            f"{row['rows']:,}",
            f"{100 * row['score']:.1f}%",
            f"{100 * row['difference']:.1f}%",
            excluded,
        ]
        lines.append(cells)
    return markdown_table(head, lines, columns="lrrrr")


if __name__ == "__main__":
    main()
