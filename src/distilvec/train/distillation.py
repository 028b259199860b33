"""Student and objective as the one module that is trained, and the gradients of one step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch
from accelerate import Accelerator
from torch import Tensor, nn

from distilvec.config.training import TrainSection
from distilvec.core import processes
from distilvec.core.batch import TextBatch
from distilvec.core.device import keep_memory, return_memory
from distilvec.core.method_file import attribute_errors_to
from distilvec.core.objective import LossTerms, Objective, check_terms, weighted_loss, weighted_losses
from distilvec.core.outputs import ModelOutputs
from distilvec.students.encoder import Encoder
from distilvec.train.monitors import Snapshot, take_snapshot, with_gates
from distilvec.train.optimizer import freeze_others
from distilvec.train.prefetch import MicroBatch
from distilvec.train.sharding import gradient_norm, shard, sharding
from distilvec.train.shares import Share
from distilvec.train.update import Weigh


class Distillation(nn.Module):
    """Student and objective in one module, so that optimizer and checkpoints need no special case.

    If `snapshot_due` is set, the next micro-batch is kept in `snapshot`.
    """

    def __init__(self, encoder: Encoder, objective: Objective) -> None:
        super().__init__()
        self.encoder, self.objective = encoder, objective
        self.snapshot_due = False
        self.snapshot: Snapshot | None = None

    def forward(self, batch: TextBatch, teacher: ModelOutputs, share: Share | None = None) -> LossTerms:
        """The objective's terms, one value per example; the student runs under autocast, the objective in fp32.

        With a `share`, `batch` and `teacher` are those of this process, and the terms those of the whole micro-batch.
        """
        with attribute_errors_to():
            objective, required = self.objective, self.objective.student_outputs
            rows = None if teacher.selected is None else teacher.selected[..., 0]
            required = with_gates(required, self.encoder.experts) if self.snapshot_due else required
            student = self.encoder(batch, required, rows)
            with torch.autocast(batch.rows.device.type, enabled=False):
                if share is not None:
                    batch, (student, teacher) = share.whole, share.gather(student, teacher)
                if objective.head is not None:
                    student = replace(student, logits=objective.head(student.vector))
                terms: LossTerms = objective(batch, student, teacher)
                check_terms(objective, terms, {batch.examples, len(batch)})
                if self.snapshot_due:
                    with torch.no_grad():
                        metrics = objective.metrics(batch, student, teacher)
                    self.snapshot, self.snapshot_due = take_snapshot(batch, student, teacher, metrics), False
        return {
            name: values if len(values) == batch.examples else values.view(batch.texts_per_example, -1).mean(0)
            for name, values in terms.items()
        }


def prepare(encoder: Encoder, objective: Objective, train: TrainSection, accelerator: Accelerator) -> Distillation:
    """Student and objective on the device, with the recipe's parameters trained."""
    if sharding(train):
        return_memory()  # gathered layers come and go
    else:
        keep_memory()
    if train.gradient_checkpointing:
        encoder.backbone.gradient_checkpointing_enable()
    if train.compile:
        encoder.backbone.compile(dynamic=True)
    objective.matmul_dtype = torch.bfloat16 if accelerator.mixed_precision == "bf16" else None
    module = Distillation(encoder, objective)
    freeze_others(module, train)
    if sharding(train):
        shard(encoder, accelerator.device, accelerator.mixed_precision == "bf16")
    return module.to(accelerator.device)


