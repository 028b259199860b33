"""Training data of a method that reads pairs: queries with their answers, and as many stored texts."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from functools import cached_property

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from distilvec.core.batch import PairBatch, TextBatch
from distilvec.data.pairs import StoredPairs
from distilvec.data.tokens import TokenStore
from distilvec.train.dataset import TrainingData


@dataclass(frozen=True, kw_only=True)
class PairedData(TrainingData):
    """Rows of the corpus, numbered as there, and pairs, whose numbers begin behind them.

    Stored texts are drawn anew in each pass, as many as there are pairs: they hold the student to the teacher. Where
    there are fewer, each comes several times. Validation is that of the corpus.
    """

    pairs: StoredPairs
    query_tokens: TokenStore

    @classmethod
    def of(cls, data: TrainingData, pairs: StoredPairs, query_tokens: TokenStore) -> PairedData:
        """Return the data with pairs."""
        values = {entry.name: getattr(data, entry.name) for entry in fields(TrainingData)}
        return cls(**values, pairs=pairs, query_tokens=query_tokens)

    def pass_rows(self, epoch: int, seed: int) -> np.ndarray:
        """Numbers of as many training texts as there are pairs, not the same every time, and of all pairs."""
        generator = np.random.Generator(np.random.PCG64([seed, epoch, 1]))
        texts = np.resize(generator.permutation(self.train_rows), len(self.pairs))
        return np.concatenate([texts, len(self.corpus) + np.arange(len(self.pairs))])

    @cached_property
    def lengths(self) -> np.ndarray:
        """Tokens of every text, then of every pair's query."""
        return np.concatenate([self.tokens.lengths, self.query_tokens.lengths[self.pairs.queries]])

    def batch(self, numbers: np.ndarray) -> TextBatch:
        """The student's batch of these examples, on the CPU: texts of the corpus first, then queries."""
        if numbers.max(initial=-1) < len(self.corpus):
            batch = super().batch(numbers)
            return replace(batch, pairs=self._pair_batch(len(numbers), np.empty(0, dtype=np.int64)))
        numbers = np.sort(numbers)
        texts = numbers[numbers < len(self.corpus)]
        chosen = numbers[len(texts) :] - len(self.corpus)
        rows = np.concatenate([texts, np.full(len(chosen), -1)])
        tokens = _joined(
            self.tokens.batch(texts), self.query_tokens.batch(self.pairs.queries[chosen]), self.tokens.padding
        )
        sources = np.concatenate([self.corpus.sources[texts].astype(np.int64), np.zeros(len(chosen), dtype=np.int64)])
        return TextBatch(
            rows=torch.from_numpy(rows),
            tokens=tokens,
            sources=torch.from_numpy(sources),
            pairs=self._pair_batch(len(texts), chosen),
        )

    def _pair_batch(self, texts: int, chosen: np.ndarray) -> PairBatch:
        """The answers of the chosen pairs and their negatives, behind `texts` texts without any."""
        pairs = self.pairs
        answers = pairs.answers[chosen]
        negatives = pairs.negatives[chosen]
        is_real = negatives >= 0
        candidates = np.concatenate([answers, negatives[is_real]])
        # A negative that the file states is mined for all other queries
        query_of_negative = np.repeat(np.arange(len(chosen)), is_real.sum(1))
        is_of_query = query_of_negative == np.arange(len(chosen))[:, None]
        is_mined = ~(is_of_query & pairs.is_stated[chosen][is_real])
        is_mined = np.concatenate([np.zeros((len(chosen), len(answers)), dtype=np.bool_), is_mined], axis=1)
        may_be_negative = ~pairs.are_answers(pairs.queries[chosen], candidates)
        if not len(chosen):  # one column, which no query reads
            candidates = np.zeros(1, dtype=np.int64)
            is_mined = may_be_negative = np.zeros((0, 1), dtype=np.bool_)

        def behind(values: np.ndarray) -> Tensor:
            """The values of queries, behind zeros for the texts."""
            zeros = np.zeros((texts, *values.shape[1:]), dtype=values.dtype)
            return torch.from_numpy(np.concatenate([zeros, values]))

        # The answers are the first candidates, in the order of the queries
        return PairBatch(
            is_query=behind(np.ones(len(chosen), dtype=np.bool_)),
            answers=behind(np.arange(len(chosen))),
            weights=behind(pairs.weights[chosen]),
            candidates=torch.from_numpy(pairs.vectors[candidates].astype(np.float32)),
            log_frequency=torch.from_numpy(pairs.log_frequency[candidates]),
            may_be_negative=behind(may_be_negative),
            is_mined=behind(is_mined),
        )


def _joined(first: dict[str, Tensor], second: dict[str, Tensor], padding: int) -> dict[str, Tensor]:
    """Two batches of tokens as one, padded to the longer."""
    width = max(tokens["input_ids"].shape[1] for tokens in (first, second))
    ids: list[Tensor] = []
    masks: list[Tensor] = []
    for tokens in (first, second):
        missing = width - tokens["input_ids"].shape[1]
        mask = tokens.get("attention_mask", torch.ones_like(tokens["input_ids"]))
        ids.append(functional.pad(tokens["input_ids"], (0, missing), value=padding))
        masks.append(functional.pad(mask, (0, missing)))
    mask = torch.cat(masks)
    joined = {"input_ids": torch.cat(ids)}
    return joined if mask.all() else joined | {"attention_mask": mask}
