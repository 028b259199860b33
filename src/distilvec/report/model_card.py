"""The record of a student, `distillation.json`, and the model card made from it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, TypedDict

from jinja2 import Environment, Template

from distilvec.core.escape import code_block, code_span, markdown, markdown_cell, quoted
from distilvec.core.info import UNLIMITED
from distilvec.report.card_data import card_data, eval_results
from distilvec.report.exports import export_note, export_table
from distilvec.report.neighbors import compatibility_note
from distilvec.report.scores import score_table, task_table
from distilvec.report.tables import Table, json_text, make_table, to_markdown


class TeacherRecord(TypedDict, total=False):
    """A teacher: `name` is an id or folder, `fingerprint` that of its cache manifest, `parameters` with embeddings.

    `embeddings` is the fingerprint of its embeddings alone: the same whichever other outputs a method needs.
    `max_length` in tokens and `pooling` are left out where they are not known, as of a table of vectors.
    `live` where it ran in every step; `unread` where training took nothing from it but its prompts; `weight` where
    there are several, as the recipe gives it. `api`: host, requests, retries, tokens and cost of all runs with this
    teacher and corpus.
    """

    name: str
    fingerprint: str
    embeddings: str
    width: int
    parameters: int
    prompts: dict[str, str]
    normalized: bool
    similarity: str
    max_length: int
    pooling: str
    live: bool
    unread: bool
    weight: float
    api: dict[str, Any]


class DataRecord(TypedDict, total=False):
    """The corpus. A source has `name`, `rows` kept of it, `role` (hence the prompt) and `language`."""

    fingerprint: str
    sources: list[dict[str, Any]]
    train_rows: int
    holdout_rows: int


class Distillation(TypedDict, total=False):
    """`distillation.json`: everything known about how a student was made. Every part may be missing; all is JSON.

    - `student`: see `describe_student`. Of several teachers `teacher` is the first, which all scores are compared with.
    - `method`: name, summary, options, weights of its terms, BibTeX `citation`.
    - `training`: settings and costs (steps, minutes, device, ...). `metrics`: distances on validation texts.
    - `scores`: by model (`report.scores.MODELS`) a list of {task, type, metric, value}, times 100.
    - `teacher_compatible`: the vectors were trained into the teacher's space; if left out, it follows from equal dims.
    - `supervised`: metrics on a labelled task's test split. `neighbors`: the judgement without labels.
    - `hub`: base_model (ids), datasets (ids) and license for the card's metadata. `documents`: in a router, the teacher
      that embeds documents.
    """

    format: int
    name: str
    teacher: TeacherRecord
    more_teachers: list[TeacherRecord]
    student: dict[str, Any]
    data: DataRecord
    method: dict[str, Any]
    training: dict[str, Any]
    metrics: dict[str, float]
    scores: dict[str, list[dict[str, Any]]]
    versions: dict[str, str]
    teacher_compatible: bool
    supervised: dict[str, Any]
    neighbors: dict[str, Any]
    hub: dict[str, Any]
    documents: str


def describe_student(
    model: Any, name: str, base_model: str | None = None, kept_layers: list[int] | None = None
) -> dict[str, Any]:
    """Return the record of a student (modules: transformer, pooling, perhaps Experts, Dense, Normalize)."""
    backbone, kinds = model[0].auto_model, [type(module).__name__ for module in model]
    config = backbone.config.get_text_config()
    experts: list[dict[str, Any]] = [module.settings() for module in model if type(module).__name__ == "Experts"]
    info = {
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


def shorter_reading(student: int | None, teacher: int | None) -> str:
    """Compare the maximum lengths in tokens of student and teacher; "" unless the student reads less of a text."""
    if student is None or teacher is None or not student < teacher < UNLIMITED:
        return ""
    return f"{student:,} tokens, fewer than the teacher's {teacher:,}"


def loading_call(student: Mapping[str, Any]) -> tuple[str, str]:
    """Return import and function that load a student (its record): sentence-transformers' unless it has experts."""
    if student.get("experts"):
        return "import distilvec", "distilvec.load"
    return "from sentence_transformers import SentenceTransformer", "SentenceTransformer"


@cache
def _template() -> Template:
    """Compile the card's template, once per process."""
    environment = Environment(trim_blocks=True, lstrip_blocks=True, keep_trailing_newline=True)
    environment.filters.update(cell=markdown_cell, md=markdown, code=code_span, block=code_block, quoted=quoted)
    environment.filters.update(count=_count, json=json_text, table=to_markdown)
    return environment.from_string(Path(__file__).with_name("card.md.jinja").read_text(encoding="utf-8"))


def model_card(
    distillation: Distillation | Mapping[str, Any],
    scores: Mapping[str, Sequence[Mapping[str, Any]]] | None = None,
    exports: Mapping[str, Mapping[str, Any]] | None = None,
) -> str:
    """Return the student's README.md: YAML front matter and text; missing parts are left out.

    `scores` replaces the record's own; `exports` are those of exports.json.
    """
    record: dict[str, Any] = dict(distillation)
    columns = dict(record.get("scores") or {} if scores is None else scores)
    parts = ("teacher", "student", "data", "metrics", "training", "method", "versions", "supervised")
    found = {part: dict(record.get(part) or {}) for part in parts}
    if found["teacher"].get("unread"):
        found["teacher"] = {}
    teacher, student = found["teacher"], found["student"]
    return _template().render(
        **found,
        front=front_matter(record),
        name=record.get("name") or student.get("name") or "student",
        teachers=teachers_table([teacher, *(record.get("more_teachers") or [])]),
        loading=loading_call(student),
        documents=record.get("documents"),
        compatibility=compatibility_note(record),
        in_space=record.get("teacher_compatible"),
        prompts={role: text for role, text in (student.get("prompts") or {}).items() if text},
        scores=score_table(columns),
        asymmetric=bool(columns.get("asymmetric")),
        shorter=shorter_reading(student.get("max_length"), teacher.get("max_length")),
        tasks=task_table(found["supervised"]),
        exports=export_table(exports or {}),
        exports_note=export_note(exports or {}),
    )


def read_teachers(record: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Return the teachers that a student has learned from: none of a run on labels alone."""
    teachers = [record.get("teacher") or {}, *(record.get("more_teachers") or ())]
    return [teacher for teacher in teachers if teacher and not teacher.get("unread")]


def front_matter(record: Mapping[str, Any]) -> str:
    """Return the card's metadata as YAML; base models, data, languages and license only if they are known."""
    hub = record.get("hub") or {}
    sources = (record.get("data") or {}).get("sources") or []
    languages = {source["language"] for source in sources if source.get("language")}
    name = record.get("name") or "student"
    return str(card_data(hub, ["knowledge-distillation"], languages, name, eval_results(record)).to_yaml())


def teachers_table(teachers: Sequence[Mapping[str, Any]]) -> Table | None:
    """Return several teachers with their share of the weights; None for a single teacher."""
    whole = sum(teacher.get("weight", 1.0) for teacher in teachers)
    rows = [{**teacher, "share": teacher.get("weight", 1.0) / whole} for teacher in teachers]
    columns = {"teacher": "name", "width": ("width", 0), "parameters": ("parameters", 0), "share": ("share", None)}
    return make_table("teachers", "Teachers", rows, columns) if len(teachers) > 1 else None


def _count(number: int) -> str:
    """12345678 as 12.3M, with the exact number below a thousand."""
    for size, letter in ((1e9, "B"), (1e6, "M"), (1e3, "k")):
        if number >= size:
            return f"{number / size:.1f}{letter}"
    return str(number)
