"""The head of a labelled task: a text's vectors in, class logits or a score out. It is saved beside the student, not in its modules."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from sentence_transformers import SentenceTransformer
from torch import Tensor

from distilvec.core.batch import Text
from distilvec.core.errors import DistilvecError, first_line
from distilvec.core.files import read_json
from distilvec.core.task_head import TaskFacts, TaskHead
from distilvec.models.load import evaluating, load

WEIGHTS, FACTS = "head.safetensors", "head.json"
_AGAIN = "Copy the model again, or save it again from its run."
_BATCH = 32


def save_head(folder: Path, head: TaskHead, classes: Sequence[str], scale: tuple[float, float] | None = None, prompt: str = "") -> None:
    """Write the head beside a model's own files: head.safetensors and head.json.

    `classes` in the order of the logits; `scale` is what the scores 0 and 1 stand for; `prompt` stood before every text.
    """
    facts = {"task": asdict(head.task), "width": head.width, "classes": list(classes), "scale": scale, "prompt": prompt}
    save_file({name: value.detach().float().cpu().contiguous() for name, value in head.state_dict().items()}, folder / WEIGHTS)
    (folder / FACTS).write_text(json.dumps(facts, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def load_head(folder: Path) -> tuple[TaskHead, list[str]] | None:
    """A model's head and its classes, None where the folder has none. DistilvecError if its files are damaged."""
    found = head_facts(folder)
    if found is None:
        return None
    try:
        head = TaskHead(found["width"], TaskFacts(**found["task"]))
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


def predict(folder: Path | str, texts: Sequence[Text]) -> list[str] | list[float]:
    """The labels (or scores, on the task's own scale) that a saved model and its head give to texts, or to pairs of texts.

    Pairs are tuples, whether the model reads both as one input or apart. Errors: DistilvecError for a folder without a head,
    and for pairs where single texts are expected or the other way round.
    """
    folder = Path(folder)
    found, facts = load_head(folder), head_facts(folder)
    if found is None or facts is None:
        raise DistilvecError(f"[{FACTS}] {folder} has none: it was not trained on a labelled task. Name a model that was.")
    head, classes = found
    pairs = head.task.kind != "classification"
    if any(isinstance(text, tuple) != pairs for text in texts):
        raise DistilvecError(
            f"[texts] expected {'pairs of texts, such as (a, b)' if pairs else 'single texts'} for a task of kind {head.task.kind}."
        )
    inputs = [tuple(text) if head.task.members == 2 else (text,) for text in texts]
    model = load(folder, device="cpu")
    logits = predict_logits(model, head, [tuple(with_prompt(facts["prompt"], part) for part in parts) for parts in inputs])
    if head.task.kind != "sts":
        return [classes[number] for number in logits.argmax(1).tolist()]
    low, high = facts["scale"] or (0.0, 1.0)
    return [low + (high - low) * score for score in logits[:, 0].tolist()]


def with_prompt(prompt: str, text: Text) -> Text:
    """The text behind the prompt; of a pair the first one is."""
    return (prompt + text[0], text[1]) if isinstance(text, tuple) else prompt + text


def predict_logits(model: SentenceTransformer, head: TaskHead, inputs: Sequence[tuple[Text, ...]]) -> Float[Tensor, "examples classes"]:
    """What the head answers to inputs that hold their prompts, on the CPU; by the model's own modules, shortest inputs first."""
    order = sorted(range(len(inputs)), key=lambda number: len(str(inputs[number])))
    answers = torch.empty(len(inputs), head.task.classes)
    head = head.to(model.device).eval()
    with evaluating(model):
        for start in range(0, len(order), _BATCH):
            numbers = order[start : start + _BATCH]
            texts = [inputs[number][member] for member in range(head.task.members) for number in numbers]
            features = {
                name: value.to(model.device) if isinstance(value, Tensor) else value for name, value in model.preprocess(texts).items()
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
