"""ONNX export: one file from token ids to the sentence's vector, kept only if its vectors match PyTorch's.

The file holds the backbone and every module after it (pooling, Dense, Normalize). Inputs: `input_ids` and
`attention_mask`; outputs: `sentence_embedding`, which fastembed reads as the first one, and `last_hidden_state`, which
transformers.js, text-embeddings-inference and optimum read by name. Batch size and length are free: the file truncates
nothing, so whoever runs it truncates texts to the model's maximum length, as `graph_inputs` does. Smaller files, fp16
and int8, are made of an fp32 one.
"""

from __future__ import annotations

import copy
import inspect
import logging
import re
import warnings
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.util import truncate_embeddings
from torch import Tensor, nn

from distilvec.core.errors import DistilvecError, about, disk_is_full, first_line
from distilvec.core.extras import require_extra
from distilvec.core.files import check_output_file, check_output_folder, remove, remove_scratch, scratch, sync_folder
from distilvec.core.task_head import TaskHead
from distilvec.formats.read_back import PROBES
from distilvec.formats.replace import real
from distilvec.formats.sentence_transformers import in_float32
from distilvec.models.load import evaluating
from distilvec.models.parts import can_pad, is_static, max_length, text_tokenizer
from distilvec.models.tokenizers import fill_empty_texts
from distilvec.students.attention import NAME as OUR_ATTENTION
from distilvec.students.task_head import AFTER_HEAD

_BEGINS = re.compile(rb"\x08[\x01-\x20][\x12\x1a\x22\x28\x32\x3a\x42]", re.DOTALL)  # ModelProto: ir_version, next field
INPUTS = ("input_ids", "attention_mask")
OUTPUTS, LOGITS = ("sentence_embedding", "last_hidden_state"), "logits"
TOLERANCE = 1e-4  # largest absolute difference to PyTorch
LARGEST = 2_000_000_000  # bytes: protobuf's limit for one file
_PROBE_TOKENS = 512  # longer probes are truncated: checks of long-text models then take seconds
_INT8 = "_int8"  # ends of the names of stored weights
_SCALES = "_scales"
_LINEAR = ["MatMul"]  # Gemm nodes are made MatMul nodes; products without constants are left out


def check_onnx_place(path: Path) -> None:
    """Raise DistilvecError if no ONNX file can be written as `path`, or another kind of file is there."""
    check_place_of(path, _BEGINS, "an ONNX file")


def check_place_of(path: Path, begins: re.Pattern[bytes], kind: str) -> None:
    """Raise DistilvecError if `path` cannot be written, or has a file that does not begin as this kind of file."""
    check_output_folder(path.parent)
    if not path.exists() and not path.is_symlink():
        return
    check_output_file(path)
    with path.open("rb") as file:
        start = file.read(256)
    if start and not begins.match(start):
        raise DistilvecError(f"{path} exists and is not {kind}.", "Choose another path.")


class Graph(nn.Module):
    """Forward pass of the whole model with token types of zero: the exported graph, with one output per name.

    The `head` of a labelled task on single texts adds the output `logits`: [batch, classes].
    """

    def __init__(self, model: SentenceTransformer, head: TaskHead | None = None) -> None:
        super().__init__()
        self.model, self.head = model, head
        self.outputs = OUTPUTS if head is None else (*OUTPUTS, LOGITS)
        self.is_static = is_static(model)
        self.token_types = not self.is_static and (
            "token_type_ids" in inspect.signature(model[0].auto_model.forward).parameters
        )

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> tuple[Tensor, ...]:
        """Return vectors [batch, dim], the backbone's states [batch, tokens, hidden size], and logits with a head.

        The states of a static model are the rows of its table.
        """
        features: dict[str, Any] = {"input_ids": input_ids, "attention_mask": attention_mask}
        if self.token_types:
            features["token_type_ids"] = torch.zeros_like(input_ids)
        modules = list(self.model)
        if self.is_static:
            rows = nn.functional.embedding(input_ids, modules.pop(0).embedding.weight)
            mask = attention_mask.unsqueeze(-1).to(rows.dtype)
            mean = (rows * mask).sum(1) / mask.sum(1).clamp(min=1)  # zeros for a text without a token
            features |= {"token_embeddings": rows, "sentence_embedding": mean}
        pooled = None
        for module in modules:
            if pooled is None and type(module).__name__ in AFTER_HEAD:
                pooled = features["sentence_embedding"]
            features = module(features)
        vectors = features["sentence_embedding"]
        # a setting of the model, which readers of the file alone do not see; sentence-transformers cuts vectors by it
        # and leaves their length
        if self.model.truncate_dim is not None:
            vectors = vectors[:, : self.model.truncate_dim]
        states = features["token_embeddings"]
        if self.head is None:
            return vectors, states
        return vectors, states, self.head(features["sentence_embedding"] if pooled is None else pooled)

    def run(self, tokens: Mapping[str, Any], outputs: Sequence[str] = OUTPUTS[:1]) -> list[npt.NDArray[np.float32]]:
        """Return the named outputs for `input_ids` and `attention_mask`, float32, without gradients."""
        with torch.inference_mode():
            results = self(*(torch.as_tensor(tokens[name]).to(self.model.device) for name in INPUTS))
        by_name = dict(zip(self.outputs, results, strict=True))
        return [by_name[name].float().cpu().numpy() for name in outputs]


