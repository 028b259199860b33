"""Recipes and overrides with wrong names, values and paths."""

from __future__ import annotations

from pathlib import Path

from faults.harness import TEXTS, Outcome, World, case


def overridden(name: str, override: str, key: str) -> None:
    """A case in which a sound recipe is run with one override."""

    @case(f"override-{name}", key=key)
    def _(world: World) -> list[str]:
        return ["run", world.recipe(), override, "--out", "run"]


for _name, _override, _key in (
    ("name-leaves-the-folder", "name=../tiny", "name"),
    ("name-absolute", "name=/tmp/tiny", "name"),
    ("name-empty", "name=''", "name"),
    ("name-control-character", 'name="a\\tb"', "name"),
    ("name-too-long", f"name={'n' * 300}", "name"),
    ("stage-leaves-the-folder", "stages=[{name: ../a}, {name: b}]", "stages.0.name"),
    ("source-name-with-slash", "corpus.sources.0.name=a/b", "corpus.sources.0.name"),
    ("boolean-batch-size", "train.batch_size=true", "train.batch_size"),
    ("boolean-in-list", "student.layers=[0, true]", "student.layers"),
    ("boolean-in-tuple", "train.betas=[true, 0.9]", "train.betas"),
    ("boolean-weight", "method.weights={l2: true}", "method.weights"),
    ("nan-rate", "train.learning_rate=.nan", "train.learning_rate"),
    ("infinite-option", "method.options={distance: .inf}", "method.options"),
    ("negative-seed", "train.seed=-1", "train.seed"),
    ("negative-corpus-seed", "corpus.seed=-1", "corpus.seed"),
    ("seed-beyond-64-bits", "train.seed=99999999999999999999", "train.seed"),
    ("beta-of-one", "train.betas=[0.9, 1]", "train.betas.1"),
    ("negative-factor", "train.learning_rate_factors={encoder: -1}", "train.learning_rate_factors.encoder"),
    ("endless-epochs", "train.epochs=1000000000000", "train.epochs"),
    ("huge-experts", "student.experts={count: 3, width: 1000000000}", "student.experts.width"),
    ("huge-number", f"train.epochs={'9' * 5000}", "train.epochs"),
    ("yaml-broken", "train={epochs: [", "train"),
    ("yaml-deep", f"train={'[' * 5000}", "train"),
    ("yaml-list-as-key", "method.options={[a]: b}", "method.options"),
    ("without-value", "train.epochs", "override"),
    ("without-key", "=3", "override"),
    ("empty-path", "corpus.sources.0.path=''", "corpus.sources.0.path"),
    ("nobodys-home", "corpus.sources.0.path=~nobody.here/texts.txt", "corpus.sources.0.path"),
):
    overridden(_name, _override, _key)


@case("recipe-is-a-folder", key="recipe")
def _(world: World) -> list[str]:
    (world.root / "recipe.yaml").mkdir()
    return ["plan", "recipe.yaml"]


@case("recipe-is-binary", key="recipe")
def _(world: World) -> list[str]:
    return ["plan", world.file("recipe.yaml", b"\x89PNG\r\n\x1a\n\x00\xff")]


@case("recipe-is-a-dangling-link", key="recipe")
def _(world: World) -> list[str]:
    (world.root / "recipe.yaml").symlink_to("nothing")
    return ["plan", "recipe.yaml"]


@case("recipe-name-too-long", key="recipe")
def _(world: World) -> list[str]:
    return ["plan", "r" * 5000]


@case("recipe-path-too-long", key="recipe")
def _(world: World) -> list[str]:
    return ["plan", f"{'r' * 500}.yaml"]


@case("recipe-with-two-problems", key="recipe")
def _(world: World) -> list[str]:
    return ["plan", world.recipe(train__epochs=-1, train__lr=1)]


@case("variant-unknown", key="--variant")
def _(world: World) -> list[str]:
    return ["run", world.recipe(variants={"long": {"train.epochs": 2}}), "--variant", "lnog"]


@case("sweep-without-values", key="sweep.grid.train.epochs")
def _(world: World) -> list[str]:
    return ["run", world.recipe(sweep={"grid": {"train.epochs": []}}), "--out", "runs"]


@case("sweep-member-invalid", key="train.epochs")
def _(world: World) -> list[str]:
    return ["run", world.recipe(sweep={"grid": {"train.epochs": [1, -1]}}), "--out", "runs"]


@case("protocol-unknown", key="--protocol")
def _(world: World) -> list[str]:
    suite = world.file("suite.yaml", "- {name: mini, type: sts, path: sts.csv}\n")
    return ["evaluate", str(world.model), "--suite", suite, "--protocol", "mtebb"]


@case("override-paths-begin-at-the-current-folder", key=None)
def _(world: World) -> list[str]:
    assert world.texts.parent == world.root
    (world.root / "recipes").mkdir()
    world.checks.append(lambda found: _has_texts(found, TEXTS))
    return ["plan", world.recipe("recipes/tiny.yaml"), "corpus.sources=[{path: texts.txt}]", "cache.path=vectors"]


def _has_texts(found: Outcome, count: int) -> None:
    assert f"{count} (32 for validation)" in found.out
    assert not Path("vectors").exists()


@case("plan-changes-no-folder-of-the-user", key=None)
def _(world: World) -> list[str]:
    (world.root / "vectors").mkdir()
    world.checks.append(lambda found: _still_empty(world))
    return ["plan", world.recipe(), "cache.path=vectors", "--out", "run"]


def _still_empty(world: World) -> None:
    assert not list((world.root / "vectors").iterdir()) and not (world.root / "run").exists()


def _behind_an_api(world: World, **api: object) -> list[str]:
    """A plan with a teacher behind an API to which nothing is sent: the key is refused before."""
    teacher = {"model": "served", "api": {"base_url": "https://far.test/v1", **api}}
    return ["plan", world.recipe(teacher=teacher, student={"model": str(world.model), "layers": 1})]


@case("api-key-in-the-body", key="teacher.api.body")
def _(world: World) -> list[str]:
    return _behind_an_api(world, body={"options": [{"apiKey": "sk-x"}]})


@case("api-key-without-tls", key="teacher.api.base_url")
def _(world: World) -> list[str]:
    return _behind_an_api(world, base_url="http://far.test/v1", key_variable="SOME_KEY")


@case("api-key-of-another-service", key="teacher.api.key_variable")
def _(world: World) -> list[str]:
    return _behind_an_api(world, key_variable="AWS_SECRET_ACCESS_KEY")
