"""A factorized table under a budget of parameters: rank and number of tokens with the least start distance."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import chain, islice, zip_longest

import torch
from sentence_transformers import SentenceTransformer

from distilvec.config.student import VocabularySection
from distilvec.core.errors import DistilvecError
from distilvec.core.log import log
from distilvec.core.spread import spread_items
from distilvec.students.factorize import COMPARED, TEXTS, check_factorizable, factorize
from distilvec.vocabulary.choose import Texts
from distilvec.vocabulary.compare import parameter_counts
from distilvec.vocabulary.transplant import Composition, transplant
from distilvec.vocabulary.trim import Vocabulary

RANKS = (8, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384)  # with fewer tokens
_TRIED = 5  # ranks: the largest multiple of 8 that leaves every token, and the next ones of RANKS
Make = Callable[[VocabularySection], Vocabulary]


@dataclass(frozen=True)
class Made:
    """A model with another vocabulary, and with a factorized table if it has a rank.

    `distance`: mean distance of its vectors to the old model's on the first texts; None without a budget.
    """

    model: SentenceTransformer
    vocabulary: Vocabulary
    rows: Composition
    rank: int | None = None
    distance: float | None = None

    @property
    def line(self) -> str:
        """Describe the size: parameters, rank, tokens and start distance."""
        line = f"{parameter_counts(self.model)['total'] / 1e6:.2f} M parameters"
        line += "" if self.rank is None else f": rank {self.rank} with {len(self.rows.rows):,} tokens"
        return line if self.distance is None else f"{line}, start distance {self.distance:.3f}"


def some_of_each(texts: Mapping[str, Texts], most: int) -> list[str]:
    """Return the first texts of each language in turn, at most so many in all: a language of few has them all there."""
    in_turn = chain.from_iterable(zip_longest(*(read() for read in texts.values())))
    return list(islice((text for text in in_turn if text is not None), most))


def with_rank(model: SentenceTransformer, rank: int, texts: list[str]) -> SentenceTransformer:
    """Give a model of one's own a factorized table, fitted to the texts."""
    first = model[0]
    length = min(model.max_seq_length or 512, 512)
    tokens = first.tokenizer(texts, truncation=True, max_length=length)["input_ids"] if texts else ()
    first.model = factorize(first.auto_model, rank, tokens)
    return model


def within_budget(
    model: SentenceTransformer,
    make: Make,
    section: VocabularySection,
    texts: dict[str, Texts],
    parameters: int,
    max_length: int | None,
) -> Made:
    """Return the rank and tokens of at most `parameters` whose vectors are nearest to those of `model`.

    A model that is small enough with the tokens of its texts keeps its rows as they are. `make` chooses a vocabulary on
    the texts. Else tried are the largest multiple of 8 that leaves every token, and larger ranks with fewer tokens.
    Errors: DistilvecError for a budget below the layers and the smallest table, a vocabulary that is not trimmed, and a
    model that cannot be factorized.
    """
    if section.kind != "trim" or section.tokenizer is not None or section.size is not None:
        raise DistilvecError(
            "chooses how many tokens are kept.", "Leave out --kind, --vocab-size, --tokenizer.", key="--budget"
        )
    everything = make(section)
    trimmed, rows = transplant(model, everything.tokenizer, section.compose, section.keep_norm, max_length)
    size = parameter_counts(trimmed)["total"]
    if size <= parameters:  # with its own table, whose vectors are the old model's
        return Made(trimmed, everything, rows)
    try:
        check_factorizable(model[0].auto_model)
    except DistilvecError as error:
        problem = f"with the tokens of the texts the model has {size / 1e6:.2f} M parameters, and no shorter rows"
        fix = "Give at least that many, or prune layers first (student.layers of a recipe)."
        raise DistilvecError(f"{problem}: {error.problem}", fix, key="--budget") from error
    read = some_of_each(texts, TEXTS)
    sample = spread_items(read, COMPARED)
    before = torch.as_tensor(model.encode(sample))
    best: Made | None = None
    for rank, size in _sizes(model, parameters, everything.figures["tokens"], everything.figures["least"]):
        whole = size == everything.figures["tokens"]
        chosen = everything if whole else make(section.model_copy(update={"size": size}))
        changed, rows = transplant(model, chosen.tokenizer, section.compose, section.keep_norm, max_length)
        changed = with_rank(changed, rank, read)
        distance = float((torch.as_tensor(changed.encode(sample)) - before).norm(dim=1).mean())
        found = Made(changed, chosen, rows, rank, distance)
        log(found.line)
        if best is None or distance < (best.distance or 0):
            best = found
    if best is None:
        least = _fixed(model, RANKS[0]) + everything.figures["least"] * RANKS[0]
        raise DistilvecError(
            f"found {parameters / 1e6:.2f} M parameters; the model's layers and the smallest table have "
            f"{least / 1e6:.2f} M.",
            "Give more, or prune layers first (student.layers of a recipe).",
            key="--budget",
        )
    return best


def _sizes(model: SentenceTransformer, parameters: int, tokens: int, least: int) -> Iterator[tuple[int, int]]:
    """Yield ranks with the number of tokens that the parameters leave, the smallest rank first."""
    hidden = model[0].auto_model.config.hidden_size
    whole = [rank for rank in range(8, hidden, 8) if _fixed(model, rank) + rank * tokens <= parameters][-1:]
    larger = [rank for rank in RANKS if max(whole, default=0) < rank < hidden]
    for rank in [*whole, *larger][:_TRIED]:
        size = min(tokens, (parameters - _fixed(model, rank)) // rank)
        if size >= least:
            yield rank, size


def _fixed(model: SentenceTransformer, rank: int) -> int:
    """Return the parameters of a factorized model without its rows."""
    backbone = model[0].auto_model
    old, hidden = backbone.embeddings, backbone.config.hidden_size
    total = sum(weight.numel() for weight in model.parameters())
    outside = [backbone.embeddings, backbone.pooler] if backbone.pooler is not None else [backbone.embeddings]
    layers = total - sum(weight.numel() for part in outside for weight in part.parameters())
    rows = len(old.position_embeddings.weight) + len(old.token_type_embeddings.weight) + 2
    return layers + rows * rank + (rank + 1) * hidden
