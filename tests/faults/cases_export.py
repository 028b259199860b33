"""`distilvec export`: output paths that are taken or cannot be written, models that cannot be exported."""

from __future__ import annotations

import json

from faults.harness import World, case


def _refused(name: str, key: str, place: str, content: str | bytes | None = None) -> None:
    """A place that is refused before the model, which is none, is looked into."""

    @case(f"export-{name}", key=key)
    def _(world: World) -> list[str]:
        (world.model / "model.safetensors").write_bytes(b"damaged: it must not be read")
        if content is not None:
            world.file(place, content)
        return ["export", str(world.model), "--out", place]


_refused("onto-a-users-file", "--out", "notes.txt", "mine\n")
_refused("onto-another-binary", "--out", "picture.png", b"\x89PNG\r\n")
_refused("onto-the-weights", "--out", "teacher/model.safetensors")
_refused("onto-a-folder", "--out", "teacher")
_refused("below-a-file", "--out", "teacher/config.json/model.onnx")


@case("export-onto-a-users-file-by-default", key="--out")
def _(world: World) -> list[str]:
    folder = world.model
    world.file("teacher/onnx/model.onnx", "notes\n")
    return ["export", str(folder)]


@case("export-where-onnx-is-a-file", key="--out")
def _(world: World) -> list[str]:
    folder = world.model
    world.file("teacher/onnx", "notes\n")
    return ["export", str(folder)]


@case("export-onto-a-link-to-nothing", key="--out")
def _(world: World) -> list[str]:
    (world.root / "out.onnx").symlink_to("nowhere/out.onnx")
    return ["export", str(world.model), "--out", "out.onnx"]


@case("export-of-an-id-without-a-place", key="--out")
def _(world: World) -> list[str]:
    return ["export", "org/model"]


@case("export-of-an-unknown-id", key="model")
def _(world: World) -> list[str]:
    return ["export", "org/model", "--out", "out.onnx"]


@case("export-of-an-empty-name", key="model")
def _(world: World) -> list[str]:
    return ["export", "", "--out", "out.onnx"]


@case("export-of-a-name-with-a-nul", key="model")
def _(world: World) -> list[str]:
    return ["export", "a\0b", "--out", "out.onnx"]


@case("export-of-too-long-a-name", key="model")
def _(world: World) -> list[str]:
    return ["export", "x" * 5000, "--out", "out.onnx"]


@case("export-without-its-prompts-tokens", key="model")
def _(world: World) -> list[str]:
    path = world.model / "1_Pooling" / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "include_prompt": False}))
    settings = world.model / "config_sentence_transformers.json"
    settings.write_text(json.dumps({**json.loads(settings.read_text()), "prompts": {"query": "query: "}}))
    return ["export", str(world.model), "--out", "out.onnx"]
