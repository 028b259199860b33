"""Training that breaks off, diverges or finds its own files damaged."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path

from distilvec.core.run_folder import RunFolder
from faults.harness import World, case

SHORT = {"train__max_steps": 3}
STATE = "run/details/checkpoint/state.safetensors"


def resumed(world: World, damage: Callable[[Path], None]) -> list[str]:
    """The command of a run that was killed at the end of its training, and whose checkpoint was damaged since."""
    world.finished_run(**SHORT, train__keep_checkpoint=True)
    RunFolder(world.root / "run").training_result.unlink()
    damage(world.root / STATE)
    return ["run", str(world.root / "tiny.yaml"), "--out", "run"]


def again(world: World, damage: Callable[[Path], None], name: str) -> list[str]:
    """The command of a finished run, one of whose files was damaged since."""
    world.finished_run(**SHORT)
    damage(world.root / name)
    return ["run", str(world.root / "tiny.yaml"), "--out", "run"]


def flip(place: int) -> Callable[[Path], None]:
    """Flip a bit of a file, counted from its beginning, or its end where `place` is negative."""

    def change(path: Path) -> None:
        content = bytearray(path.read_bytes())
        content[place] ^= 2
        path.write_bytes(content)

    return change


def text(content: str) -> Callable[[Path], None]:
    """Append these lines to a file."""
    return lambda path: path.write_text(path.read_text() + content)


@case("checkpoint-with-a-flipped-bit-in-its-header", key="checkpoint")
def _(world: World) -> list[str]:
    return resumed(world, flip(60))


@case("checkpoint-with-a-flipped-bit-in-a-weight", key="checkpoint")
def _(world: World) -> list[str]:
    return resumed(world, flip(-100))


@case("checkpoint-cut-off", key="checkpoint")
def _(world: World) -> list[str]:
    return resumed(world, lambda path: path.write_bytes(path.read_bytes()[:5000]))


@case("checkpoint-empty", key="checkpoint")
def _(world: World) -> list[str]:
    return resumed(world, lambda path: path.write_bytes(b""))


@case("checkpoint-is-a-folder", key="checkpoint")
def _(world: World) -> list[str]:
    def change(path: Path) -> None:
        path.unlink()
        path.mkdir()

    return resumed(world, change)


@case("metrics-with-a-damaged-line", key="metrics.jsonl")
def _(world: World) -> list[str]:
    return again(world, text('{"step": 3, "ep\n'), "run/details/metrics.jsonl")


@case("metrics-with-a-line-of-something-else", key="metrics.jsonl")
def _(world: World) -> list[str]:
    return again(world, text("[1, 2]\n"), "run/details/metrics.jsonl")


@case("metrics-with-a-torn-last-line", key=None)
def _(world: World) -> list[str]:
    return again(world, text('{"step": 3, "ep'), "run/details/metrics.jsonl")


@case("learning-rate-that-diverges", key="train")
def _(world: World) -> list[str]:
    return ["run", world.recipe(train__learning_rate=1e36, train__final_learning_rate=1e36), "--out", "run"]


@case("learning-rate-that-diverges-before-a-line-is-logged", key="train")
def _(world: World) -> list[str]:
    recipe = world.recipe(
        train__learning_rate=1e36, train__final_learning_rate=1e36, train__logging_steps=1000, train__checkpoint_steps=1
    )
    return ["run", recipe, "--out", "run"]


@case("trainable-names-nothing", key="train.trainable")
def _(world: World) -> list[str]:
    return ["run", world.recipe(train__trainable=["encoder.moon"]), "--out", "run"]


@case("trainable-of-a-stage-names-nothing", key="train.trainable")
def _(world: World) -> list[str]:
    stages = [{"name": "a"}, {"name": "b", "set": {"train.trainable": ["encoder.moon"]}}]
    return ["run", world.recipe(stages=stages), "--out", "run"]


@case("learning-rate-factors-name-nothing", key="train.learning_rate_factors")
def _(world: World) -> list[str]:
    return ["run", world.recipe(train__learning_rate_factors={"moon": 2.0}), "--out", "run"]


def signalled(world: World, number: int, at: int) -> list[str]:
    """A run to which the signal is sent in step `at`."""
    from distilvec.train.trainer import Trainer

    step = Trainer._step

    def stepped(self: Trainer, *arguments: object) -> None:
        if self.state.step == at:
            os.kill(os.getpid(), number)
        step(self, *arguments)  # type: ignore[arg-type]

    Trainer._step = stepped  # type: ignore[method-assign, assignment]
    world.undo.append(lambda: setattr(Trainer, "_step", step))
    return ["run", world.recipe(**SHORT), "--out", "run"]


@case("ctrl-c-in-training", key="train", status=128 + signal.SIGINT)
def _(world: World) -> list[str]:
    return signalled(world, signal.SIGINT, at=1)


@case("sigterm-in-training", key="train", status=128 + signal.SIGTERM)
def _(world: World) -> list[str]:
    return signalled(world, signal.SIGTERM, at=1)


@case("sigterm-in-the-last-step", key="train", status=128 + signal.SIGTERM)
def _(world: World) -> list[str]:
    return signalled(world, signal.SIGTERM, at=2)
