"""`distilvec transplant`: folders that are in use, options that do not go together, texts that cannot be read."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

from faults.harness import Outcome, World, case


def _transplant(world: World, *options: str, out: str = "out", model: str | None = None) -> list[str]:
    return ["transplant", model or str(world.model), "--texts", str(world.texts), "--out", out, *options]


def _absent(world: World, name: str = "out") -> Callable[[Outcome], None]:
    def check(found: Outcome) -> None:
        assert not (world.root / name).exists()

    return check


# -- the target --------------------------------------------------------------------------------------------------------


@case("transplant-onto-its-source", key="--out")
def _(world: World) -> list[str]:
    return _transplant(world, out=str(world.model))


@case("transplant-onto-its-source-with-overwrite", key="--out")
def _(world: World) -> list[str]:
    world.run(*_transplant(world, out="mine"))
    return _transplant(world, "--overwrite", out="mine", model=str(world.root / "mine"))


@case("transplant-onto-its-source-by-another-path", key="--out")
def _(world: World) -> list[str]:
    world.run(*_transplant(world, out="mine"))
    return _transplant(world, "--overwrite", out="teacher/../mine/.", model="mine")


@case("transplant-onto-its-source-by-a-link", key="--out")
def _(world: World) -> list[str]:
    world.run(*_transplant(world, out="mine"))
    (world.root / "link").symlink_to("mine")
    return _transplant(world, "--overwrite", out="link", model="mine")


@case("transplant-onto-its-tokenizer", key="--out")
def _(world: World) -> list[str]:
    world.run(*_transplant(world, out="mine"))
    return ["transplant", str(world.model), "--tokenizer", "mine/tokenizer.json", "--out", "mine", "--overwrite"]


@case("transplant-onto-a-users-folder", key="--out")
def _(world: World) -> list[str]:
    world.file("papers/draft.txt")
    return _transplant(world, out="papers")


@case("transplant-onto-a-users-folder-with-overwrite", key="--out")
def _(world: World) -> list[str]:
    world.file("papers/draft.txt")
    return _transplant(world, "--overwrite", out="papers")


@case("transplant-onto-anothers-model-with-overwrite", key="--out")
def _(world: World) -> list[str]:
    shutil.copytree(world.model, world.root / "other")
    return _transplant(world, "--overwrite", out="other")


@case("transplant-onto-its-own-earlier-model", key="--out")
def _(world: World) -> list[str]:
    world.run(*_transplant(world))
    return _transplant(world)


@case("transplant-onto-a-file", key="--out")
def _(world: World) -> list[str]:
    return _transplant(world, out=world.file("out"))


@case("transplant-below-a-file", key="--out")
def _(world: World) -> list[str]:
    world.file("there")
    return _transplant(world, out="there/out")


@case("transplant-onto-a-link-to-nothing", key="--out")
def _(world: World) -> list[str]:
    (world.root / "out").symlink_to("nowhere")
    return _transplant(world)


@case("transplant-into-the-hubs-cache", key="--out")
def _(world: World) -> list[str]:
    from huggingface_hub.constants import HF_HUB_CACHE

    return _transplant(world, "--overwrite", out=str(Path(HF_HUB_CACHE) / "models--a--b" / "snapshots" / "0"))


# -- options -----------------------------------------------------------------------------------------------------------


def _option(name: str, key: str, *options: str) -> None:
    @case(f"transplant-{name}", key=key)
    def _(world: World) -> list[str]:
        world.checks.append(_absent(world))
        return _transplant(world, *options)


_option("without-a-size", "--vocab-size", "--kind", "bpe")
_option("size-of-nothing", "--vocab-size", "--kind", "bpe", "--vocab-size", "0")
_option("share-without-hybrid", "--share", "--share", "9")
_option("target-without-hybrid", "--target", "--target", "tr")
_option("hybrid-without-share", "--share", "--kind", "hybrid", "--vocab-size", "300", "--target", "texts")
_option(
    "hybrid-of-an-unknown-language",
    "--target",
    "--kind",
    "hybrid",
    "--vocab-size",
    "300",
    "--target",
    "tr",
    "--share",
    "9",
)
_option("tokenizer-and-kind", "--tokenizer", "--tokenizer", "teacher", "--kind", "bpe", "--vocab-size", "300")
_option("tokenizer-absent", "--tokenizer", "--tokenizer", "./absent")
_option("length-beyond-positions", "--max-length", "--max-length", "100000")
_option("column-unknown-of-text-lines", "--column", "--column", "absent")


@case("transplant-tokenizer-of-no-sentencepiece", key="--tokenizer")
def _(world: World) -> list[str]:
    return ["transplant", str(world.model), "--tokenizer", world.file("spiece.model", b"\x00no model"), "--out", "out"]


@case("transplant-tokenizer-json-damaged", key="--tokenizer")
def _(world: World) -> list[str]:
    return ["transplant", str(world.model), "--tokenizer", world.file("tokenizer.json", "{"), "--out", "out"]


# -- texts -------------------------------------------------------------------------------------------------------------


def _texts(name: str, key: str, file: str, content: str | bytes, *options: str) -> None:
    @case(f"transplant-{name}", key=key)
    def _(world: World) -> list[str]:
        world.checks.append(_absent(world))
        return ["transplant", str(world.model), "--texts", world.file(file, content), "--out", "out", *options]


_texts("no-text", "--texts", "t.txt", "\n\n")
_texts("texts-unknown-kind", "--texts", "t.xyz", "a\n")
_texts("texts-no-json", "--texts", "t.jsonl", "{\n")
_texts("texts-half-a-character", "--texts", "t.jsonl", json.dumps({"text": "river \ud800"}) + "\n")
_texts("texts-of-another-script", "--kind", "t.txt", "የአማርኛ ጽሑፍ\nሰላም ለዓለም\n")
_texts("column-unknown", "--column", "t.jsonl", '{"text": "river"}\n', "--column", "absent")
_texts("column-of-numbers", "--column", "t.jsonl", '{"text": 5}\n')


@case("transplant-texts-absent", key="--texts")
def _(world: World) -> list[str]:
    return ["transplant", str(world.model), "--texts", "absent.txt", "--out", "out"]


@case("transplant-without-texts", key="--texts")
def _(world: World) -> list[str]:
    return ["transplant", str(world.model), "--out", "out"]


@case("transplant-of-a-name-with-marks", key=None)
def _(world: World) -> list[str]:
    import yaml

    name = "a: [b] *c* | #d"
    shutil.copytree(world.model, world.root / name)

    def check(found: Outcome) -> None:
        _, front, body = (world.root / "out" / "README.md").read_text(encoding="utf-8").split("---\n")
        assert yaml.safe_load(front)["library_name"] == "sentence-transformers"
        assert "# a: \\[b\\] \\*c\\* \\| \\#d with another vocabulary" in body

    world.checks.append(check)
    return _transplant(world, model=name)
