"""`exports.json` of a model's folder: parity of its exported files with PyTorch, and the table made of them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from distilvec.core.files import read_json, write_json
from distilvec.core.hashing import hash_files
from distilvec.report.tables import Table, make_table

EXPORTS = "exports.json"
_AGAIN = "Delete it and export again."
_COLUMNS = {
    "Measure": "form", "file": "file", "size, MB": ("megabytes", 1), "ms per text, batch 1": ("latency_ms", 2),
    "times faster than PyTorch": ("times_faster", 2), "mean cosine": ("mean_cosine", 4),
    "lowest cosine": ("min_cosine", 4), "error of similarities": ("similarity_error", 4), "overlap@10": ("overlap", 3),
    "nDCG@10": ("ndcg", 2), "nDCG@10 of PyTorch": ("pytorch_ndcg", 2), "equal labels, %": ("labels", 1, 100.0),
}  # fmt: skip


def read_exports(folder: Path) -> dict[str, dict[str, Any]]:
    """Return parities by form; empty without exports.json, or if the weights are others than those exported.

    Errors: DistilvecError for a file that is damaged or was changed by hand.
    """
    path = folder / EXPORTS
    found = read_json(path, _AGAIN) if path.is_file() else {}
    forms: dict[str, dict[str, Any]] = found.get("forms", {})
    return forms if found.get("weights") == _weights(folder) else {}


def write_exports(folder: Path, forms: Mapping[str, Mapping[str, Any]]) -> None:
    """Write exports.json with the parities by form and a hash of the model's weights."""
    write_json(folder / EXPORTS, {"weights": _weights(folder), "forms": forms}, sealed=True, key=EXPORTS)


def export_table(forms: Mapping[str, Mapping[str, Any]]) -> Table:
    """Return one column per exported form, PyTorch's size and latency first."""
    rows: list[dict[str, Any]] = [
        {"form": form, **row, "times_faster": row["pytorch_latency_ms"] / row["latency_ms"]}
        for form, row in forms.items()
    ]
    if rows:
        last = rows[-1]
        first = {"form": "PyTorch", "megabytes": last["pytorch_megabytes"], "latency_ms": last["pytorch_latency_ms"]}
        rows.insert(0, first)
    return make_table("export-table", "Exported files against PyTorch", rows, _COLUMNS, across=True)


def export_note(forms: Mapping[str, Mapping[str, Any]]) -> str:
    """Return the texts and the machine that the parities were measured with."""
    row = next(iter(forms.values()), None)
    if row is None:
        return ""
    return (
        f"Against PyTorch in fp32: {row['queries']} queries, encoded one by one, and {row['documents']} documents of "
        f"{row['task']}; latency of one text of 16 tokens, median, {row['threads']} "
        f"thread{'s' * (row['threads'] != 1)} of {row['processor']}. int8 and fp16 mean weights; vectors are float32."
    )


def _weights(folder: Path) -> str:
    return hash_files(sorted(folder.rglob("*.safetensors")), folder, EXPORTS)
