"""A SentenceTransformer's vectors without the costs of `encode`: batches of equal length, nearly without padding.

`encode` sorts texts by characters, and so computes half as many positions again as there are tokens (all-MiniLM-L6-v2,
short texts with a long tail). Batches here are cut by exact length, and have no mask if no row is padded.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
import torch
from sentence_transformers import SentenceTransformer
from torch import Tensor
from transformers import PreTrainedModel

from distilvec.core.batch import Text
from distilvec.core.errors import DistilvecError
from distilvec.models.load import evaluating
from distilvec.models.parts import max_length, text_tokenizer
from distilvec.models.tokenizers import blank_token, expect_boundary

MOST_WORKERS = 16  # threads; each needs memory for a batch
Item = TypeVar("Item")
Result = TypeVar("Result")

CPU_TOKENS = 1024  # more in a batch falls out of the processor's cache, and takes more memory
CPU_FLOOR = 512  # fewer are not worth a batch of their own: texts of other lengths are padded to fill it
BATCH_TOKENS = 4096  # by default
# By default on a GPU; results/gpu.json has the rate of this size.
GPU_TOKENS = 32_768
_TOKENIZE = 1024  # texts tokenized together
_COPIED_TOGETHER = 4  # batches of a GPU: each copy to the CPU waits until the GPU has nothing left to do

Ids = list[npt.NDArray[np.int32]]  # one array a text
Vectors = dict[str, npt.NDArray[np.float32]]  # [n, dim] by signal


@dataclass(frozen=True)
class EmbeddedBatch:
    """Signals of some of the texts that are being embedded.

    rows: numbers of these texts among all of them, int64 [n]
    signals: by name, "embedding" float32 [n, dim] among them; of token signals Ragged
    work: their share of the work on all texts; long texts are embedded first and take longer
    """

    rows: npt.NDArray[np.int64]
    signals: dict[str, Any]
    work: float

    @property
    def embedding(self) -> npt.NDArray[np.float32]:
        """Vectors, float32 [n, dim]."""
        vectors: npt.NDArray[np.float32] = self.signals["embedding"]
        return vectors


class Forward:
    """A model's tokenizer and modules, called directly; for models that `runs_directly` accepts."""

    def __init__(self, model: SentenceTransformer, batch_tokens: int | None, max_length: int, bfloat16: bool) -> None:
        self.model, self.batch_tokens, self.max_length, self.bfloat16 = model, batch_tokens, max_length, bfloat16
        first = model[0]
        self.backbone: PreTrainedModel = first.auto_model
        pooling = getattr(model[1], "pooling_mode", None) if len(model) > 1 else None
        own_code = not type(self.backbone).__module__.startswith("transformers.")
        # On the right the positions of a text are those it has alone; code of a model's own may expect the left
        self.pads_left = own_code and first.tokenizer.padding_side == "left"
        self.keeps_mask = own_code or pooling not in ("mean", "cls") or first.tokenizer.padding_side == "left"
        self.stateless = is_stateless(model)

    def batches(self, texts: Sequence[Text], pre_dense: bool = False) -> Iterator[EmbeddedBatch]:
        """Embed texts, the longest first: "embedding", before `truncate_dim`, and optionally "pre_dense"."""
        ids, types = self.tokenize(texts)
        lengths = np.array([len(row) for row in ids], dtype=np.int64)
        on_cpu = self.model.device.type == "cpu"
        budget = batch_budget(self.batch_tokens, self.model.device)
        planned = plan_batches(lengths, budget, CPU_FLOOR if on_cpu else budget)
        compute = partial(self._batch_or_halves, ids, types, pre_dense)
        copied_together = 1 if on_cpu else _COPIED_TOGETHER
        on_threads = on_cpu and self.stateless
        computed = map_on_threads(compute, planned) if on_threads else (compute(rows) for rows in planned)
        # closed first: a thread that still computes must not see the model in training mode
        with evaluating(self.model), closing(computed):
            group: list[tuple[npt.NDArray[np.int64], dict[str, Tensor]]] = []
            for number, result in enumerate(zip(planned, computed, strict=True), 1):
                group.append(result)
                if len(group) == copied_together or number == len(planned):
                    rows = np.concatenate([rows for rows, _ in group])
                    signals = {}
                    for name in group[0][1]:
                        signals[name] = torch.cat([tensors[name] for _, tensors in group]).cpu().numpy()
                    yield EmbeddedBatch(rows, signals, float(lengths[rows].sum() / lengths.sum()))
                    group = []

    def tokenize(self, texts: Sequence[Text]) -> tuple[Ids, Ids | None]:
        """Token ids with special tokens, truncated; an empty text becomes one unknown token.

        The second list holds token types, 1 in the second text of a pair; None without pairs, or if the model has no
        types.
        """
        tokenizer = self.model[0].tokenizer
        blank = blank_token(tokenizer)
        paired = any(isinstance(text, tuple) for text in texts)
        if paired:
            expect_boundary(tokenizer)
        typed = paired and "token_type_ids" in tokenizer.model_input_names
        options = {"truncation": True, "max_length": self.max_length, "padding": False, "return_attention_mask": False}
        ids: Ids = []
        types: Ids = []
        for start in range(0, len(texts), _TOKENIZE):
            part = list(texts[start : start + _TOKENIZE])
            encoded = tokenizer(part, return_token_type_ids=typed, **options)
            ids += [np.array(row or [blank], dtype=np.int32) for row in encoded["input_ids"]]
            if typed:
                types += [np.array(row or [0], dtype=np.int32) for row in encoded["token_type_ids"]]
        return ids, types if typed else None

    def _batch_or_halves(
        self, ids: Ids, types: Ids | None, pre_dense: bool, rows: npt.NDArray[np.int64]
    ) -> dict[str, Tensor]:
        """One batch, in halves where the device's memory does not suffice for all of it."""
        try:
            return self._batch(ids, types, pre_dense, rows)
        except torch.OutOfMemoryError:
            if len(rows) == 1:
                raise
        # Outside of the handler, whose error holds the tensors of the batch
        torch.cuda.empty_cache()
        half = (len(rows) + 1) // 2
        first = self._batch_or_halves(ids, types, pre_dense, rows[:half])
        second = self._batch_or_halves(ids, types, pre_dense, rows[half:])
        return {name: torch.cat([values, second[name]]) for name, values in first.items()}

    @torch.no_grad()  # here, since it counts for one thread
    def _batch(self, ids: Ids, types: Ids | None, pre_dense: bool, rows: npt.NDArray[np.int64]) -> dict[str, Tensor]:
        """One batch through all modules; rows are sorted by length, longest first."""
        tokenizer = self.model[0].tokenizer
        device = self.model.device
        lengths = np.array([len(ids[row]) for row in rows])[:, None]
        longest = lengths[0, 0]
        columns = np.arange(longest)
        real = columns >= longest - lengths if self.pads_left else columns < lengths

        inputs = {}
        for name, values, fill in (("input_ids", ids, tokenizer.pad_token_id or 0), ("token_type_ids", types, 0)):
            if values is not None:
                padded = np.full(real.shape, fill, dtype=np.int64)
                padded[real] = np.concatenate([values[row] for row in rows])
                inputs[name] = torch.from_numpy(padded).to(device)
        mask = torch.from_numpy(real.astype(np.int64)).to(device)
        needed = mask if self.keeps_mask or not real.all() else None
        with torch.autocast(device.type, torch.bfloat16, enabled=self.bfloat16):
            states = self.backbone(**inputs, attention_mask=needed, return_dict=True).last_hidden_state
        features: dict[str, Any] = {**inputs, "token_embeddings": states.float(), "attention_mask": mask}
        signals: dict[str, Tensor] = {}
        for module in list(self.model)[1:]:  # in fp32
            if pre_dense and "pre_dense" not in signals and type(module).__name__ == "Dense":
                signals["pre_dense"] = features["sentence_embedding"]
            features = module(features)
        if "sentence_embedding" not in features:
            kinds = ", ".join(type(module).__name__ for module in self.model)
            raise DistilvecError(
                f"it gives no vector for a text: found modules {kinds}; expected a transformer, then a pooling.",
                "Copy or save the model again.",
            )
        return {"embedding": features["sentence_embedding"].float(), **signals}