class StepGradients:
    """The closure of a step (train/update.py, `Gradients`) on its micro-batches, which processes share.

    Every pass begins with the objective's buffers (such as a queue) of the first pass, so they change once a step.
    """

    def __init__(
        self, module: Distillation, accelerator: Accelerator, micro_batches: Sequence[MicroBatch], seed: int, step: int
    ) -> None:
        self.module, self.accelerator, self.micro_batches = module, accelerator, micro_batches
        self.examples = [one.examples for one in micro_batches]
        self.objective = module.objective
        self.trained = [parameter for parameter in module.parameters() if parameter.requires_grad]
        self.seed, self.step = seed, step
        self.fetched: tuple[int, Share, ModelOutputs] | None = None
        self.buffers: dict[str, Tensor] | None = None

    def __call__(self, draw: int = 0, last: bool = True, weigh: Weigh | None = None) -> LossTerms:
        """One pass over all micro-batches; the terms are detached."""
        self._rewind(more_to_come=not last)
        weights, found = self.objective.weights, []
        shares = self._shares(draw, weigh) if weigh is not None and len(self.examples) > 1 else None
        for number, examples in enumerate(self.examples):
            with self.accelerator.autocast():
                terms, sources = self._terms(number, draw)
                if weigh is None:
                    loss = weighted_loss(terms, weights) * (examples / sum(self.examples))
                else:
                    losses = weighted_losses(terms, weights)
                    loss = (losses * (weigh(losses.detach(), sources) if shares is None else shares[number])).sum()
            self.accelerator.backward(loss)
            found.append({name: values.detach() for name, values in terms.items()})
        processes.average_gradients(self.trained)
        return {name: torch.cat([terms[name] for terms in found]) for name in found[0]}

    def norms(self) -> dict[str, float]:
        """Norm of each weighted term's gradient in the student, on the first micro-batch; gradients are cleared."""
        self._rewind(more_to_come=True)
        module = self.module
        trained = [parameter for parameter in module.encoder.parameters() if parameter.requires_grad]
        with self.accelerator.autocast():
            terms, _ = self._terms(0, 0)
        found = {}
        for name, values in terms.items():
            module.zero_grad(set_to_none=True)
            if values.requires_grad:
                torch.autograd.backward(self.objective.weights[name] * values.mean(), retain_graph=True)
            processes.average_gradients(trained)
            gradients = [parameter.grad for parameter in trained if parameter.grad is not None]
            found[f"gradient_{name}"] = float(gradient_norm(gradients))
        module.zero_grad(set_to_none=True)
        return found

    @torch.no_grad()
    def _shares(self, draw: int, weigh: Weigh) -> tuple[Tensor, ...]:
        """Weights of each micro-batch's rows, from a pass without gradient: they depend on all losses of the step."""
        found = []
        for number in range(len(self.examples)):
            with self.accelerator.autocast():
                terms, sources = self._terms(number, draw)
            found.append((weighted_losses(terms, self.objective.weights), sources))
        self._rewind()
        losses, sources = (torch.cat(parts) for parts in zip(*found, strict=True))
        return torch.split(weigh(losses, sources), self.examples)

    def _terms(self, number: int, draw: int) -> tuple[LossTerms, Tensor]:
        """LossTerms and sources of a micro-batch; the batch stays in memory for a further pass."""
        if self.fetched is None or self.fetched[0] != number:
            self.fetched = number, *self.micro_batches[number].to(self.accelerator.device)
        _, share, teacher = self.fetched
        share = replace(share, seed=step_seed(self.seed, self.step, number, processes.world_size(), draw))
        seed_step(self.seed, self.step, number, processes.rank(), draw)
        return self.module(share.own, teacher, share), share.whole.sources[: share.whole.examples]

    def _rewind(self, more_to_come: bool = False) -> None:
        """Restore the objective's buffers of the first pass, which copies them if more passes follow."""
        if self.buffers is None:
            buffers = self.objective.named_buffers() if more_to_come else ()
            self.buffers = {name: value.clone() for name, value in buffers}
        for name, value in self.objective.named_buffers() if self.buffers else ():
            value.copy_(self.buffers[name])


def seed_step(seed: int, step: int, micro_batch: int, process: int, draw: int = 0) -> None:
    """Seed torch for one micro-batch; see `step_seed`."""
    torch.manual_seed(step_seed(seed, step, micro_batch, process, draw))


def step_seed(seed: int, step: int, micro_batch: int, process: int, draw: int = 0) -> int:
    """Return torch's seed for one micro-batch: dropout depends on its position in the run only, so resuming is exact.

    A step with a single pass uses `draw` 0 only.
    """
    position = [seed, step, micro_batch, process, *([draw] if draw else [])]
    return int(np.random.SeedSequence(position).generate_state(1, np.uint64)[0] >> 1)
