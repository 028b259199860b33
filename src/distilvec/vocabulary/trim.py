"""Which tokens a smaller vocabulary holds: those that texts use, or a language's own and beside them what other languages need.

Paper: "Adapting Multilingual Embedding Models to Turkish via Cross-Lingual Tokenizer Surgery and Offline Distillation", 3.1.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Literal

import numpy as np
import numpy.typing as npt
from transformers import PreTrainedTokenizerFast

from distilvec.core.errors import DistilvecError
from distilvec.vocabulary.counting import Counts, Words
from distilvec.vocabulary.edit import alphabet, joined, needed, parts_of, restrict
from distilvec.vocabulary.pieces import Pieces

Alphabet = Literal["all", "seen"]
MORE = 1.5  # times the share: so large is the tokenizer whose most frequent tokens are taken (the paper: 100,000 for 65,536)
UNREADABLE = 0.5  # of the texts' tokens unknown: a tokenizer that cannot read them
SHRINK = 0.85  # of the tokens that may go, so many stay in a round
_ROUNDS = 8  # in which tokens that cannot be made any more are replaced
_TEXTS = 1000  # that a trainer gets at once


@dataclass(frozen=True)
class Vocabulary:
    """A chosen vocabulary as a working tokenizer, and in numbers what it was chosen from."""

    tokenizer: PreTrainedTokenizerFast
    figures: dict[str, int]


def trim(pieces: Pieces, words: Mapping[str, Words], size: int | None = None, letters: Alphabet = "all") -> Vocabulary:
    """The tokens that the texts use, `words` by language: all of them, which changes nothing on these texts, or `size` in all.

    Special and added tokens and bytes are always kept, and the alphabet: "all" of it, or the letters "seen" in the texts. With a
    size, the rarest tokens are dropped in several rounds; after each the words are cut anew, so that what dropped words fall
    into counts. Languages count alike, however long their texts are.
    Errors: DistilvecError for a size that what is always kept exceeds, or above what the texts use; for texts that the tokenizer
    cannot read, of which more than half of the tokens are unknown (the mark of a space apart).
    """
    counts = _shares(pieces, words)
    if (unknown := _unknown(pieces, counts)) > UNREADABLE:
        raise DistilvecError(
            f"[student.vocabulary.kind] {unknown:.0%} of the texts' tokens are unknown to {pieces.name}: it does not know "
            "their script, and a part of it would not either. "
            "Train a vocabulary on them (kind bpe or unigram), or give texts that the model can read."
        )
    used = {int(number) for number in np.flatnonzero(counts)}
    fixed = needed(pieces, (), _letters(pieces, used, letters))
    kept = needed(pieces, used | fixed, fixed)
    if size is not None:
        if size < len(fixed):
            raise DistilvecError(
                f"[student.vocabulary.size] a vocabulary of {size} is too small: special tokens, bytes and the alphabet of "
                f"{pieces.name} take {len(fixed)}. "
                'Ask for that at least, or keep only the letters that are "seen".'
            )
        if size > len(kept):
            raise DistilvecError(
                f"[student.vocabulary.size] the texts use {len(kept)} tokens of {pieces.name}, not {size}. "
                "Ask for that at most, or give more text."
            )
        while len(kept) > size:
            tokenizer, order = restrict(pieces, kept, fixed)
            value = np.zeros(len(pieces.tokens))
            value[order] = _shares(Pieces(tokenizer, pieces.name), words)
            goal = max(size, len(fixed) + int(SHRINK * (len(kept) - len(fixed))))
            kept = _best(pieces, kept, fixed, value, goal)
    tokenizer, order = restrict(pieces, kept, fixed)
    return Vocabulary(
        tokenizer, {"before": len(pieces.vocabulary), "used": len(used), "always": len(fixed), "tokens": len(order)}
    )


def hybrid(
    pieces: Pieces,
    target: Words,
    texts: Iterable[str],
    others: Mapping[str, Words],
    share: int,
    size: int,
    letters: Alphabet = "all",
) -> Vocabulary:
    """`share` tokens of a tokenizer trained on the target language's `texts`, and up to `size` the old tokens that `others` use most.

    The new tokens are of the old tokenizer's kind, the most frequent in the target's texts first. Old tokens that they make
    redundant go: those that the target's texts used and no other language asks for. What is kept for the others is taken language by
    language in turn, and for each by length in characters in turn, the most frequent of a length first. Tokens that
    cannot be made of their text any more give way to the next ones.
    Errors: DistilvecError for a size that leaves no room, texts that do not give `share` tokens, too few old ones to fill the rest.
    """
    used = {int(number) for number in np.flatnonzero(target.tokens(pieces))}
    fixed = needed(pieces, (), _letters(pieces, used, letters))
    always = {str(pieces.tokens[number]) for number in fixed}
    if len(fixed) + share > size:
        raise DistilvecError(
            f"[student.vocabulary.size] a vocabulary of {size} is too small for {share} tokens of the target language: special tokens, "
            f"bytes and the alphabet of {pieces.name} take {len(fixed)}. Ask for {len(fixed) + share} at least."
        )
    trained = pieces.tokenizer.train_new_from_iterator(
        _batches(texts), int(MORE * share) + len(fixed), show_progress=False
    )
    own = Pieces(trained, "the target language's tokenizer")
    of_target = _by_count(target.tokens(own), own)
    of_others = list(_in_turn(pieces, {language: words.tokens(pieces) for language, words in others.items()}))
    refused = set[str]()
    for _ in range(_ROUNDS):
        chosen = _first(own, of_target, share, always, refused)
        if len(chosen) < share:
            raise DistilvecError(
                f"[student.vocabulary.share] the target language's texts give {len(chosen)} tokens of their own, not {share}. "
                "Give more text, or ask for fewer."
            )
        filling = _first(pieces, of_others, size - len(fixed) - share, {*always, *chosen}, refused)
        if len(fixed) + share + len(filling) < size:
            raise DistilvecError(
                f"[student.vocabulary.size] the other languages' texts use too few tokens of {pieces.name}: with them the vocabulary has "
                f"{len(fixed) + share + len(filling)} tokens, not {size}. Give more text or more languages, or ask for that at most."
            )
        tokenizer = joined(pieces, fixed | {pieces.vocabulary[token] for token in filling}, own, chosen)
        lost = unreachable(Pieces(tokenizer)) - always
        if not lost:
            break
        refused |= lost
    figures = {"before": len(pieces.vocabulary), "always": len(fixed), "target": len(chosen), "others": len(filling)}
    redundant = len(used - fixed - {pieces.vocabulary[token] for token in filling})
    return Vocabulary(
        tokenizer, {**figures, "redundant": redundant, "unreachable": len(lost), "tokens": len(tokenizer)}
    )


def _first(pieces: Pieces, ranked: Sequence[int], count: int, there: set[str], refused: set[str]) -> list[str]:
    """The first `count` of the ranked tokens that are not there yet, each behind what it is made of; none made of refused ones."""
    found, parts = dict[str, None](), parts_of(pieces)
    for number in ranked:
        tokens = [str(pieces.tokens[part]) for part in parts(number)]
        if refused.isdisjoint(tokens):
            new = [token for token in tokens if token not in there and token not in found]
            found |= dict.fromkeys(new[: count - len(found)])
        if len(found) == count:
            break
    return list(found)


def unreachable(pieces: Pieces) -> set[str]:
    """The tokens that their own text is not cut into: special, added and byte tokens apart."""
    surfaces = {
        number: surface for number in range(len(pieces.tokens)) if (surface := pieces.surface(number)) is not None
    }
    made = pieces.encode(list(surfaces.values()))
    bytes_or_added = {number for number, letter in alphabet(pieces).items() if letter.startswith("<0x")} | pieces.added
    return {
        str(pieces.tokens[n]) for n, ids in zip(surfaces, made, strict=True) if ids != [n] and n not in bytes_or_added
    }


def _shares(pieces: Pieces, words: Mapping[str, Words]) -> npt.NDArray[np.float64]:
    """Each id's share of a text's tokens, the mean over languages."""
    counts = [part.tokens(pieces).astype(np.float64) for part in words.values()]
    return np.sum([count / max(count.sum(), 1) for count in counts], axis=0) / len(counts)


def _unknown(pieces: Pieces, counts: npt.NDArray[np.float64]) -> float:
    """Which part of the tokens counted is unknown; a space's mark, which stands before unknown words too, is none."""
    surfaces = {number: pieces.surface(number) for number in np.flatnonzero(counts).tolist()}
    spaces = [number for number, surface in surfaces.items() if surface is not None and not surface.text.strip()]
    total = float(counts.sum() - counts[spaces].sum())
    return float(counts[pieces.unknown]) / total if pieces.unknown is not None and total else 0.0


