"""Static models: a table with one vector per token, whose mean is the vector of a text. No layers, no attention.

sentence-transformers has them as `StaticEmbedding`. It holds a bare tokenizer and reads texts without special tokens;
transformers' tokenizers and models offer more, so the functions here answer for both kinds.
"""

from __future__ import annotations

from typing import Any

from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import StaticEmbedding
from transformers import PreTrainedTokenizerBase, PreTrainedTokenizerFast


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


def token_table(model: SentenceTransformer) -> Any:
    """Return the module with a model's token table: its parameters are those of the table alone."""
    if is_static(model):
        return model[0].embedding
    return model[0].auto_model.get_input_embeddings()


def static_limit(model: SentenceTransformer) -> int | None:
    """Return the maximum length of a static model, which its tokenizer states; None if it reads whole texts."""
    truncation = model[0].tokenizer.truncation
    return None if truncation is None else int(truncation["max_length"])


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
