"""The verb `export`: a model as one file that needs no Python code to run."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated, Optional

import typer

from distilvec.cli.model_options import TrustRemoteCode
from distilvec.core.errors import DistilvecError


class Form(StrEnum):
    """What to make of a model."""

    onnx = "onnx"


def export(
    model: Annotated[str, typer.Argument(help="A SentenceTransformer folder or id.")],
    to: Annotated[Form, typer.Option(help="The form: one fp32 file, from token ids to the vector.")] = Form.onnx,
    out: Annotated[Optional[Path], typer.Option(help="The file; onnx/model.onnx in the model's folder by default.")] = None,
    trust_remote_code: TrustRemoteCode = False,
) -> None:
    """Write a model as ONNX, checked against PyTorch before it is kept; no code of anyone's is needed to run it."""
    from distilvec.core.extras import require_extra

    require_extra("onnx", f"--to {to.value}")

    from distilvec.formats.onnx import PROBES, OnnxEmbedder, check_onnx_place, export_onnx, parity, plain_copy
    from distilvec.models.load import load_model
    from distilvec.models.unreadable import check_place

    check_place(model, "model")
    if out is None and not Path(model).is_dir():
        raise DistilvecError(f"[--out] {model} is a hub id, no folder. Say with --out where to write the {to.value} file.")
    place = out or Path(model) / "onnx" / "model.onnx"
    check_onnx_place(place, "--out")
    loaded = load_model(model, "model", trust_remote_code=trust_remote_code)
    path = export_onnx(loaded, place)
    difference = parity(plain_copy(loaded), OnnxEmbedder(path), PROBES)
    print(f"{path}  {path.stat().st_size / 1e6:.1f} MB, vectors differ from PyTorch's by at most {difference:.1g}")
