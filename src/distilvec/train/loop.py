"""The training loop: the only one. It knows objectives and updates, never a method's name."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import torch
from accelerate import Accelerator, DistributedDataParallelKwargs
from torch import Tensor, nn

from distilvec.batch import Encoded, TextBatch, Wants
from distilvec.data.batches import Batches, epoch_batches
from distilvec.device import fast_bf16, keep_memory, pick_device, processes, warn_slow_bf16
from distilvec.errors import DistilvecError
from distilvec.losses.distance import distances
from distilvec.objective import Objective, Terms, total
from distilvec.progress import Advance, progress
from distilvec.schema import TrainSection
from distilvec.students.encoder import Encoder
from distilvec.train.checkpoint import Progress, load_checkpoint, save_checkpoint
from distilvec.train.data import TrainingData
from distilvec.train.metrics import MetricsLog
from distilvec.train.optimizer import build_optimizer, set_learning_rate
from distilvec.train.schedule import build_schedule
from distilvec.train.update import UPDATES


class Distillation(nn.Module):
    """Student and objective in one module, so optimiser, DDP and checkpoints need no special case."""

    def __init__(self, encoder: Encoder, objective: Objective) -> None:
        super().__init__()
        self.encoder = encoder
        self.objective = objective

    def forward(self, batch: TextBatch, teacher: Encoded) -> Terms:
        """The objective's terms; the student runs under autocast, the objective always in fp32."""
        student = self.encoder(batch, self.objective.student_wants)
        with torch.autocast(batch.rows.device.type, enabled=False):
            terms: Terms = self.objective(batch, student, teacher)
        return terms


