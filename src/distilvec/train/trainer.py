"""The training loop: the only one. It knows objectives and updates, never a method's name."""

from __future__ import annotations

import itertools
import signal
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from accelerate import Accelerator, DistributedDataParallelKwargs
from torch import Tensor

from distilvec.config.training import TrainSection
from distilvec.core.device import fast_bf16, keep_memory, pick_device, processes, warn_slow_bf16
from distilvec.core.errors import DistilvecError, Stopped
from distilvec.core.log import Advance, log, progress
from distilvec.core.objective import Objective
from distilvec.data.sampler import Batches, epoch_batches
from distilvec.students.encoder import Encoder
from distilvec.train.checkpoint import Progress, checkpoint_file, load_checkpoint, save_checkpoint
from distilvec.train.collapse_monitor import CollapseWatch
from distilvec.train.dataset import TrainingRows
from distilvec.train.distillation import Distillation
from distilvec.train.gate_monitor import RoutingWatch
from distilvec.train.gradients import StepGradients
from distilvec.train.metrics import Callback, MetricsLog
from distilvec.train.optimizer import build_optimizer, freeze_others, optimizer_tensors, set_learning_rate
from distilvec.train.running_means import Window
from distilvec.train.schedule import build_schedule
from distilvec.train.signals import stop_on_signals
from distilvec.train.update import build_update
from distilvec.train.validation import held_out

Measure = Callable[
    [Any, Objective, Any, Accelerator, int], tuple[dict[str, float], float]
]  # as held_out: encoder, ..., batch size


