import errno
import json
import multiprocessing
import os
import re
from pathlib import Path

import numpy as np
import pytest

from distilvec.core.artifacts import CHECKSUMS, META, Column, open_column, open_or_build
from distilvec.core.errors import DistilvecError, user_error
from distilvec.core.files import scratch


@pytest.mark.parametrize("kind", [np.int64, np.uint16, "V16"])
def test_column_is_a_plain_npy_file(tmp_path, kind):
    data = np.frombuffer(np.random.default_rng(0).bytes(16 * 1000), dtype=kind)
    with Column(tmp_path / "a.npy", kind) as column:
        for start in range(0, len(data), 77):
            column.append(data[start : start + 77])
    back = open_column(tmp_path / "a.npy")
    assert back.dtype == data.dtype and back.tobytes() == data.tobytes() and not back.flags.writeable


def test_empty_column(tmp_path):
    with Column(tmp_path / "a.npy", np.int64):
        pass
    assert open_column(tmp_path / "a.npy").shape == (0,)


class Folder:
    """Builds a folder with a column and a nested file; counts how often."""

    def __init__(self, path, content="1"):
        self.path, self.content, self.builds = path, content, 0

    def build(self, place):
        self.builds += 1
        with Column(place / "numbers.npy", np.int64) as column:
            column.append(np.arange(50))
        (place / "inner").mkdir()
        (place / "inner" / "text.txt").write_text(self.content)
        return {"rows": 50}

    def open(self, fingerprint=None):
        return open_or_build(self.path, fingerprint or self.content, "corpus", 7_000_000, self.build, self.load)

    def load(self, folder):
        assert json.loads((folder / META).read_text())["rows"] == 50 and len(open_column(folder / "numbers.npy")) == 50
        return (folder / "inner" / "text.txt").read_text()


@pytest.fixture
def made(tmp_path):
    folder = Folder(tmp_path / "deep" / "it")
    assert folder.open() == "1"
    return folder


def visible(folder):
    return sorted(path.name for path in folder.iterdir() if not path.name.endswith(".lock"))


def test_a_folder_is_built_once_and_again_when_it_is_made_of_other_things(made):
    assert made.open() == "1" and made.builds == 1
    made.content = "2"
    assert made.open() == "2" and made.builds == 2
    assert visible(made.path.parent) == ["it"] and visible(made.path) == ["inner", META, "numbers.npy"]
    assert set(json.loads((made.path / META).read_text())[CHECKSUMS]) == {"numbers.npy", "inner/text.txt"}


@pytest.mark.parametrize("name", ["numbers.npy", "inner/text.txt", META])
@pytest.mark.parametrize("kind", ["flipped", "truncated", "missing"])
def test_damage_is_logged_and_built_again(made, name, kind, capsys):
    path = made.path / name
    before = path.read_bytes()
    if kind == "missing":
        path.unlink()
        (made.path / META).exists() or (made.path / META).write_text(
            "{}"
        )  # without any, the folder is not known as ours
    else:
        path.write_bytes(
            before[:-3]
            if kind == "truncated"
            else before[:-9] + bytes([before[-9] ^ 1]) + before[-8:]
            if len(before) > 9
            else b"2"
        )
    assert made.open() == "1" and made.builds == 2
    assert "corpus" in (told := capsys.readouterr().err) and "damaged" in told
    assert path.read_bytes() == before
    assert made.open() == "1" and made.builds == 2 and capsys.readouterr().err == ""


def test_what_is_not_ours_is_refused_or_stays(made, tmp_path):
    (tmp_path / "precious.txt").write_text("mine")
    with pytest.raises(DistilvecError, match=r"^\[cache.root\].*is not a corpus folder"):
        Folder(tmp_path).open()
    others = [
        made.path / "notes.txt",
        made.path / "inner" / "notes.txt",
        made.path.parent / "it.tmp",
        made.path.parent / ".it.partial",
    ]
    for path in others:
        path.write_text("mine")
    made.content = "2"
    assert made.open() == "2"
    assert [path.read_text() for path in others] == ["mine"] * 4 and (tmp_path / "precious.txt").read_text() == "mine"


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (KeyboardInterrupt(), None),
        (
            OSError(errno.ENOSPC, "No space left on device"),
            r"^\[cache.root\] no space left.*About 7.0 MB were needed, .* MB were free",
        ),
        (PermissionError(errno.EACCES, "denied"), r"^\[cache.root\] .*denied"),
    ],
)
def test_failure_leaves_the_older_folder_and_no_rest(made, monkeypatch, error, message):
    before = (made.path / META).read_bytes()

    def fail(place):
        (place / "half").write_text("half")
        raise error

    monkeypatch.setattr(made, "build", fail)
    with pytest.raises(type(error) if message is None else Exception) as caught:
        made.open("2")
    assert message is None or re.search(message, str(user_error(caught.value)))
    assert (made.path / META).read_bytes() == before and made.open() == "1"
    assert visible(made.path.parent) == ["it"]


def test_a_kill_while_the_files_are_put_in_place_is_mended(made, monkeypatch):
    replace = Path.replace

    def killed(path, target):
        if Path(target).parent.name == "inner":
            raise KeyboardInterrupt
        return replace(path, target)

    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(Path, "replace", killed)
        made.open("2")
    assert made.open() == "1" and made.builds == 3


def test_rest_of_a_killed_process_is_cleared(tmp_path):
    left, other = (
        tmp_path / scratch(tmp_path / name).name.replace(f"-{os.getpid()}", "-99999999") for name in ("it", "other")
    )
    for path in (left, other):
        path.mkdir()
        (path / "rest").write_text("half")
    assert Folder(tmp_path / "it").open() == "1"
    assert not left.exists() and other.exists()  # whose lock another machine may hold


def _count_builds(path, start, found):
    folder = Folder(path)
    start.wait()
    assert folder.open() == "1"
    found.put(folder.builds)


def test_processes_wait_for_each_other_and_one_builds(tmp_path):
    context = multiprocessing.get_context("fork")
    start, found = context.Barrier(4), context.Queue()
    workers = [context.Process(target=_count_builds, args=(tmp_path / "it", start, found)) for _ in range(4)]
    for worker in workers:
        worker.start()
    assert sorted(found.get() for _ in workers) == [0, 0, 0, 1]
    for worker in workers:
        worker.join()
