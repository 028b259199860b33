"""Reading recipes: overrides, variants, and errors that name the key."""

import pytest

from distilvec import recipe
from distilvec.errors import DistilvecError

MINIMAL = """
name: mini
teacher: {model: ./teacher}
student: {model: teacher}
corpus: {sources: [{path: data/texts.txt}]}
method: {name: redact}
train: {learning_rate: 1e-5}
variants:
  long: {student.max_length: 512, train.epochs: 3}
"""


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "mini.yaml"
    path.write_text(MINIMAL)
    return path


def test_numbers_paths_variants_overrides(file, tmp_path):
    loaded = recipe.load(file, "long", ["train.batch_size=8", "corpus.sources.0.limit=5"])
    assert loaded.train.learning_rate == 1e-5 and loaded.name == "mini-long"
    assert (loaded.student.max_length, loaded.train.epochs, loaded.train.batch_size) == (512, 3, 8)
    assert loaded.corpus.sources[0].path == tmp_path / "data" / "texts.txt" and loaded.corpus.sources[0].limit == 5
    assert loaded.teacher.model == str(tmp_path / "teacher") and loaded.student.model == "teacher"


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("train.lerning_rate=1", r"\[train.lerning_rate\] unknown key; did you mean 'learning_rate'"),
        ("corpus.sources.0.pth=x", r"unknown key; did you mean 'path'"),
        ("studnet=1", r"did you mean 'student'"),
        ("train.epochs=0", r"\[train.epochs\] .*greater than 0; found 0"),
        ("train.schedule.name=cyclic", r"train.schedule.name"),
        ("teacher.vectors=x.parquet", r"exactly one of 'model' and 'vectors'"),
        ("train.batch_size", r"not of the form key=value"),
        ("name.x=1", r"'name' holds a value"),
    ],
)
def test_errors_name_the_key(file, override, message):
    with pytest.raises(DistilvecError, match=message):
        recipe.load(file, None, [override])


def test_missing_and_broken_files(tmp_path, file):
    with pytest.raises(DistilvecError, match="not found"):
        recipe.load(tmp_path / "absent.yaml")
    with pytest.raises(DistilvecError, match="no variant 'lng'; did you mean 'long'"):
        recipe.load(file, "lng")
    for content, message in (
        (b"\xff\xfe\x00", "UTF-8"),
        (b"a: [", "YAML"),
        (b"- 1", "expected a mapping"),
        (b"name: a\nname: b", "stands twice"),
    ):
        file.write_bytes(content)
        with pytest.raises(DistilvecError, match=message):
            recipe.load(file)


def test_dump_reads_back(file):
    loaded = recipe.load(file)
    file.write_text(recipe.dump(loaded))
    assert recipe.load(file) == loaded


def test_fingerprint_changes_with_content():
    assert recipe.fingerprint({"a": 1}) == recipe.fingerprint({"a": 1}) != recipe.fingerprint({"a": 2})


def test_on_and_off_are_words():
    values = recipe.read_overrides(["method.options={on: hidden, off: no}", "a=true", "b=False", "teacher.live=yes"])
    assert values == {"method.options": {"on": "hidden", "off": "no"}, "a": True, "b": False, "teacher.live": "yes"}
