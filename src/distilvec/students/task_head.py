"""The head of a labelled task: a text's vectors in, class logits or a score out. It is saved beside the student, not in its modules."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from jaxtyping import Float
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from sentence_transformers import SentenceTransformer
from torch import Tensor

from distilvec.core.batch import Text
from distilvec.core.errors import DistilvecError, first_line
from distilvec.core.files import read_json
from distilvec.core.task_head import TaskHead, TaskInfo
from distilvec.models.load import evaluating, load_model

WEIGHTS, FACTS = "head.safetensors", "head.json"
_AGAIN = "Copy the model again, or save it again from its run."
_BATCH = 32


def save_head(
    folder: Path, head: TaskHead, classes: Sequence[str], scale: tuple[float, float] | None = None, prompt: str = ""
) -> None:
    """Write the head beside a model's own files: head.safetensors and head.json.

    `classes` in the order of the logits; `scale` is what the scores 0 and 1 stand for; `prompt` stood before every text.
    """
    task = {"kind": head.task.kind, "classes": head.task.classes, "members": head.task.texts_per_example}
    info = {"task": task, "width": head.width, "classes": list(classes), "scale": scale, "prompt": prompt}
    save_file(
        {name: value.detach().float().cpu().contiguous() for name, value in head.state_dict().items()}, folder / WEIGHTS
    )
    (folder / FACTS).write_text(json.dumps(info, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def _task(kind: Literal["classification", "pair", "sts"], classes: int, members: int = 1) -> TaskInfo:
    """Return the task that head.json describes, with the names of format 1."""
    return TaskInfo(kind, classes, members)


def load_head(folder: Path) -> tuple[TaskHead, list[str]] | None:
    """A model's head and its classes, None where the folder has none. DistilvecError if its files are damaged."""
    found = head_facts(folder)
    if found is None:
        return None
    try:
        head = TaskHead(found["width"], _task(**found["task"]))
        classes = [str(name) for name in found["classes"]]
    except (KeyError, TypeError, ValueError, AttributeError, RuntimeError) as error:
        reason = f"{type(error).__name__}: {first_line(error)}"
        raise DistilvecError(f"[{FACTS}] {folder / FACTS} describes no head ({reason}). {_AGAIN}") from None
    try:
        head.load_state_dict(load_file(folder / WEIGHTS))
    except (SafetensorError, RuntimeError, OSError) as error:
        raise DistilvecError(
            f"[{WEIGHTS}] {folder / WEIGHTS} does not hold the head that {FACTS} describes: {first_line(error)}. {_AGAIN}"
        ) from None
    return head.eval(), classes


def head_facts(folder: Path) -> dict[str, Any] | None:
    """What head.json says, None where there is none."""
    path = folder / FACTS
    return read_json(path, _AGAIN) if path.is_file() else None


