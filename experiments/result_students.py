"""Rows of the students of recipes/students.yaml: what they keep of their teachers, their size, their speed in int8.

    distilvec run recipes/students.yaml --variant english-5m
    python -m experiments.result_students runs/students/* --json results/result_students.json

Each argument is a finished run, or the folder of a sweep. The student is exported to int8 if it was not yet, into its
own folder. Speed is measured in this call: one query at a time, from its text to its vector, teachers and students in
turn. The file keeps the rows of other students. `python -m experiments.readme` writes the table into docs/results.md
and the English students into docs/papers/redact.md.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import distilvec
from benchmarks.markdown import markdown_table
from benchmarks.results import earlier_results
from distilvec.core.files import write_json
from distilvec.evaluation.aggregate import AVERAGE, AVERAGES, RETRIEVAL
from distilvec.pipeline.finished_run import FinishedRun
from distilvec.verbs.runs.runs import runs_below
from experiments.alternatives import latencies
from experiments.untouched import SIZE, TITLE, Untouched, beside

TITLES = {  # the variants of students.yaml
    "english-5m": "English, 5M",
    "english-10m": "English, 10M",
    "english-23m": "English, 23M",
    "english-23m-480k": "English, 23M, 480,000 texts",
    "turkish-20m": "Turkish, 20M",
    "ten-languages-30m": "ten languages, 30M",
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="+", type=Path, metavar="RUN")
    parser.add_argument("--json", type=Path, required=True)
    arguments = parser.parse_args()

    runs = [FinishedRun.open(found.folder) for folder in arguments.runs for found in runs_below(folder)]
    forms: dict[str, str] = {}
    for run in runs:
        name = name_of(run)
        forms[name] = str(run.student_folder)
        forms[f"{name}, int8"] = str(distilvec.export(run.student_folder, to="onnx-int8"))
        teacher = str(run.recipe.teacher.model)
        forms[Path(teacher).name] = teacher
    timed = latencies(forms)
    milliseconds = {name: model["median_ms"] for name, model in timed["models"].items()}

    earlier = earlier_results(arguments.json, {"rows": []})
    rows = {row["name"]: row for row in earlier["rows"]}
    for run in runs:
        row = row_of(run)
        name, teacher = row["name"], row["teacher"]
        size = Path(forms[f"{name}, int8"]).stat().st_size / 1e6
        row["int8"] = {"megabytes": round(size, 1), "milliseconds": milliseconds[f"{name}, int8"]}
        row["milliseconds"] = {"student": milliseconds[name], "teacher": milliseconds[teacher]}
        rows[name] = row
    content = {"machine": timed["machine"], "rows": [rows[name] for name in TITLES if name in rows]}
    write_json(arguments.json, content)
    print(students_table(content))


def name_of(run: FinishedRun) -> str:
    """Return the variant of the recipe that the run is of."""
    return run.folder.name.split(",")[0]


def row_of(run: FinishedRun) -> dict[str, Any]:
    """Return what a finished run says of its student."""
    teacher, student, training, overlap = (
        run.record.teacher,
        run.record.student,
        run.record.training,
        run.record.overlap,
    )
    assert teacher is not None and student is not None and training is not None and overlap is not None
    assert run.record.data is not None
    return {
        "name": name_of(run),
        "teacher": teacher.name,
        "teacher_parameters": teacher.parameters,
        "parameters": student.parameters,
        "layers": student.layers,
        "texts": run.record.data.train_rows,
        "passes": training.epochs,
        "steps": training.steps,
        "minutes": training.minutes,
        "distance": {"start": run.validation["untrained_distance"], "student": run.validation["distance"]},
        "overlap": {name: overlap.to_json()[name] for name in ("start", "student")},
        "scores": {
            column: {score.task: round(score.value, 2) for score in scores} for column, scores in run.scores.items()
        },
        "averages": {
            column: {name: round(value, 4) for name, value in averages.items()}
            for column, averages in run.report.averages.items()
        },
    }


def students_table(found: Mapping[str, Any], untouched: Untouched | None = None) -> str:
    """Return a line for each student: what it keeps, its size and its speed; behind those of mpnet their rival."""
    head = [
        "student", "teacher", "parameters", "overlap@10", "average, %", "retrieval, %", "asymmetric, %", "int8, MB",
        "int8, ms", "teacher, ms",
    ]  # fmt: skip
    lines = []
    for row in found["rows"]:
        cells = [
            TITLES[row["name"]],
            f"{row['teacher']}, {row['teacher_parameters'] / 1e6:.0f} M",
            f"{row['parameters'] / 1e6:.1f} M",
            overlap_text(row),
            kept(row, "student", AVERAGE),
            kept(row, "student", RETRIEVAL),
            kept(row, "asymmetric", RETRIEVAL),
            f"{row['int8']['megabytes']:.0f}",
            f"{row['int8']['milliseconds']:.1f}",
            f"{row['milliseconds']['teacher']:.0f}",
        ]
        lines.append(cells)
    of_mpnet = rows_of_mpnet(found)
    if untouched is not None and of_mpnet:
        average, retrieval = untouched_shares(of_mpnet, untouched)
        lines.insert(len(of_mpnet), [TITLE, "", SIZE, "", average, retrieval, "", "", "", ""])
    return markdown_table(head, lines, columns="ll" + "r" * 8)


def overlap_text(row: Mapping[str, Any]) -> str:
    """Return overlap@10 with its interval; nothing for a student whose held-out texts were not new to it."""
    if row["overlap"] is None:
        return ""
    among = row["overlap"]["student"]["among"]
    return f"{among['mean']:.2f} [{among['low']:.2f}, {among['high']:.2f}]"


def rows_of_mpnet(found: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Return the rows of the students of all-mpnet-base-v2, which are the first ones."""
    return [row for row in found["rows"] if row["teacher"] == "mpnet"]


