"""Vectors from LangChain: python with_langchain.py STUDENT QUERY DOCUMENT ..."""

# pip install langchain-huggingface==1.2.3 sentence-transformers==6.2.0

import json
import sys

from langchain_huggingface import HuggingFaceEmbeddings

folder, query, *documents = sys.argv[1:]
embeddings = HuggingFaceEmbeddings(
    model_name=folder,
    model_kwargs={"device": "cpu"},
    encode_kwargs={"prompt_name": "document"},  # without these LangChain prepends no prompt
    query_encode_kwargs={"prompt_name": "query"},
)
print(json.dumps({"queries": [embeddings.embed_query(query)], "documents": embeddings.embed_documents(documents)}))
