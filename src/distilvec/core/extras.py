"""Optional packages, looked for before any work begins."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from pathlib import Path

from distilvec.core.errors import DistilvecError

PACKAGES = {  # of each extra; those of stores of vectors are in teachers/indexes/stores.py
    "report": ("matplotlib",),
    "mteb": ("mteb", "datasets"),
    "onnx": ("onnx", "onnxruntime", "onnxscript"),
    "openvino": ("openvino", "nncf"),
    "datasets": ("datasets",),
    "dataframe": ("pandas",),
    "api": ("tenacity",),
    "serve": ("starlette", "uvicorn", "prometheus_client"),
    "finetune": ("peft",),
    "quantize": ("bitsandbytes",),
    "tensorboard": ("tensorboard",),
    "trackio": ("trackio",),
    "wandb": ("wandb",),
    "ray": ("ray",),
    "s3": ("s3fs",),
    "gs": ("gcsfs",),
    "sentencepiece": ("sentencepiece", "google.protobuf"),
}


def require_extra(extra: str, what: str, packages: Sequence[str] = ()) -> None:
    """DistilvecError with the install command if a package of the extra is missing; `what` ("--to onnx") needs it.

    `packages` are those of an extra that PACKAGES has not.
    """
    missing = missing_packages(packages or PACKAGES[extra])
    if missing:
        names = ", ".join(missing)
        raise DistilvecError(
            f"needs the package{'s' * (len(missing) > 1)} {names}.", f"Install it ({install_command(extra)}).", key=what
        )


def missing_packages(packages: Sequence[str]) -> list[str]:
    """Return the packages that cannot be imported."""
    return [name for name in packages if not _is_there(name)]


def install_command(extra: str) -> str:
    """The pip command for an extra: of the clone that this package runs from, else of the installed distribution."""
    clone = Path(__file__).parents[3]
    if (clone / "pyproject.toml").is_file():
        return f"pip install -e '{clone}[{extra}]'"
    return f"pip install 'distilvec[{extra}]'"


def _is_there(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except (ImportError, ValueError):
        return False
