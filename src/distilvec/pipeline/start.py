"""The start of training: layers chosen by their distance to the teacher, linear layers by ridge regression, heads of
labelled tasks by logistic regression.

The first two read a few texts of the training data, the same for every seed, and the teacher's outputs for them; the
head is fitted to labelled examples. The result is in a file of the run folder, so that a resumed or
finished run fits nothing again.
"""

from __future__ import annotations

import copy
import itertools
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial

import numpy as np
import torch
import torch.nn.functional as F
from sentence_transformers import SentenceTransformer
from torch import Tensor, nn

from distilvec.config.student import LayersSection
from distilvec.core.batch import TextBatch
from distilvec.core.device import pick_device
from distilvec.core.errors import DistilvecError, about
from distilvec.core.log import log, progress
from distilvec.core.objective import LinearPairs, Objective
from distilvec.core.outputs import ModelOutputs, OutputSpec
from distilvec.core.task_head import TaskHead
from distilvec.pipeline.data import PreparedData
from distilvec.pipeline.job import Job
from distilvec.pipeline.objectives import make_objective, required_outputs
from distilvec.pipeline.student import untrained_student
from distilvec.students.encoder import Encoder
from distilvec.students.layer_choice import best_layers, number_of_distances
from distilvec.students.layers import choose_layers
from distilvec.students.regression import logistic, mean_distance, ridge
from distilvec.train.checkpoint import read_tensors, with_prefix, write_tensors
from distilvec.train.stages import any_in_teacher_space

# Texts that are read, the shortest of those drawn
CHOICE_TEXTS, GLANCE_TEXTS, RIDGE_TEXTS = (512, 1024), (32, 64), (16384, 20480)
BATCH = 64
MOST_ROWS = 16384  # of a regression, where a text has several


@dataclass(frozen=True)
class Start:
    """The layers of the student, None for those of the recipe, and fitted weights by the names of their modules.

    Distances to the teacher are in pairs, before and after: of the evenly spread and the chosen layers, out of
    `choices`, and of every fitted layer's outputs, on texts that its fit has not read.
    """

    layers: list[int] | None = None
    choices: int = 0
    layer_distances: tuple[float, float] | None = None
    ridge_distances: dict[str, tuple[float, float]] = field(default_factory=dict)
    head_examples: int = 0  # to which the head was fitted
    weights: Mapping[str, Tensor] = field(default_factory=dict)

    @property
    def label(self) -> str:
        """In words, for log and record."""
        parts = []
        if self.layer_distances is not None:
            before, after = self.layer_distances
            parts.append(f"layers {self.layers}, the best of {self.choices} choices: {before:.3f} to {after:.3f}")
        parts += [
            f"ridge {name}: {before:.3f} to {after:.3f}" for name, (before, after) in self.ridge_distances.items()
        ]
        text = f"{'; '.join(parts)} (distance to the teacher)" if parts else ""
        if self.head_examples:
            head = f"head: logistic regression on {self.head_examples:,} examples"
            text = f"{text}; {head}" if text else head
        return text or "as built"

    def student(self, job: Job) -> SentenceTransformer:
        """Return the student that training starts from: a copy of the one in memory, else built; always the same."""
        if job.loaded.start is not None:
            return copy.deepcopy(job.loaded.start).cpu()
        section = None
        if self.layers is not None:
            section = job.recipe.student.model_copy(update={"layers": self.layers})
        model = untrained_student(job, section)
        self.set_student(model)
        return model

    def set_student(self, model: SentenceTransformer) -> None:
        """Give a student its fitted weights."""
        model.load_state_dict({**model.state_dict(), **with_prefix(dict(self.weights), "student.")})

    def needs_another_build(self, job: Job) -> bool:
        """Whether the student that the data was prepared for cannot become the one that training starts from.

        Other layers need another build, and so does a fit below adapters, whose modules have other names.
        """
        return self.layers is not None or (job.recipe.student.lora is not None and self != Start())

    def set_objective(self, objective: Objective) -> None:
        """Give an objective its fitted weights."""
        objective.load_state_dict({**objective.state_dict(), **with_prefix(dict(self.weights), "objective.")})
        if isinstance(objective.head, TaskHead):
            objective.head.fitted = self.head_examples > 0


