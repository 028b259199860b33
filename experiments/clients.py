"""Students in other software: every example of examples/clients in an environment of its own, compared with `encode`.

    python -m experiments.clients --json results/clients.json [--only with_fastembed ...] [--llama-cpp CLONE]

Each `# pip install` line of an example makes an environment below the cache folder. torch is linked from the running
environment where an example needs it; all else is pip's. Two students are encoded: three layers of all-MiniLM-L6-v2
(not trained: parity needs no quality) with prompts, and the same with a vocabulary of 4,000 tokens of its own. With
--llama-cpp, a clone of llama.cpp, they are converted and run there too. Rows are written as they come. `python -m
experiments.readme` writes the table into docs/clients.md.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sentence_transformers import SentenceTransformer

import distilvec
from benchmarks.markdown import markdown_table
from benchmarks.results import earlier_results
from distilvec.config.schema import Role
from distilvec.config.student import StudentSection
from distilvec.core.files import write_json
from distilvec.core.info import TeacherInfo
from distilvec.core.vectors import cosine_pairs
from distilvec.data.docstrings import passages
from distilvec.formats.sentence_transformers import save_student
from distilvec.pipeline.resolve import cache_root
from distilvec.students.build import build_student
from distilvec.verbs.export.export import FORMS

EXAMPLES = Path(__file__).parents[1] / "examples" / "clients"
INSTALL = "# pip install "
WITHOUT_TORCH = ("with_onnxruntime", "with_fastembed", "with_llamacpp")
ONNX, OPENVINO = ("onnx", "onnx-int8"), ("openvino", "openvino-int8")
READS = {  # others read the folder
    "with_onnxruntime": ONNX,
    "with_fastembed": ONNX,
    "with_openvino": OPENVINO,
    "with_llamacpp": ("gguf",),
}
TOLERANCE = {form: FORMS[form].tolerance.mean_cosine for form in ("onnx-int8", "openvino-int8")}  # others: 0.9999
PROMPTS: dict[Role, str] = {"query": "query: ", "document": "passage: "}
QUERY = "how do wings produce lift"
DOCUMENTS = (
    "Wings make lift by turning air downwards.",
    "Grüße aus Köln, çok güzel bir gün, и ещё немного текста, 他们在河边散步。 🙂",
    "def mean(values):\n    return sum(values) / len(values)",
    "The boundary layer grows along the plate until it becomes turbulent. " * 60,  # truncated
)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, required=True)
    parser.add_argument("--only", nargs="+", default=[], metavar="EXAMPLE")
    parser.add_argument("--llama-cpp", type=Path, metavar="CLONE")
    arguments = parser.parse_args()
    root = cache_root() / "clients"
    report = earlier_results(arguments.json, {"rows": []})
    students = make_students(root / "students", arguments.llama_cpp)
    for example in sorted(EXAMPLES.glob("with_*.py")):
        name = example.stem
        if (arguments.only and name not in arguments.only) or (name == "with_llamacpp" and not arguments.llama_cpp):
            continue
        report["rows"] = [row for row in report["rows"] if row["client"] != name]
        for packages in installs(example):
            python = environment(root / "environments", packages, name not in WITHOUT_TORCH)
            for row in rows_of(example, python, packages, students):
                print(row, flush=True)
                report["rows"] = sorted([*report["rows"], row], key=lambda one: one["client"])
                write_json(arguments.json, report)
    wrong = [row for row in report["rows"] if not row["cosine"] >= TOLERANCE.get(row["reads"], 0.9999)]
    print(clients_table(report), *(f"out of tolerance: {row}" for row in wrong), sep="\n")
    return int(bool(wrong))


def installs(example: Path) -> list[list[str]]:
    """The packages of each install line of an example."""
    lines = example.read_text(encoding="utf-8").splitlines()
    return [line.removeprefix(INSTALL).split() for line in lines if line.startswith(INSTALL)]


def make_students(root: Path, llama_cpp: Path | None) -> dict[str, Path]:
    """The students' folders by vocabulary, with their exports, and with GGUF files where llama.cpp can have them."""
    students = {kind: root / kind for kind in ("teacher", "unigram", "wordpiece")}
    first, texts = students["teacher"], list(islice(passages(), 3000))
    if not (first / "modules.json").exists():
        section = StudentSection(model="all-MiniLM-L6-v2", layers=3)
        student = build_student(section, TeacherInfo(384, True, max_length=256, prompts=PROMPTS), seed=0)
        save_student(student, first, {"format": 1, "name": "three layers"}, "# Three layers")
    for kind, folder in students.items():
        if not (folder / "modules.json").exists():
            distilvec.transplant(str(first), texts, folder, vocab_size=4000, kind=kind)  # type: ignore[arg-type]
        for form in (*ONNX, *OPENVINO) if kind != "wordpiece" else ():
            if not (folder / FORMS[form].file).exists():
                distilvec.export(str(folder), to=form)  # type: ignore[arg-type]
        if llama_cpp is not None and kind != "unigram" and not (folder / "model.gguf").exists():
            subprocess.run([sys.executable, str(EXAMPLES / "to_gguf.py"), str(llama_cpp), str(folder)], check=True)
    return students


