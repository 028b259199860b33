"""Real processes: two at once, and signals at every stage of a run."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from faults.harness import World, contents

SLOW = {"train__epochs": 400, "train__checkpoint_steps": 20}


def start(world: World, *arguments: object) -> subprocess.Popen[str]:
    """Start a command in the world's folder."""
    environment = {**os.environ, "DISTILVEC_CACHE": str(world.root / "cache"), "OMP_NUM_THREADS": "1"}
    line = [sys.executable, "-m", "distilvec", *map(str, arguments)]
    return subprocess.Popen(
        line, cwd=world.root, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def wait_for(path: Path, process: subprocess.Popen[str]) -> None:
    """Until the file is there."""
    while not path.exists():
        assert process.poll() is None, process.communicate()[1]
        time.sleep(0.02)


@pytest.fixture
def world(tmp_path):
    return World(tmp_path)


def test_the_second_run_in_one_folder_is_refused_with_the_first_ones_process_id(world):
    recipe = world.recipe(**SLOW)
    first = start(world, "run", recipe, "--out", "run")
    wait_for(world.root / "run" / "checkpoint" / "state.safetensors", first)
    second = start(world, "run", recipe, "--out", "run")
    _, message = second.communicate()
    restarted = start(world, "run", recipe, "--out", "run", "--restart")
    _, refused = restarted.communicate()
    first.send_signal(signal.SIGTERM)
    _, stopped = first.communicate()
    assert second.returncode == restarted.returncode == 2
    assert f"distilvec: [--out] process {first.pid} is writing" in message
    assert f"[--out] process {first.pid} is writing" in refused and not list(world.root.glob("run.old-*"))
    assert first.returncode == 143 and "same command again" in stopped


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_in_training_stops_with_its_status_and_the_same_command_goes_on(world, number):
    recipe = world.recipe(train__epochs=60)
    process = start(world, "run", recipe, "--out", "run")
    wait_for(world.root / "run" / "metrics.jsonl", process)
    process.send_signal(number)
    _, message = process.communicate()
    assert process.returncode == 128 + number and message.rstrip().endswith("Run the same command again to go on."), (
        message
    )
    assert "distilvec: [train] stopped at step" in message and "Traceback" not in message
    again = start(world, "run", recipe, "--out", "run")
    _, message = again.communicate()
    assert again.returncode == 0, message
    whole = start(world, "run", recipe, "--out", "whole")
    assert whole.wait() == 0
    weights = ("student/model.safetensors", "last/model.safetensors")
    files = [contents(world.root / name) for name in ("run", "whole")]
    assert [files[0][name] for name in weights] == [files[1][name] for name in weights]


@pytest.mark.parametrize("verb", ["cache", "plan", "evaluate"])
def test_a_signal_elsewhere_says_that_the_same_command_goes_on(world, verb):
    world.texts.write_text("\n".join(f"a text of some words, number {n}" for n in range(200_000)), encoding="utf-8")
    world.file(
        "sts.csv", "sentence1,sentence2,score\n" + "".join(f"river {n},stone {n},{n % 5}\n" for n in range(200_000))
    )
    lines = {
        "cache": ["cache", world.recipe()],
        "plan": ["plan", world.recipe()],
        "evaluate": [
            "evaluate",
            world.model,
            "--suite",
            world.file("suite.yaml", "- {name: mini, type: sts, path: sts.csv}\n"),
        ],
    }
    process = start(world, *lines[verb])
    time.sleep(6)
    assert process.poll() is None
    process.send_signal(signal.SIGINT)
    _, message = process.communicate()
    assert (
        process.returncode == 130
        and "interrupted. Run the same command again to go on." in message
        and "Traceback" not in message
    )
