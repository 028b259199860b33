"""What a student's experts do with texts: their gates by task, class and length, and their outputs beside the teacher's vectors.

Everything is worked out from a sample of the texts that the student is scored on, by the saved student's own modules.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from sentence_transformers import SentenceTransformer
from torch import Tensor

from distilvec.config.schema import Role
from distilvec.core.batch import Text
from distilvec.data.labeled import Examples, Labelled
from distilvec.evaluation.projection import project_experts
from distilvec.evaluation.tasks import ClassificationTask, RetrievalTask, Task
from distilvec.models.load import evaluating
from distilvec.teachers.model import LocalTeacher
from distilvec.train.monitors import gate_statistics

Array = np.ndarray[Any, Any]
MOST_TEXTS, MOST_OF_A_GROUP, LEAST_OF_A_GROUP = 400, 100, 10  # texts whose gates are looked at
IN_THE_PLANE = 150  # texts in the picture of experts and teacher
MOST_CLASSES = 12  # a task of more classes is one group
LENGTHS = (0, 8, 16, 32, 64, 128, 256, 512, 2**31)  # tokens: bounds of the bins, upper ones within
SEED = 0  # of every draw
_BATCH = 32


@dataclass(frozen=True)
class Group:
    """Texts that are looked at together: a task's, a retrieval task's queries, those of one class.

    `role` says which prompt goes before them; None: they hold it already, and may be pairs.
    """

    name: str
    texts: Sequence[Text]
    role: Role | None = None


@dataclass(frozen=True)
class Mixture:
    """What the experts of a student make of texts, in fp32 on the CPU: gates [n, experts], outputs [n, experts, width], what the gates
    make of these [n, width], and how many tokens each text has."""

    gates: Tensor
    outputs: Tensor
    mixed: Tensor
    lengths: Array


def has_experts(model: SentenceTransformer) -> bool:
    """Whether a model has a mixture of at least two experts."""
    return any(
        type(module).__name__ == "Experts" and module.experts > 1 for module in model
    )  # also a copy of our class


def task_groups(tasks: Iterable[Task]) -> list[Group]:
    """The texts of each task; a retrieval task's queries and documents apart."""
    groups = []
    for task in tasks:
        if isinstance(task, RetrievalTask):
            groups += [
                Group(f"{task.name}, queries", task.queries, "query"),
                Group(f"{task.name}, documents", task.documents, "document"),
            ]
        elif isinstance(task, ClassificationTask):
            groups.append(Group(task.name, task.test_texts, task.role))
        else:
            groups.append(Group(task.name, [*task.first, *task.second], task.role))
    return groups


def labelled_groups(examples: Examples, test: Labelled) -> list[Group]:
    """The test texts of the task a student was trained on, class by class where there are at most 12."""
    names = examples.classes if 1 < len(examples.classes) <= MOST_CLASSES else []
    if not names:
        return [Group(f"{examples.name}, test split", [text for parts in test.inputs for text in parts])]
    rows = list(zip(test.inputs, test.labels.tolist(), strict=True))
    return [
        Group(f"{examples.name}: {name}", [text for parts, label in rows if label == number for text in parts])
        for number, name in enumerate(names)
    ]


def sample(group: Group, count: int) -> list[Text]:
    """At most so many of a group's distinct texts, drawn by seed; blank ones are left out."""
    texts = sorted({text for text in group.texts if "".join(text).strip()}, key=str)
    order = np.random.default_rng(SEED).permutation(len(texts))[:count]
    return [texts[place] for place in sorted(order.tolist())]


