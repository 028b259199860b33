"""The report of a run, `report.json`, as values. evaluation/ measures its parts, the sections of the page show them.

Scores are times 100. A part that was not measured, or failed, is None or empty; `measured` names the parts that an
interrupted evaluation does not measure again.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from math import isfinite
from typing import Annotated, Any

from pydantic import AfterValidator, Field

from distilvec.core.escape import visible_tree
from distilvec.core.files import write_json
from distilvec.core.run_folder import RunFolder
from distilvec.evaluation.agreement import TaskRankings
from distilvec.evaluation.compression import CompressionScore
from distilvec.evaluation.diagnostics import ExpertsReport, LabelledScores
from distilvec.evaluation.evaluator import Score
from distilvec.evaluation.margin import Margin
from distilvec.evaluation.mistakes import Mistakes
from distilvec.evaluation.overlap import Judgement
from distilvec.evaluation.significance import ChangeInterval
from distilvec.evaluation.speed import Speed
from distilvec.evaluation.tasks import TaskFailure
from distilvec.evaluation.text_distances import TextDistances
from distilvec.report.json_values import from_json, read_value, to_json
from distilvec.report.record import RUN_AGAIN, RunRecord

REPORT_FORMAT = 7
MetricsLine = dict[str, int | float | str | None]  # of metrics.jsonl: step, epoch, and numbers by name


def _finite(score: Score) -> Score:
    if not isfinite(score.value):
        raise ValueError(f"the value is {score.value}, expected a finite number")
    return score


ModelScores = dict[str, list[Annotated[Score, AfterValidator(_finite)]]]  # by model


Changes = dict[str, ChangeInterval]  # by task and average


# -- texts and vectors -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Compression:
    """Scores with fewer dimensions and bits."""

    rows: list[CompressionScore]
    widths: list[int] = field(default_factory=list)
    precisions: list[str] = field(default_factory=list)


# -- speed -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ExportedForm:
    """A file of `distilvec export` against PyTorch in fp32: see evaluation/parity.py.

    out_of_tolerance: sentences about what is out of tolerance, of a file that was kept with --force
    """

    file: str
    task: str
    queries: int
    documents: int
    mean_cosine: float
    min_cosine: float
    similarity_error: float
    overlap: float
    ndcg: float
    pytorch_ndcg: float
    megabytes: float
    pytorch_megabytes: float
    latency_ms: Annotated[float, Field(gt=0)]
    pytorch_latency_ms: float
    ndcg_low: float | None = None
    ndcg_high: float | None = None
    labels: float | None = None
    processor: str | None = None
    threads: int | None = None
    out_of_tolerance: list[str] = field(default_factory=list)

    @property
    def times_faster(self) -> float:
        """PyTorch's latency over this file's."""
        return self.pytorch_latency_ms / self.latency_ms


# -- vocabularies ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class TokenStatistics:
    """A tokenizer on the texts of a language (vocabulary/compare.py); None where a number is not defined."""

    texts: int
    characters: int
    tokens: int
    words: int | None = None
    fertility: float | None = None
    characters_per_token: float | None = None
    unknown: float | None = None
    byte_tokens: float | None = None
    mean_length: float | None = None
    attention_cost: float | None = None
    cut: float | None = None


@dataclass(frozen=True)
class SavedTokens:
    """Percent that the new tokenizer saves: tokens of whole texts, length of sequences, attention cost."""

    tokens: float | None = None
    length: float | None = None
    attention: float | None = None


@dataclass(frozen=True)
class LanguageTokens:
    """Two tokenizers on the texts of one language or source."""

    before: TokenStatistics
    after: TokenStatistics
    saved: SavedTokens


@dataclass(frozen=True)
class VocabularySize:
    """A vocabulary: its size, and percent of its tokens."""

    size: int
    special: int
    added: int
    initial: float | None = None
    inner: float | None = None
    used: float | None = None
    whole_words: float | None = None


@dataclass(frozen=True)
class ParameterCounts:
    """Parameters of a model, each counted once."""

    vocabulary: int
    embedding: int
    backbone: int
    other: int
    total: int


@dataclass(frozen=True)
class VocabularySide:
    """One of two compared models."""

    vocabulary: VocabularySize
    parameters: ParameterCounts | None = None


@dataclass(frozen=True)
class VocabularyChange:
    """Two tokenizers compared. `names`: how the page calls before and after."""

    before: VocabularySide
    after: VocabularySide
    languages: dict[str, LanguageTokens] = field(default_factory=dict)
    max_length: int | None = None
    notes: list[str] = field(default_factory=list)
    names: dict[str, str] = field(default_factory=lambda: {"before": "before", "after": "after"})


# -- the report ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Marks:
    """From which value a number is good (the lower end of its interval), and from which it is fair.

    Defaults: those of `evaluation.marks`, in percent of the teacher's average.
    """

    good: float = 95.0
    fair: float = 80.0

    def grade(self, value: float, low: float) -> str:
        """Return the mark of a number: good by the lower end of its interval, fair by the number itself."""
        if low >= self.good:
            return "good"
        return "fair" if value >= self.fair else "poor"


@dataclass(repr=False)
class Verdict:
    """The verdict in one sentence, and its numbers; None where a number is not known.

    task_score, task_metric, task: the student on a labelled task, times 100; teacher_score: the teacher
    overlap_among, overlap_alone: the shares of the teacher's ten nearest neighbours that the student finds among the
        teacher's vectors, in a common space, and among its own
    of_index: the ten nearest are those of an index, and what its owner looks for first
    task_score_interval, retention_interval, ...: of the numbers of these names, at 95%
    retention, asymmetric_retention: percent of the teacher's average, over the tasks that both were scored on
    retrieval, asymmetric_retrieval: the same over the retrieval tasks, if there are others as well
    task_count: their number; coverage: " on 1 of 3 tasks" where they are fewer than were scored for some model
    worst_task, worst_change: the lowest retention, as a change in percent
    times_faster, documents_times_faster: the teacher's time over the student's, for queries and for documents
    times_smaller: the teacher's parameters over the student's, unless they are about as many
    megabytes: the student's weights in float32
    vocabulary_tokens, vocabulary_tokens_before: of the student, and of its teacher, if they differ
    teacher_requests, teacher_tokens, teacher_cost: what teachers behind an API took; without a price no cost
    reason: of an index whether the student fits or why not, and "brought nothing" (report/advice.py)
    within_interval: the confidence interval of the difference of averages contains 0
    """

    text: str = ""
    task_score: float | None = None
    task_score_interval: tuple[float, float] | None = None
    teacher_score: float | None = None
    task_metric: str | None = None
    task: str | None = None
    overlap_among: float | None = None
    overlap_among_interval: tuple[float, float] | None = None
    overlap_alone: float | None = None
    overlap_alone_interval: tuple[float, float] | None = None
    of_index: bool = False
    retention_interval: tuple[float, float] | None = None
    retention: float | None = None
    asymmetric_retention: float | None = None
    retrieval: float | None = None
    asymmetric_retrieval: float | None = None
    times_faster: float | None = None
    documents_times_faster: float | None = None
    times_smaller: float | None = None
    megabytes: float | None = None
    vocabulary_tokens: float | None = None
    vocabulary_tokens_before: float | None = None
    teacher_requests: float | None = None
    teacher_tokens: float | None = None
    teacher_cost: float | None = None
    worst_task: str | None = None
    worst_change: float | None = None
    within_interval: bool | None = None
    task_count: int = 0
    coverage: str = ""
    advice: list[str] = field(default_factory=list)
    reason: str | None = None

    def __repr__(self) -> str:
        return "\n".join([self.text, *self.advice])


@dataclass
class Report:
    """report.json.

    fingerprint: of the student and all that its scores depend on
    intervals: changes of each model against the teacher, by model
    changes: what training changed, and what the teacher's documents change (evaluation/columns.py)
    agreement: by retrieval task
    marks: evaluation.marks of the recipe
    history: lines of metrics.jsonl, thinned
    exports: by form
    folder: where the run is now; it may move, so that it is not stored
    """

    name: str | None = None
    fingerprint: str | None = None
    created: str | None = None
    measured: list[str] = field(default_factory=list)
    failures: list[TaskFailure] = field(default_factory=list)
    overlap: Judgement | None = None
    scores: ModelScores = field(default_factory=dict)
    averages: dict[str, dict[str, float]] = field(default_factory=dict)
    intervals: dict[str, Changes] = field(default_factory=dict)
    changes: dict[str, Changes] = field(default_factory=dict)
    supervised: LabelledScores | None = None
    mistakes: Mistakes | None = None
    agreement: dict[str, TaskRankings] = field(default_factory=dict)
    compression: Compression | None = None
    margin: Margin | None = None
    speed: Speed | None = None
    experts: ExpertsReport | None = None
    vocabulary: VocabularyChange | None = None
    texts: TextDistances | None = None
    verdict: Verdict | None = None
    marks: Marks = field(default_factory=Marks)
    history: list[MetricsLine] = field(default_factory=list)
    warnings: list[MetricsLine] = field(default_factory=list)
    exports: dict[str, ExportedForm] = field(default_factory=dict)
    record: RunRecord | None = None
    recipe: str = ""
    folder: str = "."

    def to_json(self) -> dict[str, Any]:
        """Return the content of report.json."""
        content = to_json(self, defaults=True)
        content.pop("folder")
        if self.record is not None:
            content["record"] = self.record.to_json()
        return {"format": REPORT_FORMAT, **content}

    def write(self, run: RunFolder) -> None:
        """Write report.json into the run's folder."""
        write_json(run.report, self.to_json(), sealed=True)

    def visible(self) -> Report:
        """Return the report with hidden characters of all texts written out, for pages and pictures."""
        return from_json(Report, visible_tree(to_json(self)))


def read_report(run: RunFolder) -> Report | None:
    """Read the report in a run's folder; None without one."""
    run.check_format()
    if not run.report.exists():
        return None
    return replace(read_value(Report, run.report, RUN_AGAIN), folder=str(run.path))
