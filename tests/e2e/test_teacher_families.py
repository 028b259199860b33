"""The families of docs/teachers.md: each distils as its table says, trimmed and with fewer layers at once."""

from __future__ import annotations

import json

import pytest
from sentence_transformers import SentenceTransformer

from benchmarks.teacher_families import FAMILIES, ROOT, YES, Trial

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("name", list(FAMILIES))
def test_a_family_does_what_the_table_says(name, tmp_path):
    said = json.loads((ROOT / "results" / "teacher_families.json").read_text(encoding="utf-8"))[name]
    trial = Trial(tmp_path, FAMILIES[name])
    trial.prepare()
    is_made = trial.distilled("smaller", "--layers", "2", "student.vocabulary.kind=trim")
    assert is_made == said["fewer layers"].startswith(YES) == said["trimmed"].startswith(YES), trial.cells
    if is_made:
        student = SentenceTransformer(str(tmp_path / "smaller" / "student"), device="cpu")
        assert student.encode("a text").shape == (student.get_embedding_dimension(),)
    else:
        assert trial.cells["smaller"] == said["fewer layers"]
