"""`compare`: run folders that are damaged or edited, outputs that cannot be written, hostile names."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from distilvec.core.run_folder import RunFolder
from faults.harness import Outcome, World, case

TASK = {"task": "sts", "type": "sts", "metric": "spearman"}


def a_run(world: World, name: str = "run", title: str | None = None, value: float = 70.0) -> Path:
    """The folder of a finished run with one score, as `distilvec run` leaves it but without a model."""
    from distilvec.core.files import write_json

    folder = world.root / name
    RunFolder(folder).make()
    tree = {"name": title or name, "train": {"seed": 0}, "student": {"model": "teacher"}, "x": name}
    scores = {"teacher": [{**TASK, "value": 80.0}], "student": [{**TASK, "value": value}]}
    record = {
        "name": title or name,
        "teacher": {"name": "big", "fingerprint": "t"},
        "data": {"fingerprint": "d"},
        "metrics": {"distance": 0.3},
    }
    RunFolder(folder).recipe.write_text(yaml.safe_dump(tree), encoding="utf-8")
    write_json(RunFolder(folder).record, record, sealed=True)
    write_json(RunFolder(folder).report, {"format": 2, "scores": scores}, sealed=True)
    gold = np.arange(20.0)
    np.savez(RunFolder(folder).samples, **{"student/sts/predicted": gold + value, "student/sts/gold": gold})
    return folder


def edit(path: Path, **changes: Any) -> None:
    """Change keys of a JSON file as an editor would."""
    path.write_text(json.dumps(json.loads(path.read_text(encoding="utf-8")) | changes), encoding="utf-8")


def reseal(path: Path, **changes: Any) -> None:
    """Change keys of a sealed file as a program would that writes something else."""
    from distilvec.core.files import write_json

    write_json(path, json.loads(path.read_text(encoding="utf-8")) | changes, sealed=True)


@case("two-runs", key=None)
def _(world: World) -> list[str]:
    world.checks.append(lambda found: _has(found, "70.00", "75.00"))
    return ["compare", str(a_run(world)), str(a_run(world, "other", value=75.0))]


def _has(found: Outcome, *texts: str) -> None:
    for text in texts:
        assert text in found.out, found.out


@case("runs-without-samples", key=None)
def _(world: World) -> list[str]:
    folders = [a_run(world), a_run(world, "other", value=75.0)]
    RunFolder(folders[0]).samples.unlink()
    world.checks.append(lambda found: _has(found, "which cannot be tested"))
    return ["compare", *map(str, folders)]


@case("score-edited", key="report.json")
def _(world: World) -> list[str]:
    folder = a_run(world)
    edit(RunFolder(folder).report, scores={"student": [{**TASK, "value": 99.9}]})
    return ["compare", str(folder)]


@case("record-edited", key="record.json")
def _(world: World) -> list[str]:
    folder = a_run(world)
    edit(RunFolder(folder).record, metrics={"distance": 0.01})
    return ["compare", str(folder)]


@case("report-truncated", key="report.json")
def _(world: World) -> list[str]:
    folder = a_run(world)
    RunFolder(folder).report.write_bytes(RunFolder(folder).report.read_bytes()[:100])
    return ["compare", str(folder)]


@case("report-is-a-list", key="report.json")
def _(world: World) -> list[str]:
    folder = a_run(world)
    RunFolder(folder).report.write_text("[]")
    return ["compare", str(folder)]


@case("report-is-a-folder", key="report.json")
def _(world: World) -> list[str]:
    folder = a_run(world)
    RunFolder(folder).report.unlink()
    RunFolder(folder).report.mkdir()
    return ["compare", str(folder)]


@case("report-latin-1", key="report.json")
def _(world: World) -> list[str]:
    folder = a_run(world)
    RunFolder(folder).report.write_bytes('{"name": "é"}'.encode("latin-1"))
    return ["compare", str(folder)]


@case("score-is-text", key="report.json")
def _(world: World) -> list[str]:
    folder = a_run(world)
    reseal(RunFolder(folder).report, scores={"student": [{**TASK, "value": "good"}]})
    return ["compare", str(folder)]


@case("score-is-nan", key="report.json")
def _(world: World) -> list[str]:
    folder = a_run(world)
    reseal(RunFolder(folder).report, scores={"student": [{**TASK, "value": float("nan")}]})
    return ["compare", str(folder)]


@case("record-damaged", key="record.json")
def _(world: World) -> list[str]:
    folder = a_run(world)
    RunFolder(folder).record.write_text("{")
    return ["compare", str(folder)]


@case("record-of-another-shape", key="record.json")
def _(world: World) -> list[str]:
    folder = a_run(world)
    reseal(RunFolder(folder).record, training=["minutes"])
    return ["compare", str(folder)]


@case("samples-truncated", key="samples.npz")
def _(world: World) -> list[str]:
    folder = a_run(world)
    RunFolder(folder).samples.write_bytes(RunFolder(folder).samples.read_bytes()[:200])
    return ["compare", str(folder), str(a_run(world, "other"))]


@case("samples-of-two-lengths", key="samples.npz")
def _(world: World) -> list[str]:
    folder = a_run(world)
    np.savez(RunFolder(folder).samples, **{"student/sts/predicted": np.zeros(3), "student/sts/gold": np.zeros(4)})
    return ["compare", str(folder), str(a_run(world, "other"))]


@case("sweep-damaged", key="sweep.json")
def _(world: World) -> list[str]:
    world.file("sweep/details/sweep.json", '{"members": [{"name": "a"}]}')
    return ["compare", str(world.root / "sweep")]


@case("no-run", key="run folder")
def _(world: World) -> list[str]:
    (world.root / "empty").mkdir()
    return ["compare", "empty"]


@case("run-not-finished", key="run folder")
def _(world: World) -> list[str]:
    folder = a_run(world)
    RunFolder(folder).record.unlink()
    return ["compare", str(folder)]


@case("compare-unknown-column", key="--column")
def _(world: World) -> list[str]:
    return ["compare", str(a_run(world)), "--column", "studnt"]


@case("compare-unknown-reference", key="--reference")
def _(world: World) -> list[str]:
    return ["compare", str(a_run(world)), "--reference", "absent"]


@case("compare-no-asymmetric-column", key="--column")
def _(world: World) -> list[str]:
    return ["compare", str(a_run(world)), "--column", "asymmetric"]


@case("two-outputs-one-file", key="--json")
def _(world: World) -> list[str]:
    return ["compare", str(a_run(world)), "--markdown", "table.txt", "--json", str(world.root / "table.txt")]


@case("table-below-a-file", key="--markdown")
def _(world: World) -> list[str]:
    world.file("notes")
    return ["compare", str(a_run(world)), "--json", "first.json", "--markdown", "notes/table.md"]


@case("json-would-replace-the-report", key="--json")
def _(world: World) -> list[str]:
    folder = a_run(world)
    return ["compare", str(folder), "--json", str(RunFolder(folder).report)]


@case("page-where-figures-are-a-file", key="--out")
def _(world: World) -> list[str]:
    world.file("page-figures", "kept")
    return ["compare", str(a_run(world)), "--out", "page.html"]


@case("page-is-a-folder", key="--out")
def _(world: World) -> list[str]:
    return ["compare", str(a_run(world)), "--out", str(a_run(world, "other"))]


@case("hostile-run-names", key=None)
def _(world: World) -> list[str]:
    names = ["=cmd|' /C calc'!A0", "[red]x[/red] \u202e | `y` <script> \\input{z} %"]
    folders = [a_run(world, f"run{number}", title=name, value=70.0 + number) for number, name in enumerate(names)]
    world.checks.append(lambda found: _harmless(found, world.root))
    return [
        "compare",
        *map(str, folders),
        "--markdown",
        "t.md",
        "--out",
        "t.html",
    ]


def _harmless(found: Outcome, root: Path) -> None:
    assert "[red]x[/red]" in found.out and "\u202e" not in found.out
    assert all("\u202e" not in (root / name).read_text(encoding="utf-8") for name in ("t.md", "t.html"))
    assert "<script>" not in (root / "t.md").read_text(encoding="utf-8").replace("\\<script>", "")
