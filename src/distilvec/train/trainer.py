"""The training loop: the only one. It knows objectives and updates, never a method's name."""

from __future__ import annotations

import itertools
import math
import signal
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from accelerate import Accelerator

from distilvec.config.training import TrainSection
from distilvec.core import processes
from distilvec.core.errors import DistilvecError, Stopped
from distilvec.core.log import Advance, log, progress
from distilvec.core.objective import Objective
from distilvec.core.run_folder import TrainingFolder
from distilvec.core.task_head import TaskHead
from distilvec.data.sampler import Batches, epoch_batches
from distilvec.students.encoder import Encoder
from distilvec.train.accelerator import make_accelerator
from distilvec.train.checkpoint import Progress, load_checkpoint, save_checkpoint, with_prefix
from distilvec.train.dataset import TrainingData, TrainingRows
from distilvec.train.distillation import StepGradients, prepare_distillation
from distilvec.train.length import CLOSEST_JUDGED, FLAT, FLAT_VALIDATIONS, decay_steps
from distilvec.train.metrics import OVERLAP_BY_CHANCE, Callback, MetricsLog, RunningMeans
from distilvec.train.monitors import CollapseMonitor, GateMonitor, Monitor, OptionMonitor
from distilvec.train.optimizer import (
    build_optimizer,
    build_schedule,
    final_rate,
    optimizer_tensors,
    set_rate,
    with_early_decay,
)
from distilvec.train.prefetch import MicroBatch, load_micro_batch, prefetched
from distilvec.train.signals import stop_on_signals
from distilvec.train.start import (
    BEHIND,
    RETURNS,
    SAME_VECTORS,
    SHARE_OF_A_RETURN,
    SLOWER,
    STEPS_OF_A_RETURN,
    TEXTS_AT_START,
    Standing,
    StartWeights,
    suitable_rate,
    validation_interval,
    validation_steps,
)
from distilvec.train.update import FiniteGuard, Update, all_finite
from distilvec.train.validation import validate_student

# (encoder, objective, data, accelerator, batch size) -> (numbers by name, those that decide)
Validate = Callable[[Any, Objective, Any, Accelerator, int], tuple[dict[str, float], Standing]]


EARLY_STEPS = 3  # they move the weights little: where the loss is nan so soon, it is the method's more often


@dataclass(frozen=True)
class TrainingHooks:
    """Functions that the trainer calls, and what the recipe leaves open."""

    # "student" (best so far, or last) or "students/step-N", in all processes
    save: Callable[[str], None] = lambda name: None
    callbacks: Sequence[Callback] = ()  # with the step and the metrics of every logged line
    validate: Validate = validate_student
    rate_of: Callable[[float | None], float] = suitable_rate  # by the cosine, of a recipe without a learning rate
    ends_early: bool = False  # where validation is flat, if the distance to the teacher is measured
    another_follows: bool = False  # a further stage begins from the last weights
    title: str = "training"  # of the progress


