"""Wrong command lines and output paths."""

from __future__ import annotations

from faults.harness import World, case


@case("recipe-name-mistyped", key="recipe")
def _(world: World) -> list[str]:
    return ["run", "redcat"]


@case("recipe-file-missing", key="recipe")
def _(world: World) -> list[str]:
    return ["run", "absent.yaml"]


@case("json-below-a-file", key="--json")
def _(world: World) -> list[str]:
    world.file("sts.csv", "sentence1,sentence2,score\nriver,stone,1\nbridge,river,3\nstone,stone,5\n")
    suite = world.file("suite.yaml", "- {name: mini, type: sts, path: sts.csv}\n")
    world.file("notes")
    return ["evaluate", str(world.model), "--suite", suite, "--json", "notes/new/out.json"]


@case("a-run", key=None)
def _(world: World) -> list[str]:
    return ["run", world.recipe(), "--out", "run"]
