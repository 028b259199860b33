"""Training speed against sentence-transformers' trainer: same texts, same 3-layer student, batch 32, same dropout.

    python -m benchmarks.training --json FILE          six minutes on two cores; the machine has to be quiet

Both sides train the same student from the same weights on the same texts towards the same teacher vectors with the
un-squared L2 distance, AdamW (fused) and one constant learning rate. That rate is the peer's best of `--rates`: for
each, the peer trains a copy of the student on as many texts as a round has, and the nearest to the teacher on
held-out texts decides. Then the sides alternate, round by round, each round on its own share of the texts; the
figures are those of the median round. Each side forms its own batches. Ours are of texts of similar length, which
brings the student less far in so short a training (over 600 steps by 0.6%: `last-layers` and `window-1` in
results/levers.json). So our side goes on, on a growing share of a further round, until it is as near to the teacher
on held-out texts as the peer, and the ratio is that of the time to this distance. Where the distances differ by more
than 1.5% then, the sides have not done the same work, and the command ends with status 1 and writes nothing. The peer
is `SentenceTransformerTrainer` with precomputed labels and `EmbedDistillLoss("l2")`. Neither side validates or saves.
bf16 is measured where the processor has it. A precision that is not measured keeps its figures in FILE, each with the
machine they were taken on.

    ratio_PRECISION            the peer's time to the distance over ours: texts over texts a second
    processor_ratio_PRECISION  the same in the processor's time, all threads and child processes together: what other
                               work on the machine changes least
    texts_to_the_distance      texts that each side has trained on in the end
    load_before                load average when the command began; a run on a busy machine says so
    wait_share                 share of our steps' time in which a step waits for its tokens and teacher vectors
"""

from __future__ import annotations

import argparse
import copy
import json
import logging
import os
import statistics
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from datasets import Dataset
from sentence_transformers import SentenceTransformer, SentenceTransformerTrainer, SentenceTransformerTrainingArguments
from sentence_transformers.sentence_transformer.losses import EmbedDistillLoss

from benchmarks.results import earlier_results
from benchmarks.stopwatch import Bare, Spent, busy_note, machine, spent
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
from distilvec.pipeline.prepare import fill_whole_cache, tokenize_corpus
from distilvec.pipeline.resolve import resolve
from distilvec.pipeline.student import untrained_student
from distilvec.students.encoder import Encoder
from distilvec.teachers.cache.store import TeacherCache
from distilvec.teachers.cached import CachedTeacher
from distilvec.train.dataset import TrainingData
from distilvec.train.metrics import read_metrics

BATCH = 32
RATES = (1e-4, 3e-4, 1e-3)  # 1e-4 is what sentence-transformers' example of distillation takes
PARTS = 4  # shares of a further round that our side is given until it is as near as the peer
AGREEMENT = 0.015  # share by which the distances of the sides may differ in the end
SIDES = ("ours", "peer")


def main() -> None:
    load = os.getloadavg()[0]
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, required=True)
    parser.add_argument("--texts", type=int, default=1280, help="texts a round")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--rates", type=float, nargs="+", default=RATES, help="learning rates tried for the peer")
    parser.add_argument(
        "--agreement",
        type=float,
        default=AGREEMENT,
        help="share by which distances may differ; more for a try on few texts",
    )
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
        result = measure(Path(folder), load, arguments)
    result = earlier_results(arguments.json, {}) | result
    write_json(arguments.json, result)
    print(json.dumps(result, indent=1))
    if note := busy_note(load):
        print(note)


