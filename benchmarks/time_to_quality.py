"""Quality of a student against minutes since the first command: distilvec, sentence-transformers' trainer, model2vec.

    pip install --no-deps --target M2V model2vec 'skeletoken>=0.6,<0.7'
    python -m benchmarks.time_to_quality WORKSPACE --teacher all-mpnet-base-v2 --job 5M --minutes 60 --model2vec M2V \\
        --json results/time_to_quality.json [--sides distilvec sentence-transformers fitted model2vec]
    python -m benchmarks.time_to_quality WORKSPACE --job minilm ...          the second job, into the same file

`python -m experiments.readme` makes the table and the picture of docs/speed.md.

Every side gets the same teacher and the same texts and runs in a process of its own, one after the other, until it is
done or its minutes are over. The clock starts before Python does, so that imports, the teacher's vectors and every
other preparation count. Students are saved on the way, and scored when the clock no longer runs:

- overlap@10: the share of the teacher's ten nearest neighbours that the student finds, for held-out texts
- nDCG@10 of each task of the suite, times 100

Jobs: "minilm" trains all layers of --student; "5M" makes a student of about five million parameters, of the teacher's
own layers, and "5M-minilm" one of --student's; "static" makes a table of token vectors. What each side does is its own
usual way:

- distilvec: its shortest command, `distilvec distill TEACHER TEXTS` with `--size 5M`, `--student MODEL` or
  `--layers 0`, and --epochs.
- sentence-transformers: the two ways of its example model_distillation.py, in bf16 where the hardware has it. minilm:
  MSELoss to the teacher's vectors, which PCA cuts to the student's width. 5M: the teacher with four of its layers;
  there is no way to a smaller vocabulary, so that this student is larger. static: nothing.
- fitted: the same trainer and loss for minilm, but behind distilvec's start: a linear layer to the teacher's whole
  vectors, fitted by ridge regression. What differs from distilvec then is the loop. An hour or more on a core.
- model2vec: static vectors of the same teacher, 256 dims; it reads no texts, and has one point.

The file keeps what other jobs and sides have left there.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from benchmarks.results import earlier_results
from benchmarks.stopwatch import busy_note
from benchmarks.texts import SHARED, sample_texts

ROOT = Path(__file__).parents[1]
SUITE = ROOT / "recipes" / "suites" / "retrieval.yaml"
QUERY_FILE = SHARED.parents[1] / "english_queries" / "english_queries.jsonl.gz"
QUERY_SHARE = 0.25  # of the training texts
QUERIES, CANDIDATES, DEPTH = 500, 5000, 10
STATIC_DIM = 256
KILL_AFTER = 120  # seconds that a side has to end after it was asked to
Vectors = npt.NDArray[np.float32]

JOBS = ("5M", "5M-minilm", "minilm", "static")
PEER_LAYERS = [1, 4, 7, 10]  # of the teacher, as in the example


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("workspace", type=Path, help="a folder for texts, vectors and students; used again")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--job", choices=JOBS, default="5M")
    parser.add_argument("--sides", nargs="+", choices=list(SIDES), default=list(SIDES))
    parser.add_argument("--teacher", default="sentence-transformers/all-mpnet-base-v2")
    parser.add_argument("--student", default="all-MiniLM-L6-v2")
    parser.add_argument("--model2vec", type=Path, help="the folder of pip install --target")
    parser.add_argument("--minutes", type=float, default=60, help="of each side at most")
    parser.add_argument("--texts", type=int, default=30_000)
    parser.add_argument("--candidates", type=int, default=CANDIDATES, help="held-out texts that are searched")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--points", type=int, default=8, help="students that are saved on the way")
    parser.add_argument("--suite", type=Path, default=SUITE)
    parser.add_argument("--side", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    workspace: Path = arguments.workspace.resolve()

    if arguments.side:  # in the process of one side, while the clock runs
        SIDES[arguments.side](arguments, workspace, workspace / arguments.job / arguments.side)
        return
    if arguments.json is None:
        parser.error("--json is needed")

    write_texts(workspace, arguments.texts, arguments.candidates)
    teacher = teacher_quality(workspace, arguments.teacher, arguments.suite)
    for side in arguments.sides:
        if side == "sentence-transformers" and arguments.job in ("static", "5M-minilm"):
            continue  # it has no way of its own to such a student
        if side == "fitted" and arguments.job != "minilm":
            continue  # only there the student is narrower than the teacher's vectors
        if side == "model2vec" and arguments.job != "static":
            continue  # its students are static
        if side == "model2vec" and arguments.model2vec is None:
            print("model2vec: left out, since --model2vec names no folder")
            continue
        result = run_side(side, arguments, workspace)
        save(arguments.json, arguments, side, result, teacher)
        print(json.dumps({side: result}, indent=1), flush=True)


def save(path: Path, arguments: argparse.Namespace, side: str, result: dict[str, Any], teacher: dict[str, Any]) -> None:
    """Put a side's result into the file, beside those of other jobs and sides."""
    report = earlier_results(path, {})
    settings = {name: getattr(arguments, name) for name in ("minutes", "texts", "candidates", "epochs", "student")}
    job = report.setdefault(arguments.job, {})
    job |= {"teacher_model": Path(arguments.teacher).name, "teacher": teacher, **settings}
    job.setdefault("sides", {})[side] = result
    path.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")


