"""Which texts come from one text: parts, copies and overlaps, in any script, and what is common to many."""

import random

import numpy as np
import pytest

from distilvec.data.origins import SHARED, origin_numbers

WORDS = [f"{first}{second}{last}" for first in "bdfglmnprst" for second in "aeiou" for last in "klmnrstx"]


@pytest.fixture
def rng():
    return random.Random(7)


def words(rng, count):
    return rng.choices(WORDS, k=count)


def test_a_shared_run_of_twenty_words_is_found_wherever_it_is(rng):
    """Case, punctuation and line ends do not count; of fifteen words in a row nothing follows."""
    text = words(rng, 120)
    for _ in range(200):
        start = rng.randrange(len(text) - SHARED)
        run = text[start : start + SHARED]
        around = [*words(rng, rng.randrange(60)), *run, *words(rng, rng.randrange(60))]
        other = ",\n ".join(around).upper()
        assert len(set(origin_numbers([" ".join(text), other]).tolist())) == 1
    part = " ".join([*words(rng, 30), *text[40:55], *words(rng, 30)])
    assert len(set(origin_numbers([" ".join(text), part]).tolist())) == 2


def test_copies_are_one_origin_however_short_they_are():
    texts = ["Hello there", "hello,  THERE!", "hello", "👍 ", "👍", "👎", "", " ", "Grüße", "GRÜSSE", "çok güzel"]
    assert origin_numbers(texts).tolist() == [0, 0, 1, 2, 2, 3, 4, 4, 5, 5, 6]


def test_overlaps_join_what_they_connect_and_documents_join_their_rows(rng):
    """A chain of chunks is one origin; rows that a column gives one document are one without a word in common."""
    article = words(rng, 300)
    chunks = [" ".join(article[start : start + 60]) for start in range(0, 300, 35)]
    others = [" ".join(words(rng, 60)) for _ in range(4)]
    assert origin_numbers([*chunks, *others]).tolist() == [0] * len(chunks) + [1, 2, 3, 4]
    documents = [None] * len(chunks) + ["a", 7, "a", None]
    assert origin_numbers([*chunks, *others], documents).tolist() == [0] * len(chunks) + [1, 2, 1, 3]


@pytest.mark.parametrize(
    ("letters", "shared", "is_one"),
    [
        ((0x4E00, 0x9FA0), 2 * SHARED, True),
        ((0x4E00, 0x9FA0), SHARED, False),  # the name of an institution has as many
        ((0x0E01, 0x0E2E), 2 * SHARED, True),
        ((0x3041, 0x3090), 2 * SHARED, True),
    ],
)
def test_scripts_without_spaces_have_runs_of_letters(rng, letters, shared, is_one):
    def text(count):
        return "".join(chr(rng.randrange(*letters)) for _ in range(count))

    first = text(200)
    second = text(90) + first[100 : 100 + shared] + text(90)
    third = text(200)
    assert len(set(origin_numbers([first, second]).tolist())) == (1 if is_one else 2)
    assert len(set(origin_numbers([first, third]).tolist())) == 2


def test_marks_belong_to_their_letters():
    """Of Devanagari and of decomposed letters a word is not cut at its vowel signs."""
    sentence = "यह एक छोटा वाक्य है जिसमें कई शब्द हैं"
    longer = f"{sentence} और भी"
    assert origin_numbers([sentence, sentence.replace(" ", "  "), longer]).tolist() == [0, 0, 1]


def test_a_form_that_many_texts_have_joins_none_of_them(rng):
    """A header on every text is no evidence; on three of them it is, since a quoted text looks the same."""
    header = " ".join(words(rng, 40))
    own = [" ".join(words(rng, 60)) for _ in range(200)]
    joined = origin_numbers([f"{header}. {text}" for text in own])
    assert len(np.unique(joined)) == 200
    some = [f"{header}. {text}" if number < 3 else text for number, text in enumerate(own)]
    assert len(np.unique(origin_numbers(some))) == 198


def test_numbers_follow_the_order_of_the_texts_in_any_batch(rng, monkeypatch):
    texts = [" ".join(words(rng, 30)) for _ in range(50)]
    texts += [text.upper() for text in texts[::-1]]
    expected = [*range(50), *range(49, -1, -1)]
    assert origin_numbers(texts).tolist() == expected
    monkeypatch.setattr("distilvec.data.origins._TEXTS", 7)
    monkeypatch.setattr("distilvec.data.origins._CHARACTERS", 100)
    monkeypatch.setattr("distilvec.data.corpus_files.CHUNK", 16)
    assert origin_numbers(texts).tolist() == expected and origin_numbers([]).tolist() == []
