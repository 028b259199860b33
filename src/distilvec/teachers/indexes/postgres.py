"""A table of PostgreSQL with pgvector: postgresql://USER@HOST:PORT/DATABASE/TABLE (or SCHEMA.TABLE).

Further settings of libpq follow a question mark: ?host=/run/postgresql&sslmode=require. The password comes from
DISTILVEC_INDEX_PASSWORD, PGPASSWORD or ~/.pgpass.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from urllib.parse import unquote, urlsplit

from distilvec.core.errors import DistilvecError, first_line
from distilvec.core.extras import require_extra
from distilvec.teachers.cache.columns import Part, find_columns
from distilvec.teachers.indexes.reader import Batch, Cursor, Reader

_BLOCKS = 16  # of 8 KB, read together; vectors of more than 2 KB are stored outside of them
# operator classes of the indexes on a column, such as vector_cosine_ops and halfvec_l2_ops
_OPERATORS = """
    SELECT DISTINCT split_part(opclass.opcname, '_', 2)
    FROM pg_index AS index
    JOIN pg_attribute AS attribute ON attribute.attrelid = index.indrelid AND attribute.attnum = index.indkey[0]
    JOIN pg_opclass AS opclass ON opclass.oid = index.indclass[0]
    WHERE index.indrelid = %s::regclass AND attribute.attname = %s AND opclass.opcname ~ '^(vector|halfvec)_'
"""


class PostgresTable(Reader):
    """A table, read by ranges of its blocks in one snapshot of the database; the cursor is the next block.

    vector, halfvec and arrays of real or double precision are read. The connection is read-only.
    """

    def __init__(self, address: str, columns: Mapping[Part, str] | None, key: str) -> None:
        require_extra("pgvector", key)
        import psycopg
        from psycopg import sql

        parts = urlsplit(address)
        database, _, table = unquote(parts.path).strip("/").rpartition("/")
        self.address = address
        self.key = key
        self.error = psycopg.Error
        if not database:
            raise DistilvecError(key, f"{address} names no table.", "Give postgresql://user@host/DATABASE/TABLE.")
        password = os.environ.get("DISTILVEC_INDEX_PASSWORD")
        uri = parts._replace(scheme="postgresql", path=f"/{database}").geturl()
        self.table = sql.Identifier(*table.split(".", 1))
        with ExitStack() as failure:
            try:
                self.connection = psycopg.connect(uri, password=password)
                failure.callback(self.connection.close)
                self.connection.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
                self.connection.read_only = True
                self.blocks, kind, names = self._describe()
            except psycopg.Error as error:
                raise DistilvecError(key, f"{address} cannot be read: {first_line(error)}") from None
            if kind not in ("r", "m"):  # a table or a materialized view: others have no blocks to read by
                problem = f"{address} is a view or a partitioned table."
                raise DistilvecError(key, problem, "Name a table or a partition.")
            self.columns = find_columns(names, columns, address, key)
            failure.pop_all()

    def __exit__(self, *error: object) -> None:
        self.connection.close()

    @property
    def metric(self) -> str | None:
        """The operators of the index on the vectors; none is stated without an index, or by two that differ."""
        with self.connection.cursor() as cursor:
            name = self.table.as_string(self.connection)
            rows = cursor.execute(_OPERATORS, (name, self.columns["embedding"])).fetchall()
        return str(rows[0][0]) if len(rows) == 1 else None

    def count(self) -> int:
        """Rows of the table."""
        from psycopg import sql

        with self.connection.cursor() as cursor:
            row = cursor.execute(sql.SQL("SELECT count(*) FROM {}").format(self.table)).fetchone()
        return int(row[0]) if row else 0

    def batches(self, after: Cursor) -> Iterator[Batch]:
        """Rows from block `after` on, in the order of the table's file."""
        from psycopg import sql

        parts = {name: sql.Identifier(column) for name, column in self.columns.items()}
        query = sql.SQL(
            "SELECT {id}::text, {text}::text, {embedding}::real[] FROM {table} "
            "WHERE ctid >= format('(%%s,0)', %s::text)::tid AND ctid < format('(%%s,0)', %s::text)::tid"
        ).format(
            id=parts.get("id", sql.SQL("ctid")), text=parts["text"], embedding=parts["embedding"], table=self.table
        )
        try:
            with self.connection.cursor(binary=True) as cursor:
                for block in range(int(after or 0), self.blocks, _BLOCKS):
                    rows = cursor.execute(query, (block, block + _BLOCKS)).fetchall()
                    ids = [row[0] for row in rows]
                    texts = [row[1] for row in rows]
                    vectors = [row[2] for row in rows]
                    yield Batch(ids, texts, vectors, block + _BLOCKS)
        except self.error as error:
            raise DistilvecError(self.key, f"{self.address} cannot be read: {first_line(error)}") from None

    def _describe(self) -> tuple[int, str, list[str]]:
        """Number of blocks, kind of relation, names of the columns."""
        name = self.table.as_string(self.connection)
        with self.connection.cursor() as cursor:
            row = cursor.execute(
                "SELECT pg_relation_size(oid) / current_setting('block_size')::int, relkind::text FROM pg_class "
                "WHERE oid = %s::regclass", (name,),
            ).fetchone()  # fmt: skip
            assert row is not None
            columns = cursor.execute(
                "SELECT attname FROM pg_attribute WHERE attrelid = %s::regclass AND attnum > 0 AND NOT attisdropped "
                "ORDER BY attnum", (name,),
            ).fetchall()  # fmt: skip
        return int(row[0]), str(row[1]), [str(column[0]) for column in columns]