# -- texts and the teacher, before any clock runs ----------------------------------------------------------------------


def write_texts(workspace: Path, count: int, candidates: int) -> None:
    """Write the training texts (a quarter of them queries) and the held-out texts, once for a workspace."""
    workspace.mkdir(parents=True, exist_ok=True)
    if (workspace / "held-out.json").exists():
        return
    documents = count - int(QUERY_SHARE * count)
    texts, _ = sample_texts(documents + candidates)
    held_out, training = texts[:candidates], texts[candidates:]
    if QUERY_FILE.exists():
        with gzip.open(QUERY_FILE, "rt", encoding="utf-8") as file:
            queries = sorted({json.loads(line)["text"] for line in file} - set(held_out))
        order = np.random.default_rng(0).permutation(len(queries))[: count - documents]
        training += [queries[i] for i in order]
    lines = [json.dumps({"text": text}) + "\n" for text in training]
    (workspace / "texts.jsonl").write_text("".join(lines), encoding="utf-8")
    (workspace / "held-out.json").write_text(json.dumps(held_out), encoding="utf-8")


def training_texts(workspace: Path) -> list[str]:
    """Return the training texts."""
    lines = (workspace / "texts.jsonl").read_text(encoding="utf-8").splitlines()
    return [json.loads(line)["text"] for line in lines]


def teacher_quality(workspace: Path, teacher: str, suite: Path) -> dict[str, Any]:
    """Return the teacher's own scores; its held-out vectors and its scores are kept in the workspace."""
    path = workspace / "teacher.json"
    if not path.exists():
        vectors = embed(load_model(teacher), held_out_texts(workspace))
        np.save(workspace / "teacher.npy", vectors)
        path.write_text(json.dumps(suite_scores(teacher, suite)), encoding="utf-8")
    scores: dict[str, float] = json.loads(path.read_text(encoding="utf-8"))
    return {"overlap": 1.0, **scores}


def held_out_texts(workspace: Path) -> list[str]:
    """Return the texts that nobody trains on; the first QUERIES are searched for among all."""
    texts: list[str] = json.loads((workspace / "held-out.json").read_text(encoding="utf-8"))
    return texts


# -- one side ----------------------------------------------------------------------------------------------------------


