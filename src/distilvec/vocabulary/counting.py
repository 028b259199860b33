"""How often each token of a tokenizer stands in texts: every distinct word is cut once, however often it occurs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from itertools import chain, islice

import numpy as np
import numpy.typing as npt
from tokenizers import Tokenizer

from distilvec.vocabulary.pieces import Pieces

Counts = npt.NDArray[np.int64]
_PROBE = 512  # texts kept whole, to compare with
_LINE = 64  # words in a line
_CUT = 8192  # strings cut at once


class Words:
    """The distinct words of some texts, with how often each occurs: those that begin a text apart from those behind a space.

    Texts are taken apart at single spaces alone; one with several in a row, or with one at its beginning, is kept whole. So is
    every text where tokens of the tokenizer `pieces`, which they are gathered for, reach across spaces: where the first 512 texts
    have other tokens than their words. All distinct words are held in memory.
    """

    def __init__(self, texts: Iterable[str], pieces: Pieces) -> None:
        self.first, self.inner, self.whole = Counter[str](), Counter[str](), Counter[str]()
        texts = iter(texts)
        probe = list(islice(texts, _PROBE))
        self._add(probe)
        expected = np.zeros(len(pieces.tokens), dtype=np.int64)
        _cut(pieces.plain, Counter(probe).items(), expected)
        if np.array_equal(self.tokens(pieces), expected):
            self._add(texts)
        else:
            self.first.clear()
            self.inner.clear()
            self.whole = Counter(chain(probe, texts))

    def _add(self, texts: Iterable[str]) -> None:
        for text in texts:
            if "  " in text or text[:1] == " ":
                self.whole[text] += 1
                continue
            first, *others = text.split(" ")
            self.first[first] += 1
            self.inner.update(others)

    def tokens(self, pieces: Pieces) -> Counts:
        """How often every id [vocabulary] stands in the texts; special tokens that are added to a text are not counted."""
        counts = np.zeros(len(pieces.tokens), dtype=np.int64)
        _cut(pieces.plain, self.first.items(), counts)
        _cut(pieces.plain, self.whole.items(), counts)
        _cut(pieces.neutral, _lines(self.inner), counts)
        return counts


def _lines(words: Mapping[str, int]) -> Iterator[tuple[str, int]]:
    """The words, each behind a space, in lines of words that occur equally often: few long strings are cut faster than many short ones."""
    alike: dict[int, list[str]] = {}
    for word, count in words.items():
        alike.setdefault(count, []).append(word)
    for count, group in alike.items():
        for first in range(0, len(group), _LINE):
            yield f" {' '.join(group[first : first + _LINE])}", count


def _cut(tokenizer: Tokenizer, strings: Iterable[tuple[str, int]], counts: Counts) -> None:
    """Add the tokens of each string to `counts`, so many times."""
    items = iter(strings)
    while batch := list(islice(items, _CUT)):
        encodings = tokenizer.encode_batch_fast([string for string, _ in batch], add_special_tokens=False)
        lists = [encoding.ids for encoding in encodings]
        lengths = np.fromiter(map(len, lists), dtype=np.int64, count=len(lists))
        ids = np.fromiter(chain.from_iterable(lists), dtype=np.int64, count=int(lengths.sum()))
        np.add.at(counts, ids, np.repeat(np.array([count for _, count in batch], dtype=np.int64), lengths))
