"""`exports.json` of a model's folder: parity of its exported files with PyTorch, and the table made of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from distilvec.core.files import write_json
from distilvec.report.json_values import read_value, to_json
from distilvec.report.tables import Table, make_table
from distilvec.report.values import ExportedForm
from distilvec.teachers.cache.manifest import hash_folder

EXPORTS = "exports.json"
_AGAIN = "Delete it and export again."
_COLUMNS = {
    "Measure": "form", "file": "parity.file", "vectors": "tolerance", "size, MB": ("megabytes", 1),
    "ms per text, batch 1": ("latency_ms", 2), "times faster": ("parity.times_faster", 2),
    "mean cosine": ("parity.mean_cosine", 4), "lowest cosine": ("parity.min_cosine", 4),
    "error of similarities": ("parity.similarity_error", 4), "overlap@10": ("parity.overlap", 3),
    "nDCG@10": ("parity.ndcg", 2), "nDCG@10 of PyTorch": ("parity.pytorch_ndcg", 2),
    "equal labels, %": ("parity.labels", 1, 100.0),
}  # fmt: skip


@dataclass(frozen=True)
class ExportsFile:
    """exports.json: the exported files by form, and a hash of the model that was exported: its settings count, too."""

    weights: str | None = None
    forms: dict[str, ExportedForm] = field(default_factory=dict)


@dataclass(frozen=True)
class _ExportColumn:
    """A column of the table: PyTorch itself, or an exported form."""

    form: str
    megabytes: float
    latency_ms: float
    parity: ExportedForm | None = None
    tolerance: str = ""


def read_exports(folder: Path) -> dict[str, ExportedForm]:
    """Return exported files by form; empty without exports.json, or if the model is another than the one exported."""
    path = folder / EXPORTS
    if not path.is_file():
        return {}
    exports = read_value(ExportsFile, path, _AGAIN)
    return exports.forms if exports.weights == hash_folder(folder) else {}


def write_exports(folder: Path, forms: dict[str, ExportedForm]) -> None:
    """Write exports.json with the exported files by form and a hash of the model's weights."""
    content = to_json(ExportsFile(hash_folder(folder), forms))
    write_json(folder / EXPORTS, content, sealed=True)


def export_table(forms: Mapping[str, ExportedForm]) -> Table:
    """Return one column per exported form, PyTorch's size and latency first.

    A row says which forms are out of tolerance, where some are.
    """
    is_some_out = any(row.out_of_tolerance for row in forms.values())
    columns = []
    for form, row in forms.items():
        tolerance = ""
        if is_some_out:
            tolerance = "out of tolerance" if row.out_of_tolerance else "within tolerance"
        columns.append(_ExportColumn(form, row.megabytes, row.latency_ms, row, tolerance))
    if columns:
        last = list(forms.values())[-1]
        columns.insert(0, _ExportColumn("PyTorch", last.pytorch_megabytes, last.pytorch_latency_ms))
    return make_table("export-table", "Exported files against PyTorch", columns, _COLUMNS, across=True)


def export_note(forms: Mapping[str, ExportedForm]) -> str:
    """Return the texts and the machine that the parities were measured with, and what is out of tolerance."""
    if not forms:
        return ""
    # Forms may be made one after another, on other tasks and machines
    alike: dict[str, list[str]] = {}
    for form, row in forms.items():
        threads = "1 thread" if row.threads == 1 else f"{row.threads} threads"
        measured = (
            f"{row.queries} queries, encoded one by one, and {row.documents} documents of {row.task}; latency of one "
            f"text of 16 tokens, median, {threads} of {row.processor}."
        )
        alike.setdefault(measured, []).append(form)
    if len(alike) == 1:
        sentences = [f"Against PyTorch in fp32: {next(iter(alike))}"]
    else:
        sentences = [f"{', '.join(names)} against PyTorch in fp32: {measured}" for measured, names in alike.items()]
        sentences.append(f"PyTorch's latency is that beside {list(forms)[-1]}.")
    sentences.append("int8 and fp16 mean weights; vectors are float32.")
    for form, row in forms.items():
        if row.out_of_tolerance:
            problems = "; ".join(row.out_of_tolerance)
            sentences.append(f"{form} is out of tolerance, and was kept with --force: {problems}.")
    return " ".join(sentences)
