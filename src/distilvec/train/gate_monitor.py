"""Routing collapse: the gate of a student's experts sends all texts to one expert, leaves experts out, or weighs all alike.

The thresholds lie between what `python -m experiments.routing` finds (docs/distillmoe.md, "Where the gate goes"): gates of students that
use their experts, those that a strong pull towards equal gates makes alike for every text, and those that go to one expert.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from distilvec.core.outputs import OutputSpec
from distilvec.train.collapse_monitor import Sight

ONE = 0.9  # mean gate of an expert that gets (nearly) everything
UNUSED = 0.1  # mean gate of an expert that is nearly never used, as a share of an equal one
UNIFORM = 0.995  # entropy of the gates, relative to that of equal ones
APART = 0.01  # standard deviation of a gate over the texts
DECIDED = 0.9  # a text's largest gate, above which the text is one expert's
UNIFORM_AFTER = 0.2  # share of the steps before which gates may be uniform: they all are at the start
ENOUGH = 64  # texts of the last looks that are judged together
FEWEST = 8  # distinct ones, below which nothing is judged
LOOKS = 8  # at most so many of the last looks are judged together


@dataclass(frozen=True)
class Routing:
    """How a gate shares out texts: each expert's mean gate, their mean entropy (1: equal gates, 0: one expert a text), the share of
    texts whose largest gate exceeds 0.9, and the gates' standard deviation over the texts, averaged over experts."""

    means: tuple[float, ...]
    entropy: float
    decided: float
    spread: float

    @property
    def unused(self) -> list[int]:
        """Numbers, from 1, of the experts that are nearly never used."""
        return [number for number, mean in enumerate(self.means, 1) if mean < UNUSED / len(self.means)]


def with_gates(required: OutputSpec, experts: int) -> OutputSpec:
    """What is wanted of a student in a watched pass: also its gates, where it has experts and they run anyway."""
    used = required.embedding or required.pre_dense or required.second_view or required.vector
    return required | OutputSpec(experts=True) if experts and used else required


def routing(gates: Float[Tensor, "texts experts"]) -> Routing:
    """What the gates of some texts show; at least two experts."""
    gates = gates.detach().double()
    entropy = torch.special.entr(gates).sum(1).mean() / math.log(gates.shape[1])
    decided = (gates.amax(1) > DECIDED).double().mean()
    return Routing(
        tuple(gates.mean(0).tolist()), float(entropy), float(decided), float(gates.std(0, correction=0).mean())
    )


class RoutingWatch:
    """Looks at the gates of a batch now and then and warns once a run of `steps` steps."""

    def __init__(self, steps: int, warned: bool = False) -> None:
        self.steps, self.warned = steps, warned
        self.looks: deque[tuple[Tensor, int]] = deque(
            maxlen=LOOKS
        )  # gates of the last looks, and how many of their texts are distinct

    def tensors(self) -> dict[str, Tensor]:
        """What a checkpoint keeps: the last looks, by number."""
        found = {f"{number}/gates": gates for number, (gates, _) in enumerate(self.looks)}
        return found | {f"{number}/distinct": torch.tensor(distinct) for number, (_, distinct) in enumerate(self.looks)}

    def load(self, tensors: Mapping[str, Tensor]) -> None:
        """Put back what `tensors` gave."""
        for number in range(len(tensors) // 2):
            self.looks.append((tensors[f"{number}/gates"], int(tensors[f"{number}/distinct"])))

    def judge(self, sight: Sight | None, step: int) -> tuple[dict[str, float], str | None]:
        """The batch's figures for the metrics, and a warning where routing is found collapsed for the first time.

        Small batches are judged several together; with fewer than 8 distinct texts nothing is. A student without experts,
        or with one alone, has no routing.
        """
        gates = None if sight is None else sight.student.gates
        if sight is None or gates is None or gates.shape[1] < 2:
            return {}, None
        gates = gates.detach().float().cpu()
        found = routing(gates)
        figures = {f"gate_{number}": mean for number, mean in enumerate(found.means, 1)}
        figures |= {"gate_entropy": found.entropy, "gate_decided": found.decided, "gate_spread": found.spread}
        self.looks.append((gates, len(torch.unique(sight.batch.tokens["input_ids"], dim=0))))
        while sum(len(look) for look, _ in self.looks) - len(self.looks[0][0]) >= ENOUGH:
            self.looks.popleft()
        if self.warned or sum(distinct for _, distinct in self.looks) < FEWEST:
            return figures, None
        warning = describe_collapse(routing(torch.cat([look for look, _ in self.looks])), step / self.steps)
        self.warned = warning is not None
        return figures, warning


def describe_collapse(found: Routing, done: float) -> str | None:
    """What is wrong with the routing when a share `done` of training is over, why it may be, and what to do; None where all is well."""
    means, share = ", ".join(f"{mean:.3f}" for mean in found.means), 100 * found.decided
    figures = f"Mean gates: {means}; entropy {found.entropy:.3f} of 1; {share:.0f} % of the texts have a gate above {DECIDED}."
    count = len(found.means)
    top = max(range(count), key=found.means.__getitem__) + 1
    if found.means[top - 1] > ONE or len(found.unused) >= 2:
        alone = found.means[top - 1] > ONE
        what = (
            f"to one expert: nearly all texts go to expert {top} of {count}"
            if alone
            else f"to some experts: {_listed(found.unused)}"
        )
        return (
            f"Routing collapsed {what}. {figures} Likely cause: gates go where the loss is least, the losses of the experts' facets differ "
            "in size, and nothing strong enough holds the others up. Give the pull towards equal gates a weight of the size of that "
            "difference, say 1 [method.options.beta]; raise the floor [method.options.floor] and the weight of the term that it is part of "
            "[method.weights.diversity]; lower the gate's rate [train.learning_rate_factors]; or leave out the facets that are not used "
            "[method.options.facets]."
        )
    if done >= UNIFORM_AFTER and found.entropy > UNIFORM and found.spread < APART:
        return (
            f"Routing collapsed to uniform: every text gets nearly equal gates, which hardly depend on it (standard deviation over texts "
            f"{found.spread:.4f}). {figures} Likely cause: the pull towards equal gates or the floor is too strong: lower it "
            "[method.options.beta, method.options.floor]; the experts have become alike: raise [method.weights.diversity]; or the gate "
            "learns too slowly: raise its rate [train.learning_rate_factors]."
        )
    return None


def _listed(numbers: list[int]) -> str:
    return f"experts {', '.join(map(str, numbers[:-1]))} and {numbers[-1]} are nearly never used"