def _letters(pieces: Pieces, used: set[int], letters: Alphabet) -> set[int]:
    """The alphabet, or those of its letters that stand in one of the tokens used; bytes always."""
    found = alphabet(pieces)
    if letters == "all" or pieces.kind == "byte_level":
        return set(found)
    seen = {letter for number in used for letter in pieces.tokens[number] or ""}
    return {number for number, letter in found.items() if len(letter) != 1 or letter in seen}


def _best(pieces: Pieces, kept: set[int], fixed: set[int], value: npt.NDArray[np.float64], size: int) -> set[int]:
    """`size` of the tokens: the fixed ones, and those of the highest value with what they are made of."""
    found, parts = set(fixed), parts_of(pieces)
    for number in sorted(kept - fixed, key=lambda number: (-value[number], number)):
        found |= set([part for part in parts(number) if part not in found][: size - len(found)])
        if len(found) == size:
            break
    return found


def _by_count(counts: Counts, pieces: Pieces) -> list[int]:
    """Ordinary tokens that occur, the most frequent first."""
    order = np.argsort(-counts, kind="stable")[: int((counts > 0).sum())]
    return [number for number in order.tolist() if number not in pieces.special and number not in pieces.added]


def _in_turn(pieces: Pieces, counts: Mapping[str, Counts]) -> Iterator[int]:
    """Tokens by language in turn and, for each language, by length in characters in turn; each token once."""
    queues = []
    for of_language in counts.values():
        lengths: dict[int, list[int]] = {}
        for number in _by_count(of_language, pieces):
            surface = pieces.surface(number)
            lengths.setdefault(len(surface.text.decode("utf-8", "replace")) if surface else 0, []).append(number)
        queues.append(deque(deque(lengths[length]) for length in sorted(lengths)))
    seen = set[int]()
    while queues := [queue for queue in queues if queue]:
        for queue in queues:
            while queue:
                tokens = queue.popleft()
                while tokens and tokens[0] in seen:
                    tokens.popleft()
                if not tokens:
                    continue
                number = tokens.popleft()
                queue.append(tokens)
                seen.add(number)
                yield number
                break


def _batches(texts: Iterable[str]) -> Iterator[list[str]]:
    texts = iter(texts)
    while batch := list(islice(texts, _TEXTS)):
        yield batch
