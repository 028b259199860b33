"""Content-addressed folders: built once, again after another fingerprint or damage."""

from __future__ import annotations

from distilvec.core.artifacts import ArtifactStore, open_or_build, read_stored, store_json


def _build(store, built, fingerprint="a"):
    def build(folder):
        (folder / "text").write_text(fingerprint)
        built.append(fingerprint)
        return {"rows": 1}

    folder = store.folder("texts", "one")
    return open_or_build(folder, fingerprint, "text", 10, build, lambda folder: (folder / "text").read_text())


def test_an_artifact_is_built_once_and_again_for_another_fingerprint(tmp_path):
    store, built = ArtifactStore(tmp_path), []
    assert [_build(store, built) for _ in range(2)] == ["a", "a"] and built == ["a"]
    assert _build(store, built, "b") == "b" and built == ["a", "b"]


def test_a_damaged_artifact_is_built_again(tmp_path):
    store, built = ArtifactStore(tmp_path), []
    _build(store, built)
    (store.folder("texts", "one") / "text").write_text("other")
    assert _build(store, built) == "a" and built == ["a", "a"]
    (store.folder("texts", "one") / "meta.json").write_text("{")
    assert _build(store, built) == "a" and len(built) == 3


def test_a_stored_value_is_read_and_a_damaged_one_is_made_again(tmp_path, capsys):
    path = tmp_path / "values" / "one.json"
    assert read_stored(path, "value") is None
    store_json(path, {"rows": 1})
    assert read_stored(path, "value")["rows"] == 1
    path.write_text(path.read_text().replace("1", "2", 1))
    assert read_stored(path, "value") is None and "damaged" in capsys.readouterr().err
