"""Factorized token tables: rows of `rank` numbers and one linear layer to the hidden size, in ELECTRA's layout.

Papers: Lan et al., "ALBERT: A Lite BERT for Self-supervised Learning of Language Representations", section 3.1
(factorized embeddings); Clark et al., "ELECTRA: Pre-training Text Encoders as Discriminators Rather Than Generators"
(LayerNorm in the small space, then a linear layer). The layers of ELECTRA are those of BERT and are copied.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from itertools import chain
from typing import Any

import torch
from jaxtyping import Float, Int
from sentence_transformers import SentenceTransformer
from torch import Tensor
from transformers import BertConfig, BertModel, ElectraConfig, ElectraModel, PretrainedConfig, PreTrainedModel

from distilvec.core.errors import DistilvecError

TEXTS = 4096  # of the corpus, which the start reads
COMPARED = 256  # texts on which vectors before and after are compared
_TOKENS = 1 << 16  # of these texts at most, drawn at random, and of the table
_RIDGE = 1e-4  # of the mean variance, so that directions without variance have a solution
_OWN = ("model_type", "architectures", "transformers_version", "embedding_size")  # not taken over from BERT


@torch.no_grad()
def factorize(backbone: PreTrainedModel, rank: int, tokens: Sequence[Sequence[int]] = ()) -> ElectraModel:
    """Return the backbone as an ELECTRA whose tables have `rank` columns; a new model, its layers are copies.

    `tokens` are ids of texts, special tokens included. The tables are projected on the principal components of what
    the first layer reads, after LayerNorm: of the texts' tokens at their positions, and of every token once.
    Components of the token rows alone leave out the directions of positions. The linear layer is fitted to the same
    by least squares.
    """
    check_factorizable(backbone)
    old = backbone.embeddings
    hidden = backbone.config.hidden_size
    if not 1 < rank < hidden:
        raise DistilvecError(f"found {rank}; give a number from 2 to {hidden - 1}.", key="student.embedding.rank")
    ids, positions = _sample((), backbone.config)
    if tokens:
        text_ids, text_positions = _sample(tokens, backbone.config)
        ids = torch.cat([text_ids, ids])
        positions = torch.cat([text_positions, positions])
    with torch.random.fork_rng(devices=[]):
        model = ElectraModel(ElectraConfig(**_settings(backbone, ElectraConfig), embedding_size=rank))
    model.encoder.load_state_dict(backbone.encoder.state_dict())
    new = model.embeddings
    states = _outputs(old.eval(), ids, positions)  # what the first layer reads
    basis = old.LayerNorm.weight.float()[:, None] * _components(states, rank)
    basis -= basis.mean(0)  # as LayerNorm takes a row's mean away
    for small, table in zip(_tables(new), _tables(old), strict=True):
        small.weight.copy_(table.weight.float() @ basis)
    _fit(model.embeddings_project, _outputs(new.eval(), ids, positions), states)
    return model.train(backbone.training)


@torch.no_grad()
def expand(model: ElectraModel, tokens: Sequence[Sequence[int]] = ()) -> BertModel:
    """Return a BERT with full tables that is close to the factorized model; a new model, its layers are copies.

    e = A LayerNorm(x) + b, x the sum in the small space, becomes LayerNorm'(A x): the same directions for every token
    and position. LayerNorm' divides by the norm of A x instead of x. Both differ by one factor only where A keeps
    lengths, so no exact form exists; the weights of LayerNorm' are fitted to the tokens by least squares. The pooler,
    which sentence vectors do not read, is 0.
    """
    old = model.embeddings
    linear = model.embeddings_project
    with torch.random.fork_rng(devices=[]):
        expanded_model = BertModel(BertConfig(**_settings(model, BertConfig)))
    expanded_model.encoder.load_state_dict(model.encoder.state_dict())
    for part in expanded_model.pooler.parameters():
        part.zero_()
    new = expanded_model.embeddings
    scaled = linear.weight * old.LayerNorm.weight
    for table, small in zip(_tables(new), _tables(old), strict=True):
        table.weight.copy_((small.weight - small.weight.mean(1, keepdim=True)) @ scaled.T)
    new.LayerNorm.bias.copy_(linear(old.LayerNorm.bias))
    ids, positions = _sample(tokens, model.config)
    target = linear(_outputs(old.eval(), ids, positions)) - new.LayerNorm.bias
    unscaled = _outputs(new.eval(), ids, positions) - new.LayerNorm.bias  # its weight is 1 as drawn
    new.LayerNorm.weight.copy_((unscaled * target).sum(0) / unscaled.square().sum(0).clamp_min(1e-12))
    return expanded_model.eval()


def expanded(model: SentenceTransformer, texts: Sequence[str]) -> tuple[SentenceTransformer, float]:
    """Return a copy of a student with a full table, and the mean distance of both models' vectors on the texts."""
    changed = copy.deepcopy(model).eval()
    tokens = changed.tokenizer(list(texts), truncation=True, max_length=changed.max_seq_length)["input_ids"]
    before = torch.as_tensor(changed.encode(list(texts[:COMPARED])))
    changed[0].model = expand(changed[0].auto_model, tokens)
    after = torch.as_tensor(changed.encode(list(texts[:COMPARED])))
    return changed, float((before - after).norm(dim=1).mean())


