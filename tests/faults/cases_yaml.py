"""Recipe files with YAML that is damaged, hostile, or means other things in other dialects."""

from __future__ import annotations

import yaml

from faults.harness import Outcome, World, case


def damaged(name: str, text: str | bytes) -> None:
    """A case in which this text stands at the end of a sound recipe."""

    @case(f"yaml-{name}", key="recipe")
    def _(world: World) -> list[str]:
        whole = yaml.safe_dump(world.tree()).encode() + (text if isinstance(text, bytes) else text.encode())
        return ["run", world.file("tiny.yaml", whole), "--out", "run"]


for _name, _text in (
    ("repeated-key", "name: twice\n"),
    ("list-as-key", "{[a]: b}: c\n"),
    ("mapping-as-key", "? {a: b}\n: c\n"),
    ("self-reference", "paper: &a [*a]\n"),
    ("unknown-alias", "paper: *nothing\n"),
    ("lone-surrogate", 'paper: "\\ud800"\n'),
    ("lone-surrogate-bytes", b"paper: \xed\xa0\x80\n"),
    ("control-character", "paper: \x07\n"),
    ("escaped-control-character", 'paper: "\\e[31m"\n'),
    ("zero", 'paper: "a\\0b"\n'),
    ("deep-lists", f"paper: {'[' * 50_000}\n"),
    ("deep-mappings", f"paper: {'{a: ' * 20_000}\n"),
    ("python-object", "paper: !!python/object/apply:os.system [echo]\n"),
    ("second-document", "---\nname: other\n"),
    ("huge-number", f"paper: {'9' * 10_000}\n"),
    ("tab", "paper:\n\t- a\n"),
    ("too-large", b"#" * 5_000_000),
):
    damaged(_name, _text)


@case("yaml-date-as-description", key=None)
def _(world: World) -> list[str]:
    text = yaml.safe_dump(world.tree()) + "description: 2024-01-01\npaper: 1:30\n"
    world.checks.append(_planned)
    return ["plan", world.file("tiny.yaml", text.replace("epochs: 1", "epochs: 010"))]


def _planned(found: Outcome) -> None:
    assert " 30 steps" in found.out  # ten epochs, not eight


@case("yaml-number-with-exponent", key=None)
def _(world: World) -> list[str]:
    text = yaml.safe_dump(world.tree())
    assert "learning_rate: 0.001" in text
    return ["plan", world.file("tiny.yaml", text.replace("learning_rate: 0.001", "learning_rate: 1e-3"))]
