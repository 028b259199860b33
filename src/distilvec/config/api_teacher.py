"""The part of a recipe about a teacher that is reached over HTTP."""

from __future__ import annotations

from typing import Any, ClassVar, Literal

from pydantic import field_validator

from distilvec.config.base import Units, key
from distilvec.config.endpoint import EndpointSection, holds_secret


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
        for of_role in (fields or {}).values():
            if own := [name for name in cls.own_fields if name in of_role]:
                raise ValueError(f"found '{own[0]}', which a request has already. Remove it")
        return fields
