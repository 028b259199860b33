"""The data of a job, ready for training: tokens, alignment, and teachers that give their outputs for a batch."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from distilvec.alignment.store import AlignmentStore
from distilvec.core.objective import Objective
from distilvec.core.outputs import OutputSpec
from distilvec.data.tokens import TokenStore
from distilvec.pipeline.job import Job, Teacher
from distilvec.pipeline.objectives import required_outputs
from distilvec.students.encoder import Encoder
from distilvec.teachers.cache.store import TeacherCache
from distilvec.teachers.cached import CachedTeacher, LiveTeacher, NoTeacher, SeveralTeachers
from distilvec.teachers.embedder import BatchTeacher
from distilvec.teachers.model_embedder import ModelEmbedder
from distilvec.train.dataset import TrainingData


@dataclass(frozen=True)
class ReadyTeacher:
    """A teacher that can give outputs: from its `cache`, or from `model` and its own `tokens` of every row.

    `encoder` wraps the model if it is sharded.
    """

    teacher: Teacher
    cache: TeacherCache | None = None
    model: ModelEmbedder | None = None
    tokens: TokenStore | None = None
    encoder: Encoder | None = None

    def signals_for(self, required: OutputSpec) -> BatchTeacher:
        """Return an object that gives these outputs for a batch."""
        if required == OutputSpec():
            return NoTeacher()
        if self.model is not None:
            assert self.tokens is not None
            return LiveTeacher(self.model, self.tokens, required, self.teacher.head, self.encoder)
        assert self.cache is not None
        return CachedTeacher(self.cache, self.teacher.corpus.keys, required, self.teacher.head)


@dataclass(frozen=True)
class PreparedData:
    """Tokens of the corpus, their alignment with the teacher's, and every teacher, ready for training."""

    job: Job
    tokens: TokenStore
    alignment: AlignmentStore | None
    teachers: tuple[ReadyTeacher, ...]
    query_tokens: TokenStore | None = None  # of the job's pairs

    def training_data(self, required: OutputSpec) -> TrainingData:
        """Return rows of the corpus, or examples of the task, with their tokens and these outputs of every teacher."""
        teachers = [teacher.signals_for(required) for teacher in self.teachers]
        return training_data(self.job, self.tokens, self.alignment, teachers, required)

    def data_of(self, objective: Objective) -> TrainingData:
        """Return what a stage with this objective trains on: `training_data`, with pairs where it reads them."""
        data = self.training_data(required_outputs(objective, self.job.examples))
        return with_pairs(self.job, objective, data, self.query_tokens)


def with_pairs(job: Job, objective: Objective, data: TrainingData, query_tokens: TokenStore | None) -> TrainingData:
    """Return the data with the job's pairs, if the objective reads them."""
    if not objective.reads_pairs:
        return data

    from distilvec.train.pairs import PairedData

    assert job.pairs is not None and query_tokens is not None
    return PairedData.of(data, job.pairs, query_tokens)


def training_data(
    job: Job, tokens: TokenStore, alignment: AlignmentStore | None, teachers: list[BatchTeacher], required: OutputSpec
) -> TrainingData:
    """Combine tokens, alignment and teachers; several teachers become one.

    Examples without a label are left out if nothing is required of a teacher.
    """
    train, validation, unlabeled = job.corpus.train_rows, job.corpus.holdout_rows, None
    if job.examples is not None:
        train, validation = job.examples.labeled, job.examples.holdout
        if len(train) < len(job.examples.train) and required != OutputSpec():
            unlabeled = np.setdiff1d(job.examples.train, train)
    first, *others = teachers
    teacher = SeveralTeachers(first, others) if others else first
    similarity = job.teacher.info.similarity
    return TrainingData(job.corpus, tokens, teacher, train, validation, alignment, job.examples, unlabeled, similarity)
