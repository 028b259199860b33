"""What a training step costs, method by method: time and memory, as TALAS' table 3.

    python -m benchmarks.step_cost --methods simcse,distillcse,jasper,talas --json FILE

Steps are those of the training loop, on the same texts and batches, all-MiniLM-L6-v2 cut to three layers (--layers 6: whole).
`talas` is measured with ASAM and, as `talas_plain`, without; `task` is a student step with a task loss and no teacher; a path
to a method's file is a method, too. Times: the methods take turns, in another order every round; the figure is the median
round, ratios are medians of the rounds' ratios. Memory: each method in a process of its own, sampled while it trains, less
what the process held before it had a student (RssAnon; on CUDA what torch has allocated). fp32, and bf16 where the hardware
has it. JSON: {method: {"ms", "mean_mb", "peak_mb", "std_mb", ...}} in fp32, with "bf16" holding the same again; "time_ratio" and
"memory_ratio" (of peaks) to other methods; "weight_passes" the share of a step that goes into moving weights there and back.
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import json
import logging
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sentence_transformers import SentenceTransformer

from benchmarks.memory import Peak, own_megabytes
from benchmarks.sentence_level import MARKS, cost_table
from benchmarks.texts import sample_texts
from distilvec.data.batches import Batches
from distilvec.data.tokens import TokenStore
from distilvec.device import fast_bf16, pick_device
from distilvec.objective import Sizes, Terms, build_objective
from distilvec.run import Run, build_token_store
from distilvec.schema import CorpusSection, MethodSection, Recipe, SourceSection, StudentSection, TeacherSection, TrainSection
from distilvec.students.encoder import Encoder
from distilvec.train.data import CachedTeacher, TrainingData
from distilvec.train.loop import Loop
from distilvec.train.update import Gradients, SharpnessAware, Update

TASK = str(Path(__file__).parent / "task_loss.py")
ASAM = {"name": "asam", "rho": 0.05}
SETTINGS: dict[str, tuple[str, dict[str, Any]]] = {"talas": ("talas", ASAM), "talas_plain": ("talas", {}), "task": (TASK, {})}
WARM = 2  # steps at the beginning of a round that do not count: the optimiser makes its state in the first
SOURCES = 3


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--methods", required=True, help="names with commas between them")
    parser.add_argument("--json", type=Path, required=True)
    parser.add_argument("--texts", type=int, default=2048)
    parser.add_argument("--steps", type=int, default=12, help="steps a round that count")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--layers", type=int, default=3)
    parser.add_argument("--length", type=int, default=64, help="the longest text, in tokens; the papers' sentences have about 15")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--precision", choices=["fp32", "bf16"], nargs="+", default=None, help="default: fp32, and bf16 in hardware")
    parser.add_argument("--data", type=Path, default=None, help="english_text.jsonl.gz; generated texts where it is absent")
    parser.add_argument("--folder", type=Path, default=None, help=argparse.SUPPRESS)  # given: measure one method's memory there
    arguments = parser.parse_args()
    logging.disable(logging.WARNING)
    if arguments.folder:
        os.environ["DISTILVEC_CACHE"] = str(arguments.folder)
        print(json.dumps(Bench(arguments.folder, arguments).memory(arguments.methods, arguments.precision[0])))
        return
    with tempfile.TemporaryDirectory() as folder:
        os.environ["DISTILVEC_CACHE"] = folder
        report = measure(Path(folder), arguments)
    arguments.json.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    print(cost_table(report))


def measure(folder: Path, arguments: argparse.Namespace) -> dict[str, Any]:
    """Every method in every precision; what the JSON holds."""
    asked = [name.strip() for name in arguments.methods.split(",")]
    names = list(dict.fromkeys(each for name in asked for each in (["talas_plain", "talas"] if name == "talas" else [name])))
    origin = write_texts(folder, arguments)
    bench = Bench(folder, arguments)
    bench.run.fill()
    bench.run.student().save_pretrained(str(folder / "student"))
    chosen = arguments.precision or ["fp32", *(["bf16"] if fast_bf16(bench.device) else [])]
    machine = f"{bench.device}, {torch.get_num_threads()} threads, {torch.backends.cpu.get_cpu_capability()}, torch {torch.__version__}"
    report: dict[str, Any] = {}
    for precision in chosen:
        found = bench.times(names, precision)
        for name in names:
            found[name] |= bench.memory_apart(name, precision)
        add_ratios(found)
        for name in names:
            facts = {"precision": precision, **found[name]}
            report[name] = {**report[name], precision: facts} if name in report else {**facts, "machine": machine, "texts": origin}
    return report


def write_texts(folder: Path, arguments: argparse.Namespace) -> str:
    """The texts as files of several sources, so that a task has labels; gives a word on where they come from."""
    texts, origin = sample_texts(arguments.texts + arguments.batch, arguments.data)
    for source in range(SOURCES):
        (folder / f"texts{source}.txt").write_text("\n".join(texts[source::SOURCES]), encoding="utf-8")
    return origin


class Bench:
    """The methods' common ground: one corpus, its tokens and vectors, one student."""

    def __init__(self, folder: Path, arguments: argparse.Namespace) -> None:
        self.folder, self.arguments, self.device = folder, arguments, pick_device(arguments.device)
        corpus = CorpusSection(sources=[SourceSection(path=folder / f"texts{n}.txt") for n in range(SOURCES)], holdout_batches=1)
        recipe = Recipe(
            name="step_cost",
            teacher=TeacherSection(model="all-MiniLM-L6-v2"),
            student=StudentSection(model="teacher", layers=arguments.layers, max_length=arguments.length),
            corpus=corpus,
            method=MethodSection(name="redact"),
            train=TrainSection(device=self.device, batch_size=arguments.batch),  # type: ignore[arg-type]
        )
        self.run = Run(recipe, folder / "run")
        self.tokens: TokenStore | None = None
        self.rounds = 0

    def times(self, names: list[str], precision: str) -> dict[str, dict[str, Any]]:
        """Milliseconds a step by method, and by round."""
        student = SentenceTransformer(str(self.folder / "student"), device="cpu")
        rounds: dict[str, list[float]] = {name: [] for name in names}
        shares: dict[str, list[float]] = {name: [] for name in names}
        for number in range(self.arguments.rounds):
            rows = self.rows(number)
            for name in np.random.default_rng(number).permutation(names).tolist():
                loop = self.loop(name, student, precision, rows)
                loop.run()
                rounds[name].append(1000 * statistics.mean(loop.seconds[WARM:]))
                if isinstance(loop.watch.update, SharpnessAware):
                    shares[name].append(sum(loop.watch.seconds[WARM:]) / sum(loop.seconds[WARM:]))
                loop.optimizer.zero_grad(set_to_none=True)
                del loop
                gc.collect()
        found: dict[str, dict[str, Any]] = {name: {"ms": statistics.median(values), "rounds": values} for name, values in rounds.items()}
        for name, values in shares.items():
            if values:
                found[name]["weight_passes"] = statistics.median(values)
        return found

    def rows(self, number: int) -> np.ndarray:
        """The texts of a round."""
        train = self.run.corpus.train_rows
        wanted = (self.arguments.steps + WARM) * self.arguments.batch
        if wanted > len(train):
            raise SystemExit(
                f"--steps {self.arguments.steps} of --batch {self.arguments.batch} need {wanted} texts; found {len(train)}. Raise --texts."
            )
        return np.sort(np.random.default_rng(number).choice(train, wanted, replace=False))

    def loop(self, name: str, student: SentenceTransformer, precision: str, rows: np.ndarray) -> Timed:
        """The training loop of a method over these texts, once."""
        self.rounds += 1
        method, update = SETTINGS.get(name, (name, {}))
        encoder, facts, corpus = Encoder(student), self.run.facts, self.run.corpus
        width = student.get_embedding_dimension()
        objective = build_objective(method, {}, {}, Sizes(encoder.hidden_width, encoder.layers, facts.width, embedding_width=width))
        teacher = CachedTeacher(self.run.cache, corpus.keys, objective.teacher_wants)
        self.tokens = self.tokens or build_token_store(self.run.root, corpus, student)
        data = TrainingData(corpus, self.tokens, teacher, rows, corpus.holdout_rows)
        section = TrainSection.model_validate(
            {
                "epochs": 1,
                "batch_size": self.arguments.batch,
                "schedule": {"name": "constant"},
                "precision": precision,
                "device": self.device,
                "update": update,
            }
        )
        return Timed(encoder, objective, data, section, self.folder / f"{os.getpid()}-{self.rounds}", "benchmark")

    def memory_apart(self, name: str, precision: str) -> dict[str, float]:
        """A method's memory, measured in a process of its own."""
        passed = [f"--{key}={getattr(self.arguments, key)}" for key in ("steps", "batch", "layers", "length", "texts", "device")]
        line = [sys.executable, "-m", "benchmarks.step_cost", "--methods", name, "--json", "-", "--folder", str(self.folder)]
        done = subprocess.run(
            [*line, *passed, "--precision", precision], capture_output=True, text=True, cwd=Path(__file__).parents[1], check=False
        )
        if done.returncode:
            raise SystemExit(f"measuring the memory of {name} failed:\n{done.stderr[-2000:]}")
        found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
        return found

    def memory(self, name: str, precision: str) -> dict[str, float]:
        """Mean, peak and deviation in MB while this process trains with the method, less what it held without a student."""
        rows = self.rows(0)
        self.run.facts, self.run.cache  # noqa: B018 (they load the teacher, which goes before anything is measured)
        self.run.__dict__.pop("teacher")
        before = settled_megabytes(self.device)
        loop = self.loop(name, SentenceTransformer(str(self.folder / "student"), device="cpu"), precision, rows)
        settled_megabytes(self.device)
        with Peak(0.005, megabytes_of(self.device)) as watched:
            loop.run()
        peak = torch.cuda.max_memory_allocated() / 2**20 if self.device == "cuda" else watched.megabytes
        mean, deviation = statistics.mean(watched.samples), statistics.pstdev(watched.samples)
        return {"mean_mb": round(mean - before, 1), "peak_mb": round(peak - before, 1), "std_mb": round(deviation, 1)}


