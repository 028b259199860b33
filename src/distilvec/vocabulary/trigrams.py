"""How letters follow each other in some texts: a model of three letters, to tell one language's words from others'."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import chain

LETTERS = 3  # the last of them is predicted
BACK_OFF = 2.0  # observations that a shorter context counts for
_BEFORE = "\0"  # in the place of a letter before a text


class Trigrams:
    """Probabilities of letters after none, one and two others, counted in texts.

    A longer context is smoothed with the next shorter one, which counts for BACK_OFF observations, down to equal
    letters (a hierarchical Dirichlet model; MacKay and Peto 1995).
    """

    def __init__(self, texts: Iterable[str]) -> None:
        self.counts: Counter[str] = Counter()
        self.contexts: Counter[str] = Counter()
        for trigram, count in Counter(chain.from_iterable(map(_trigrams, texts))).items():
            for start in range(LETTERS):
                self.counts[trigram[start:]] += count
                self.contexts[trigram[start:-1]] += count
        self.distinct = max(1, sum(len(letters) == 1 for letters in self.counts))
        self._known: dict[str, float] = {}

    def log_probability(self, text: str) -> float:
        """Return the natural logarithm of the probability of a text's letters, not of its length."""
        return sum(map(self._log_probability, _trigrams(text)))

    def _log_probability(self, trigram: str) -> float:
        """Of the last letter after those before it."""
        if trigram not in self._known:
            probability = 1 / self.distinct
            for start in reversed(range(LETTERS)):
                observed = self.counts[trigram[start:]] + BACK_OFF * probability
                probability = observed / (self.contexts[trigram[start:-1]] + BACK_OFF)
            self._known[trigram] = math.log(probability)
        return self._known[trigram]


def _trigrams(text: str) -> Iterator[str]:
    """Yield every letter of a text behind the two before it."""
    padded = _BEFORE * (LETTERS - 1) + text
    return (padded[place : place + LETTERS] for place in range(len(text)))
