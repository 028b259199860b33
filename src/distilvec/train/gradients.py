"""The passes of one step: all its micro-batches forward and backward, as often as the update rule asks."""

from __future__ import annotations

from contextlib import nullcontext

import numpy as np
import torch
from accelerate import Accelerator
from jaxtyping import Float, Int
from torch import Tensor, nn

from distilvec.core.batch import TextBatch
from distilvec.core.objective import LossTerms, Objective, weighted_loss, weighted_losses
from distilvec.core.outputs import ModelOutputs
from distilvec.data.sampler import Rows
from distilvec.train.dataset import TrainingRows
from distilvec.train.update import Weigh


class StepGradients:
    """The closure of step `step`; `groups` are the rows of this process's micro-batches, `module` turns batches into terms.

    Every pass of a step begins with the objective's buffers (a queue, say) as the first one did, so that they change once a step.
    """

    def __init__(
        self,
        module: nn.Module,
        objective: Objective,
        data: TrainingRows,
        accelerator: Accelerator,
        groups: list[Rows],
        seed: int,
        step: int,
    ) -> None:
        self.module, self.objective, self.data, self.accelerator = module, objective, data, accelerator
        self.groups, self.seed, self.step = groups, seed, step
        self.rows = sum(len(group) for group in groups)
        self.fetched: tuple[int, TextBatch, ModelOutputs] | None = None
        self.buffers: dict[str, Tensor] | None = None

    def __call__(self, draw: int = 0, sync: bool = True, weigh: Weigh | None = None) -> LossTerms:
        """One pass (train/update.py, `Gradients`)."""
        self._rewind(more_to_come=not sync)
        weights, found = self.objective.weights, []
        shares = self._shares(draw, weigh) if weigh is not None and len(self.groups) > 1 else None
        for number, group in enumerate(self.groups):
            apart = not sync or number < len(self.groups) - 1
            with self.accelerator.no_sync(self.module) if apart else nullcontext(), self.accelerator.autocast():
                terms, sources = self._terms(number, draw)
                if weigh is None:
                    loss = weighted_loss(terms, weights) * (len(group) / self.rows)
                else:
                    losses = weighted_losses(terms, weights)
                    loss = (losses * (weigh(losses.detach(), sources) if shares is None else shares[number])).sum()
            self.accelerator.backward(loss)
            found.append({name: values.detach() for name, values in terms.items()})
        return {name: torch.cat([terms[name] for terms in found]) for name in found[0]}

    @torch.no_grad()
    def _shares(self, draw: int, weigh: Weigh) -> tuple[Tensor, ...]:
        """The weights of each micro-batch's rows, from a pass without gradient: they depend on all the step's losses."""
        losses: list[Float[Tensor, " batch"]] = []
        sources: list[Int[Tensor, " batch"]] = []
        for number in range(len(self.groups)):
            with self.accelerator.autocast():
                terms, source = self._terms(number, draw)
            losses.append(weighted_losses(terms, self.objective.weights))
            sources.append(source)
        self._rewind()
        return torch.split(weigh(torch.cat(losses), torch.cat(sources)), [len(group) for group in self.groups])

    def _terms(self, number: int, draw: int) -> tuple[LossTerms, Tensor]:
        """The terms and sources of a micro-batch."""
        if self.fetched is None or self.fetched[0] != number:
            batch = self.data.batch(self.groups[number]).to(self.accelerator.device)
            self.fetched = number, batch, self.data.teacher.signals(batch)
        _, batch, teacher = self.fetched
        seed_step(self.seed, self.step, number, self.accelerator.process_index, draw)
        return self.module(batch, teacher), batch.sources[: len(batch) // batch.texts_per_example]

    def _rewind(self, more_to_come: bool = False) -> None:
        """Give the objective's buffers the values they had before the step's first pass, which notes them if more will follow."""
        if self.buffers is None:
            self.buffers = (
                {name: value.clone() for name, value in self.objective.named_buffers()} if more_to_come else {}
            )
        for name, value in self.objective.named_buffers() if self.buffers else ():
            value.copy_(self.buffers[name])


def seed_step(seed: int, step: int, micro_batch: int, process: int, draw: int = 0) -> None:
    """Seed torch for one micro-batch: dropout depends on its place in the run only, so resuming is exact.

    `draw` 0 is the only one of a step with a single pass.
    """
    place = [seed, step, micro_batch, process, *([draw] if draw else [])]
    torch.manual_seed(int(np.random.SeedSequence(place).generate_state(1, np.uint64)[0] >> 1))
