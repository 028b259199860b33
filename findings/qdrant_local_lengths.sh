#!/usr/bin/env bash
# qdrant-client 1.20.0, embedded: vectors of a cosine collection have length 1 or the length as added, even in one file.
#
# The client that adds a vector gives it with length 1, as a server does, but writes it as it was added: opened again, the
# collection gives the added length. set_payload writes the vectors of its points as well, in the length they have in memory,
# so that some are of length 1 from then on. A search sets those in memory to length 1.
# Nothing tells a reader which lengths it gets: those of such a collection mean nothing.
# The first half is known: qdrant/qdrant-client#1381.
#
# Fails if that changes. Output seen on 2026-11-29, the lengths of two points that were added as [3, 4]:
#   added: 1.0 1.0
#   after set_payload on the first: 1.0 1.0
#   opened again: 1.0 5.0
#   after a search: 1.0 1.0
#   opened again: 1.0 5.0
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check qdrant-client==1.20.0
cat > "$folder/lengths.py" <<'PY'
import math, sys
from qdrant_client import QdrantClient
from qdrant_client.models import Distance, PointStruct, VectorParams


def show(step):
    points, _ = client.scroll("texts", with_vectors=True)
    print(f"{step}:", *(round(math.hypot(*point.vector), 3) for point in points))


client = QdrantClient(path=sys.argv[1])
client.create_collection("texts", vectors_config=VectorParams(size=2, distance=Distance.COSINE))
client.upsert("texts", [PointStruct(id=number, vector=[3.0, 4.0], payload={}) for number in (1, 2)])
show("added")
client.set_payload("texts", {"language": "en"}, points=[1])
show("after set_payload on the first")
client.close()

client = QdrantClient(path=sys.argv[1])
show("opened again")
client.query_points("texts", query=[1.0, 0.0], limit=1)
show("after a search")
client.close()

client = QdrantClient(path=sys.argv[1])
show("opened again")
client.close()
PY
"$folder/venv/bin/python" "$folder/lengths.py" "$folder/store" | tee "$folder/output"
diff - "$folder/output" <<'EXPECTED'
added: 1.0 1.0
after set_payload on the first: 1.0 1.0
opened again: 1.0 5.0
after a search: 1.0 1.0
opened again: 1.0 5.0
EXPECTED