def batch_budget(batch_tokens: int | None, device: torch.device) -> int:
    """Return the tokens of a batch on a device: `batch_tokens` or the device's; on a CPU at most CPU_TOKENS."""
    if device.type == "cpu":
        return min(batch_tokens or BATCH_TOKENS, CPU_TOKENS)
    return batch_tokens or (GPU_TOKENS if device.type == "cuda" else BATCH_TOKENS)


def check_tokens(
    model: SentenceTransformer, without_row: Mapping[int, str], prompted: Sequence[Text], name: str
) -> None:
    """Raise DistilvecError for a text with one of the tokens, by id, that the model's table has no row for."""
    if not without_row:
        return
    tokenizer = text_tokenizer(model)
    limit = max_length(model)
    for text in prompted:
        ids = tokenizer([text], truncation=True, max_length=limit)["input_ids"][0]
        unknown = next((number for number in ids if number in without_row), None)
        if unknown is not None:
            raise DistilvecError(
                f"{name} has no vector for the token '{without_row[unknown]}' of the text {str(text)[:80]!r}.",
                "Leave such texts out, or give the model's table a row for it (resize_token_embeddings).",
            )


def collect(batches: Iterable[EmbeddedBatch], texts: int, dim: int) -> npt.NDArray[np.float32]:
    """Return the embeddings of all batches in the order of the texts, float32 [texts, dim]."""
    vectors = np.empty((texts, dim), dtype=np.float32)
    for batch in batches:
        vectors[batch.rows] = batch.embedding
    return vectors


