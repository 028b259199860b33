"""Maximum number of tokens that a model, or its backbone alone, reads."""

from __future__ import annotations

from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Transformer
from torch import nn
from transformers import PretrainedConfig, PreTrainedModel

from distilvec.core.info import UNLIMITED
from distilvec.models.static import is_static, static_limit

# names of the table of positions: BERT's and its heirs', GPT-2's and GPT-Neo's, OPT's and BART's, the first GPT's
POSITION_TABLES = ("position_embeddings", "wpe", "embed_positions", "positions_embed")


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
    for name, module in backbone.named_modules():
        if name.rpartition(".")[2] in POSITION_TABLES and isinstance(module, nn.Embedding):
            return module
    return None


def position_limit(backbone: PreTrainedModel) -> int | None:
    """Return the number of tokens that a backbone has learned positions for, None without learned positions.

    RoBERTa numbers positions from padding_idx + 1, OPT from an offset: 514 positions are enough for 512 tokens.
    """
    table = position_table(backbone)
    if table is None:
        return None
    if table.padding_idx is not None:
        return table.num_embeddings - (table.padding_idx + 1)
    return table.num_embeddings - int(getattr(table, "offset", 0))


def stated_positions(config: PretrainedConfig) -> int | None:
    """Return the maximum length that a configuration states; None for none, such as XLNet's -1."""
    stated = getattr(config, "max_position_embeddings", None)
    return stated if stated is not None and stated > 0 else None


def lengthen(transformer: Transformer, length: int) -> None:
    """Set the maximum length to `length` tokens, in the configuration too if positions are not learned."""
    config = transformer.auto_model.config.get_text_config()
    stated = stated_positions(config)
    if position_limit(transformer.auto_model) is None and stated is not None and stated < length:
        config.max_position_embeddings = length
    transformer.max_seq_length = length
