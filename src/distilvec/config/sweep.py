"""The part of a recipe's schema about what a sweep varies."""

from __future__ import annotations

import json
import math
from collections import Counter
from typing import Annotated, Any

from pydantic import Field, model_validator

from distilvec.config.base import GRID, Section, Seed, excerpt, key_text

MOST_MEMBERS = 1000  # of a sweep


class SweepSection(Section):
    """What a sweep varies: values of keys, variants of the recipe, seeds of training. Its members are their product."""

    grid: dict[str, Annotated[list[Any], Field(min_length=1)]] = Field(
        default_factory=dict, description="dotted keys, each with the values it takes in turn", json_schema_extra=GRID
    )
    variants: list[str] | None = Field(None, min_length=1, description="names of the recipe's variants, in turn")
    seeds: list[Seed] | None = Field(None, min_length=1, description="values of train.seed, in turn")

    @property
    def size(self) -> int:
        """How many members there are."""
        return math.prod(max(1, len(values)) for values in (*self.grid.values(), self.variants or (), self.seeds or ()))

    @model_validator(mode="after")
    def holds_together(self) -> SweepSection:
        """Refuse what varies nothing, repeats a value, hides a seed in the grid or has too many members."""
        if not (self.grid or self.variants or self.seeds):
            raise ValueError("the sweep varies nothing; give at least one of grid, variants and seeds")
        if "train.seed" in self.grid:
            raise ValueError("train.seed stands in the grid; list its values under 'seeds'")
        for name, values in (*self.grid.items(), ("variants", self.variants or []), ("seeds", self.seeds or [])):
            found = Counter(json.dumps(value, default=str) for value in values)
            if again := [text for text, count in found.items() if count > 1]:
                raise ValueError(f"{key_text(name)} lists {excerpt(json.loads(again[0]))} twice")
        if self.size > MOST_MEMBERS:
            raise ValueError(
                f"the sweep has {self.size:,} members; at most {MOST_MEMBERS:,} are allowed. Vary fewer things at a time"
            )
        return self
