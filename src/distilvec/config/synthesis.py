"""Settings of `distilvec corpus synthesize`: a language model over HTTP that writes texts about words."""

from __future__ import annotations

from typing import ClassVar, Literal, get_args

from pydantic import model_validator

from distilvec.config.base import Tokens, key, refused
from distilvec.config.endpoint import EndpointSection

Kind = Literal["facts", "questions", "texts"]
KINDS: tuple[Kind, ...] = get_args(Kind)


class SynthesisSection(EndpointSection):
    """A language model of OpenAI's chat interface, and its work: OpenAI, Anthropic, Mistral, vLLM, Ollama."""

    base_url: str = key("https://api.openai.com/v1", "requests go to BASE_URL/chat/completions")
    model: str = key(..., "the language model's name at the server")
    kind: Kind = key("facts", "definitions and properties (REDACT's prompt), search questions, or short texts")
    words: int = key(10, "words in one request; half as many each time words are asked for again", gt=0, le=1000)
    attempts: int = key(3, "requests for a word until it is listed as unanswered", gt=0, le=20)
    timeout: float = key(300.0, "seconds to wait for an answer", gt=0, le=3600)
    price: float | None = key(None, "of a million tokens that the model reads, in your currency", ge=0)
    answer_price: float | None = key(None, "of a million tokens that the model writes; the price by default", ge=0)
    most_tokens: int | None = key(None, "cap on the tokens read and written, over all resumed runs", gt=0)
    answer_tokens: Tokens = key(4096, "most tokens of an answer; sent with every request")
    answer_field: Literal["max_tokens", "max_completion_tokens"] = key(
        "max_tokens", "name of answer_tokens in requests"
    )

    own_fields: ClassVar[tuple[str, ...]] = ("model", "messages", "stream", "n", "max_tokens", "max_completion_tokens")

    def cost(self, tokens: int, written: int = 0) -> float | None:
        """Cost of tokens that the model reads and of those that it writes; None without a price."""
        if self.price is None:
            return None
        return (tokens * self.price + written * (self.price if self.answer_price is None else self.answer_price)) / 1e6

    @model_validator(mode="after")
    def check_prices(self) -> SynthesisSection:
        """Refuse a price of answers alone."""
        if self.answer_price is not None and self.price is None:
            raise refused("answer_price", "needs the price of the tokens that are read. Set price, too")
        return self
