"""The token table of a static student (`student.layers: 0`), made of the model that it comes from.

The vector of a token is the model's own vector of that token alone, in as many dimensions as the table is wide, times a
weight that falls with the token's frequency (Arora et al., 2017, "A simple but tough-to-beat baseline for sentence
embeddings"; the weight is a / (a + p), with p the token's share of all tokens). The vector of a text is the mean of its
rows, so a row's length is the weight that training goes on to learn.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from sentence_transformers.sentence_transformer.modules import StaticEmbedding
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from distilvec.core.errors import DistilvecError
from distilvec.core.info import UNLIMITED
from distilvec.core.log import progress
from distilvec.models.tokenizers import plain_copy

STATIC_RANK = 256  # width of the table by default
# a: the share of all tokens from which a token counts half or less.
FREQUENT = 1e-3
BATCH = 256  # tokens, each of which is a text


def static_table(
    modules: Sequence[Any], width: int, dim: int | None, texts: Sequence[str], max_length: int
) -> StaticEmbedding:
    """Make the token table from a model's `modules`, a transformer first.

    Args:
        width: of the table at most; with fewer dimensions the model's vectors stay as they are
        dim: dimensions of the model's vectors to read, None for all
        texts: in which the tokens are counted; without any all tokens have the weight 1
        max_length: of a text in tokens
    """
    tokenizer = modules[0].tokenizer
    plain = plain_copy(tokenizer)
    if plain is None:
        raise DistilvecError(
            "a static student (layers 0) needs a fast tokenizer; this one has no tokenizer.json.",
            "Name another model, or keep a layer.",
            key="student.layers",
        )
    vectors = token_vectors(modules, tokenizer)[:, :dim]
    if width < vectors.shape[1]:
        vectors = principal_components(vectors, width)
    weights = frequency_weights(token_counts(tokenizer, texts, len(vectors), max_length))
    plain.post_processor = None  # a static model reads texts without special tokens
    if max_length < UNLIMITED:
        plain.enable_truncation(max_length)
    return StaticEmbedding(plain, embedding_weights=(vectors * weights[:, None]).float().contiguous())


@torch.no_grad()
def token_vectors(modules: Sequence[Any], tokenizer: PreTrainedTokenizerBase) -> Float[Tensor, "tokens dim"]:
    """Return the vectors that a model gives for each token alone, between the special tokens of a text."""
    transformer = modules[0]
    backbone = transformer.auto_model
    backbone.eval()
    before, after = special_ids(tokenizer)
    tokens = torch.arange(max(tokenizer.get_vocab().values()) + 1)
    batches = []
    with progress("embedding single tokens", len(tokens), "tokens") as advance:
        for batch in torch.split(tokens, BATCH):
            ids = torch.cat([before.expand(len(batch), -1), batch[:, None], after.expand(len(batch), -1)], dim=1)
            mask = torch.ones_like(ids)
            states = backbone(input_ids=ids, attention_mask=mask, return_dict=True).last_hidden_state
            features = {"input_ids": ids, "attention_mask": mask, "token_embeddings": states.float()}
            for module in modules[1:]:
                features = module(features)
            batches.append(features["sentence_embedding"])
            advance(min(int(batch[-1]) + 1, len(tokens)), "")
    return torch.cat(batches)


def special_ids(tokenizer: PreTrainedTokenizerBase) -> tuple[Tensor, Tensor]:
    """Return the ids of the special tokens that begin and that end every text."""
    letter = tokenizer("a", add_special_tokens=False)["input_ids"]
    whole = tokenizer("a")["input_ids"]
    count = len(whole) - len(letter)
    before = next((start for start in range(count + 1) if whole[start : start + len(letter)] == letter), count)
    return torch.tensor(whole[:before], dtype=torch.int64), torch.tensor(
        whole[before + len(letter) :], dtype=torch.int64
    )


def principal_components(vectors: Float[Tensor, "tokens dim"], count: int) -> Float[Tensor, "tokens count"]:
    """Return the coordinates of the centred vectors along the directions of their greatest variance (PCA)."""
    rows = vectors.double()
    centred = rows - rows.mean(0)
    _, axes = torch.linalg.eigh(centred.T @ centred)  # in ascending order
    return (centred @ axes.flip(1)[:, :count]).to(vectors.dtype)


def token_counts(
    tokenizer: PreTrainedTokenizerBase, texts: Sequence[str], tokens: int, max_length: int
) -> Float[Tensor, " tokens"]:
    """Count every token of a vocabulary of `tokens` in the texts, special tokens left out."""
    counts = np.zeros(tokens)
    if texts:
        options = {"truncation": True, "max_length": max_length, "padding": False}
        for ids in tokenizer(list(texts), add_special_tokens=False, **options)["input_ids"]:
            counts += np.bincount(np.array(ids, dtype=np.int64), minlength=tokens)
    return torch.from_numpy(counts)


def frequency_weights(counts: Float[Tensor, " tokens"]) -> Float[Tensor, " tokens"]:
    """Return a / (a + p) for tokens with these counts; 1 for a token that does not occur."""
    shares = counts / counts.sum().clamp_min(1.0)
    return (FREQUENT / (FREQUENT + shares)).float()