class OnnxEmbedder:
    """ONNX file on the CPU through ONNX Runtime; `threads` as torch uses by default.

    Its threads sleep between calls, so that two sessions in one process do not slow each other down.
    """

    def __init__(self, path: Path, threads: int | None = None) -> None:
        require_extra("onnx", "--to onnx")
        import onnxruntime as runtime

        options = runtime.SessionOptions()
        options.intra_op_num_threads = threads or torch.get_num_threads()
        options.inter_op_num_threads = 1
        options.log_severity_level = 3
        options.add_session_config_entry("session.force_spinning_stop", "1")
        with about(path.name, path):
            self.session = runtime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
        self.inputs: tuple[str, ...] = tuple(entry.name for entry in self.session.get_inputs())
        self.output: str = self.session.get_outputs()[0].name

    def encode_tokens(self, tokens: Mapping[str, Any]) -> npt.NDArray[np.float32]:
        """Return float32 [batch, dim] for `input_ids` and `attention_mask`, [batch, tokens]: arrays or tensors."""
        return self.run(tokens, [self.output])[0]

    def run(self, tokens: Mapping[str, Any], outputs: Sequence[str] = OUTPUTS[:1]) -> list[npt.NDArray[np.float32]]:
        """Return the named outputs as float32."""
        feed = {name: np.asarray(tokens[name], dtype=np.int64) for name in self.inputs if name in tokens}
        return [np.asarray(result, dtype=np.float32) for result in self.session.run(list(outputs), feed)]


def export_onnx(model: SentenceTransformer, path: Path, head: TaskHead | None = None) -> Path:
    """Write the model as `path`, one fp32 file, and return it. Leaves no file if the vectors do not match PyTorch's.

    With the `head` of a task on single texts the file has its logits as a third output.
    Note: torch's TorchScript exporter is tried first (seconds), then the newer one (minutes), which Gemma 3 needs.
    """
    require_extra("onnx", "--to onnx")
    plain = export_copy(model)
    size = sum(weight.nbytes for weight in plain.parameters())
    if size > LARGEST:
        raise DistilvecError(
            f"the model has {size / 1e9:.1f} GB of weights in fp32; one ONNX file holds at most 2.",
            "Export a smaller model.",
            key="model",
        )
    if any(getattr(module, "include_prompt", True) is False for module in model) and any(model.prompts.values()):
        raise DistilvecError(
            "the model leaves its prompt's tokens out of its pooling (include_prompt false), which a graph of token "
            "ids cannot do.",
            "Remove its prompts, or serve it with sentence-transformers.",
            key="model",
        )
    with about("--out", path):
        path.parent.mkdir(parents=True, exist_ok=True)
        return _write_checked(plain, path, head)


