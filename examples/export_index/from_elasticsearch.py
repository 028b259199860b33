"""Elasticsearch: python from_elasticsearch.py http://localhost:9200 INDEX TEXT_FIELD VECTOR_FIELD rows.parquet.

elasticsearch-py 9, of the server's major version. Since 9.2 a server leaves vectors out unless it is asked for them.
"""

import os
import sys

from elasticsearch import Elasticsearch
from elasticsearch.helpers import scan
from rows import field, write_parquet

url, index, text, vector, path = sys.argv[1:]
client = Elasticsearch(url, api_key=os.environ.get("ELASTIC_API_KEY"))
query = {"query": {"match_all": {}}, "_source": {"includes": [text, vector], "exclude_vectors": False}}
hits = scan(client, index=index, query=query)
rows = ((hit["_id"], field(hit["_source"], text), field(hit["_source"], vector)) for hit in hits)
write_parquet(path, rows)
