"""`evaluate` and `compare` through the functions that the Python API shares: options that do not fit, models that
cannot be scored.
"""

from __future__ import annotations

import json

from faults.cases_evaluation import STS, a_suite, evaluate, never_loads
from faults.harness import Outcome, World, case

MTEB = ("--mteb", "STSBenchmark")


@case("evaluate-suite-and-mteb", key="--suite")
def _(world: World) -> list[str]:
    never_loads(world)
    return [*a_suite(world), *MTEB]


@case("evaluate-suite-and-benchmark", key="--suite")
def _(world: World) -> list[str]:
    never_loads(world)
    return [*a_suite(world), "--benchmark", "MTEB(eng, v2)"]


@case("evaluate-data-with-a-suite", key="--data")
def _(world: World) -> list[str]:
    never_loads(world)
    (world.root / "data").mkdir()
    return [*a_suite(world), "--data", "data"]


@case("evaluate-data-is-a-file", key="--data")
def _(world: World) -> list[str]:
    never_loads(world)
    return ["evaluate", str(world.model), *MTEB, "--data", world.file("data", "kept\n")]


@case("evaluate-mteb-without-a-name", key="--mteb")
def _(world: World) -> list[str]:
    never_loads(world)
    return ["evaluate", str(world.model), "--mteb", ""]


@case("evaluate-mteb-and-benchmark", key="--mteb")
def _(world: World) -> list[str]:
    never_loads(world)
    return ["evaluate", str(world.model), *MTEB, "--benchmark", "MTEB(eng, v2)"]


@case("evaluate-mteb-mistyped", key="--mteb")
def _(world: World) -> list[str]:
    never_loads(world)
    return ["evaluate", str(world.model), "--mteb", "STSBenchmrk"]


@case("evaluate-benchmark-mistyped", key="--benchmark")
def _(world: World) -> list[str]:
    never_loads(world)
    return ["evaluate", str(world.model), "--benchmark", "MTEB(eng, v9)"]


@case("evaluate-empty-suite", key="--suite")
def _(world: World) -> list[str]:
    never_loads(world)
    return ["evaluate", str(world.model), "--suite", world.file("suite.yaml", "[]\n")]


@case("evaluate-model-has-no-name", key="model")
def _(world: World) -> list[str]:
    arguments = a_suite(world)
    return [arguments[0], "", *arguments[2:]]


@case("evaluate-model-is-a-file", key="model")
def _(world: World) -> list[str]:
    arguments = a_suite(world)
    return [arguments[0], world.file("model.txt"), *arguments[2:]]


@case("evaluate-teacher-is-a-run-folder", key="--teacher")
def _(world: World) -> list[str]:
    world.file("run/recipe.yaml", "name: tiny\n")
    return [*a_suite(world), "--teacher", str(world.root / "run")]


@case("evaluate-one-task-of-two", key="suite", status=1)
def _(world: World) -> list[str]:
    arguments = a_suite(world)
    world.file("suite.yaml", "- {name: mini, type: sts, path: sts.csv}\n- {name: gone, type: sts, path: absent.csv}\n")
    world.checks.append(lambda found: _scored_and_named(found, world))
    return [*arguments, "--json", "out.json"]


def _scored_and_named(found: Outcome, world: World) -> None:
    assert "mini" in found.out and "[suite] task 'gone'" in found.err and "absent.csv" in found.err
    assert [score["task"] for score in json.loads((world.root / "out.json").read_text())["student"]] == ["mini"]


@case("evaluate-no-task-writes-no-json", key="suite", status=1)
def _(world: World) -> list[str]:
    never_loads(world)
    world.checks.append(lambda found: _nothing_written(found, world))
    return [*evaluate(world, "sts.csv", "sentence1,score\na,1\n"), "--json", "out.json"]


def _nothing_written(found: Outcome, world: World) -> None:
    assert found.out == "" and not (world.root / "out.json").exists()


@case("evaluate-with-a-teacher", key=None)
def _(world: World) -> list[str]:
    world.checks.append(lambda found: _all_columns(found, world))
    return [*evaluate(world, "sts.csv", STS), "--teacher", str(world.model), "--json", "out.json"]


def _all_columns(found: Outcome, world: World) -> None:
    assert "% of teacher" in found.out and found.err.count("distilvec:") == 0
    assert list(json.loads((world.root / "out.json").read_text())) == ["teacher", "student", "asymmetric", "averages"]


@case("compare-nothing-there", key="run folder")
def _(world: World) -> list[str]:
    return ["compare", "absent"]


@case("compare-a-file", key="run folder")
def _(world: World) -> list[str]:
    return ["compare", world.file("run", "kept\n")]


@case("compare-json-is-a-folder", key="--json")
def _(world: World) -> list[str]:
    (world.root / "table.json").mkdir()
    return ["compare", "absent", "--json", "table.json"]
