"""Real processes: two at once, and signals at every stage of a run."""

from __future__ import annotations

import signal

import pytest
from commands import Command

from faults.harness import World, contents

# The method of the recipe, which waits in training while there is a file `hold`.
HELD = """
import time
from pathlib import Path

from distilvec.methods.redact import Redact


class Held(Redact):
    def forward(self, batch, student, teacher):
        while self.training and Path("hold").exists():
            Path("held").touch()
            time.sleep(0.01)
        return super().forward(batch, student, teacher)
"""


@pytest.fixture
def world(tmp_path):
    return World(tmp_path)


def start(world: World, *arguments: object) -> Command:
    """Start a command in the world's folder."""
    return Command(*arguments, folder=world.root, DISTILVEC_CACHE=str(world.root / "cache"))


def held(world: World, recipe: str) -> Command:
    """A run of the recipe that is in a training step, and waits there until `go_on`."""
    (world.root / "held").unlink(missing_ok=True)
    world.file("hold")
    process = start(world, "run", recipe, "--out", "run")
    process.wait_for(world.root / "held")
    return process


def go_on(world: World) -> None:
    (world.root / "hold").unlink()


@pytest.fixture
def recipe(world) -> str:
    return world.recipe(method__name=world.file("held.py", HELD), train__keep_checkpoint=True)


def test_the_second_run_in_one_folder_is_refused_with_the_first_ones_process_id(world, recipe):
    first = held(world, recipe)
    second = start(world, "run", recipe, "--out", "run")
    restarted = start(world, "run", recipe, "--out", "run", "--restart")
    (_, message), (_, refused) = second.communicate(), restarted.communicate()
    first.send_signal(signal.SIGTERM)
    go_on(world)
    _, stopped = first.communicate()
    assert second.returncode == restarted.returncode == 2
    assert f"distilvec: [--out] process {first.pid} is writing" in message
    assert f"[--out] process {first.pid} is writing" in refused and not list(world.root.glob("run.old-*"))
    assert first.returncode == 143 and "same command again" in stopped


def test_signals_in_training_stop_with_their_status_and_the_same_command_goes_on(world, recipe):
    for number in (signal.SIGINT, signal.SIGTERM):
        process = held(world, recipe)
        process.send_signal(number)
        go_on(world)
        _, message = process.communicate()
        assert process.returncode == 128 + number
        assert message.rstrip().endswith("Run the same command again to go on."), message
        assert "distilvec: [train] stopped at step" in message and "Traceback" not in message
    again, whole = (start(world, "run", recipe, "--out", name) for name in ("run", "whole"))
    for process in (again, whole):
        _, message = process.communicate()
        assert process.returncode == 0, message
        assert ("going on from the checkpoint of step" in message) == (process is again)
    weights = ("student/model.safetensors", "details/last/model.safetensors")
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
    process.wait_for_work(0.3)  # of many seconds
    process.send_signal(signal.SIGINT)
    _, message = process.communicate()
    assert process.returncode == 130, message
    assert "interrupted. Run the same command again to go on." in message and "Traceback" not in message
