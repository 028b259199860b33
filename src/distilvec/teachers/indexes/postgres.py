"""A table of PostgreSQL with pgvector: postgresql://USER@HOST:PORT/DATABASE/TABLE (or SCHEMA.TABLE).

Further settings of libpq follow a question mark: ?host=/run/postgresql&sslmode=require. The password comes from
DISTILVEC_INDEX_PASSWORD, PGPASSWORD or ~/.pgpass. Another machine gets it as plain text through TLS alone, which
sslmode=require demands, or where PGREQUIREAUTH allows it: the address may be that of somebody else's recipe.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any, Literal
from urllib.parse import unquote

from distilvec.core.errors import DistilvecError
from distilvec.data.task_rows import document_name
from distilvec.teachers.cache.columns import find_columns
from distilvec.teachers.indexes.conditions import check_names, sql_condition
from distilvec.teachers.indexes.reader import Batch, Cursor, Reader, read_text

_LOCK_SECONDS = 30  # to wait for a table that another session has locked
_BLOCKS = 16  # of 8 KB, read together; vectors of more than 2 KB are stored outside of them
_LOCAL = ("localhost", "127.0.0.1", "::1", "")
# Operator classes of the indexes on a column, such as vector_cosine_ops and halfvec_l2_ops. The key of an index on an
# expression, such as (embedding::vector(384)), has the number 0; the database knows which columns the index depends on
_OPERATORS = """
    SELECT DISTINCT split_part(opclass.opcname, '_', 2)
    FROM pg_index AS index
    JOIN pg_attribute AS attribute ON attribute.attrelid = index.indrelid
    JOIN pg_opclass AS opclass ON opclass.oid = index.indclass[0]
    WHERE index.indrelid = %s::regclass AND attribute.attname = %s AND opclass.opcname ~ '^(vector|halfvec|sparsevec)_'
    AND (attribute.attnum = index.indkey[0] OR index.indkey[0] = 0
        AND position(quote_ident(attribute.attname) IN pg_get_indexdef(index.indexrelid, 1, true)) > 0
        AND EXISTS (SELECT FROM pg_depend WHERE classid = 'pg_class'::regclass AND objid = index.indexrelid
            AND refobjid = index.indrelid AND refobjsubid = attribute.attnum))
