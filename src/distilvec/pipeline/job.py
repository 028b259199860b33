"""A job: everything that is decided before expensive work."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sentence_transformers import SentenceTransformer

from distilvec.config.recipe import fingerprint
from distilvec.config.schema import Recipe, Role, TeacherSection
from distilvec.core.artifacts import ArtifactStore
from distilvec.core.errors import DistilvecError, about
from distilvec.core.info import UNLIMITED, ObjectiveContext, StudentInfo, TeacherInfo
from distilvec.core.outputs import OutputSpec
from distilvec.core.registry import method_class
from distilvec.core.run_folder import RunFolder
from distilvec.core.task_head import TaskHead
from distilvec.data.corpus import Corpus
from distilvec.data.examples import Examples
from distilvec.evaluation.tasks import Task
from distilvec.pipeline.texts import StudentVocabulary
from distilvec.remote.meter import read_counts
from distilvec.report.record import ApiRecord, TeacherRecord
from distilvec.teachers.cache.manifest import Manifest
from distilvec.teachers.model_embedder import ModelEmbedder
from distilvec.teachers.open import OpenTeacher, open_teacher
from distilvec.train.stages import Stage

if TYPE_CHECKING:
    from distilvec.data.pairs import StoredPairs


@dataclass(frozen=True)
class TeacherDescription:
    """A teacher's info, the manifest of its embeddings (stored as float16), and its number of parameters."""

    info: TeacherInfo
    manifest: Manifest
    parameters: int | None


@dataclass
class LoadedModels:
    """Models in memory; None for those that have to be loaded or built.

    teacher: loaded for its description, and not used yet; `section` is the recipe's, with its precision.
    untrained: the student, built for its description, and not used yet; its weights are mapped (models/weights.py).
    start: a copy of the student from before its training, mapped as well, and then on any device.
    student: the best student, loaded from the run folder, on any device.
    """

    teacher: ModelEmbedder | None = None
    section: TeacherSection | None = None
    untrained: SentenceTransformer | None = None
    start: SentenceTransformer | None = None
    student: SentenceTransformer | None = None

    def take_teacher(self, section: TeacherSection) -> ModelEmbedder | None:
        """Return the teacher of this section if it is loaded; the caller frees its memory."""
        teacher, self.teacher = self.teacher, None
        if teacher is None or self.section == section:
            return teacher
        with teacher:  # another precision was chosen, as its cache was begun
            return None

    def take_untrained(self) -> SentenceTransformer | None:
        """Return the untrained student if it is built; the caller may change it."""
        student, self.untrained = self.untrained, None
        return student

    def release_untaken(self) -> None:
        """Free the models that were loaded for a description and that nobody needs."""
        self.untrained = None
        if self.teacher is not None:
            with self.teacher:
                self.teacher = None


TRAINING_FORMAT = 6  # raised when the same recipe and data would train other weights: earlier runs are not continued
# Keys of `train` that change no weight
UNTRACKED = (
    "logging_steps",
    "gradient_steps",
    "checkpoint_minutes",
    "checkpoint_steps",
    "keep_checkpoint",
    "trackers",
    "shard",
)


@dataclass(frozen=True)
class Teacher:
    """One teacher of a job, described.

    `key` is its section in the recipe: teacher, or more_teachers.0 and so on. `embeddings` is the manifest of its
    embeddings alone, `manifest` that of all required outputs. `live`: it runs in every step, without a cache. `corpus`
    has its prompts. `head`: that of the recipe's task, if the teacher was fine-tuned for it. `counts` is the file with
    the requests and tokens of an API. `loaded` is the job's.
    """

    key: str
    section: TeacherSection
    info: TeacherInfo
    embeddings: Manifest
    manifest: Manifest
    corpus: Corpus
    parameters: int | None = None
    live: bool = False
    head: TaskHead | None = None
    counts: Path | None = None
    loaded: LoadedModels = field(default_factory=LoadedModels, compare=False, repr=False)

    def load(self, device: str, sharded: bool = False) -> OpenTeacher:
        """Load the model or open the table; a context manager that frees the memory at its end.

        `sharded`: the model stays on the CPU until it is sharded.
        """
        described = self.loaded.take_teacher(self.section)
        if described is not None and not sharded:
            return described
        with about(self.key):
            teacher = open_teacher(self.section, device, self.counts, sharded)
            if self.section.api is None and teacher.manifest().weights != self.embeddings.weights:
                name = "model" if self.section.vectors is None else "vectors"
                problem = f"{self.info.name} was changed after this command had read it."
                raise DistilvecError(problem, "Run the command again when nothing writes to it.", key=f".{name}")
            return teacher

    def record(self, several: bool, unread: bool = False) -> TeacherRecord:
        """Return its part of the run's record; with its weight if there are several teachers."""
        api = None
        if self.section.api is not None:
            spent = read_counts(self.counts)
            price = self.section.api.price
            cost = round(spent["tokens"] * price / 1e6, 6) if price is not None and spent else None
            api = ApiRecord(self.section.api.host, cost=cost, **spent)
        return TeacherRecord(
            name=self.info.name,
            fingerprint=self.manifest.fingerprint,
            embeddings=self.embeddings.fingerprint,
            weights=self.embeddings.weights,
            width=self.info.dim,
            prompts={role: prompt for role, prompt in self.info.prompts.items() if prompt},
            normalized=self.info.normalized,
            similarity=self.info.similarity,
            parameters=self.parameters,
            max_length=None if self.info.max_length >= UNLIMITED else self.info.max_length,
            pooling=self.info.pooling,
            live=self.live or None,
            unread=unread or None,
            api=api,
            weight=self.section.weight if several else None,
        )


