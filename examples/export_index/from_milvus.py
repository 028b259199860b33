"""Milvus: python from_milvus.py http://localhost:19530 COLLECTION ID_FIELD TEXT_FIELD VECTOR_FIELD rows.parquet.

pymilvus 3. The address may be the folder of a Milvus Lite; the token of a server is in MILVUS_TOKEN.
"""

import os
import sys

from pymilvus import MilvusClient
from rows import write_parquet

uri, collection, key, text, vector, path = sys.argv[1:]
client = MilvusClient(uri, token=os.environ.get("MILVUS_TOKEN", ""))
client.load_collection(collection)
iterator = client.query_iterator(collection, batch_size=1000, output_fields=[key, text, vector])
batches = iter(iterator.next, [])
write_parquet(path, ((str(row[key]), row.get(text), row[vector]) for batch in batches for row in batch))