def check_factorizable(backbone: PreTrainedModel) -> None:
    """Raise DistilvecError unless the backbone is a BERT encoder, whose layers ELECTRA has."""
    kind, config = backbone.config.model_type, backbone.config
    reasons = {
        "roberta": "ELECTRA counts positions from 0, RoBERTa from its padding id",
        "xlm-roberta": "ELECTRA counts positions from 0, XLM-R from its padding id",
        "electra": "its table is factorized already",
        "albert": "its table is factorized already",
    }
    if isinstance(backbone, BertModel) and not config.is_decoder:
        return
    why = reasons.get(kind, "transformers has no factorized table for its layers")
    raise DistilvecError(
        f"found {type(backbone).__name__} ({kind}); expected a BERT encoder: {why}.",
        "Remove student.embedding, or take a student with BERT's layers.",
        key="student.embedding",
    )


def _settings(model: PreTrainedModel, kind: type[PretrainedConfig]) -> dict[str, Any]:
    """Return the settings of a model that another kind of configuration has as well."""
    shared = kind().to_dict().keys() - {*_OWN}
    return {name: value for name, value in model.config.to_dict().items() if name in shared}


def _tables(embeddings: Any) -> tuple[torch.nn.Embedding, ...]:
    """Return the tables of tokens, positions and types."""
    return embeddings.word_embeddings, embeddings.position_embeddings, embeddings.token_type_embeddings


def _sample(tokens: Sequence[Sequence[int]], config: PretrainedConfig) -> tuple[Int[Tensor, " n"], Int[Tensor, " n"]]:
    """Return ids and positions of at most 65,536 tokens of the texts, without any of the table at random positions."""
    generator = torch.Generator().manual_seed(0)
    if not tokens:
        ids = torch.randperm(config.vocab_size, generator=generator)[:_TOKENS]
        return ids, torch.randint(min(config.max_position_embeddings, 64), ids.shape, generator=generator)
    ids = torch.tensor(list(chain.from_iterable(tokens)))
    positions = torch.cat([torch.arange(len(text)) for text in tokens])
    chosen = torch.randperm(len(ids), generator=generator)[:_TOKENS]
    return ids[chosen], positions[chosen]


def _components(rows: Float[Tensor, "tokens hidden"], rank: int) -> Float[Tensor, "hidden rank"]:
    """Return a map to `rank` numbers of mean 0 that keeps the first rank - 1 principal components of the rows.

    LayerNorm in the small space removes the mean, which so has nothing to remove.
    """
    centred = rows - rows.mean(0)
    _, vectors = torch.linalg.eigh((centred.T @ centred).double())
    ones = torch.ones(rank, 1, dtype=torch.float64)
    without_mean = torch.linalg.qr(torch.cat([ones, torch.eye(rank, rank - 1, dtype=torch.float64)], 1))[0][:, 1:]
    return (vectors.flip(1)[:, : rank - 1] @ without_mean.T).float()


def _outputs(embeddings: Any, ids: Int[Tensor, " n"], positions: Int[Tensor, " n"]) -> Float[Tensor, "n dim"]:
    """Return the output of an embedding module, after its LayerNorm, for single tokens at positions."""
    states: Tensor = embeddings(input_ids=ids[:, None], position_ids=positions[:, None])
    return states[:, 0].float()


def _fit(linear: torch.nn.Linear, x: Float[Tensor, "n rank"], y: Float[Tensor, "n hidden"]) -> None:
    """Give a linear layer the weights with the least squared error from x to y (ridge regression)."""
    x = x.double()
    y = y.double()
    x_mean = x.mean(0)
    y_mean = y.mean(0)
    gram = (x - x_mean).T @ (x - x_mean)
    gram.diagonal().add_(_RIDGE * gram.diagonal().mean())
    weight = torch.linalg.solve(gram, (x - x_mean).T @ (y - y_mean)).T
    linear.weight.copy_(weight)
    linear.bias.copy_(y_mean - weight @ x_mean)
