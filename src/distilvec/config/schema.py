"""The schema of a recipe: its keys, with types, limits and defaults. Unknown keys are refused."""

from __future__ import annotations

import json
import math
from collections import Counter
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

from pydantic import Field, field_validator, model_validator

from distilvec.config.base import (
    BatchTokens,
    CodeName,
    FolderOrId,
    Grid,
    IndexName,
    Mark,
    Name,
    Rows,
    Section,
    Seed,
    TeacherModelName,
    Tokens,
    Units,
    WorkingPath,
    excerpt,
    key,
    key_text,
    refused,
)  # fmt: skip
from distilvec.config.endpoint import ApiSection, check_endpoint
from distilvec.config.presets import PRESETS, Preset, PresetName, find_preset
from distilvec.config.score_columns import SCORE_COLUMNS, ColumnName
from distilvec.config.student import Pooling, StudentSection
from distilvec.config.training import StageSection, TrainSection
from distilvec.core.addresses import Address
from distilvec.core.model_name import ModelName
from distilvec.core.similarity import Similarity

Role = Literal["query", "document"]
_LOCAL = (  # keys of a model on this machine
    "revision",
    "pooling",
    "normalize",
    "max_length",
    "dtype",
    "attention",
    "adapters",
    "quantize",
    "device_map",
    "live",
    "trust_remote_code",
)
_TABLE = ("texts", "columns", "where", "limit", "repeats", "refresh", "made_by")
# Keys that a kind of teacher does not read. The revision of a table is a label in reports
_UNREAD_BY_TEACHER = {
    "a model on this machine": _TABLE,
    "a model behind teacher.api": (*_LOCAL, *_TABLE),
    "a table of vectors": ("preset", "batch_tokens", *(name for name in _LOCAL if name != "revision")),
}
MOST_RUNS = 1000  # of a sweep
_OF_DATASET = ("config", "split", "revision", "streaming")
# Keys that a kind of source does not read
_UNREAD_BY_SOURCE = {
    "path": _OF_DATASET,
    "url": _OF_DATASET,
    "dataset": (),
    "tokenizer": ("config", "split", "streaming", "column", "where", "origin"),
    "builtin": (*_OF_DATASET, "column", "origin"),
}


def _stem(file: str) -> str:
    """Return the name of a file without its endings, and without the dots of a hidden one."""
    return file.lstrip(".").split(".")[0]


