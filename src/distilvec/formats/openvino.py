"""OpenVINO's files of a model, made of its ONNX file: NAME.xml with the graph, NAME.bin with fp32 or int8 weights."""

from __future__ import annotations

import io
import logging
import re
from collections.abc import Mapping, Sequence
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from distilvec.core.errors import about
from distilvec.core.log import log
from distilvec.formats.onnx import INPUTS, OUTPUTS, check_place_of

ACTIVATION_GROUP = "128"  # numbers that share a scale; of fewer the products are slower, of more they are coarser
_BEGINS = re.compile(rb"(<\?xml[^>]*>\s*)?<net\b")


def check_openvino_place(path: Path) -> None:
    """Raise DistilvecError if no OpenVINO graph can be written as `path`, or another kind of file is there."""
    check_place_of(path, _BEGINS, "a graph of OpenVINO")


def to_openvino(source: Path, target: Path) -> None:
    """Write the ONNX file `source` as `target` (.xml) and the .bin next to it."""
    import openvino

    openvino.save_model(openvino.convert_model(str(source)), str(target), compress_to_fp16=False)


def to_openvino_int8(source: Path, target: Path) -> None:
    """Write the ONNX file `source` with weights of 8 bits, one scale for each output of a layer.

    Activations are rounded when the file runs, in groups of 128 numbers of a token. The file says so itself: no reader
    has to know it. So a text has the same vector alone and in a batch, and no texts are needed to make the file.
    """
    import nncf
    import openvino

    if _lacks_vnni():
        log("this processor has no instructions for sums of int8 products (VNNI): openvino-int8 may be as slow as fp32")
    nncf.set_log_level(logging.ERROR)
    model = openvino.convert_model(str(source))
    with redirect_stdout(io.StringIO()):  # tables and bars of nncf
        model = nncf.compress_weights(model, mode=nncf.CompressWeightsMode.INT8_SYM)
    model.set_rt_info(ACTIVATION_GROUP, ["runtime_options", "DYNAMIC_QUANTIZATION_GROUP_SIZE"])
    openvino.save_model(model, str(target), compress_to_fp16=False)


def _lacks_vnni() -> bool:
    """Return whether this is known to be an x86 processor without VNNI; Linux tells."""
    about_cores = Path("/proc/cpuinfo")
    flags = about_cores.read_text().split() if about_cores.is_file() else []
    return "avx2" in flags and not {"avx512_vnni", "avx_vnni"} & set(flags)


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
