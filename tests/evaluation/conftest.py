"""A stand-in for a model: fixed vectors by text, and a count of what it was asked to embed."""

import hashlib
import json
from types import SimpleNamespace

import numpy as np
import pytest


class HashEmbedder:
    """Gives every (role, text) a random vector; `known` overrides single texts."""

    def __init__(self, name="model", width=16, known=None, seed="", similarity="cosine"):
        self.name, self.width, self.known, self.seed, self.asked = name, width, known or {}, seed, []
        self.similarity = similarity

    def embed(self, texts, role="document"):
        self.asked += [(role, text) for text in texts]
        return np.array([self.vector(text) for text in texts], dtype=np.float32).reshape(len(texts), self.width)

    def manifest(self):
        return SimpleNamespace(fingerprint=hashlib.blake2b(self.seed.encode(), digest_size=8).hexdigest())

    def vector(self, text):
        if text in self.known:
            return self.known[text]
        digest = hashlib.blake2b((self.seed + text).encode(), digest_size=8).digest()
        return np.random.default_rng(int.from_bytes(digest, "little")).normal(size=self.width)


@pytest.fixture
def embedder():
    return HashEmbedder


@pytest.fixture
def write_jsonl(tmp_path):
    def write(name, rows):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8")
        return path

    return write
