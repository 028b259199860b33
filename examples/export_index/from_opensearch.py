"""OpenSearch: python from_opensearch.py http://localhost:9200 INDEX TEXT_FIELD VECTOR_FIELD rows.parquet.

opensearch-py 3. USER and PASSWORD of the server are in OPENSEARCH_USER and OPENSEARCH_PASSWORD.
"""

import os
import sys

from opensearchpy import OpenSearch
from opensearchpy.helpers import scan
from rows import field, write_parquet

url, index, text, vector, path = sys.argv[1:]
user, password = os.environ.get("OPENSEARCH_USER"), os.environ.get("OPENSEARCH_PASSWORD")
client = OpenSearch(url, http_auth=(user, password) if user else None)
hits = scan(client, index=index, query={"query": {"match_all": {}}, "_source": [text, vector]})
rows = ((hit["_id"], field(hit["_source"], text), field(hit["_source"], vector)) for hit in hits)
write_parquet(path, rows)
