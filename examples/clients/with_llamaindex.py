"""Vectors from LlamaIndex: python with_llamaindex.py STUDENT QUERY DOCUMENT ..."""

# pip install llama-index-embeddings-huggingface==0.8.0 sentence-transformers==6.2.0

import json
import sys
from pathlib import Path

from llama_index.embeddings.huggingface import HuggingFaceEmbedding

folder, query, *documents = sys.argv[1:]
prompts = json.loads((Path(folder) / "config_sentence_transformers.json").read_text(encoding="utf-8"))["prompts"]
model = HuggingFaceEmbedding(
    model_name=folder,
    device="cpu",
    query_instruction=prompts.get("query"),  # LlamaIndex replaces the prompts of the folder
    text_instruction=prompts.get("document"),
)
vectors = model.get_text_embedding_batch(documents)
print(json.dumps({"queries": [model.get_query_embedding(query)], "documents": vectors}))
