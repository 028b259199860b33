"""Addresses of indexes: files by their ending, databases by their scheme. No address holds a password."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote, urlsplit

from distilvec.core.addresses import has_password, sets_secret, unknown_setting
from distilvec.core.errors import DistilvecError
from distilvec.core.files import files_below, is_aside, is_parquet

ENDINGS = {".parquet": "parquet", ".arrow": "arrow", ".feather": "arrow", ".npy": "npy", ".faiss": "faiss",
           ".index": "faiss", ".lance": "lancedb"}  # fmt: skip
SCHEMES = {"postgresql": "pgvector", "postgres": "pgvector", "qdrant": "qdrant"}
EXAMPLES = (
    "table.parquet, table.arrow, vectors.npy, index.faiss, db/TABLE.lance, qdrant://host:6333/COLLECTION, "
    "qdrant:///folder/COLLECTION or postgresql://user@host/database/TABLE"
)


@dataclass(frozen=True)
class Address:
    """An index: its kind, its text (without secrets), and the path of a file or folder (None for a server)."""

    kind: str
    text: str
    path: Path | None = None

    @property
    def name(self) -> str:
        """Short name in reports: that of the file, table or collection."""
        if self.path is not None:
            return self.path.stem
        return unquote(urlsplit(self.text).path).rpartition("/")[2]

    def embedded_files(self) -> list[Path]:
        """The files of a collection in a folder of Qdrant; none of a server."""
        parts = urlsplit(self.text)
        if self.kind != "qdrant" or parts.hostname:
            return []
        folder, _, collection = unquote(parts.path).rpartition("/")
        about = Path(folder) / "meta.json"
        return [*([about] if about.is_file() else []), *files_below(Path(folder) / "collection" / collection)]


def is_index(name: object) -> bool:
    """Return whether a teacher's name is the address of a table or index, not that of a model."""
    text = str(name)
    path = Path(text)
    return text.partition("://")[0] in SCHEMES or path.suffix.lower() in ENDINGS or _is_parquet_folder(path)


def read_address(text: str | Path, key: str) -> Address:
    """The address of an index. DistilvecError for an unknown kind, and for an address that holds a password."""
    text = str(text)
    scheme, separator, _ = text.partition("://")
    if not separator:
        return _file_address(text, key)
    if scheme not in SCHEMES:
        raise DistilvecError(f"no index has the scheme '{scheme}://'.", f"Give {EXAMPLES}.", key=key)
    if has_password(text):
        variable = "QDRANT_API_KEY" if scheme == "qdrant" else "PGPASSWORD (or DISTILVEC_INDEX_PASSWORD)"
        raise DistilvecError(
            f"the address with '{scheme}://' holds a password, which would end up in recipes and logs.",
            f"Remove it, and set the environment variable {variable}. An @ in a name is written as %40.",
            key=key,
        )
    try:
        parts = urlsplit(text)
        _ = parts.port  # parsed only now
        setting = unknown_setting(text)
    except ValueError:  # without the text, which may hold a password
        raise DistilvecError(f"the address with '{scheme}://' is not valid.", f"Give {EXAMPLES}.", key=key) from None
    if setting is not None:
        raise DistilvecError(
            f"the address with '{scheme}://' has {setting}, which is not known.", "Correct it.", key=key
        )
    if not parts.path.rpartition("/")[2]:
        raise DistilvecError(f"{text} names no table or collection.", f"Give {EXAMPLES}.", key=key)
    return Address(SCHEMES[scheme], text)


def _file_address(text: str, key: str) -> Address:
    path = Path(text)
    if sets_secret(text) and not path.exists():  # libpq's other form: host=... password=...
        problem = "this is no address, and it holds a password, which would end up in recipes and logs."
        raise DistilvecError(problem, f"Give {EXAMPLES}.", key=key)
    kind = ENDINGS.get(path.suffix.lower())
    if kind is None and _is_parquet_folder(path):
        kind = "parquet"
    if kind is None and path.exists():
        raise nothing_to_read(path, key)
    if kind is None:
        raise DistilvecError(f"{text}: no known kind of index.", f"Give {EXAMPLES}.", key=key)
    return Address(kind, text, path)


def nothing_to_read(path: Path, key: str, expected: str = "vectors") -> DistilvecError:
    """Return the error for a file or folder of another kind than is expected: it says what is there."""
    entries = sorted(entry.name for entry in path.iterdir()) if path.is_dir() else []
    content = ", ".join(entries[:5]) + (f" and {len(entries) - 5} more" if len(entries) > 5 else "")
    found = "is a file" if path.is_file() else f"holds {content or 'nothing'}"
    problem = f"{path} {found}; expected {expected} ({', '.join(ENDINGS)})."
    fix = "Write texts and vectors to a Parquet file with the columns text and embedding."
    if "chroma.sqlite3" in (*entries, path.name):
        fix += " Chroma gives them by collection.get(include=['documents', 'embeddings'])."
    return DistilvecError(problem, fix, key=key)


def _is_parquet_folder(path: Path) -> bool:
    """Whether a folder holds Parquet files and is not that of a model, which may have such files next to it."""
    if not path.is_dir() or (path / "modules.json").exists():
        return False
    return any(is_parquet(file) and not is_aside(file.relative_to(path)) for file in files_below(path))