class Stopwatch:
    """An update rule that notes what it spends, step by step, beside the passes and the optimiser: on moving weights there and back."""

    def __init__(self, update: Update, device: str) -> None:
        self.update, self.device, self.seconds, self.elsewhere = update, device, list[float](), 0.0
        if isinstance(update, SharpnessAware):
            update.plain.descend = self.apart(update.plain.descend)  # type: ignore[method-assign]

    def step(self, gradients: Gradients, number: int) -> Terms:
        """The rule's own step."""
        self.elsewhere, began = 0.0, now(self.device)
        terms = self.update.step(self.apart(gradients), number)
        self.seconds.append(now(self.device) - began - self.elsewhere)
        return terms

    def apart(self, work: Any) -> Any:
        """The same function, its time counted as spent elsewhere."""

        def timed(*values: Any, **named: Any) -> Any:
            began = now(self.device)
            result = work(*values, **named)
            self.elsewhere += now(self.device) - began
            return result

        return timed


class Timed(Loop):
    """The loop with a clock around every step; nothing is validated or saved."""

    def __init__(self, *values: Any) -> None:
        super().__init__(*values)
        self.seconds: list[float] = []
        self.update = self.watch = Stopwatch(self.update, self.device.type)

    def _step(self, batches: Batches, index: int) -> None:
        began = now(self.device.type)
        super()._step(batches, index)
        self.seconds.append(now(self.device.type) - began)

    def _validate(self) -> None:
        """Nothing."""

    def _checkpoint(self) -> None:
        """Nothing."""


def add_ratios(found: dict[str, dict[str, Any]]) -> None:
    """The ratios that have a mark, where both methods were measured."""
    for what, marks in MARKS.items():
        for name, (other, _) in marks.items():
            if name in found and other in found:
                pairs = zip(found[name]["rounds"], found[other]["rounds"], strict=True)
                ratio = statistics.median(a / b for a, b in pairs) if what == "time" else found[name]["peak_mb"] / found[other]["peak_mb"]
                found[name].setdefault(f"{what}_ratio", {})[other] = round(ratio, 3)


def now(device: str) -> float:
    """The time, when the device has done what it was told."""
    if device == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter()


def megabytes_of(device: str) -> Any:
    """What tells the memory in use: torch's own on CUDA, else the process's."""
    return (lambda: torch.cuda.memory_allocated() / 2**20) if device == "cuda" else own_megabytes


def settled_megabytes(device: str) -> float:
    """Memory in use when everything that can be freed is handed back."""
    gc.collect()
    if device == "cuda":
        torch.cuda.reset_peak_memory_stats()
    else:
        ctypes.CDLL(None).malloc_trim(0)
    used: float = megabytes_of(device)()
    return used


if __name__ == "__main__":
    main()
