"""Requests and answers of /v1/embeddings: what is read, what is refused, and the shape of the answer."""

from __future__ import annotations

import base64
import hmac
import json
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from pydantic import BaseModel, Field, ValidationError
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from distilvec.config.schema import Role
from distilvec.teachers.encode import cut_dimensions
from distilvec.verbs.serve.batcher import Vectors
from distilvec.verbs.serve.model import ServedModel

TEXTS = "Send one text, or a list of texts."
TOKEN_IDS = "Send texts, not token ids (LangChain: check_embedding_ctx_length=False)."


@dataclass(frozen=True)
class Limits:
    """Limits of one request, and of what waits."""

    body: int = 4_000_000  # bytes
    texts: int = 2048  # in one request
    batch_texts: int = 256  # texts of all requests that the model is given together
    waiting: int = 8192  # texts of all requests that have not begun
    truncate: bool = False  # cut texts that are too long; else they are refused


class RequestError(Exception):
    """A request that is refused: status, the field that is wrong, and a message."""

    def __init__(self, status: int, message: str, field: str | None = None) -> None:
        super().__init__(message)
        self.status, self.field = status, field


class EmbeddingsRequest(BaseModel):
    """The body of POST /v1/embeddings; other fields (`user`) are ignored.

    Two fields are not OpenAI's: `input_type` chooses the model's prompt, `truncate` cuts texts that are too long.
    """

    input: str | list[str]
    model: str | None = None
    encoding_format: Literal["float", "base64"] = "float"
    dimensions: int | None = Field(None, ge=1)
    input_type: Role = "document"
    truncate: bool | None = None

    @property
    def texts(self) -> list[str]:
        """The texts, one or several."""
        return [self.input] if isinstance(self.input, str) else self.input


def refusal(status: int, message: str, field: str | None = None) -> JSONResponse:
    """An error in OpenAI's shape."""
    kind = "invalid_request_error" if status < 500 else "server_error"
    return JSONResponse({"error": {"message": message, "type": kind, "param": field, "code": None}}, status)


def check_key(request: Request, key: str | None) -> None:
    """RequestError 401 for a wrong or missing bearer token, where the server has a key."""
    sent = request.headers.get("authorization", "")
    if key is not None and not hmac.compare_digest(sent.encode(), f"Bearer {key}".encode()):
        raise RequestError(401, "The key is missing or wrong. Send 'Authorization: Bearer KEY'.")


async def read_body(request: Request, most: int) -> bytes:
    """The body; RequestError 413 as soon as it is larger than `most` bytes."""
    body = bytearray()
    async for part in request.stream():
        body += part
        if len(body) > most:
            raise RequestError(413, f"The body has more than {most:,} bytes. Send fewer texts in a request.")
    return bytes(body)


def parse(body: bytes, model: ServedModel, limits: Limits) -> EmbeddingsRequest:
    """The request that a body holds; RequestError with the field that is wrong."""
    try:
        asked = EmbeddingsRequest.model_validate(json.loads(body), strict=True)
    except ValidationError as error:
        first = error.errors()[0]
        field = str(first["loc"][0]) if first["loc"] else None
        fix = {"input": f"{TEXTS} {TOKEN_IDS}", None: "Send a JSON object with 'input'."}.get(field, "Correct it.")
        raise RequestError(400, f"[{field or 'body'}] {first['msg']}. {fix}", field) from None
    except (ValueError, RecursionError):
        raise RequestError(400, "[body] This is no JSON in UTF-8. Send a JSON object with 'input'.") from None
    texts = asked.texts
    if not texts:
        raise RequestError(400, f"[input] The list is empty. {TEXTS}", "input")
    if not all(text.strip() for text in texts):
        raise RequestError(400, "[input] A text is empty. Leave it out.", "input")
    try:
        "".join(texts).encode()
    except UnicodeEncodeError:
        raise RequestError(400, "[input] A text holds half of a surrogate pair. Send valid Unicode.", "input") from None
    if len(texts) > limits.texts:
        message = f"[input] {len(texts):,} texts; a request holds at most {limits.texts:,}. Send several requests."
        raise RequestError(400, message, "input")
    if asked.model not in (None, model.name):
        raise RequestError(404, f"[model] '{asked.model}' is not served here. Name '{model.name}', or none.", "model")
    if asked.dimensions is not None and asked.dimensions > model.dim:
        message = f"[dimensions] found {asked.dimensions}; the model has {model.dim}. Ask for at most that."
        raise RequestError(400, message, "dimensions")
    return asked


def count_tokens(model: ServedModel, prompted: list[str], truncate: bool) -> int:
    """The tokens of all texts as the model reads them; RequestError if one is too long and must not be cut."""
    counts = model.count_tokens(prompted)
    if not truncate and (long := max(counts)) > model.max_length:
        problem = f"A text has {long:,} tokens; the model reads {model.max_length:,}"
        message = f"[input] {problem}. Split it, or send truncate=true."
        raise RequestError(400, message, "input")
    return sum(min(count, model.max_length) for count in counts)


def answer(vectors: Vectors, asked: EmbeddingsRequest, model: ServedModel, tokens: int) -> Response:
    """The response: vectors as numbers, or as little-endian float32 in base64."""
    vectors = cut_dimensions(vectors, asked.dimensions or model.dim, model.normalized)

    def coded(vector: np.ndarray) -> Any:
        if asked.encoding_format == "base64":
            return base64.b64encode(vector.astype("<f4").tobytes()).decode("ascii")
        return vector.tolist()

    data = [{"object": "embedding", "index": i, "embedding": coded(vector)} for i, vector in enumerate(vectors)]
    usage = {"prompt_tokens": tokens, "total_tokens": tokens}
    return JSONResponse({"object": "list", "data": data, "model": model.name, "usage": usage})
