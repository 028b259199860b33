"""The schema of a recipe: what may stand in one, with types, limits and defaults. Unknown keys are refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

from pydantic import Field, field_validator, model_validator

from distilvec.config.base import (
    CODE,
    LABELS,
    MODEL,
    MOST_BATCH_TOKENS,
    MOST_DRAWS,
    MOST_ROWS,
    MOST_TOKENS,
    MOST_UNITS,
    MOST_VOCABULARY,
    WORKING,
    Name,
    Section,
    Seed,
)
from distilvec.config.sweep import SweepSection
from distilvec.config.training import StageSection, TrainSection

Role = Literal["query", "document"]


class TeacherSection(Section):
    """Where the teacher's vectors come from: a model (`model`) or a table of vectors that exists already (`vectors`)."""

    model: str | None = Field(
        None,
        description="SentenceTransformer folder or hub id, a plain Hugging Face model, or 'all-MiniLM-L6-v2'",
        json_schema_extra=MODEL,
    )
    vectors: Path | None = Field(None, description="Parquet file or folder with columns text, teacher_embedding_final")
    name: str | None = Field(
        None, description="what to call the teacher in reports; the model's id or folder name by default"
    )
    revision: str | None = None
    prompts: dict[Role, str] | None = Field(
        None, description="text put before queries and documents; the model's own by default"
    )
    pooling: Literal["mean", "cls", "lasttoken"] | None = Field(None, description="only for a plain Hugging Face model")
    normalize: bool | None = Field(None, description="only for a plain Hugging Face model")
    max_length: int | None = Field(None, gt=0, le=MOST_TOKENS, description="tokens; the model's own limit by default")
    truncate_dim: int | None = Field(None, gt=0, le=MOST_UNITS, description="keep the first so many dimensions (MRL)")
    dtype: Literal["float32", "bfloat16"] = Field("float32", description="the precision the teacher computes in")
    batch_tokens: int = Field(4096, gt=0, le=MOST_BATCH_TOKENS, description="tokens in one teacher batch")
    attention: Literal["own", "bidirectional"] = Field(
        "own", description="'bidirectional' lifts a decoder's causal mask (LLM2Vec)"
    )
    weight: float = Field(1.0, gt=0, description="beside the weights of more_teachers")
    live: bool = Field(False, description="run the teacher in every step instead of caching it; for corpora seen once")
    trust_remote_code: bool = False

    @model_validator(mode="after")
    def one_origin(self) -> TeacherSection:
        """Refuse none or two of the keys that say where the vectors come from."""
        if (self.model is None) == (self.vectors is None):
            raise ValueError("give exactly one of 'model' and 'vectors'")
        return self


class LoraSection(Section):
    """Low-rank adapters (peft) in place of the backbone's own weights; merged into them when the student is saved."""

    r: int = Field(256, gt=0, le=MOST_UNITS)
    alpha: float = Field(32, gt=0)
    dropout: float = Field(0.1, ge=0, lt=1)
    targets: list[str] | None = Field(None, description="names of the linear layers; all of the backbone's by default")


class ExpertsSection(Section):
    """A mixture of experts on the pooled vector (DistillMoE): feed-forward networks added up by the weights of a gate."""

    count: int = Field(3, gt=0, le=256, description="one for each facet that is distilled, times teachers")
    width: int = Field(1024, gt=0, le=MOST_UNITS, description="of an expert's hidden layer")
    gate_width: int | None = Field(
        None, gt=0, le=MOST_UNITS, description="of the gate's hidden layer; by default the gate is linear"
    )
    dropout: float = Field(0.1, ge=0, lt=1)


class VocabularySection(Section):
    """Another vocabulary than the backbone's own (tokenizer surgery): `tokenizer`, or one chosen on the corpus's texts.

    `trim` keeps what the texts use, or `size` of it; `hybrid` has `share` tokens of the `target` language's own and fills up with what
    other languages use most; `bpe`, `unigram` and `wordpiece` are trained on the texts.
    """

    kind: Literal["trim", "hybrid", "bpe", "unigram", "wordpiece"] = "trim"
    tokenizer: str | None = Field(
        None,
        description="a tokenizer that exists, instead: folder, id, tokenizer.json or SentencePiece .model",
        json_schema_extra=MODEL,
    )
    size: int | None = Field(
        None,
        gt=0,
        le=MOST_VOCABULARY,
        description="tokens in all; left out with 'trim', everything that the texts use is kept",
    )
    letters: Literal["all", "seen"] = Field(
        "all", description="of the old alphabet, keep all letters or those that the texts have"
    )
    target: str | None = Field(None, description="with 'hybrid': the source's language that gets tokens of its own")
    share: int | None = Field(None, gt=0, le=MOST_VOCABULARY, description="with 'hybrid': how many")
    compose: Literal["mean", "weighted", "first", "last"] = Field(
        "mean", description="of the old pieces of a new token's text"
    )
    keep_norm: bool = Field(False, description="bring a composed row to the mean norm of its pieces")

    @model_validator(mode="after")
    def holds_together(self) -> VocabularySection:
        """Refuse keys that do not belong to the kind, and a kind without what it needs."""
        if self.tokenizer is not None and (self.size or self.target or self.share or self.kind != "trim"):
            raise ValueError("'tokenizer' is one that exists; leave out kind, size, target and share")
        if self.kind != "trim" and self.size is None:
            raise ValueError(f"kind '{self.kind}' needs a 'size'")
        if (self.kind == "hybrid") != (self.target is not None and self.share is not None):
            raise ValueError("'target' and 'share' belong to kind 'hybrid', which needs both")
        return self


