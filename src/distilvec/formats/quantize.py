"""Smaller ONNX files from an fp32 one: fp16, and int8 with activations scaled at run time.

In an int8 file:

- Linear layers have one scale per output channel and weights of 7 bits: with 8, sums overflow on x86 processors without
  VNNI (onnxruntime issues 5849, 6004, 14642).
- Layers with fewer outputs than inputs (the second one of a feed-forward block) have int8 weights and fp32 activations:
  the outliers among their inputs cause most of the error.
- Tables of embeddings have one scale per row.
- Products of two activations, such as attention scores, are fp32.
"""

from __future__ import annotations

import logging
import warnings
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

_INT8 = "_int8"  # ends of the names of stored weights
_SCALES = "_scales"
_LINEAR = ["MatMul"]  # Gemm nodes are made MatMul nodes; products without constants are left out


def to_half(source: Path, target: Path) -> None:
    """Write the file `source` with weights and activations in fp16; inputs and outputs keep their types."""
    import onnx
    from onnxruntime.transformers.float16 import convert_float_to_float16

    with _quiet():
        onnx.save(convert_float_to_float16(onnx.load(str(source)), keep_io_types=True), str(target))


def to_int8(source: Path, target: Path) -> None:
    """Write the file `source` in int8; the scale of an activation is computed at run time, one per layer and batch."""
    from onnxruntime.quantization import QuantType, quantize_dynamic

    with _quiet():
        _prepare(source, target)
        _store_weights(target)
        quantize_dynamic(
            str(target),
            str(target),
            op_types_to_quantize=_LINEAR,
            per_channel=True,
            reduce_range=True,
            weight_type=QuantType.QInt8,
            extra_options={"MatMulConstBOnly": True},
        )


def _prepare(source: Path, target: Path) -> None:
    """Write the graph with constants folded and shapes inferred."""
    from onnxruntime.quantization.shape_inference import quant_pre_process

    quant_pre_process(str(source), str(target), skip_symbolic_shape=True)


def _store_weights(path: Path) -> None:
    """Store in int8 the tables that rows are gathered from, and the weights of layers that reduce the dim."""
    import onnx
    from onnx import numpy_helper

    model = onnx.load(str(path))
    graph = model.graph
    users = Counter(name for node in graph.node for name in node.input)
    floats = {tensor.name: tensor for tensor in graph.initializer if len(tensor.dims) == 2 and tensor.data_type == 1}
    nodes = list[Any]()
    for node in graph.node:
        is_table = node.op_type == "Gather"
        is_layer = node.op_type == "MatMul"
        name = ""
        if is_table:
            name = node.input[0]
        elif is_layer:
            name = node.input[1]
        weights = floats.get(name)
        if weights is None or users[name] > 1 or (is_layer and weights.dims[0] <= weights.dims[1]):
            nodes.append(node)
            continue
        values = numpy_helper.to_array(weights)
        scales = np.abs(values).max(axis=1 if is_table else 0, keepdims=True) / 127
        scales[scales == 0] = 1
        int8 = np.rint(values / scales).astype(np.int8)
        graph.initializer.append(numpy_helper.from_array(int8, name + _INT8))
        graph.initializer.append(numpy_helper.from_array(scales.astype(np.float32), name + _SCALES))
        graph.initializer.remove(weights)
        nodes += _gather_rows(name, node) if is_table else _multiply(name, node)
    del graph.node[:]
    graph.node.extend(nodes)
    onnx.save(model, str(path))


def _gather_rows(name: str, node: Any) -> Iterator[Any]:
    """Yield the nodes that gather int8 rows of the table `name` and multiply them by their scales."""
    from onnx import TensorProto, helper

    result = node.output[0]
    for end in (_INT8, _SCALES):
        yield helper.make_node("Gather", [name + end, node.input[1]], [result + end], axis=0)
    yield helper.make_node("Cast", [result + _INT8], [f"{result}_floats"], to=TensorProto.FLOAT)
    yield helper.make_node("Mul", [f"{result}_floats", result + _SCALES], [result])


def _multiply(name: str, node: Any) -> Iterator[Any]:
    """Yield the nodes that make fp32 weights of int8 ones, which readers do once, and multiply by them."""
    from onnx import TensorProto, helper

    yield helper.make_node("Cast", [name + _INT8], [f"{name}_floats"], to=TensorProto.FLOAT)
    yield helper.make_node("Mul", [f"{name}_floats", name + _SCALES], [name])
    yield node


@contextmanager
def _quiet() -> Iterator[None]:
    """Turn off the advice that onnxruntime's tools log and warn of."""
    disabled = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(disabled)
