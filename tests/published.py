"""Sets of public data for tests, in the place of the package's own table."""

from __future__ import annotations

from distilvec.data import public_table


def publish(monkeypatch, sha256=None, rows=None, **sets):
    """Make a table of these sets: parts by file, by the set's name."""
    found = {
        name: public_table.DataSet(
            about=f"the set {name}",
            licence="of the test",
            repository="someone/texts@" + "0" * 40,
            files={path: {"parts": parts, "sha256": sha256, "rows": rows} for path, parts in files.items()},
        )
        for name, files in sets.items()
    }
    monkeypatch.setattr(public_table, "data_sets", lambda: found)
