"""The model that a server holds: vectors as `SentenceTransformer.encode` gives them, and the lengths of texts."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from transformers import PreTrainedTokenizerBase

from distilvec.models.load import model_name
from distilvec.models.parts import is_static, text_tokenizer, tokens_without_row
from distilvec.teachers.graph_embedder import GraphEmbedder, model_folder
from distilvec.teachers.model_embedder import CHARACTERS_A_TOKEN, ModelEmbedder, RoutedEmbedder
from distilvec.teachers.open import expect_kind, open_embedder
from distilvec.verbs.serve.batcher import Vectors

FIRST_CHARACTERS = 16  # of a text for each token that the model reads: a text of words has four a token


class TokenWithoutVector(Exception):
    """A token of a text, such as the mark of an image, whose id is beyond the model's table: no vector can be made."""


class ServedModel:
    """A model folder, hub id or exported file, loaded once. One thread at a time calls `embed`, any `measure`.

    A Router is the model of its documents, and `queries` that of its queries; any other model reads both.
    Errors: DistilvecError with the key "model" for a model that cannot be loaded.
    """

    def __init__(
        self, model: str, name: str | None = None, device: str = "auto", trust_remote_code: bool = False
    ) -> None:
        expect_kind(model, ("model", "export"), "model")
        embedder = open_embedder(model, device=device, trust_remote_code=trust_remote_code)
        if name is None:
            exported = isinstance(embedder, GraphEmbedder)
            name = model_name(str(model_folder(Path(model), "model") if exported else model))
        self.name = name
        self.queries = self
        if isinstance(embedder, RoutedEmbedder):
            self._take(embedder.document)
            self.queries = copy.copy(self)
            self.queries._take(embedder.query)
        else:
            assert isinstance(embedder, (ModelEmbedder, GraphEmbedder))
            self._take(embedder)

    def _take(self, embedder: ModelEmbedder | GraphEmbedder) -> None:
        self.dim = embedder.dim
        self.normalized = embedder.normalized
        self.prompts = embedder.prompts
        self.max_length = embedder.max_length
        self._embedder = embedder
        tokenizer = getattr(embedder.model[0], "tokenizer", None)
        self._from_left = getattr(tokenizer, "truncation_side", "right") == "left"
        self._token_ids = _tokenizer(embedder)
        self._tokens_without_vector = tokens_without_row(embedder.model)

    def embed(self, prompted: Sequence[str]) -> Vectors:
        """Return float32 [n, dim] of texts that have their prompts; longer ones are cut."""
        return self._embedder.embed_prompted(prompted)

    def measure(self, prompted: str) -> tuple[str, int]:
        """Return a beginning of the text that holds all that the model reads, and its tokens, special ones counted.

        A text of megabytes is not tokenized whole: a piece with twice the tokens that the model reads has the same
        first half. Models whose own code cuts texts into tokens are estimated, and never above their limit.

        Errors: TokenWithoutVector.
        """
        if self._token_ids is None:
            return prompted, min(len(prompted) // CHARACTERS_A_TOKEN + 1, self.max_length)
        characters = FIRST_CHARACTERS * self.max_length
        while True:
            whole = characters >= len(prompted)
            start = len(prompted) - characters if self._from_left and not whole else 0
            piece = prompted if whole else prompted[start : start + characters]
            ids = self._token_ids(piece)
            if whole or len(ids) >= 2 * self.max_length:
                self._check_ids(ids)
                return piece, len(ids)
            characters *= 4  # white space, or words that are one token

    def _check_ids(self, ids: Sequence[int]) -> None:
        for number, token in self._tokens_without_vector.items():
            if number in ids:
                raise TokenWithoutVector(token)


def _tokenizer(embedder: ModelEmbedder | GraphEmbedder) -> Callable[[str], Sequence[int]] | None:
    """Return a function from a text to its token ids, for any threads; None where a model's own code makes tokens."""
    tokenizer = getattr(embedder.model[0], "tokenizer", None)
    if not is_static(embedder.model) and not isinstance(tokenizer, PreTrainedTokenizerBase):
        return None
    tokenizer = text_tokenizer(embedder.model)
    if not hasattr(tokenizer, "backend_tokenizer"):  # one that is written in Python
        return lambda text: tokenizer(text)["input_ids"]
    counter: Any = copy.deepcopy(tokenizer.backend_tokenizer)
    counter.no_truncation()
    counter.no_padding()
    return lambda text: counter.encode_batch_fast([text])[0].ids