def _write_checked(plain: SentenceTransformer, path: Path, head: TaskHead | None) -> Path:
    """Write the file of the first exporter whose vectors match, whole or not at all."""
    problems = []
    target = real(path)
    remove_scratch(target.parent)
    folder = scratch(target)
    folder.mkdir()
    try:
        written = folder / "model.onnx"
        for dynamo in (False, True):
            try:
                _write_graph(Graph(plain, head).eval(), written, dynamo)
                difference = parity(plain, OnnxEmbedder(written), PROBES, head)
            except Exception as error:  # exporters raise whatever the model's code raises
                if disk_is_full(error):
                    raise
                problems.append(f"{type(error).__name__}: {first_line(error)}")
                continue
            if difference <= TOLERANCE:  # False for NaN
                written.replace(target)
                sync_folder(target.parent)
                return path
            problems.append(f"vectors differ from PyTorch's by up to {difference:.2g}, allowed is {TOLERANCE:g}")
    finally:
        remove(folder)
    backbone = getattr(plain[0], "auto_model", plain[0])
    raise DistilvecError(
        f"{type(backbone).__name__} cannot be exported to ONNX: {problems[0]}; with torch's newer exporter: "
        f"{problems[1]}.",
        "Serve it with PyTorch, or try other versions of torch and transformers.",
        key="model",
    )


def parity(
    model: SentenceTransformer, session: OnnxEmbedder, texts: Sequence[str], head: TaskHead | None = None
) -> float:
    """Return the largest difference between the vectors of sentence-transformers and of the session (and logits).

    Texts, at least one, are encoded each alone and padded together. NaN if either gives NaN.
    """
    batches = [[text] for text in texts]
    if can_pad(model) and len(texts) > 1:
        batches.append(list(texts))
    differences: list[float] = []
    for batch in batches:
        tokens = graph_inputs(model, batch)
        expected = [_vectors(model, batch, tokens)]
        outputs: tuple[str, ...] = OUTPUTS[:1]
        if head is not None:
            expected += Graph(model, head).eval().run(tokens, [LOGITS])
            outputs = (*outputs, LOGITS)
        for result, expected_result in zip(session.run(tokens, outputs), expected, strict=True):
            differences.append(np.abs(result - expected_result).max())
    return float(np.max(differences))  # np.max, unlike max, is NaN if one of them is


def _vectors(model: SentenceTransformer, texts: list[str], tokens: Mapping[str, Tensor]) -> npt.NDArray[np.float32]:
    """Return the vectors that sentence-transformers gives for `tokens`, which are those of the texts."""
    if is_static(model):  # it reads tokens in another form, and all of a text
        whole: npt.NDArray[np.float32] = model.encode(texts, prompt="")
        return whole
    with evaluating(model):
        features = model({name: values.to(model.device) for name, values in tokens.items()})
    vectors = truncate_embeddings(features["sentence_embedding"], model.truncate_dim)  # as `encode` ends
    return np.asarray(vectors.float().cpu().numpy())


def export_copy(model: SentenceTransformer) -> SentenceTransformer:
    """Copy a model as its folder would load on the CPU: fp32, stock attention, no packed layers, evaluation mode.

    fp32 weights on the CPU are shared with the original, which does not change.
    """
    first = model[0]
    if is_static(model):
        return in_float32(copy.deepcopy(model).cpu()).eval()
    if not isinstance(getattr(first, "auto_model", None), nn.Module):
        raise DistilvecError(
            f"its first module is a {type(first).__name__}; expected a transformer.", "Take another model.", key="model"
        )
    weights = [*model.parameters(), *model.buffers()]
    shared = all(weight.device.type == "cpu" and weight.dtype in (torch.float32, torch.int64) for weight in weights)
    # One weight after the other leaves its device: a second copy of the model there may not fit
    copies: dict[int, Any] = {}
    for weight in model.parameters() if shared else weights:
        if shared:
            copies[id(weight)] = weight
            continue
        values = weight.detach().to("cpu", copy=True)
        is_parameter = isinstance(weight, nn.Parameter)
        copies[id(weight)] = nn.Parameter(values, weight.requires_grad) if is_parameter else values
    copied = in_float32(copy.deepcopy(model, copies).cpu()).eval()
    for module in copied.modules():
        module.__dict__.pop("forward", None)  # a layer packed for this machine
    backbone = copied[0].auto_model
    if getattr(backbone.config, "_attn_implementation", None) == OUR_ATTENTION:
        backbone.set_attn_implementation("sdpa")
    return copied


