"""Long texts in pieces: nothing is lost, none is too long, and they end with sentences, words or the limit."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from distilvec.data.corpus_files import pieces


@pytest.mark.parametrize(
    ("text", "longest", "expected"),
    [
        ("A short text.", 20, ["A short text."]),
        ("  spaces around  ", 20, ["spaces around"]),
        ('It ends. "Here!" And there, at last.', 20, ['It ends. "Here!"', "And there, at last."]),
        ("no sentence ends in all of these words", 20, ["no sentence ends in", "all of these words"]),
        ("x" * 50, 20, ["x" * 20, "x" * 20, "x" * 10]),
        ("一二三四五六七八九。一二三四五六七八九十。三", 20, ["一二三四五六七八九。", "一二三四五六七八九十。三"]),
        ("version 2.13.0 is out, and 3.5 is not yet", 24, ["version 2.13.0 is out,", "and 3.5 is not yet"]),
        ("", 20, [""]),
    ],
)
def test_cuts(text, longest, expected):
    assert list(pieces(text, longest)) == expected


@settings(deadline=None)
@given(st.text(alphabet=" \n.ab。?", max_size=300), st.integers(20, 80))
def test_nothing_is_lost_and_none_is_too_long(text, longest):
    found = list(pieces(text, longest))
    assert "".join("".join(found).split()) == "".join(text.split())
    assert all(len(piece) <= longest and piece == piece.strip() for piece in found)
    assert len(found) == 1 or all(found)


def test_pieces_of_prose_have_about_one_length():
    words = random.Random(0).choices(["alpha", "be", "gamma.", "delta,"], k=2000)
    lengths = [len(piece) for piece in pieces(" ".join(words), 200)]
    assert min(lengths) >= 100 and max(lengths) <= 200
