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
from distilvec.core.errors import DistilvecError
from distilvec.core.method_file import attribute_errors_to, file_of
from distilvec.core.objective import LossTerms, Objective, check_terms, weighted_loss, weighted_losses
from distilvec.core.outputs import ModelOutputs
from distilvec.students.encoder import Encoder
from distilvec.train.monitors import Snapshot, take_snapshot, with_gates
from distilvec.train.optimizer import freeze_others
from distilvec.train.prefetch import MicroBatch, ProcessShare
from distilvec.train.sharding import gradient_norm, shard, sharding
from distilvec.train.update import RowWeights


class Distillation(nn.Module):
    """Student and objective in one module, so that optimizer and checkpoints need no special case.

    If `snapshot_due` is set, the next micro-batch is kept in `snapshot`.
    """

    def __init__(self, encoder: Encoder, objective: Objective) -> None:
        super().__init__()
        self.encoder, self.objective = encoder, objective
        self.method_file = file_of(type(objective))
        self.snapshot_due = False
        self.snapshot: Snapshot | None = None

    def forward(self, batch: TextBatch, teacher: ModelOutputs, share: ProcessShare | None = None) -> LossTerms:
        """The objective's terms, one value per example; the student runs under autocast, the objective in fp32.

        With a `share`, `batch` and `teacher` are those of this process, and the terms those of the whole micro-batch.
        """
        with attribute_errors_to():
            objective = self.objective
            required = objective.student_outputs
            if self.snapshot_due:
                required = with_gates(required, self.encoder.experts)
            attention_rows = None if teacher.selected is None else teacher.selected[..., 0]
            student = self.encoder(batch, required, attention_rows)
            with torch.autocast(batch.rows.device.type, enabled=False):
                if share is not None:
                    student, teacher = share.gather(student, teacher)
                    batch = share.whole
                if objective.head is not None:
                    student = replace(student, logits=objective.head(student.vector))
                with attribute_errors_to(self.method_file):  # also a call that does not fit its signature
                    terms: LossTerms = objective(batch, student, teacher)
                check_terms(objective, terms, {batch.examples, len(batch)})
                if self.snapshot_due:
                    with torch.no_grad(), attribute_errors_to(self.method_file):
                        metrics = objective.metrics(batch, student, teacher)
                    self.snapshot = take_snapshot(batch, student, teacher, metrics)
                    self.snapshot_due = False
        for name, values in terms.items():
            if len(values) != batch.examples:  # one value per text: an example has the mean of its texts
                terms[name] = values.view(batch.texts_per_example, -1).mean(0)
        return terms