def check_start(job: Job, student: SentenceTransformer) -> None:
    """DistilvecError if the recipe asks for a start that student, method or teacher cannot have."""
    section = job.recipe.student
    asks_for_ridge = section.start == "ridge"
    key = "student.start" if asks_for_ridge else "student.layers.choose"
    if (asks_for_ridge or section.chooses) and job.required == OutputSpec():
        raise DistilvecError(
            f"{job.recipe.method.name} reads nothing of a teacher, which the start is fitted to.",
            "Leave the key out.",
            key=key,
        )
    if asks_for_ridge and fresh_layer(job, student) is None and not _objective(job).linear_maps():
        raise DistilvecError(
            f"found 'ridge', but neither the student nor {job.recipe.method.name} has a new linear layer to the "
            "teacher's vectors.",
            "Set student.dense=always, or leave the key out.",
            key="student.start",
        )


def find_start(job: Job, data: PreparedData, student: SentenceTransformer) -> tuple[Start, SentenceTransformer]:
    """Return the start of a run, that of its file, else found on its `data` and written; and the student that has it.

    This is the untrained `student` itself, with the fitted weights, where it need not be built another time.
    """
    if not _is_fitted(job):
        return Start(), student
    start = _read_start(job)
    if start is None:
        start, student = _find_start(job, data, student)
        settings = {name: value for name, value in asdict(replace(start, weights={})).items() if name != "weights"}
        metadata = {"fingerprint": job.start_fingerprint, "start": json.dumps(settings)}
        path = job.files.start
        with about(path.name, path):
            write_tensors(path, start.weights, metadata)
        log(f"start: {start.label}")
    elif start.needs_another_build(job):
        student = start.student(job)
    else:
        start.set_student(student)
    return start, student


def read_start(job: Job) -> Start:
    """Return the start of a run that has begun to train."""
    if not _is_fitted(job):
        return Start()
    start = _read_start(job)
    if start is None:
        path = job.files.start
        raise DistilvecError(
            f"{path} is missing: training started from it.", "Put it back, or start over (--restart).", key=path.name
        )
    return start


def _is_fitted(job: Job) -> bool:
    """Whether the recipe asks for a start that is found on the training data."""
    return job.recipe.student.chooses or bool(fitted_parts(job)) or fits_head(job)


def fitted_parts(job: Job) -> tuple[str, ...]:
    """Return the parts whose new linear layers begin from a ridge regression: "student", "objective" or both.

    Layers of the objective only help training. They begin as their papers say unless the recipe asks for 'ridge'.
    The student's layer ships, and at random it would have to be found first, while the backbone unlearns what it knows.
    """
    section = job.recipe.student
    if section.start == "ridge":
        return ("student", "objective")  # in this order: the objective's layers may read the student's
    reads_teacher = job.required != OutputSpec()
    if section.start == "auto" and reads_teacher and has_new_layer(job):
        return ("student",)
    return ()


def check_fitted(job: Job) -> None:
    """DistilvecError if nothing is fitted before the first step of a job without training (train.epochs: 0)."""
    is_fitted = _is_fitted(job) or job.recipe.student.reads_texts or _is_teacher_with_other_tokens(job)
    if job.examples is not None:
        is_fitted = fits_head(job)  # a head that begins at random predicts nothing
    if not job.trains and not is_fitted:
        raise DistilvecError(
            "found 0, and nothing of this student is fitted before its training.",
            "Train it, or take a student that is: of another model than the teacher, or of a size; of a labelled task "
            "with student.head.start=logistic.",
            key="train.epochs",
        )


def _is_teacher_with_other_tokens(job: Job) -> bool:
    """Whether the student has all layers of the teacher: such as one of a size that fewer tokens reach."""
    section = job.recipe.student
    is_whole = section.model == "teacher" and job.student.layers == job.teacher.info.layers
    return is_whole and section.vocabulary is not None


def fits_head(job: Job) -> bool:
    """Whether the head of the labelled task begins from a logistic regression."""
    head = job.recipe.student.head
    if head is None or head.start != "logistic":
        return False
    if job.examples is not None and not job.examples.classes:
        raise DistilvecError(
            "'logistic' is for classes; the task has scores.", "Leave it out.", key="student.head.start"
        )
    return True


def has_new_layer(job: Job) -> bool:
    """Return whether the student is built with a new linear layer into the teacher's space (students/build.py)."""
    if not any_in_teacher_space(job.stages):
        return False
    dense = job.recipe.student.dense
    widths_differ = job.student.hidden_size != job.teacher.info.dim
    return dense == "always" or (dense == "auto" and widths_differ)


def fresh_layer(job: Job, student: SentenceTransformer) -> str | None:
    """Return the name of the student's new linear layer to the teacher's dim; None if it keeps its model's modules."""
    names = [name for name, module in student.named_children() if type(module).__name__ == "Dense"]
    return f"{names[0]}.linear" if names and job.recipe.student.dense not in ("keep", "fold") else None


