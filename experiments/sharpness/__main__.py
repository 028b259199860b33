"""Measure how sharp the minimum is, over training: largest Hessian eigenvalue, trace, rise of the loss nearby.

    python -m experiments.sharpness runs/first --figure sharpness.svg

RUN is the folder of a finished run, or of a sweep. The loss is the full training objective, in fp32, at every saved
checkpoint (train.keep_students in the recipe). The numbers are kept in RUN/sharpness.json: the same command resumes.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Sequence
from pathlib import Path

from distilvec.cli.terminal import print_result
from distilvec.core.errors import DistilvecError
from distilvec.core.files import check_output_file, write_json
from distilvec.report.tables import to_text
from experiments.sharpness.figure import draw_sharpness, note, sharpness_table
from experiments.sharpness.landscape import Settings, measure_runs


def main(words: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        prog="experiments.sharpness", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("runs", nargs="+", type=Path, metavar="RUN")
    parser.add_argument("--steps", type=numbers, help="saved checkpoints, separated by commas; all by default")
    parser.add_argument("--texts", type=int, default=256, help="training texts in the loss, in batches as in training")
    parser.add_argument("--seed", type=int, default=0, help="draws the texts, dropout masks and random vectors")
    parser.add_argument(
        "--dropout",
        action=argparse.BooleanOptionalAction,
        help="the same dropout masks in every pass; by default as the method needs",
    )
    parser.add_argument("--rho", type=radius, default=0.05, help="radius of the SAM and ASAM perturbations")
    parser.add_argument("--trace", action=argparse.BooleanOptionalAction, default=True, help="the Hessian's trace")
    parser.add_argument("--json", type=Path, help="write the result here")
    parser.add_argument("--figure", type=Path, help="write the figure here as SVG, and as PNG")
    arguments = parser.parse_args(words)
    settings = Settings(arguments.texts, arguments.seed, arguments.dropout, arguments.rho)
    outputs = [path for path in (arguments.json, arguments.figure) if path is not None]
    try:
        for path in outputs:
            check_output_file(path)
        runs = measure_runs(arguments.runs, arguments.steps, settings, arguments.trace)
    except DistilvecError as error:
        parser.error(str(error))
    for path in outputs:
        path.parent.mkdir(parents=True, exist_ok=True)
    if arguments.json is not None:
        write_json(arguments.json, runs)
    print_result(f"{to_text(sharpness_table(*runs))}\n{note(runs[0])}")
    for path in draw_sharpness(runs, arguments.figure):
        print(path)


def numbers(text: str) -> list[int]:
    return [int(part) for part in text.split(",")]


def radius(text: str) -> float:
    value = float(text)
    if not 0 < value < math.inf:
        raise ValueError(f"{text} is not a radius")
    return value


if __name__ == "__main__":
    main()
