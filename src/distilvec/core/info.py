"""Descriptions of a run's models and task, known before any of them is trained and without one in memory."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

import torch

from distilvec.core.similarity import Similarity
from distilvec.core.task_head import HeadInfo, TaskInfo

Role = Literal["query", "document"]
UNLIMITED = 1_000_000  # tokens: longer than any model's input


@dataclass(frozen=True)
class TeacherInfo:
    """A teacher: its vectors, its input and its layers.

    `dim` is the dimension of its embeddings, `similarity` how they are compared. `prompts` maps roles (query, document)
    to prefixes. Fields from `hidden_size` on are None if the teacher is a table of vectors or an API. `adapters` are
    merged into `model`. `pooling` is that of its tokens ("mean+max" for both, side by side); `attention` is
    "bidirectional" for a decoder whose causal mask is lifted. `notes` list in words what the model states and is not
    used: prompts of other names.
    """

    dim: int
    normalized: bool = True
    max_length: int = UNLIMITED
    prompts: dict[Role, str] = field(default_factory=dict)
    model: str | None = None
    name: str = "teacher"
    revision: str | None = None
    weight: float = 1.0
    logits: bool = False
    hidden_size: int | None = None
    layers: int | None = None
    heads: int | None = None
    tokenizer: str | None = None
    special_tokens: tuple[int, int] | None = None
    pre_dense_dim: int | None = None
    adapters: list[str] | None = None
    similarity: Similarity = "cosine"
    pooling: str | None = None
    attention: str | None = None
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class StudentInfo:
    """A student: its layers, its tokenizer and its embedding.

    `dim` is the dimension of its embeddings; None means the teacher's. `experts` counts those of its mixture; 0: none.
    `tokenizer` is a hash. `special_tokens`: how many begin and how many end every text. `dropout`: False if every rate
    of the backbone is 0. `notes` list in words what the student does not take over from its model.
    """

    hidden_size: int
    layers: int
    dim: int | None = None
    heads: int | None = None
    tokenizer: str | None = None
    special_tokens: tuple[int, int] | None = None
    experts: int = 0
    dropout: bool = True
    notes: tuple[str, ...] = ()
    parameters: int | None = None


@dataclass(frozen=True)
class ObjectiveContext:
    """Everything an objective may know when it is made.

    `teachers` holds at least one; the first is the one the student is compared with. `task` is None for texts without
    labels; `head` describes the head that the task gets. `matmul_dtype` is the precision of large products: bf16 if the
    run trains in bf16, else None. `dims`: first dimensions that the student's vectors may be cut to, in descending
    order; empty for a student that is trained as a whole alone.
    """

    student: StudentInfo
    teachers: tuple[TeacherInfo, ...]
    task: TaskInfo | None = None
    matmul_dtype: torch.dtype | None = None
    head: HeadInfo = field(default_factory=HeadInfo)
    dims: tuple[int, ...] = ()

    @property
    def teacher(self) -> TeacherInfo:
        """The first teacher."""
        return self.teachers[0]

    @property
    def same_tokenizer(self) -> bool:
        """True if student and first teacher split every text into the same tokens."""
        return self.student.tokenizer is not None and self.student.tokenizer == self.teacher.tokenizer

    @property
    def student_dim(self) -> int:
        """The dimension of the student's embedding."""
        return self.student.dim or self.teacher.dim

    @property
    def state_size(self) -> int:
        """The hidden size of the first teacher; of a table of vectors their dimension."""
        return self.teacher.hidden_size or self.teacher.dim
