"""The head of a labelled task, saved next to a student: a text's vectors in, class logits or a score out."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from sentence_transformers import SentenceTransformer
from torch import Tensor

from distilvec.core.batch import Text
from distilvec.core.errors import DistilvecError, about, first_line, plain_errors
from distilvec.core.files import read_json
from distilvec.core.log import Advance
from distilvec.core.model_name import ModelName
from distilvec.core.task_head import PAIRS, HeadInfo, TaskHead, TaskInfo, TaskKind
from distilvec.models.load import evaluating, load_model
from distilvec.models.tokenizers import fill_empty_texts

WEIGHTS, FACTS = "head.safetensors", "head.json"
_AGAIN = "Copy the model again, or save it again from its run."
AFTER_HEAD = ("Dense", "Normalize")  # modules after the pooled vector that the head reads; experts come before
_BATCH = 32


def save_head(
    folder: Path, head: TaskHead, classes: Sequence[str], scale: tuple[float, float] | None = None, prompt: str = ""
) -> None:
    """Write head.safetensors and head.json into a model's folder.

    `classes` in the order of the logits; `scale`: the task's values of the scores 0 and 1; `prompt` was prepended to
    texts.
    """
    task = {"kind": head.task.kind, "classes": head.task.classes, "members": head.task.texts_per_example}
    info = {"task": task, "width": head.width, "classes": list(classes), "scale": scale, "prompt": prompt}
    if head.info.hidden is not None:
        info["hidden"] = head.info.hidden
    weights = {name: value.detach().float().cpu().contiguous() for name, value in head.state_dict().items()}
    save_file(weights, folder / WEIGHTS)
    (folder / FACTS).write_text(json.dumps(info, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def _task(kind: TaskKind, classes: int, members: int = 1) -> TaskInfo:
    """Return the task that head.json describes, with the names of format 1."""
    return TaskInfo(kind, classes, members)


def load_head(folder: Path) -> tuple[TaskHead, list[str]] | None:
    """A model's head and its classes, None for a folder without one. DistilvecError for damaged files."""
    info = head_info(folder)
    if info is None:
        return None
    try:
        head = TaskHead(info["width"], _task(**info["task"]), HeadInfo(hidden=info.get("hidden")))
        classes = [str(name) for name in info["classes"]]
    except (KeyError, TypeError, ValueError, AttributeError, RuntimeError) as error:
        reason = f"{type(error).__name__}: {first_line(error)}"
        raise DistilvecError(f"{folder / FACTS} describes no head ({reason}).", _AGAIN, key=FACTS) from None
    try:
        head.load_state_dict(load_file(folder / WEIGHTS))
    except (SafetensorError, RuntimeError, OSError) as error:
        reason = first_line(error)
        raise DistilvecError(f"{folder / WEIGHTS} does not match {FACTS}: {reason}.", _AGAIN, key=WEIGHTS) from None
    return head.eval(), classes


def head_info(folder: Path) -> dict[str, Any] | None:
    """Content of head.json, None for a folder without one."""
    path = folder / FACTS
    return read_json(path, _AGAIN, sealed=False) if path.is_file() else None