class TeacherSection(Section):
    """Where the teacher's vectors come from: a model, here or behind an API (`model`), or a table (`vectors`)."""

    one_of = ("model", "vectors")
    model: TeacherModelName | None = key(None, "folder, hub id or 'all-MiniLM-L6-v2'; '{task}' becomes the task's name")
    api: ApiSection | None = key(None, "the model is behind an API, under that name: docs/api_teachers.md")
    vectors: IndexName | None = key(None, "table or index of texts and vectors: docs/index_formats.md lists the kinds")
    texts: Path | None = key(None, "the texts of an index without texts: one for each row, or with ids")
    columns: dict[Literal["text", "embedding", "id", "role", "origin"], str] | None = key(
        None, "the index's column names"
    )
    where: Annotated[dict[str, str | int | bool | list[str | int | bool | None] | None], Mark.LABELS] = key(
        {}, "read only index rows whose columns have these values, or a value of a list; null: rows without a value"
    )
    limit: int | None = key(None, "read n rows of the index, drawn by seed 0", gt=0)
    repeats: Literal["first", "drop"] | None = key(
        None, "of rows with the same text and different vectors take the first, or drop them; refused by default"
    )
    refresh: bool = key(False, "read the index again at the start of a run, instead of using its local copy")
    similarity: Similarity | None = key(
        None, "how vectors are compared; by default as the model or index states, else 'cosine'"
    )
    made_by: FolderOrId | None = key(
        None,
        "the model or API (openai:MODEL, http://HOST/v1#MODEL) that made vectors; it embeds texts outside the index",
    )
    name: str | None = key(None, "name in reports; the model's id or folder name by default")
    revision: str | None = key(None, "branch, tag or commit of the hub")
    preset: PresetName | None = key(None, "published settings; by default by the model's id: docs/teachers.md")
    prompts: dict[Role, str] | None = key(None, "put before queries and documents; the preset's or model's by default")
    pooling: Pooling | None = key(None, "only for a plain Hugging Face model")
    normalize: bool | None = key(None, "only for a plain Hugging Face model")
    max_length: Tokens | None = key(None, "tokens; the model's limit by default")
    truncate_dim: Units | None = key(None, "keep the first n dimensions (MRL)")
    dtype: Literal["auto", "float32", "bfloat16"] = key(
        "auto", "the precision in which the teacher computes; 'auto' takes bfloat16 if the hardware has it"
    )
    batch_tokens: BatchTokens | None = key(
        None, "tokens in a teacher batch; by default 4,096, on a GPU 32,768, and fewer if memory is short"
    )
    attention: Literal["own", "bidirectional"] = key("own", "'bidirectional' lifts a decoder's causal mask (LLM2Vec)")
    adapters: list[FolderOrId] | None = key(None, "PEFT adapters, folders or hub ids, merged one after another")
    quantize: Literal["8bit", "4bit"] | None = key(None, "weights in 8 or 4 bits, with bitsandbytes")
    device_map: Literal["auto", "balanced", "sequential"] | dict[str, int | str] | None = key(
        None, "spread the layers over devices: a plan of accelerate, or modules with cpu, disk or a GPU's number"
    )
    weight: float = key(1.0, "relative to the weights of more_teachers", gt=0)
    live: bool = key(False, "run in every step instead of caching; for corpora seen once")
    trust_remote_code: bool = key(False, "run code that comes with the model")

    @property
    def named_model(self) -> ModelName | None:
        """The model as its loader takes it."""
        return None if self.model is None else ModelName(self.model, self.revision, self.trust_remote_code)

    @property
    def local_model(self) -> str | None:
        """The model, if it runs on this machine; None for an API and for a table of vectors."""
        return None if self.api is not None else self.model

    @property
    def known(self) -> Preset | None:
        """The published settings of the model, if there are any."""
        return PRESETS.get(find_preset(self.preset, self.model) or "")

    @property
    def stated_prompts(self) -> dict[Role, str] | None:
        """The recipe's prompts, then the preset's; None if neither has any."""
        preset: Any = {} if self.known is None else self.known.prompts
        return {**preset, **(self.prompts or {})} if preset else self.prompts

    @field_validator("vectors")
    @classmethod
    def check_vectors(cls, vectors: Path | str | None) -> Path | str | None:
        """Refuse settings that may be secrets, and libpq's form host=... password=..., without quoting them."""
        if vectors is None:
            return None
        address = Address.of_index(vectors)
        if address.had_secret:
            raise ValueError("holds a password, which would end up in recipes and logs. Set PGPASSWORD instead")
        if setting := address.unknown_setting():
            raise ValueError(f"the address has {setting}, which is not known. Correct it")
        return vectors

    @field_validator("made_by")
    @classmethod
    def check_maker_address(cls, name: str | None) -> str | None:
        """Refuse an API's address with a password or a query, as in api.base_url."""
        if name is not None and name.partition("://")[0].lower() in ("http", "https"):
            check_endpoint(name.partition("#")[0])
        return name

    @model_validator(mode="after")
    def check_quantize(self) -> TeacherSection:
        """Refuse adapters for a model in 8 or 4 bits, into which they cannot be merged."""
        if self.quantize is not None and self.adapters:
            raise refused("quantize", "adapters cannot be merged into such weights. Merge and save them first")
        return self

    @model_validator(mode="after")
    def check_api(self) -> TeacherSection:
        """Refuse an API without a model, and `api.by_role` without the two prompts that it tells apart."""
        if self.api is None:
            return self
        if self.model is None:
            raise refused("api", "an API computes the vectors of a model. Name it: teacher.model, without vectors")
        prompts = self.stated_prompts or {}
        query, document = prompts.get("query"), prompts.get("document")
        if self.api.by_role is not None and not (query and document and query != document):
            raise refused(
                "prompts",
                "api.by_role tells queries from documents by their prompts. State both as the server prepends them: "
                "the student also reads them",
            )
        return self

    @model_validator(mode="after")
    def check_unread(self) -> TeacherSection:
        """Refuse keys of another kind of teacher."""
        kind = "a model on this machine"
        if self.vectors is not None:
            kind = "a table of vectors"
        elif self.api is not None:
            kind = "a model behind teacher.api"
        self.refuse_unread(_UNREAD_BY_TEACHER[kind], kind)
        return self


