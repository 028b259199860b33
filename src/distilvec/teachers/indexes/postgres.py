"""A table of PostgreSQL with pgvector: postgresql://USER@HOST:PORT/DATABASE/TABLE (or SCHEMA.TABLE).

Further settings of libpq follow a question mark: ?host=/run/postgresql&sslmode=require. The password comes from
DISTILVEC_INDEX_PASSWORD, PGPASSWORD or ~/.pgpass. Another machine gets it as plain text through TLS alone, which
sslmode=require demands, or where PGREQUIREAUTH allows it: the address may be that of somebody else's recipe.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any
from urllib.parse import unquote, urlsplit

from distilvec.core.errors import DistilvecError, first_line
from distilvec.core.extras import require_extra
from distilvec.teachers.cache.columns import Part, find_columns
from distilvec.teachers.indexes.reader import Batch, Cursor, Reader, read_origin, read_text

_LOCK_SECONDS = 30  # to wait for a table that another session has locked
_BLOCKS = 16  # of 8 KB, read together; vectors of more than 2 KB are stored outside of them
_FIXES = {  # by words of the error
    "lock timeout": "Wait until the other session has ended.",
    "requested a cleartext password": "Demand TLS with ?sslmode=require, or allow it with PGREQUIREAUTH=password.",
    "cannot cast type": "Name a column of the type vector, halfvec, sparsevec or real[].",
    "invalid byte sequence": "The database has no encoding, and texts that are not UTF-8: convert them.",
}
_LOCAL = ("localhost", "127.0.0.1", "::1", "")
# operator classes of the indexes on a column, such as vector_cosine_ops and halfvec_l2_ops
_OPERATORS = """
    SELECT DISTINCT split_part(opclass.opcname, '_', 2)
    FROM pg_index AS index
    JOIN pg_attribute AS attribute ON attribute.attrelid = index.indrelid AND attribute.attnum = index.indkey[0]
    JOIN pg_opclass AS opclass ON opclass.oid = index.indclass[0]
    WHERE index.indrelid = %s::regclass AND attribute.attname = %s AND opclass.opcname ~ '^(vector|halfvec)_'
