"""What works with the teachers that people have: a tiny random model of each family, by the command line.

    python -m benchmarks.teacher_families --json results/teacher_families.json [--families "Qwen3;Gemma 3"]

Each model has the family's tokenizer, attention, pooling and modules, two to six layers and 32 numbers a token. Each
piece of work is a command, with two training steps at most. A cell is "yes", with the distance before training where
all layers are kept (0 is the teacher itself), or the line of the refusal. Saved students are read by plain
sentence-transformers of this environment, and by 5.1 with transformers 4.57 from the folder .compat.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from sentence_transformers import SentenceTransformer

from benchmarks.markdown import markdown_table
from benchmarks.results import earlier_results
from distilvec.__main__ import run_command
from distilvec.core.files import write_json
from distilvec.core.run_folder import RunFolder

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "tests"))  # its tiny models

import architectures as tiny  # type: ignore[import-not-found]  # noqa: E402
from samples import make_texts  # type: ignore[import-not-found]  # noqa: E402

YES = "yes"
SAME = 1e-5  # the largest difference of a number of two vectors of length one
FEW_STEPS = [
    "train.max_steps=2",
    "teacher.dtype=float32",
    "train.device=cpu",
    "train.precision=fp32",
    "evaluation.parts=[]",
]


@dataclass(frozen=True)
class Family:
    """Models of one kind: who uses them, how a tiny one is made, its pooling and the modules after it.

    `change` changes the saved teacher, to what this environment cannot make.
    """

    models: str
    make: Callable[[Path], Path]
    modules: str = "mean normalize"
    change: Callable[[Path], None] = lambda folder: None


def eurobert(folder: Path) -> Path:
    """EuroBERT: byte-level BPE, both directions, RoPE, grouped keys."""
    tokenizer = tiny.byte_level(["<|pad|>", "<|begin|>", "<|end|>"], "<|begin|> $A <|end|>", bos="<|begin|>", eos="<|end|>", pad="<|pad|>")  # fmt: skip  # noqa: E501
    return tiny.save(folder, tokenizer, {**tiny.DECODER, "model_type": "eurobert", "num_hidden_layers": 4}, 0)


def nomic(folder: Path) -> Path:
    """Nomic v1.5: WordPiece, RoPE, a gate in each feed-forward layer."""
    return tiny.save(folder, tiny.wordpiece(), {**tiny.SIZES, "model_type": "nomic_bert", "num_hidden_layers": 4}, 0)


def with_experts(folder: Path) -> None:
    """Make of a Nomic v1.5 what v2 is: every second layer has experts, which transformers' own class does not know."""
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "num_experts": 8, "moe_every_n_layers": 2}))
    weights = load_file(folder / "model.safetensors")
    renamed = {name.replace("layers.1.mlp.", "layers.1.mlp.experts."): value for name, value in weights.items()}
    save_file(renamed, folder / "model.safetensors", {"format": "pt"})


FAMILIES = {
    "XLM-R": Family("multilingual-e5, bge-m3, arctic-embed-l-v2.0", tiny.xlm_roberta),
    "ModernBERT": Family("gte-modernbert, granite-embedding r2", tiny.modernbert, "cls normalize"),
    "Gemma 3": Family("EmbeddingGemma-300m, with its Dense modules", tiny.gemma3, "mean dense:96 dense:32 normalize"),
    "EmbeddingGemma 2": Family("its text model", partial(tiny.embedding_gemma2, embedding_dim=tiny.WIDTH)),
    "Qwen3": Family("Qwen3-Embedding: last token, left padding, end token", tiny.qwen3, "lasttoken normalize"),
    "Mistral": Family("e5-mistral, without a padding token", tiny.mistral, "lasttoken normalize"),
    "EuroBERT": Family("EuroBERT and models trained from it", eurobert),
    "Nomic": Family("nomic-embed-text-v1.5", nomic),
    "Nomic, experts": Family("nomic-embed-text-v2-moe", nomic, change=with_experts),
}