class SourceSection(Section):
    """One source of texts. Exactly one of `path` (file or folder), `url`, `dataset` (Hugging Face), `tokenizer`,
    `builtin`.
    """

    one_of = ("path", "url", "dataset", "tokenizer", "builtin")
    text_key = "path"
    path: Path | None = key(None, "text, JSON Lines, CSV or Parquet, or a folder of these")
    url: str | None = key(None, "file or folder behind an address, such as s3://bucket/texts: docs/cluster.md")
    tokenizer: FolderOrId | None = key(None, "every token of a tokenizer as a text: folder or hub id")
    dataset: FolderOrId | None = key(None, "Hugging Face id or folder written by save_to_disk")
    builtin: Literal["python-docstrings", "teacher"] | None = key(None, "'teacher': the texts of teacher.vectors")
    name: Name | None = key(None, "short name used in reports; the file's by default")
    role: Role = key("document", "which of the teacher's prompts the texts get")
    language: str | None = key(None, "for reports and vocabularies")
    column: str | list[str] | None = key(None, "column(s) with texts; found by name when left out")
    where: Annotated[dict[str, str | int | list[str | int | None]], Mark.LABELS] = key(
        {}, "only rows whose columns have these values; null in a list: rows without a value"
    )
    origin: str | None = key(
        None, "column that names the document of a row, for validation by document; found by name when left out"
    )
    limit: int | None = key(None, "keep at most n distinct texts", gt=0)
    sample: Literal["random", "first"] = key("random", "for the limit: drawn by seed, or the first")
    pieces: int | None = key(None, "cut longer texts into parts of at most n characters, at ends of sentences", ge=20)
    config: str | None = key(None, "data set configuration")
    split: str = key("train", "data set split")
    revision: str | None = key(None, "branch, tag or commit of the hub")
    streaming: bool = key(False, "stream the data set instead of downloading it")

    @property
    def label(self) -> str:
        """The source's name in reports."""
        if self.name is not None:
            return self.name
        if self.path is not None:
            return _stem(self.path.name)
        if self.url is not None:
            return _stem(self.url.rstrip("/").rpartition("/")[2])
        origin = self.dataset or self.tokenizer or self.builtin or ""
        is_folder = Path(origin).is_absolute()
        return Path(origin).name if is_folder else origin

    @model_validator(mode="after")
    def check_unread(self) -> SourceSection:
        """Refuse keys of another kind of source, such as `split` of a file, all of whose rows are read."""
        for kind in self.one_of:
            if getattr(self, kind) is not None:
                self.refuse_unread(_UNREAD_BY_SOURCE[kind], f"a source with '{kind}'")
        return self


class CorpusSection(Section):
    """The training texts: sources mixed, exact duplicates dropped, validation rows drawn by seed."""

    sources: list[SourceSection] = Field(
        min_length=1, max_length=65_535, description="numbered in 16 bits; a file is short for {path: file}"
    )
    validation_rows: int | None = key(
        None,
        "texts kept for validation, with all other texts of their documents; by default one text in 20 and 60 "
        "documents (a fifth if there are fewer than 300), at most half of the texts and 4,096",
        ge=1,
    )
    seed: Seed = key(0, "the seed of limits, order and validation rows")
    exclude_evaluation: bool | Literal["documents"] = key(
        True, "leave out the suite's queries and labelled test texts; 'documents': also its documents"
    )
    leave_out: list[Annotated[str, Field(pattern=r"^t[0-9a-f]{32}$")]] = key(
        [], "texts that an API refused; the refusal names each by a t and 32 letters and digits"
    )


class TaskSection(Section):
    """A labelled task to train and test on: its training rows are the corpus, a head is trained with the student.

    Columns are those of evaluation suites: text, label | sentence1, sentence2, label | sentence1, sentence2, score.
    A file with other names needs `columns`, such as {text: utterance, label: intent}. `label: [toxic, insult]` names
    columns of 0 and 1, one for each class of a multilabel task.
    """

    type: Literal["classification", "multilabel", "pair", "sts"] = key(
        ..., "one class of a text, several (label: a list), classes of pairs, or scores of pairs"
    )
    path: Path = key(..., "a file with a column split, or a folder with one file a split")
    name: Name | None = key(None, "short name used in reports; the file's by default")
    columns: dict[Literal["text", "label", "sentence1", "sentence2", "score"], str | list[str]] = key(
        {}, "the file's column names; for a multilabel task label may name several, one a class"
    )
    train_split: str = key("train", "the split that is trained on")
    validation_split: str | None = key(None, "by default a tenth of the training rows, by seed")
    test_split: str = key("test", "the split that is scored at the end")
    encode: Literal["joint", "separate"] = key("joint", "encode a pair as one input, or its texts separately")
    limit: int | None = key(None, "train on at most n examples, drawn by seed", gt=0)
    labels: int | None = key(None, "use n training labels; as many examples without labels join each pass", gt=1)
    role: Role = key("document", "which prompt the texts get")
    seed: Seed = key(0, "the seed of the limit and the validation rows")

    @model_validator(mode="after")
    def check_columns(self) -> TaskSection:
        """Refuse several columns for what has one."""
        for name, column in self.columns.items():
            is_class_each = name == "label" and self.type == "multilabel" and column
            if isinstance(column, list) and not is_class_each:
                raise refused("columns", f"'{name}' has one column; several are for the label of a multilabel task")
        return self

    @property
    def label(self) -> str:
        """The task's name in reports."""
        return self.name or _stem(self.path.name)