"""
# Each change of a row makes a version of it with another place or another transaction
_VERSION = "SELECT count(*), coalesce(sum(hashtextextended(ctid::text || ' ' || xmin::text, 0)), 0)::text FROM {}"


class PostgresTable(Reader):
    """A table, read by ranges of its blocks in one snapshot of the database; the cursor is the next block.

    vector, halfvec, sparsevec and arrays of real or double precision are read. The connection is read-only.
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
            raise DistilvecError(f"{address} names no table.", "Give postgresql://user@host/DATABASE/TABLE.", key=key)
        password = os.environ.get("DISTILVEC_INDEX_PASSWORD")
        uri = parts._replace(scheme="postgresql", path=f"/{database}").geturl()
        settings: dict[str, Any] = {"client_encoding": "utf8"}  # of a database in SQL_ASCII, strings come as bytes
        if _may_be_overheard(uri):
            settings["require_auth"] = os.environ.get("PGREQUIREAUTH", "!password")
        self.table = sql.Identifier(*table.split(".", 1))
        with ExitStack() as failure:
            with self._readable():
                self.connection = psycopg.connect(uri, password=password, **settings)
                failure.callback(self.connection.close)
                self.connection.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
                self.connection.read_only = True
                self.connection.execute(f"SET lock_timeout = '{_LOCK_SECONDS}s'")
                blocks, kind, self.types = self._describe()
            if kind not in ("r", "m"):  # a table or a materialized view: others have no blocks to read by
                problem = f"{address} is a view or a partitioned table."
                raise DistilvecError(problem, "Name a table or a partition.", key=key)
            self.blocks = blocks
            self.columns = find_columns(self._names(columns), columns, address, key)
            with self._readable():
                statement = sql.SQL(_VERSION).format(self.table)
                row = self.connection.execute(statement).fetchone()
            assert row is not None
            self.rows = int(row[0])
            self._version = f"{row[0]} {row[1]}"
            failure.pop_all()

    def __exit__(self, *error: object) -> None:
        self.connection.close()

    @property
    def metric(self) -> str | None:
        """The operators of the index on the vectors; none is stated without an index, or by two that differ."""
        with self._readable():
            name = self.table.as_string(self.connection)
            rows = self.connection.execute(_OPERATORS, (name, self.columns["embedding"])).fetchall()
        return str(rows[0][0]) if len(rows) == 1 else None

    def version(self) -> str:
        """The number of rows, and a hash of their places and of the transactions that wrote them."""
        return self._version

    def count(self) -> int:
        """Rows of the table."""
        return self.rows

    def batches(self, after: Cursor) -> Iterator[Batch]:
        """Rows from block `after` on, in the order of the table's file."""
        from psycopg import sql

        # Without parameters: with them a % in a column's name would be one, too
        query = sql.SQL(
            "SELECT {id}::text, {text}, {embedding}::real[], {role}, {origin} FROM {table} "
            "WHERE ctid >= {first}::tid AND ctid < {end}::tid"
        )
        parts = {
            "id": sql.Identifier(self.columns["id"]) if "id" in self.columns else sql.SQL("ctid"),
            "text": self._text_expression(),
            "embedding": self._vector_expression(),
            "role": self._role_expression(),
            "origin": self._origin_expression(),
            "table": self.table,
        }
        with self._readable(), self.connection.cursor(binary=True) as cursor:
            for block in range(int(after or 0), self.blocks, _BLOCKS):
                end = block + _BLOCKS
                limits = {"first": sql.Literal(f"({block},0)"), "end": sql.Literal(f"({end},0)")}
                rows = cursor.execute(query.format(**parts, **limits)).fetchall()
                ids = [str(row[0]) for row in rows]
                texts = [read_text(row[1], str(row[0]), self.address, self.key) for row in rows]
                roles = [row[3] for row in rows] if "role" in self.columns else None
                origins = [read_origin(row[4]) for row in rows] if "origin" in self.columns else None
                yield Batch(ids, texts, [row[2] for row in rows], end, roles, origins)

    @contextmanager
    def _readable(self) -> Iterator[None]:
        try:
            yield
        except self.error as error:
            fix = next((fix for words, fix in _FIXES.items() if words in str(error)), "")
            raise DistilvecError(f"{self.address} cannot be read: {first_line(error)}.", fix, key=self.key) from None

    def _names(self, columns: Mapping[Part, str] | None) -> list[str]:
        """Names of the columns, and of fields of columns of JSON that `columns` names: metadata.text."""
        names = list(self.types)
        for part in ("text", "origin"):
            choice = (columns or {}).get(part, "")
            if choice not in names and self.types.get(choice.partition(".")[0], "").startswith("json"):
                names.append(choice)
        return names

    def _vector_expression(self) -> Any:
        """The SQL of the vectors; there is no cast from sparsevec to an array."""
        from psycopg import sql

        name = self.columns["embedding"]
        column = sql.Identifier(name)
        return sql.SQL("{}::vector").format(column) if self.types.get(name) == "sparsevec" else column

    def _role_expression(self) -> Any:
        """The SQL of the roles, which may have a type of their own (ENUM)."""
        from psycopg import sql

        name = self.columns.get("role")
        if name is None:
            return sql.SQL("NULL")
        column = sql.Identifier(name)
        return column if self.types.get(name) == "bytea" else sql.SQL("{}::text").format(column)

    def _origin_expression(self) -> Any:
        """The SQL of the names of documents."""
        from psycopg import sql

        name = self.columns.get("origin")
        if name is None:
            return sql.SQL("NULL")
        return sql.SQL("{}::text").format(sql.Identifier(name)) if name in self.types else _field(name)

    def _text_expression(self) -> Any:
        """The SQL of the texts. Errors: DistilvecError for a column of numbers, dates or others that are no texts."""
        from psycopg import sql

        name = self.columns["text"]
        if name not in self.types:
            return _field(name)
        kind = self.types[name]
        if kind == "bytea":
            return sql.Identifier(name)
        if kind != "text":
            problem = f"{self.address} has type {kind} in column '{name}'; expected texts."
            raise DistilvecError(problem, "Name the column of the texts.", key=self.key)
        return sql.SQL("{}::text").format(sql.Identifier(name))

    def _describe(self) -> tuple[int, str, dict[str, str]]:
        """Number of blocks, kind of relation, and the type of each column: `text` for all kinds of strings."""
        name = self.table.as_string(self.connection)
        row = self.connection.execute(
            "SELECT pg_relation_size(oid) / current_setting('block_size')::int, relkind::text FROM pg_class "
            "WHERE oid = %s::regclass", (name,),
        ).fetchone()  # fmt: skip
        assert row is not None
        columns = self.connection.execute(
            "SELECT attname, CASE WHEN typcategory IN ('S', 'E') THEN 'text' ELSE typname END FROM pg_attribute "
            "JOIN pg_type ON pg_type.oid = atttypid WHERE attrelid = %s::regclass AND attnum > 0 "
            "AND NOT attisdropped ORDER BY attnum", (name,),
        ).fetchall()  # fmt: skip
        return int(row[0]), str(row[1]), {str(column): str(kind) for column, kind in columns}


def _field(name: str) -> Any:
    """The SQL of a field of a column of JSON as text: metadata.text."""
    from psycopg import sql

    column, *fields = name.split(".")
    return sql.SQL("{} #>> {}").format(sql.Identifier(column), sql.Literal(fields))


def _may_be_overheard(uri: str) -> bool:
    """Whether a connection may leave this machine without TLS, by its address and libpq's environment."""
    from psycopg import conninfo, pq

    settings: dict[str, Any] = {}
    for option in pq.Conninfo.get_defaults():
        settings[option.keyword.decode()] = (option.val or b"").decode()
    settings |= conninfo.conninfo_to_dict(uri)
    if settings["sslmode"] in ("require", "verify-ca", "verify-full"):
        return False
    hosts = f"{settings['host']},{settings['hostaddr']}".split(",")
    is_local = all(host in _LOCAL or host.startswith(("/", "@")) for host in hosts)  # / and @ begin sockets
    return not is_local or bool(settings["service"])  # which names a host in a file of its own