class Trainer:
    """One training run, resumable at every checkpoint.

    `save_best` is called when the held-out distance to the teacher (on a labelled task: one minus the score), taken after every
    epoch and where a student is kept, is the smallest so far; `save_kept` with the step of each student to keep.
    `measure` gives the held-out figures and that distance. `fingerprint` ties the checkpoint to recipe and data.
    `callbacks` are called with the step and the metrics of every logged line.
    """

    def __init__(
        self,
        encoder: Encoder,
        objective: Objective,
        data: TrainingRows,
        train: TrainSection,
        folder: Path,
        fingerprint: str,
        save_best: Callable[[], None] = lambda: None,
        save_kept: Callable[[int], None] = lambda step: None,
        measure: Measure = held_out,
        callbacks: Sequence[Callback] = (),
    ) -> None:
        self.data, self.train, self.folder, self.fingerprint = data, train, folder, fingerprint
        self.save_best, self.save_kept, self.measure, self.callbacks = save_best, save_kept, measure, callbacks
        self.accelerator = make_accelerator(train, folder)
        self.device = self.accelerator.device
        keep_memory()
        if train.gradient_checkpointing:
            encoder.backbone.gradient_checkpointing_enable()
        if train.compile:
            encoder.backbone.compile(dynamic=True)
        objective.matmul_dtype = torch.bfloat16 if self.accelerator.mixed_precision == "bf16" else None
        self.module = Distillation(encoder, objective).to(self.device)
        freeze_others(self.module, train)
        self.optimizer = build_optimizer(self.module, train)
        self.update = build_update(train.update, self.optimizer, self.module, train.max_grad_norm)
        found = load_checkpoint(self.checkpoint, self.module, self.optimizer, fingerprint)
        self.state, self._memory = found or (Progress(), {})
        self.wrapped = self.accelerator.prepare_model(self.module)
        self.micro_batches_a_step = train.gradient_accumulation_steps * self.accelerator.num_processes
        self.steps_an_epoch = max(1, -(-len(self._batches(0)) // self.micro_batches_a_step))
        self.total_steps = min(train.max_steps or 2**62, train.epochs * self.steps_an_epoch)
        self.schedule = build_schedule(train, self.total_steps)
        self.kept_steps = kept_steps(self.total_steps, train.keep_students)
        self.stop_asked, self.stop_signal = False, int(signal.SIGTERM)

    @property
    def checkpoint(self) -> Path:
        """The file a killed run resumes from."""
        return checkpoint_file(self.folder)

    def stopped(self, place: str = "") -> Stopped:
        """The error of a run that was asked to stop; `place` follows the number of steps."""
        done = f"{self.state.step:,} of {self.total_steps:,}{place}"
        return Stopped(f"[train] stopped at step {done}. Run the same command again to go on.", self.stop_signal)

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
        self.metrics = MetricsLog(self.folder / "metrics.jsonl", state.step, self.accelerator, self.callbacks)
        self.window = Window()
        encoder, required = self.module.encoder, self.module.objective.student_outputs
        self.collapse = CollapseWatch(encoder.pooling, required.layer_pooling, "collapse" in self.metrics.warned)
        self.routing = RoutingWatch(self.total_steps, "routing" in self.metrics.warned)
        self.window.load(_named(self._memory, "window/"), self.device)
        self.routing.load(_named(self._memory, "routing/"))
        with stop_on_signals(self._ask), progress("training", self.total_steps, "steps", done=state.step) as advance:
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
            if self._log_due(state.step):
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
        passes = StepGradients(
            self.wrapped, self.module.objective, self.data, self.accelerator, groups, self.train.seed, state.step
        )
        self.module.train()
        self.module.snapshot_due = self._log_due(state.step + 1)
        terms = self.update.step(passes, state.step)
        rows, processes = np.concatenate(groups), self.accelerator.num_processes
        state.texts += len(rows) * processes
        state.tokens += int(self.data.lengths[rows].sum()) * processes
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
            self.data.lengths,
            batch_size=self.train.batch_size,
            max_tokens=self.train.max_tokens,
            window=self.train.window,
            seed=self.train.seed,
            epoch=epoch,
            drop_last=self.module.objective.needs_fixed_batch,
        )

    # -- what is written down ----------------------------------------------------------------------------------------

    def _log_due(self, step: int) -> bool:
        return step % self.train.logging_steps == 0 or step == self.total_steps

    def _log(self) -> None:
        state, means = self.state, self.window.means(self.module.objective.weights)
        if not np.isfinite(means["loss"]):
            raise self._diverged(
                f"the loss became {means['loss']} within the last {self.train.logging_steps} steps before step {state.step}"
            )
        seconds = state.seconds - self.window.seconds
        speed = {
            "train__texts_per_second": (state.texts - self.window.texts) / max(seconds, 1e-9),
            "train__tokens_per_second": (state.tokens - self.window.tokens) / max(seconds, 1e-9),
        }
        epoch = state.epoch + state.step_in_epoch / self.steps_an_epoch
        figures, collapsed = self.collapse.judge(self.module.sight)
        routed, misrouted = self.routing.judge(self.module.sight, state.step)
        figures |= (
            routed | {name: float(value) for name, value in self.module.sight.figures.items()}
            if self.module.sight
            else {}
        )
        self.module.sight = None
        self.metrics.write(state.step, epoch, **{f"train__{k}": v for k, v in (means | figures).items()}, **speed)
        for kind, warning in (("collapse", collapsed), ("routing", misrouted)):
            if warning:
                log(f"step {state.step:,}: {warning}")
                self.metrics.warn(state.step, epoch, kind, warning)
        self.window.restart(state, note=f"loss {means['loss']:.4f}, {speed['train__texts_per_second']:,.0f} texts/s")

    def _validate(self) -> None:
        """Distance to the teacher on the held-out rows, or the score on a task's held-out examples: the number to watch."""
        state = self.state
        self._refuse_infinite()
        found, monitored = self.measure(
            self.module.encoder, self.module.objective, self.data, self.accelerator, self.train.batch_size
        )
        epoch = state.epoch + state.step_in_epoch / self.steps_an_epoch
        self.metrics.write(state.step, epoch, **{f"eval__{name}": value for name, value in found.items()})
        if state.step and monitored < state.best_distance:
            state.best_distance, state.best_epoch = monitored, state.epoch
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
        self._refuse_infinite()
        self.metrics.sync()
        if self.accelerator.is_main_process:
            memory = {f"window/{name}": value for name, value in self.window.tensors().items()}
            memory |= {f"routing/{name}": value for name, value in self.routing.tensors().items()}
            save_checkpoint(self.checkpoint, self.module, self.optimizer, self.state, self.fingerprint, memory)

    def _refuse_infinite(self) -> None:
        """DistilvecError where a loss since the last line, a weight or the optimiser's state is no finite number: none is ever saved."""
        if not self.window.finite():
            self._log()
        trained = itertools.chain(self.module.parameters(), optimizer_tensors(self.optimizer, self.module).values())
        if self.state.step and not all_finite(trained):
            raise self._diverged(f"weights are no finite numbers after step {self.state.step}")

    def _diverged(self, problem: str) -> DistilvecError:
        kept = f" The last good checkpoint is in {self.checkpoint.parent}." if self.checkpoint.exists() else ""
        return DistilvecError(
            f"[train.learning_rate] {problem}. Lower train.learning_rate (now {self.train.learning_rate:g}), set train.max_grad_norm or "
            f"use train.precision=fp32, and start over (--restart).{kept}"
        )

    def _ask(self, number: int) -> None:
        """Stop after this step."""
        self.stop_asked, self.stop_signal = True, number


def all_finite(tensors: Iterable[Tensor]) -> bool:
    """Whether every number in these tensors is finite. A finite sum shows it at a tenth of the cost."""
    several = [tensor.detach() for tensor in tensors]
    if not several or bool(torch.stack([tensor.sum(dtype=torch.float32) for tensor in several]).isfinite().all()):
        return True
    return all(bool(tensor.isfinite().all()) for tensor in several)


def _named(tensors: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): value for name, value in tensors.items() if name.startswith(prefix)}


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
