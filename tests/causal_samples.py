"""Tiny causal models with two tokenizers, and instructions for them."""

from __future__ import annotations

import json
from pathlib import Path

WORDS = "red green blue black white small large quick slow early late warm cold dark light round".split()
STUDENT = {"model_type": "gpt2", "n_embd": 32, "n_layer": 3, "n_head": 4, "n_positions": 64, "initializer_range": 0.2}
TEACHER = {
    "model_type": "qwen3",
    "hidden_size": 48,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
}
TEACHER |= {"head_dim": 8, "intermediate_size": 64, "max_position_embeddings": 64, "initializer_range": 0.2}


def write_rows(path: Path, rows: list[dict]) -> Path:
    if not path.exists():
        path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def word_rows(count: int) -> list[dict]:
    """Instructions whose answer is in them, some with an input."""
    rows = []
    for number in range(count):
        first, second = WORDS[number % 16], WORDS[(number * 7 + number // 16) % 16]
        row = {"instruction": f"Say {first}.", "response": f"{first} {second}."[: 8 + number % 9]}
        rows.append(row | ({"context": second} if number % 2 else {}))
    return rows
