"""The record of a run and of its student: everything known about how a student was made.

It is written into the run's folder and next to the student. Every part may be missing: a student of an earlier version
knows less, and a router or a projected student is described by a part of its run's record.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic import FiniteFloat

from distilvec.core.info import UNLIMITED
from distilvec.core.run_folder import RunFolder
from distilvec.core.similarity import Similarity
from distilvec.evaluation.diagnostics import LabelledScores
from distilvec.evaluation.evaluator import Score
from distilvec.evaluation.overlap import Judgement
from distilvec.formats.replace import RECORD
from distilvec.models.parts import is_static, loses_space_unseen, max_length, token_table
from distilvec.report.json_values import read_value, to_json
from distilvec.train.metrics import Metric

RECORD_FORMAT = 3
RUN_AGAIN = "Delete it and run the same recipe again: it is made again, training is kept."


@dataclass(frozen=True)
class ApiRecord:
    """What all runs with this teacher and corpus took of an API; `cost` needs a price in the recipe."""

    host: str = ""
    requests: int | None = None
    retries: int | None = None
    tokens: int | None = None
    written: int | None = None
    cost: float | None = None


@dataclass(frozen=True)
class TeacherRecord:
    """A teacher.

    name: its id or folder
    fingerprint: of its cache
    embeddings: fingerprint of its embeddings alone, the same whichever other outputs a method needs
    weights: hash of the model's files, or of a table's; of an API its model and settings
    parameters: with embeddings
    max_length: in tokens; None where it is not known, as of a table of vectors. So is `pooling`.
    live: it ran in every step
    unread: training took nothing from it but its prompts
    weight: as the recipe gives it, where there are several teachers
    """

    name: str | None = None
    fingerprint: str | None = None
    embeddings: str | None = None
    weights: str | None = None
    width: int | None = None
    prompts: dict[str, str] = field(default_factory=dict)
    normalized: bool | None = None
    similarity: Similarity | None = None
    parameters: int | None = None
    max_length: int | None = None
    pooling: str | None = None
    live: bool | None = None
    unread: bool | None = None
    api: ApiRecord | None = None
    weight: float | None = None


@dataclass(frozen=True)
class StudentRecord:
    """A student. `kept_layers` of `base_model`; `experts`: the settings of its mixture of experts.

    loses_space_unseen: see `loses_space_unseen` (models/parts.py)
    settings: the recipe's student section, with everything that the run has decided
    """

    name: str | None = None
    base_model: str | None = None
    architecture: str | None = None
    layers: int | None = None
    kept_layers: list[int] | None = None
    hidden_width: int | None = None
    width: int | None = None
    pooling: str | None = None
    dense: bool | None = None
    loses_space_unseen: bool | None = None
    normalized: bool | None = None
    max_length: int | None = None
    parameters: int | None = None
    embedding_parameters: int | None = None
    prompts: dict[str, str] = field(default_factory=dict)
    similarity: str | None = None
    experts: dict[str, int | float | None] | None = None
    settings: dict[str, Any] = field(default_factory=dict)

    @property
    def dims(self) -> list[int]:
        """First dimensions that the vectors were trained to be cut to, the largest first; none by default."""
        return list(self.settings.get("dims") or [])


@dataclass(frozen=True)
class CutScore:
    """Average score (times 100) of a student's vectors cut to their first `dim` dimensions, as float32."""

    dim: int
    score: float


@dataclass(frozen=True)
class SpeedRecord:
    """Median milliseconds of one query in PyTorch, how many times as fast as the teacher that is, and where."""

    milliseconds: FiniteFloat
    tokens: int
    times_faster: FiniteFloat | None = None
    processor: str | None = None
    threads: int | None = None


@dataclass(frozen=True)
class SourceRecord:
    """A source of the corpus: the texts that were kept of it, and their role, hence their prompt."""

    name: str
    rows: int | None = None
    role: str | None = None
    language: str | None = None


@dataclass(frozen=True)
class DataRecord:
    """The corpus. Rows of a labelled task are examples."""

    fingerprint: str | None = None
    sources: list[SourceRecord] = field(default_factory=list)
    train_rows: int | None = None
    holdout_rows: int | None = None


@dataclass(frozen=True)
class MethodRecord:
    """The method: its options, the weights of its terms, a BibTeX `citation`.

    `code` is a hash of a method's own file and of the files that it imports; None for one of distilvec's.
    """

    name: str | None = None
    summary: str | None = None
    options: dict[str, Any] = field(default_factory=dict)
    weights: dict[str, float] = field(default_factory=dict)
    citation: str | None = None
    code: str | None = None


@dataclass(frozen=True)
class StageRecord:
    """A stage of the training: its method, the parameters it trained, its cost, and whether its student was dropped."""

    name: str
    method: str
    trained: str
    learning_rate: float
    steps: int
    texts: int
    minutes: float
    dropped: bool = False


