"""Vectors from Sentence Transformers, 5.1 to 6: python with_sentence_transformers.py STUDENT QUERY DOCUMENT ..."""

# pip install sentence-transformers==6.2.0
# pip install sentence-transformers==5.1.2

import json
import sys

from sentence_transformers import SentenceTransformer

folder, query, *documents = sys.argv[1:]
model = SentenceTransformer(folder, device="cpu")
queries = model.encode_query([query])  # the student's prompts are prepended by role
print(json.dumps({"queries": queries.tolist(), "documents": model.encode_document(documents).tolist()}))
