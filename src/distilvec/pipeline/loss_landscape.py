"""The training objective of a finished run as a function of the weights, at any saved checkpoint.

Student, objective, rows and teacher vectors come from the run folder and the caches; a teacher is loaded only if it ran
in every step, or if the method learns from its tokens. The function is the mean over fixed training batches in fp32.
Batches are formed as in training, since methods compare the texts of a batch. Dropout masks and other random draws are
seeded by the batch. Buffers of the objective, such as a queue, are those of the checkpoint for every batch.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from sentence_transformers import SentenceTransformer
from torch import Tensor
from torch.func import functional_call
from torch.nn.attention import SDPBackend, sdpa_kernel

from distilvec.config import recipe as recipes
from distilvec.core.batch import TextBatch
from distilvec.core.device import keep_memory, pick_device
from distilvec.core.errors import DistilvecError
from distilvec.core.objective import weighted_loss
from distilvec.core.outputs import ModelOutputs
from distilvec.data.sampler import epoch_batches
from distilvec.models.load import load
from distilvec.pipeline.prepare import prepare
from distilvec.pipeline.resolve import make_objective, required_outputs, resolve
from distilvec.pipeline.run_dir import saved_folders
from distilvec.students.encoder import Encoder
from distilvec.train.checkpoint import load_objective, objective_file
from distilvec.train.distillation import Distillation, seed_step
from distilvec.train.optimizer import freeze_others

Batch = tuple[TextBatch, ModelOutputs]


@dataclass(frozen=True)
class Landscape:
    """The loss at one student. `module` holds the weights; dropout is on while it is in training mode."""

    module: Distillation
    batches: list[Batch]
    seed: int

    @property
    def rows(self) -> int:
        """Texts in the loss."""
        return sum(len(batch) for batch, _ in self.batches)

    @cached_property
    def parameters(self) -> list[Tensor]:
        """Trained parameters: the student's and the objective's."""
        return [parameter for parameter in self.module.parameters() if parameter.requires_grad]

    def parts(self) -> Iterator[Tensor]:
        """Yield the loss batch by batch. Attention is not fused here: the fused kernel has no second derivative."""
        buffers = {f"objective.{name}": buffer for name, buffer in self.module.objective.named_buffers()}
        for number, (batch, teacher) in enumerate(self.batches):
            seed_step(self.seed, 0, number, 0)
            copies = {name: buffer.clone() for name, buffer in buffers.items()}
            with sdpa_kernel(SDPBackend.MATH):
                terms = functional_call(self.module, copies, (batch, teacher))
            yield weighted_loss(terms, self.module.objective.weights) * (len(batch) / self.rows)


class Landscapes:
    """The landscapes of a finished run (`record` is its distillation.json), over about `texts` training texts drawn by
    `seed`.

    The objective is that of the last stage. Errors: DistilvecError if the folder or a cache lacks a part.
    """

    def __init__(self, folder: Path, record: Mapping[str, Any], texts: int, seed: int, dropout: bool | None) -> None:
        self.folder, self.texts, self.seed, self._dropout = folder, texts, seed, dropout
        self.job = resolve(recipes.load(folder / "recipe.yaml"), folder, record)
        self.stage = self.job.stages[-1]
        self.steps: int = record["training"]["steps"]

    @cached_property
    def students(self) -> dict[int, Path]:
        """Folders of the saved checkpoints by step, the final one among them."""
        return {**saved_folders(self.folder), self.steps: self.folder / "last"}

    def landscape(self, step: int) -> Landscape:
        """Return the loss at the checkpoint of this step."""
        folder, train = self.students[step], self.stage.recipe.train
        if not (folder / "modules.json").exists():
            raise DistilvecError(
                f"[run folder] {folder} is missing. Run the recipe again (--restart) to save checkpoints."
            )
        keep_memory()
        device = torch.device(pick_device(train.device))
        model = load(folder, device="cpu").float()
        objective = make_objective(self.stage, self.job.context)
        load_objective(objective_file(folder), objective)
        module = Distillation(Encoder(model), objective).to(device)
        freeze_others(module, train)
        on = objective.student_outputs.second_view if self._dropout is None else self._dropout
        return Landscape(module.train(on), self._batches(module, model, device), self.seed)

    def _batches(self, module: Distillation, model: SentenceTransformer, device: torch.device) -> list[Batch]:
        """Return the first training batches of an epoch drawn by `seed`, until they hold `texts` rows; at least one."""
        train = self.stage.recipe.train
        data = prepare(self.job, model).training_data(required_outputs(module.objective, self.job.examples))
        batches = epoch_batches(
            data.train_rows, data.lengths, batch_size=train.batch_size, max_tokens=train.max_tokens,
            window=train.window, seed=self.seed, epoch=0, drop_last=module.objective.needs_fixed_batch,
        )  # fmt: skip
        found: list[Batch] = []
        for number in range(len(batches)):
            batch = data.batch(batches[number]).to(device)
            found.append((batch, data.teacher.signals(batch)))
            if sum(len(batch) for batch, _ in found) + train.batch_size // 2 >= self.texts:
                break
        return found
