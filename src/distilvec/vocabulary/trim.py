"""Choice of a smaller vocabulary: tokens that texts use, or a language's own tokens and those of other languages.

Paper: 003, "... Turkish via Cross-Lingual Tokenizer Surgery and Offline Distillation", section 3.1.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from typing import Literal, TypeVar

import numpy as np
import numpy.typing as npt
from tokenizers import Tokenizer
from transformers import PreTrainedTokenizerFast

from distilvec.core.errors import DistilvecError
from distilvec.vocabulary.edit import alphabet, joined, needed, parts_of, restrict
from distilvec.vocabulary.pieces import Pieces

Alphabet = Literal["all", "seen"]
Counts = npt.NDArray[np.int64]
Item = TypeVar("Item")
MORE = 1.5  # size of the tokenizer trained on the target language in times the share (the paper: 100,000 for 65,536)
UNREADABLE = 0.5  # share of unknown tokens above which a tokenizer cannot read the texts
SHRINK = 0.85  # share of the tokens that may go which stay after one round
_ROUNDS = 8  # in which tokens that can no longer be made are replaced
_PROBE = 512  # texts counted whole, to compare with
_LINE = 64  # words per string
_BATCH = 8192  # strings tokenized at once


class Words:
    """Distinct words of texts with their counts: `inner` after a space, `whole` at the beginning of a text.

    Texts are split at single spaces. Texts with several spaces in a row, or one at the beginning, are kept whole. All
    texts are kept whole if tokens of the tokenizer `pieces` reach across spaces, which the first 512 texts show.
    """

    def __init__(self, texts: Iterable[str], pieces: Pieces) -> None:
        self.inner, self.whole = Counter[str](), Counter[str]()
        texts = iter(texts)
        probe = list(islice(texts, _PROBE))
        self._add(probe)
        expected = np.zeros(len(pieces.tokens), dtype=np.int64)
        _count(pieces.plain, Counter(probe).items(), expected)
        if np.array_equal(self.tokens(pieces), expected):
            self._add(texts)
        else:
            self.inner, self.whole = Counter(), Counter(chain(probe, texts))

    def _add(self, texts: Iterable[str]) -> None:
        for text in texts:
            first, *others = [text] if "  " in text or text[:1] == " " else text.split(" ")
            self.whole[first] += 1
            self.inner.update(others)

    def tokens(self, pieces: Pieces) -> Counts:
        """Return the count of every id [vocabulary] in the texts, without the special tokens around a text."""
        counts = np.zeros(len(pieces.tokens), dtype=np.int64)
        _count(pieces.plain, self.whole.items(), counts)
        _count(pieces.neutral, _lines(self.inner), counts)
        return counts


def _lines(words: Mapping[str, int]) -> Iterator[tuple[str, int]]:
    """Yield lines of words with equal counts, a space before each: few long strings are tokenized faster."""
    alike: dict[int, list[str]] = {}
    for word, count in words.items():
        alike.setdefault(count, []).append(word)
    for count, group in alike.items():
        for first in range(0, len(group), _LINE):
            yield f" {' '.join(group[first : first + _LINE])}", count


def _count(tokenizer: Tokenizer, strings: Iterable[tuple[str, int]], counts: Counts) -> None:
    """Add the tokens of each string to `counts`, each times the string's count."""
    items = iter(strings)
    while batch := list(islice(items, _BATCH)):
        encodings = tokenizer.encode_batch_fast([string for string, _ in batch], add_special_tokens=False)
        lists = [encoding.ids for encoding in encodings]
        ids = np.fromiter(chain.from_iterable(lists), dtype=np.int64)
        np.add.at(counts, ids, np.repeat([count for _, count in batch], [len(ids) for ids in lists]))


@dataclass(frozen=True)
class Vocabulary:
    """Chosen vocabulary as a working tokenizer, the counts of its tokens by source, and notes on unmet wishes."""

    tokenizer: PreTrainedTokenizerFast
    figures: dict[str, int]
    notes: tuple[str, ...] = ()


def size_notes(size: int | None, tokens: int) -> tuple[str, ...]:
    """Note a number of tokens that is not the `size` asked for."""
    if size is None or size == tokens:
        return ()
    reason = "the texts use no more"
    if tokens > size:
        reason = "special tokens, bytes and letters of the texts always stay"
    return (f"{tokens:,} tokens instead of {size:,}: {reason}",)


