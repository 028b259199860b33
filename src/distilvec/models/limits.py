"""Maximum number of tokens that a backbone reads."""

from __future__ import annotations

from sentence_transformers.sentence_transformer.modules import Transformer
from torch import nn
from transformers import PreTrainedModel


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
