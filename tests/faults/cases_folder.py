"""Run folders: only new, empty and our own ones are written to, and nothing in them is lost."""

from __future__ import annotations

import json
import shutil

from faults.harness import Outcome, World, case

NOT_OURS = {
    "students": "students/a.txt",
    "stages": "stages/head/notes.md",
    "a-report": "report.json",
    "metrics": "metrics.jsonl",
    "a-record": "record.json",
    "details": "details/notes.txt",
    "any-file": "notes.txt",
    "a-hidden-file": ".keep",
    "a-student": "student/model.safetensors",
    "a-marker-of-another-tool": "details/marker.json",
}
VERBS = {
    "run": lambda world: ["run", world.recipe()],
    "restart": lambda world: ["run", world.recipe(), "--restart"],
    "sweep": lambda world: ["run", world.recipe(sweep={"seeds": [0, 1]})],
    "finetune": lambda world: [
        "finetune",
        str(world.model),
        "--task",
        labels(world),
        "--type",
        "classification",
        "--no-lora",
    ],
}


def labels(world: World) -> str:
    """A labelled task of two classes."""
    lines = [
        {"text": f"river {n}" if n % 2 else f"stone {n}", "label": str(n % 2), "split": "train" if n < 30 else "test"}
        for n in range(40)
    ]
    return world.file("labels.jsonl", "".join(json.dumps(line) + "\n" for line in lines))


def _foreign(verb: str, kind: str) -> None:
    @case(f"{verb}-into-a-folder-with-{kind}", key="--out")
    def _(world: World) -> list[str]:
        world.file(f"mine/{NOT_OURS[kind]}", "{}\n")
        return [*VERBS[verb](world), "--out", "mine"]


for _kind in NOT_OURS:
    _foreign("run", _kind)
for _verb in ("restart", "sweep", "finetune"):
    for _kind in ("students", "a-report"):
        _foreign(_verb, _kind)


@case("run-into-the-recipes-own-folder", key="--out")
def _(world: World) -> list[str]:
    world.recipe("folder/recipe.yaml")
    return ["run", "folder/recipe.yaml", "--out", "folder"]


@case("run-into-a-file", key="--out")
def _(world: World) -> list[str]:
    return ["run", world.recipe(), "--out", world.file("mine")]


@case("run-below-a-file", key="--out")
def _(world: World) -> list[str]:
    world.file("mine")
    return ["run", world.recipe(), "--out", "mine/run"]


@case("run-into-a-dangling-link", key="--out")
def _(world: World) -> list[str]:
    (world.root / "link").symlink_to(world.root / "nowhere")
    return ["run", world.recipe(), "--out", "link"]


@case("run-into-a-link-that-leads-to-itself", key="--out")
def _(world: World) -> list[str]:
    (world.root / "loop").symlink_to(world.root / "loop")
    return ["run", world.recipe(), "--out", "loop"]


@case("run-into-a-name-too-long", key="--out")
def _(world: World) -> list[str]:
    return ["run", world.recipe(), "--out", "x" * 300]


@case("run-into-an-empty-folder", key=None)
def _(world: World) -> list[str]:
    (world.root / "empty").mkdir()
    return ["run", world.recipe(), "--out", "empty"]


@case("run-into-a-new-folder-of-a-new-folder", key=None)
def _(world: World) -> list[str]:
    return ["run", world.recipe(), "--out", "a/b/c"]


@case("finished-run-again", key=None)
def _(world: World) -> list[str]:
    world.finished_run()
    world.file("run/notes.txt", "a note of the user's\n")
    world.file("run/student/notes.txt", "another one\n")
    world.file("run/student/onnx/model.onnx", "exported before\n")
    return ["run", "tiny.yaml", "--out", "run"]


@case("another-recipe-in-the-folder-of-a-finished-run", key="--out")
def _(world: World) -> list[str]:
    world.finished_run()
    return ["run", "tiny.yaml", "train.learning_rate=0.01", "--out", "run"]


@case("restart-moves-the-run-and-the-users-files-aside", key=None)
def _(world: World) -> list[str]:
    world.finished_run("runs/mine")
    world.file("runs/mine/notes.txt", "a note of the user's\n")
    weights = (world.root / "runs/mine/student/model.safetensors").read_bytes()
    shutil.move(world.root / "runs", world.root / "moved")  # a copy that the harness does not watch
    shutil.copytree(world.root / "moved", world.root / "runs")

    def check(found: Outcome) -> None:
        (aside,) = (world.root / "runs").glob("mine.old-*")
        assert (aside / "notes.txt").read_text() == "a note of the user's\n"
        assert (aside / "student/model.safetensors").read_bytes() == weights
        assert not (world.root / "runs/mine/notes.txt").exists()

    world.checks.append(check)
    world.moved.append("runs/mine/")
    return ["run", "tiny.yaml", "train.learning_rate=0.01", "--out", "runs/mine", "--restart"]


@case("another-recipe-where-nothing-was-trained", key=None)
def _(world: World) -> list[str]:
    table = world.file("vectors.parquet", b"not a table")
    first = world.recipe(teacher={"vectors": table})
    assert world.execute("run", first, "--out", "run").status == 2
    world.moved += ["run/recipe.yaml", "run/details/train.fingerprint"]
    return ["run", world.recipe("second.yaml"), "--out", "run"]


@case("sweep-into-the-folder-of-a-run", key="--out")
def _(world: World) -> list[str]:
    world.finished_run()
    return ["run", world.recipe("sweep.yaml", sweep={"seeds": [0, 1]}), "--out", "run"]


@case("sweep-with-a-damaged-list-goes-on", key=None)
def _(world: World) -> list[str]:
    world.run("run", world.recipe(sweep={"seeds": [0, 1]}), "--out", "sweep")
    world.file("sweep/details/sweep.json", '{"format": 1, "memb')
    world.moved.append("sweep/details/sweep.json")
    return ["run", "tiny.yaml", "--out", "sweep"]


@case("sweep-restarted-moves-its-runs-aside", key=None)
def _(world: World) -> list[str]:
    world.run("run", world.recipe(sweep={"seeds": [0]}), "--out", "sweep")
    world.file("sweep/notes.txt")
    world.file("sweep/seed=0/notes.txt")
    world.checks.append(lambda found: _has_note(world))
    world.moved += ["sweep/seed=0/", "sweep/details/sweep.json", "sweep/leaderboard."]
    return ["run", "tiny.yaml", "--out", "sweep", "--restart"]


def _has_note(world: World) -> None:
    (aside,) = world.root.glob("sweep/seed=0.old-*")
    assert (aside / "notes.txt").exists() and (aside / "student/model.safetensors").exists()


@case("plan-claims-nothing", key=None)
def _(world: World) -> list[str]:
    world.checks.append(lambda found: _is_absent(world))
    return ["plan", world.recipe(), "--out", "run"]


def _is_absent(world: World) -> None:
    assert not (world.root / "run").exists()


@case("missing-tracker-before-the-folder-is-claimed", key="train.trackers: trackio")
def _(world: World) -> list[str]:
    world.checks.append(lambda found: _is_absent(world))
    return ["run", world.recipe(train__trackers=["trackio"]), "--out", "run"]


@case("a-gpu-that-is-not-there-before-the-folder-is-claimed", key="train.device")
def _(world: World) -> list[str]:
    world.checks.append(lambda found: _is_absent(world))
    return ["run", world.recipe(train__device="cuda"), "--out", "run"]
