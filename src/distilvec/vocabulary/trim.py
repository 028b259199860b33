"""Choice of a smaller vocabulary: tokens that texts use, or a language's own tokens and those of other languages.

Paper: 003, "... Turkish via Cross-Lingual Tokenizer Surgery and Offline Distillation", section 3.1.
"""

from __future__ import annotations

import math
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from typing import Literal, TypeVar

import numpy as np
import numpy.typing as npt
from tokenizers import Tokenizer
from transformers import PreTrainedTokenizerFast

from distilvec.core.errors import DistilvecError
from distilvec.vocabulary.edit import alphabet, joined, merge_parts, needed, restrict
from distilvec.vocabulary.pieces import Pieces, Surface
from distilvec.vocabulary.train import train_like
from distilvec.vocabulary.trigrams import Trigrams

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

    Texts are split at single spaces. Texts with several spaces in a row, or with one at an end, are kept whole. All
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
            if "  " in text or text[:1] == " " or text[-1:] == " ":
                self.whole[text] += 1
                continue
            first, *later = text.split(" ")
            self.whole[first] += 1
            self.inner.update(later)

    def tokens(self, pieces: Pieces) -> Counts:
        """Return the count of every id [vocabulary] in the texts, without the special tokens around a text."""
        counts = np.zeros(len(pieces.tokens), dtype=np.int64)
        _count(pieces.plain, self.whole.items(), counts)
        _count(pieces.neutral, _lines(self.inner), counts)
        return counts


def _lines(words: Mapping[str, int]) -> Iterator[tuple[str, int]]:
    """Yield lines of words with equal counts, a space before each: few long strings are tokenized faster."""
    by_count: dict[int, list[str]] = {}
    for word, count in words.items():
        by_count.setdefault(count, []).append(word)
    for count, group in by_count.items():
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
class ChosenVocabulary:
    """Chosen vocabulary as a working tokenizer, the counts of its tokens by source, and notes on unmet wishes."""

    tokenizer: PreTrainedTokenizerFast
    figures: dict[str, int]
    notes: tuple[str, ...] = ()


def size_notes(size: int | None, tokens: int, most: str = "the texts use no more") -> tuple[str, ...]:
    """Note a number of tokens that is not the `size` asked for; `most` says why there are no more."""
    if size is None or size == tokens:
        return ()
    reason = most if tokens < size else "special tokens, bytes and letters of the texts always stay"
    return (f"{tokens:,} tokens instead of {size:,}: {reason}",)


def trim(
    pieces: Pieces, words: Mapping[str, Words], size: int | None = None, letters: Alphabet | None = None
) -> ChosenVocabulary:
    """Keep the tokens that the texts use, `words` by language, or `size` tokens in all.

    Without a size no text changes its tokens. Special, added and byte tokens stay, and of the alphabet "all" or the
    letters "seen" in the texts (see `_alphabet_kept`). With a smaller size the rarest tokens go in rounds, and the
    words are counted again after each; every language has the same weight. With a larger one the texts' tokens are
    joined by others that new texts may use (see `likely_unseen`). A size outside of what tokenizer and texts allow is
    raised or lowered, with a note.
    """
    counts = _shares(pieces, words)
    unknown = _unknown(pieces, counts)
    if unknown > UNREADABLE:
        raise DistilvecError(
            f"{unknown:.0%} of the texts' tokens are unknown to {pieces.name}.",
            "Train a vocabulary on them (kind bpe or unigram), or give texts that the model can read.",
            key="student.vocabulary.kind",
        )
    used = {int(number) for number in np.flatnonzero(counts)}
    fixed, notes = _alphabet_kept(pieces, used, letters, size)
    tokens = needed(pieces, used | fixed, fixed)
    if size is not None and size > len(tokens):
        present = {str(pieces.tokens[number]) for number in tokens}
        more = _first(pieces, likely_unseen(pieces, used, tokens), size - len(tokens), present, set())
        tokens |= {pieces.vocabulary[token] for token in more}
    elif size is not None:
        always = {str(pieces.tokens[number]) for number in fixed}
        target_size = max(size, len(fixed))
        while len(tokens) > target_size:
            tokenizer, order = restrict(pieces, tokens, fixed)
            value = np.zeros(len(pieces.tokens))
            value[order] = _shares(Pieces(tokenizer, pieces.name), words)
            round_size = max(target_size, len(fixed) + int(SHRINK * (len(tokens) - len(fixed))))
            ranked = sorted(tokens - fixed, key=lambda number: (-value[number], number))
            best = _first(pieces, ranked, round_size - len(fixed), always, set())
            tokens = fixed | {pieces.vocabulary[token] for token in best}
    tokenizer, order = restrict(pieces, tokens, fixed)
    least = len(fixed) if letters == "all" else len(needed(pieces, (), _letters(pieces, used, "seen")))
    figures = {
        "before": len(pieces.vocabulary),
        "used": len(used),
        "always": len(fixed),
        "least": least,
        "tokens": len(order),
    }
    notes += size_notes(size, len(order), "the letters of the texts write no more")
    return ChosenVocabulary(tokenizer, figures, notes)