def trim(
    pieces: Pieces, words: Mapping[str, Words], size: int | None = None, letters: Alphabet | None = None
) -> Vocabulary:
    """Keep the tokens that the texts use, `words` by language: all of them, or the most frequent ones, `size` in all.

    Without a size no text changes its tokens. Special, added and byte tokens stay, and of the alphabet "all" or the
    letters "seen" in the texts (see `_alphabet_kept`). With a size the rarest tokens go in rounds, and the words are
    counted again after each. Every language has the same weight. A size outside of what tokenizer and texts allow is
    raised or lowered, with a note. Errors: DistilvecError for mostly unknown tokens.
    """
    counts = _shares(pieces, words)
    if (unknown := _unknown(pieces, counts)) > UNREADABLE:
        raise DistilvecError(
            "student.vocabulary.kind",
            f"{unknown:.0%} of the texts' tokens are unknown to {pieces.name}.",
            "Train a vocabulary on them (kind bpe or unigram), or give texts that the model can read.",
        )
    used = {int(number) for number in np.flatnonzero(counts)}
    fixed, notes = _alphabet_kept(pieces, used, letters, size)
    kept = needed(pieces, used | fixed, fixed)
    if size is not None:
        always = {str(pieces.tokens[number]) for number in fixed}
        wish = max(size, len(fixed))
        while len(kept) > wish:
            tokenizer, order = restrict(pieces, kept, fixed)
            value = np.zeros(len(pieces.tokens))
            value[order] = _shares(Pieces(tokenizer, pieces.name), words)
            goal = max(wish, len(fixed) + int(SHRINK * (len(kept) - len(fixed))))
            ranked = sorted(kept - fixed, key=lambda number: (-value[number], number))
            best = _first(pieces, ranked, goal - len(fixed), always, set())
            kept = fixed | {pieces.vocabulary[token] for token in best}
    tokenizer, order = restrict(pieces, kept, fixed)
    least = len(fixed) if letters == "all" else len(needed(pieces, (), _letters(pieces, used, "seen")))
    figures = {"before": len(pieces.vocabulary), "used": len(used), "always": len(fixed), "least": least}
    figures |= {"tokens": len(order)}
    return Vocabulary(tokenizer, figures, notes + size_notes(size, len(order)))


def hybrid(
    pieces: Pieces,
    target: Words,
    texts: Iterable[str],
    others: Mapping[str, Words],
    share: int,
    size: int,
    letters: Alphabet | None = None,
) -> Vocabulary:
    """Keep `share` tokens of a tokenizer trained on the target language's `texts`, and old tokens of `others`.

    The result has `size` tokens. The new ones are of the old tokenizer's kind, the most frequent in the target's texts.
    Old tokens are taken in turn by language, and for each by length in characters, the most frequent first. Tokens that
    can no longer be made of their text are replaced by the next ones. Numbers outside of what tokenizer and texts allow
    are raised or lowered, with a note.
    """
    of_target_used = {int(number) for number in np.flatnonzero(target.tokens(pieces))}
    counts = {language: words.tokens(pieces) for language, words in others.items()}
    used = of_target_used.union(*(np.flatnonzero(count).tolist() for count in counts.values()))
    fixed, notes = _alphabet_kept(pieces, used, letters, size, size - share)
    always = {str(pieces.tokens[number]) for number in fixed}
    room = max(0, size - len(fixed))
    own_count = min(share, room)
    count = int(MORE * own_count) + len(fixed)
    own = Pieces(pieces.tokenizer.train_new_from_iterator(texts, count, show_progress=False), "the target's tokenizer")
    of_target = _by_count(target.tokens(own), own)
    of_others = list(_in_turn(pieces, counts))
    refused = set[str]()
    for _ in range(_ROUNDS):
        chosen = _first(own, of_target, own_count, always, refused)
        filling = _first(pieces, of_others, room - len(chosen), {*always, *chosen}, refused)
        others_kept = {pieces.vocabulary[token] for token in filling}
        tokenizer = joined(pieces, fixed | others_kept, own, chosen)
        lost = unreachable(Pieces(tokenizer)) - always
        if not lost:
            break
        refused |= lost
    if len(chosen) < share:
        reason = "no more are left by special tokens and letters" if own_count < share else "its texts give no more"
        notes += (f"{len(chosen):,} tokens of the target language instead of {share:,}: {reason}",)
    figures = {"before": len(pieces.vocabulary), "always": len(fixed), "target": len(chosen), "others": len(filling)}
    figures |= {"redundant": len(of_target_used - fixed - others_kept), "unreachable": len(lost)}
    figures |= {"tokens": len(tokenizer)}
    return Vocabulary(tokenizer, figures, notes + size_notes(size, len(tokenizer)))


