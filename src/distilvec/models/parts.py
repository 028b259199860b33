"""Parts and limits of a loaded model: its table of tokens, its tokenizer, its positions, the longest text it reads.

Static models are a table with one vector per token, whose mean is the vector of a text: no layers, no attention.
sentence-transformers has them as `StaticEmbedding`. It holds a bare tokenizer and reads texts without special tokens;
transformers' tokenizers and models offer more, so the functions here answer for both kinds.
"""

from __future__ import annotations

from typing import Any

from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import StaticEmbedding, Transformer
from torch import nn
from transformers import PretrainedConfig, PreTrainedModel, PreTrainedTokenizerBase, PreTrainedTokenizerFast

from distilvec.core.info import UNLIMITED

# names of the table of positions: BERT's and its heirs', GPT-2's and GPT-Neo's, OPT's and BART's, the first GPT's
POSITION_TABLES = ("position_embeddings", "wpe", "embed_positions", "positions_embed")


def is_static(model: SentenceTransformer) -> bool:
    """Return whether the model begins with a table of token vectors in the place of a transformer."""
    return isinstance(model[0], StaticEmbedding)


def text_tokenizer(model: SentenceTransformer) -> PreTrainedTokenizerBase:
    """Return the tokenizer of a model's texts; of a static model a copy that adds no special tokens."""
    if not is_static(model):
        tokenizer: PreTrainedTokenizerBase = model.tokenizer
        return tokenizer
    copy = PreTrainedTokenizerFast(tokenizer_object=model.tokenizer)
    copy.backend_tokenizer.post_processor = None
    return copy


def can_pad(model: SentenceTransformer) -> bool:
    """Return whether texts of several lengths make a batch; without a padding token they cannot."""
    return is_static(model) or model[0].tokenizer.pad_token is not None


def loses_space_unseen(model: SentenceTransformer) -> bool:
    """Return whether software that reads backbone and pooling alone gives vectors of another space, of the same width.

    It drops the linear layers behind the pooling; only a change of the width would show that.
    """
    modules = list(model)
    if not any(type(module).__name__ == "Dense" for module in modules):
        return False
    if is_static(model):
        width = modules[0].embedding_dim
    else:
        width = next((module.embedding_dimension for module in modules if type(module).__name__ == "Pooling"), None)
    return bool(width == model.get_embedding_dimension())


def token_table(model: SentenceTransformer) -> Any:
    """Return the module with a model's token table: its parameters are those of the table alone."""
    if is_static(model):
        return model[0].embedding
    return model[0].auto_model.get_input_embeddings()


def tokens_without_row(model: SentenceTransformer) -> dict[int, str]:
    """Return the tokens, by id, that a model's table has no row for; most models have none such.

    Usual are marks of images, which the backbone never reads. In a text such a token is an error of the index, which on
    a GPU ends the work of the whole process.
    """
    tokenizer: Any = getattr(model[0], "tokenizer", None)
    if not hasattr(tokenizer, "get_vocab"):
        return {}
    try:
        rows = getattr(token_table(model), "num_embeddings", None)
    except (AttributeError, NotImplementedError):  # a model of texts and images, or one with code of its own
        return {}
    if rows is None:
        return {}
    return {number: token for token, number in tokenizer.get_vocab().items() if number >= rows}


def max_length(model: SentenceTransformer) -> int:
    """Return the longest input in tokens: the length that a model states, or its positions if they are fewer.

    UNLIMITED for a model that has neither.
    """
    if is_static(model):
        truncation = model[0].tokenizer.truncation  # where a static model has its length; None: it reads whole texts
        limits = [None if truncation is None else truncation["max_length"]]
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
    positions = getattr(config, "max_position_embeddings", None)
    return positions if positions is not None and positions > 0 else None


def lengthen(transformer: Transformer, length: int) -> None:
    """Set the maximum length to `length` tokens, in the configuration too if positions are not learned."""
    config = transformer.auto_model.config.get_text_config()
    positions = stated_positions(config)
    if position_limit(transformer.auto_model) is None and positions is not None and positions < length:
        config.max_position_embeddings = length
    transformer.max_seq_length = length
