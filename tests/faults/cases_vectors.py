"""Tables of vectors: as the teacher, and imported into a cache."""

from __future__ import annotations

from collections.abc import Callable

from samples import make_texts

from faults.harness import TEXTS, World, case


def _table(world: World, texts: list[str], value: Callable[[int], float], width: int = 32, **columns: object) -> None:
    """A table whose row n holds a vector with `value(n)` and ones."""
    import numpy as np
    import pyarrow as pa
    import pyarrow.parquet as pq

    vectors = np.ones((len(texts), width), dtype=np.float32)
    vectors[:, 0] = [value(row) for row in range(len(texts))]
    pq.write_table(pa.table({"text": texts, "embedding": list(vectors), **columns}), world.root / "table.parquet")


def _with_table(world: World) -> list[str]:
    teacher = {"vectors": str(world.root / "table.parquet")}
    return ["cache", world.recipe(teacher=teacher, student={"model": str(world.model), "layers": 1})]


@case("table-with-rows-that-disagree", key="teacher.vectors")
def _(world: World) -> list[str]:
    texts = make_texts(TEXTS)
    _table(world, [*texts, texts[7]], float)
    return _with_table(world)


@case("table-with-the-same-row-twice", key=None)
def _(world: World) -> list[str]:
    texts = make_texts(TEXTS)
    _table(world, [*texts, texts[7]], lambda row: 3.0)
    return _with_table(world)


@case("table-of-mixed-lengths", key="teacher.vectors")
def _(world: World) -> list[str]:
    import numpy as np
    import pyarrow as pa
    import pyarrow.parquet as pq

    vectors = np.random.default_rng(0).standard_normal((TEXTS, 32)).astype(np.float32)
    vectors[:60] /= np.linalg.norm(vectors[:60], axis=1, keepdims=True)
    pq.write_table(pa.table({"text": make_texts(TEXTS), "embedding": list(vectors)}), world.root / "table.parquet")
    return _with_table(world)


@case("table-without-some-texts", key="teacher.vectors")
def _(world: World) -> list[str]:
    _table(world, make_texts(TEXTS - 20), float)
    return _with_table(world)


@case("table-cut-short", key="teacher.vectors")
def _(world: World) -> list[str]:
    _table(world, make_texts(TEXTS), float)
    path = world.root / "table.parquet"
    path.write_bytes(path.read_bytes()[:-100])
    return _with_table(world)


@case("table-without-rows", key="teacher.vectors")
def _(world: World) -> list[str]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    schema = pa.schema([("text", pa.string()), ("embedding", pa.list_(pa.float32()))])
    pq.write_table(schema.empty_table(), world.root / "table.parquet")
    return _with_table(world)


@case("table-with-an-unknown-role", key="teacher.vectors")
def _(world: World) -> list[str]:
    _table(world, make_texts(TEXTS), float, role=["query", *["passage"] * (TEXTS - 1)])
    return _with_table(world)


@case("import-of-a-missing-table", key="--table")
def _(world: World) -> list[str]:
    return ["cache", "import", world.recipe(), "--table", "absent.parquet"]


@case("import-of-another-teacher", key="--table")
def _(world: World) -> list[str]:
    world.run("cache", "export", world.recipe(), "--out", "out.parquet")
    return ["cache", "import", world.recipe(teacher__max_length=16), "--table", "out.parquet"]


@case("import-of-rows-that-disagree", key="--table")
def _(world: World) -> list[str]:
    _table(world, ["a", "b", "a"], lambda row: row + 1.0)
    return ["cache", "import", world.recipe(), "--table", "table.parquet"]
