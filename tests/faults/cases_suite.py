"""Suites that are damaged, or whose tasks have wrong names and values."""

from __future__ import annotations

from faults.harness import World, case

STS = "sentence1,sentence2,score\nriver,stone,1\nbridge,river,3\nstone,stone,5\n"


def suite(name: str, content: str | bytes) -> None:
    """A case in which a model is evaluated on a suite with this content."""

    @case(f"suite-{name}", key="--suite")
    def _(world: World) -> list[str]:
        world.file("sts.csv", STS)
        return ["evaluate", str(world.model), "--suite", world.file("suite.yaml", content)]


for _name, _content in (
    ("empty", ""),
    ("is-a-mapping", "tasks: []\n"),
    ("broken", "- {name: ["),
    ("binary", b"\x80\x81\x00"),
    ("repeats-a-key", "- {name: a, name: b, type: sts, path: sts.csv}\n"),
    ("unknown-key", "- {name: a, type: sts, path: sts.csv, splt: dev}\n"),
    ("name-empty", "- {name: '', type: sts, path: sts.csv}\n"),
    ("name-control-character", '- {name: "a\\nb", type: sts, path: sts.csv}\n'),
    ("path-empty", "- {name: a, type: sts, path: ''}\n"),
    ("path-with-zero", '- {name: a, type: sts, path: "a\\0b"}\n'),
    ("seed-negative", "- {name: a, type: classification, path: sts.csv, seed: -1}\n"),
    ("limit-boolean", "- {name: a, type: classification, path: sts.csv, train_limit: true}\n"),
    ("deep", "- " * 5000),
    ("self-reference", "&a [*a]\n"),
):
    suite(_name, _content)


@case("suite-missing", key="--suite")
def _(world: World) -> list[str]:
    return ["evaluate", str(world.model), "--suite", "nowhere.yaml"]


@case("suite-is-a-folder", key="--suite")
def _(world: World) -> list[str]:
    (world.root / "suite").mkdir()
    return ["evaluate", str(world.model), "--suite", "suite"]


@case("suite-of-a-recipe-is-damaged", key="suite")
def _(world: World) -> list[str]:
    return ["run", world.recipe(evaluation__suite=world.file("suite.yaml", "- 1\n")), "--out", "run"]
