"""The paths of a run folder, and the marker that tells whose it is and how it is read."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from refusals import refused

import distilvec
from distilvec.core.files import scratch
from distilvec.core.run_folder import FORMAT, RunFolder
from distilvec.pipeline.claim import own_folder, refuse_foreign
from distilvec.verbs.compare.results import finished_runs
from distilvec.verbs.run.sweep import read_sweep


def test_the_run_of_a_model_follows_from_the_models_path():
    run = RunFolder(Path("runs/mine"))
    assert RunFolder.of_student(run.student) == RunFolder.of_student(run.last) == run
    assert RunFolder.of_student(run.student / "onnx") is RunFolder.of_student(run.path / "last") is None


def test_saved_students_are_sorted_by_step(tmp_path):
    run = RunFolder(tmp_path)
    for name in ("step-20", "step-3", "step-100", "step-x", ".step-7.new"):
        (run.students / name).mkdir(parents=True)
    (run.students / "step-5").write_text("a file")
    assert list(run.saved_students) == [3, 20, 100]
    assert run.saved_students[3] == run.students / "step-3"


@pytest.mark.parametrize("left", [None, "scratch"])
def test_a_kill_before_the_marker_leaves_a_folder_that_can_be_taken(tmp_path, left):
    run = RunFolder(tmp_path / "run")
    run.make()
    if left is not None:
        (run.details / scratch(run.marker).name).write_text('{"form')
    own_folder(run)
    assert run.is_ours()


def test_a_details_folder_with_other_files_is_not_ours(tmp_path):
    run = RunFolder(tmp_path)
    run.make()
    (run.details / "notes.txt").touch()
    with refused("--out", "marker.json"):
        own_folder(run)
    assert not run.marker.exists()


def test_a_folder_of_another_format_is_refused(tmp_path):
    run = RunFolder(tmp_path / "run")
    own_folder(run)
    run.recipe.write_text("name: x\n")
    run.record.write_text("{}")
    refuse_foreign(run)
    marker = json.loads(run.marker.read_text())
    assert marker["format"] == FORMAT
    run.marker.write_text(json.dumps(marker | {"format": FORMAT + 1}))
    with refused("--out", f"format is {FORMAT + 1}"):
        own_folder(run, restart=True)
    for read in (distilvec.result, read_sweep, lambda path: finished_runs([path])):
        with refused("run folder", f"format is {FORMAT + 1}"):
            read(run.path)
    (info,) = distilvec.runs(tmp_path)
    assert info.state == "damaged" and f"format is {FORMAT + 1}" in info.problem
    assert [path.name for path in tmp_path.iterdir()] == ["run"], "nothing is moved aside"