def untouched_shares(rows: Sequence[Mapping[str, Any]], untouched: Untouched) -> list[str]:
    """Return the rival's average and its retrieval in % of the teacher of these students, bold where it wins."""
    rival = {"averages": {"teacher": rows[0]["averages"]["teacher"], "untouched": untouched.averages}}
    shares = []
    for average in (AVERAGE, RETRIEVAL):
        students = [share_of(row, "student", average) for row in rows]
        shares.append(beside(share_of(rival, "untouched", average), students))
    return shares


def distances_table(found: Mapping[str, Any], names: Sequence[str], untouched: Untouched | None = None) -> str:
    """Return a line for each of some students: distance and overlap@10 before and after training, and retrieval; then
    their rival.
    """
    head = [
        "student", "parameters", "distance", "overlap@10 alone", "among the teacher's", "average, %", "retrieval, %",
        "asymmetric, %",
    ]  # fmt: skip
    lines = []
    for row in found["rows"]:
        if row["name"] in names:
            start, student = (row["overlap"][name] for name in ("start", "student"))
            cells = [
                TITLES[row["name"]],
                f"{row['parameters'] / 1e6:.1f} M",
                f"{row['distance']['start']:.3f} → {row['distance']['student']:.3f}",
                *(f"{start[kind]['mean']:.3f} → {student[kind]['mean']:.3f}" for kind in ("alone", "among")),
                kept(row, "student", AVERAGE),
                kept(row, "student", RETRIEVAL),
                kept(row, "asymmetric", RETRIEVAL),
            ]
            lines.append(cells)
    if untouched is not None and lines:
        shares = untouched_shares(rows_of_mpnet(found), untouched)
        lines.append([TITLE, SIZE, "", "", "", *shares, ""])
    return markdown_table(head, lines) if lines else ""


def kept(row: Mapping[str, Any], column: str, average: str) -> str:
    """Return an average of a column as a share of the teacher's, in per cent."""
    return f"{share_of(row, column, average):.1f}"


def share_of(row: Mapping[str, Any], column: str, average: str) -> float:
    """Return an average of a column in % of the teacher's.

    Where every task is retrieval, that average is the one over all tasks.
    """
    averages, key = row["averages"], AVERAGES[average]
    if key not in averages["teacher"]:
        key = AVERAGES[AVERAGE]
    return 100 * float(averages[column][key]) / float(averages["teacher"][key])


def tasks_table(found: Mapping[str, Any], names: Sequence[str], untouched: Untouched | None = None) -> str:
    """Return the scores of some students of one teacher by task, beside the teacher's and their rival's."""
    rows = [row for row in found["rows"] if row["name"] in names]
    if not rows:
        return ""
    head = ["task", "teacher"]
    for row in rows:
        head += [TITLES[row["name"]], "asymmetric"]
    if untouched is not None:
        head.append(TITLE)
    lines = []
    for task, score in rows[0]["scores"]["teacher"].items():
        cells = [task, f"{score:.1f}"]
        for row in rows:
            cells += [f"{row['scores'][column][task]:.1f}" for column in ("student", "asymmetric")]
        if untouched is not None:
            cells.append(beside(untouched.scores[task], [row["scores"]["student"][task] for row in rows]))
        lines.append(cells)
    return markdown_table(head, lines)


if __name__ == "__main__":
    main()
