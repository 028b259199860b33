"""The choice of the layers to keep: those with which a backbone stays nearest to its teacher.

Many choices begin with the same layers. Choices are therefore measured in the order of their numbers, and the layers
that the next choice begins with, too, run once.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

from torch import nn
from transformers import PreTrainedModel

from distilvec.students.layers import (
    OutsideLayers,
    changed_by_reading,
    choose_layers,
    layer_list,
    only_layers,
    outside_layers,
)

MOST_CHOICES = 300  # that are all compared
FINALISTS = 16  # choices that are measured after a glance at all of them
FINALISTS_OF_A_STEP = 2  # of the layers that may be added next


def best_layers(
    model: PreTrainedModel, count: int, distance: Callable[[], float], glance: Callable[[], float] | None = None
) -> tuple[list[int], dict[tuple[int, ...], float]]:
    """Choose `count` layers by `distance`, called while the model runs with a choice only; and every distance found.

    All choices are compared if there are at most 300. Of more than 300, layers are added one by one, each the best next
    to those chosen before. Where a `glance` gives the distance of fewer texts, it decides which 16 choices are
    measured, or which two for the next layer. The evenly spread ones are measured beside them. Both functions run the
    model on the same texts in the same order at every call, in evaluation mode and without gradients. The model is
    unchanged afterwards.
    """
    _, layers = layer_list(model)
    total = len(layers)
    # Layers that may come first: ModernBERT's layer 0 lacks the norm of the others, and nothing can replace it
    kinds = [layer.state_dict().keys() for layer in layers]
    first_layers = [number for number in range(total) if kinds[number] == kinds[0]]
    outside = outside_layers(model)
    measured = _Distances(model, distance, outside)
    glanced = None if glance is None else _Distances(model, glance, outside)

    def possible(choices: Sequence[list[int]]) -> list[list[int]]:
        return [keep for keep in choices if keep[0] in first_layers and not changed_by_reading(model.config, keep)]

    def finalists(choices: list[list[int]], number: int) -> list[list[int]]:
        return choices if glanced is None or len(choices) <= number else glanced.nearest(choices, number)

    spread = choose_layers(count, total)
    measured.nearest([spread], 1)  # always measured, for the report
    if _all_compared(count, total):
        choices = possible([list(keep) for keep in itertools.combinations(range(total), count)])
        if _many(count, total):
            choices = finalists(choices, FINALISTS)
    else:
        chosen: list[int] = []
        for _ in range(count):
            candidates = possible([sorted([*chosen, layer]) for layer in range(total) if layer not in chosen])
            [chosen] = measured.nearest(finalists(candidates, FINALISTS_OF_A_STEP), 1)
        choices = [chosen]
    [best] = measured.nearest([*choices, *possible([spread])], 1)
    return best, {**(glanced.found if glanced else {}), **measured.found}


def number_of_distances(count: int, total: int, glances: bool) -> int:
    """Return how many distances `best_layers` asks for at most, glances included."""
    if _all_compared(count, total):
        finalists = FINALISTS + 1 if glances and _many(count, total) else 0  # with the evenly spread layers
        return math.comb(total, count) + finalists
    finalists = FINALISTS_OF_A_STEP * count if glances else 0
    return 1 + sum(total - chosen for chosen in range(count)) + finalists


def _many(count: int, total: int) -> bool:
    return math.comb(total, count) > 2 * FINALISTS


def _all_compared(count: int, total: int) -> bool:
    return math.comb(total, count) <= MOST_CHOICES


class _Distances:
    """The distances of choices on the same texts, each measured once."""

    def __init__(self, model: PreTrainedModel, distance: Callable[[], float], outside: OutsideLayers) -> None:
        self.model = model
        self.distance = distance
        self.outside = outside
        self.found: dict[tuple[int, ...], float] = {}

    def nearest(self, choices: list[list[int]], number: int) -> list[list[int]]:
        """Return the `number` nearest choices, the nearest first; of equal distances the earlier one."""
        new = sorted({tuple(keep) for keep in choices} - self.found.keys())
        first_layers = FirstLayers(layer_list(self.model)[1])
        for keep, following in itertools.pairwise([*new, ()]):
            with only_layers(self.model, keep, self.outside), first_layers.run_once(keep, following):
                self.found[keep] = self.distance()
        return sorted(choices, key=lambda keep: self.found[tuple(keep)])[:number]


class FirstLayers:
    """What the last of the layers that two choices begin with gave for every batch, so that they run once.

    Only the layers that a choice shares with the next one are kept: one tensor of states for every batch.
    """

    def __init__(self, layers: nn.ModuleList) -> None:
        self.layers = layers
        self.numbers: tuple[int, ...] = ()
        self.outputs: list[Any] = []

    @contextmanager
    def run_once(self, keep: tuple[int, ...], following: tuple[int, ...]) -> Iterator[None]:
        """Run a choice without the layers that are known, and keep what the following choice begins with."""
        pairs = itertools.takewhile(lambda pair: pair[0] == pair[1], zip(keep, following, strict=False))
        shared = tuple(number for number, _ in pairs)
        with ExitStack() as stack:
            for number in self.numbers:
                stack.enter_context(_giving(self.layers[number], self.outputs))
            if len(shared) > len(self.numbers):
                outputs = stack.enter_context(_recording(self.layers[shared[-1]]))
            elif shared == self.numbers:
                outputs = self.outputs
            else:  # what fewer layers gave is not known any more
                shared, outputs = (), []
            yield
        self.numbers, self.outputs = shared, outputs


@contextmanager
def _giving(layer: nn.Module, outputs: list[Any]) -> Iterator[None]:
    """Let a layer give these outputs in turn, whatever it is given."""
    remaining = iter(outputs)
    with _running(layer, lambda *states, **options: next(remaining)):
        yield


@contextmanager
def _recording(layer: nn.Module) -> Iterator[list[Any]]:
    """Keep the outputs of a layer."""
    outputs: list[Any] = []
    forward = layer.forward

    def recorded(*states: Any, **options: Any) -> Any:
        outputs.append(forward(*states, **options))
        return outputs[-1]

    with _running(layer, recorded):
        yield outputs


@contextmanager
def _running(layer: nn.Module, forward: Callable[..., Any]) -> Iterator[None]:
    """Let a layer run another function."""
    own = vars(layer).get("forward")
    vars(layer)["forward"] = forward
    try:
        yield
    finally:
        del vars(layer)["forward"]
        if own is not None:
            vars(layer)["forward"] = own
