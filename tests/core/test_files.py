"""Scratch names: unique to a process of a machine, cleared away only where that process has ended."""

from __future__ import annotations

from distilvec.core import files
from distilvec.core.files import is_scratch, remove_scratch, scratch


def test_processes_of_one_number_share_no_scratch_name(tmp_path, monkeypatch):
    mine = scratch(tmp_path / "texts")
    assert mine == scratch(tmp_path / "texts") and is_scratch(mine)
    mine.write_text("half")
    with monkeypatch.context() as patched:  # another machine, whose process has the same number
        patched.setattr(files, "_host", lambda: "0" * 8)
        patched.setattr(files, "_marks", {})
        theirs = scratch(tmp_path / "texts")
        theirs.write_text("half")
        assert theirs != mine
        remove_scratch(tmp_path)
        assert mine.exists() and not theirs.exists()
        theirs.write_text("half")
    remove_scratch(tmp_path)
    assert theirs.exists() and not mine.exists()