def experts_report(
    student: LocalTeacher, groups: Sequence[Group], vectors: Callable[[Group, Sequence[Text]], Array] | None = None
) -> dict[str, Any]:
    """What report.json holds as "experts"; {} for a student without a mixture, or without texts.

    `vectors` gives the teacher's vectors of some of a group's texts; without it there is no plane.
    """
    count = max(LEAST_OF_A_GROUP, min(MOST_OF_A_GROUP, MOST_TEXTS // max(1, len(groups))))
    drawn = [(group, texts) for group in groups if (texts := sample(group, count))]
    if not drawn or not has_experts(student.model):
        return {}
    found = run_mixture(student.model, [prompted(student, group, text) for group, texts in drawn for text in texts])
    ends = np.cumsum([len(texts) for _, texts in drawn]).tolist()
    rows = [slice(first, last) for first, last in pairwise([0, *ends])]
    bins = np.searchsorted(LENGTHS, found.lengths)
    unit = torch.nn.functional.normalize(found.outputs, dim=-1)
    return {
        "count": found.gates.shape[1],
        **_shares(found.gates),
        "groups": [
            {"name": group.name, **_shares(found.gates[part])} for (group, _), part in zip(drawn, rows, strict=True)
        ],
        "lengths": [
            {
                "from": LENGTHS[number - 1] + 1,
                "to": min(LENGTHS[number], int(found.lengths.max())),
                **_shares(found.gates[bins == number]),
            }
            for number in sorted(set(bins.tolist()))
        ],
        "cosines": torch.einsum("nad,nbd->ab", unit, unit).div(len(unit)).numpy().round(4).tolist(),
        "plane": None if vectors is None else _plane(drawn, rows, found, vectors),
    }


def run_mixture(model: SentenceTransformer, texts: Sequence[Text]) -> Mixture:
    """The experts' part in a model's answer to texts that hold their prompts; by its own modules, short texts first."""
    order = sorted(range(len(texts)), key=lambda number: len(str(texts[number])))
    parts: list[tuple[Tensor, Tensor, Tensor]] = []
    lengths = np.empty(len(texts), dtype=np.int64)
    with evaluating(model):
        for start in range(0, len(order), _BATCH):
            numbers = order[start : start + _BATCH]
            features: dict[str, Any] = {
                name: value.to(model.device) if isinstance(value, Tensor) else value
                for name, value in model.preprocess([texts[number] for number in numbers]).items()
            }
            lengths[numbers] = features["attention_mask"].sum(1).cpu().numpy()
            for module in model:
                features = module(features)
                if "gates" in features:
                    break
            parts.append(tuple(features[name].float().cpu() for name in ("gates", "experts", "sentence_embedding")))
    back = torch.tensor(np.argsort(order))
    gates, outputs, mixed = (torch.cat(values)[back] for values in zip(*parts, strict=True))
    return Mixture(gates, outputs, mixed, lengths)


def prompted(model: LocalTeacher, group: Group, text: Text) -> Text:
    """A group's text as a model reads it."""
    return model.prompts.get(group.role, "") + text if group.role is not None and isinstance(text, str) else text


def _shares(gates: Tensor) -> dict[str, Any]:
    means, found = gate_statistics(gates)
    rounded = {name: round(value, 5) for name, value in found.items()}
    return {"rows": len(gates), "gates": np.round(means, 5).tolist(), **rounded}


def _plane(
    drawn: Sequence[tuple[Group, Sequence[Text]]],
    rows: Sequence[slice],
    mixture: Mixture,
    vectors: Callable[[Group, Sequence[Text]], Array],
) -> dict[str, Any]:
    """Some texts of every group, where the teacher and each expert place them."""
    each = max(1, IN_THE_PLANE // len(drawn))
    places = [np.linspace(0, len(texts) - 1, min(each, len(texts))).round().astype(int).tolist() for _, texts in drawn]
    kept = [(group, [texts[place] for place in found]) for (group, texts), found in zip(drawn, places, strict=True)]
    numbers = [part.start + place for part, found in zip(rows, places, strict=True) for place in found]
    teacher = np.concatenate([vectors(group, texts) for group, texts in kept])
    outputs = mixture.outputs[numbers].numpy()
    experts = [outputs[:, number] for number in range(outputs.shape[1])]
    labels = [" / ".join([text] if isinstance(text, str) else text)[:80] for _, texts in kept for text in texts]
    groups = [group.name for group, texts in kept for _ in texts]
    return project_experts(teacher, experts, mixture.mixed[numbers].numpy()) | {"groups": groups, "labels": labels}
