"""Settings of requests to a model over HTTP, for embeddings and for texts: address, key, rates, price, caps."""

from __future__ import annotations

import ipaddress
import re
from typing import Any, ClassVar, Literal, get_args
from urllib.parse import urlsplit

from pydantic import field_validator, model_validator

from distilvec.config.base import FolderOrId, Section, Tokens, Units, key, refused

# Words of a field's name: api_key, apiKey, API-Key
_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")
_SECRET = re.compile(
    r"(api|access|secret|private|auth)?key|(client)?secret|password|passwd|passphrase|pwd|authorization|bearer|"
    r"credentials?|(api|access|auth|bearer|refresh|id)?token"
)
# A token behind one of these is a piece of text, not a key
_TEXT_TOKENS = ("eos", "bos", "pad", "mask", "stop", "sep", "cls", "unk", "start", "end", "max", "min", "special")

TextKind = Literal["facts", "questions", "texts"]
TEXT_KINDS: tuple[TextKind, ...] = get_args(TextKind)


def is_this_machine(host: str) -> bool:
    """Whether a host's name or address is this machine, which nobody else reaches."""
    name = host.lower().removesuffix(".")
    try:
        return name == "localhost" or ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False


def _is_host(name: str | None) -> bool:
    """Whether text can be a host's name or address: no part of a name is empty, or longer than 63 letters."""
    if name is None or " " in name:
        return False
    return all(0 < len(label) < 64 for label in name.removesuffix(".").split("."))


def check_endpoint(address: str) -> str:
    """Return the address of an API without a final slash.

    Errors: ValueError for text that is no address, and for an address with a password or a query; it is not quoted.
    """
    try:
        parts = urlsplit(address)
        sound = parts.scheme in ("http", "https") and _is_host(parts.hostname) and (parts.port or 1) > 0
    except ValueError:
        sound = False
    if not sound:
        raise ValueError("expected an address such as https://api.openai.com/v1")
    if "@" in address or parts.query or parts.fragment:
        raise ValueError("expected an address without a password, '?' and '#'. Keys belong in key_variable's")
    return address.rstrip("/")


def holds_secret(value: Any) -> bool:
    """Whether JSON has a field, at any depth, whose name is that of a key or password."""
    if isinstance(value, dict):
        return any(_names_secret(str(name)) or holds_secret(part) for name, part in value.items())
    return isinstance(value, list) and any(holds_secret(part) for part in value)


def _names_secret(name: str) -> bool:
    """Whether a field of this name has a key or password: by its last word, in any spelling."""
    words = [word.lower() for word in _WORD.findall(name)]
    if not words:
        return False
    if words[-1] == "token" and len(words) > 1 and words[-2] in _TEXT_TOKENS:
        return False
    return _SECRET.fullmatch(words[-1]) is not None