def run_side(side: str, arguments: argparse.Namespace, workspace: Path) -> dict[str, Any]:
    """Run a side against the clock, then score the students that it saved."""
    folder = workspace / arguments.job / side
    if folder.exists():
        raise SystemExit(f"{folder} is there already: a second run would find its caches. Remove it.")
    folder.mkdir(parents=True)
    line = [sys.executable, "-m", "benchmarks.time_to_quality", str(workspace), "--side", side, "--job", arguments.job]
    line += ["--teacher", arguments.teacher, "--student", arguments.student]
    line += ["--epochs", str(arguments.epochs), "--points", str(arguments.points)]
    if arguments.model2vec:
        line += ["--model2vec", str(arguments.model2vec.resolve())]
    path = os.pathsep.join([str(ROOT / "src"), str(ROOT), os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, "PYTHONPATH": path, "DISTILVEC_CACHE": str(folder / "cache")}

    load = os.getloadavg()[0]
    with (folder / "log.txt").open("wb") as log:
        began = time.time()
        process = subprocess.Popen(line, env=environment, stdout=log, stderr=log)
        finished = wait(process, 60 * arguments.minutes)
        minutes = (time.time() - began) / 60
    if finished and process.returncode:
        raise SystemExit(f"{side}: {(folder / 'log.txt').read_text(encoding='utf-8', errors='replace')[-3000:]}")

    result: dict[str, Any] = {
        "finished": finished,
        "minutes": round(minutes, 2),
        "load_before": round(load, 1),
        "points": [],
    }
    if note := busy_note(load):
        print(note)
    for student in saved_students(folder):
        saved = max(file.stat().st_mtime for file in student.rglob("*.safetensors"))
        point, result["parameters"] = quality(student, workspace, arguments.suite)
        result["points"].append({"minutes": round((saved - began) / 60, 2), **point})
    result["points"].sort(key=lambda point: point["minutes"])
    return result


def wait(process: subprocess.Popen[bytes], seconds: float) -> bool:
    """Wait for the end of a process; return whether it came in time. A process that is late is ended."""
    try:
        process.wait(seconds)
        return True
    except subprocess.TimeoutExpired:
        process.send_signal(signal.SIGTERM)
    try:
        process.wait(KILL_AFTER)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    return False


def saved_students(folder: Path) -> list[Path]:
    """Return the folders of whole students, each once: those with a list of modules and weights."""
    modules = [path.parent for path in folder.rglob("modules.json") if path.parent.name.startswith(("step", "check"))]
    return [path for path in sorted(modules) if any(path.rglob("*.safetensors"))]


def run_distilvec(arguments: argparse.Namespace, workspace: Path, folder: Path) -> None:
    """Become `distilvec distill`, without its evaluation: one code scores the students of all sides later."""
    student = {
        "5M": ["--size", "5M", "student.model=teacher"],
        "5M-minilm": ["--size", "5M", "--student", arguments.student],
        "minilm": ["--student", arguments.student],
        "static": ["--layers", "0"],
    }
    line = [sys.executable, "-m", "distilvec", "distill", arguments.teacher, str(workspace / "texts.jsonl")]
    line += student[arguments.job]
    line += ["--epochs", str(arguments.epochs), "--out", str(folder / "run")]
    line += [f"train.keep_students={arguments.points}", "evaluation.parts=[]"]
    os.execv(sys.executable, line)


def run_sentence_transformers(arguments: argparse.Namespace, workspace: Path, folder: Path) -> None:
    """Train with SentenceTransformerTrainer and MSELoss on precomputed vectors of the teacher."""
    import torch
    from datasets import Dataset
    from sentence_transformers import (
        SentenceTransformer,
        SentenceTransformerTrainer,
        SentenceTransformerTrainingArguments,
    )
    from sentence_transformers.sentence_transformer.losses import MSELoss
    from sklearn.decomposition import PCA

    from distilvec.core.device import fast_bf16
    from distilvec.models.load import resolve_model

    texts, batch = training_texts(workspace), 64
    teacher = SentenceTransformer(resolve_model(arguments.teacher))
    labels = teacher.encode(texts, batch_size=batch)
    if arguments.job == "5M":
        student = pruned(teacher, PEER_LAYERS)
    else:
        student = SentenceTransformer(resolve_model(arguments.student))
        width = student.get_embedding_dimension() or 0
        if arguments.side == "fitted":
            student = with_fitted_layer(student, texts, labels)
        elif labels.shape[1] > width:
            labels = (labels @ PCA(n_components=width).fit(labels).components_.T).astype(np.float32)

    steps = max(1, arguments.epochs * len(texts) // batch)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    settings = SentenceTransformerTrainingArguments(
        output_dir=str(folder / "trainer"),
        num_train_epochs=arguments.epochs,
        per_device_train_batch_size=batch,
        learning_rate=1e-4,
        warmup_steps=steps // 10,
        bf16=fast_bf16(device),
        use_cpu=device == "cpu",
        save_strategy="steps",
        save_steps=max(1, steps // arguments.points),
        save_only_model=True,
        report_to="none",
    )
    data = Dataset.from_dict({"sentence": texts, "label": list(labels)})
    SentenceTransformerTrainer(model=student, args=settings, train_dataset=data, loss=MSELoss(student)).train()
    student.save_pretrained(str(folder / "step-last"))


def pruned(model: Any, layers: list[int]) -> Any:
    """Keep these layers of a model's encoder, as the example does."""
    import torch

    backbone = model[0].auto_model
    backbone.encoder.layer = torch.nn.ModuleList([backbone.encoder.layer[number] for number in layers])
    backbone.config.num_hidden_layers = len(layers)
    return model


def with_fitted_layer(student: Any, texts: list[str], labels: Vectors) -> Any:
    """Put a linear layer to the labels behind a student of unit vectors, fitted as distilvec fits its own."""
    import torch
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer.modules import Dense, Normalize

    from distilvec.pipeline.start import RIDGE_TEXTS
    from distilvec.students.regression import ridge

    count = RIDGE_TEXTS[0]
    inputs = torch.from_numpy(embed(student, texts[:count]))
    weight = ridge(inputs, torch.from_numpy(labels[:count])).weight.float()
    rows, columns = weight.shape
    layer = Dense(columns, rows, bias=False, activation_function=torch.nn.Identity(), init_weight=weight)
    return SentenceTransformer(modules=[*student, layer, Normalize()], device="cpu")


def run_model2vec(arguments: argparse.Namespace, workspace: Path, folder: Path) -> None:
    """Distil static vectors with model2vec's defaults."""
    sys.path.append(str(arguments.model2vec))
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer.modules import StaticEmbedding

    from distilvec.models.load import resolve_model

    module = StaticEmbedding.from_distillation(resolve_model(arguments.teacher), pca_dims=STATIC_DIM)
    SentenceTransformer(modules=[module]).save_pretrained(str(folder / "step-last"))


SIDES: dict[str, Callable[[argparse.Namespace, Path, Path], None]] = {
    "distilvec": run_distilvec,
    "sentence-transformers": run_sentence_transformers,
    "fitted": run_sentence_transformers,
    "model2vec": run_model2vec,
}


# -- scores, when the clock no longer runs -----------------------------------------------------------------------------


def quality(student: Path, workspace: Path, suite: Path) -> tuple[dict[str, float], int]:
    """Return a student's scores and its number of parameters."""
    model = load_model(str(student))
    vectors = embed(model, held_out_texts(workspace))
    teacher: Vectors = np.load(workspace / "teacher.npy")
    pairs = zip(nearest(teacher), nearest(vectors), strict=True)
    shares = [len(set(expected) & set(found)) / DEPTH for expected, found in pairs]
    parameters = sum(weight.numel() for weight in model.parameters())
    return {"overlap": round(float(np.mean(shares)), 4), **suite_scores(str(student), suite)}, parameters


def load_model(name: str) -> Any:
    """Load any SentenceTransformer, on the processor."""
    import distilvec

    return distilvec.load(name, device="cpu")


def embed(model: Any, texts: list[str]) -> Vectors:
    """Return unit vectors, float32 [texts, dim]."""
    vectors: Vectors = model.encode(texts, normalize_embeddings=True, show_progress_bar=False).astype(np.float32)
    return vectors


def nearest(vectors: Vectors) -> list[list[int]]:
    """Return the rows of the nearest texts of each query, itself left out."""
    similarities = vectors[:QUERIES] @ vectors.T
    np.fill_diagonal(similarities, -np.inf)
    rows: list[list[int]] = np.argpartition(-similarities, DEPTH, axis=1)[:, :DEPTH].tolist()
    return rows


def suite_scores(model: str, suite: Path) -> dict[str, float]:
    """Return the main score of each task of a suite, times 100."""
    import distilvec

    (scores,) = distilvec.evaluate(model, suite).columns.values()
    return {score.task: round(score.value, 3) for score in scores}


if __name__ == "__main__":
    main()