class TaskModel:
    """A saved model and the head of its labelled task, loaded once.

    `kind` is the task's (classification, pair or sts); `classes` are its labels, empty for sts. Pairs are tuples (or lists)
    of two texts, whether the model reads both as one input or apart.
    Errors: DistilvecError for a folder without a model, without a head, or with damaged files of either.
    """

    def __init__(self, folder: Path | str, device: str = "cpu") -> None:
        self.folder = Path(folder)
        if not self.folder.is_dir():
            raise DistilvecError(
                f"[model] {folder} is no folder. Name the folder of a model that was trained on a labelled task."
            )
        found, info = load_head(self.folder), head_facts(self.folder)
        if found is None or info is None:
            raise DistilvecError(
                f"[{FACTS}] {folder} has none: it was not trained on a labelled task. Name a model that was."
            )
        self._head, self.classes = found
        self.kind = self._head.task.kind
        self._prompt, self._scale = str(info.get("prompt") or ""), info.get("scale") or (0.0, 1.0)
        self._model = load_model(str(self.folder), "model").to(device)

    def __repr__(self) -> str:
        shown = ", ".join(map(repr, self.classes[:6])) + (
            f", ... ({len(self.classes)})" if len(self.classes) > 6 else ""
        )
        return f"TaskModel({str(self.folder)!r}, kind={self.kind!r}, classes=[{shown}])"

    def predict(self, texts: Sequence[Text]) -> list[str] | list[float]:
        """The label of every text or pair; for sts a score on the task's own scale."""
        logits = self._logits(texts)
        if self.kind != "sts":
            return [self.classes[number] for number in logits.argmax(1).tolist()]
        low, high = self._scale
        return [low + (high - low) * score for score in logits[:, 0].tolist()]

    def predict_proba(self, texts: Sequence[Text]) -> np.ndarray[Any, Any]:
        """The probability of every class, float32 [texts, classes], in the order of `classes`. DistilvecError for sts."""
        if self.kind == "sts":
            raise DistilvecError(
                f"[predict_proba] {self.folder} gives scores (sts), which have no classes. Use predict."
            )
        probabilities: np.ndarray[Any, Any] = self._logits(texts).softmax(1).numpy()
        return probabilities

    def _logits(self, texts: Sequence[Text]) -> Float[Tensor, "texts classes"]:
        inputs = [text if self._head.task.texts_per_example == 2 else (text,) for text in self._checked(texts)]
        return predict_logits(
            self._model, self._head, [tuple(with_prompt(self._prompt, part) for part in parts) for parts in inputs]
        )

    def _checked(self, texts: Sequence[Text]) -> list[Any]:
        """The texts as a list, pairs as tuples. DistilvecError for a single text, and for what the task does not take."""
        pairs = self.kind != "classification"
        expected = f"{'pairs of texts, such as (a, b),' if pairs else 'single texts'} for a task of kind {self.kind}"
        if isinstance(texts, (str, bytes)) or not isinstance(texts, Iterable):
            raise DistilvecError(
                f"[texts] expected a list of {expected}; found a {type(texts).__name__}. Put it into a list."
            )
        found = [tuple(text) if pairs and isinstance(text, (tuple, list)) else text for text in texts]
        for number, text in enumerate(found):
            if not (_is_pair(text) if pairs else isinstance(text, str)):
                raise DistilvecError(f"[texts] expected {expected}; found {repr(text)[:80]} (number {number}).")
        return found


def _is_pair(text: object) -> bool:
    return isinstance(text, tuple) and len(text) == 2 and all(isinstance(part, str) for part in text)


def predict(folder: Path | str, texts: Sequence[Text]) -> list[str] | list[float]:
    """`TaskModel(folder).predict(texts)`; the last few models stay in memory until their files change."""
    path = Path(folder).absolute()
    found = [(str(file), file.stat()) for file in sorted(path.rglob("*")) if file.is_file()]
    return _loaded(path, tuple((name, status.st_size, status.st_mtime_ns) for name, status in found)).predict(texts)


@lru_cache(maxsize=2)
def _loaded(folder: Path, files: tuple[tuple[str, int, int], ...]) -> TaskModel:
    """The model in a folder whose files have these sizes and times of modification."""
    return TaskModel(folder)


def with_prompt(prompt: str, text: Text) -> Text:
    """The text behind the prompt; of a pair the first one is."""
    return (prompt + text[0], text[1]) if isinstance(text, tuple) else prompt + text


def predict_logits(
    model: SentenceTransformer, head: TaskHead, inputs: Sequence[tuple[Text, ...]]
) -> Float[Tensor, "examples classes"]:
    """What the head answers to inputs that hold their prompts, on the CPU; by the model's own modules, shortest inputs first."""
    order = sorted(range(len(inputs)), key=lambda number: len(str(inputs[number])))
    answers = torch.empty(len(inputs), head.task.classes)
    head = head.to(model.device).eval()
    with evaluating(model):
        for start in range(0, len(order), _BATCH):
            numbers = order[start : start + _BATCH]
            texts = [inputs[number][member] for member in range(head.task.texts_per_example) for number in numbers]
            features = {
                name: value.to(model.device) if isinstance(value, Tensor) else value
                for name, value in model.preprocess(texts).items()
            }
            answers[numbers] = head(read_by_heads(model, features).float()).cpu()
    return answers


def read_by_heads(model: SentenceTransformer, features: dict[str, Any]) -> Float[Tensor, "texts width"]:
    """What the model makes of token ids and mask before any Dense or Normalize: pooled, and mixed by experts where there are such."""
    for module in model:
        if type(module).__name__ in ("Dense", "Normalize"):
            break
        features = module(features)
    vector: Tensor = features["sentence_embedding"]
    return vector
