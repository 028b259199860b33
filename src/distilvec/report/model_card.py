"""What a student is and where it comes from: the record `distillation.json` and the model card made from it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypedDict

import yaml
from jinja2 import Environment

from distilvec.core.escape import code_block, code_span, markdown, markdown_cell, quoted
from distilvec.evaluation.aggregate import average, retention

FORMAT = 1
COLUMNS = ("teacher", "untrained", "student", "asymmetric")
TAGS = ["sentence-transformers", "feature-extraction", "sentence-similarity", "distilvec", "knowledge-distillation"]


class TeacherRecord(TypedDict, total=False):
    """A teacher: `name` is an id or folder, `fingerprint` that of its cache manifest, `parameters` with embeddings.

    `live` where it ran in every step; `weight` where there are several, as the recipe gives it.
    """

    name: str
    fingerprint: str
    width: int
    parameters: int
    prompts: dict[str, str]
    normalized: bool
    live: bool
    weight: float


class StudentRecord(TypedDict, total=False):
    """The student as built (`describe_student`); `base_model` is a hub id, `layers` those kept of it.

    `experts` are the settings of its mixture of experts, left out where it has none.
    """

    name: str
    base_model: str | None
    architecture: str
    layers: int
    kept_layers: list[int] | None
    hidden_width: int
    width: int
    pooling: str
    dense: bool
    normalized: bool
    max_length: int
    parameters: int
    embedding_parameters: int
    experts: dict[str, Any]
    prompts: dict[str, str]
    similarity: str


class SourceRecord(TypedDict, total=False):
    """One source of texts: rows kept of it, the role (hence the prompt) and the language."""

    name: str
    rows: int
    role: str
    language: str | None


class DataRecord(TypedDict, total=False):
    """The corpus: its sources and what was held out of training."""

    fingerprint: str
    sources: list[SourceRecord]
    train_rows: int
    holdout_rows: int


class MethodRecord(TypedDict, total=False):
    """The method's name, options, weights of its terms, what its terms are, and its BibTeX entry."""

    name: str
    summary: str
    options: dict[str, Any]
    weights: dict[str, float]
    citation: str


class ScoreRecord(TypedDict, total=False):
    """A model's figure on one task, times 100; `type` is the kind of task."""

    task: str
    type: str
    metric: str
    value: float


class Distillation(TypedDict, total=False):
    """`distillation.json`: everything known about how a student was made. Every part may be missing; all is JSON.

    `training` holds plain settings and facts (steps, hours, device, ...) printed as they are. `metrics` holds the distance
    to the teacher on held-out texts by name. `scores` maps a column (teacher, untrained, student, asymmetric: student queries
    against teacher documents) to its scores. Of several teachers `teacher` is the first, which all figures are compared with,
    `more_teachers` the others. `teacher_compatible` (vectors lie where the teacher's do) follows from equal widths if it is left out.
    `supervised` holds the figures on a labelled task's test split. `license` is printed only if given.
    """

    format: int
    name: str
    teacher: TeacherRecord
    more_teachers: list[TeacherRecord]
    student: StudentRecord
    data: DataRecord
    method: MethodRecord
    training: dict[str, Any]
    metrics: dict[str, float]
    scores: dict[str, list[ScoreRecord]]
    versions: dict[str, str]
    teacher_compatible: bool
    supervised: dict[str, Any]
    license: str | None


def describe_student(
    model: Any, name: str, base_model: str | None = None, kept_layers: list[int] | None = None
) -> StudentRecord:
    """The facts of a student (a SentenceTransformer of transformer, pooling, and perhaps Experts, Dense and Normalize)."""
    backbone, kinds = model[0].auto_model, [type(module).__name__ for module in model]
    config = backbone.config.get_text_config()
    experts: list[dict[str, Any]] = [module.settings() for module in model if type(module).__name__ == "Experts"]
    info: StudentRecord = {
        "name": name,
        "base_model": base_model,
        "architecture": type(backbone).__name__,
        "layers": config.num_hidden_layers,
        "kept_layers": kept_layers,
        "hidden_width": config.hidden_size,
        "width": model.get_embedding_dimension(),
        "pooling": str(model[1].pooling_mode),
        "dense": "Dense" in kinds,
        "normalized": "Normalize" in kinds,
        "max_length": model.max_seq_length,
        "parameters": sum(weight.numel() for weight in model.parameters()),
        "embedding_parameters": sum(weight.numel() for weight in backbone.get_input_embeddings().parameters()),
        "prompts": dict(model.prompts),
        "similarity": str(model.similarity_fn_name),
    }
    return {**info, "experts": experts[0]} if experts else info


def loading_call(student: Mapping[str, Any]) -> tuple[str, str]:
    """The import and the function that load a student (its record): sentence-transformers' own, unless it has experts."""
    if student.get("experts"):
        return "import distilvec", "distilvec.load"
    return "from sentence_transformers import SentenceTransformer", "SentenceTransformer"


