"""A chosen vocabulary is stored once, verified when it is opened, and made again where it is damaged."""

from __future__ import annotations

import pytest
from transformers import AutoTokenizer

from distilvec.vocabulary.choose import kept_vocabulary
from distilvec.vocabulary.trim import ChosenVocabulary

COUNTS = {"before": 200, "tokens": 113}


@pytest.fixture
def make(tiny_model):
    made = []

    def made_again():
        made.append(1)
        return ChosenVocabulary(AutoTokenizer.from_pretrained(tiny_model), dict(COUNTS), ("a note",))

    made_again.calls = made
    return made_again


def test_it_is_made_once_and_again_when_damaged(make, tmp_path, capsys):
    folder = tmp_path / "vocabularies" / "0123"
    for _ in range(2):
        stored = kept_vocabulary(folder, "0123", make)
        tokenizer = stored.tokenizer
        assert (
            (stored.figures, stored.notes) == (COUNTS, ("a note",))
            and tokenizer.tokenize("river stone")
            and len(make.calls) == 1
        )
    path = folder / "tokenizer.json"
    before = path.read_bytes()
    path.write_bytes(before + b" ")
    assert kept_vocabulary(folder, "0123", make).tokenizer.get_vocab() == tokenizer.get_vocab()
    assert path.read_bytes() == before and len(make.calls) == 2 and "damaged" in capsys.readouterr().err
