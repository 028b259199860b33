"""Monitors of training: collapsed embeddings, collapsed gates of a student with experts, options that do not fit.

The embeddings' thresholds separate healthy batches of sentences, also of untrained networks, from the lower layers of
all-MiniLM-L6-v2 under [CLS] pooling. Those of the gates come from `python -m experiments.routing`
(docs/papers/distillmoe.md).
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass, field, replace

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from distilvec.core.batch import TextBatch
from distilvec.core.objective import Objective
from distilvec.core.outputs import ModelOutputs, OutputSpec

FEWEST_TEXTS = 8  # distinct texts, below which no monitor warns
MOST_TEXTS = 256  # of a larger batch the first rows are used
MOST_ALIKE = 0.98  # mean cosine
LEAST_RANK = 0.1  # effective rank
TEXTS_ALIKE = 0.9  # mean cosine of the teacher's vectors, above which the texts themselves are alike

ONE = 0.9  # mean gate of an expert that gets nearly all texts
UNUSED = 0.1  # mean gate of an unused expert, as a share of an equal gate
UNIFORM = 0.995  # entropy of the gates, relative to that of equal gates
APART = 0.01  # standard deviation of a gate over the texts
DECIDED = 0.9  # a text's largest gate, above which the text goes to one expert
UNIFORM_AFTER = 0.2  # share of the steps before which gates may be uniform, as they are at the start
_SEEN = "texts seen"  # beside the metrics of a method, whose names have no space
_BATCHES = "batches seen"
ENOUGH = 64  # texts that are judged together if batches are smaller
ENOUGH_BATCHES = 12  # the texts of one are alike in length: of two, all may be short by chance


@dataclass(frozen=True)
class Snapshot:
    """A micro-batch and its outputs, detached and still on the device; `metrics` are the objective's."""

    batch: TextBatch
    student: ModelOutputs
    teacher: ModelOutputs
    metrics: dict[str, Tensor] = field(default_factory=dict)

    def distinct(self) -> np.ndarray:
        """The first row of each text; texts are distinct if their tokens are."""
        ids = self.batch.tokens["input_ids"].cpu().numpy()
        _, first_rows = np.unique(ids, axis=0, return_index=True)
        return np.sort(first_rows)


def take_snapshot(
    batch: TextBatch, student: ModelOutputs, teacher: ModelOutputs, metrics: dict[str, Tensor] | None = None
) -> Snapshot:
    """Keep the embedding, the pooled layers and the gates, without the graph for gradients."""
    detached = ModelOutputs(
        embedding=None if student.embedding is None else student.embedding.detach(),
        pooled_layers={number: layer.detach() for number, layer in student.pooled_layers.items()},
        gates=None if student.gates is None else student.gates.detach(),
    )
    small_teacher = replace(teacher, hidden_layers={}, attentions={}, others=())  # what a monitor may read of it
    return Snapshot(batch, detached, small_teacher, metrics or {})


def with_gates(required: OutputSpec, experts: int) -> OutputSpec:
    """Add the gates to the required outputs for a snapshot, if the student has experts and they run anyway."""
    experts_run = required.embedding or required.pre_dense or required.second_view or required.vector
    if experts and experts_run:
        return required | OutputSpec(experts=True)
    return required


class Monitor(ABC):
    """Reads a snapshot at every logged step and warns once a run; ignores snapshots without its outputs.

    `kind` names its warning in metrics.jsonl, and its `state` in a checkpoint.
    """

    kind: str

    def __init__(self) -> None:
        self.state: dict[str, Tensor] = {}
        self.warned = False
        self.problem = ""

    @abstractmethod
    def observe(self, snapshot: Snapshot, step: int) -> dict[str, float]:
        """Return a snapshot's metrics by name, and set `problem`."""

    def warning(self) -> str:
        """Return the problem of the last snapshot; empty without one, and after the first warning of a run."""
        text = "" if self.warned else self.problem
        self.warned = self.warned or bool(text)
        self.problem = ""
        return text


class CollapseMonitor(Monitor):
    """Warns if all texts get nearly the same vector, or vectors in a few directions; the loss may still fall."""

    kind = "collapse"

    def observe(self, snapshot: Snapshot, step: int) -> dict[str, float]:
        """Mean cosine and effective rank of the embeddings; warns of collapsed embeddings or pooled layers.

        Not judged are batches with fewer than 8 distinct texts, and texts that are alike for the teacher too.
        """
        if len(snapshot.distinct()) < FEWEST_TEXTS:
            return {}
        vectors: dict[str, Tensor] = {}
        if snapshot.student.embedding is not None:
            vectors["embedding"] = snapshot.student.embedding
        if not self.warned:  # layers serve the warning alone
            vectors |= {f"layer {number}": layer for number, layer in snapshot.student.pooled_layers.items()}
        metrics: dict[str, float] = {}
        collapsed = []
        for name, value in vectors.items():
            cosine, rank = spread(value)
            if name == "embedding":
                metrics = {"mean_cosine": cosine, "effective_rank": rank}
            if cosine > MOST_ALIKE or rank < LEAST_RANK:
                collapsed.append(f"{name}: {cosine:.4f}, {rank:.3f}")
        teacher = snapshot.teacher.embedding
        if collapsed and (teacher is None or spread(teacher)[0] <= TEXTS_ALIKE):
            self.problem = (
                "Embeddings collapsed: nearly the same for every text. Mean cosine and effective rank (thresholds "
                f"{MOST_ALIKE} and {LEAST_RANK}): {'; '.join(collapsed)}. Likely causes: CLS or last-token pooling of "
                "lower layers [student.pooling, method.options]; no term with enough weight keeps texts apart "
                "[method.weights]; too high a rate [train.learning_rate]."
            )
        return metrics


