"""The full training objective of a finished run as a function of the weights, at any student that was kept.

Student, objective, rows and teacher vectors come from the run's folder and the caches; a teacher is loaded only where it ran
in every step, or where the method learns from its tokens. The function is the mean over fixed training batches, cut as
training cuts them (methods that compare texts depend on the batch), in fp32. Dropout masks and whatever else an objective
draws come from seeds that depend on the batch only; buffers of the objective, such as a queue, are for every batch those
that were saved.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
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
from distilvec.core.info import UNLIMITED, TeacherInfo
from distilvec.core.objective import total
from distilvec.core.outputs import ModelOutputs
from distilvec.data.sampler import epoch_batches
from distilvec.models.load import load
from distilvec.pipeline.prepare import build_token_store
from distilvec.pipeline.resolve import answering, validation_outputs
from distilvec.pipeline.run import Run
from distilvec.pipeline.run_dir import kept_folders
from distilvec.pipeline.teachers import TeacherSide
from distilvec.students.encoder import Encoder
from distilvec.teachers.cache.fill import superset_caches
from distilvec.teachers.cache.manifest import Manifest
from distilvec.teachers.cache.store import TeacherCache
from distilvec.train.checkpoint import load_objective, objective_file
from distilvec.train.distillation import Distillation
from distilvec.train.gradients import seed_step
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
        """Everything that is trained: the student's parameters and the objective's."""
        return [parameter for parameter in self.module.parameters() if parameter.requires_grad]

    def parts(self) -> Iterator[Tensor]:
        """The loss, a batch at a time; fused attention has no second derivative, so attention is taken apart."""
        buffers = {f"objective.{name}": buffer for name, buffer in self.module.objective.named_buffers()}
        for number, (batch, teacher) in enumerate(self.batches):
            seed_step(self.seed, 0, number, 0)
            copies = {name: buffer.clone() for name, buffer in buffers.items()}
            with sdpa_kernel(SDPBackend.MATH):
                terms = functional_call(self.module, copies, (batch, teacher))
            yield total(terms, self.module.objective.weights) * (len(batch) / self.rows)


class Landscapes:
    """The landscapes of a finished run (`record` is its distillation.json), over about `texts` training texts drawn by `seed`.

    Of a run in stages the last stage's objective. Errors: DistilvecError where the folder or a cache lacks a part.
    """

    def __init__(self, folder: Path, record: Mapping[str, Any], texts: int, seed: int, dropout: bool | None) -> None:
        self.folder, self.texts, self.seed, self._dropout = folder, texts, seed, dropout
        self.run = Run(recipes.load(folder / "recipe.yaml"), folder)
        self.train = self.run.stages[-1].recipe.train
        self.steps: int = record["training"]["steps"]
        for side, known in zip(self.run.sides, [record["teacher"], *record.get("more_teachers", [])], strict=True):
            if known.get("live") or side.section.live:
                continue
            side.cache = open_cache(side, known["name"], known["fingerprint"])
            if side.cache.manifest.tokens is None:  # else the method must know more of the teacher than its vectors
                side.info = known_facts(side.cache.manifest, known["name"])

    @cached_property
    def students(self) -> dict[int, Path]:
        """The folders of the students that were kept, by step, the final one among them."""
        return {**kept_folders(self.folder), self.steps: self.folder / "last"}

    def landscape(self, step: int) -> Landscape:
        """The loss at the student of this step."""
        folder = self.students[step]
        if not (folder / "modules.json").exists():
            raise DistilvecError(
                f"[run folder] {folder} is missing. Run the recipe again (--restart) to have students kept."
            )
        keep_memory()
        device = torch.device(pick_device(self.train.device))
        model = load(folder, device="cpu").float()
        encoder = Encoder(model)
        objective = self.run.objective(encoder)
        load_objective(objective_file(folder), objective)
        module = Distillation(encoder, objective).to(device)
        freeze_others(module, self.train)
        on = objective.student_outputs.second_view if self._dropout is None else self._dropout
        return Landscape(module.train(on), self._batches(module, model, device), self.seed)

    def _batches(self, module: Distillation, model: SentenceTransformer, device: torch.device) -> list[Batch]:
        """As many training batches as hold `texts` rows (at least one), cut as in an epoch of training with `seed`."""
        corpus, train = self.run.corpus, self.train
        self.run.required = module.objective.teacher_outputs | validation_outputs(self.run)
        teacher = answering(self.run, module.objective)
        tokens = build_token_store(self.run.root, corpus, model)
        data = self.run.training_data(tokens, teacher)
        cut = epoch_batches(
            data.train_rows, data.lengths, batch_size=train.batch_size, max_tokens=train.max_tokens, window=train.window,
            seed=self.seed, epoch=0, drop_last=module.objective.in_batch,
        )  # fmt: skip
        found: list[Batch] = []
        for number in range(len(cut)):
            batch = data.batch(cut[number]).to(device)
            found.append((batch, teacher.signals(batch)))
            if sum(len(batch) for batch, _ in found) + train.batch_size // 2 >= self.texts:
                break
        return found


def known_facts(manifest: Manifest, name: str) -> TeacherInfo:
    """What a cache tells about its teacher."""
    length = manifest.max_length or UNLIMITED
    info = TeacherInfo(manifest.width, manifest.normalized, length, manifest.prompts, name=name)
    return replace(info, hidden_size=manifest.vector_width, pre_dense_dim=manifest.pre_dense_width)


def open_cache(side: TeacherSide, teacher: str, fingerprint: str) -> TeacherCache:
    """The teacher's cache that a run was trained from."""
    folder = side.cache_folder(teacher, fingerprint)
    if not folder.exists():
        if wider := superset_caches(folder, fingerprint):
            return max(wider, key=len)
        raise DistilvecError(
            f"[cache] the vectors of {teacher} are not in {folder} any more. Compute them again: distilvec cache fill "
            f"{side.run.folder}/recipe.yaml."
        )
    return TeacherCache.open(folder)
