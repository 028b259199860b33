"""`distilvec run --processes`: one process fails and all end, with one error and its status; Ctrl-C; the same again."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time

import psutil
import pytest
from commands import Command
from several import start

from distilvec.config import recipe as recipes
from distilvec.core.errors import Interrupted
from distilvec.core.run_folder import RunFolder
from distilvec.train.metrics import read_metrics
from distilvec.verbs.run import command as run_command
from distilvec.verbs.run.sweep import read_sweep


@pytest.mark.slow
def test_a_killed_process_ends_all_and_ctrl_c_leaves_a_checkpoint(tiny_recipe, tmp_path):
    folder, file = tmp_path / "run", tmp_path / "tiny.yaml"
    file.write_text(recipes.dump(tiny_recipe(train__epochs=2000, train__checkpoint_steps=5)))
    checkpoint = RunFolder(folder).checkpoint

    first = Command("run", file, "--processes", 2, "--out", folder)
    first.wait_for(checkpoint)
    others = [one for one in psutil.Process(first.pid).children() if one.environ()["RANK"] == "1"]
    others[0].kill()
    _, error = first.communicate()
    assert first.returncode == 128 + signal.SIGKILL, error
    assert "[processes] process 1 of 2 ended by SIGKILL" in error and "Traceback" not in error
    assert error.count("training: ") == 1 and "on cpu x 2" in error
    done = max(line["step"] for line in read_metrics(RunFolder(folder).metrics))

    second = Command("run", file, "--processes", 2, "--out", folder)
    while max(line["step"] for line in read_metrics(RunFolder(folder).metrics)) <= done:
        assert second.returncode is None, second.communicate()[1]
        time.sleep(0.01)
    second.send_signal(signal.SIGINT)
    _, error = second.communicate()
    assert second.returncode == 128 + signal.SIGINT, error
    assert error.count("[train] stopped at step") == 1 and "Traceback" not in error
    assert checkpoint.exists()


def test_after_a_signal_a_process_has_the_time_that_it_needs(tmp_path, monkeypatch):
    monkeypatch.setattr(run_command, "GRACE", 0.2)
    quick = "import signal, sys; signal.signal(2, lambda *_: sys.exit(130)); print(1, flush=True); signal.pause()"
    slow = quick.replace("sys.exit(130)", f"(time.sleep(1), open({str(tmp_path / 'done')!r}, 'w'), sys.exit(130))")
    children = [
        subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)
        for code in (f"import time; {slow}", quick)
    ]
    for child in children:
        child.stdout.readline()
    asked = iter([Interrupted(signal.SIGINT)])
    sleep = time.sleep

    def interrupted(seconds):
        for signaled in asked:
            raise signaled
        sleep(seconds)

    monkeypatch.setattr(run_command.time, "sleep", interrupted)
    run_command._wait(children)
    assert (tmp_path / "done").exists() and [child.returncode for child in children] == [130, 130]
    for child in children:
        child.stdout.close()


def test_an_error_of_the_first_process_ends_the_others(tiny_recipe, tmp_path):
    file = tmp_path / "tiny.yaml"
    file.write_text(recipes.dump(tiny_recipe(student__layers=[7])))
    first, second = start("run", file, "--out", tmp_path / "run", module="distilvec")
    (_, error), (_, other) = first.communicate(), second.communicate()
    assert first.returncode == 2 and error.count("distilvec: [student.layers] found [7]") == 1
    assert second.returncode == 3 and other.count("distilvec: [process] another process of this run ended") == 1
    assert "Traceback" not in error + other and "student.layers" not in other


@pytest.mark.slow
def test_a_failing_run_of_a_sweep_ends_all_processes(tiny_recipe, tmp_path):
    """The second process is in the middle of that run: the next one would be trained out of step with it."""
    file, folder = tmp_path / "tiny.yaml", tmp_path / "sweep"
    tree = json.loads(tiny_recipe(train__max_steps=2).model_dump_json(exclude_unset=True))
    tree["variants"] = {"bad": {"student.layers": [0, 9]}, "good": {"student.layers": [0, 1]}}
    tree["sweep"] = {"variants": ["bad", "good"]}
    file.write_text(json.dumps(tree))
    command = Command("run", file, "--processes", 2, "--out", folder)
    _, error = command.communicate()
    assert command.returncode not in (None, 0) and "[student.layers]" in error and "Traceback" not in error
    assert [entry["state"] for entry in read_sweep(folder)] == ["failed", "pending"]