def measure(folder: Path, load: float, arguments: argparse.Namespace) -> dict[str, Any]:
    """Choose the rate, then measure every precision. Errors: SystemExit where the sides end at unequal distances."""
    count = arguments.texts * (arguments.repeats + 1)  # with a further round of our side
    texts, origin = sample_texts(count + 64 * arguments.held_out, arguments.data)
    (folder / "texts.txt").write_text("\n".join(texts), encoding="utf-8")
    job = resolve(make_recipe(folder / "texts.txt", arguments.held_out), folder / "run")
    student = untrained_student(job)
    cache = fill_whole_cache(job, job.teacher)
    *rounds, further_round = np.array_split(job.corpus.train_rows[:count], arguments.repeats + 1)

    precisions = arguments.precision or ["fp32", *(["bf16"] if fast_bf16("cpu") else [])]
    # The last one is the fastest, and the best rate is the same in both
    tried = distances_by_rate(job, cache, student, precisions[-1], rounds[0], arguments.rates)
    rate = min(tried, key=lambda rate: tried[rate])
    result: dict[str, Any] = {}
    for precision in precisions:
        ours = Ours(job, cache, copy.deepcopy(student), precision, rate)
        peer = Peer(job, cache, copy.deepcopy(student), precision, rate)
        rounds_spent: dict[str, list[Spent]] = {"ours": [], "peer": []}
        for rows in [rounds[0][: 8 * BATCH], *rounds]:  # the first, short one warms up
            rounds_spent["ours"].append(ours.train(rows))
            rounds_spent["peer"].append(peer.train(rows))
        trained = dict.fromkeys(SIDES, sum(len(rows) for rows in rounds))
        distances = {"ours": distance(job, cache, ours.model), "peer": distance(job, cache, peer.model)}
        distances_by_texts = {trained["ours"]: distances["ours"]}
        reached = copy.deepcopy(ours.model)
        for part in range(1, PARTS + 1):
            if distances["ours"] <= distances["peer"]:
                break
            # Each share is trained in one piece, from the same weights: an optimizer that begins anew every few steps
            # takes steps that undo what was learned.
            rows = further_round[: len(further_round) * part // PARTS]
            ours.begin_at(copy.deepcopy(reached))
            ours.train(rows)
            trained["ours"] = trained["peer"] + len(rows)
            distances["ours"] = distances_by_texts[trained["ours"]] = distance(job, cache, ours.model)
        check_agreement(distances, precision, arguments.agreement)

        rates = {}
        processor = {}
        for side in SIDES:
            measured = list(zip(rounds, rounds_spent[side][1:], strict=True))
            rates[side] = [len(rows) / work.seconds for rows, work in measured]
            processor[side] = [work.processor_seconds / len(rows) for rows, work in measured]
        texts_per_second = {side: statistics.median(rates[side]) for side in SIDES}
        processor_seconds = {side: statistics.median(processor[side]) for side in SIDES}
        seconds = {side: trained[side] / texts_per_second[side] for side in SIDES}
        matmul = matmul_rate(torch.float32 if precision == "fp32" else torch.bfloat16)
        tokens = float(ours.tokens.lengths[job.corpus.train_rows].mean())
        flops = 6 * body_parameters(student) * tokens * texts_per_second["ours"]
        result[precision] = {
            "texts": origin,
            "texts_a_round": arguments.texts,
            "machine": machine(),
            "load_before": round(load, 2),
            "cores": os.cpu_count(),
            "learning_rate": rate,
            "peer_distance_by_rate": {f"{value:g}": found for value, found in tried.items()},
            "matmul_gflops": matmul,
            "texts_per_second": texts_per_second,
            "rounds": rates,
            "processor_seconds_a_text": processor_seconds,
            "processor_rounds": processor,
            "texts_to_the_distance": trained,
            "our_distance_by_texts": distances_by_texts,
            "held_out_distance": distances,
            "loss_ratio": distances["ours"] / distances["peer"],
            "wait_share": wait_share(job, precision),
            "share_of_matmul_rate": flops / 1e9 / matmul,
        }
        result[f"ratio_{precision}"] = seconds["peer"] / seconds["ours"]
        work = {side: trained[side] * processor_seconds[side] for side in SIDES}
        result[f"processor_ratio_{precision}"] = work["peer"] / work["ours"]
    return result


def distances_by_rate(
    job: Job,
    cache: TeacherCache,
    student: SentenceTransformer,
    precision: str,
    rows: np.ndarray,
    rates: Sequence[float],
) -> dict[float, float]:
    """Train the peer at each rate from the same weights; return its distance to the teacher on held-out texts."""
    found = {}
    for rate in rates:
        peer = Peer(job, cache, copy.deepcopy(student), precision, rate)
        peer.train(rows)
        found[rate] = distance(job, cache, peer.model)
    return found


def check_agreement(distances: dict[str, float], precision: str, agreement: float = AGREEMENT) -> None:
    """Errors: SystemExit where the sides have not come equally near to the teacher: their speeds say nothing then."""
    ours, peer = distances["ours"], distances["peer"]
    if abs(ours - peer) > agreement * min(ours, peer):
        raise SystemExit(
            f"{precision}: the distances to the teacher on held-out texts are {ours:.4f} (distilvec) and {peer:.4f} "
            f"(the peer), more than {100 * agreement:g}% apart: the sides have not done the same work."
        )


def wait_share(job: Job, precision: str) -> float:
    """Return the mean share of our steps' time that went into waiting for data, over all rounds."""
    folders = job.folder.glob(f"{precision}-*/")
    lines = [line for folder in folders for line in read_metrics(TrainingFolder(folder).metrics)]
    return statistics.mean(line["train/wait"] for line in lines if "train/wait" in line)


def make_recipe(texts: Path, held_out: int) -> Recipe:
    return Recipe(
        name="benchmark",
        teacher=TeacherSection(model="all-MiniLM-L6-v2"),
        student=StudentSection(model="teacher", layers=[0, 2, 5]),
        corpus=CorpusSection(sources=[SourceSection(path=texts)], validation_rows=32 * held_out),
        method=MethodSection(name="redact"),
    )


@dataclass
class Side:
    """What both trainers begin with."""

    job: Job
    cache: TeacherCache
    model: SentenceTransformer
    precision: str
    learning_rate: float
    device: str = "cpu"
    batch: int = BATCH


@dataclass
class Ours(Side):
    """distilvec's loop, fed by its own corpus, tokens and cache."""

    def __post_init__(self) -> None:
        self.rounds = 0
        self.tokens = tokenize_corpus(self.job, self.job.corpus, self.model)
        self.encoder = Encoder(self.model)

    def begin_at(self, model: SentenceTransformer) -> None:
        """Train this model from now on, of the same tokenizer."""
        self.model = model
        self.encoder = Encoder(model)

    def train(self, rows: np.ndarray) -> Spent:
        """Train one round on `rows`."""
        self.rounds += 1
        student = StudentInfo(self.encoder.hidden_size, self.encoder.layers)
        context = ObjectiveContext(student, (TeacherInfo(self.job.teacher.info.dim),))
        objective = build_objective("redact", {}, {}, context)
        teacher = CachedTeacher(self.cache, self.job.corpus.keys, objective.teacher_outputs)
        data = TrainingData(self.job.corpus, self.tokens, teacher, np.sort(rows), self.job.corpus.holdout_rows[:1])
        section = TrainSection(
            epochs=1,
            schedule=ScheduleSection(name="constant", warmup=0),
            learning_rate=self.learning_rate,
            precision=self.precision,
            device=self.device,
            batch_size=self.batch,
            checkpoint_minutes=60,
        )
        folder = TrainingFolder(self.job.folder / f"{self.precision}-{self.rounds}")
        loop = Bare(self.encoder, objective, data, section, folder, "benchmark")
        return spent(loop.run)


@dataclass
class Peer(Side):
    """sentence-transformers' trainer with precomputed labels."""

    def train(self, rows: np.ndarray) -> Spent:
        """Train one round on `rows`."""
        corpus: Corpus = self.job.corpus
        vectors = self.cache.read(self.cache.positions(corpus.keys[rows]))
        dataset = Dataset.from_dict({"text": corpus.texts(rows), "label": vectors}).with_format("torch")
        arguments = SentenceTransformerTrainingArguments(
            output_dir=str(self.job.folder / "peer"),
            num_train_epochs=1,
            per_device_train_batch_size=self.batch,
            learning_rate=self.learning_rate,
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
        return spent(trainer.train)


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
    seconds = [spent(partial(torch.matmul, a, b)).seconds for _ in range(5)]
    return 2 * size**3 / min(seconds) / 1e9


if __name__ == "__main__":
    main()
