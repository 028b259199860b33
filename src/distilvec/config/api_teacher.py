"""The part of a recipe about a teacher that is reached over HTTP."""

from __future__ import annotations

from typing import ClassVar

from distilvec.config.base import Units, key
from distilvec.config.endpoint import EndpointSection


class ApiSection(EndpointSection):
    """An endpoint with OpenAI's embeddings: OpenAI, Voyage, Cohere, TEI, vLLM, Ollama, `distilvec serve`."""

    base_url: str = key("https://api.openai.com/v1", "requests go to BASE_URL/embeddings")
    dimensions: Units | None = key(None, "ask for vectors of n dimensions")
    batch_texts: int = key(96, "texts in one request, with at most teacher.batch_tokens; TEI allows 32", gt=0, le=2048)

    own_fields: ClassVar[tuple[str, ...]] = ("model", "input", "dimensions")
