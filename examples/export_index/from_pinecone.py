"""Pinecone: python from_pinecone.py INDEX_HOST TEXT_FIELD rows.parquet [NAMESPACE].

pinecone 10, serverless indexes. The key is in PINECONE_API_KEY. Texts are a field of the metadata, if you stored them.
"""

import sys

from pinecone import Pinecone
from rows import write_parquet

host, text, path, *namespaces = sys.argv[1:]
namespace = namespaces[0] if namespaces else ""
index = Pinecone().Index(host=host)


def rows():
    for page in index.list(namespace=namespace, limit=100):
        found = index.fetch(ids=[vector.id for vector in page.vectors], namespace=namespace).vectors
        yield from ((name, (vector.metadata or {}).get(text), vector.values) for name, vector in found.items())


write_parquet(path, rows())
