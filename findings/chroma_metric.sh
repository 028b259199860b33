#!/usr/bin/env bash
# chromadb 1.5.9: a number of the search, ef_search, decides whether the metric in the metadata of a new collection counts.
#
# The metadata is {"hnsw:space": "cosine"} in every case, and the collection keeps and shows it in every case. It counts if the
# configuration beside it has the default values, even if that configuration names l2. If any value of the configuration
# differs from its default, the metadata does not count, and a metric that is not named is l2.
# No case warns. The configuration of the collection says how queries rank; its metadata does not.
# Expected: a metric that is named in the configuration counts, else the metric in the metadata, else l2.
#
# Fails if that changes. Output seen on 2026-11-29, of two vectors for each query, one near by angle and one near by distance:
#   no configuration: says cosine, first is angle
#   {'space': 'l2'}: says cosine, first is angle
#   {'ef_search': 100}: says cosine, first is angle
#   {'ef_search': 50}: says l2, first is distance
#   {'space': 'l2', 'ef_search': 50}: says l2, first is distance
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check chromadb==1.5.9
cat > "$folder/metric.py" <<'PY'
import chromadb
from chromadb.config import Settings

client = chromadb.EphemeralClient(Settings(anonymized_telemetry=False))
cases = [None, {"space": "l2"}, {"ef_search": 100}, {"ef_search": 50}, {"space": "l2", "ef_search": 50}]
for number, values in enumerate(cases):
    collection = client.create_collection(
        f"case{number}",
        metadata={"hnsw:space": "cosine"},
        configuration=None if values is None else {"hnsw": values},
        embedding_function=None,
    )
    collection.add(ids=["angle", "distance"], embeddings=[[10.0, 1.0], [1.0, 1.5]])
    first = collection.query(query_embeddings=[[1.0, 0.0]], n_results=2)["ids"][0][0]
    again = client.get_collection(f"case{number}", embedding_function=None)
    assert again.metadata == {"hnsw:space": "cosine"}
    print(f"{values or 'no configuration'}: says {again.configuration['hnsw']['space']}, first is {first}")
PY
"$folder/venv/bin/python" "$folder/metric.py" | tee "$folder/output"
diff - "$folder/output" <<'EXPECTED'
no configuration: says cosine, first is angle
{'space': 'l2'}: says cosine, first is angle
{'ef_search': 100}: says cosine, first is angle
{'ef_search': 50}: says l2, first is distance
{'space': 'l2', 'ef_search': 50}: says l2, first is distance
EXPECTED
