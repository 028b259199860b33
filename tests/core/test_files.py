"""Scratch names: unique to a process of a machine, cleared away only where that process has ended."""

from __future__ import annotations

import errno
import fcntl
import os
from pathlib import Path

import pytest
from refusals import refused

from distilvec.__main__ import run_command
from distilvec.core import files
from distilvec.core.files import (
    absolute_path,
    acquire_lock,
    check_output_file,
    is_locked,
    is_scratch,
    remove_scratch,
    scratch,
    user_cache,
)


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


def test_links_stay_and_lead_where_the_system_goes(tmp_path, monkeypatch):
    (tmp_path / "real" / "inside").mkdir(parents=True)
    (tmp_path / "link").symlink_to(tmp_path / "real" / "inside")
    (tmp_path / "real" / "text.txt").touch()
    monkeypatch.chdir(tmp_path)
    for name, expected in (("link", "link"), ("./link/", "link"), ("link/../text.txt", "real/text.txt"), (".", ".")):
        assert absolute_path(Path(name)) == tmp_path / expected
    assert absolute_path(Path("link/../../link")) == tmp_path / "link"


def test_the_users_cache_may_be_in_the_home_folder(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("DISTILVEC_CACHE", "~/stored")
    assert user_cache() == tmp_path / "stored"
    monkeypatch.delenv("DISTILVEC_CACHE")
    assert user_cache() == tmp_path / ".cache" / "distilvec"


def test_a_user_without_a_home(monkeypatch, capsys):
    """As in a container whose user id has no entry, which sets no HOME either."""

    def no_home():
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("DISTILVEC_CACHE", raising=False)
    monkeypatch.setattr(Path, "home", no_home)
    with refused("cache.root", "DISTILVEC_CACHE"):
        user_cache()
    assert run_command(["cache", "quickstart"]) == 2
    assert "distilvec: [cache.root]" in capsys.readouterr().err
    monkeypatch.setattr("distilvec.cli.app.app", None)  # an error of ours
    monkeypatch.setattr("distilvec.cli.boundary._commands", lambda app: 1 / 0)
    assert run_command(["runs"]) == 1
    assert "[internal] unexpected ZeroDivisionError" in capsys.readouterr().err


@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir])
def test_results_are_written_into_files_alone(tmp_path, make):
    """A pipe that nobody reads would be waited for."""
    make(tmp_path / "out.json")
    with refused("", "out.json"):
        check_output_file(tmp_path / "out.json")


def test_a_drive_without_locks_is_said(tmp_path, monkeypatch):
    def no_locks(file, how):
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(fcntl, "flock", no_locks)
    with refused("path", "No locks available"), acquire_lock(tmp_path / "lock", "", wait=True):
        pass
    assert not is_locked(tmp_path / "lock")