class StudentSection(Section):
    """The network that is trained and shipped: `model`, cut to `layers`, or a fresh one from `config`."""

    model: str | None = Field(
        None, description="folder or hub id; 'teacher' for the teacher's own backbone", json_schema_extra=MODEL
    )
    config: dict[str, Any] | None = Field(None, description="a fresh backbone: a transformers config with 'model_type'")
    tokenizer: str | None = Field(
        None, description="only with 'config': folder or hub id of the tokenizer", json_schema_extra=MODEL
    )
    revision: str | None = None
    layers: int | list[int] | None = Field(
        None, description="keep these layers (0 is the first); a number keeps that many, evenly spread"
    )
    reinitialize: int | None = Field(
        None, gt=0, description="the last so many of the layers kept start from fresh random weights, by seed"
    )
    pooling: Literal["mean", "cls", "lasttoken"] = "mean"
    max_length: int | None = Field(
        None, gt=0, le=MOST_TOKENS, description="tokens; the smaller of student's and teacher's limit by default"
    )
    dropout: float | None = Field(None, ge=0, lt=1, description="replaces every dropout rate of the backbone")
    dense: Literal["auto", "always", "keep"] = Field(
        "auto",
        description="'auto' adds the linear layer to the teacher's width where the widths differ and the method needs it; "
        "'keep' keeps the pooling and the linear layers that the model has",
    )
    experts: ExpertsSection | None = None
    vocabulary: VocabularySection | None = None
    lora: LoraSection | None = None
    trust_remote_code: bool = False

    @model_validator(mode="after")
    def one_origin(self) -> StudentSection:
        """Refuse none or two of 'model' and 'config'."""
        if (self.model is None) == (self.config is None):
            raise ValueError("give exactly one of 'model' and 'config'")
        if self.config is not None and self.tokenizer is None:
            raise ValueError("a fresh student ('config') needs a 'tokenizer'")
        if self.config is not None and self.dense == "keep":
            raise ValueError(
                "a fresh student ('config') has no linear layers to keep ('dense: keep'); name a 'model' that has them"
            )
        return self


class SourceSection(Section):
    """One source of texts. Exactly one of `path` (file or folder), `dataset` (Hugging Face) and `builtin`."""

    path: Path | None = None
    dataset: str | None = Field(
        None, description="Hugging Face data set id or folder written by save_to_disk", json_schema_extra=MODEL
    )
    builtin: Literal["python-docstrings"] | None = None
    name: Name | None = Field(None, description="short name used in reports; the file's by default")
    role: Role = "document"
    language: str | None = None
    column: str | list[str] | None = Field(
        None, description="column(s) with texts; found by name when left out (text, sentence, query, document, ...)"
    )
    where: dict[str, str | int | list[str | int]] = Field(
        default_factory=dict, description="keep only rows whose columns have these values", json_schema_extra=LABELS
    )
    limit: int | None = Field(None, gt=0, description="keep at most so many distinct texts")
    sample: Literal["random", "first"] = Field(
        "random", description="'first' stops reading at the limit, 'random' draws from the whole source by seed"
    )
    config: str | None = Field(None, description="data set configuration")
    split: str = Field("train", description="data set split")
    revision: str | None = None
    streaming: bool = Field(False, description="stream the data set instead of downloading it")

    @model_validator(mode="after")
    def one_origin(self) -> SourceSection:
        """Refuse none or two of the keys that say where the texts are."""
        if sum(x is not None for x in (self.path, self.dataset, self.builtin)) != 1:
            raise ValueError("give exactly one of 'path', 'dataset' and 'builtin'")
        return self

    @property
    def label(self) -> str:
        """The source's name in reports."""
        origin = self.path.name.split(".")[0] if self.path else self.dataset or self.builtin
        return self.name or str(origin)


class CorpusSection(Section):
    """The training texts: sources mixed, exact duplicates dropped, a part held out by seed."""

    sources: list[SourceSection] = Field(
        min_length=1, max_length=65_535, description="their numbers are kept in 16 bits"
    )
    holdout_batches: int = Field(
        128,
        ge=1,
        description="batches of train.batch_size rows kept out of training to measure the distance to the teacher",
    )
    seed: Seed = 0
    exclude_evaluation: bool | Literal["documents"] = Field(
        True,
        description="drop queries and labelled test texts of the evaluation suite; 'documents' drops those of retrieval as well",
    )


