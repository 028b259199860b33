"""Ids and licenses of models, by name, folder and card."""

from __future__ import annotations

from pathlib import Path

import pytest

from distilvec.core.model_name import ModelName
from distilvec.models.origin import hub_ids, is_hub_id, license_of, origin, read_card


def card(folder: Path, text: str) -> str:
    folder.mkdir(parents=True)
    (folder / "README.md").write_text(text, encoding="utf-8")
    return str(folder)


def test_ids(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert hub_ids(ModelName("org/model")) == ["org/model"] and hub_ids(ModelName("bert-base-uncased")) == [
        "bert-base-uncased"
    ]
    for name in ("all-MiniLM-L6-v2", "sentence-transformers/all-MiniLM-L6-v2"):
        assert hub_ids(ModelName(name)) == ["sentence-transformers/all-MiniLM-L6-v2"]
    cached = tmp_path / "hub" / "models--some-org--a.model-v1" / "snapshots" / "0123"
    cached.mkdir(parents=True)
    assert hub_ids(ModelName(str(cached))) == ["some-org/a.model-v1"]
    (tmp_path / "plain").mkdir()
    monkeypatch.chdir(tmp_path)
    assert hub_ids(ModelName("plain")) == [] and not is_hub_id("plain")
    assert hub_ids(ModelName(card(tmp_path / "one", "---\nbase_model: org/base\n---\n"))) == ["org/base"]
    assert hub_ids(ModelName(card(tmp_path / "two", "---\nbase_model: [org/a, teacher, ../b, /c/d, 3]\n---\n"))) == [
        "org/a"
    ]


@pytest.mark.parametrize("name", ["teacher", "", "a/b/c", "../x", "a b", "org/a\nb", None, 3, ["org/a"]])
def test_names_that_are_no_ids(name: object) -> None:
    assert not is_hub_id(name)


def test_damaged_cards_hold_nothing(tmp_path: Path) -> None:
    texts = ["", "# no metadata", "---\n- a\n---\n", "---\na: [\n---\n", "---\nlicense: [mit]\n---\n"]
    for number, text in enumerate(texts):
        assert license_of(ModelName(card(tmp_path / str(number), text))) == {}, text
    assert read_card(tmp_path / "absent") == {} and license_of(ModelName("org/absent")) == {}


def test_the_license_is_the_bases_unless_a_teacher_has_another(tmp_path: Path) -> None:
    free = ModelName(card(tmp_path / "free", "---\nlicense: mit\n---\n"))
    other = ModelName(card(tmp_path / "o", "---\nlicense: other\nlicense_name: own\nlicense_link: LICENSE\n---\n"))
    unknown = ModelName("org/unknown")
    assert origin(free, [free]) == {"license": "mit"}
    assert origin(free, [unknown]) == {"base_model": ["org/unknown"]}, "a teacher's terms are not known"
    assert origin(free, [None]) == {}
    assert origin(other, []) == {"license": "other", "license_name": "own", "license_link": "LICENSE"}
    assert origin(free, [other]) == {}
    assert origin(unknown, [free]) == {"base_model": ["org/unknown"]}, "a teacher's license is not the student's"
    assert origin(None, [free]) == {}
