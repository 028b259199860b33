"""The verb `export`: a model as one file that needs no Python code to run."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated, Optional

import typer

from distilvec.errors import DistilvecError


class Form(StrEnum):
    """What to make of a model."""

    onnx = "onnx"


def export(
    model: Annotated[str, typer.Argument(help="A SentenceTransformer folder or id.")],
    to: Annotated[Form, typer.Option(help="The form: one fp32 file, from token ids to the vector.")] = Form.onnx,
    out: Annotated[Optional[Path], typer.Option(help="The file; onnx/model.onnx in the model's folder by default.")] = None,
) -> None:
    """Write a model as ONNX, checked against PyTorch before it is kept; no code of anyone's is needed to run it."""
    from distilvec.export.onnx import PROBES, OnnxEmbedder, export_onnx, parity, plain_copy
    from distilvec.loading import load
    from distilvec.teachers.local import resolve_model

    if out is None and not Path(model).is_dir():
        raise DistilvecError(f"{model} is no folder; say with --out where to write the {to} file.")
    loaded = load(resolve_model(model), device="cpu")
    path = export_onnx(loaded, out or Path(model) / "onnx" / "model.onnx")
    difference = parity(plain_copy(loaded), OnnxEmbedder(path), PROBES)
    print(f"{path}  {path.stat().st_size / 1e6:.1f} MB, vectors differ from PyTorch's by at most {difference:.1g}")