class TaskSection(Section):
    """A labelled task to train and test on: its training rows are the corpus, a head is trained with the student.

    Columns are those of evaluation suites: text, label | sentence1, sentence2, label | sentence1, sentence2, score.
    """

    type: Literal["classification", "pair", "sts"]
    path: Path
    name: Name | None = Field(None, description="short name used in reports; the file's by default")
    train_split: str = "train"
    validation_split: str | None = Field(None, description="by default a tenth of the training rows, by seed")
    test_split: str = "test"
    encode: Literal["joint", "separate"] = Field("joint", description="a pair as one input, or its texts apart")
    limit: int | None = Field(None, gt=0, description="train on at most so many examples, drawn by seed")
    role: Role = "document"
    seed: Seed = Field(0, description="of the limit and of the validation rows")

    @property
    def label(self) -> str:
        """The task's name in reports."""
        return self.name or self.path.name.split(".")[0]


class CacheSection(Section):
    """Where teacher vectors are kept. Without `path` the folder is named by the teacher's fingerprint below `root`."""

    path: Path | None = None
    root: Path | None = Field(None, description="default: $DISTILVEC_CACHE, else ~/.cache/distilvec")
    dtype: Literal["float16", "float32"] = "float16"
    hidden: Literal["int8", "float16"] = Field(
        "int8", description="hidden states of tokens, for methods that learn from them"
    )
    shard_rows: int = Field(
        16384,
        gt=0,
        le=MOST_ROWS,
        description="rows in a shard, 2048 at most with tokens; a killed job loses at most one shard's work",
    )


class MethodSection(Section):
    """The method: a file in methods/ (or a path to one), its options and the weights of its terms."""

    name: str = Field(json_schema_extra=CODE)
    options: dict[str, Any] = Field(default_factory=dict)
    weights: dict[str, float] = Field(
        default_factory=dict, description="replaces the method's own weights, term by term"
    )


Part = Literal["agreement", "compression", "margin", "speed", "projections", "experts", "tokens", "vocabulary"]
PARTS: tuple[Part, ...] = (
    "agreement",
    "compression",
    "margin",
    "speed",
    "projections",
    "experts",
    "tokens",
    "vocabulary",
)
Column = Literal["teacher", "untrained", "student", "asymmetric"]
COLUMNS: tuple[Column, ...] = ("teacher", "untrained", "student", "asymmetric")


class EvaluationSection(Section):
    """What the models are scored on (a suite file or a built-in suite), and what the report holds beside the scores."""

    suite: Path | None = None
    builtin: Literal["python-docstrings"] | None = None
    batch_tokens: int = Field(4096, gt=0, le=MOST_BATCH_TOKENS)
    parts: list[Part] = Field(list(PARTS), description="parts of the report beside the scores")
    columns: list[Column] = Field(
        list(COLUMNS), min_length=1, description="models that are scored, where there are such"
    )
    every_classification: bool = Field(
        False,
        description="score classification also at every width, precision and kept student (a classifier is fitted each time)",
    )
    draws: int = Field(1000, gt=0, le=MOST_DRAWS, description="bootstrap draws behind every confidence interval")
    speed_seconds: float = Field(
        1.0, gt=0, le=3600, description="time for each setting of the speed table; fewer repeats where it is short"
    )


class Recipe(Section):
    """A whole experiment, validated."""

    name: Name
    description: str = ""
    paper: str | None = None
    output: Path = Field(Path("runs"), json_schema_extra=WORKING)
    teacher: TeacherSection
    more_teachers: list[TeacherSection] = Field(
        default_factory=list, description="further teachers to learn from, each with its own cache"
    )
    student: StudentSection
    corpus: CorpusSection | None = None
    task: TaskSection | None = Field(None, description="instead of a corpus: a labelled task")
    cache: CacheSection = CacheSection()
    method: MethodSection
    train: TrainSection = TrainSection()
    stages: list[StageSection] = Field(
        default_factory=list, description="training in several stages, one after another"
    )
    evaluation: EvaluationSection = EvaluationSection()
    sweep: SweepSection | None = Field(None, description="many runs of this recipe, one for each combination")

    @model_validator(mode="after")
    def corpus_or_task(self) -> Recipe:
        """Refuse none or both of 'corpus' and 'task'."""
        if (self.corpus is None) == (self.task is None):
            raise ValueError("give exactly one of 'corpus' (texts) and 'task' (labelled examples)")
        return self

    @field_validator("stages")
    @classmethod
    def stages_hold_together(cls, stages: list[StageSection]) -> list[StageSection]:
        """Refuse a single stage and a name that stands twice (also where upper and lower case are the same to the disk)."""
        if len(stages) == 1:
            raise ValueError("one stage is no stage: give at least two, or set its keys in the recipe itself")
        names = [stage.name.casefold() for stage in stages]
        if again := [stage.name for stage in stages if names.count(stage.name.casefold()) > 1]:
            raise ValueError(f"two stages are called '{again[0]}'; give each a name of its own")
        return stages
