"""What is summed up between two logged lines."""

from __future__ import annotations

import time
from collections.abc import Mapping

import torch
from torch import Tensor

from distilvec.core.objective import LossTerms
from distilvec.train.checkpoint import Progress


class Window:
    """Sums since the last logged line, kept on the device so that no step waits for a number."""

    def __init__(self) -> None:
        self.sums: dict[str, Tensor] = {}
        self.counts: dict[str, int] = {}
        self.rate, self.note, self.saved = 0.0, "", time.monotonic()
        self.texts, self.tokens, self.seconds = 0, 0, 0.0

    def tensors(self) -> dict[str, Tensor]:
        """What a checkpoint keeps of the window, so that the next line is the same after a kill."""
        found = {"since": torch.tensor([self.texts, self.tokens, self.seconds], dtype=torch.float64)}
        found |= {f"count/{name}": torch.tensor(count) for name, count in self.counts.items()}
        return found | {f"sum/{name}": value for name, value in self.sums.items()}

    def load(self, tensors: Mapping[str, Tensor], device: torch.device) -> None:
        """Put back what `tensors` gave; nothing where a checkpoint has none."""
        if "since" not in tensors:
            return
        texts, tokens, self.seconds = tensors["since"].tolist()
        self.texts, self.tokens = int(texts), int(tokens)
        self.counts = {
            name.removeprefix("count/"): int(value) for name, value in tensors.items() if name.startswith("count/")
        }
        self.sums = {
            name.removeprefix("sum/"): value.to(device) for name, value in tensors.items() if name.startswith("sum/")
        }

    def add(self, terms: LossTerms, rate: float) -> None:
        """Add a step's terms."""
        self.rate = rate
        for name, values in terms.items():
            value = values.sum()
            self.sums[name] = self.sums[name] + value if name in self.sums else value
            self.counts[name] = self.counts.get(name, 0) + len(values)

    def means(self, weights: dict[str, float]) -> dict[str, float]:
        """Mean of each term, of the weighted loss, and the learning rate."""
        terms = {name: float(value) / self.counts[name] for name, value in self.sums.items()}
        loss = sum(weights[name] * value for name, value in terms.items())
        return {"loss": loss, **{f"loss_{name}": value for name, value in terms.items()}, "learning_rate": self.rate}

    def finite(self) -> bool:
        """Whether every sum is a finite number; a checkpoint of anything else would destroy a good one."""
        return all(bool(torch.isfinite(value)) for value in self.sums.values())

    def restart(self, state: Progress, note: str) -> None:
        """Begin a new window at this state."""
        self.sums, self.counts, self.note = {}, {}, note
        self.texts, self.tokens, self.seconds = state.texts, state.tokens, state.seconds
