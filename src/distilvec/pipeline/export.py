"""Export of a model: to a file that needs no Python code of ours, or with the projection that its method trained."""

from __future__ import annotations

from pathlib import Path

from distilvec.core.errors import DistilvecError, nearest
from distilvec.core.extras import require_extra
from distilvec.formats.onnx import PROBES, OnnxEmbedder, check_onnx_place, export_copy, export_onnx, parity
from distilvec.models.load import load_model
from distilvec.models.unreadable import check_place
from distilvec.pipeline.projected import export_projected

FORMS = ("onnx", "projected")


def export_model(
    model: str, to: str = "onnx", out: Path | None = None, trust_remote_code: bool = False
) -> tuple[Path, float]:
    """Write the model as one ONNX file; return its path, and the largest difference from PyTorch's vectors.

    "projected" writes the student of a run behind its trained projection, a model folder; the difference is 0.
    Errors, before the model is loaded: DistilvecError for an unknown form, missing packages, a path that cannot be
    written.
    """
    if to not in FORMS:
        raise DistilvecError(f"[--to] no form '{to}'{nearest(to, FORMS) or '.'} Forms: {', '.join(FORMS)}.")
    if to == "projected":
        return export_projected(Path(model), out), 0.0
    require_extra("onnx", f"--to {to}")
    check_place(model, "model")
    if out is None and not Path(model).is_dir():
        raise DistilvecError(f"[--out] {model} is a hub id, no folder. Give the path of the {to} file with --out.")
    place = out or Path(model) / "onnx" / "model.onnx"
    check_onnx_place(place, "--out")
    loaded = load_model(model, "model", trust_remote_code=trust_remote_code)
    path = export_onnx(loaded, place)
    return path, parity(export_copy(loaded), OnnxEmbedder(path), PROBES)
