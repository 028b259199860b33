"""Small generated texts."""

from __future__ import annotations

WORDS = (
    "river stone bridge letter engine garden winter doctor music island paper bottle window market forest captain "
    "mirror candle "
    "harbour village painter thunder silver kitchen teacher student planet journey whisper lantern orchard compass"
).split()


def make_texts(count: int, seed: int = 0) -> list[str]:
    """Distinct texts of 2 to 14 words."""
    import numpy as np

    generator = np.random.default_rng(seed)
    return [" ".join(generator.choice(WORDS, generator.integers(2, 14))) + f" {number}" for number in range(count)]
