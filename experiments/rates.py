"""How high may the learning rate be for a student that begins near its teacher? Rates by the teacher, one thread.

    python -m experiments.rates WORKSPACE --teachers FOLDER --json results/rates.json [--cases e5 …]

Teachers of FOLDER become students with all of their own layers: fewer tokens or neurons, so that they begin near. Each
is trained with `redact` for as many steps of 32 texts at a quarter, a sixteenth … of the rate that a distance alone
gives (`train/start.py`). The figures are the student's at its last step, whether or not it would ship. WORKSPACE keeps
the runs, so that the same command goes on.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

import distilvec
from benchmarks.markdown import markdown_table
from benchmarks.results import earlier_results, workspace_parser
from distilvec.core.files import write_json
from distilvec.core.run_folder import RunFolder
from distilvec.pipeline import evaluate
from distilvec.train import trainer
from distilvec.train.start import RATE_PER_DISTANCE
from experiments.linear_layer import english_texts
from experiments.paper_teacher import Texts

SHARES = (1.0, 1 / 4, 1 / 16)


@dataclass(frozen=True)
class Case:
    """A teacher of the folder, what of it stays, and the training."""

    teacher: str
    texts: str
    options: Mapping[str, Any]
    count: int
    steps: int


CASES = {
    "e5": Case("e5", "turkish", {"language": "tr", "size": "20M"}, 4000, 120),
    "mpnet": Case("mpnet", "english", {"size": "70M"}, 4000, 120),
    "gemma": Case("gemma", "turkish", {"language": "tr", "size": "115M"}, 1500, 40),
    "mpnet, three layers": Case("mpnet", "english", {"layers": 3}, 4000, 120),
    "minilm": Case("minilm", "english", {"size": "12M"}, 4000, 120),
}


def main() -> None:
    parser = workspace_parser(__doc__, "--teachers")
    parser.add_argument("--cases", nargs="+", choices=list(CASES), default=list(CASES))
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    vars(evaluate)["judge_run"] = lambda job: None  # which embeds all texts twice; the rows have their own judgement
    vars(trainer)["RETURNS"] = -1  # no way back to the start, so that each rate is seen to its end
    results = earlier_results(arguments.json, {"rows": []})
    done = {(row["case"], row["share"]) for row in results["rows"]}
    for name in arguments.cases:
        for share in SHARES:
            if (name, share) in done:
                continue
            row = measured(CASES[name], arguments.teachers.resolve(), arguments.workspace / name, share)
            results["rows"].append({"case": name, "share": share, **row})
            write_json(arguments.json, results)
            print(results["rows"][-1], flush=True)
    print(table(results))


def measured(case: Case, teachers: Path, folder: Path, share: float) -> dict[str, Any]:
    """Return the start and the last step of a training at this share of the rate that the distance gives."""
    file = folder / "texts.txt"
    if not file.exists():
        folder.mkdir(parents=True, exist_ok=True)
        texts = english_texts(case.count) if case.texts == "english" else Texts.read().turkish[: case.count]
        file.write_text("\n".join(" ".join(text.split()) for text in texts), encoding="utf-8")
    teacher = str(teachers / case.teacher)
    parts: dict[str, Any] = {"evaluation.parts": []}
    begun = distilvec.distill(
        teacher, file, out=folder / "begun", overrides={"train.max_steps": 1, **parts}, **case.options
    )
    assert begun is not None and begun.record.student is not None
    distance = begun.validation["untrained_distance"]
    assert distance is not None
    rate = share * RATE_PER_DISTANCE * distance
    settings = {"train.learning_rate": rate, "train.max_steps": case.steps, **parts}
    out = folder / f"rate-{share:g}"
    distilvec.distill(teacher, file, out=out, overrides=settings, **case.options)
    lines = [json.loads(line) for line in RunFolder(out).metrics.read_text(encoding="utf-8").splitlines()]
    validated = [line for line in lines if "eval/distance" in line]
    return {
        "rate": rate,
        "steps": validated[-1]["step"],
        "layers": begun.record.student.layers,
        "width": begun.record.student.hidden_width,
        "parameters": begun.record.student.parameters,
        "distance": [validated[0]["eval/distance"], validated[-1]["eval/distance"]],
        "overlap": [line["eval/overlap_of_validation_texts"] for line in (validated[0], validated[-1])],
    }


def table(results: Mapping[str, Any]) -> str:
    """Return a line for each teacher and rate."""
    head = ["teacher", "layers", "width", "rate", "steps", "distance", "overlap@10 of validation texts"]
    lines = [
        [
            row["case"],
            str(row["layers"]),
            str(row["width"]),
            f"{row['rate']:.1e}",
            str(row["steps"]),
            "{:.3f} → {:.3f}".format(*row["distance"]),
            "{:.3f} → {:.3f}".format(*row["overlap"]),
        ]
        for row in results["rows"]
    ]
    about = "`redact`, batches of 32, one seed (`python -m experiments.rates WORKSPACE --teachers FOLDER --json FILE`)."
    return f"{markdown_table(head, lines, columns='lrrrrrr')}\n\n{about}"


if __name__ == "__main__":
    main()