def plan_batches(lengths: npt.NDArray[np.int64], budget: int, floor: int) -> list[npt.NDArray[np.int64]]:
    """Rows in batches, longest first: at most `budget` positions (or a row), one length but for `floor` positions.

    `lengths` are tokens, int64 [texts]; each batch has row numbers, int64.
    """
    order = np.argsort(-lengths, kind="stable")
    sizes = lengths[order]
    batches = []
    start = 0
    while start < len(order):
        longest = int(sizes[start])
        end_of_length = int(np.searchsorted(-sizes, -longest, side="right"))
        end_of_floor = start + floor // longest
        end_of_budget = start + max(1, budget // longest)
        end = min(max(end_of_length, end_of_floor), end_of_budget, len(order))
        batches.append(order[start:end])
        start = end
    return batches


def runs_directly(model: SentenceTransformer) -> bool:
    """True if `Forward` gives what `encode` gives: a plain text transformer whose inputs are token ids alone."""
    first = model[0]
    if type(first).__name__ != "Transformer" or not isinstance(getattr(first, "auto_model", None), PreTrainedModel):
        return False
    modes = getattr(first, "modality_config", {})
    text = modes.get("text", {})
    special = ("query_length", "document_length", "query_expansion", "processing_kwargs")
    if (
        "message" in modes
        or text.get("method") != "forward"
        or text.get("method_output_name") not in ("last_hidden_state", ("last_hidden_state",), ["last_hidden_state"])
        or first.module_output_name != "token_embeddings"
        or any(getattr(first, name, None) for name in special)
        or getattr(first.auto_model.config, "output_hidden_states", False)
    ):
        return False
    probe = first.tokenizer(["a text of some words"])
    only_tokens = set(probe) <= {"input_ids", "attention_mask", "token_type_ids"}
    return only_tokens and not any(any(types) for types in probe.get("token_type_ids", []))


def is_stateless(model: SentenceTransformer) -> bool:
    """Whether forward passes leave nothing behind that another one, at the same time, would read.

    Not so: code that comes with a model, positions that are scaled by the longest text so far, layers on several
    devices, and modules of other packages, such as DistillMoE's experts.
    """
    backbone = model[0].auto_model
    config = backbone.config.get_text_config()
    rope = getattr(config, "rope_parameters", None) or getattr(config, "rope_scaling", None) or {}
    kinds = {part.get("rope_type", part.get("type")) for part in (rope, *rope.values()) if isinstance(part, dict)}
    return (
        type(backbone).__module__.startswith("transformers.")
        and not kinds & {"dynamic", "longrope"}
        and getattr(backbone, "hf_device_map", None) is None
        and all(type(module).__module__.startswith("sentence_transformers.") for module in model)
    )


def map_on_threads(work: Callable[[Item], Result], items: Sequence[Item]) -> Generator[Result, None, None]:
    """Results of `work`, in the order of the items; torch's threads are shared out among items.

    Two batches of 1,000 tokens on a thread each take less time than one after the other on two threads: no operation
    waits for its slower half. With one thread, or fewer than two items for each, they run here, one after another.
    `work` must not change anything that it shares, and needs its own `torch.no_grad()`, which counts for one thread.
    Closed early, it waits for the items that are being worked on.
    """
    threads = torch.get_num_threads()
    workers = min(threads, MOST_WORKERS)
    if workers == 1 or len(items) < 2 * workers:
        yield from map(work, items)
        return
    pool = ThreadPoolExecutor(workers, "distilvec", initializer=torch.set_num_threads, initargs=(threads // workers,))
    try:
        yield from pool.map(work, items)
    finally:
        pool.shutdown(cancel_futures=True)
        torch.set_num_threads(threads)  # else threads that begin later get the workers' number
