"""Maximum number of tokens that a model, or its backbone alone, reads."""

from __future__ import annotations

from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Transformer
from torch import nn
from transformers import PreTrainedModel

from distilvec.core.info import UNLIMITED
from distilvec.models.static import is_static, static_limit


def max_length(model: SentenceTransformer) -> int:
    """Return the longest input in tokens: the length that a model states, or its positions if they are fewer.

    UNLIMITED for a model that has neither.
    """
    if is_static(model):
        limits = [static_limit(model)]
    else:
        backbone = getattr(model[0], "auto_model", None)
        limits = [model.max_seq_length, None if backbone is None else position_limit(backbone)]
    return min([int(limit) for limit in limits if limit is not None] + [UNLIMITED])


def position_table(backbone: PreTrainedModel) -> nn.Embedding | None:
    """Return the table of learned positions; None for rotary and relative positions."""
    tables = (module for name, module in backbone.named_modules() if name.rpartition(".")[2] == "position_embeddings")
    return next((table for table in tables if isinstance(table, nn.Embedding)), None)


def position_limit(backbone: PreTrainedModel) -> int | None:
    """Return the number of tokens that a backbone has learned positions for, None without learned positions.

    RoBERTa numbers positions from padding_idx + 1: 514 positions are enough for 512 tokens.
    """
    table = position_table(backbone)
    if table is None:
        return None
    return table.num_embeddings - (0 if table.padding_idx is None else table.padding_idx + 1)


def lengthen(transformer: Transformer, length: int) -> None:
    """Set the maximum length to `length` tokens, in the configuration too if positions are not learned."""
    config = transformer.auto_model.config.get_text_config()
    stated = getattr(config, "max_position_embeddings", None)
    if position_limit(transformer.auto_model) is None and stated is not None and stated < length:
        config.max_position_embeddings = length
    transformer.max_seq_length = length