class Loop:
    """One training run, resumable at every checkpoint.

    `save_best` is called when the held-out distance to the teacher, taken after every epoch and where a student is kept,
    is the smallest so far; `save_kept` with the step of each student to keep. `fingerprint` ties the checkpoint to recipe
    and data.
    """

    def __init__(
        self,
        encoder: Encoder,
        objective: Objective,
        data: TrainingData,
        train: TrainSection,
        folder: Path,
        fingerprint: str,
        save_best: Callable[[], None] = lambda: None,
        save_kept: Callable[[int], None] = lambda step: None,
    ) -> None:
        self.data, self.train, self.folder, self.fingerprint = data, train, folder, fingerprint
        self.save_best, self.save_kept = save_best, save_kept
        self.accelerator = make_accelerator(train, folder)
        self.device = self.accelerator.device
        keep_memory()
        if train.gradient_checkpointing:
            encoder.backbone.gradient_checkpointing_enable()
        if train.compile:
            encoder.backbone.compile(dynamic=True)
        self.module = Distillation(encoder, objective).to(self.device)
        self.optimizer = build_optimizer(self.module, train)
        self.update = UPDATES[train.update](self.optimizer, self.module, train.max_grad_norm)
        self.state = load_checkpoint(self.checkpoint, self.module, self.optimizer, fingerprint) or Progress()
        self.wrapped = self.accelerator.prepare_model(self.module)
        self.micro_batches_a_step = train.gradient_accumulation_steps * self.accelerator.num_processes
        self.steps_an_epoch = max(1, -(-len(self._batches(0)) // self.micro_batches_a_step))
        self.total_steps = min(train.max_steps or 2**62, train.epochs * self.steps_an_epoch)
        self.schedule = build_schedule(train, self.total_steps)
        self.kept_steps = kept_steps(self.total_steps, train.keep_students)
        self.stop_asked = False

    @property
    def checkpoint(self) -> Path:
        """The file a killed run resumes from."""
        return self.folder / "checkpoint" / "state.safetensors"

    def describe_machine(self) -> str:
        """Device, number of processes and precision in words."""
        accelerator = self.accelerator
        precision = "bf16 autocast" if accelerator.mixed_precision == "bf16" else "fp32"
        many = f" x {accelerator.num_processes}" if accelerator.num_processes > 1 else ""
        return f"{self.device}{many}, {precision}"

    def run(self) -> Progress:
        """Train to the end (or from the checkpoint on); the state says where it stopped.

        Errors: DistilvecError when the loss is no longer finite; the last checkpoint is kept.
        """
        state = self.state
        self.metrics = MetricsLog(self.folder / "metrics.jsonl", state.step, self.accelerator)
        self.window = Window()
        with self._interruptible(), progress("training", self.total_steps, "steps", done=state.step) as advance:
            if state.step == 0:
                self._validate()
            while not (state.finished or self.stop_asked):
                self._epoch(advance)
        for tracker in self.accelerator.trackers:
            tracker.finish()
        return state

    # -- an epoch, a step --------------------------------------------------------------------------------------------

    def _epoch(self, advance: Advance) -> None:
        state, batches = self.state, self._batches(self.state.epoch)
        steps = -(-len(batches) // self.micro_batches_a_step)
        for index in range(state.step_in_epoch, steps):
            began = time.monotonic()
            self._step(batches, index)
            state.seconds += time.monotonic() - began
            state.step, state.step_in_epoch = state.step + 1, index + 1
            if state.step % self.train.logging_steps == 0 or state.step == self.total_steps:
                self._log()
            advance(state.step, self.window.note)
            if state.step >= self.total_steps or index + 1 == steps:
                break
            if state.step in self.kept_steps:
                self._validate()
            if self.stop_asked or self._checkpoint_due():
                self._checkpoint()
            if self.stop_asked:
                return
        state.epoch, state.step_in_epoch = state.epoch + 1, 0
        state.finished = state.step >= self.total_steps
        self._validate()
        self._checkpoint()

    def _step(self, batches: Batches, index: int) -> None:
        state = self.state
        rate = self.schedule(state.step, state.epoch)
        set_learning_rate(self.optimizer, rate)
        groups = [batches[i] for i in self._mine(index, len(batches))]
        rows = sum(len(group) for group in groups)
        processes = self.accelerator.num_processes

        def gradients() -> Terms:
            found: list[Terms] = []
            for number, group in enumerate(groups):
                batch = self.data.batch(group).to(self.device)
                teacher = self.data.teacher.signals(batch)
                last = number == len(groups) - 1
                seed_step(self.train.seed, state.step, number, self.accelerator.process_index)
                with nullcontext() if last else self.accelerator.no_sync(self.wrapped), self.accelerator.autocast():
                    terms = self.wrapped(batch, teacher)
                    loss = total(terms, self.module.objective.weights) * (len(group) / rows)
                self.accelerator.backward(loss)
                found.append({name: values.detach() for name, values in terms.items()})
                state.tokens += int(self.data.tokens.lengths[group].sum()) * processes
            return {name: torch.cat([terms[name] for terms in found]) for name in found[0]}

        self.module.train()
        terms = self.update.step(gradients)
        state.texts += rows * processes
        self.window.add(terms, rate)

    def _mine(self, index: int, count: int) -> list[int]:
        """Numbers of the micro-batches that this process runs in step `index`; the last step wraps around."""
        processes, own = self.accelerator.num_processes, self.accelerator.process_index
        first = index * self.micro_batches_a_step
        numbers = range(first + own, first + self.micro_batches_a_step, processes)
        mine = [number for number in numbers if number < count]
        return mine or [numbers[0] % count]

    def _batches(self, epoch: int) -> Batches:
        return epoch_batches(
            self.data.train_rows,
            self.data.tokens.lengths,
            batch_size=self.train.batch_size,
            max_tokens=self.train.max_tokens,
            window=self.train.window,
            seed=self.train.seed,
            epoch=epoch,
            drop_last=self.module.objective.in_batch,
        )

    # -- what is written down ----------------------------------------------------------------------------------------

    def _log(self) -> None:
        state, means = self.state, self.window.means(self.module.objective.weights)
        if not np.isfinite(means["loss"]):
            raise DistilvecError(
                f"the loss became {means['loss']} within the last {self.train.logging_steps} steps before step {state.step}. "
                f"Lower [train.learning_rate] (now {self.train.learning_rate:g}), set [train.max_grad_norm] or use [train.precision]=fp32. "
                f"The last good checkpoint is in {self.checkpoint.parent}."
            )
        seconds = state.seconds - self.window.seconds
        speed = {
            "train__texts_per_second": (state.texts - self.window.texts) / max(seconds, 1e-9),
            "train__tokens_per_second": (state.tokens - self.window.tokens) / max(seconds, 1e-9),
        }
        epoch = state.epoch + state.step_in_epoch / self.steps_an_epoch
        self.metrics.write(state.step, epoch, **{f"train__{k}": v for k, v in means.items()}, **speed)
        self.window.restart(state, note=f"loss {means['loss']:.4f}, {speed['train__texts_per_second']:,.0f} texts/s")

    def _validate(self) -> None:
        """Distance to the teacher on the held-out rows: the number to watch."""
        state, found = self.state, held_out_distance(self.module.encoder, self.data, self.accelerator, self.train.batch_size)
        epoch = state.epoch + state.step_in_epoch / self.steps_an_epoch
        self.metrics.write(state.step, epoch, **{f"eval__{name}": value for name, value in found.items()})
        if state.step and found["distance"] < state.best_distance:
            state.best_distance, state.best_epoch = found["distance"], state.epoch
            if self.accelerator.is_main_process:
                self.save_best()
        if state.step in self.kept_steps and self.accelerator.is_main_process:
            self.save_kept(state.step)

    def _checkpoint_due(self) -> bool:
        every = self.train.checkpoint_steps
        due = bool(every) and self.state.step % (every or 1) == 0
        return due or time.monotonic() - self.window.saved > self.train.checkpoint_minutes * 60

    def _checkpoint(self) -> None:
        self.window.saved = time.monotonic()
        if not self.window.finite():
            self._log()
        if self.accelerator.is_main_process:
            save_checkpoint(self.checkpoint, self.module, self.optimizer, self.state, self.fingerprint)

    @contextmanager
    def _interruptible(self) -> Iterator[None]:
        """Ctrl-C or SIGTERM: finish the step, write a checkpoint, leave. A second Ctrl-C leaves at once."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return

        def ask(number: int, frame: Any) -> None:
            if self.stop_asked:
                raise KeyboardInterrupt
            self.stop_asked = True

        before = {number: signal.signal(number, ask) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


class Window:
    """Sums since the last logged line, kept on the device so that no step waits for a number."""

    def __init__(self) -> None:
        self.sums: dict[str, Tensor] = {}
        self.counts: dict[str, int] = {}
        self.rate, self.note, self.saved = 0.0, "", time.monotonic()
        self.texts, self.tokens, self.seconds = 0, 0, 0.0

    def add(self, terms: Terms, rate: float) -> None:
        """Add a step's terms."""
        self.rate = rate
        for name, values in terms.items():
            value = values.sum()
            self.sums[name] = self.sums[name] + value if name in self.sums else value
            self.counts[name] = self.counts.get(name, 0) + len(values)

    def means(self, weights: dict[str, float]) -> dict[str, float]:
        """Mean of each term, of the weighted loss, and the learning rate."""
        terms = {name: float(value) / self.counts[name] for name, value in self.sums.items()}
        loss = sum(weights[name] * value for name, value in terms.items())
        return {"loss": loss, **{f"loss_{name}": value for name, value in terms.items()}, "learning_rate": self.rate}

    def finite(self) -> bool:
        """Whether every sum is a finite number; a checkpoint of anything else would destroy a good one."""
        return all(bool(torch.isfinite(value)) for value in self.sums.values())

    def restart(self, state: Progress, note: str) -> None:
        """Begin a new window at this state."""
        self.sums, self.counts, self.note = {}, {}, note
        self.texts, self.tokens, self.seconds = state.texts, state.tokens, state.seconds


def kept_steps(total: int, count: int | None) -> frozenset[int]:
    """The steps after which a student is kept: `count` of them, evenly spread, the last step among them."""
    return frozenset(round(total * (number + 1) / count) for number in range(count)) if count else frozenset()


def make_accelerator(train: TrainSection, folder: Path) -> Accelerator:
    """accelerate for the asked device and precision; DistilvecError where the machine has no such device."""
    device = pick_device(train.device)
    processes(train.device)
    bf16 = train.precision == "bf16" or (train.precision == "auto" and fast_bf16(device))
    if bf16:
        warn_slow_bf16(device, "train.precision=fp32")
    unused = DistributedDataParallelKwargs(find_unused_parameters=True)  # BERT's pooler, say, gets no gradient
    accelerator = Accelerator(
        cpu=device == "cpu",
        mixed_precision="bf16" if bf16 else "no",
        log_with=list(train.trackers) or None,
        project_dir=str(folder),
        kwargs_handlers=[unused],
    )
    if train.trackers:
        accelerator.init_trackers("distilvec")
    return accelerator


def seed_step(seed: int, step: int, micro_batch: int, process: int) -> None:
    """Seed torch for one micro-batch: dropout depends on its place in the run only, so resuming is exact."""
    torch.manual_seed(int(np.random.SeedSequence([seed, step, micro_batch, process]).generate_state(1, np.uint64)[0] >> 1))


@torch.no_grad()
def held_out_distance(encoder: Encoder, data: TrainingData, accelerator: Accelerator, batch_size: int) -> dict[str, float]:
    """Mean distance and cosine to the teacher over the held-out rows (REDACT, section 4.3)."""
    encoder.eval()
    order = np.argsort(data.tokens.lengths[data.holdout_rows], kind="stable")
    groups = np.array_split(data.holdout_rows[order], max(1, len(order) // batch_size))
    sums = torch.zeros(3, dtype=torch.float64, device=accelerator.device)
    for group in groups[accelerator.process_index :: accelerator.num_processes]:
        batch = data.batch(group).to(accelerator.device)
        teacher = data.teacher.signals(batch).embedding
        with accelerator.autocast():
            student = encoder(batch, Wants(embedding=True)).embedding
        assert student is not None and teacher is not None
        found = distances(student, teacher)
        sums += torch.stack([found["distance"].sum(), found["cosine"].sum(), torch.tensor(float(len(group)), device=sums.device)])
    distance, cosine, rows = accelerator.reduce(sums, "sum").tolist()
    return {"distance": distance / rows, "cosine": cosine / rows}