def unreachable(pieces: Pieces) -> set[str]:
    """Return the tokens that their own text is not split into, without special, added and byte tokens."""
    numbers = [number for number in range(len(pieces.tokens)) if number not in pieces.added]
    surfaces = {number: surface for number in numbers if (surface := pieces.surface(number)) is not None}
    apart = {number for number, letter in alphabet(pieces).items() if letter.startswith("<0x")}
    made = zip(surfaces, pieces.encode(list(surfaces.values())), strict=True)
    return {str(pieces.tokens[number]) for number, ids in made if ids != [number] and number not in apart}


def _first(pieces: Pieces, ranked: Sequence[int], count: int, present: set[str], refused: set[str]) -> list[str]:
    """Return the first `count` ranked tokens that are not present, each after its parts; none made of refused ones."""
    found, parts = dict[str, None](), parts_of(pieces)
    for number in ranked:
        tokens = [str(pieces.tokens[part]) for part in parts(number)]
        if refused.isdisjoint(tokens):
            new = [token for token in tokens if token not in present and token not in found]
            found |= dict.fromkeys(new[: count - len(found)])
        if len(found) == count:
            break
    return list(found)


def _shares(pieces: Pieces, words: Mapping[str, Words]) -> npt.NDArray[np.float64]:
    """Return each id's share of a text's tokens, the mean over languages."""
    counts = [part.tokens(pieces).astype(np.float64) for part in words.values()]
    return np.sum([count / max(count.sum(), 1) for count in counts], axis=0) / len(counts)


def _unknown(pieces: Pieces, counts: npt.NDArray[np.float64]) -> float:
    """Return the share of unknown tokens; tokens of a space alone, which also precede unknown words, do not count."""
    surfaces = {number: pieces.surface(number) for number in np.flatnonzero(counts).tolist()}
    spaces = [number for number, surface in surfaces.items() if surface is not None and not surface.text.strip()]
    total = float(counts.sum() - counts[spaces].sum())
    return float(counts[pieces.unknown]) / total if pieces.unknown is not None and total else 0.0


def _alphabet_kept(
    pieces: Pieces, used: set[int], letters: Alphabet | None, size: int | None, room: int | None = None
) -> tuple[set[int], tuple[str, ...]]:
    """Return the tokens that always stay, and a note if letters that the texts never use make way.

    Without a stated choice they do where everything together is more than the size, and the alphabet more than half of
    it: few tokens of more than one letter would be left. With "all" they do if the alphabet has no `room`.
    """
    seen = needed(pieces, (), _letters(pieces, used, "seen"))
    if letters == "seen":
        return seen, ()
    everything = needed(pieces, (), _letters(pieces, used, "all"))
    if size is None:
        return everything, ()
    room = size if room is None else room
    if letters is None and len(needed(pieces, used | everything, everything)) > room:
        room = min(room, size // 2)
    if len(everything) <= room or len(seen) == len(everything):
        return everything, ()
    note = (
        f"{len(everything) - len(seen):,} letters that the texts never use are left out: the old alphabet alone has "
        f"{len(everything):,} tokens, of {size:,} in all"
    )
    return seen, (note,)


def _letters(pieces: Pieces, used: set[int], letters: Alphabet) -> set[int]:
    """Return the alphabet, or with "seen" bytes and the letters of the used tokens."""
    found = alphabet(pieces)
    if letters == "all" or pieces.kind == "byte_level":
        return set(found)
    seen = {letter for number in used for letter in pieces.tokens[number] or ""}
    return {number for number, letter in found.items() if len(letter) != 1 or letter in seen}


def _by_count(counts: Counts, pieces: Pieces) -> list[int]:
    """Return the ordinary tokens that occur, the most frequent first."""
    order = np.argsort(-counts, kind="stable")[: int((counts > 0).sum())]
    return [number for number in order.tolist() if number not in pieces.special and number not in pieces.added]


def _in_turn(pieces: Pieces, counts: Mapping[str, Counts]) -> Iterator[int]:
    """Yield tokens in turn by language, and for each by length in characters, each token once."""
    seen = set[int]()

    def fresh(numbers: list[int]) -> Iterator[int]:
        for number in numbers:
            if number not in seen:
                seen.add(number)
                yield number

    languages = []
    for of_language in counts.values():
        lengths: dict[int, list[int]] = {}
        for number in _by_count(of_language, pieces):
            surface = pieces.surface(number)
            lengths.setdefault(len(surface.text.decode("utf-8", "replace")) if surface else 0, []).append(number)
        languages.append(_round_robin([fresh(lengths[length]) for length in sorted(lengths)]))
    yield from _round_robin(languages)


def _round_robin(iterators: Iterable[Iterator[Item]]) -> Iterator[Item]:
    """Yield one item of each iterator in turn until all are empty."""
    waiting = deque(iterators)
    while waiting:
        try:
            item = next(waiting[0])
        except StopIteration:
            waiting.popleft()
            continue
        yield item
        waiting.rotate(-1)
