"""`distilvec doctor`: what is broken ends with exit status 1, what is missing is only noted."""

from __future__ import annotations

import importlib.metadata
import json

import pytest

from distilvec.__main__ import run_command
from distilvec.core import extras
from distilvec.verbs import doctor
from distilvec.verbs.doctor import Check, diagnose


@pytest.fixture
def offline(monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)


def json_of(capsys, status):
    capsys.readouterr()
    assert run_command(["doctor", "--json", "-"]) == status
    return json.loads(capsys.readouterr().out)


def check_of(result, name):
    return next(check for check in result["checks"] if check["name"] == name)


def test_a_machine_that_can_run_is_healthy(offline, capsys):
    found = json_of(capsys, 0)
    assert found["healthy"] and not [check for check in found["checks"] if check["state"] == "broken"]
    names = {check["name"] for check in found["checks"]}
    assert names >= {"distilvec", "torch", "processor", "threads", "gpu", "memory", "cache", "disk", "extras", "hub"}


def test_a_cache_that_cannot_be_written_is_broken(offline, tmp_path, capsys, monkeypatch):
    (tmp_path / "file").write_text("not a folder")
    monkeypatch.setenv("DISTILVEC_CACHE", str(tmp_path / "file"))
    found = json_of(capsys, 1)
    assert check_of(found, "cache")["state"] == "broken" and not found["healthy"]
    assert run_command(["doctor"]) == 1
    assert "[cache]" in capsys.readouterr().err


def test_nothing_is_left_behind(offline, tmp_path, monkeypatch):
    monkeypatch.setenv("DISTILVEC_CACHE", str(tmp_path / "not" / "made"))
    diagnose()
    assert not list(tmp_path.iterdir())


def test_the_size_of_the_cache_is_shown(tmp_path, monkeypatch):
    folder = tmp_path / "cache"
    (folder / "teachers").mkdir(parents=True)
    with (folder / "teachers" / "vectors.npy").open("wb") as file:
        file.truncate(3 * 2**30)  # takes no space
    monkeypatch.setenv("DISTILVEC_CACHE", str(folder))
    assert "3.0 GB" in doctor.check_cache()[0].value


def test_a_missing_extra_is_noted_with_its_command(monkeypatch):
    monkeypatch.setitem(extras.PACKAGES, "onnx", ("onnx", "no_such_package"))
    noted = next(check for check in doctor.check_extras() if check.name == "extra onnx")
    assert noted.state == "note" and "pip install" in noted.fix and "[onnx]" in noted.fix


def test_a_hub_that_does_not_answer_is_noted(monkeypatch):
    """The fixture no_network refuses the connection."""
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    (check,) = doctor.check_hub()
    assert check.state == "note" and "cannot be reached" in check.value


def test_wrong_and_missing_versions_are_named(monkeypatch):
    needed = ["numpy>=99", "no-such-package", 'another>=1; extra == "onnx"', "torch>=1"]
    monkeypatch.setattr(importlib.metadata, "requires", lambda name: needed)
    wrong, missing = doctor.wrong_versions()
    assert wrong.startswith("numpy is ") and ">=99" in wrong
    assert missing == "no-such-package is missing"


def test_a_check_that_fails_is_broken_and_the_others_go_on(offline, monkeypatch):
    def fail() -> list[Check]:
        raise ImportError("libcudart.so is missing")

    monkeypatch.setattr(doctor, "check_gpu", fail)
    found = {check.name: check for check in diagnose()}
    assert found["gpu"].state == "broken" and "libcudart.so" in found["gpu"].value
    assert "hub" in found
