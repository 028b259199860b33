"""The YAML dialect: what plain text means, what is refused, and that shipped files mean what PyYAML reads in them."""

from __future__ import annotations

import math
import time

import pytest
import yaml
from refusals import refused

from distilvec.config.builtin import recipe_folder
from distilvec.config.yaml_dialect import dump_yaml, load_yaml, read_yaml
from distilvec.core.errors import DistilvecError

SHIPPED = sorted(recipe_folder().rglob("*.yaml"))
VALUES = {
    "1e-5": 1e-5, "1E+3": 1000.0, ".5": 0.5, "5.": 5.0, "-1.5e3": -1500.0, "1_000": 1000, "1_0.5": 10.5,
    "010": 10, "-07": -7, "09": 9, "0x1F": 31, "0o17": 15, "1:30": "1:30", "12:30:45": "12:30:45", "0b11": "0b11",
    "on": "on", "Off": "Off", "yes": "yes", "n": "n", "True": True, "false": False, "tRUE": "tRUE",
    "2024-01-01": "2024-01-01", "2024-01-01 10:00:00": "2024-01-01 10:00:00",
    "~": None, "null": None, "": None, "'1'": "1", "'010'": "010", "!!str 1": "1",
    "=": "=", "'<<'": "<<", ".": ".", "-": [None], "1.2.3": "1.2.3", "e5": "e5", "+": "+",
}  # fmt: skip


@pytest.mark.parametrize("text", VALUES, ids=repr)
def test_what_plain_text_means(text):
    found = load_yaml(text, "x")
    assert found == VALUES[text] and type(found) is type(VALUES[text])


def test_infinity_and_nan_are_numbers():
    assert load_yaml("[.inf, -.INF, .nan]", "x")[:2] == [math.inf, -math.inf]
    assert math.isnan(load_yaml(".NaN", "x"))


REFUSED = {
    "a: 1\nb: 2\na: 3": r"line 3, column 1: key 'a' is repeated",
    "{1: a, 01: b}": "is repeated",
    "{[a]: b}": "a list or mapping cannot be a key",
    "? {a: b}": "a list or mapping cannot be a key",
    "a: [": "line",
    "a: b\n--- c": "another document",
    "a: !!python/object:os.system x": "tag",
    "a: !!set {b}": "tag",
    "a: !!int x": "not a number",
    "a: *b": "no anchor|undefined",
    "&a [*a]": "recursive",
    "a: &a {b: *a}": "recursive",
    'a: "\\ud800"': "escape|U\\+D800",
    'a: "\\x00"': r"U\+0000",
    'a: "\\e[31m"': r"U\+001B",
    "a: \x07": "control|special",
    "a: \ud800": "not valid Unicode",
    "<<: 1": "a mapping",
    "a: " + "9" * 5000: "5,000 digits",
    "[" * 100_000: "more than 64 lists",
    "- " * 100_000: "more than 64 lists",
    "{a: " * 100_000: "more than 64 lists",
}


@pytest.mark.parametrize("text", REFUSED, ids=lambda text: repr(text[:20]))
def test_what_is_refused(text):
    began = time.process_time()
    with pytest.raises(DistilvecError, match=rf"^my.yaml is not valid YAML: .*({REFUSED[text]})") as caught:
        load_yaml(text, "my.yaml")
    assert len(str(caught.value)) < 400 and time.process_time() - began < 20


def test_merge_keys_and_aliases_are_copies():
    text = "one: &one {a: 1, b: 2}\ntwo: &two {b: 3, c: 4}\nthree: {<<: [*one, *two], c: 5}\nfour: *one"
    found = load_yaml(text, "x")
    assert found["three"] == {"a": 1, "b": 2, "c": 5} == {**yaml.safe_load(text)["three"]}
    found["four"]["a"] = 9
    assert found["one"]["a"] == 1


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.stem)
def test_shipped_files_mean_what_pyyaml_reads(path):
    """But for 1e-5, which YAML 1.1 takes for text, and its words for true and false."""

    def same(ours, theirs):
        if isinstance(ours, dict):
            return list(ours) == list(theirs) and all(same(ours[key], theirs[key]) for key in ours)
        if isinstance(ours, list):
            return len(ours) == len(theirs) and all(map(same, ours, theirs))
        return (
            (type(ours), ours) == (type(theirs), theirs)
            or (isinstance(ours, float) and ours == float(theirs))
            or ours in ("on", "off")
        )

    text = path.read_text(encoding="utf-8")
    assert same(load_yaml(text, path.name), yaml.safe_load(text))


def test_what_is_dumped_reads_back():
    texts = [text for text in VALUES if not text.startswith(("'", "!!"))]
    content = {
        "texts": texts,
        "values": [value for value in VALUES.values() if value is not None],
        "none": None,
        "ü": "ä\nb",
    }
    assert load_yaml(dump_yaml(content), "x") == content


def test_files_that_cannot_be_read(tmp_path):
    (tmp_path / "big.yaml").write_bytes(b"#" * 4_000_001)
    (tmp_path / "binary.yaml").write_bytes(b"\x89PNG\xff")
    (tmp_path / "dangling.yaml").symlink_to(tmp_path / "nothing")
    (tmp_path / "loop.yaml").symlink_to(tmp_path / "loop.yaml")
    (tmp_path / "bom.yaml").write_bytes(b"\xef\xbb\xbfa: 1")
    assert read_yaml(tmp_path / "bom.yaml", "suite", "Fix.") == {"a": 1}
    for name, message in (
        ("big.yaml", "more than 4,000,000 bytes"),
        ("binary.yaml", "not valid Unicode"),
        ("dangling.yaml", "No such file"),
        ("loop.yaml", "Too many levels"),
        ("absent.yaml", "No such file"),
        (f"{300 * 'x'}.yaml", "File name too long"),
        ("", "is a folder"),
    ):
        with refused("suite", message):
            read_yaml(tmp_path / name, "suite", "Fix.")
