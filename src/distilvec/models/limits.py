"""How many tokens of a text a backbone can read."""

from __future__ import annotations

from sentence_transformers.sentence_transformer.modules import Transformer
from torch import nn
from transformers import PreTrainedModel


def position_limit(backbone: PreTrainedModel) -> int | None:
    """Tokens a backbone has learned positions for, None if it has none.

    RoBERTa and its kin number positions from padding_idx + 1, so 514 positions hold 512 tokens.
    """
    for name, module in backbone.named_modules():
        if name.rsplit(".", 1)[-1] == "position_embeddings" and isinstance(module, nn.Embedding):
            first = 0 if module.padding_idx is None else module.padding_idx + 1
            return int(module.num_embeddings - first)
    return None


def lengthen(transformer: Transformer, length: int) -> None:
    """Let a model read `length` tokens of a text; where its positions are not learned, its configuration follows."""
    config = transformer.auto_model.config.get_text_config()
    stated = getattr(config, "max_position_embeddings", None)
    if position_limit(transformer.auto_model) is None and stated is not None and stated < length:
        config.max_position_embeddings = length
    transformer.max_seq_length = length
