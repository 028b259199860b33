#!/usr/bin/env bash
# duckdb 1.5.5 with vss 1.5.5: an exported and imported database has an HNSW index of another metric, l2sq instead of cosine.
#
# The statement of an index, in duckdb_indexes() as in the export, lacks WITH (metric = 'cosine'). The import makes the index
# from it without a warning, and a query by cosine no longer uses the index. The index of the file itself stays one of cosine,
# which pragma_hnsw_index_info() of vss shows: without vss, a file does not state its metric.
# duckdb 2.0.1 keeps WITH in the statement (seen with a plain index: no package of vss for it). See duckdb/duckdb#22316.
#
# Fails if that changes. Output seen on 2026-11-29:
#   1.5.5, created: cosine, CREATE INDEX vectors ON texts USING HNSW (vector);, cosine uses the index: True
#   1.5.5, imported: l2sq, CREATE INDEX vectors ON texts USING HNSW (vector);, cosine uses the index: False
#   2.0.1: CREATE INDEX numbers ON texts(number) WITH (metric = 'cosine' );
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/old"
"$folder/old/bin/pip" install --quiet --disable-pip-version-check duckdb==1.5.5 duckdb-extension-vss==1.5.5
python3 -m venv "$folder/new"
"$folder/new/bin/pip" install --quiet --disable-pip-version-check duckdb==2.0.1
cat > "$folder/old.py" <<'PY'
import importlib.resources, sys
import duckdb

folder = sys.argv[1]
vss = importlib.resources.files("duckdb_extension_vss") / "extensions" / "v1.5.5" / "vss.duckdb_extension"


def database(name):
    connection = duckdb.connect(f"{folder}/{name}.duckdb")
    connection.execute(f"LOAD '{vss}'")
    connection.execute("SET hnsw_enable_experimental_persistence = true")
    return connection


def show(connection, name):
    [(metric,)] = connection.execute("SELECT metric FROM pragma_hnsw_index_info()").fetchall()
    [(statement,)] = connection.execute("SELECT sql FROM duckdb_indexes()").fetchall()
    query = "EXPLAIN SELECT number FROM texts ORDER BY array_cosine_distance(vector, [1, 0]::FLOAT[2]) LIMIT 1"
    plan = connection.execute(query).fetchall()[0][1]
    print(f"1.5.5, {name}: {metric}, {statement}, cosine uses the index: {'HNSW_INDEX_SCAN' in plan}")


created = database("created")
created.execute("CREATE TABLE texts(number INTEGER, vector FLOAT[2])")
created.execute("INSERT INTO texts VALUES (1, [3, 4]), (2, [1, 0])")
created.execute("CREATE INDEX vectors ON texts USING HNSW (vector) WITH (metric = 'cosine')")
show(created, "created")
created.execute(f"EXPORT DATABASE '{folder}/export'")
imported = database("imported")
imported.execute(f"IMPORT DATABASE '{folder}/export'")
show(imported, "imported")
PY
cat > "$folder/new.py" <<'PY'
import duckdb

connection = duckdb.connect()
connection.execute("CREATE TABLE texts(number INTEGER)")
connection.execute("CREATE INDEX numbers ON texts(number) WITH (metric = 'cosine')")
print("2.0.1:", connection.execute("SELECT sql FROM duckdb_indexes()").fetchall()[0][0])
PY
{ "$folder/old/bin/python" "$folder/old.py" "$folder"; "$folder/new/bin/python" "$folder/new.py"; } | tee "$folder/output"
diff - "$folder/output" <<'EXPECTED'
1.5.5, created: cosine, CREATE INDEX vectors ON texts USING HNSW (vector);, cosine uses the index: True
1.5.5, imported: l2sq, CREATE INDEX vectors ON texts USING HNSW (vector);, cosine uses the index: False
2.0.1: CREATE INDEX numbers ON texts(number) WITH (metric = 'cosine' );
EXPECTED
