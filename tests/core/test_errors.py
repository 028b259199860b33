"""Errors have one form, "[key] problem. Fix.", and failures of the system become one."""

from __future__ import annotations

import errno
import pickle
from pathlib import Path

import pytest
from refusals import refused

from distilvec.config.base import Problems
from distilvec.core.errors import (
    DistilvecError,
    Stopped,
    about,
    first_line,
    looked_up,
    system_failure,
    user_error,
)
from distilvec.core.files import check_output_file, check_output_folder


def test_the_line_has_key_problem_and_fix():
    error = DistilvecError("found 3.", "Give a name.", key="teacher.model")
    assert str(error) == "[teacher.model] found 3. Give a name."
    assert str(DistilvecError("there is no task.", key="suite")) == "[suite] there is no task."
    assert (error.key, error.problem, error.fix) == ("teacher.model", "found 3.", "Give a name.")


@pytest.mark.parametrize(
    "error",
    [
        DistilvecError("is full.", fix="Free space.", key="--out"),
        Stopped("stopped at step 3.", "Run it again.", key="train", number=15),
        Problems(
            "a.yaml",
            [DistilvecError("is missing.", key="name"), DistilvecError("is missing.", key="train")],
            key="recipe",
        ),
    ],
    ids=lambda error: type(error).__name__,
)
def test_errors_cross_processes(error):
    other = pickle.loads(pickle.dumps(error))
    assert type(other) is type(error)
    assert (str(other), repr(vars(other))) == (str(error), repr(vars(error)))


@pytest.mark.parametrize(
    "number", [errno.ENOSPC, errno.EACCES, errno.EROFS, errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.EBUSY]
)
def test_errors_of_the_file_system_name_key_and_path(number):
    error = system_failure(OSError(number, "reason", "/some/file"), "--out")
    assert str(error) == "[--out] /some/file: reason." or number == errno.ENOSPC
    assert "/some/file" in error.problem


def test_missing_certificates_are_named_where_a_library_names_no_file(tmp_path, monkeypatch):
    """As the hub's does."""
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "absent.pem"))
    bare = FileNotFoundError(errno.ENOENT, "No such file or directory")
    for text in (str(system_failure(bare)), first_line(bare)):
        assert str(tmp_path / "absent.pem") in text and "SSL_CERT_FILE" in text
    named = FileNotFoundError(errno.ENOENT, "No such file or directory", "/other")
    assert "SSL_CERT_FILE" not in f"{system_failure(named)} {first_line(named)}"


def test_the_line_of_a_library_stands_inside_a_sentence():
    for text in ("Array can't be read.", "Array can't be read.\nAnother line.", "Array can't be read..."):
        assert first_line(ValueError(text)) == "Array can't be read"
    assert system_failure(MemoryError("no room.")).problem == "not enough memory: no room."


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="a folder of Linux in which no folder can be made")
@pytest.mark.parametrize("make", [check_output_folder, check_output_file])
def test_an_output_that_cannot_be_created_is_not_called_missing(make):
    """The system's error number is the same."""
    with pytest.raises(DistilvecError, match="/proc/absent.* cannot be created"):
        make(Path("/proc/absent/run"))


def test_what_is_not_expected_stays_as_it_is():
    assert system_failure(KeyError("x")) is None


def test_the_innermost_note_stays_and_a_relative_key_is_added_to_its_section():
    with refused("teacher.api.base_url"), about("teacher"), about(".api"):
        raise DistilvecError("is not an address.", key=".base_url")
    with refused("--test"), about("teacher"):
        raise DistilvecError("is missing.", key="--test")
    with refused("student", "weights.bin"), about("teacher", "other"), about("student", "weights.bin"):
        raise ValueError("the weights are damaged")


def test_a_note_does_not_change_an_exception_and_crosses_processes():
    with pytest.raises(ValueError, match="^damaged$") as caught, about("teacher", "weights.bin"):
        raise ValueError("damaged")
    assert caught.type is ValueError
    error = pickle.loads(pickle.dumps(caught.value))
    assert str(user_error(error)) == "[teacher] cannot use weights.bin: ValueError: damaged."


def test_a_mistake_of_our_own_code_is_not_called_the_users():
    with pytest.raises(AttributeError) as caught, about("teacher"):
        looked_up(None, {})
    assert user_error(caught.value) is None


def test_what_has_no_note_is_a_bug():
    assert user_error(ValueError("damaged")) is None
