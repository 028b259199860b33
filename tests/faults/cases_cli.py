"""Wrong use of `distilvec recipes` and of the options that may be anywhere, and right use next to it."""

from __future__ import annotations

from faults.harness import Outcome, World, case


@case("quiet-and-verbose", key="--quiet")
def _(world: World) -> list[str]:
    return ["--quiet", "recipes", "--verbose"]


@case("quiet-and-verbose-before-anything-is-read", key="--quiet")
def _(world: World) -> list[str]:
    return ["run", "absent.yaml", "--verbose", "--quiet"]


@case("quiet-error", key="recipe")
def _(world: World) -> list[str]:
    return ["run", "redcat", "--quiet"]


@case("verbose-error", key="recipe")
def _(world: World) -> list[str]:
    return ["--verbose", "run", "redcat"]


@case("quiet-run", key=None)
def _(world: World) -> list[str]:
    world.checks.append(nothing_on_stderr)
    return ["run", world.recipe(evaluation__parts=[]), "--quiet", "--out", "run"]


@case("key-set-twice", key="train.epochs")
def _(world: World) -> list[str]:
    return ["run", world.recipe(), "train.epochs=1", "train.epochs=2"]


@case("recipes-copy", key=None)
def _(world: World) -> list[str]:
    world.checks.append(lambda found: must((world.root / "talas.yaml").is_file()))
    return ["recipes", "copy", "talas"]


@case("recipes-copy-over-a-file", key="--out")
def _(world: World) -> list[str]:
    world.file("talas.yaml")
    return ["recipes", "copy", "talas"]


@case("recipes-copy-over-the-file-of-out", key="--out")
def _(world: World) -> list[str]:
    return ["recipes", "copy", "talas", "--out", world.file("mine.yaml")]


@case("recipes-copy-over-itself", key="--out")
def _(world: World) -> list[str]:
    return ["recipes", "copy", world.recipe(), "--out", "tiny.yaml"]


@case("recipes-copy-to-a-dangling-link", key="--out")
def _(world: World) -> list[str]:
    (world.root / "mine.yaml").symlink_to("nowhere.yaml")
    return ["recipes", "copy", "talas", "--out", "mine.yaml"]


@case("recipes-copy-to-a-folder", key="--out")
def _(world: World) -> list[str]:
    (world.root / "folder").mkdir()
    return ["recipes", "copy", "talas", "--out", "folder"]


@case("recipes-copy-below-a-file", key="--out")
def _(world: World) -> list[str]:
    world.file("notes")
    return ["recipes", "copy", "talas", "--out", "notes/mine.yaml"]


@case("recipes-copy-to-an-impossible-name", key="--out")
def _(world: World) -> list[str]:
    return ["recipes", "copy", "talas", "--out", f"{'long' * 100}.yaml"]


@case("recipes-copy-of-a-mistyped-name", key="recipe")
def _(world: World) -> list[str]:
    return ["recipes", "copy", "tallas"]


@case("recipes-copy-of-a-missing-file", key="recipe")
def _(world: World) -> list[str]:
    return ["recipes", "copy", "absent.yaml", "--out", "mine.yaml"]


@case("recipes-copy-of-no-yaml", key="recipe")
def _(world: World) -> list[str]:
    return ["recipes", "copy", world.file("broken.yaml", "name: [\n"), "--out", "mine.yaml"]


@case("recipes-copy-of-bytes", key="recipe")
def _(world: World) -> list[str]:
    return ["recipes", "copy", world.file("broken.yaml", b"\xff\xfe\x00"), "--out", "mine.yaml"]


@case("recipes-copy-of-a-list", key="recipe")
def _(world: World) -> list[str]:
    return ["recipes", "copy", world.file("list.yaml", "- name: a\n"), "--out", "mine.yaml"]


@case("recipes-copy-with-a-path-that-is-empty", key="corpus.sources.0.path")
def _(world: World) -> list[str]:
    return ["recipes", "copy", world.recipe(corpus__sources=[{"path": " "}]), "--out", "mine.yaml"]


@case("recipes-copy-with-non-ascii-paths", key=None)
def _(world: World) -> list[str]:
    world.file("tëxte, 1.txt", "a text\n")
    world.checks.append(lambda found: must("tëxte, 1.txt" in (world.root / "mine.yaml").read_text(encoding="utf-8")))
    return ["recipes", "copy", world.recipe(corpus__sources=[{"path": "tëxte, 1.txt"}]), "--out", "mine.yaml"]


@case("recipes-show-mistyped", key="recipe")
def _(world: World) -> list[str]:
    return ["recipes", "show", "redcat"]


@case("recipes-show-bytes", key="recipe")
def _(world: World) -> list[str]:
    return ["recipes", "show", world.file("broken.yaml", b"\xff\xfe\x00")]


@case("recipes-show-a-missing-file", key="recipe")
def _(world: World) -> list[str]:
    return ["recipes", "show", "absent.yaml"]


@case("recipes-verb-mistyped", key=None, status=2)
def _(world: World) -> list[str]:
    return ["recipes", "shcema"]


@case("recipes-schema", key=None)
def _(world: World) -> list[str]:
    world.checks.append(lambda found: must('"variants"' in found.out))
    return ["recipes", "schema"]


def nothing_on_stderr(found: Outcome) -> None:
    """The check of a quiet command."""
    must(found.err == "", found.err)


def must(holds: bool, reason: str = "") -> None:
    """A check."""
    assert holds, reason
