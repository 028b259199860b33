"""Weaviate: python from_weaviate.py CLUSTER_URL COLLECTION TEXT_PROPERTY rows.parquet [VECTOR_NAME].

weaviate-client 4. A server on this machine is named `local`; the key of another is in WEAVIATE_API_KEY.
"""

import os
import sys

import weaviate
from rows import write_parquet
from weaviate.classes.init import Auth

url, name, text, path, *vectors = sys.argv[1:]
vector = vectors[0] if vectors else "default"
if url == "local":
    client = weaviate.connect_to_local()
else:
    client = weaviate.connect_to_weaviate_cloud(url, auth_credentials=Auth.api_key(os.environ["WEAVIATE_API_KEY"]))
with client:
    objects = client.collections.use(name).iterator(include_vector=True)
    write_parquet(path, ((str(item.uuid), item.properties.get(text), item.vector.get(vector)) for item in objects))
