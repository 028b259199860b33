"""Vectors from txtai: python with_txtai.py STUDENT QUERY DOCUMENT ..."""

# pip install txtai==9.14.0 sentence-transformers==6.2.0

import json
import sys

from txtai import Embeddings

folder, query, *documents = sys.argv[1:]
embeddings = Embeddings(
    path=folder,
    method="sentence-transformers",  # the default, transformers, leaves out Dense modules
    gpu=False,
)
queries = embeddings.batchtransform([query], category="query")
vectors = embeddings.batchtransform(documents, category="data")
print(json.dumps({"queries": [row.tolist() for row in queries], "documents": [row.tolist() for row in vectors]}))
