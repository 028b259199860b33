"""Fingerprints of input files: their content counts, not when or by whom they were copied."""

from __future__ import annotations

import os
import time

from refusals import refused

from distilvec.core import hashing
from distilvec.core.errors import about
from distilvec.core.hashing import checksum, checksum_once, hash_files


def test_a_copied_file_is_the_same_file_and_a_changed_one_is_not(tmp_path):
    path = tmp_path / "texts.jsonl"
    path.write_text("one\n")
    first = hash_files([path])
    os.utime(path, ns=(1, 1))
    assert hash_files([path]) == first
    path.write_text("two\n")  # as long as before
    os.utime(path, ns=(2, 2))
    assert hash_files([path]) != first


def test_names_and_order_count(tmp_path):
    (tmp_path / "a").write_text("x")
    (tmp_path / "b").write_text("x")
    assert hash_files([tmp_path / "a"]) != hash_files([tmp_path / "b"])
    assert hash_files([tmp_path / "a", tmp_path / "b"]) != hash_files([tmp_path / "b", tmp_path / "a"])


def test_a_file_that_cannot_be_read_is_named(tmp_path):
    with refused("task.path", "missing.txt"), about("task.path"):
        hash_files([tmp_path / "missing.txt"])


def test_a_file_is_read_once_a_process_as_long_as_it_stays_the_same(tmp_path, monkeypatch):
    read = []
    monkeypatch.setattr(hashing, "checksum", lambda path: read.append(path) or checksum(path))
    path = tmp_path / "a"
    path.write_text("one")
    first = checksum_once(path)
    assert checksum_once(path) == first == checksum(path) and len(read) == 1
    about = path.stat()
    time.sleep(0.05)  # the clock of a file's last change ticks at least a hundred times a second
    path.write_text("two")
    os.utime(path, ns=(about.st_atime_ns, about.st_mtime_ns))  # size and time as before
    assert checksum_once(path) == checksum(path) != first and len(read) == 2
