"""Method files that cannot be loaded or run, and options that a method cannot take."""

from __future__ import annotations

from typing import Any

from faults.harness import World, case

BODY = """from distilvec.core.objective import Objective


class Mine(Objective):
    default_weights = {'mine': 1.0}

    def __init__(self, context, weights, scale: float = 2.0):
        super().__init__(context, weights)
        self.scale = scale

    def forward(self, batch, student, teacher):
        return {'mine': self.scale * (student.embedding - teacher.embedding).abs().sum(-1)}
"""
SHORT = {"train__max_steps": 2}


def run(world: World, source: str, **changes: Any) -> list[str]:
    """Run a recipe with this method file."""
    return ["run", world.recipe(method__name=world.file("mine.py", source), **SHORT, **changes), "--out", "run"]


@case("method-unknown", key="method.name")
def _(world: World) -> list[str]:
    return ["run", world.recipe(method__name="redcat"), "--out", "run"]


@case("method-file-missing", key="method.name")
def _(world: World) -> list[str]:
    return ["run", world.recipe(method__name="./absent.py"), "--out", "run"]


@case("method-file-is-a-folder", key="method.name")
def _(world: World) -> list[str]:
    (world.root / "mine.py").mkdir()
    return ["run", world.recipe(method__name="./mine.py"), "--out", "run"]


FILES = {
    "syntax-error": BODY.replace("def forward(", "def forward("[:-1]),
    "empty": "",
    "two-objectives": BODY + BODY.split("\n\n\n", 1)[1].replace("Mine", "Yours"),
    "imports-what-is-absent": "import absent_module\n" + BODY,
    "raises-at-import": BODY + "\nx = 1 / 0\n",
    "exits-at-import": BODY + "\nimport sys\nsys.exit(0)\n",
    "constructor-raises": BODY.replace("= scale", "= context.moon"),
    "no-weights": BODY.replace("default_weights", "default_waits"),
    "no-forward": BODY.split("    def forward")[0],
    "forward-raises": BODY.replace(".sum(-1)", ".sum(-9)"),
    "forward-gives-nothing": BODY.replace("return {", "{"),
    "forward-gives-one-number": BODY.replace(".sum(-1)", ".sum()"),
    "forward-gives-an-unknown-term": BODY.replace("return {'mine'", "return {'yours'"),
    "not-utf-8": BODY + "x = 'caf\xe9'\n",
}
for _name, _source in FILES.items():

    def _prepare(world: World, source: str = _source, name: str = _name) -> list[str]:
        found = run(world, source)
        if name == "not-utf-8":
            world.file("mine.py", source.encode("latin-1"))
        return found

    case(f"method-file-{_name}", key="method.name")(_prepare)


@case("method-file-with-helpers", key=None)
def _(world: World) -> list[str]:
    world.file("methods/scale.py", "SCALE = 3.0\n")
    name = world.file("methods/mine.py", "from scale import SCALE\n" + BODY.replace("= 2.0", "= SCALE"))
    return ["run", world.recipe(method__name=name, **SHORT), "--out", "run"]


@case("method-file-beside-the-command", key=None)
def _(world: World) -> list[str]:
    world.file("mine.py", BODY)
    return ["run", world.recipe(method__name="./mine.py", **SHORT), "method.options.scale=3.5", "--out", "run"]


OPTIONS = {
    "text-for-a-number": ({"name": "simcse", "options": {"temperature": "warm"}}, "method.options.temperature"),
    "null-for-a-number": ({"name": "simcse", "options": {"temperature": None}}, "method.options.temperature"),
    "list-for-a-word": ({"name": "redact", "options": {"distance": ["l2"]}}, "method.options.distance"),
    "share-for-a-count": ({"name": "talas", "options": {"anchored_layers": 0.5}}, "method.options.anchored_layers"),
    "word-for-a-truth": (
        {"name": "talas", "options": {"include_embeddings": "yes"}},
        "method.options.include_embeddings",
    ),
    "number-for-a-list": ({"name": "jasper", "options": {"prefixes": 16}}, "method.options.prefixes"),
    "unknown-option": ({"name": "redact", "options": {"distanse": "l2"}}, "method.options.distanse"),
    "unknown-term": ({"name": "redact", "weights": {"l3": 1.0}}, "method.weights.l3"),
    "no-weight-at-all": ({"name": "redact", "weights": {"l2": 0.0}}, "method.weights"),
}
for _name, (_method, _key) in OPTIONS.items():

    def _prepare_options(world: World, method: Any = _method) -> list[str]:
        return ["run", world.recipe(method=method), "--out", "run"]

    case(f"options-{_name}", key=_key)(_prepare_options)


@case("options-missing-for-a-method-file", key="method.options.scale")
def _(world: World) -> list[str]:
    return run(world, BODY.replace(" = 2.0", ""))


@case("options-in-a-stage", key="method.options.distance")
def _(world: World) -> list[str]:
    stages = [{"name": "a"}, {"name": "b", "set": {"method.options": {"distance": 3}}}]
    return ["run", world.recipe(stages=stages), "--out", "run"]