def likely_unseen(pieces: Pieces, used: set[int], tokens: set[int]) -> list[int]:
    """Return the `unseen` tokens, the likeliest in new texts first.

    By Bayes' rule a token's probability in texts of this kind is its probability in the vocabulary's own texts, times
    how much likelier its letters are among the used tokens than among all. A Unigram model states the former; else the
    order of the vocabulary has the most frequent tokens first (Zipf's law).
    """
    numbers = unseen(pieces, used, tokens)
    texts = {number: _text(pieces, number) for number in {*numbers, *used}}
    of_used, of_all = Trigrams(texts[number] for number in used), Trigrams(texts.values())
    model = pieces.state["model"]
    likelihood: dict[int, float] = {}
    for place, number in enumerate(numbers, 1):
        in_general = model["vocab"][number][1] if model["type"] == "Unigram" else -math.log(place)
        ratio = of_used.log_probability(texts[number]) - of_all.log_probability(texts[number])
        likelihood[number] = in_general + ratio
    return sorted(numbers, key=lambda number: -likelihood[number])


def unseen(pieces: Pieces, used: set[int], tokens: set[int]) -> list[int]:
    """Return tokens that new texts of the same kind may use: of the letters of the used ones, and not in `tokens`.

    Tokens that their own text is not split into are left out.
    """
    letters: set[str] = set()
    for number in used:
        letters.update(_text(pieces, number))
    numbers: list[int] = []
    for number in range(len(pieces.tokens)):
        text = _text(pieces, number)
        if number not in tokens and text and letters.issuperset(text):
            numbers.append(number)
    lost = unreachable(pieces, numbers)
    return [number for number in numbers if pieces.tokens[number] not in lost]


def _text(pieces: Pieces, number: int) -> str:
    """Return the text of an ordinary token; empty for special and added tokens, and for a part of a character."""
    surface = None if number in pieces.added else pieces.surface(number)
    return surface.text.decode("utf-8", "ignore") if surface is not None else ""


def hybrid(
    pieces: Pieces,
    target: Words,
    texts: Callable[[], Iterable[str]],
    others: Mapping[str, Words],
    share: int,
    size: int,
    letters: Alphabet | None = None,
) -> ChosenVocabulary:
    """Keep `share` tokens of a tokenizer trained on the target language's `texts`, and old tokens of `others`.

    The result has `size` tokens. The new ones are of the old tokenizer's kind, the most frequent in the target's texts;
    before them the letters of these texts, which no new text then loses, if they are at most half of the share.
    Old tokens are taken in turn by language, and for each by length in characters, the most frequent first. Tokens that
    can no longer be made of their text are replaced by the next ones. Numbers outside of what tokenizer and texts allow
    are raised or lowered, with a note.
    """
    used_by_target = {int(number) for number in np.flatnonzero(target.tokens(pieces))}
    counts = {language: words.tokens(pieces) for language, words in others.items()}
    used = set(used_by_target)
    for language_counts in counts.values():
        used.update(np.flatnonzero(language_counts).tolist())
    fixed, notes = _alphabet_kept(pieces, used, letters, size, size - share)
    always = {str(pieces.tokens[number]) for number in fixed}
    room = max(0, size - len(fixed))
    target_count = min(share, room)
    training_size = int(MORE * target_count) + len(fixed)
    target_pieces = Pieces(train_like(pieces, training_size, texts), "the target's tokenizer")
    target_ranked = _by_count(target.tokens(target_pieces), target_pieces)
    letters_of_target = _new_letters(target_pieces, always)
    if 2 * len(letters_of_target) <= target_count:
        target_ranked = list(dict.fromkeys([*letters_of_target, *target_ranked]))
    others_ranked = list(_in_turn(pieces, counts))
    refused: set[str] = set()
    for _ in range(_ROUNDS):
        target_tokens = _first(target_pieces, target_ranked, target_count, always, refused)
        present = {*always, *target_tokens}
        other_tokens = _first(pieces, others_ranked, room - len(target_tokens), present, refused)
        other_numbers = {pieces.vocabulary[token] for token in other_tokens}
        tokenizer = joined(pieces, fixed | other_numbers, target_pieces, target_tokens)
        lost = unreachable(Pieces(tokenizer)) - always
        if not lost:
            break
        refused |= lost
    if len(target_tokens) < share:
        reason = "its texts give no more"
        if target_count < share:
            reason = "no more are left by special tokens and letters"
        notes += (f"{len(target_tokens):,} tokens of the target language instead of {share:,}: {reason}",)
    figures = {
        "before": len(pieces.vocabulary),
        "always": len(fixed),
        "target": len(target_tokens),
        "others": len(other_tokens),
        "redundant": len(used_by_target - fixed - other_numbers),
        "unreachable": len(lost),
        "tokens": len(tokenizer),
    }
    return ChosenVocabulary(tokenizer, figures, notes + size_notes(size, len(tokenizer)))


