"""Published settings of known teachers: prompts, and the pooling and length of their plain checkpoints.

Sources, model cards on https://huggingface.co/ (usage section) and config_sentence_transformers.json next to them:
intfloat/e5-mistral-7b-instruct (its prompt web_search_query), Qwen/Qwen3-Embedding-8B, google/embeddinggemma-300m,
BAAI/bge-m3 (the dense vector), Snowflake/snowflake-arctic-embed-m-v1.5, Snowflake/snowflake-arctic-embed-l-v2.0,
mixedbread-ai/mxbai-embed-large-v1.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Literal

PresetName = Literal[
    "e5-mistral", "qwen3-embedding", "embeddinggemma", "bge-m3", "arctic-embed", "arctic-embed-v2", "mxbai", "none"
]
_SEARCH = "Instruct: Given a web search query, retrieve relevant passages that answer the query\nQuery:"
_PASSAGES = "Represent this sentence for searching relevant passages: "


@dataclass(frozen=True)
class Preset:
    """Settings of models whose ids match one of `models`; `*` is any text, and letters count without case.

    `pooling`, `normalize` and `max_length` are for a plain checkpoint, whose files state none. A model without
    `pooling` has layers behind it, which only its SentenceTransformer files hold.
    """

    models: tuple[str, ...]
    prompts: Mapping[str, str] = field(default_factory=dict)  # by role
    pooling: Literal["mean", "cls", "lasttoken"] | None = None
    normalize: bool = True
    max_length: int = 512  # tokens


PRESETS: dict[str, Preset] = {
    "e5-mistral": Preset(("intfloat/e5-mistral-7b-instruct",), {"query": f"{_SEARCH} "}, "lasttoken", True, 4096),
    "qwen3-embedding": Preset(("qwen/qwen3-embedding-*",), {"query": _SEARCH}, "lasttoken", True, 8192),
    "embeddinggemma": Preset(
        ("google/embeddinggemma-*",), {"query": "task: search result | query: ", "document": "title: none | text: "}
    ),
    "bge-m3": Preset(("baai/bge-m3",), {}, "cls", True, 8192),
    "arctic-embed-v2": Preset(("snowflake/snowflake-arctic-embed-*-v2.0",), {"query": "query: "}, "cls", True, 8192),
    "arctic-embed": Preset(
        tuple(f"snowflake/snowflake-arctic-embed-{size}" for size in ("xs", "s", "m", "l", "m-v1.5")),
        {"query": _PASSAGES},
        "cls",
    ),
    "mxbai": Preset(("mixedbread-ai/mxbai-embed-large-v1",), {"query": _PASSAGES}, "cls", False),
}


def find_preset(name: str | None, model: str | None) -> str | None:
    """The preset of this name, without a name that of the model's id; None for neither and for 'none'."""
    if name is not None:
        return None if name == "none" else name
    known = ((preset, pattern) for preset, entry in PRESETS.items() for pattern in entry.models)
    return next((preset for preset, pattern in known if fnmatchcase((model or "").lower(), pattern)), None)