def graph_inputs(model: SentenceTransformer, texts: list[str], most: int = _PROBE_TOKENS) -> dict[str, Tensor]:
    """Return `input_ids` and `attention_mask` [texts, tokens] of texts, truncated to `most` tokens.

    An empty text becomes one unknown token, as for the model itself (teachers/encode.py). A static model reads whole
    texts without special tokens.
    """
    if is_static(model):
        return _rows_of_texts(model, texts)
    limit = min(max_length(model), most)
    tokenizer = model[0].tokenizer
    tokens = tokenizer(texts, truncation=True, max_length=limit, padding=len(texts) > 1, return_tensors="pt")
    features = {name: tokens[name] for name in INPUTS}
    fill_empty_texts(features, tokenizer)
    return features


def _rows_of_texts(model: SentenceTransformer, texts: list[str]) -> dict[str, Tensor]:
    """Return the tokens of a static model, padded; a text without a token has a mask of zeros."""
    encodings = model[0].tokenizer.encode_batch(texts, add_special_tokens=False)
    longest = max([1, *(len(encoding.ids) for encoding in encodings)])
    ids = torch.zeros(len(texts), longest, dtype=torch.int64)
    mask = torch.zeros_like(ids)
    for row, encoding in enumerate(encodings):
        ids[row, : len(encoding.ids)] = torch.tensor(encoding.ids, dtype=torch.int64)
        mask[row, : len(encoding.ids)] = 1
    return {"input_ids": ids, "attention_mask": mask}


def _write_graph(graph: Graph, path: Path, dynamo: bool) -> None:
    """Trace the model on a small padded batch and write the graph."""
    model = graph.model
    limit = min(max_length(model), 12)
    ids = graph_inputs(model, [PROBES[1]])["input_ids"][:, :limit].repeat(2, 1)
    mask = torch.ones_like(ids)
    mask[1, 0 if text_tokenizer(model).padding_side == "left" else -1] = 0
    names: dict[str, Any] = {"input_names": list(INPUTS), "output_names": list(graph.outputs), "dynamo": dynamo}
    if dynamo:
        free = {0: torch.export.Dim.DYNAMIC, 1: torch.export.Dim.DYNAMIC}
        names |= {"dynamic_shapes": dict.fromkeys(INPUTS, free), "external_data": False, "verbose": False}
    else:
        axes = {name: {0: "batch"} for name in graph.outputs}
        axes |= {name: {0: "batch", 1: "tokens"} for name in (*INPUTS, OUTPUTS[1])}
        names |= {"opset_version": 17, "dynamic_axes": axes}
    disabled = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with torch.no_grad(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            torch.onnx.export(graph, (ids, mask), str(path), **names)
    finally:
        logging.disable(disabled)


def to_half(source: Path, target: Path) -> None:
    """Write the file `source` with weights and activations in fp16; inputs and outputs keep their types."""
    import onnx
    from onnxruntime.transformers.float16 import convert_float_to_float16

    with _quiet():
        onnx.save(convert_float_to_float16(onnx.load(str(source)), keep_io_types=True), str(target))


def to_int8(source: Path, target: Path) -> None:
    """Write the file `source` in int8; the scale of an activation is computed at run time, one per layer and batch.

    - Linear layers have one scale per output channel and weights of 7 bits: with 8, sums overflow on x86 processors
      without VNNI (onnxruntime issues 5849, 6004, 14642).
    - Layers with fewer outputs than inputs (the second one of a feed-forward block) have int8 weights and fp32
      activations: the outliers among their inputs cause most of the error.
    - Tables of embeddings have one scale per row.
    - Products of two activations, such as attention scores, are fp32.
    """
    from onnxruntime.quantization import QuantType, quantize_dynamic
    from onnxruntime.quantization.shape_inference import quant_pre_process

    with _quiet():
        quant_pre_process(str(source), str(target), skip_symbolic_shape=True)  # constants folded, shapes inferred
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
        if is_table:
            nodes += _gather_rows(name, node)
        else:
            nodes += _multiply(name, node)
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