def model_card(
    distillation: Distillation | Mapping[str, Any], scores: Mapping[str, Sequence[Mapping[str, Any]]] | None = None
) -> str:
    """The student's README.md: YAML front matter and text. `scores` replaces the record's own; missing parts are left out."""
    record: dict[str, Any] = dict(distillation)
    columns = dict(record.get("scores") or {} if scores is None else scores)
    teacher, student, data = (dict(record.get(part) or {}) for part in ("teacher", "student", "data"))
    environment = Environment(trim_blocks=True, lstrip_blocks=True, keep_trailing_newline=True)
    environment.filters.update(cell=markdown_cell, md=markdown, code=code_span, block=code_block, quoted=quoted)
    environment.filters.update(count=_count, json=_json, figure=_figure)
    template = environment.from_string(Path(__file__).with_name("card.md.jinja").read_text(encoding="utf-8"))
    return template.render(
        front=yaml.safe_dump(front_matter(record), sort_keys=False, width=1000).strip(),
        name=record.get("name") or student.get("name") or "student",
        teacher=teacher,
        teachers=teachers_table([teacher, *(record.get("more_teachers") or [])]),
        student=student,
        loading=loading_call(student),
        compatible=record.get("teacher_compatible", bool(teacher) and teacher.get("width") == student.get("width")),
        prompts={role: text for role, text in (student.get("prompts") or {}).items() if text},
        table=score_table(columns),
        metrics=record.get("metrics") or {},
        data=data,
        sources=data.get("sources") or [],
        training=record.get("training") or {},
        method=record.get("method") or {},
        versions=record.get("versions") or {},
        supervised=supervised_table(record.get("supervised") or {}),
        labelled=record.get("supervised") or {},
    )


def front_matter(record: Mapping[str, Any]) -> dict[str, Any]:
    """The card's metadata as the hub reads it; base model, languages and licence only where they are known."""
    front: dict[str, Any] = {
        "library_name": "sentence-transformers",
        "pipeline_tag": "sentence-similarity",
        "tags": list(TAGS),
    }
    base = (record.get("student") or {}).get("base_model")
    if base and not Path(base).exists():
        front |= {"base_model": base, "base_model_relation": "finetune"}
    languages = sorted(
        {source["language"] for source in (record.get("data") or {}).get("sources") or [] if source.get("language")}
    )
    if languages:
        front["language"] = languages
    if record.get("license"):
        front["license"] = record["license"]
    return front


def score_table(scores: Mapping[str, Sequence[Mapping[str, Any]]]) -> dict[str, Any]:
    """Scores by column as a table: `columns`, `rows` of (task, metric, values), `average` and `retention` (percent of the teacher).

    A value is None where a column has no score for the task. Averages are over the tasks that every column but
    `asymmetric` has; the asymmetric retention compares the retrieval tasks it has with the teacher's own there.
    """
    columns = [column for column in (*COLUMNS, *(name for name in scores if name not in COLUMNS)) if scores.get(column)]
    values = {
        column: {(score["task"], score["metric"]): float(score["value"]) for score in scores[column]}
        for column in columns
    }
    tasks = list(dict.fromkeys(key for column in columns for key in values[column]))
    shared = [key for key in tasks if all(key in values[column] for column in columns if column != "asymmetric")]
    return {
        "columns": columns,
        "rows": [(task, metric, [values[column].get((task, metric)) for column in columns]) for task, metric in tasks],
        "average": [_mean([values[column].get(key) for key in shared]) for column in columns],
        "retention": [retention(scores[column], scores.get("teacher", ())).get("average") for column in columns],
    }


def teachers_table(teachers: Sequence[Mapping[str, Any]]) -> list[list[str]]:
    """Several teachers as rows of name, width, parameters and weight, the last as a share of 1; [] for a single one."""
    if len(teachers) < 2:
        return []
    whole = sum(teacher.get("weight", 1.0) for teacher in teachers)
    rows = [["teacher", "width", "parameters", "share"]]
    for teacher in teachers:
        parameters = f"{teacher['parameters']:,}" if "parameters" in teacher else ""
        rows.append(
            [
                str(teacher.get("name")),
                str(teacher.get("width", "")),
                parameters,
                f"{teacher.get('weight', 1.0) / whole:.3g}",
            ]
        )
    return rows


def supervised_table(supervised: Mapping[str, Any]) -> list[list[str]]:
    """The figures on a task's test split as rows, models across: the header first; [] without a task."""
    scores: Mapping[str, Mapping[str, float | None]] = supervised.get("scores") or {}
    names = list(dict.fromkeys(name for figures in scores.values() for name in figures))
    rows = [
        [name.replace("_", " "), *(_figure(_times_100(figures.get(name))) for figures in scores.values())]
        for name in names
    ]
    return [["metric", *scores], *rows] if rows else []


def _times_100(value: float | None) -> float | None:
    return None if value is None else 100 * value


def _mean(numbers: Sequence[float | None]) -> float | None:
    known = {str(row): number for row, number in enumerate(numbers) if number is not None}
    return average(known) if known and len(known) == len(numbers) else None


def _figure(number: float | None, digits: int = 2) -> str:
    return "" if number is None else f"{number:.{digits}f}"


def _count(number: int) -> str:
    """12345678 as 12.3M, with the exact number below a thousand."""
    for size, letter in ((1e9, "B"), (1e6, "M"), (1e3, "k")):
        if number >= size:
            return f"{number / size:.1f}{letter}"
    return str(number)


def _json(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
