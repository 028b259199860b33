"""A prompt that is built into the student: texts without it, with it, with another, with it twice, and by a server.

    python -m experiments.built_in_prompt WORKSPACE --teacher E5_FOLDER --json results/built_in_prompt.json
    python -m experiments.built_in_prompt WORKSPACE --teacher GEMMA_FOLDER --steps 1200 --json …

Two students of 5M, with layers of all-MiniLM-L6-v2, learn the teacher's vectors with its prompt "query" on the same
texts of english_text (docs/data.md), in as many steps: into one the prompt is built (`--built-in-prompt query`), the
other has it as a prompt. Both are judged on texts that neither has seen: the share of the teacher's ten nearest that is
found among the teacher's vectors of the training texts, and the cosine with the vectors of texts as they are meant to
be given. WORKSPACE keeps the runs, so that the same command resumes.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.error import URLError

import numpy as np
import torch
from sentence_transformers import SentenceTransformer

import distilvec
from benchmarks.markdown import markdown_table
from benchmarks.results import earlier_results, workspace_parser
from distilvec.core.files import write_json
from distilvec.core.model_name import ModelName
from distilvec.core.vectors import cosine_pairs
from distilvec.evaluation.overlap import overlap_by_query
from distilvec.evaluation.significance import mean_interval
from distilvec.models.load import load_model, role_prompts
from experiments.linear_layer import english_texts

TEXTS, NEW = 2000, 300
STUDENT = "all-MiniLM-L6-v2"
DESIGN = {  # of 5M parameters, as students/design.py has it for this model, but for the choice of the layers
    "student.layers": 3,
    "student.intermediate_size": 768,
    "student.vocabulary": {"kind": "trim", "size": 9999},
    "student.embedding.rank": 132,
}
NAME, OTHER = "query", "document"
WAYS = {
    "bare": "as they are",
    "right": "with the prompt",
    "wrong": "with the other prompt",
    "twice": "with the prompt twice",
    "server_query": "`serve`, `input_type` query",
    "server_document": "`serve`, `input_type` document",
}


def main() -> None:
    parser = workspace_parser(__doc__, "--teacher")
    parser.add_argument("--steps", type=int, default=300)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    arguments.workspace.mkdir(parents=True, exist_ok=True)
    texts = [" ".join(text.split()) for text in english_texts(TEXTS + NEW)]
    known, new = texts[:TEXTS], texts[TEXTS:]
    file = arguments.workspace / "texts.txt"
    file.write_text("\n".join(known), encoding="utf-8")
    teacher = str(arguments.teacher.resolve())
    prompts: dict[str, str] = dict(role_prompts(load_model(ModelName(teacher)).prompts).items())
    common: dict[str, Any] = {"student": STUDENT, "overrides": {**DESIGN, "train.max_steps": arguments.steps}}
    built_in = distilvec.distill(teacher, file, out=arguments.workspace / "built-in", built_in_prompt=NAME, **common)
    prompted = distilvec.distill(
        teacher,
        file,
        out=arguments.workspace / "prompted",
        query_prompt=prompts[NAME],
        document_prompt=prompts[NAME],
        **common,
    )
    assert built_in is not None and prompted is not None
    assert built_in.record.training is not None and built_in.record.student is not None
    vectors_file = arguments.workspace / "teacher.npy"
    if not vectors_file.exists():
        model = load_model(ModelName(teacher))
        np.save(vectors_file, model.encode([prompts[NAME] + text for text in texts], batch_size=64))
    vectors = np.load(vectors_file)
    measured = {
        "teacher": Path(teacher).name,
        "prompts": prompts,
        "texts": TEXTS,
        "new_texts": NEW,
        "parameters": built_in.record.student.parameters,
        "steps": built_in.record.training.steps,
        "minutes": built_in.record.training.minutes,
        "built_in": shares(ways(built_in.student_folder, new, prompts), vectors, "bare"),
        "prompted": shares(prompted_ways(prompted.student_folder, new, prompts), vectors, "right"),
    }
    results = earlier_results(arguments.json, {"rows": []})
    others = [
        row for row in results["rows"] if (row["teacher"], row["steps"]) != (measured["teacher"], arguments.steps)
    ]
    results["rows"] = [*others, measured]
    write_json(arguments.json, results)
    print(table(results))


def ways(folder: Path, texts: Sequence[str], prompts: Mapping[str, str]) -> dict[str, np.ndarray]:
    """Return the student's vectors of the texts, given in each of WAYS."""
    model = SentenceTransformer(str(folder), device="cpu")
    right, other = prompts[NAME], prompts[OTHER]
    vectors = {
        "bare": model.encode(list(texts)),
        "right": model.encode([right + text for text in texts]),
        "wrong": model.encode([other + text for text in texts]),
        "twice": model.encode([right + right + text for text in texts]),
    }
    with server(folder) as address:
        for role in ("query", "document"):
            vectors[f"server_{role}"] = served(address, texts, role)
    return vectors