def environment(root: Path, packages: list[str], with_torch: bool) -> Path:
    """The interpreter of an environment with the packages, made if it is not there."""
    folder = root / re.sub(r"[^a-z0-9.]+", "-", " ".join(packages))
    python = folder / "bin" / "python"
    if not (folder / "installed").exists():
        shutil.rmtree(folder, ignore_errors=True)
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
        if with_torch:
            link_torch(next((folder / "lib").glob("python*/site-packages")))
        pip = [sys.executable, "-m", "pip", "--quiet", "--python", str(python)]
        subprocess.run([*pip, "install", "--no-compile", *packages], check=True)
        # optimum-intel brings PyPI's, which does not start beside a torch for CPUs
        subprocess.run([*pip, "uninstall", "--yes", "torchvision"], check=True)
        (folder / "installed").touch()
    return python


def link_torch(site: Path) -> None:
    """Link torch's files, a gigabyte, into another environment's packages."""

    def link(source: str, target: str) -> None:
        try:
            os.link(source, target)
        except OSError:  # another disk
            shutil.copy2(source, target)

    ours = Path(torch.__file__).parents[1]
    for part in ("torch", "torchgen", "functorch", f"torch-{torch.__version__}.dist-info"):
        if (ours / part).exists():
            shutil.copytree(ours / part, site / part, copy_function=link, symlinks=True)


def rows_of(example: Path, python: Path, packages: list[str], students: Mapping[str, Path]) -> list[dict[str, Any]]:
    """One row per student and file that the example reads: the lowest cosine with `encode`."""
    rows = []
    for reads in READS.get(example.stem, ("folder",)):
        for kind in ("teacher", "wordpiece" if reads == "gguf" else "unigram"):
            folder = students[kind]
            file = {"folder": folder, "gguf": folder / "model.gguf"}.get(reads) or folder / FORMS[reads].file
            documents = DOCUMENTS[:-1] if reads == "gguf" else DOCUMENTS  # llama.cpp truncates no text
            found = vectors(python, example, file, documents)
            model = SentenceTransformer(str(folder), device="cpu")
            expected = [model.encode_query([QUERY]), model.encode_document(list(documents))]
            cosine = lowest_cosine(np.concatenate([found["queries"], found["documents"]]), np.concatenate(expected))
            row = {"client": example.stem, "packages": packages, "reads": reads, "vocabulary": kind}
            rows.append({**row, "torch": found["torch"], "cosine": cosine})
    return rows


def vectors(python: Path, example: Path, file: Path, documents: tuple[str, ...]) -> dict[str, Any]:
    """What the example prints, in a process that sees its own environment alone, and whether that has torch."""
    quiet = {"HF_HUB_OFFLINE": "1", "HAYSTACK_TELEMETRY_ENABLED": "False", "PATH": os.environ["PATH"]}
    options: dict[str, Any] = {"env": quiet, "capture_output": True, "text": True, "cwd": python.parent}
    done = subprocess.run([python, "-I", example, file, QUERY, *documents], **options)
    if done.returncode:
        raise SystemExit(f"{example.name} failed:\n{done.stderr[-2000:]}")
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    has = subprocess.run([python, "-I", "-c", "import torch"], **options).returncode == 0
    return {**found, "torch": has}


def lowest_cosine(found: np.ndarray, expected: np.ndarray) -> float:
    """The least similar pair of rows; NaN if a number is."""
    return round(float(cosine_pairs(found, expected).min()), 6)


def clients_table(report: Mapping[str, Any]) -> str:
    """A line per environment and file: the lowest cosine of both students."""
    lines = []
    rows = report["rows"]
    for row in rows:
        if row["vocabulary"] == "teacher":
            same = [other for other in rows if all(other[key] == row[key] for key in ("client", "packages", "reads"))]
            own = next((other for other in same if other is not row), None)
            cells = [
                f"[{row['client']}.py](../examples/clients/{row['client']}.py)",
                ", ".join(row["packages"]),
                "yes" if row["torch"] else "no",
                row["reads"],
                f"{row['cosine']:.6f}",
                f"{own['cosine']:.6f} ({own['vocabulary']})" if own else "",
            ]
            lines.append(cells)
    head = ["example", "environment", "torch", "reads", "lowest cosine", "with its own vocabulary"]
    return markdown_table(head, lines, columns="llllrr")


if __name__ == "__main__":
    sys.exit(main())