@dataclass(frozen=True)
class Job:
    """A recipe, resolved: teachers, texts, student, stages and the outputs that the stages require of every teacher.

    `recipe` has the indexes of teachers as local tables, `stated_recipe` as they were named: the run folder keeps it.
    `student` describes the untrained student, `student_length` is its maximum input in tokens. `vocabulary` is that of
    `student.vocabulary`, None if the backbone keeps its own. Without labels `examples` is None; without queries and
    their answers `pairs` is. `loaded` holds the models that are in memory already. `student_content` hashes the files
    that the untrained student is made from.
    """

    recipe: Recipe
    stated_recipe: Recipe
    folder: Path
    store: ArtifactStore
    stages: tuple[Stage, ...]
    tasks: tuple[Task, ...]
    examples: Examples | None
    pairs: StoredPairs | None
    corpus: Corpus
    vocabulary: StudentVocabulary | None
    student: StudentInfo
    student_length: int
    teachers: tuple[Teacher, ...]
    context: ObjectiveContext
    required: OutputSpec
    student_content: str
    loaded: LoadedModels = field(default_factory=LoadedModels, compare=False, repr=False)

    @property
    def files(self) -> RunFolder:
        """The paths of the run folder."""
        return RunFolder(self.folder)

    @property
    def teacher(self) -> Teacher:
        """Return the first teacher, which the student is compared with."""
        return self.teachers[0]

    @property
    def in_teacher_space(self) -> bool:
        """Whether the trained student's vectors share a space with the teacher's: the last stage decides."""
        return method_class(self.stages[-1].recipe.method.name).in_teacher_space

    @property
    def student_prompts(self) -> dict[Role, str]:
        """What the student is given before texts, by role: the teacher's prompts, none where one is built in."""
        if self.recipe.student.built_in_prompt is not None:
            return {"query": "", "document": ""}
        return dict(self.teacher.info.prompts)

    @property
    def trains(self) -> bool:
        """Whether any stage has a step: not with train.epochs=0, whose student is the start of a training."""
        return any(stage.recipe.train.epochs != 0 for stage in self.stages)

    @cached_property
    def fingerprint(self) -> str:
        """Return 16 hexadecimal digits that change when anything that changes the trained weights does."""
        return self._fingerprint_of(self.stages)

    @cached_property
    def start_fingerprint(self) -> str:
        """Return the fingerprint of the same job without any step, whose run a training may go on from."""
        untrained = {"epochs": 0, "minutes": None, "max_steps": None}
        stages = []
        for stage in self.stages:
            train = stage.recipe.train.model_copy(update=untrained)
            stages.append(replace(stage, recipe=stage.recipe.model_copy(update={"train": train}), automatic=None))
        return self._fingerprint_of(tuple(stages))

    def _fingerprint_of(self, stages: tuple[Stage, ...]) -> str:
        vectors = [teacher.manifest.fingerprint + (" live" if teacher.live else "") for teacher in self.teachers]
        if len(vectors) > 1:
            weights = [teacher.section.weight for teacher in self.teachers]
            vectors = [f"{name} {weight}" for name, weight in zip(vectors, weights, strict=True)]
        corpus = self.corpus.fingerprint
        if self.pairs is not None:
            corpus += f" {self.pairs.fingerprint}"
        return training_fingerprint(self.recipe, stages, "+".join(vectors), corpus, self.student_content)


def training_fingerprint(recipe: Recipe, stages: tuple[Stage, ...], vectors: str, corpus: str, student: str) -> str:
    """Return the fingerprint of a training; `vectors`, `corpus` and `student` are those of what it reads.

    Methods of the package count by TRAINING_FORMAT, a method file by its content.
    """
    parts: list[Any] = [TRAINING_FORMAT, vectors, corpus, student, recipe.student.model_dump(mode="json")]
    parts.append(recipe.train.seed)  # from which the student is drawn; a stage may have another seed
    for stage in stages:
        parts.append(stage.name)
        parts.append(stage.recipe.method.model_dump(mode="json"))
        parts.append(stage.code)
        parts.append(stage.recipe.train.model_dump(mode="json", exclude=set(UNTRACKED)))
        parts.append(stage.automatic is not None)  # such a training may end early
    return fingerprint(*parts)


TEXTS = "texts"
TEACHER = "teacher"
START = "start"
TRAINING = "training"
EVALUATION = "evaluation"


def run_phases(job: Job, is_trained: bool) -> list[str]:
    """Return the phases of a run in order; only the evaluation is left of one that `is_trained`."""
    if is_trained:
        return [EVALUATION]
    if job.required == OutputSpec():  # on labels alone
        return [TEXTS, START, TRAINING, EVALUATION]
    return [TEXTS, TEACHER, START, TRAINING, EVALUATION]