"""
# Each change of a row makes a version of it with another place or another transaction
_VERSION = "SELECT count(*), coalesce(sum(hashtextextended(ctid::text || ' ' || xmin::text, 0)), 0)::text FROM {}"


class PostgresTable(Reader):
    """A table, read by ranges of its blocks in one snapshot of the database; the cursor is the next block.

    vector, halfvec, sparsevec and arrays of real or double precision are read. The connection is read-only.
    """

    takes_settings = True
    takes_where = True

    def open(self) -> None:
        """Connect, describe the table, and find its columns."""
        import psycopg
        from psycopg import sql

        parts = self.address.parts
        database, _, table = unquote(parts.path).strip("/").rpartition("/")
        if not database:
            raise DistilvecError(f"{self.address} names no table.", "Give postgresql://user@host/DATABASE/TABLE.")
        uri = parts._replace(scheme="postgresql", path=f"/{database}").geturl()
        settings: dict[str, Any] = {"client_encoding": "utf8"}  # of a database in SQL_ASCII, strings come as bytes
        if _may_be_overheard(uri):
            settings["require_auth"] = os.environ.get("PGREQUIREAUTH", "!password")
        try:
            self.connection = psycopg.connect(uri, password=os.environ.get("DISTILVEC_INDEX_PASSWORD"), **settings)
        except psycopg.Error as error:
            if "requested a cleartext password" not in str(error):
                raise
            fix = "Demand TLS with ?sslmode=require, or allow it with PGREQUIREAUTH=password."
            raise DistilvecError(f"{self.address} asks for the password as plain text, without TLS.", fix) from None
        self.opened.callback(self.connection.close)
        self.connection.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        self.connection.read_only = True
        self.connection.execute(f"SET lock_timeout = '{_LOCK_SECONDS}s'")
        self.table = sql.Identifier(*table.split(".", 1))
        self.blocks, kind, self.types = self._describe()
        if kind not in ("r", "m"):  # a table or a materialized view: rows of others are not in blocks of their own
            problem = f"{self.address} is a view, a partitioned table, or a table that others inherit."
            fix = (
                f"Name one of its tables, or CREATE MATERIALIZED VIEW all_rows AS SELECT * FROM {table}, and name that."
            )
            raise DistilvecError(problem, fix)
        self.columns = find_columns(self._names(), self.choices, self.address.text)
        row = self.connection.execute(sql.SQL(_VERSION).format(self.table)).fetchone()
        assert row is not None
        self._version = f"{row[0]} {row[1]}"
        check_names(self.where, [*self._names(), *filter(self._is_json, self.where)], self.address.text)
        self.condition, self.parameters = sql_condition(self.where, self._escaped_column, "%s")
        query = sql.SQL("SELECT count(*) FROM {}").format(self.table).as_string(self.connection)
        row = self.connection.execute(f"{query.replace('%', '%%')} WHERE {self.condition}", self.parameters).fetchone()
        assert row is not None
        self.rows = int(row[0])

    @property
    def metric(self) -> str | None:
        """The operators of the index on the vectors; none is stated without an index, or by two that differ."""
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

        query = sql.SQL(
            "SELECT coalesce({id}::text, ctid::text), {text}, {embedding}::real[], {role}, {origin} FROM {table} "
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
        with self.connection.cursor(binary=True) as cursor:
            for block in range(int(after or 0), self.blocks, _BLOCKS):
                end = block + _BLOCKS
                limits = {"first": sql.Literal(f"({block},0)"), "end": sql.Literal(f"({end},0)")}
                # With parameters a % in a column's name would be one, too
                statement = query.format(**parts, **limits).as_string(self.connection).replace("%", "%%")
                rows = cursor.execute(f"{statement} AND {self.condition}", self.parameters).fetchall()
                ids = [str(row[0]) for row in rows]
                texts = [read_text(row[1], str(row[0]), self.address.text) for row in rows]
                roles = [row[3] for row in rows] if "role" in self.columns else None
                origins = [document_name(row[4]) for row in rows] if "origin" in self.columns else None
                yield Batch(ids, texts, [row[2] for row in rows], end, roles, origins)

    def values(self, name: str) -> list[Any]:
        """Values of a column or of a field of JSON."""
        from psycopg import sql

        query = sql.SQL("SELECT DISTINCT ({})::text FROM {} LIMIT 11").format(self._column(name), self.table)
        return [row[0] for row in self.connection.execute(query).fetchall()]

    def _column(self, name: str) -> Any:
        """The SQL of a column or of a field of JSON."""
        from psycopg import sql

        return sql.Identifier(name) if name in self.types else _field(name)

    def _escaped_column(self, name: str) -> str:
        """The SQL of a column beside parameters, where a % in its name would be one, too."""
        return f"({self._column(name).as_string(self.connection)})".replace("%", "%%")

    def _is_json(self, name: str) -> bool:
        return self.types.get(name.partition(".")[0], "").startswith("json")

    def _names(self) -> list[str]:
        """Names of the columns, and of fields of columns of JSON that the recipe names: metadata.text."""
        names = list(self.types)
        parts: tuple[Literal["text", "origin"], ...] = ("text", "origin")
        for part in parts:
            choice = self.choices.get(part, "")
            if choice not in names and self._is_json(choice):
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
        """The SQL of the texts; numbers and dates stay what they are, which `read_text` refuses."""
        from psycopg import sql

        name = self.columns["text"]
        if name not in self.types:
            return _field(name)
        column = sql.Identifier(name)
        return sql.SQL("{}::text").format(column) if self.types[name] == "text" else column

    def _describe(self) -> tuple[int, str, dict[str, str]]:
        """Number of blocks, kind of relation, and the type of each column: `text` for all kinds of strings."""
        name = self.table.as_string(self.connection)
        row = self.connection.execute(
            "SELECT pg_relation_size(oid) / current_setting('block_size')::int, CASE WHEN EXISTS (SELECT FROM "
            "pg_inherits WHERE inhparent = oid) THEN 'parent' ELSE relkind::text END FROM pg_class "
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
