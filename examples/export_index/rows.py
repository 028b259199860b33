"""Rows of an index as a Parquet file, which `distilvec distill FILE` and `distilvec check MODEL FILE` read."""

from itertools import islice

import pyarrow as pa
import pyarrow.parquet as pq

SCHEMA = pa.schema([("id", pa.string()), ("text", pa.string()), ("embedding", pa.list_(pa.float32()))])


def field(document, name):
    """A field by its dotted name, as mappings have it: a key with dots, or keys inside of one another."""
    if name in document:
        return document[name]
    outer, _, inner = name.partition(".")
    content = document.get(outer)
    return field(content, inner) if isinstance(content, dict) else None


def write_parquet(path, rows):
    """Write rows of id, text and vector, a thousand at a time; a row without a vector has None there."""
    rows = iter(rows)
    with pq.ParquetWriter(path, SCHEMA) as writer:
        while batch := list(islice(rows, 1000)):
            writer.write_table(
                pa.Table.from_pylist([dict(zip(SCHEMA.names, row, strict=True)) for row in batch], SCHEMA)
            )
