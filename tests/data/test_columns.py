import errno

import numpy as np
import pytest

from distilvec.data.columns import META, Column, new_folder, open_column, read_meta
from distilvec.errors import DistilvecError


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


def test_folder_appears_whole_and_replaces_an_older_one(tmp_path):
    folder = tmp_path / "deep" / "it"
    for content in ("1", "2"):
        with new_folder(folder, 0, "corpus") as place:
            (place / META).write_text(f'{{"fingerprint": "{content}"}}')
            assert place != folder and place.parent == folder.parent
        assert read_meta(folder, content) == {"fingerprint": content}
    assert read_meta(folder, "1") is None and read_meta(tmp_path, "1") is None
    assert [path.name for path in folder.parent.iterdir()] == ["it"]


def test_what_is_not_ours_is_refused(tmp_path):
    (tmp_path / "precious.txt").write_text("mine")
    with pytest.raises(DistilvecError, match="is not a corpus folder"), new_folder(tmp_path, 0, "corpus"):
        raise AssertionError("entered")
    assert (tmp_path / "precious.txt").read_text() == "mine"


def test_failure_leaves_the_older_folder_and_no_rest(tmp_path):
    folder = tmp_path / "it"
    with new_folder(folder, 0, "corpus") as place:
        (place / META).write_text('{"fingerprint": "old"}')
    with pytest.raises(KeyboardInterrupt), new_folder(folder, 0, "corpus"):
        raise KeyboardInterrupt
    with pytest.raises(DistilvecError, match=r"no space left.*about 7 MB needed"), new_folder(folder, 7_000_000, "corpus"):
        raise OSError(errno.ENOSPC, "No space left on device")
    with pytest.raises(DistilvecError, match="cannot be written"), new_folder(folder, 0, "corpus"):
        raise PermissionError(errno.EACCES, "denied")
    assert read_meta(folder, "old") and [path.name for path in tmp_path.iterdir()] == ["it"]


def test_rest_of_a_killed_process_is_cleared(tmp_path):
    (tmp_path / ".it.partial").mkdir()
    (tmp_path / ".it.partial" / "rest").write_text("half")
    with new_folder(tmp_path / "it", 0, "corpus") as place:
        (place / META).write_text("{}")
    assert [path.name for path in (tmp_path / "it").iterdir()] == [META]
