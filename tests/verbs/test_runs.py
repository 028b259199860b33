"""`distilvec runs` and `distilvec report` on real run folders, whole, stopped, running and damaged."""

from __future__ import annotations

import errno
import json
import os
import shutil
import webbrowser
from pathlib import Path

import pytest
from refusals import refused

import distilvec
from distilvec.__main__ import run_command
from distilvec.core.errors import DistilvecError, Stopped
from distilvec.core.files import acquire_lock
from distilvec.core.run_folder import RunFolder
from distilvec.pipeline.run import run
from distilvec.train.trainer import Trainer


@pytest.fixture
def finished(tiny_recipe, tmp_path, no_pages, shared_cache):
    recipe = tiny_recipe(name="whole")
    return run(recipe, tmp_path / "runs" / "first").folder


def test_a_finished_run(finished):
    (info,) = distilvec.runs(finished.parent)
    assert (info.folder, info.name, info.state) == (finished, "whole", "finished")
    assert info.step == info.steps > 0 and info.parameters > 0
    files = [path for path in finished.rglob("*") if path.is_file()]
    assert info.bytes == sum(path.stat().st_size for path in files)
    assert info.score is None and info.state_text == "finished"
    assert distilvec.runs(finished) == [info]


def test_a_run_that_a_process_writes_to_is_running(finished):
    with acquire_lock(RunFolder(finished).lock, "", wait=False):
        assert distilvec.runs(finished)[0].state == "running"
    assert distilvec.runs(finished)[0].state == "finished"


def test_a_run_that_was_stopped_says_how_far_it_came(tiny_recipe, tmp_path, monkeypatch, no_pages, shared_cache):
    recipe = tiny_recipe(train__epochs=4, train__logging_steps=1)
    step = Trainer._step

    def stopping(self, batches, index):
        result = step(self, batches, index)
        self.stop_asked = self.state.step + 1 >= 5
        return result

    monkeypatch.setattr(Trainer, "_step", stopping)
    with pytest.raises(Stopped):
        run(recipe, tmp_path / "run")
    (info,) = distilvec.runs(tmp_path / "run")
    monkeypatch.undo()
    whole = run(recipe, tmp_path / "run")
    steps = whole.record.training.steps
    assert (info.state, info.step, info.steps) == ("stopped", 5, steps)
    assert info.state_text == f"stopped at step 5 of {steps}"


def test_the_newest_run_comes_first_and_other_folders_are_left_out(finished):
    older = shutil.copytree(finished, finished.parent / "sweep" / "older")
    for path in older.rglob("*"):
        os.utime(path, (1_000_000, 1_000_000))
    sweep = RunFolder(finished.parent / "sweep")
    sweep.make()
    sweep.sweep.write_text("{}")
    shutil.copy(RunFolder(finished).marker, sweep.marker)
    (finished.parent / "notes").mkdir()
    assert [info.folder for info in distilvec.runs(finished.parent)] == [finished, older]


def test_a_damaged_run_does_not_hide_the_others(finished, capsys):
    damaged = shutil.copytree(finished, finished.parent / "damaged")
    RunFolder(damaged).report.write_text("{")
    by_folder = {info.folder: info for info in distilvec.runs(finished.parent)}
    assert by_folder[damaged].state == "damaged" and "report.json" in by_folder[damaged].problem
    assert by_folder[finished].state == "finished"
    assert run_command(["runs", str(finished.parent), "--json", "-"]) == 0
    out, err = capsys.readouterr()
    assert {row["state"] for row in json.loads(out)} == {"finished", "damaged"} and "report.json" in err


def test_a_folder_that_cannot_be_read_does_not_hide_the_others(finished, monkeypatch, capsys):
    """Tests may run as root, whom no permission stops, so the system's refusal is played."""
    closed = finished.parent / "closed"
    closed.mkdir()
    iterdir = Path.iterdir

    def refusing(folder):
        if folder == closed:
            raise PermissionError(errno.EACCES, "Permission denied", str(folder))
        return iterdir(folder)

    monkeypatch.setattr(Path, "iterdir", refusing)
    by_folder = {info.folder: info for info in distilvec.runs(finished.parent)}
    assert {*by_folder} == {closed, finished} and by_folder[finished].state == "finished"
    assert by_folder[closed].state == "unreadable" and "Permission denied" in by_folder[closed].problem
    assert run_command(["runs", str(finished.parent)]) == 0
    out, err = capsys.readouterr()
    assert "unreadable" in out and str(closed) in err
    with refused("folder", "Permission denied") as caught:
        distilvec.runs(closed)
    assert isinstance(caught.value, DistilvecError)


def test_a_run_that_another_process_removes_meanwhile_is_a_state(finished, monkeypatch):
    def gone(folder):
        raise FileNotFoundError(errno.ENOENT, "No such file", str(folder))

    monkeypatch.setattr("distilvec.verbs.runs.runs.folder_bytes", gone)
    (info,) = distilvec.runs(finished.parent)
    assert info.state == "damaged" and "No such file" in info.problem


@pytest.mark.parametrize("train", ["5", "[1]", "{epochs: many}", "{epochs: 1, max_steps: few}"])
def test_a_recipe_changed_by_hand_leaves_the_total_open(finished, train):
    run = RunFolder(finished)
    run.record.unlink()
    run.recipe.write_text(f"train: {train}\n")
    (info,) = distilvec.runs(finished.parent)
    assert info.state == "stopped" and info.step


def test_the_steps_of_a_run_with_stages_are_not_those_of_its_first_keys(finished):
    run = RunFolder(finished)
    run.record.unlink()
    run.recipe.write_text("train: {epochs: 1}\nstages: [{name: a}, {name: b, set: {train.epochs: 20}}]\n")
    (info,) = distilvec.runs(finished.parent)
    assert info.step and info.steps is None


def test_a_folder_that_does_not_exist_is_refused(tmp_path):
    with refused("folder", "nowhere"):
        distilvec.runs(tmp_path / "nowhere")
    assert run_command(["runs", str(tmp_path)]) == 0


def test_the_page_of_a_run_is_written_and_opened(finished, tmp_path, monkeypatch, capsys):
    opened = []
    monkeypatch.setattr(webbrowser, "open", lambda address: opened.append(address) or True)
    monkeypatch.setattr("distilvec.report.write.draw_report", lambda run, report: run.report_page)
    assert run_command(["report", str(finished)]) == 0
    assert capsys.readouterr().out.strip() == str(finished / "report.html") and not opened
    assert run_command(["report", str(finished), "--open"]) == 0
    assert opened == [(finished / "report.html").as_uri()]


def test_a_folder_without_a_report_and_a_machine_without_a_browser(finished, tmp_path, monkeypatch, capsys):
    assert run_command(["report", str(tmp_path)]) == 2
    assert "[RUN]" in capsys.readouterr().err
    monkeypatch.setattr(webbrowser, "open", lambda address: False)
    monkeypatch.setattr("distilvec.report.write.draw_report", lambda run, report: run.report_page)
    assert run_command(["report", str(finished), "--open"]) == 2
    assert "[--open]" in capsys.readouterr().err
