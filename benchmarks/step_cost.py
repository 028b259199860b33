"""What a training step costs, method by method: time and memory, as TALAS' table 3.

    python -m benchmarks.step_cost --methods simcse,distillcse,jasper,talas --json FILE

Steps are those of the training loop, on the same texts and batches, all-MiniLM-L6-v2 cut to three layers (--layers 6:
whole). `talas` is measured with ASAM and, as `talas_plain`, without; `distillmoe` has three experts and DynamicCKA of
three layers (`distillmoe_two_layers`: two; `distillmoe_embedding`: none; `distillmoe_headless`: no experts); `task` is
a student step with a task loss and no teacher; a path to a method's file is a method, too.
Times: the methods take turns, in another order every round; the figure is the median round, ratios are medians of the
rounds' ratios. Memory: each method in a process of its own, sampled while it trains, less what the process held before
it had a student (RssAnon; on CUDA what torch has allocated). fp32, and bf16 where the hardware has it. JSON: {method:
{"ms", "mean_mb", "peak_mb", "std_mb", ...}} in fp32, with "bf16" holding the same again; "time_ratio" and
"memory_ratio" (of peaks) to other methods; "weight_passes" the share of a step that goes into moving weights there and
back.
"""

from __future__ import annotations

import argparse
import gc
import json
import logging
import os
import statistics
import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sentence_transformers import SentenceTransformer

from benchmarks.memory import Peak
from benchmarks.step_cost_table import add_ratios, cost_table
from benchmarks.stopwatch import Timed, megabytes_of, now, settled_megabytes
from benchmarks.texts import sample_texts
from distilvec.config import recipe as recipes
from distilvec.core.device import fast_bf16, pick_device
from distilvec.core.errors import DistilvecError
from distilvec.core.files import write_json
from distilvec.core.objective import Objective
from distilvec.core.outputs import OutputSpec
from distilvec.core.run_folder import TrainingFolder
from distilvec.core.task_head import TaskHead, TaskInfo
from distilvec.models.load import resolve_model
from distilvec.pipeline.data import PreparedData
from distilvec.pipeline.job import Job
from distilvec.pipeline.objectives import make_objective, required_outputs
from distilvec.pipeline.prepare import prepare_data
from distilvec.pipeline.resolve import resolve
from distilvec.pipeline.student import untrained_student
from distilvec.students.encoder import Encoder
from distilvec.students.task_head import save_head
from distilvec.train.dataset import TrainingData
from distilvec.train.trainer import Trainer

ASAM = {"name": "asam", "rho": 0.05}
EXPERTS = {"student.experts": {"count": 3}}
SETTINGS: dict[str, tuple[str, dict[str, Any]]] = {  # the method and what is changed in its recipe
    "talas": ("talas", {"train.update": ASAM}),
    "talas_plain": ("talas", {}),
    "ira": ("emo", {"method.weights": {"otis": 0}}),
    "otis": ("emo", {"method.weights": {"ira": 0}}),
    "emo_live": ("emo", {"teacher.live": True}),
    "distillmoe": ("distillmoe", EXPERTS),
    "distillmoe_two_layers": ("distillmoe", {**EXPERTS, "method.options": {"layers": 2}}),
    "distillmoe_embedding": ("distillmoe", {**EXPERTS, "method.weights": {"dynamic_cka": 0}}),
    "distillmoe_headless": ("distillmoe", {"method.weights": {"moe": 0, "diversity": 0}}),
}
WARM = 2  # steps at the beginning of a round that do not count: the optimiser makes its state in the first
LABELS = 3


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--methods", required=True, help="names with commas between them")
    parser.add_argument("--json", type=Path, required=True)
    parser.add_argument("--texts", type=int, default=2048)
    parser.add_argument("--steps", type=int, default=12, help="steps a round that count")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--layers", type=int, default=3)
    parser.add_argument(
        "--length", type=int, default=64, help="the longest text, in tokens; the papers' sentences have about 15"
    )
    parser.add_argument("--device", default="auto")
    parser.add_argument(
        "--precision", choices=["fp32", "bf16"], nargs="+", default=None, help="default: fp32, and bf16 in hardware"
    )
    parser.add_argument(
        "--data", type=Path, default=None, help="english_text.jsonl.gz; generated texts where it is absent"
    )
    parser.add_argument(
        "--folder", type=Path, default=None, help=argparse.SUPPRESS
    )  # given: measure one method's memory there
    arguments = parser.parse_args()
    logging.disable(logging.WARNING)
    if arguments.folder:
        os.environ["DISTILVEC_CACHE"] = str(arguments.folder)
        print(json.dumps(Bench(arguments.folder, arguments).memory(arguments.methods, arguments.precision[0])))
        return
    with tempfile.TemporaryDirectory() as folder:
        os.environ["DISTILVEC_CACHE"] = folder
        report = measure(Path(folder), arguments)
    write_json(arguments.json, report)
    print(cost_table(report))


