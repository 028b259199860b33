"""Training speed against sentence-transformers' trainer: same texts, same 3-layer student, batch 32, same dropout.

    python -m benchmarks.training --json FILE

Both sides train the same student from the same weights on the same texts towards the same teacher vectors with the
un-squared L2 distance, AdamW (fused), learning rate 1e-4. The sides alternate, round by round, each round on its own
share of the texts; the figure is the median round. After the last round both are measured on the same validation texts.
The peer is `SentenceTransformerTrainer` with `EmbedDistillLoss("l2")` and precomputed labels. bf16 is measured where
the processor has it. A precision that is not measured keeps its figures in FILE, each with the machine they were taken
on. `wait_share` is the share of our steps' time in which a step waits for its tokens and teacher vectors.
"""

from __future__ import annotations

import argparse
import copy
import json
import logging
import os
import statistics
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from datasets import Dataset
from sentence_transformers import SentenceTransformer, SentenceTransformerTrainer, SentenceTransformerTrainingArguments
from sentence_transformers.sentence_transformer.losses import EmbedDistillLoss

from benchmarks.results import earlier_results
from benchmarks.texts import sample_texts
from distilvec.config.schema import CorpusSection, MethodSection, Recipe, SourceSection, TeacherSection
from distilvec.config.student import StudentSection
from distilvec.config.training import ScheduleSection, TrainSection
from distilvec.core.device import fast_bf16
from distilvec.core.files import write_json
from distilvec.core.info import ObjectiveContext, StudentInfo, TeacherInfo
from distilvec.core.registry import build_objective
from distilvec.core.run_folder import TrainingFolder
from distilvec.data.corpus import Corpus
from distilvec.pipeline.job import Job
from distilvec.pipeline.prepare import fill_cache, tokenize
from distilvec.pipeline.resolve import resolve
from distilvec.pipeline.student import untrained_student
from distilvec.students.encoder import Encoder
from distilvec.teachers.cache.store import TeacherCache
from distilvec.teachers.cached import CachedTeacher
from distilvec.train.dataset import TrainingData
from distilvec.train.metrics import read_metrics
from distilvec.train.trainer import Trainer

BATCH = 32


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, required=True)
    parser.add_argument("--texts", type=int, default=1280, help="texts a round")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument(
        "--held-out", type=int, default=16, help="batches of 32 texts, on which both are compared at the end"
    )
    parser.add_argument(
        "--data", type=Path, default=None, help="english_text.jsonl.gz; generated texts where it is absent"
    )
    parser.add_argument(
        "--precision", choices=["fp32", "bf16"], nargs="+", default=None, help="default: fp32, and bf16 in hardware"
    )
    arguments = parser.parse_args()
    logging.disable(logging.WARNING)
    with tempfile.TemporaryDirectory() as folder:
        os.environ["DISTILVEC_CACHE"] = folder
        result = measure(Path(folder), arguments)
    result = earlier_results(arguments.json, {}) | result
    write_json(arguments.json, result)
    print(json.dumps(result, indent=1))


def measure(folder: Path, arguments: argparse.Namespace) -> dict[str, Any]:
    texts, origin = sample_texts(arguments.texts * arguments.repeats + 64 * arguments.held_out, arguments.data)
    (folder / "texts.txt").write_text("\n".join(texts), encoding="utf-8")
    job = resolve(make_recipe(folder / "texts.txt", arguments.held_out), folder / "run")
    corpus, student = job.corpus, untrained_student(job)
    cache = fill_cache(job, job.teacher)
    result: dict[str, Any] = {}
    for precision in arguments.precision or ["fp32", *(["bf16"] if fast_bf16("cpu") else [])]:
        rate = matmul_rate(torch.float32 if precision == "fp32" else torch.bfloat16)
        ours = Ours(job, cache, copy.deepcopy(student), precision)
        peer = Peer(job, cache, copy.deepcopy(student), precision)
        rounds = np.array_split(corpus.train_rows[: arguments.texts * arguments.repeats], arguments.repeats)
        rates: dict[str, list[float]] = {"ours": [], "peer": []}
        for rows in [rounds[0][: 8 * BATCH], *rounds]:  # the first, short one warms up
            rates["ours"].append(len(rows) / ours.train(rows))
            rates["peer"].append(len(rows) / peer.train(rows))
        medians = {name: statistics.median(values[1:]) for name, values in rates.items()}
        waits = [
            line["train/wait"]
            for path in job.folder.glob(f"{precision}-*/")
            for line in read_metrics(TrainingFolder(path).metrics)
            if "train/wait" in line
        ]
        losses = {name: distance(job, cache, side.model) for name, side in (("ours", ours), ("peer", peer))}
        flops = 6 * body_parameters(student) * float(ours.tokens.lengths[corpus.train_rows].mean()) * medians["ours"]
        result[precision] = {
            "texts": origin,
            "texts_a_round": arguments.texts,
            "machine": f"{torch.get_num_threads()} threads, {torch.backends.cpu.get_cpu_capability()}, torch {torch.__version__}",  # noqa: E501
            "matmul_gflops": rate,
            "texts_per_second": medians,
            "rounds": {name: values[1:] for name, values in rates.items()},
            "held_out_distance": losses,
            "wait_share": statistics.mean(waits),
            "loss_ratio": losses["ours"] / losses["peer"],
            "share_of_matmul_rate": flops / 1e9 / rate,
        }
        result[f"ratio_{precision}"] = medians["ours"] / medians["peer"]
    return result


