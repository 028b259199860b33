#!/usr/bin/env bash
# pymilvus 3.0.2 with milvus-lite 3.2.2: a collection that is opened again answers no query until load_collection.
#
# The process that makes a collection finds it loaded. The next process finds it released: query, get, search and
# query_iterator raise code 101 and name load(), while get_collection_stats counts the rows.
# Known: zilliztech/memsearch#540, neuml/txtai#1214.
#
# Fails if that changes. Output seen on 2026-11-29:
#   made: Loaded, query 3 rows
#   opened again: NotLoad, 3 rows in the statistics
#   query: code 101
#   get: code 101
#   search: code 101
#   query_iterator: code 101
#   after load_collection: Loaded, query_iterator 3 rows
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check pymilvus==3.0.2 milvus-lite==3.2.2
cat > "$folder/make.py" <<'PY'
import sys
from pymilvus import MilvusClient

client = MilvusClient(sys.argv[1])
client.create_collection("texts", dimension=2)
client.insert("texts", [{"id": number, "vector": [1.0, float(number)]} for number in range(3)])
state = client.get_load_state("texts")["state"].name
print(f"made: {state}, query {len(client.query('texts', filter='id >= 0'))} rows")
client.close()
PY
cat > "$folder/open.py" <<'PY'
import sys
from pymilvus import MilvusClient, MilvusException

client = MilvusClient(sys.argv[1])
state = client.get_load_state("texts")["state"].name
print(f"opened again: {state}, {client.get_collection_stats('texts')['row_count']} rows in the statistics")
calls = {
    "query": lambda: client.query("texts", filter="id >= 0"),
    "get": lambda: client.get("texts", ids=[0]),
    "search": lambda: client.search("texts", data=[[1.0, 0.0]], limit=2),
    "query_iterator": lambda: client.query_iterator("texts", batch_size=10).next(),
}
for name, call in calls.items():
    try:
        print(f"{name}: {len(call())} rows")
    except MilvusException as error:
        print(f"{name}: code {error.code}")
client.load_collection("texts")
state = client.get_load_state("texts")["state"].name
print(f"after load_collection: {state}, query_iterator {len(calls['query_iterator']())} rows")
client.close()
PY
for step in make open; do
  "$folder/venv/bin/python" "$folder/$step.py" "$folder/texts.db" 2> "$folder/log" || { cat "$folder/log"; exit 1; }
done | tee "$folder/output"
diff - "$folder/output" <<'EXPECTED'
made: Loaded, query 3 rows
opened again: NotLoad, 3 rows in the statistics
query: code 101
get: code 101
search: code 101
query_iterator: code 101
after load_collection: Loaded, query_iterator 3 rows
EXPECTED
