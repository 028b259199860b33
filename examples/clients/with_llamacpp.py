"""Vectors from llama.cpp, without torch: python with_llamacpp.py STUDENT/model.gguf QUERY DOCUMENT ...

to_gguf.py makes the file.
"""

# pip install xllamacpp==2026.10.11549

import json
import sys
from pathlib import Path

import xllamacpp

file, query, *documents = sys.argv[1:]
about = Path(file).with_name("config_sentence_transformers.json")
prompts = json.loads(about.read_text(encoding="utf-8"))["prompts"]
limit = json.loads(Path(file).with_name("sentence_bert_config.json").read_text(encoding="utf-8"))["max_seq_length"]
settings = xllamacpp.CommonParams()
settings.model.path = file
settings.embedding = True
settings.n_ctx = settings.n_batch = settings.n_ubatch = limit  # in tokens: longer texts are refused, not truncated
server = xllamacpp.Server(settings)


def embed(texts: list[str], role: str) -> list[list[float]]:
    found = server.handle_embeddings({"input": [prompts.get(role, "") + text for text in texts], "model": "student"})
    if "error" in found:
        sys.exit(found["error"]["message"])
    return [row["embedding"] for row in found["data"]]


print(json.dumps({"queries": embed([query], "query"), "documents": embed(documents, "document")}))