def measure(folder: Path, arguments: argparse.Namespace) -> dict[str, Any]:
    """Every method in every precision; what the JSON holds."""
    asked = [name.strip() for name in arguments.methods.split(",")]
    names = list(
        dict.fromkeys(each for name in asked for each in (["talas_plain", "talas"] if name == "talas" else [name]))
    )
    origin = write_texts(folder, arguments)
    save_teacher(folder / "teacher")
    bench = Bench(folder, arguments)
    untrained_student(bench.job("redact")).save_pretrained(str(folder / "student"))
    chosen = arguments.precision or ["fp32", *(["bf16"] if fast_bf16(bench.device) else [])]
    machine = f"{bench.device}, {torch.get_num_threads()} threads, {torch.backends.cpu.get_cpu_capability()}, torch {torch.__version__}"  # noqa: E501
    report: dict[str, Any] = {}
    for precision in chosen:
        found = bench.times(names, precision)
        for name in names:
            found[name] |= bench.memory_apart(name, precision)
        add_ratios(found)
        for name in names:
            info = {"precision": precision, **found[name]}
            report[name] = (
                {**report[name], precision: info} if name in report else {**info, "machine": machine, "texts": origin}
            )
    return report


def write_texts(folder: Path, arguments: argparse.Namespace) -> str:
    """The texts as a file, and as a labelled task (which third of them is a text from?); a word on where they come
    from.
    """
    texts, origin = sample_texts(arguments.texts + arguments.batch, arguments.data)
    (folder / "texts.txt").write_text("\n".join(texts), encoding="utf-8")
    rows = [{"split": "train", "text": text, "label": n % LABELS} for n, text in enumerate(texts)]
    rows += [{**row, "split": "test"} for row in rows[:LABELS]]
    (folder / "task.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return origin


def save_teacher(folder: Path) -> None:
    """all-MiniLM-L6-v2 with a random head for the task, as one that was fine-tuned has."""
    model = SentenceTransformer(resolve_model("all-MiniLM-L6-v2"), device="cpu")
    model.save_pretrained(str(folder))
    info = TaskInfo("classification", LABELS)
    save_head(folder, TaskHead(model.get_embedding_dimension() or 0, info), [str(label) for label in range(LABELS)])


class Bench:
    """The methods' common ground: the same texts, teacher and student; with labels for the methods that train on such."""  # noqa: E501

    def __init__(self, folder: Path, arguments: argparse.Namespace) -> None:
        self.folder, self.arguments, self.device = folder, arguments, pick_device(arguments.device)
        self.jobs: dict[str, Job] = {}
        self.ready: dict[str, PreparedData] = {}
        self.prepared: dict[str, TrainingData] = {}
        self.rounds = 0

    def job(self, name: str) -> Job:
        """What a method trains from: examples of the task where it knows labels, else the texts alone."""
        if name not in self.jobs:
            method, changes = SETTINGS.get(name, (name, {}))
            labels = {"task": {"type": "classification", "path": str(self.folder / "task.jsonl")}}
            texts = {"corpus": {"sources": [{"path": str(self.folder / "texts.txt")}]}}
            tree = {
                "name": "step_cost",
                "teacher": {"model": str(self.folder / "teacher")},
                "student": {"model": "teacher", "layers": self.arguments.layers, "max_length": self.arguments.length},
                "method": {"name": method},
                "train": {
                    "device": self.device,
                    "batch_size": self.arguments.batch,
                    "schedule": {"name": "constant"},
                    "epochs": 1,
                },
            }
            for key, value in changes.items():
                recipes.set_key(tree, key, value)
            try:
                job = resolve(recipes.validate({**tree, **labels}), self.folder / name)
            except DistilvecError as error:
                if error.key != "method.name":
                    raise
                job = resolve(recipes.validate({**tree, **texts}), self.folder / name)
            self.jobs[name] = job
        return self.jobs[name]

    def student(self, name: str) -> SentenceTransformer:
        """A method's student: the common one, or, with experts behind it, its own."""
        job = self.job(name)
        own = job.recipe.student.experts is not None
        return untrained_student(job) if own else SentenceTransformer(str(self.folder / "student"), device="cpu")

    def data(self, name: str, model: SentenceTransformer, number: int) -> tuple[Objective, TrainingData]:
        """A method's objective, and the texts of a round with all that it needs of the teacher, which is out of memory
        then.
        """
        job = self.job(name)
        objective = make_objective(job.stages[-1], job.context)
        if name not in self.prepared:
            self.ready[name] = prepare_data(job, model)
            self.prepared[name] = self.ready[name].training_data(required_outputs(objective, job.examples))
        data = self.prepared[name]
        rows = np.arange(len(data.corpus)) if data.examples is None else data.examples.rows[:, 0]
        places = {text: place for place, text in enumerate(data.corpus.texts(rows))}
        return objective, replace(data, train_rows=np.sort([places[text] for text in self.texts(number)]))

    def texts(self, number: int) -> list[str]:
        """The texts of a round."""
        known = sorted({text.strip() for text in (self.folder / "texts.txt").read_text(encoding="utf-8").split("\n")})
        wanted = (self.arguments.steps + WARM) * self.arguments.batch
        if wanted > len(known):
            raise SystemExit(
                f"--steps {self.arguments.steps} of --batch {self.arguments.batch} need {wanted} texts; found "
                f"{len(known)}. Raise --texts."
            )
        return [known[place] for place in np.random.default_rng(number).choice(len(known), wanted, replace=False)]

    def times(self, names: list[str], precision: str) -> dict[str, dict[str, Any]]:
        """Milliseconds a step by method, and by round."""
        students = {name: self.student(name) for name in names}
        rounds: dict[str, list[float]] = {name: [] for name in names}
        shares: dict[str, list[float]] = {name: [] for name in names}
        forwards: dict[str, list[float]] = {name: [] for name in names}
        for number in range(self.arguments.rounds):
            for name in np.random.default_rng(number).permutation(names).tolist():
                loop = self.loop(name, students[name], precision, number)
                loop.run()
                rounds[name].append(1000 * statistics.mean(loop.seconds[WARM:]))
                if loop.watch.update.section.name != "plain":
                    shares[name].append(sum(loop.watch.seconds[WARM:]) / sum(loop.seconds[WARM:]))
                if self.job(name).teacher.live:
                    forwards[name].append(1000 * self.forward_seconds(name, loop))
                loop.optimizer.zero_grad(set_to_none=True)
                del loop
                gc.collect()
        found: dict[str, dict[str, Any]] = {
            name: {"ms": statistics.median(values), "rounds": values} for name, values in rounds.items()
        }
        for what, lists in (("weight_passes", shares), ("teacher_ms", forwards)):
            for name, values in lists.items():
                if values:
                    found[name][what] = statistics.median(values)
        return found

    def forward_seconds(self, name: str, loop: Trainer) -> float:
        """What one forward pass of the live teacher for its vectors alone takes a step."""
        teacher = self.ready[name].teachers[0].signals_for(OutputSpec(embedding=True))
        groups = loop._batches(0)
        batches = [loop.data.batch(groups[place]).to(loop.device) for place in range(len(groups))]
        began = now(self.device)
        for batch in batches:
            teacher.signals(batch)
        return (now(self.device) - began) / len(batches)

    def loop(self, name: str, student: SentenceTransformer, precision: str, number: int) -> Timed:
        """The training loop of a method over the texts of a round, once."""
        self.rounds += 1
        objective, data = self.data(name, student, number)
        section = self.job(name).recipe.train.model_copy(update={"precision": precision})
        folder = TrainingFolder(self.folder / f"{os.getpid()}-{self.rounds}")
        return Timed(Encoder(student), objective, data, section, folder, "benchmark")

    def memory_apart(self, name: str, precision: str) -> dict[str, float]:
        """A method's memory, measured in a process of its own."""
        passed = [
            f"--{key}={getattr(self.arguments, key)}"
            for key in ("steps", "batch", "layers", "length", "texts", "device")
        ]
        line = [
            sys.executable,
            "-m",
            "benchmarks.step_cost",
            "--methods",
            name,
            "--json",
            "-",
            "--folder",
            str(self.folder),
        ]
        done = subprocess.run(
            [*line, *passed, "--precision", precision],
            capture_output=True,
            text=True,
            cwd=Path(__file__).parents[1],
            check=False,
        )
        if done.returncode:
            raise SystemExit(f"measuring the memory of {name} failed:\n{done.stderr[-2000:]}")
        found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
        return found

    def memory(self, name: str, precision: str) -> dict[str, float]:
        """Mean, peak and deviation in MB while this process trains with the method, less what it held without a
        student.
        """
        objective, data = self.data(name, self.student(name), 0)
        del objective, data
        before = settled_megabytes(self.device)
        loop = self.loop(name, self.student(name), precision, 0)
        settled_megabytes(self.device)
        with Peak(0.005, megabytes_of(self.device)) as validation_outputs:
            loop.run()
        peak = torch.cuda.max_memory_allocated() / 2**20 if self.device == "cuda" else validation_outputs.megabytes
        mean, deviation = statistics.mean(validation_outputs.samples), statistics.pstdev(validation_outputs.samples)
        return {"mean_mb": round(mean - before, 1), "peak_mb": round(peak - before, 1), "std_mb": round(deviation, 1)}


if __name__ == "__main__":
    main()