def _read_start(job: Job) -> Start | None:
    path = job.files.start
    if not path.exists():
        return None
    with about(path.name, path):
        weights, metadata = read_tensors(path, "Put back a copy of it, or start over (--restart).")
    if metadata.get("fingerprint") != job.start_fingerprint:  # of a run that had not begun to train
        return None
    return Start(**json.loads(metadata["start"]), weights=weights)


def _find_start(job: Job, data: PreparedData, student: SentenceTransformer) -> tuple[Start, SentenceTransformer]:
    """Find the start; return the student with it, too."""
    start = _with_chosen_layers(job, data) if job.recipe.student.chooses else Start()
    if start.layers is not None or job.recipe.student.lora is not None:
        student = start.student(job)
    for part in fitted_parts(job):
        start = _with_fitted_layers(start, part, job, data, student)
        start.set_student(student)
    if fits_head(job):
        start = _with_head(start, job, data, student)
    return start, student


def _with_chosen_layers(job: Job, data: PreparedData) -> Start:
    """Choose the layers nearest to the teacher.

    The distance is that of the embeddings if they are in the teacher's space without a new linear layer, else that
    after a ridge regression to the teacher's vectors.
    """
    section = job.recipe.student
    assert isinstance(section.layers, LayersSection)
    whole = untrained_student(job, section.model_copy(update={"layers": None, "intermediate_size": None}))
    own_space = not any_in_teacher_space(job.stages) or fresh_layer(job, whole) is not None
    device = torch.device(pick_device(job.recipe.train.device))
    encoder = Encoder(whole).to(device).eval()
    batches = list(_batches(job, data, OutputSpec(embedding=True), CHOICE_TEXTS, device))
    few_batches = list(_batches(job, data, OutputSpec(embedding=True), GLANCE_TEXTS, device))
    required = OutputSpec(embedding=not own_space, pre_dense=own_space)
    read = partial(_vector_pairs, unit=job.teacher.info.normalized)

    measured = itertools.count(1)
    count = section.layers.count
    asked = number_of_distances(count, encoder.layers, glances=not own_space)
    with torch.no_grad(), progress("choosing layers", asked, "distances") as advance:

        def distance(batches: Sequence[tuple[TextBatch, ModelOutputs]]) -> float:
            outputs = [encoder(batch, required) for batch, _ in batches]
            teacher_vectors = torch.cat([_embedding(teacher) for _, teacher in batches])
            advance(min(next(measured), asked), "")
            if not own_space:
                return mean_distance(torch.cat([_embedding(output) for output in outputs]), teacher_vectors)
            pairs = (read(batch, output, teacher) for (batch, teacher), output in zip(batches, outputs, strict=True))
            return ridge(torch.cat([inputs for inputs, _ in pairs]), teacher_vectors).distance

        # A regression needs all texts: it has as many unknowns as the vectors have numbers
        glance = None if own_space else partial(distance, few_batches)
        layers, distances = best_layers(encoder.backbone, count, partial(distance, batches), glance)
    before = distances[tuple(choose_layers(section.layers, encoder.layers))]
    return Start(layers, len(distances), (before, distances[tuple(layers)]))


def _with_fitted_layers(start: Start, part: str, job: Job, data: PreparedData, student: SentenceTransformer) -> Start:
    """Add the linear layers of a part, "student" or "objective", fitted to the outputs of the start until now, which
    the `student` has.
    """
    objective = _objective(job)
    layer = fresh_layer(job, student)
    owner: nn.Module = student if part == "student" else objective
    maps: Mapping[str, LinearPairs] = objective.linear_maps()
    if part == "student":
        maps = {layer: partial(_vector_pairs, unit=job.teacher.info.normalized)} if layer else {}
    if not maps:
        return start
    device = torch.device(pick_device(job.recipe.train.device))
    encoder = Encoder(student).to(device).eval()
    weights, distances = dict(start.weights), dict(start.ridge_distances)
    for name, (inputs, targets) in _pairs(job, data, encoder, objective, maps).items():
        linear = owner.get_submodule(name).to(device)
        with torch.no_grad():
            before = mean_distance(linear(inputs), targets)
        fit = ridge(inputs, targets)
        weights[f"{part}.{name}.weight"] = fit.weight.float().cpu()
        distances[f"{part}.{name}"] = (before, fit.distance)
    student.cpu()
    return replace(start, weights=weights, ridge_distances=distances)


