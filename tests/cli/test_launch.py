"""`distilvec run --processes`: one process fails and all end, with one error and its status; Ctrl-C; the same again."""

from __future__ import annotations

import signal
import time

import psutil
import pytest
from commands import Command
from several import start

from distilvec.config import recipe as recipes
from distilvec.train.metrics import read_metrics


@pytest.mark.slow
def test_a_killed_process_ends_all_and_ctrl_c_leaves_a_checkpoint(tiny_recipe, tmp_path):
    folder, file = tmp_path / "run", tmp_path / "tiny.yaml"
    file.write_text(recipes.dump(tiny_recipe(train__epochs=2000, train__checkpoint_steps=5)))
    checkpoint = folder / "checkpoint" / "state.safetensors"

    first = Command("run", file, "--processes", 2, "--out", folder)
    first.wait_for(checkpoint)
    others = [one for one in psutil.Process(first.pid).children() if one.environ()["RANK"] == "1"]
    others[0].kill()
    _, error = first.communicate()
    assert first.returncode == 128 + signal.SIGKILL, error
    assert "[processes] process 1 of 2 ended by SIGKILL" in error and "Traceback" not in error
    assert error.count("training: ") == 1 and "on cpu x 2" in error
    done = max(line["step"] for line in read_metrics(folder / "metrics.jsonl"))

    before = checkpoint.stat().st_mtime_ns
    second = Command("run", file, "--processes", 2, "--out", folder)
    while checkpoint.stat().st_mtime_ns == before:
        assert second.returncode is None, second.communicate()[1]
        time.sleep(0.01)
    second.send_signal(signal.SIGINT)
    _, error = second.communicate()
    assert second.returncode == 128 + signal.SIGINT, error
    assert error.count("[train] stopped at step") == 1 and "Traceback" not in error
    assert max(line["step"] for line in read_metrics(folder / "metrics.jsonl")) > done


def test_an_error_of_the_first_process_ends_the_others(tiny_recipe, tmp_path):
    file = tmp_path / "tiny.yaml"
    file.write_text(recipes.dump(tiny_recipe(student__layers=[7])))
    first, second = start("run", file, "--out", tmp_path / "run", module="distilvec")
    (_, error), (_, other) = first.communicate(), second.communicate()
    assert first.returncode == 2 and error.count("distilvec: [student.layers] found [7]") == 1
    assert second.returncode == 3 and other.count("distilvec: [processes] another process of this run ended") == 1
    assert "Traceback" not in error + other and "student.layers" not in other