def prompted_ways(folder: Path, texts: Sequence[str], prompts: Mapping[str, str]) -> dict[str, np.ndarray]:
    """Return the vectors of a student with the prompt as it is meant to be given, and forgotten."""
    model = SentenceTransformer(str(folder), device="cpu")
    return {"bare": model.encode(list(texts)), "right": model.encode([prompts[NAME] + text for text in texts])}


@contextmanager
def server(folder: Path) -> Iterator[str]:
    """Run `distilvec serve`; yield the address of its embeddings."""
    line = [sys.executable, "-m", "distilvec", "serve", str(folder), "--port", "0"]
    with subprocess.Popen(line, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        printed = ""
        while "/v1/embeddings" not in printed:
            part = process.stderr.readline()
            if not part:
                raise SystemExit(f"the server has ended: {printed}")
            printed += part
        try:
            yield next(word for word in printed.split() if word.endswith("/v1/embeddings"))
        finally:
            process.terminate()


def served(address: str, texts: Sequence[str], role: str) -> np.ndarray:
    """Return a server's vectors of the texts."""
    body = json.dumps({"input": list(texts), "input_type": role}).encode()
    request = urllib.request.Request(address, body, {"Content-Type": "application/json"})
    for attempt in range(60):
        try:
            with urllib.request.urlopen(request) as answer:
                rows = json.load(answer)["data"]
            break
        except URLError:  # the address is printed before the server listens
            if attempt == 59:
                raise
            time.sleep(1)
    return np.array([row["embedding"] for row in rows], dtype=np.float32)


def shares(ways: Mapping[str, np.ndarray], teacher: np.ndarray, meant: str) -> dict[str, dict[str, Any]]:
    """Return overlap@10 with its interval, and cosines with the vectors of texts as they are `meant` to be given."""
    known, new = teacher[:TEXTS], teacher[TEXTS:]
    measured = {}
    for name, vectors in ways.items():
        cosines = cosine_pairs(vectors, ways[meant])
        measured[name] = {
            "overlap": mean_interval(overlap_by_query(new, known, vectors, known)),
            "cosine": float(cosines.mean()),
            "lowest_cosine": float(cosines.min()),
            "teacher_cosine": float(cosine_pairs(vectors, new).mean()),
        }
    return measured


def table(results: Mapping[str, Any]) -> str:
    """Return a line for each way to give a text to the two students of each teacher."""
    head = ["teacher, steps", "student", "texts are given", "overlap@10", "cosine with the vectors as meant, mean"]
    head.append("lowest")
    lines = []
    for row in results["rows"]:
        for title, name in (("built in", "built_in"), ("with a prompt", "prompted")):
            for way, measured in row[name].items():
                mean, low, high = measured["overlap"]
                cosines = [f"{measured['cosine']:.3f}", f"{measured['lowest_cosine']:.3f}"]
                overlap = f"{mean:.3f} [{low:.3f}, {high:.3f}]"
                lines.append([f"{row['teacher']}, {row['steps']:,}", title, WAYS[way], overlap, *cosines])
    return markdown_table(head, lines, columns="lllrrr")


if __name__ == "__main__":
    main()