class PairsSection(Section):
    """Queries with stored documents that answer them, such as clicks (docs/methods/clicks.md)."""

    text_key = "path"
    path: Path = key(..., "a table with query and id, or with anchor and positive; or a folder with queries and qrels")
    columns: dict[Literal["query", "id", "document", "negative", "count", "position", "time"], str] = key(
        {}, "the file's column names; usual names are found"
    )
    propensity: list[Annotated[float, Field(gt=0, le=1)]] | None = key(
        None, "share of searches in which people look at position 1, 2, ...; clicks count by its inverse", min_length=1
    )
    most: int = key(50, "train on at most n pairs of one document, drawn by seed", gt=0)
    negatives: int = key(
        4, "negatives of each answer: its nearest stored documents, and at most as many stated ones", ge=1, le=100
    )
    seed: Seed = key(0, "of validation queries and of pairs beyond the most")


class CacheSection(Section):
    """Folder and format of teacher vectors. Without `path` the folder is `root`/teachers/TEACHER-FINGERPRINT."""

    path: Path | None = key(None, "this folder alone, for one teacher")
    root: Path | None = key(None, "default: $DISTILVEC_CACHE, else ~/.cache/distilvec")
    remote: str | None = key(None, "address that keeps the teacher caches too, such as s3://bucket/cache")
    dtype: Literal["float16", "float32"] = key("float16", "of stored vectors")
    hidden: Literal["int8", "float16"] | None = key(None, "hidden states of tokens; by default what the method needs")
    pre_dense: bool = key(False, "also vectors before the teacher's first Dense layer, if the method needs none")
    shard_rows: Rows = key(16384, "at most 2048 with tokens; a killed job loses one shard's work")


class MethodSection(Section):
    """The method: a file in methods/ (or a path to one), its options and the weights of its terms."""

    name: CodeName = key(..., "a method's name, or a path to a .py file")
    options: dict[str, Any] = key({}, "of the method; its page lists them")
    weights: dict[str, float] = key({}, "replace the method's own, term by term")


Part = Literal["agreement", "compression", "margin", "speed", "experts", "vocabulary", "texts"]
PARTS: tuple[Part, ...] = get_args(Part)


class MarksSection(Section):
    """From which share of the teacher's average on, in percent, the report marks the student as good or fair."""

    good: float = key(95.0, "where the lower end of the interval is at least this", ge=0)
    fair: float = key(80.0, "where the share is at least this; below it is poor", ge=0)

    @model_validator(mode="after")
    def check_order(self) -> MarksSection:
        """Refuse a fair mark above the good one."""
        if self.fair > self.good:
            raise ValueError(f"fair, {self.fair:g}, is above good, {self.good:g}; give it at most that")
        return self


class EvaluationSection(Section):
    """Data that the models are scored on (a suite file or a built-in suite), and the parts of the report."""

    suite: Path | None = key(None, "a YAML list of tasks")
    builtin: Literal["python-docstrings"] | None = key(None, "search in Python's docstrings")
    stored: int | None = key(None, "n texts of teacher.vectors that are searched in it, and not trained on", gt=0)
    batch_tokens: BatchTokens | None = key(None, "tokens in a batch of texts that are scored; as teacher.batch_tokens")
    parts: list[Part] = key(list(PARTS), "parts of the report in addition to the scores")
    columns: list[ColumnName] = key(
        [name for name, column in SCORE_COLUMNS.items() if column.by_default],
        "models that are scored, if the run has them; docs/report.md says what each is",
        min_length=1,
    )
    every_classification: bool = key(False, "classification at every dimension, precision and saved checkpoint too")
    speed_seconds: float = key(60.0, "time for the whole speed table; it says what it leaves out", gt=0, le=3600)
    speed_batches: list[Annotated[int, Field(gt=0, le=4096)]] = key(
        [1, 8, 32], "batch sizes of the speed table", min_length=1
    )
    marks: MarksSection = MarksSection()

    @model_validator(mode="after")
    def check_suite(self) -> EvaluationSection:
        """Refuse two suites, of which only one would be scored."""
        if self.suite is not None and self.builtin is not None:
            raise refused("suite", f"builtin, {self.builtin}, is a suite as well. Set one of the two to null")
        return self


