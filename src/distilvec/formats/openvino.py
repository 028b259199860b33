"""OpenVINO's files of a model, made of its ONNX file: NAME.xml with the graph, NAME.bin with fp32 weights."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from distilvec.core.errors import about
from distilvec.formats.onnx import INPUTS, OUTPUTS, check_place_of

_BEGINS = re.compile(rb"(<\?xml[^>]*>\s*)?<net\b")


def check_openvino_place(path: Path) -> None:
    """Raise DistilvecError if no OpenVINO graph can be written as `path`, or another kind of file is there."""
    check_place_of(path, _BEGINS, "a graph of OpenVINO")


def to_openvino(source: Path, target: Path) -> None:
    """Write the ONNX file `source` as `target` (.xml) and the .bin next to it."""
    import openvino

    openvino.save_model(openvino.convert_model(str(source)), str(target), compress_to_fp16=False)


class OpenvinoEmbedder:
    """OpenVINO's model on the CPU, with as many threads as torch uses."""

    def __init__(self, path: Path) -> None:
        import openvino

        settings = {"INFERENCE_NUM_THREADS": torch.get_num_threads(), "INFERENCE_PRECISION_HINT": "f32"}
        with about(path.name, path):
            self.model = openvino.Core().compile_model(str(path), "CPU", settings)

    def run(self, tokens: Mapping[str, Any], outputs: Sequence[str] = OUTPUTS[:1]) -> list[npt.NDArray[np.float32]]:
        """Return the named outputs for `input_ids` and `attention_mask`, float32."""
        results = self.model({name: np.asarray(tokens[name], dtype=np.int64) for name in INPUTS})
        return [np.asarray(results[name], dtype=np.float32) for name in outputs]