class TaskModel:
    """A saved model and the head of its labelled task, loaded once.

    `kind` is the task's (classification, multilabel, pair or sts); `classes` are its labels, empty for sts. Pairs are
    tuples (or lists) of two texts, whether the model reads both as one input or apart. `trust_remote_code` runs code
    that comes with the model.
    Errors: DistilvecError for a folder without a model, without a head, or with damaged files of either.
    """

    @plain_errors()
    def __init__(self, folder: Path | str, device: str = "cpu", trust_remote_code: bool = False) -> None:
        self.folder = Path(folder)
        train = "Name the folder of a model that was trained on a labelled task."
        head = load_head(self.folder)
        info = head_info(self.folder)
        if head is None or info is None:
            raise DistilvecError(f"{folder} is not a folder with {FACTS}.", train, key="model")
        self._head, self.classes = head
        self.kind = self._head.task.kind
        self._prompt = str(info.get("prompt") or "")
        self._scale = info.get("scale") or (0.0, 1.0)
        with about("model", self.folder):
            model = load_model(ModelName(str(self.folder), trusted=trust_remote_code))
        self._model = model.to(device)

    def __repr__(self) -> str:
        names = ", ".join(map(repr, self.classes[:6]))
        if len(self.classes) > 6:
            names += ", ..."
        return f"TaskModel({str(self.folder)!r}, kind={self.kind!r}, classes=[{names}])"

    def predict(self, texts: Sequence[Text]) -> list[str] | list[list[str]] | list[float]:
        """The label of every text or pair, for multilabel a list of them; for sts a score on the task's own scale."""
        logits = self._logits(texts)
        if self.kind == "multilabel":
            return [self._labels(row) for row in logits > 0]
        if self.kind != "sts":
            return [self.classes[number] for number in logits.argmax(1).tolist()]
        low, high = self._scale
        return [low + (high - low) * score for score in logits[:, 0].tolist()]

    def predict_proba(self, texts: Sequence[Text]) -> np.ndarray[Any, Any]:
        """Probabilities, float32 [texts, classes], in the order of `classes`; those of multilabel do not add up to 1.

        Errors: DistilvecError for sts.
        """
        if self.kind == "sts":
            raise DistilvecError(f"{self.folder} gives scores (sts), not classes.", "Use predict.", key="predict_proba")
        logits = self._logits(texts)
        probabilities = logits.sigmoid() if self.kind == "multilabel" else logits.softmax(1)
        return np.asarray(probabilities.numpy())

    def _labels(self, chosen: Tensor) -> list[str]:
        return [name for name, is_chosen in zip(self.classes, chosen.tolist(), strict=True) if is_chosen]

    def _logits(self, texts: Sequence[Text]) -> Float[Tensor, "texts classes"]:
        """Logits of checked texts. DistilvecError for a single text, and for texts of another kind than the task's."""
        pairs = self.kind in PAIRS
        kind_of_text = "pairs of texts, such as (a, b)," if pairs else "single texts"
        expected = f"a list of {kind_of_text} (task kind: {self.kind})"
        if isinstance(texts, (str, bytes)) or not isinstance(texts, Iterable):
            raise DistilvecError(
                f"expected {expected}; found a {type(texts).__name__}.", "Put it into a list.", key="texts"
            )
        inputs = []
        for number, text in enumerate(texts):
            parts = tuple(text) if pairs and isinstance(text, (tuple, list)) else (text,)
            if len(parts) != (2 if pairs else 1) or not all(isinstance(part, str) for part in parts):
                raise DistilvecError(f"expected {expected}; found {repr(text)[:80]} (number {number}).", key="texts")
            stripped = tuple(str(part).strip() for part in parts)  # as the rows that it learned from
            example: Any = stripped
            if pairs and self._head.task.texts_per_example == 1:  # both texts in one input
                example = (stripped,)
            inputs.append(tuple(with_prompt(self._prompt, part) for part in example))
        return predict_logits(self._model, self._head, inputs)


def predict(folder: Path | str, texts: Sequence[Text]) -> list[str] | list[list[str]] | list[float]:
    """`TaskModel(folder).predict(texts)`; the last few models stay in memory until their files change."""
    path = Path(folder).absolute()
    files = []
    for file in sorted(path.rglob("*")):
        if file.is_file():
            status = file.stat()
            files.append((str(file), status.st_size, status.st_mtime_ns))
    return _loaded(path, tuple(files)).predict(texts)


@lru_cache(maxsize=2)
def _loaded(folder: Path, files: tuple[tuple[str, int, int], ...]) -> TaskModel:
    """The model in a folder whose files have these sizes and times of modification."""
    return TaskModel(folder)


def with_prompt(prompt: str, text: Text) -> Text:
    """The text, or the first text of a pair, with the prompt prepended."""
    return (prompt + text[0], text[1]) if isinstance(text, tuple) else prompt + text


def predict_logits(
    model: SentenceTransformer,
    head: TaskHead,
    inputs: Sequence[tuple[Text, ...]],
    advance: Advance | None = None,
) -> Float[Tensor, "examples classes"]:
    """The head's outputs for inputs that hold their prompts, on the CPU; shortest inputs first.

    `advance` is told after every batch how many inputs are done.
    """
    sizes = [len(str(texts)) for texts in inputs]
    order = sorted(range(len(inputs)), key=lambda number: sizes[number])
    mean_size = sum(sizes) / max(1, len(sizes))
    done, work = 0, 0.0
    logits = torch.empty(len(inputs), head.task.classes)
    head = head.to(model.device).eval()
    with evaluating(model):
        for start in range(0, len(order), _BATCH):
            numbers = order[start : start + _BATCH]
            texts = [inputs[number][part] for part in range(head.task.texts_per_example) for number in numbers]
            features: dict[str, Any] = model.preprocess(texts)
            if "attention_mask" in features:  # not of a static model, which sums rows of a table
                fill_empty_texts(features, model.tokenizer)
            for name, value in features.items():
                if isinstance(value, Tensor):
                    features[name] = value.to(model.device)
            for module in model:
                if type(module).__name__ in AFTER_HEAD:
                    break
                features = module(features)
            logits[numbers] = head(features["sentence_embedding"].float()).cpu()
            done += len(numbers)
            work += sum(sizes[number] for number in numbers) / mean_size
            if advance is not None:
                advance(done, work=work)
    return logits
