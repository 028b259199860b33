"""The command `distilvec export`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from distilvec.cli.options import (
    Model,
    TrustRemoteCode,
    check_input,
    check_model_path,
    option,
)


def export(
    model: Model,
    to: Annotated[
        Literal["onnx", "onnx-fp16", "onnx-int8", "openvino", "openvino-int8", "projected", "router"],
        option("The form (docs/export.md); projected and router need RUN/student."),
    ] = "onnx",
    out: Annotated[
        Path | None, option("The file or folder; by default in MODEL, or RUN/projected, RUN/router.")
    ] = None,
    suite: Annotated[Path | None, option("A suite whose retrieval task compares the file with PyTorch.")] = None,
    force: Annotated[bool, option("Keep a file that differs too much from PyTorch.", "--force")] = False,
    trust_remote_code: TrustRemoteCode = False,
) -> None:
    """Write a model as ONNX or OpenVINO.

    The file runs without Python code, and is compared with PyTorch. If it differs too much, it is refused with the
    numbers.

    With --to projected: write a run's student behind the projection into the teacher's space that its method trained
    (talas, distilcse_ckd), as a model folder.

    With --to router: write a run's student and its teacher as one model folder of sentence-transformers, which sends
    queries to the student and documents to the teacher.
    """
    check_model_path(model, "model")
    check_input(suite, "suite")

    from distilvec.cli.terminal import show_export
    from distilvec.verbs.export.export import export_model

    show_export(export_model(model, to, out, trust_remote_code, suite, force))