class SweepSection(Section):
    """Values of keys, variants of the recipe and seeds of training that a sweep varies; its runs are their product."""

    grid: Grid = key({}, "dotted keys with lists of values")
    variants: list[str] | None = key(None, "names of the recipe's variants, in turn; a+b combines two", min_length=1)
    seeds: list[Seed] | None = key(None, "values of train.seed, in turn", min_length=1)

    @property
    def size(self) -> int:
        """The number of runs."""
        return math.prod(max(1, len(values)) for values in (*self.grid.values(), self.variants or (), self.seeds or ()))

    @model_validator(mode="after")
    def check_sweep(self) -> SweepSection:
        """Refuse a sweep that varies nothing, repeats a value, varies train.seed in the grid or has too many runs."""
        if not (self.grid or self.variants or self.seeds):
            raise ValueError("the sweep varies nothing; give at least one of grid, variants and seeds")
        if "train.seed" in self.grid:
            raise ValueError("train.seed is in the grid; list its values under 'seeds'")
        for name, values in (*self.grid.items(), ("variants", self.variants or []), ("seeds", self.seeds or [])):
            counts = Counter(json.dumps(value, default=str) for value in values)
            if again := [text for text, count in counts.items() if count > 1]:
                raise ValueError(f"{key_text(name)} lists {excerpt(json.loads(again[0]))} twice")
        if self.size > MOST_RUNS:
            raise ValueError(f"the sweep has {self.size:,} runs; at most {MOST_RUNS:,} are allowed")
        return self


class Recipe(Section):
    """A whole experiment, validated."""

    one_of = ("corpus", "task")
    name: Name = key(..., "of the run and its folder")
    description: str = key("", "one line, for lists")
    paper: str | None = key(None, "title of the paper")
    output: WorkingPath = key(Path("runs"), "folder of run folders")
    after: Name | None = key(
        None, "the variant that trains student.model: `distilvec run` runs it first where it is missing or unfinished"
    )
    teacher: TeacherSection
    more_teachers: list[TeacherSection] = key([], "further teachers to learn from, each with its own cache")
    student: StudentSection
    corpus: CorpusSection | None = None
    task: TaskSection | None = key(None, "instead of a corpus: a labelled task")
    pairs: PairsSection | None = key(None, "queries and the stored documents that answer them, such as clicks")
    cache: CacheSection = CacheSection()
    method: MethodSection
    train: TrainSection = TrainSection()
    stages: list[StageSection] = key([], "stages of training, one after another")
    evaluation: EvaluationSection = EvaluationSection()
    sweep: SweepSection | None = key(None, "many runs of this recipe, one for each combination")

    @model_validator(mode="before")
    @classmethod
    def name_task(cls, tree: Any) -> Any:
        """Replace `{task}` in the models of teachers by the task's name."""
        task = tree.get("task") if isinstance(tree, dict) else None
        if not isinstance(task, dict):
            return tree
        name = str(task.get("name") or _stem(Path(str(task.get("path"))).name))

        def named(teacher: Any) -> Any:
            model = teacher.get("model") if isinstance(teacher, dict) else None
            return {**teacher, "model": model.replace("{task}", name)} if isinstance(model, str) else teacher

        more = tree.get("more_teachers")
        changes = {"teacher": named(tree["teacher"])} if "teacher" in tree else {}
        return {**tree, **changes, **({"more_teachers": [*map(named, more)]} if isinstance(more, list) else {})}

    @field_validator("stages")
    @classmethod
    def check_stages(cls, stages: list[StageSection]) -> list[StageSection]:
        """Refuse a single stage, and names that differ only in case: they would share a folder on some disks."""
        if len(stages) == 1:
            raise ValueError("a single stage is not allowed: list at least two, or set its keys in the recipe itself")
        names = [stage.name.casefold() for stage in stages]
        if again := [stage.name for stage in stages if names.count(stage.name.casefold()) > 1]:
            raise ValueError(f"two stages are called '{again[0]}'; their names must differ")
        return stages