@dataclass
class Trial:
    """The folder of one family: its teacher, texts, and what each piece of work gave."""

    folder: Path
    family: Family
    cells: dict[str, str] = field(default_factory=dict)

    def prepare(self) -> None:
        """Write the teacher, a student of another family, and texts."""
        backbone = self.family.make(self.folder / "backbone")
        torch.manual_seed(0)
        self.family.change(tiny.sentence_transformer(self.folder / "teacher", backbone, self.family.modules))
        tiny.bert(self.folder / "other", seed=1)
        texts = [f"{text} {number}" for number, text in enumerate(make_texts(240))]
        (self.folder / "texts.txt").write_text("\n".join([*tiny.TEXTS, *texts]), encoding="utf-8")

    def done(self, name: str, *words: str) -> bool:
        """Run a command; note "yes" or the line that it ends with."""
        errors = io.StringIO()
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(errors):
            status = run_command([str(word) for word in words])
        line = errors.getvalue().strip().splitlines()[-1:] or [f"status {status}"]
        self.cells[name] = line[0].replace(str(self.folder), ".") if status else YES
        return status == 0

    def distilled(self, name: str, *words: str) -> bool:
        """Distil the teacher in its own folder."""
        out = self.folder / name.replace(" ", "-")
        teacher, texts = self.folder / "teacher", self.folder / "texts.txt"
        return self.done(name, "distill", str(teacher), str(texts), "--out", str(out), *words, *FEW_STEPS)

    def start_distance(self, name: str) -> str:
        """Return "yes" and the distance on validation texts before training, of a run that `distilled` made."""
        record = json.loads(RunFolder(self.folder / name.replace(" ", "-")).record.read_text())
        return f"yes, {record['metrics']['untrained_distance']:.4f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, required=True)
    parser.add_argument("--families", default=";".join(FAMILIES), help="names with semicolons")
    arguments = parser.parse_args()
    results = earlier_results(arguments.json, {})
    for name in arguments.families.split(";"):
        with tempfile.TemporaryDirectory() as scratch:
            results[name] = tried(Trial(Path(scratch), FAMILIES[name]))
        write_json(arguments.json, results)
        print(name, json.dumps(results[name], indent=1), flush=True)
    print(families_table(results))


def tried(trial: Trial) -> dict[str, str]:
    """Do all work with one family."""
    os.environ["DISTILVEC_CACHE"] = str(trial.folder / "cache")
    trial.prepare()
    layers = json.loads((trial.folder / "backbone" / "config.json").read_text())["num_hidden_layers"]
    trial.distilled("student of another family", "--student", str(trial.folder / "other"))
    for name, words in (("all layers", []), ("trimmed", ["student.vocabulary.kind=trim"])):
        if trial.distilled(name, "--layers", str(layers), *words):
            trial.cells[name] = trial.start_distance(name)
    trial.distilled("narrower", "--layers", str(layers), "student.intermediate_size=32")
    trial.distilled("static", "--layers", "0")
    new = ["--texts", str(trial.folder / "texts.txt"), "--kind", "unigram", "--vocab-size", "300"]
    trial.done("new tokenizer", "transplant", str(trial.folder / "teacher"), *new, "--out", str(trial.folder / "new"))
    if trial.distilled("fewer layers", "--layers", "2"):
        student = trial.folder / "fewer-layers" / "student"
        trial.cells["read by sentence-transformers 5.1"] = read_by_the_oldest(student)
        for form in ("onnx", "onnx-int8", "openvino", "openvino-int8"):
            trial.done(form, "export", str(student), "--to", form)
    return trial.cells


def read_by_the_oldest(student: Path) -> str:
    """Return "yes" where sentence-transformers 5.1 gives the student's vectors, else what it says or how far it is."""
    job, answer = student.with_name("job.json"), student.with_name("answer.json")
    job.write_text(json.dumps({"texts": tiny.TEXTS, "folders": [str(student)], "trusted": []}))
    environment = {**os.environ, "PYTHONPATH": str(ROOT / ".compat"), "HF_HUB_OFFLINE": "1"}
    command = [sys.executable, str(ROOT / "tests" / "formats" / "oldest_stack.py"), str(job), str(answer)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    if done.returncode != 0:
        errors = [line for line in done.stderr.splitlines() if re.match(r"\w+Error: ", line)]
        return errors[-1] if errors else done.stderr[-200:]
    theirs = np.array(json.loads(answer.read_text())["models"][str(student)]["document"])
    ours = SentenceTransformer(str(student), device="cpu").encode(tiny.TEXTS)
    difference = np.abs(theirs - ours).max()
    return YES if difference <= SAME else f"vectors differ by {difference:.2g}"


def families_table(results: Mapping[str, Mapping[str, str]]) -> str:
    """Return the table, a row for each family, and below it the lines of refusals."""
    columns = list(dict.fromkeys(column for cells in results.values() for column in cells))
    rows, notes = [], list[str]()
    for name, cells in results.items():
        words = [cells.get(column, "") for column in columns]
        for number, word in enumerate(words):
            if word and not word.startswith(YES):
                note = re.sub(r"^distilvec: \[\w+\] ", "", word).split(". ")[0]
                if note not in notes:
                    notes.append(note)
                words[number] = f"no ({1 + notes.index(note)})"
        rows.append([name, FAMILIES[name].models, *words])
    lines = [f"{number}. {note}." for number, note in enumerate(notes, start=1)]
    return "\n".join([markdown_table(["teacher", "as in", *columns], rows, "l" * (2 + len(columns))), "", *lines])


if __name__ == "__main__":
    main()