def make_recipe(texts: Path, held_out: int) -> Recipe:
    return Recipe(
        name="benchmark",
        teacher=TeacherSection(model="all-MiniLM-L6-v2"),
        student=StudentSection(model="teacher", layers=[0, 2, 5]),
        corpus=CorpusSection(sources=[SourceSection(path=texts)], validation_rows=32 * held_out),
        method=MethodSection(name="redact"),
    )


class Unsaved(Trainer):
    """The loop without checkpoints: the peer saves nothing either."""

    def _checkpoint(self) -> None:
        """Save nothing."""


@dataclass
class Side:
    """What both trainers begin with."""

    job: Job
    cache: TeacherCache
    model: SentenceTransformer
    precision: str
    device: str = "cpu"
    batch: int = BATCH


@dataclass
class Ours(Side):
    """distilvec's loop, fed by its own corpus, tokens and cache."""

    def __post_init__(self) -> None:
        self.rounds = 0
        self.tokens = tokenize(self.job, self.job.corpus, self.model)
        self.encoder = Encoder(self.model)

    def train(self, rows: np.ndarray) -> float:
        """Train one round on `rows`; seconds."""
        self.rounds += 1
        student = StudentInfo(self.encoder.hidden_size, self.encoder.layers)
        context = ObjectiveContext(student, (TeacherInfo(self.job.teacher.info.dim),))
        objective = build_objective("redact", {}, {}, context)
        teacher = CachedTeacher(self.cache, self.job.corpus.keys, objective.teacher_outputs)
        data = TrainingData(self.job.corpus, self.tokens, teacher, np.sort(rows), self.job.corpus.holdout_rows[:1])
        section = TrainSection(
            epochs=1,
            schedule=ScheduleSection(name="constant"),
            precision=self.precision,
            device=self.device,
            batch_size=self.batch,
            checkpoint_minutes=60,
        )
        folder = TrainingFolder(self.job.folder / f"{self.precision}-{self.rounds}")
        loop = Unsaved(self.encoder, objective, data, section, folder, "benchmark")
        began = time.perf_counter()
        loop.run()
        return time.perf_counter() - began


@dataclass
class Peer(Side):
    """sentence-transformers' trainer with precomputed labels."""

    def train(self, rows: np.ndarray) -> float:
        """Train one round on `rows`; seconds."""
        corpus: Corpus = self.job.corpus
        vectors = self.cache.read(self.cache.positions(corpus.keys[rows]))
        dataset = Dataset.from_dict({"text": corpus.texts(rows), "label": vectors}).with_format("torch")
        arguments = SentenceTransformerTrainingArguments(
            output_dir=str(self.job.folder / "peer"),
            num_train_epochs=1,
            per_device_train_batch_size=self.batch,
            learning_rate=1e-4,
            lr_scheduler_type="constant",
            weight_decay=0.01,
            max_grad_norm=0.0,
            bf16=self.precision == "bf16",
            use_cpu=self.device == "cpu",
            optim="adamw_torch_fused",
            save_strategy="no",
            logging_strategy="no",
            report_to="none",
            disable_tqdm=True,
            seed=0,
        )
        trainer = SentenceTransformerTrainer(
            self.model, arguments, train_dataset=dataset, loss=EmbedDistillLoss(self.model, "l2")
        )
        began = time.perf_counter()
        trainer.train()
        return time.perf_counter() - began


def distance(job: Job, cache: TeacherCache, model: SentenceTransformer) -> float:
    """Mean distance to the teacher on the validation texts, in fp32, by sentence-transformers' own encode."""
    rows = job.corpus.holdout_rows
    teacher = cache.read(cache.positions(job.corpus.keys[rows]))
    student = model.eval().encode(job.corpus.texts(rows), show_progress_bar=False)
    return float(np.linalg.norm(student - teacher, axis=1).mean())


def body_parameters(model: SentenceTransformer) -> int:
    """Parameters that are multiplied for every token: the matrices of the layers."""
    return sum(p.numel() for p in model[0].auto_model.encoder.parameters() if p.ndim == 2)


def matmul_rate(dtype: torch.dtype, size: int = 2048) -> float:
    """Measured rate of a large matrix product in GFLOP/s (best of five)."""
    a, b = torch.randn(size, size).to(dtype), torch.randn(size, size).to(dtype)
    times = []
    for _ in range(5):
        began = time.perf_counter()
        a @ b
        times.append(time.perf_counter() - began)
    return 2 * size**3 / min(times) / 1e9


if __name__ == "__main__":
    main()