class Trainer:
    """One training run, resumable from every checkpoint; `fingerprint` ties the checkpoint to recipe and data.

    Order: validate the student at its start, which is the first candidate for the student that ships and decides on the
    rate; run epochs of steps, with a logged line, a validation and a checkpoint where due; validate and save a
    checkpoint after every epoch.
    """

    def __init__(
        self,
        encoder: Encoder,
        objective: Objective,
        data: TrainingRows,
        train: TrainSection,
        folder: TrainingFolder,
        fingerprint: str,
        hooks: TrainingHooks | None = None,
    ) -> None:
        self.data = data
        self.train = train
        self.folder = folder
        self.fingerprint = fingerprint
        self.hooks = hooks or TrainingHooks()
        self.accelerator = make_accelerator(train, folder.path)
        self.device = self.accelerator.device
        self.module = prepare_distillation(encoder, objective, train, self.accelerator)
        self.optimizer = build_optimizer(self.module, train)
        self.guard = FiniteGuard(self.optimizer, self.accelerator)
        self.update = Update(train.update, self.optimizer, self.module, train.max_grad_norm, self.guard.allows)

        # Before a checkpoint is loaded: the encoder still has the weights of its start.
        self.nears_teacher = measures_distance(objective) and not objective.reads_pairs
        self.start_weights = StartWeights(self.module) if self.nears_teacher else None
        self.checkpoint = folder.checkpoint  # from which an interrupted run resumes
        checkpoint = load_checkpoint(self.checkpoint, self.module, self.optimizer, fingerprint)
        self.state, memory = checkpoint or (Progress(), {})
        self.processes_before = int(memory.get("processes", processes.world_size()))
        processes.broadcast(self.module)
        self.steps_an_epoch = self.state.steps_an_epoch = self._steps_in(self._batches(0))
        self.planned_steps = planned_steps(train, self.steps_an_epoch)
        self.total_steps = self.planned_steps  # fewer once the decay has begun early
        # The rate of 'cycles' is reset at the ends of epochs: a flat validation in a cycle says nothing about the next
        is_smooth = train.schedule.name != "cycles"
        self.ends_early = self.hooks.ends_early and self.nears_teacher and is_smooth
        self.saved_steps = saved_steps(self.total_steps, train.keep_students)
        self.validation_steps = self._validation_steps()
        self._set_schedule(self.state.learning_rate)

        self.metrics = MetricsLog(folder.metrics, self.accelerator, self.hooks.callbacks)
        self.means = RunningMeans(with_prefix(memory, "window/"), self.device)
        self.monitors: list[Monitor] = [CollapseMonitor(), GateMonitor(self.total_steps), OptionMonitor(objective)]
        for monitor in self.monitors:
            monitor.state = with_prefix(memory, f"{monitor.kind}/")
        self.note = ""  # behind the progress bar
        self.saved_at = time.monotonic()
        self.stop_asked = False
        self.stop_signal = int(signal.SIGTERM)

    def finish(self, of_stage: str = "") -> None:
        """Train to the end, unless it was reached before."""
        if self.state.finished:
            return
        if self.total_steps == 0:
            self.run()
            return
        trained = sum(p.numel() for p in self.module.encoder.parameters() if p.requires_grad) / 1e6
        precision = "bf16 autocast" if self.accelerator.mixed_precision == "bf16" else "fp32"
        sharded = ", sharded" if self.train.shard else ""
        machine = f"{self.device.type} x {processes.world_size()}{sharded}, {precision}"
        log(f"training{of_stage}: {trained:.2f}M parameters, {self.total_steps:,} steps on {machine}")
        rows, size = len(self.data.train_rows), self.train.batch_size
        if rows < size and self.train.max_tokens is None:
            log(f"a batch holds {rows:,} texts: there are no more to train on (train.batch_size: {size})")
        if self.state.step:
            log(f"going on from the checkpoint of step {self.state.step:,}")
        if self.processes_before != processes.world_size():
            log(f"the checkpoint is of {self.processes_before} processes: from here on other dropout masks are drawn")
        self.run()
        if self._requests()[0] or not self.state.finished:
            done = f"{self.state.step:,} of {self.total_steps:,}{of_stage}"
            raise Stopped(
                f"stopped at step {done}.", "Run the same command again to go on.", key="train", number=self.stop_signal
            )

    def run(self) -> Progress:
        """Train to the end, from the checkpoint on; the state holds the last step."""
        warned = self.metrics.resume(self.state.step)
        for monitor in self.monitors:
            monitor.warned = monitor.kind in warned
        bar = progress(self.hooks.title, self.total_steps, "steps", done=self.state.step)
        try:
            with stop_on_signals(self._ask_to_stop), bar as advance, processes.exchange(only=False):
                if self.state.step == 0:
                    self._validate_start()
                while not (self.state.finished or self._requests()[0]):
                    self._epoch(advance)
        finally:  # trackers send their last lines then
            for tracker in self.accelerator.trackers:
                tracker.finish()
        return self.state

    # -- an epoch, a step --------------------------------------------------------------------------------------------

    def _epoch(self, advance: Advance) -> None:
        """Run the remaining steps of an epoch, their data loaded ahead."""
        batches = self._batches(self.state.epoch)
        numbers = range(self.state.step_in_epoch, self._steps_in(batches))
        with prefetched(lambda index: self._load(batches, index), numbers) as self.loaded:
            self._steps(batches, advance)

    def _steps(self, batches: Batches, advance: Advance) -> None:
        """Run the remaining steps of an epoch; return in the middle of the epoch if asked to stop."""
        state = self.state
        steps = self._steps_in(batches)
        for index in range(state.step_in_epoch, steps):
            began = time.monotonic()
            norms = self._step(batches, index)
            state.seconds += time.monotonic() - began
            state.step += 1
            state.step_in_epoch = index + 1
            if norms:
                self.metrics.write(state.step, state.passes, "train", norms)
            if self._log_due(state.step):
                self._log()
            advance(state.step, self.note)
            if state.step >= self.total_steps or index + 1 == steps:
                break
            if state.step in self.saved_steps or state.step in self.validation_steps:
                self._validate()
            stopping, saving = self._requests(self._checkpoint_due())
            if saving:
                self._checkpoint()
            if stopping:
                return
        if state.step_in_epoch == steps:  # else max_steps, or an early end, is within the epoch
            state.epoch += 1
            state.step_in_epoch = 0
        state.finished = state.step >= self.total_steps
        self._validate()
        _, saving = self._requests(self._checkpoint_due())
        if saving or state.finished:
            self._checkpoint()

    def _set_schedule(self, learning_rate: float) -> None:
        """Set the rate over time, with this highest rate."""
        self.state.learning_rate = learning_rate
        passes = min(self.train.passes, math.ceil(self.planned_steps / self.steps_an_epoch))
        self.schedule = build_schedule(self.train, self.planned_steps, learning_rate, passes)
        begin = self.state.decay_step
        self.total_steps = self.planned_steps
        if begin >= 0:
            self.total_steps = begin + decay_steps(begin)
            low = final_rate(self.train, learning_rate)
            self.schedule = with_early_decay(self.schedule, begin, decay_steps(begin), low)
            if self.train.keep_students:
                self.saved_steps |= {self.total_steps}

    def _validation_steps(self) -> frozenset[int]:
        return steps_between(self.train, self.planned_steps, len(self.data.holdout_rows), self._rows_a_step)

    @property
    def _rows_a_step(self) -> float:
        return len(self.data.pass_rows(0, self.train.seed)) / self.steps_an_epoch

    def _step(self, batches: Batches, index: int) -> dict[str, float]:
        """Run one optimizer step on its micro-batches; return the norms of the terms' gradients if due."""
        state = self.state
        rate = self.schedule(state.step, state.epoch)
        set_rate(self.optimizer, rate)
        began = time.monotonic()
        micro_batches = next(self.loaded)
        waited = time.monotonic() - began
        gradients = StepGradients(self.module, self.accelerator, micro_batches, self.train.seed, state.step)
        self.module.train()
        every = self.train.gradient_steps
        norms: dict[str, float] = {}
        if every and (state.step + 1) % every == 0:
            norms = gradients.norms()
        self.module.snapshot_due = self._log_due(state.step + 1)
        terms = self.update.step(gradients, state.step)
        if not self.guard.deferred:
            self._refuse_failure()
        rows = np.concatenate([batches[number] for number in self._numbers(index, len(batches))])
        state.texts += len(rows)
        state.tokens += int(self.data.lengths[rows].sum())
        self.means.add(terms, rate, waited)
        return norms

    def _load(self, batches: Batches, index: int) -> list[MicroBatch]:
        """Load the micro-batches of step `index`, the same in all processes."""
        return [
            load_micro_batch(self.data, batches[number], self.device) for number in self._numbers(index, len(batches))
        ]

    def _numbers(self, index: int, count: int) -> range:
        """Return the numbers of the micro-batches of step `index`, out of `count` of the epoch."""
        first = index * self.train.gradient_accumulation_steps
        return range(first, min(first + self.train.gradient_accumulation_steps, count))

    def _batches(self, epoch: int) -> Batches:
        train = self.train
        return epoch_batches(
            self.data.pass_rows(epoch, train.seed),  # the same in each epoch where batches are fixed
            self.data.lengths,
            batch_size=train.batch_size,
            max_tokens=train.max_tokens,
            window=train.window,
            seed=train.seed,
            epoch=epoch,
            drop_last=self.module.objective.needs_fixed_batch,
            fixed=train.fixed_batches,
        )

    def _steps_in(self, batches: Batches) -> int:
        return max(1, math.ceil(len(batches) / self.train.gradient_accumulation_steps))

    # -- log, validate, checkpoint -----------------------------------------------------------------------------------

    def _log_due(self, step: int) -> bool:
        return step % self.train.logging_steps == 0 or step == self.total_steps

    def _log(self) -> None:
        """Write the means since the last line, the metrics and warnings of the monitors, and the speed."""
        self._refuse_failure()
        state = self.state
        snapshot = self.module.snapshot
        self.module.snapshot = None
        metrics = self.means.metrics(self.module.objective.weights)
        if snapshot is not None:
            for monitor in self.monitors:
                metrics |= monitor.observe(snapshot, state.step)
            metrics |= {name: float(value) for name, value in snapshot.metrics.items()}
        metrics |= self.means.restart(state.texts, state.tokens, state.seconds)
        self.metrics.write(state.step, state.passes, "train", metrics)
        for monitor in self.monitors:
            warning = monitor.warning()
            if warning:
                log(f"step {state.step:,}: {warning}")
                self.metrics.warn(state.step, state.passes, monitor.kind, warning)
        self.note = f"loss {metrics['loss']:.4f}, {metrics['texts_per_second']:,.0f} texts/s"

    def _validate_start(self) -> None:
        """Validate the student before its first step; settle the learning rate, if the recipe leaves it open."""
        metrics = self._validate()
        rate = self.train.learning_rate
        if rate is None:
            rate = self.hooks.rate_of(metrics.get("cosine"))
            if self.total_steps:
                log(f"learning rate: {rate:.1e}, for a student that begins {self._start_text(metrics)}")
        self._set_schedule(rate)
        is_untrained = self.total_steps == 0  # train.epochs: 0
        if is_untrained or (self.ends_early and self._knows_its_texts()):
            self.state.finished = True
            self._checkpoint()

    def _knows_its_texts(self) -> bool:
        """Whether the student gives the teacher's vectors of the training texts already; training ends then.

        So does a student with all of the teacher's layers, and all tokens of these texts. It differs on new words only,
        of which these texts say nothing.
        """
        rows = np.random.Generator(np.random.PCG64(0)).permutation(self.data.train_rows)[:TEXTS_AT_START]
        assert isinstance(self.data, TrainingData)
        sample = replace(self.data, holdout_rows=np.sort(rows))
        module = self.module
        numbers, _ = validate_student(module.encoder, module.objective, sample, self.accelerator, self.train.batch_size)
        distance = numbers["distance"]
        if distance > SAME_VECTORS:
            return False
        log(
            f"saved as it is: the student already equals the teacher on these texts (distance {distance:.3f}). More "
            "texts keep more words; train.epochs trains anyway."
        )
        return True

    def _start_text(self, metrics: dict[str, float]) -> str:
        if "distance" in metrics:
            return f"at a distance of {metrics['distance']:.4f} from its teacher"
        return "in a space of its own"

    def _validate(self) -> dict[str, float]:
        """Validate; save the student if it is the best so far, or its step is one of `keep_students`.

        The start is the first candidate, but not with a head that begins at random. Without a metric that ranks
        students the last one ships. A student that has fallen behind its start goes back there.
        """
        self._refuse_failure(weights=True)
        state = self.state
        module = self.module
        numbers, standing = self.hooks.validate(
            module.encoder, module.objective, self.data, self.accelerator, self.train.batch_size
        )
        self.metrics.write(state.step, state.passes, "eval", numbers, standing.metric)
        # What a random head gets right by chance says nothing about the student
        head = module.objective.head
        is_candidate = state.step > 0 or head is None or (isinstance(head, TaskHead) and head.fitted)
        if standing.metric.higher_is_better is None:
            is_best = state.step > 0 or self.total_steps == 0
        else:
            state.last = standing
            if state.step == 0:
                state.start = standing
            is_best = is_candidate and standing.is_better_than(state.best)
            if is_best:
                # The most that a saved student had: else many small losses, each within chance, would add up
                most = max(standing.overlap, 0.0 if state.best is None else state.best.overlap)
                state.best = Standing(standing.metric, most)
        if is_best:
            state.best_step = state.step
            self.hooks.save("student")
        if state.step in self.saved_steps:
            self.hooks.save(f"students/step-{state.step}")
        if state.finished:
            return numbers
        if self._is_behind_start():
            self._return_to_start()
        elif self.ends_early:
            self._end_if_flat()
        return numbers

    def _is_behind_start(self) -> bool:
        """Whether the student is worse than its start by more than chance, with enough steps to be judged."""
        state = self.state
        start, last = state.start, state.last
        if self.start_weights is None or start is None or last is None or state.returns > RETURNS:
            return False
        if not last.metric.is_worse_than(start.metric, BEHIND) or last.is_better_than(start):
            return False
        steps_to_judge = min(STEPS_OF_A_RETURN, SHARE_OF_A_RETURN * self.planned_steps)
        return state.returns == 0 or state.step - state.returned_step >= steps_to_judge

    def _return_to_start(self) -> None:
        """Go back to the weights of the start with a lower rate; after RETURNS of them with the first one, for good."""
        state = self.state
        assert self.start_weights is not None
        state.returns += 1
        state.returned_step = state.step
        # The way there begins anew, with another rate
        state.judged_step, state.flat_validations, state.decay_step = state.step, 0, -1
        state.flat = None
        self.start_weights.restore(self.module)
        self.optimizer.state.clear()
        text = (
            f"the student is further from its teacher than before training ({change_text(state)}): back to its start, "
        )
        if state.returns <= RETURNS:
            self._set_schedule(SLOWER * state.learning_rate)
            text += f"with a learning rate of {state.learning_rate:.1e}"
        else:
            self._set_schedule(state.learning_rate / SLOWER**RETURNS)
            text += (
                f"with the first learning rate, {state.learning_rate:.1e}, for good, since lower ones did not help. "
                "The start ships if nothing better comes"
            )
        log(f"step {state.step:,}: {text}")
        self.metrics.warn(state.step, state.passes, "start", text)

    def _drop_what_did_not_help(self) -> None:
        """Go back to the start, if the student ends worse than it: a later stage ships what it begins with.

        Without this a student could ship that is worse than the one before all training.
        """
        start, last = self.state.start, self.state.last
        if self.start_weights is None or start is None or not start.is_better_than(last):
            return
        self.start_weights.restore(self.module)
        self.state.dropped = True
        log(
            f"the student ends worse than it began ({change_text(self.state)}): the next stage begins where this one "
            "began"
        )

    def _end_if_flat(self) -> None:
        """Begin the decay of the rate, if the last validations have not improved and the schedule's end is far."""
        state = self.state
        last, flat = state.last, state.flat
        if state.decay_step >= 0 or last is None:
            return
        if self.train.validation_steps is not None:
            first = self.train.validation_steps
        else:  # the two early validations come before this one
            first = validation_interval(len(self.data.holdout_rows), self._rows_a_step)
        if state.step < max(first, state.judged_step + CLOSEST_JUDGED * self.planned_steps):
            return

        state.judged_step = state.step
        if (
            flat is None
            or last.metric.is_better_than(flat.metric, FLAT)
            or last.overlap > flat.overlap + OVERLAP_BY_CHANCE
        ):
            state.flat = last
            state.flat_validations = 0
            return
        state.flat_validations += 1
        is_far_from_end = self.planned_steps - state.step > 2 * decay_steps(state.step)
        if state.flat_validations >= FLAT_VALIDATIONS and is_far_from_end:
            state.decay_step = state.step
            self._set_schedule(state.learning_rate)
            log(
                f"step {state.step:,}: over {FLAT_VALIDATIONS} validations the {last.metric.title} has not become "
                f"better by more than {FLAT:.1%}, nor has overlap@10 risen, so the learning rate falls to "
                f"its end and training ends at step {self.total_steps:,} instead of {self.planned_steps:,}"
            )

    def _checkpoint_due(self) -> bool:
        every = self.train.checkpoint_steps
        if every and self.state.step % every == 0:
            return True
        minutes = (time.monotonic() - self.saved_at) / 60
        return minutes > self.train.checkpoint_minutes

    def _checkpoint(self) -> None:
        """Save module, optimizer, progress, running means and monitors.

        The order matters: weights that are not finite are never saved, and the lines of metrics.jsonl reach the disk
        before the checkpoint of their step. `MetricsLog.resume` can drop lines that are too new, but not make missing
        ones.
        """
        self.saved_at = time.monotonic()
        if self.state.finished and self.hooks.another_follows:
            self._drop_what_did_not_help()
        self._refuse_failure(weights=True)
        self.metrics.sync()
        memory = {f"window/{name}": value for name, value in self.means.state.items()}
        for monitor in self.monitors:
            memory |= {f"{monitor.kind}/{name}": value for name, value in monitor.state.items()}
        memory["processes"] = torch.tensor(processes.world_size())
        save_checkpoint(self.checkpoint, self.module, self.optimizer, self.state, self.fingerprint, memory)

    # -- stop --------------------------------------------------------------------------------------------------------

    def _refuse_failure(self, weights: bool = False) -> None:
        """DistilvecError if a loss since the last call is not finite; its step has changed no weight.

        With `weights` also if a weight or the optimizer's state is not finite, so that none is ever saved.
        """
        problem = self.guard.problem()
        failed_step = self.guard.failed_step
        step = self.state.step
        if weights and step and not problem:
            trained = itertools.chain(self.module.parameters(), optimizer_tensors(self.optimizer, self.module).values())
            if processes.max_over_ranks(not all_finite(trained)):
                problem = f"weights are not finite after step {step}"
                failed_step = step + 1
        if not problem:
            return
        rate = self.state.learning_rate
        fix = f"Lower train.learning_rate (now {rate:g}), set train.max_grad_norm or use train.precision=fp32,"
        if failed_step == 1:  # no update yet: the rate is not the cause
            fix = "No weight has changed yet: look for log(0), 0/0 or inf - inf in this term of the method, in its "
            fix += "gradient for sqrt or norm at 0, or use train.precision=fp32,"
        elif failed_step is not None and failed_step <= EARLY_STEPS:
            fix = "So early a gradient of the method may be infinite or nan: look for sqrt or norm at 0, and add a "
            fix += f"small number there. Else lower train.learning_rate (now {rate:g}) or set train.max_grad_norm,"
        if not self.checkpoint.exists():
            fix += " and run the command again."
        else:
            fix += f" and start over (--restart). The last good checkpoint is in {self.checkpoint.parent}."
        raise DistilvecError(f"{problem}.", fix, key="train")

    def _ask_to_stop(self, number: int) -> None:
        """Stop after this step."""
        self.stop_asked = True
        self.stop_signal = number

    def _requests(self, due: bool = False) -> tuple[bool, bool]:
        """Return whether to stop, and whether to save a checkpoint; the same in all processes, in one exchange.

        Any process may have been asked to stop, and in any a checkpoint may be `due`: their clocks differ.
        """
        # One number holds both answers, the signal times two plus `due`: two exchanges at every step would cost twice
        signal_number = self.stop_signal if self.stop_asked else 0
        number = processes.max_over_ranks(2 * signal_number + due)
        if number > 1:
            self._ask_to_stop(number // 2)
        return number > 1, number > 0


def change_text(state: Progress) -> str:
    """The watched metric now and at the start: "distance 0.3000, 0.2000 at the start"."""
    if state.start is None or state.last is None:
        return ""
    last = state.last.metric
    return f"{last.title} {last.value:.4f}, {state.start.metric.value:.4f} at the start"


def measures_distance(objective: Objective) -> bool:
    """Return whether validation measures the distance to the teacher, so that it tells whether training helps."""
    return objective.in_teacher_space and objective.head is None


def planned_steps(train: TrainSection, steps_an_epoch: int) -> int:
    """The steps of a training that does not end early."""
    steps = train.passes * steps_an_epoch
    return steps if train.max_steps is None else min(steps, train.max_steps)


def steps_between(train: TrainSection, total: int, holdout_rows: int, rows_a_step: float) -> frozenset[int]:
    """The steps after which to validate, in addition to the ends of epochs, in a training of `total` steps."""
    if train.validation_steps is not None:
        return frozenset(range(train.validation_steps, total, train.validation_steps))
    return validation_steps(total, holdout_rows, rows_a_step)


def saved_steps(total: int, count: int | None) -> frozenset[int]:
    """The steps after which a student is saved: `count` evenly spread steps, the last step among them."""
    if not count:
        return frozenset()
    return frozenset(max(1, round(total * (number + 1) / count)) for number in range(count))
