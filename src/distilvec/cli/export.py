"""The verb `export`: a model as one file that needs no Python code to run."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated, Optional

import typer

from distilvec.cli.model_options import TrustRemoteCode


class Form(StrEnum):
    """What to make of a model."""

    onnx = "onnx"


def export(
    model: Annotated[str, typer.Argument(help="A SentenceTransformer folder or id.")],
    to: Annotated[Form, typer.Option(help="The form: one fp32 file, from token ids to the vector.")] = Form.onnx,
    out: Annotated[
        Optional[Path], typer.Option(help="The file; onnx/model.onnx in the model's folder by default.")
    ] = None,
    trust_remote_code: TrustRemoteCode = False,
) -> None:
    """Write a model as ONNX, checked against PyTorch before it is kept; no code of anyone's is needed to run it."""
    from distilvec.pipeline.export import export_model

    path, difference = export_model(model, to.value, out, trust_remote_code)
    print(f"{path}  {path.stat().st_size / 1e6:.1f} MB, vectors differ from PyTorch's by at most {difference:.1g}")