class EndpointSection(Section):
    """A server of OpenAI's HTTP interface."""

    base_url: str = key("https://api.openai.com/v1", "address of the API, up to /v1")
    key_variable: str | None = key(None, "environment variable with the key; requests have none by default")
    trusted: bool = key(False, "send the key also over http, or to a host whose service it is not")
    body: dict[str, Any] = key({}, "further fields of every request, such as {truncation: true}")
    concurrency: int = key(8, "requests at the same time", gt=0, le=256)
    requests_per_minute: int | None = key(None, "no limit by default", gt=0)
    tokens_per_minute: int | None = key(None, "no limit by default", gt=0)
    timeout: float = key(60.0, "seconds to wait for an answer", gt=0, le=3600)
    retries: int = key(8, "of a request", ge=0, le=100)
    retry_seconds: float = key(1.0, "longest pause before the first retry; twice as long each time, to a minute", ge=0)
    tokenizer: FolderOrId | None = key(None, "counts tokens for estimates: folder or hub id; else 4 bytes are a token")
    price: float | None = key(None, "of a million tokens, in your currency", ge=0)
    most_tokens: int | None = key(None, "cap on the tokens of this teacher and corpus, over all resumed runs", gt=0)
    most_cost: float | None = key(None, "the cap in the currency of the price", gt=0)

    own_fields: ClassVar[tuple[str, ...]] = ("model",)  # of a request, that `body` may not hold

    @property
    def host(self) -> str:
        """Name of the server, without its port."""
        return str(urlsplit(self.base_url).hostname).removesuffix(".")

    @property
    def place(self) -> str:
        """What tells servers apart: host, port and path; of this machine the host alone, whose ports change."""
        if is_this_machine(self.host):
            return self.host
        parts = urlsplit(self.base_url)
        usual_port = 443 if parts.scheme == "https" else 80
        port = "" if parts.port in (None, usual_port) else f":{parts.port}"
        return f"{self.host}{port}{parts.path}"

    @property
    def cap(self) -> str | None:
        """The caps in words."""
        caps = []
        if self.most_tokens is not None:
            caps.append(f"{self.most_tokens:,} tokens")
        if self.most_cost is not None:
            caps.append(f"a cost of {self.most_cost:g}")
        return " and ".join(caps) or None

    def cost(self, tokens: int, written: int = 0) -> float | None:
        """Cost of tokens that the model reads and of those that it writes; None without a price."""
        return None if self.price is None else (tokens + written) * self.price / 1e6

    def cost_note(self, tokens: int, written: int = 0) -> str:
        """The cost of tokens as ", cost 0.0123"; empty without a price."""
        cost = self.cost(tokens, written)
        return "" if cost is None else f", cost {cost:.4f}"

    def exceeded(self, tokens: int, written: int = 0) -> str | None:
        """The key of the cap that is below these tokens; None if both caps allow them."""
        if self.most_tokens is not None and tokens + written > self.most_tokens:
            return "most_tokens"
        cost = self.cost(tokens, written)
        return "most_cost" if self.most_cost is not None and cost is not None and cost > self.most_cost else None

    @field_validator("base_url")
    @classmethod
    def check_address(cls, text: str) -> str:
        """Refuse text that is not an address, and an address with a password or a query, without quoting it."""
        return check_endpoint(text)

    @field_validator("key_variable")
    @classmethod
    def check_variable(cls, name: str | None) -> str | None:
        """Refuse what looks like the key itself, without quoting it."""
        if name is not None and not re.fullmatch(r"[A-Z][A-Z0-9_]{0,63}", name):
            raise ValueError(
                "expected the name of an environment variable in capitals, such as OPENAI_API_KEY. The key itself is "
                "read from there and must not be in a recipe"
            )
        return name

    @model_validator(mode="after")
    def check_fields(self) -> EndpointSection:
        """Refuse fields of the body that have keys of their own, and a cost without a price."""
        if holds_secret(self.body):
            raise refused("body", "has a field for a key or password, which a run folder would store. Use key_variable")
        if clashes := [name for name in self.own_fields if name in self.body]:
            raise refused("body", f"found '{clashes[0]}', which a request has already. Remove it")
        if self.most_cost is not None and not self.price:
            raise refused("most_cost", "needs the price of a million tokens. Set price, or most_tokens instead")
        return self


class ApiSection(EndpointSection):
    """An endpoint with OpenAI's embeddings: OpenAI, Voyage, Cohere, TEI, vLLM, Ollama, `distilvec serve`."""

    base_url: str = key("https://api.openai.com/v1", "requests go to BASE_URL/embeddings")
    dimensions: Units | None = key(None, "ask for vectors of n dimensions")
    by_role: dict[Literal["query", "document"], dict[str, Any]] | None = key(
        None,
        "fields of requests by role, for a server that prepends teacher.prompts itself: {query: {input_type: query}, "
        "document: {input_type: passage}}",
    )
    batch_texts: int = key(96, "texts in one request, with at most teacher.batch_tokens; TEI allows 32", gt=0, le=2048)

    own_fields: ClassVar[tuple[str, ...]] = ("model", "input", "dimensions")

    @field_validator("by_role")
    @classmethod
    def check_roles(cls, fields: dict[str, dict[str, Any]] | None) -> dict[str, dict[str, Any]] | None:
        """Refuse fields that a request has already, and keys."""
        if holds_secret(fields):
            raise ValueError("found a field for a key or password, which a run folder would store. Use key_variable")
        for fields_of_role in (fields or {}).values():
            for name in cls.own_fields:
                if name in fields_of_role:
                    raise ValueError(f"found '{name}', which a request has already. Remove it")
        return fields


class SynthesisSection(EndpointSection):
    """A language model of OpenAI's chat interface, and its work: OpenAI, Anthropic, Mistral, vLLM, Ollama."""

    base_url: str = key("https://api.openai.com/v1", "requests go to BASE_URL/chat/completions")
    model: str = key(..., "the language model's name at the server")
    kind: TextKind = key("facts", "definitions and properties (REDACT's prompt), search questions, or short texts")
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
            raise refused("answer_price", "needs the price of input tokens. Also set price")
        return self
