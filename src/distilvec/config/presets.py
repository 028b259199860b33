"""Published settings of known teachers: prompts, and the pooling and length of their plain checkpoints.

A preset belongs to the models that its source describes, by their exact ids: a relative such as EmbeddingGemma 2 may
have other prompts. Sources are model cards on https://huggingface.co/ (usage section), with
config_sentence_transformers.json next to them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

PresetName = Literal[
    "e5-mistral", "qwen3-embedding", "embeddinggemma", "bge-m3", "arctic-embed", "arctic-embed-v2", "mxbai", "none"
]
_SEARCH = "Instruct: Given a web search query, retrieve relevant passages that answer the query\nQuery:"
_PASSAGES = "Represent this sentence for searching relevant passages: "


@dataclass(frozen=True)
class Preset:
    """Settings of the models with these ids, which are compared in lower case.

    `pooling`, `normalize` and `max_length` are for a plain checkpoint, whose files state none. A model without
    `pooling` has layers behind it, which only its SentenceTransformer files hold.
    """

    models: tuple[str, ...]
    prompts: Mapping[str, str] = field(default_factory=dict)  # by role
    pooling: Literal["mean", "cls", "lasttoken"] | None = None
    normalize: bool = True
    max_length: int = 512  # tokens


PRESETS: dict[str, Preset] = {
    # its prompt web_search_query
    "e5-mistral": Preset(("intfloat/e5-mistral-7b-instruct",), {"query": f"{_SEARCH} "}, "lasttoken", True, 4096),
    # Qwen/Qwen3-Embedding-8B; the cards of the others say the same
    "qwen3-embedding": Preset(
        tuple(f"qwen/qwen3-embedding-{size}" for size in ("0.6b", "4b", "8b")),
        {"query": _SEARCH},
        "lasttoken",
        True,
        8192,
    ),
    # google/embeddinggemma-300m, section "Prompt Instructions"
    "embeddinggemma": Preset(
        ("google/embeddinggemma-300m",), {"query": "task: search result | query: ", "document": "title: none | text: "}
    ),
    # BAAI/bge-m3, the dense vector
    "bge-m3": Preset(("baai/bge-m3",), {}, "cls", True, 8192),
    # Snowflake/snowflake-arctic-embed-l-v2.0 and -m-v2.0
    "arctic-embed-v2": Preset(
        tuple(f"snowflake/snowflake-arctic-embed-{size}-v2.0" for size in ("m", "l")),
        {"query": "query: "},
        "cls",
        True,
        8192,
    ),
    # Snowflake/snowflake-arctic-embed-m-v1.5; the card of the first version names the same prompt
    "arctic-embed": Preset(
        tuple(f"snowflake/snowflake-arctic-embed-{size}" for size in ("xs", "s", "m", "l", "m-v1.5")),
        {"query": _PASSAGES},
        "cls",
    ),
    # mixedbread-ai/mxbai-embed-large-v1
    "mxbai": Preset(("mixedbread-ai/mxbai-embed-large-v1",), {"query": _PASSAGES}, "cls", False),
}


def find_preset(name: str | None, model: str | None) -> str | None:
    """The preset of this name, without a name that of the model's id; None for neither and for 'none'."""
    if name is not None:
        return None if name == "none" else name
    return next((preset for preset, entry in PRESETS.items() if (model or "").lower() in entry.models), None)