@dataclass(frozen=True)
class TrainingRecord:
    """Settings of the last stage, costs of all stages.

    length: what the recipe leaves to the machine: "3 passes of 28,500 texts", "10 minutes"
    shipped: a sentence on a student that training, or its last stage, did not improve, and on stages that were dropped
    linear_layer: how a new linear layer into the teacher's space started, "ridge" or "random"
    fitted: the student is the start of a training (train.epochs: 0)
    """

    steps: int | None = None
    texts: int | None = None
    epochs: int | FiniteFloat | None = None
    length: str | None = None
    batch_size: int | str | None = None
    learning_rate: float | None = None
    final_learning_rate: float | None = None
    schedule: str | None = None
    weight_decay: float | None = None
    optimizer: str | None = None
    update: str | None = None
    start: str | None = None
    precision: str | None = None
    seed: int | None = None
    best_step: int | None = None
    shipped: str | None = None
    minutes: FiniteFloat | None = None
    stages: list[StageRecord] = field(default_factory=list)
    linear_layer: str | None = None
    fitted: bool | None = None

    @property
    def brought_nothing(self) -> bool:
        """Whether the student ships as it was before all training, though there were steps."""
        return self.best_step == 0 and bool(self.steps) and all(stage.dropped for stage in self.stages)

    def settings(self) -> dict[str, Any]:
        """Return the settings and costs that are known, by name; without stages and sentences."""
        values = {name: value for name, value in vars(self).items() if name not in ("stages", "shipped")}
        return {name: value for name, value in values.items() if value is not None}


@dataclass(frozen=True)
class RunRecord:
    """See the top of this file.

    teacher: of several the first, which all scores are compared with
    metrics: numbers on validation texts, by name
    watched: the one of them that validation watches; None in records of earlier versions
    scores: by model (config/score_columns.py), times 100
    teacher_compatible: the vectors were trained into the teacher's space; None: it follows from equal widths
    overlap: the judgement without labels
    hub: base_model (ids), datasets (ids) and license for the metadata of the model card
    terms: the license in words of each model that the student is made of
    documents: in a router, the teacher that embeds documents
    cut_tasks: the tasks that the scores of `cuts` are averages over
    """

    name: str | None = None
    teacher: TeacherRecord | None = None
    more_teachers: list[TeacherRecord] = field(default_factory=list)
    student: StudentRecord | None = None
    data: DataRecord | None = None
    method: MethodRecord | None = None
    training: TrainingRecord | None = None
    metrics: dict[str, FiniteFloat | None] = field(default_factory=dict)
    watched: Metric | None = None
    scores: dict[str, list[Score]] = field(default_factory=dict)
    versions: dict[str, str] = field(default_factory=dict)
    teacher_compatible: bool | None = None
    supervised: LabelledScores | None = None
    overlap: Judgement | None = None
    hub: dict[str, Any] = field(default_factory=dict)
    terms: dict[str, str] = field(default_factory=dict)
    documents: str | None = None
    cuts: list[CutScore] = field(default_factory=list)
    cut_tasks: list[str] = field(default_factory=list)
    speed: SpeedRecord | None = None

    @property
    def teachers(self) -> list[TeacherRecord]:
        """The teachers that the student has learned from: none of a run on labels alone."""
        first = [] if self.teacher is None else [self.teacher]
        return [teacher for teacher in [*first, *self.more_teachers] if not teacher.unread]

    @property
    def in_teacher_space(self) -> bool:
        """Whether the student's vectors are in its teacher's space."""
        if self.teacher_compatible is not None:
            return self.teacher_compatible
        return self.teacher is not None and self.student is not None and self.teacher.width == self.student.width

    def to_json(self) -> dict[str, Any]:
        """Return the content of the file."""
        return {"format": RECORD_FORMAT, **to_json(self)}


def read_run_record(run: RunFolder) -> RunRecord | None:
    """Read the record in a run's folder; None without one."""
    run.check_format()
    return read_value(RunRecord, run.record, RUN_AGAIN) if run.record.exists() else None


def read_student_record(folder: Path) -> RunRecord | None:
    """Read the record in the folder of a saved student, which has checksums of files and no seal; None without one."""
    path = folder / RECORD
    return read_value(RunRecord, path, RUN_AGAIN, sealed=False) if path.exists() else None


def student_record(
    model: Any, name: str | None, base_model: str | None = None, kept_layers: list[int] | None = None
) -> StudentRecord:
    """Describe a student (modules: transformer, pooling, perhaps Experts, Dense, Normalize), or a static one."""
    if is_static(model):
        architecture = type(model[0]).__name__
        layers = 0
        hidden_width = model[0].embedding_dim
        pooling = "mean"
    else:
        backbone = model[0].auto_model
        config = backbone.config.get_text_config()
        architecture = type(backbone).__name__
        layers = config.num_hidden_layers
        hidden_width = config.hidden_size
        pooling = str(model[1].pooling_mode)
    limit = max_length(model)
    kinds = [type(module).__name__ for module in model]
    experts = [module.settings() for module in model if type(module).__name__ == "Experts"]
    return StudentRecord(
        name=name,
        base_model=base_model,
        architecture=architecture,
        layers=layers,
        kept_layers=kept_layers,
        hidden_width=hidden_width,
        width=model.get_embedding_dimension(),
        pooling=pooling,
        dense="Dense" in kinds,
        loses_space_unseen=loses_space_unseen(model) or None,
        normalized="Normalize" in kinds,
        max_length=limit if limit < UNLIMITED else None,
        parameters=sum(weight.numel() for weight in model.parameters()),
        embedding_parameters=sum(weight.numel() for weight in token_table(model).parameters()),
        prompts=dict(model.prompts),
        similarity=str(model.similarity_fn_name),
        experts=experts[0] if experts else None,
    )