def unreachable(pieces: Pieces, numbers: Iterable[int] | None = None) -> set[str]:
    """Return the tokens that their own text is not split into, without special, added and byte tokens.

    `numbers`: the ids to look at, by default all.
    """
    byte_tokens = {number for number, letter in alphabet(pieces).items() if letter.startswith("<0x")}
    surfaces: dict[int, Surface] = {}
    for number in range(len(pieces.tokens)) if numbers is None else numbers:
        surface = None if number in pieces.added else pieces.surface(number)
        if surface is not None:
            surfaces[number] = surface
    tokens = set()
    for number, ids in zip(surfaces, pieces.encode(list(surfaces.values())), strict=True):
        if ids != [number] and number not in byte_tokens:
            tokens.add(str(pieces.tokens[number]))
    return tokens


def _first(pieces: Pieces, ranked: Sequence[int], count: int, present: set[str], refused: set[str]) -> list[str]:
    """Return the first `count` ranked tokens that are not present, each after its parts; none made of refused ones."""
    chosen: dict[str, None] = {}  # in order
    parts = merge_parts(pieces)
    for number in ranked:
        tokens = [str(pieces.tokens[part]) for part in parts(number)]
        if refused.isdisjoint(tokens):
            new = [token for token in tokens if token not in present and token not in chosen]
            chosen |= dict.fromkeys(new[: count - len(chosen)])
        if len(chosen) == count:
            break
    return list(chosen)


def _shares(pieces: Pieces, words: Mapping[str, Words]) -> npt.NDArray[np.float64]:
    """Return each id's share of a text's tokens, the mean over languages."""
    counts = [part.tokens(pieces).astype(np.float64) for part in words.values()]
    return np.sum([count / max(count.sum(), 1) for count in counts], axis=0) / len(counts)


def _unknown(pieces: Pieces, counts: npt.NDArray[np.float64]) -> float:
    """Return the share of unknown tokens; tokens of a space alone, which also precede unknown words, do not count."""
    spaces = []
    for number in np.flatnonzero(counts).tolist():
        surface = pieces.surface(number)
        if surface is not None and not surface.text.strip():
            spaces.append(number)
    total = float(counts.sum() - counts[spaces].sum())
    if pieces.unknown is None or not total:
        return 0.0
    return float(counts[pieces.unknown]) / total


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
    letters_by_number = alphabet(pieces)
    if letters == "all" or pieces.kind == "byte_level":
        return set(letters_by_number)
    seen: set[str] = set()
    for number in used:
        seen.update(pieces.tokens[number] or "")
    return {number for number, letter in letters_by_number.items() if len(letter) != 1 or letter in seen}


def _new_letters(pieces: Pieces, present: set[str]) -> list[int]:
    """Return the letters of a tokenizer that are not `present`; none where bytes write every letter."""
    letters = alphabet(pieces)
    if pieces.kind == "byte_level" or any(letter.startswith("<0x") for letter in letters.values()):
        return []
    return [number for number in letters if number not in pieces.special and pieces.tokens[number] not in present]


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
            length = len(surface.text.decode("utf-8", "replace")) if surface else 0
            lengths.setdefault(length, []).append(number)
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