def prepare_distillation(
    encoder: Encoder, objective: Objective, train: TrainSection, accelerator: Accelerator
) -> Distillation:
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
        self.module = module
        self.accelerator = accelerator
        self.micro_batches = micro_batches
        self.examples = [micro_batch.examples for micro_batch in micro_batches]
        self.objective = module.objective
        self.trained = [parameter for parameter in module.parameters() if parameter.requires_grad]
        self.seed = seed
        self.step = step
        self.loaded: tuple[int, ProcessShare, ModelOutputs] | None = (
            None  # the micro-batch on the device, and its number
        )
        self.buffers: dict[str, Tensor] | None = None

    def __call__(self, masks: int = 0, is_last: bool = True, row_weights: RowWeights | None = None) -> LossTerms:
        """One pass over all micro-batches; the terms are detached."""
        self._rewind(more_to_come=not is_last)
        weights = self.objective.weights
        # Row weights depend on the losses of all rows of the step: with several micro-batches these come first
        weights_by_batch = None
        if row_weights is not None and len(self.examples) > 1:
            weights_by_batch = self._weights_by_batch(masks, row_weights)
        detached = []
        for number, examples in enumerate(self.examples):
            with self.accelerator.autocast():
                terms, sources = self._terms(number, masks)
                if row_weights is None:
                    loss = weighted_loss(terms, weights) * (examples / sum(self.examples))
                else:
                    losses = weighted_losses(terms, weights)
                    if weights_by_batch is None:
                        loss = (losses * row_weights(losses.detach(), sources)).sum()
                    else:
                        loss = (losses * weights_by_batch[number]).sum()
            file = self.module.method_file
            if file is not None and not loss.requires_grad:
                problem = f"{file}: no term of the loss has a gradient: all are detached from the student's outputs."
                raise DistilvecError(problem, "Correct that file.", key="method.name")
            with attribute_errors_to(file):  # such as a tensor that forward changed in place
                self.accelerator.backward(loss)
            detached.append({name: values.detach() for name, values in terms.items()})
        processes.average_gradients(self.trained)
        return {name: torch.cat([terms[name] for terms in detached]) for name in detached[0]}

    def norms(self) -> dict[str, float]:
        """Norm of each weighted term's gradient in the student, on the first micro-batch; gradients are cleared."""
        self._rewind(more_to_come=True)
        module = self.module
        trained = [parameter for parameter in module.encoder.parameters() if parameter.requires_grad]
        with self.accelerator.autocast():
            terms, _ = self._terms(0, 0)
        norms = {}
        for name, values in terms.items():
            module.zero_grad(set_to_none=True)
            if values.requires_grad:
                torch.autograd.backward(self.objective.weights[name] * values.mean(), retain_graph=True)
            processes.average_gradients(trained)
            gradients = [parameter.grad for parameter in trained if parameter.grad is not None]
            norms[f"gradient_{name}"] = float(gradient_norm(gradients))
        module.zero_grad(set_to_none=True)
        return norms

    @torch.no_grad()
    def _weights_by_batch(self, masks: int, row_weights: RowWeights) -> tuple[Tensor, ...]:
        """Return the weights of each micro-batch's rows, from a pass without gradient."""
        losses = []
        sources = []
        for number in range(len(self.examples)):
            with self.accelerator.autocast():
                terms, batch_sources = self._terms(number, masks)
            losses.append(weighted_losses(terms, self.objective.weights))
            sources.append(batch_sources)
        self._rewind()
        return torch.split(row_weights(torch.cat(losses), torch.cat(sources)), self.examples)

    def _terms(self, number: int, masks: int) -> tuple[LossTerms, Tensor]:
        """Return the terms and sources of a micro-batch, which stays on the device for a further pass."""
        if self.loaded is None or self.loaded[0] != number:
            self.loaded = number, *self.micro_batches[number].to(self.accelerator.device)
        _, share, teacher = self.loaded
        # Dropout differs between processes. What the loss draws is equal in all of them: the seed of a process that
        # does not exist, process number `count`.
        share = replace(share, seed=step_seed(self.seed, self.step, number, processes.world_size(), masks))
        seed_step(self.seed, self.step, number, processes.rank(), masks)
        return self.module(share.own, teacher, share), share.whole.sources[: share.whole.examples]

    def _rewind(self, more_to_come: bool = False) -> None:
        """Restore the objective's buffers of the first pass, which copies them if more passes follow."""
        if self.buffers is None:
            buffers = self.objective.named_buffers() if more_to_come else ()
            self.buffers = {name: value.clone() for name, value in buffers}
        if self.buffers:
            for name, value in self.objective.named_buffers():
                value.copy_(self.buffers[name])


def seed_step(seed: int, step: int, micro_batch: int, process: int, masks: int = 0) -> None:
    """Seed torch for one micro-batch; see `step_seed`."""
    torch.manual_seed(step_seed(seed, step, micro_batch, process, masks))


def step_seed(seed: int, step: int, micro_batch: int, process: int, masks: int = 0) -> int:
    """Return torch's seed for one micro-batch: dropout depends on its position in the run only, so resuming is exact.

    `masks` counts the passes of a step that draw dropout masks of their own; a plain step has 0 only.
    """
    position = [seed, step, micro_batch, process]
    if masks:
        position.append(masks)
    return int(np.random.SeedSequence(position).generate_state(1, np.uint64)[0] >> 1)