def _pairs(
    job: Job,
    data: PreparedData,
    encoder: Encoder,
    objective: Objective,
    maps: Mapping[str, LinearPairs],
) -> dict[str, tuple[Tensor, Tensor]]:
    """Return inputs and targets of linear layers on training texts."""
    of_student = replace(objective.student_outputs, second_view=False, attention_layers=())
    of_student |= OutputSpec(pre_dense=True)
    of_teacher = required_outputs(objective, job.examples)
    texts = min(RIDGE_TEXTS[0], len(_trained_rows(job)))
    parts: dict[str, list[tuple[Tensor, Tensor]]] = {name: [] for name in maps}
    with torch.no_grad(), progress("fitting the linear layer", texts, "texts") as advance:
        done = 0
        for batch, teacher in _batches(job, data, of_teacher, RIDGE_TEXTS, encoder.model.device):
            outputs = encoder(batch, of_student)
            for name, read in maps.items():
                parts[name].append(read(batch, outputs, teacher))
            done += len(batch)
            advance(min(done, texts), "")
    pairs = {}
    for name, of_layer in parts.items():
        inputs, targets = zip(*of_layer, strict=True)
        pairs[name] = (torch.cat(inputs)[:MOST_ROWS].float(), torch.cat(targets)[:MOST_ROWS].float())
    return pairs


def _with_head(start: Start, job: Job, data: PreparedData, student: SentenceTransformer) -> Start:
    """Add the head, fitted to the vectors of the start until now, which the `student` has, on labelled examples.

    A new head on weights that it does not fit yet changes them for the worse before it is any good (Kumar et al. 2022).
    """
    assert job.examples is not None
    head = _objective(job).head
    assert isinstance(head, TaskHead)
    device = torch.device(pick_device(job.recipe.train.device))
    encoder, head = Encoder(student).to(device).eval(), head.to(device)
    rows = data.training_data(OutputSpec())
    drawn = np.random.Generator(np.random.PCG64(0)).permutation(job.examples.labeled)[:MOST_ROWS]
    drawn = drawn[np.argsort(rows.lengths[drawn], kind="stable")]
    inputs = []
    with torch.no_grad(), progress("fitting the head", len(drawn), "examples") as advance:
        for first in range(0, len(drawn), BATCH):
            batch = rows.batch(drawn[first : first + BATCH]).to(device)
            vectors = encoder(batch, OutputSpec(vector=True)).vector
            assert vectors is not None
            inputs.append(head.inputs(vectors.float()).cpu())
            advance(min(first + BATCH, len(drawn)), "")
    weight, bias = logistic(torch.cat(inputs).numpy(), job.examples.labels[drawn], len(job.examples.classes))
    student.cpu()
    weights = {"objective.head.linear.weight": torch.from_numpy(weight)}
    weights["objective.head.linear.bias"] = torch.from_numpy(bias)
    return replace(start, weights={**start.weights, **weights}, head_examples=len(drawn))


def _batches(
    job: Job,
    data: PreparedData,
    required: OutputSpec,
    texts: tuple[int, int],
    device: torch.device,
) -> Iterator[tuple[TextBatch, ModelOutputs]]:
    """Yield batches of texts with their teacher outputs; `texts` are drawn at random, and the longest left out."""
    count, most = texts
    rows = _trained_rows(job)
    training_data = replace(data.training_data(required | OutputSpec(embedding=True)), examples=None)
    drawn = np.random.Generator(np.random.PCG64(0)).permutation(rows)[:most]
    drawn = drawn[np.argsort(training_data.tokens.lengths[drawn], kind="stable")][:count]
    for group in np.array_split(drawn, -(-len(drawn) // BATCH)):
        batch = training_data.batch(group).to(device)
        yield batch, training_data.teacher.signals(batch)


def _trained_rows(job: Job) -> np.ndarray:
    """Return the rows of the corpus that training reads."""
    if job.examples is not None:
        return np.unique(job.examples.rows[job.examples.train])
    return job.corpus.train_rows


def _vector_pairs(batch: TextBatch, student: ModelOutputs, teacher: ModelOutputs, unit: bool) -> tuple[Tensor, Tensor]:
    """Inputs and targets of the student's linear layer; `unit`: the teacher's vectors have length 1."""
    assert student.pre_dense is not None
    inputs = F.normalize(student.pre_dense, dim=-1) if unit else student.pre_dense
    return inputs, _embedding(teacher)


def _embedding(outputs: ModelOutputs) -> Tensor:
    assert outputs.embedding is not None
    return outputs.embedding


def _objective(job: Job) -> Objective:
    """Build the objective of the first stage."""
    return make_objective(job.stages[0], job.context)