def spread(vectors: Float[Tensor, "batch dim"]) -> tuple[float, float]:
    """Mean cosine of all pairs, and effective rank: exp(entropy of the singular values' shares) / min(batch, dim).

    The rank (Roy & Vetterli, 2007) is of unit vectors without centring: centred equal vectors are noise of full rank.
    One direction gives 1 / min(batch, dim), orthogonal vectors of equal weight 1.
    """
    unit = F.normalize(vectors.detach()[:MOST_TEXTS].double().cpu(), dim=-1)
    rows = len(unit)
    cosine = (unit.sum(0).square().sum() - unit.square().sum()) / (rows * (rows - 1))
    values = torch.linalg.svdvals(unit)
    rank = torch.special.entr(values / values.sum()).sum().exp()
    return float(cosine), float(rank) / min(unit.shape)


class GateMonitor(Monitor):
    """Warns if gates send all texts to one expert, leave experts out, or weigh all alike, in a run of `steps` steps."""

    kind = "routing"

    def __init__(self, steps: int) -> None:
        super().__init__()
        self.steps = steps

    def observe(self, snapshot: Snapshot, step: int) -> dict[str, float]:
        """Mean gate of every expert, entropy, decided share and spread; nothing for a student without several experts.

        The last 64 distinct texts are judged together, or those of a larger batch; fewer than 8 are not judged.
        """
        if snapshot.student.gates is None or snapshot.student.gates.shape[1] < 2:
            return {}
        gates = snapshot.student.gates.detach().float().cpu()
        distinct = gates[snapshot.distinct()]
        earlier = self.state.get("gates", distinct[:0])
        recent = torch.cat([earlier, distinct])[-max(ENOUGH, len(distinct)) :]
        self.state = {"gates": recent}
        self.problem = describe_gates(recent, step / self.steps) if len(recent) >= FEWEST_TEXTS else ""
        means, statistics = gate_statistics(gates)
        by_expert = {f"gate_{number}": mean for number, mean in enumerate(means, 1)}
        return by_expert | {f"gate_{name}": value for name, value in statistics.items()}


class OptionMonitor(Monitor):
    """Warns of what the method says of its metrics: of options that do not fit the teacher or the texts."""

    kind = "options"

    def __init__(self, objective: Objective) -> None:
        super().__init__()
        self.objective = objective

    def observe(self, snapshot: Snapshot, step: int) -> dict[str, float]:
        """Ask the method about the means of its metrics over the snapshots so far, once there are enough of them.

        The metrics themselves are logged anyway.
        """
        if not snapshot.metrics or self.warned:
            return {}
        texts = len(snapshot.batch.rows)
        new = {name: texts * value.detach().double().cpu() for name, value in snapshot.metrics.items()}
        counts = {_SEEN: torch.tensor(float(texts)), _BATCHES: torch.tensor(1.0)}
        self.state = {name: value + self.state.get(name, 0) for name, value in (new | counts).items()}
        seen = float(self.state[_SEEN])
        if seen >= ENOUGH and float(self.state[_BATCHES]) >= ENOUGH_BATCHES:
            means = {name: float(value) / seen for name, value in self.state.items() if name not in counts}
            self.problem = self.objective.problem(means)
        return {}


def gate_statistics(gates: Float[Tensor, "texts experts"]) -> tuple[list[float], dict[str, float]]:
    """Mean gate by expert, and over all: for at least two experts.

    - entropy: 1 for equal gates, 0 for one expert per text.
    - decided: share of texts whose largest gate exceeds 0.9.
    - spread: standard deviation over texts, averaged over experts.
    """
    gates = gates.detach().double()
    return gates.mean(0).tolist(), {
        "entropy": float(torch.special.entr(gates).sum(1).mean() / math.log(gates.shape[1])),
        "decided": float((gates.amax(1) > DECIDED).double().mean()),
        "spread": float(gates.std(0, correction=0).mean()),
    }


def describe_gates(gates: Float[Tensor, "texts experts"], done: float) -> str:
    """Describe collapsed gates after a share `done` of training; empty for healthy gates."""
    means, statistics = gate_statistics(gates)
    unused = [number for number, mean in enumerate(means, 1) if mean < UNUSED / len(means)]
    if max(means) > ONE:
        problem = f"expert {means.index(max(means)) + 1} gets nearly all texts"
    elif len(unused) >= 2:
        problem = f"some experts get nearly no texts (from 1: {unused})"
    elif done >= UNIFORM_AFTER and statistics["entropy"] > UNIFORM and statistics["spread"] < APART:
        problem = "every text gets nearly equal gates"
    else:
        return ""
    numbers = "; ".join(f"{name} {value:.4f}" for name, value in statistics.items())
    return (
        f"Routing collapsed: {problem}. Mean gates: {', '.join(f'{mean:.3f}' for mean in means)}; {numbers}. For "
        "unused experts raise the pull towards equal gates, to about 1 [method.options.beta], raise the floor "
        "[method.options.floor], or leave out facets [method.options.facets]. For equal gates lower them. In both "
        "cases raise [method.weights.diversity], or change the gate's rate [train.learning_rate_factors]."
    )
