"""Whatever a recipe, an override or a suite holds: a result, or one clear message."""

from __future__ import annotations

import copy
import json
import os
from functools import cache
from pathlib import Path

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from distilvec.config import recipe as recipes
from distilvec.config.builtin import recipe_folder
from distilvec.config.yaml_dialect import load_yaml
from distilvec.core.errors import DistilvecError
from distilvec.evaluation.suite import read_suite
from distilvec.verbs.run.sweep import expand_sweep
from faults.harness import LONGEST_MESSAGE

FOLDER = recipe_folder()
SEEDS = {
    "load": ["quickstart.yaml", "small_english.yaml", "distillmoe.yaml", "baselines/jasper.yaml", "baselines/cdm.yaml"],
    "expand_sweep": ["sweeps/pooling.yaml", "sweeps/sentence_level.yaml", "sweeps/data_mix.yaml"],
    "suite": ["suites/sentence_level.yaml", "suites/cranfield.yaml"],
}
DUMPER = getattr(yaml, "CSafeDumper", yaml.SafeDumper)  # libyaml, where installed
TIMES = int(os.environ.get("DISTILVEC_FUZZ", "1"))  # more examples: the same ones come first
FEW = settings(
    derandomize=True,
    deadline=None,
    database=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)

ODD_TEXTS = [
    "",
    ".",
    "..",
    "../x",
    "/",
    "~nobody/x",
    "\ud800",
    "\x00",
    "a\x1bb",
    "\u202e",
    "x" * 500,
    "[",
    "a]b",
    "\n",
    "1e5",
    "-.inf",
    "ÿ",
]
ODD_NUMBERS = [
    -1,
    0,
    2**31,
    2**63,
    2**64,
    -(2**63),
    10**30,
    10**400,
    1e308,
    -1e308,
    1e-320,
    float("nan"),
    float("inf"),
    -0.0,
]
ODD_KEYS = [
    "",
    ".",
    "..",
    "0",
    "-1",
    "train",
    "name",
    "x.y",
    "method.options",
    "sources.0",
    "\ud800",
    "[a]",
    "k" * 300,
    "a b",
    "<<",
    "=",
    "ü",
]
scalars = st.one_of(
    st.none(),
    st.booleans(),
    st.sampled_from(ODD_TEXTS),
    st.sampled_from(ODD_NUMBERS),
    st.text(max_size=12),
    st.floats(),
)
keys = st.one_of(st.sampled_from(ODD_KEYS), st.text(max_size=8), st.sampled_from([1, 2.5, True, None]))
values = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(keys, inner, max_size=4), max_leaves=8
)


def places(tree, path=()):
    """The path of every value of a tree."""
    if path:
        yield path
    for key, value in tree.items() if isinstance(tree, dict) else enumerate(tree) if isinstance(tree, list) else ():
        yield from places(value, (*path, key))


@cache
def seed(name):
    """The tree of a built-in file."""
    return load_yaml((FOLDER / name).read_text(encoding="utf-8"), name)


@st.composite
def damaged(draw, kind):
    """A valid tree with a few keys dropped, replaced or added, or values moved to another place."""
    tree = copy.deepcopy(seed(draw(st.sampled_from(SEEDS[kind]))))
    for _ in range(draw(st.integers(1, 3))):
        found = list(places(tree))
        if not found:
            break
        *parents, last = draw(st.sampled_from(found))
        place = tree
        for part in parents:
            place = place[part]
        match draw(st.sampled_from(["replace", "replace", "drop", "add", "wrap", "move"])):
            case "drop":
                del place[last]
            case "add" if isinstance(place, dict):
                place[draw(keys)] = draw(values)
            case "wrap":
                place[last] = draw(st.sampled_from([[place[last]], {"a": place[last]}, [place[last]] * 3]))
            case "move":
                place[last] = copy.deepcopy(draw(st.sampled_from(list(_leaves(tree)))))
            case _:
                place[last] = draw(values)
    return tree


def _leaves(tree):
    if isinstance(tree, (dict, list)):
        for value in tree.values() if isinstance(tree, dict) else tree:
            yield from _leaves(value)
    yield tree


@st.composite
def yaml_texts(draw):
    """YAML with a few pieces cut out, doubled or replaced by odd ones."""
    kind = draw(st.sampled_from([name for names in SEEDS.values() for name in names]))
    text = (FOLDER / kind).read_text(encoding="utf-8")[:3000]
    for _ in range(draw(st.integers(1, 4))):
        start = draw(st.integers(0, len(text)))
        end = start + draw(st.integers(0, 40))
        odd = [
            "&a ",
            "*a",
            "<<: *a",
            "[",
            "{",
            "}",
            "? ",
            "!!python/object:x ",
            "\t",
            "\x00",
            "\x85",
            "---\n",
            "0o9",
            "1:30",
            '"',
            "%",
            "- " * 90,
        ]
        text = (
            text[:start]
            + draw(st.one_of(st.sampled_from(odd), st.text(max_size=6), st.just(text[start:end] * 2)))
            + text[end:]
        )
    return text


overrides = st.lists(
    st.one_of(
        st.tuples(
            st.sampled_from(["train.epochs", "name", "corpus.sources.0.limit", "evaluation.suite", "sweep.seeds"]),
            st.text(max_size=10),
        ),
        st.tuples(
            st.text(max_size=10), st.sampled_from(["1", "{a: [", "[1, 2]", "{a: b}", "!!x y", "null", "", "~/x", "./y"])
        ),
        st.tuples(keys.map(str), scalars.map(str)),
    ).map("=".join)
    | st.text(max_size=12),
    max_size=3,
)


def refused_clearly(read, *arguments):
    """Call `read`; whatever it refuses it refuses with one short DistilvecError that begins with a key."""
    try:
        read(*arguments)
    except DistilvecError as error:
        text = str(error)
        assert text.startswith("[") and "]" in text and len(text) <= LONGEST_MESSAGE, text
        assert not text.startswith("[]") and text[-1] in ".)]:", text


def written(folder: Path, content) -> Path:
    """The tree or text as a file; JSON is YAML that keeps odd characters escaped."""
    path = folder / "fuzz.yaml"
    if not isinstance(content, str):
        try:
            content = yaml.dump(content, Dumper=DUMPER, sort_keys=False, allow_unicode=True)
        except (UnicodeError, yaml.YAMLError):
            content = json.dumps(content)
    path.write_bytes(content.encode("utf-8", "surrogatepass"))
    return path


@settings(FEW, max_examples=200 * TIMES)
@given(tree=damaged("load"), changes=overrides)
def test_recipes(tmp_path, tree, changes):
    path = written(tmp_path, tree)
    refused_clearly(recipes.load, path, None, changes)
    refused_clearly(recipes.load, path, "local", [])


@settings(FEW, max_examples=130 * TIMES)
@given(tree=damaged("expand_sweep"), changes=overrides, variant=st.sampled_from([None, "x", "\ud800"]))
def test_sweeps(tree, changes, variant):
    refused_clearly(expand_sweep, tree, changes, variant)


@settings(FEW, max_examples=100 * TIMES)
@given(tree=damaged("suite"))
def test_suites(tmp_path, tree):
    refused_clearly(read_suite, written(tmp_path, tree))


@pytest.mark.parametrize("read", [recipes.load, expand_sweep, read_suite])
@settings(FEW, max_examples=50 * TIMES)
@given(text=yaml_texts())
def test_texts(tmp_path, read, text):
    refused_clearly(read, written(tmp_path, text))
