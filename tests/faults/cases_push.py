"""`distilvec push`: folders that are no model, and names that are no repository; nothing reaches a hub."""

from __future__ import annotations

from faults.harness import World, case


def _refused(name: str, key: str, model: str, *options: str, repo: str = "me/model") -> None:
    @case(f"push-{name}", key=key)
    def _(world: World) -> list[str]:
        (world.model / "README.md").write_text("---\nlicense: mit\n---\n", encoding="utf-8")
        return ["push", model, repo, *options]


_refused("of-a-missing-folder", "model", "absent")
_refused("of-a-file", "model", "teacher/config.json")
_refused("of-an-empty-name", "model", "")
_refused("to-a-path", "repo_id", "teacher", repo="../model")
_refused("to-an-empty-name", "repo_id", "teacher", repo="")
_refused("with-a-license-in-words", "--license", "teacher", "--license", "do what you like")
_refused("while-offline", "HF_HUB_OFFLINE", "teacher")


@case("push-of-a-card-that-is-no-text", key="README.md")
def _(world: World) -> list[str]:
    (world.model / "README.md").write_bytes(b"---\nlicense: \xff\xfe\n---\n")
    return ["push", "teacher", "me/model"]


@case("push-of-a-card-that-is-no-yaml", key="README.md")
def _(world: World) -> list[str]:
    (world.model / "README.md").write_text("---\nlicense: [\n---\n", encoding="utf-8")
    return ["push", "teacher", "me/model"]


@case("push-of-a-damaged-model-index", key="README.md")
def _(world: World) -> list[str]:
    (world.model / "README.md").write_text("---\nmodel-index: [{name: 1}]\n---\n", encoding="utf-8")
    return ["push", "teacher", "me/model"]
