"""Vectors from Haystack: python with_haystack.py STUDENT QUERY DOCUMENT ..."""

# pip install haystack-ai==3.4.0 sentence-transformers-haystack==2.0.0 sentence-transformers==6.2.0

import json
import sys

from haystack import Document
from haystack_integrations.components.embedders.sentence_transformers import (
    SentenceTransformersDocumentEmbedder,
    SentenceTransformersTextEmbedder,
)

folder, query, *documents = sys.argv[1:]
of_queries = SentenceTransformersTextEmbedder(
    model=folder, encode_kwargs={"prompt_name": "query"}, progress_bar=False
)  # without encode_kwargs Haystack prepends no prompt
of_documents = SentenceTransformersDocumentEmbedder(
    model=folder, encode_kwargs={"prompt_name": "document"}, progress_bar=False
)
found = of_documents.run([Document(content=text) for text in documents])["documents"]
print(json.dumps({"queries": [of_queries.run(query)["embedding"]], "documents": [one.embedding for one in found]}))
