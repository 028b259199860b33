"""The part of a recipe's schema about the keys that a sweep varies."""

from __future__ import annotations

import json
import math
from collections import Counter

from pydantic import model_validator

from distilvec.config.base import Grid, Section, Seed, excerpt, key, key_text

MOST_RUNS = 1000  # of a sweep


class SweepSection(Section):
    """Values of keys, variants of the recipe and seeds of training that a sweep varies; its runs are their product."""

    grid: Grid = key({}, "dotted keys with lists of values")
    variants: list[str] | None = key(None, "names of the recipe's variants, in turn; a+b combines two", min_length=1)
    seeds: list[Seed] | None = key(None, "values of train.seed, in turn", min_length=1)

    @property
    def size(self) -> int:
        """The number of runs."""
        return math.prod(max(1, len(values)) for values in (*self.grid.values(), self.variants or (), self.seeds or ()))

    @model_validator(mode="after")
    def check_sweep(self) -> SweepSection:
        """Refuse a sweep that varies nothing, repeats a value, varies train.seed in the grid or has too many runs."""
        if not (self.grid or self.variants or self.seeds):
            raise ValueError("the sweep varies nothing; give at least one of grid, variants and seeds")
        if "train.seed" in self.grid:
            raise ValueError("train.seed is in the grid; list its values under 'seeds'")
        for name, values in (*self.grid.items(), ("variants", self.variants or []), ("seeds", self.seeds or [])):
            counts = Counter(json.dumps(value, default=str) for value in values)
            if again := [text for text, count in counts.items() if count > 1]:
                raise ValueError(f"{key_text(name)} lists {excerpt(json.loads(again[0]))} twice")
        if self.size > MOST_RUNS:
            raise ValueError(f"the sweep has {self.size:,} runs; at most {MOST_RUNS:,} are allowed")
        return self
