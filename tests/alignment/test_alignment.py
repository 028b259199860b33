import functools
import json
import unicodedata
from itertools import pairwise

import architectures
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from refusals import refused
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from distilvec.alignment import edit_distance as alignment_dtw
from distilvec.alignment.align import Aligner, mapping_rates
from distilvec.alignment.edit_distance import cheapest_paths, edit_distances, one_to_one
from distilvec.alignment.offsets import plain_pieces
from distilvec.core.errors import DistilvecError
from distilvec.vocabulary.pieces import Pieces

KINDS = ["offsets", "overlap", "mined", "strict"]
HARD = [
    "",
    " ",
    "the student places a text.",
    "The Quick BROWN fox",
    "emoji 😀😀 👩‍👩‍👧 and 🇹🇷🇩🇪 here",
    "cafe\u0301 no\u0308 a\u0323\u0301b",
    "שלום עליכם, مرحبا بالعالم text",
    "İstanbul'da \u0131s\u0131 DİYARBAKIR IĞDIR",
    "a\tb \t c\n\nthe text",
    "ze\u200bro\u200b wi\u200ddth\ufeff \u200bx",
    "你好 the 世界",
    "ﬁne … ½ ㎏ ﷺ Ⅷ",
    "[CLS] literal </s> and <s> [SEP] the",
    "x" * 40,
    "क्षत्रिय हिन्दी",
]


@functools.cache
def tokenizer(name):
    if name == "lowercase":  # lower-cases without stripping accents: "İ" becomes two characters
        backend = Tokenizer(models.BPE(unk_token="<unk>"))
        backend.normalizer = normalizers.Lowercase()
        backend.pre_tokenizer = pre_tokenizers.Whitespace()
        texts = [*architectures.TEXTS, *HARD]
        backend.train_from_iterator(
            texts, trainers.BpeTrainer(vocab_size=300, special_tokens=["<unk>"], show_progress=False)
        )
        return PreTrainedTokenizerFast(tokenizer_object=backend, unk_token="<unk>")
    if name == "prefix":  # byte-level with a space put before the text
        made = architectures.byte_level(["<s>", "</s>"], "<s> $A </s>", bos="<s>", eos="</s>")
        made.backend_tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
        return made
    if name == "end only":
        return architectures.byte_level(["<|endoftext|>"], "$A <|endoftext|>", eos="<|endoftext|>")
    if name == "roberta":
        made = architectures.byte_level(["<s>", "</s>"], "<s> $A </s>", bos="<s>", eos="</s>")
        made.backend_tokenizer.post_processor = architectures.template(
            made.backend_tokenizer, "<s> $A </s>", "<s> $A </s> </s> $B </s>"
        )
        return made
    if name == "metaspace":
        return architectures.metaspace("<s> $A", ["<unk>", "<s>", "</s>"])
    return getattr(architectures, name)()


NAMES = ["wordpiece", "unigram", "roberta", "metaspace", "prefix", "lowercase", "end only"]
PAIRS = [(one, two) for one in NAMES for two in NAMES]


@functools.cache
def aligner(student, teacher, kind, student_length=64, teacher_length=64):
    return Aligner(tokenizer(student), student_length, tokenizer(teacher), teacher_length, kind)


def split(found):
    """The pairs and shares of each text."""
    ends = np.cumsum(found.counts)
    shares = found.shares if found.shares is not None else np.ones(len(found.pairs))
    return [
        (found.pairs[end - count : end].tolist(), shares[end - count : end])
        for count, end in zip(found.counts, ends, strict=True)
    ]


def encoded(name, text, length=64):
    """The library's own encoding; of it, per token, the member of a pair (None: special) and the characters."""
    encoding = tokenizer(name)([text], truncation=True, max_length=length, return_offsets_mapping=True)
    return encoding["input_ids"][0], encoding.sequence_ids(0), encoding["offset_mapping"][0]


def characters(text, member, span):
    """What a span covers: characters that are neither white space nor marks, or all if there are none."""
    part = text if isinstance(text, str) else text[member]
    places = set(range(*span))
    kept = {
        i for i in places if not part[i].isspace() and unicodedata.category(part[i]) not in ("Mn", "Mc", "Me", "Cf")
    }
    return kept or {i for i in places if not part[i].isspace()} or places


def check(student, teacher, kind, texts, lengths=(64, 64)):
    found = aligner(student, teacher, kind, *lengths).align(texts)
    for text, (pairs, shares), own, other in zip(
        texts, split(found), found.student_lengths, found.teacher_lengths, strict=True
    ):
        ids, members, spans = encoded(student, text, lengths[0])
        teacher_ids, teacher_members, teacher_spans = encoded(teacher, text, lengths[1])
        assert (len(ids), len(teacher_ids)) == (own, other)
        assert pairs == sorted(pairs) and len({tuple(pair) for pair in pairs}) == len(pairs)
        for s, t in pairs:
            assert 0 <= s < own and 0 <= t < other and members[s] == teacher_members[t]
        if kind == "overlap":
            for s in {s for s, _ in pairs}:
                assert sum(shares[[pair[0] == s for pair in pairs]]) == pytest.approx(1)
            assert (shares > 0).all()
            for s, t in pairs:
                start, end = max(spans[s][0], teacher_spans[t][0]), min(spans[s][1], teacher_spans[t][1])
                between = (text if isinstance(text, str) else text[members[s] or 0])[
                    end:start
                ]  # marks that one tokenizer drops
                assert start <= end or all(unicodedata.category(mark) in ("Mn", "Me", "Cf") for mark in between), (
                    text,
                    s,
                    t,
                )
            continue
        assert all(a[0] < b[0] and a[1] < b[1] for a, b in pairwise(pairs)), "pairs cross or share a token"
        for s, t in pairs if kind == "offsets" else []:
            if members[s] is not None:
                assert characters(text, members[s], spans[s]) == characters(text, members[s], teacher_spans[t]), (
                    text,
                    s,
                    t,
                )


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("student", "teacher"), PAIRS)
def test_hard_texts(student, teacher, kind):
    check(student, teacher, kind, HARD)


PARTS = [
    "a",
    "the",
    "The",
    " ",
    "  ",
    "\t",
    "\n",
    "text",
    "student",
    "é",
    "e\u0301",
    "İ",
    "I",
    "\u0131",
    "😀",
    "👩‍👧",
    "שלום",
    "你",
    "ﬁ",
    "…",
    "\u200b",
]
TEXT = st.one_of(
    st.lists(st.sampled_from(PARTS), max_size=12).map("".join),
    st.text(st.characters(exclude_categories=["Cs"]), max_size=12),
)


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=60, deadline=None)
@given(
    texts=st.lists(TEXT, min_size=1, max_size=4),
    names=st.sampled_from(PAIRS),
    lengths=st.tuples(st.integers(4, 12), st.integers(4, 12)),
)
def test_pairs_of_any_text(kind, texts, names, lengths):
    check(*names, kind, texts, lengths)


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=30, deadline=None)
@given(texts=st.lists(st.tuples(TEXT, TEXT), min_size=1, max_size=3), length=st.integers(6, 14))
def test_pairs_of_two_texts_in_one_input(kind, texts, length):
    check("wordpiece", "unigram", kind, texts, (length, 20))


def test_one_token_of_an_emoji_is_not_taken_for_all_of_it():
    text = "a 😀 text"
    ids, _, spans = encoded("roberta", text)
    assert sum(span == (2, 3) for span in spans) > 1
    (pairs, _), *_ = split(aligner("roberta", "wordpiece", "offsets").align([text]))
    assert (
        not any(spans[s] == (2, 3) for s, _ in pairs)
        and [0, 0] in pairs
        and [len(ids) - 1, len(encoded("wordpiece", text)[0]) - 1] in pairs
    )


def character_cut(merges, vocabulary=()):
    """A byte-level tokenizer without special tokens: single bytes, and what these merges join."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokens = [*letters, *(left + right for left, right in merges), *vocabulary]
    backend = Tokenizer(models.BPE({token: number for number, token in enumerate(tokens)}, merges))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    return PreTrainedTokenizerFast(tokenizer_object=backend)


def bytes_of(text):
    """How a byte-level tokenizer spells the bytes of a text."""
    return [pre_tokenizers.ByteLevel(add_prefix_space=False).pre_tokenize_str(text)[0][0]][0]


def test_groups_of_equal_size_are_paired_in_order_and_others_are_not():
    """Four bytes of an emoji against the same four in two tokens, in three, and in one."""
    one, two, three, four = bytes_of("😀")
    whole = character_cut([])
    halves = character_cut([(one, two), (three, four)])
    ends = character_cut([(two, three), (two + three, four)])
    for left, right, expected in [
        (whole, whole, [[0, 0], [1, 1], [2, 2], [3, 3], [4, 4], [5, 5]]),
        (halves, ends, [[0, 0], [1, 1], [2, 2], [3, 3]]),
        (whole, halves, [[0, 0], [5, 3]]),
    ]:
        (pairs, _), *_ = split(Aligner(left, 16, right, 16, "offsets").align(["a😀b"]))
        assert pairs == expected


@pytest.mark.parametrize("text", ["한국어 문장", "ﬁne ﬃ ½", "café é 😀😀 x", "👩‍👩‍👧 🇹🇷🇩🇪", "İstanbul"])
@pytest.mark.parametrize("name", NAMES)
def test_the_same_tokenizer_pairs_every_token_of_any_script(name, text):
    """Hangul of an uncased BERT is decomposed into letters, which share the syllable's place."""
    ids, sequences, _ = encoded(name, text)
    side = aligner(name, name, "offsets").student
    (pairs, _), *_ = split(aligner(name, name, "offsets").align([text]))
    solid = [[k, k] for k, number in enumerate(ids) if sequences[k] is not None and side.pieces[number]]
    assert [pair for pair in pairs if pair in solid] == solid and all(left == right for left, right in pairs)


@pytest.mark.parametrize("side", ["right", "left"])
def test_tokens_of_a_character_that_truncation_has_cut_are_not_paired(side):
    """Two of the teacher's four bytes are left, as many as the student has for the whole character."""
    one, two, three, four = bytes_of("😀")
    student, teacher = character_cut([(one, two), (three, four)]), character_cut([])
    teacher.truncation_side = side
    text = "ab😀" if side == "right" else "😀ab"
    (pairs, _), *_ = split(Aligner(student, 16, teacher, 4, "offsets").align([text]))
    assert pairs == ([[0, 0], [1, 1]] if side == "right" else [[2, 2], [3, 3]])
    (pairs, _), *_ = split(Aligner(student, 16, teacher, 6, "offsets").align([text]))
    assert len(pairs) == 2  # four bytes against two tokens


def test_one_byte_that_truncation_has_left_is_not_the_whole_character():
    one, two, three, four = bytes_of("😀")
    student, teacher = character_cut([(one, two), (three, four), (one + two, three + four)]), character_cut([])
    (pairs, _), *_ = split(Aligner(student, 16, teacher, 2, "offsets").align(["a😀"]))
    assert pairs == [[0, 0]]


@pytest.mark.parametrize(
    ("student", "teacher"), [("wordpiece", "unigram"), ("unigram", "prefix"), ("lowercase", "wordpiece")]
)
def test_equal_words_are_paired(student, teacher):
    """Case, an accent that is stripped and a space's mark that stands for nothing do not part what is the same."""
    texts = ["e\u0301 a", "İ a", "a\u200b a", "e a", "a\t a"]
    for text, (pairs, _) in zip(texts, split(aligner(student, teacher, "offsets").align(texts)), strict=True):
        spans, other = encoded(student, text)[2], encoded(teacher, text)[2]
        covered = {text[slice(*spans[s])].strip() for s, t in pairs if spans[s] != (0, 0) and other[t] != (0, 0)}
        assert "a" in covered, text


def test_special_tokens_match_by_role():
    def special(student, teacher, text):
        kinds = [encoded(name, text)[1] for name in (student, teacher)]
        (pairs, _), *_ = split(aligner(student, teacher, "offsets").align([text]))
        return [(s, t) for s, t in pairs if kinds[0][s] is None], [len(kind) - 1 for kind in kinds]

    found, lasts = special("wordpiece", "unigram", "zz")
    assert found == [(0, 0), tuple(lasts)]
    found, lasts = special("wordpiece", "end only", "zz")
    assert found == [tuple(lasts)], "no token at the beginning of the teacher's"
    assert special("wordpiece", "metaspace", "zz")[0] == [(0, 0)], "no token at the end of the teacher's"
    assert special("wordpiece", "lowercase", "zz")[0] == []
    found, lasts = special("wordpiece", "unigram", ("zz", "zz"))
    separator = encoded("wordpiece", ("zz", "zz"))[1].index(None, 1)
    assert found == [(0, 0), (separator, encoded("unigram", ("zz", "zz"))[1].index(None, 1)), tuple(lasts)]
    assert special("wordpiece", "unigram", ("", "zz"))[0][:2] == [(0, 0), (1, 1)]


def test_the_same_tokenizer_gives_every_token_itself():
    texts = ["the student places a text, again and again.", "  two  spaces\n\nand lines"]
    for name in NAMES:
        for pairs, _ in split(aligner(name, name, "offsets").align(texts)):
            assert pairs == [[i, i] for i in range(len(pairs))] and pairs


def test_overlap_shares_by_characters():
    text = "student of"
    own, other = encoded("wordpiece", text), encoded("unigram", text)
    (pairs, shares), *_ = split(aligner("wordpiece", "unigram", "overlap").align([text]))
    expected = {}
    for s, span in enumerate(own[2]):
        common = {
            t: len(set(range(*span)) & characters(text, 0, two)) for t, two in enumerate(other[2]) if two[1] > two[0]
        }
        blank = [t for t, token in enumerate(tokenizer("unigram").convert_ids_to_tokens(other[0])) if token == "▁"]
        common = {t: count for t, count in common.items() if count and t not in blank}
        expected |= {(s, t): count / sum(common.values()) for t, count in common.items()}
    expected |= {(0, 0): 1, (len(own[0]) - 1, len(other[0]) - 1): 1}
    assert dict(zip(map(tuple, pairs), shares, strict=True)) == pytest.approx(expected)


# -- edit distance and warping ---------------------------------------------------------------------------------------


def test_check_value_i():
    own, other = "un believ able token izer".split(), "un bel ie va ble token izer".split()
    path, cost = cheapest_paths(edit_distances(own, other)[:, :, None], np.array([5]), np.array([7]))
    assert path[::-1, 0].tolist() == [
        [0, 0],
        [0, 1],
        [0, 2],
        [0, 3],
        [1, 4],
        [2, 4],
        [3, 5],
        [4, 6],
    ] and cost.tolist() == [11]
    assert path[::-1, 0][one_to_one(path)[::-1, 0]].tolist() == [[3, 5], [4, 6]]


def warp(distances):
    """Cost and path of one pair of sequences, by loops; ties: both, then the own, then the other."""
    rows, columns = distances.shape
    total = np.full((rows, columns), 1 << 20)
    for i in range(rows):
        for j in range(columns):
            before = [total[a, b] for a, b in ((i - 1, j - 1), (i - 1, j), (i, j - 1)) if a >= 0 and b >= 0]
            total[i, j] = distances[i, j] + min(before, default=0)
    path = [(rows - 1, columns - 1)]
    while path[-1] != (0, 0):
        i, j = path[-1]
        ways = [(a, b) for a, b in ((i - 1, j - 1), (i - 1, j), (i, j - 1)) if a >= 0 and b >= 0]
        path.append(min(ways, key=lambda way: total[way]))
    return total[-1, -1], path


@settings(max_examples=50, deadline=None)
@given(st.lists(st.tuples(st.integers(1, 6), st.integers(1, 6)), min_size=1, max_size=5), st.integers(0, 10**6))
def test_batched_paths_equal_loops(shapes, seed):
    generator = np.random.default_rng(seed)
    sizes = np.array(shapes)
    distances = np.zeros((*sizes.max(axis=0), len(shapes)), dtype=np.int32)
    for number, (rows, columns) in enumerate(shapes):
        distances[:rows, :columns, number] = generator.integers(0, 3, (rows, columns))
    paths, costs = cheapest_paths(distances, sizes[:, 0], sizes[:, 1])
    alone = one_to_one(paths)
    for number, (rows, columns) in enumerate(shapes):
        cost, path = warp(distances[:rows, :columns, number])
        found = [tuple(step) for step in paths[:, number].tolist() if step != [-1, -1]]
        assert (costs[number], found) == (cost, path)
        single = [
            step for step in path if sum(s[0] == step[0] for s in path) == sum(s[1] == step[1] for s in path) == 1
        ]
        assert [tuple(step) for step in paths[alone[:, number], number].tolist()] == single


def test_edit_distances():
    assert edit_distances(["kitten", ""], ["sitting", "kit", ""]).tolist() == [[3, 3, 6], [7, 3, 0]]


def test_mined_is_the_path_of_the_plain_pieces(monkeypatch):
    texts = [*HARD, *architectures.TEXTS]
    monkeypatch.setattr(alignment_dtw, "_CELLS", 500)  # several groups
    found = {
        kind: split(Aligner(tokenizer("wordpiece"), 64, tokenizer("roberta"), 64, kind).align(texts))
        for kind in ("mined", "strict")
    }
    tables = [plain_pieces(Pieces(tokenizer(name))) for name in ("wordpiece", "roberta")]
    for text, (mined, _), (strict, _) in zip(texts, *found.values(), strict=True):
        (ids, *_), (other, *_) = encoded("wordpiece", text), encoded("roberta", text)
        own, theirs = tables[0][ids[1:-1]].tolist(), tables[1][other[1:-1]].tolist()
        path = warp(edit_distances(own, theirs))[1][::-1] if own and theirs else []
        single = [[i, j] for i, j in path if sum(a == i for a, _ in path) == 1 == sum(b == j for _, b in path)]
        assert mined[1:-1] == [[i + 1, j + 1] for i, j in single]
        assert strict[1:-1] == [[i + 1, j + 1] for i, j in single if own[i] == theirs[j]]


def test_plain_pieces():
    def of(name, *tokens):
        backend = tokenizer(name).backend_tokenizer
        pieces = plain_pieces(Pieces(tokenizer(name)))
        return [pieces[backend.token_to_id(token)] for token in tokens]

    assert of("wordpiece", "##a", "a", "[CLS]") == ["a", "a", "[CLS]"]
    assert of("unigram", "▁the", "▁", "<s>") == ["the", "", "<s>"]
    assert of("roberta", "Ġthe", "Ġ", "Ċ", "<s>") == ["the", "", "\n", "<s>"]
    halves = of("roberta", "Ä", "°")
    assert len(set(halves)) == 2 and "".join(halves).encode("utf-8", "surrogateescape").decode() == "İ"


# -- errors and figures ----------------------------------------------------------------------------------------------


def test_slow_tokenizers_and_short_limits_are_refused():
    class Slow:
        is_fast = False

    with pytest.raises(DistilvecError, match=r"\[teacher.model\].*Slow"):
        Aligner(tokenizer("wordpiece"), 64, Slow(), 64)
    with refused("student.max_length"):
        Aligner(tokenizer("wordpiece"), 2, tokenizer("unigram"), 64)
    with refused("teacher.max_length"):
        Aligner(tokenizer("wordpiece"), 64, tokenizer("unigram"), 4, paired=True)


def test_the_teachers_own_end_is_cut():
    left = architectures.unigram()
    left.truncation_side = "left"
    text = "a text of the student a text of the student"
    found = Aligner(tokenizer("unigram"), 64, left, 8).align([text])
    own, other = tokenizer("unigram")(text)["input_ids"], left(text, truncation=True, max_length=8)["input_ids"]
    assert [own[s] for s, _ in found.pairs] == [other[t] for _, t in found.pairs] and found.pairs[1][0] == len(own) - 7


def test_rates():
    report = {"pairs": 5, "special_pairs": 2, "student_tokens": 8, "student_special": 2, "student_mapped": 3}
    rates = mapping_rates(report | {"teacher_tokens": 20, "teacher_special": 4, "teacher_mapped": 4})
    assert rates == {
        "student_rate": 62.5,
        "student_rate_ordinary": 50.0,
        "teacher_rate": 30.0,
        "teacher_rate_ordinary": 25.0,
    }
    counted = aligner("wordpiece", "unigram", "offsets").align(["the text", "zz"]).report
    assert counted["student_special"] == counted["special_pairs"] == 4 and json.dumps(counted)
    assert counted["pairs"] == counted["student_mapped"] + 4 == counted["teacher_mapped"] + 4


def levenshtein(one, two):
    row = list(range(len(two) + 1))
    for i, a in enumerate(one, 1):
        above, row = row, [i]
        for j, b in enumerate(two, 1):
            row.append(min(above[j] + 1, row[-1] + 1, above[j - 1] + (a != b)))
    return row[-1]


@pytest.mark.parametrize(("student", "teacher"), [("wordpiece", "metaspace"), ("roberta", "wordpiece")])
def test_mined_types_are_each_others_nearest_at_their_first_place(student, teacher):
    """As EMO's code describes it: the distinct tokens as the vocabularies spell them, nearest in both directions."""
    texts = [*architectures.TEXTS[:8], *HARD, "the text the text the student", "A"]
    ours, theirs = tokenizer(student), tokenizer(teacher)
    for text, (pairs, _) in zip(texts, split(aligner(student, teacher, "mined_types").align(texts)), strict=True):
        sides = []
        for one in (ours, theirs):
            ids = one(text, truncation=True, max_length=64)["input_ids"]
            special = {*one.all_special_ids} - {one.unk_token_id}
            names = {}
            for place, number in enumerate(ids):
                if number not in special:
                    names.setdefault(one.convert_ids_to_tokens(number), place)
            sides.append(names)
        own, other = sides
        expected = set()
        for piece, place in own.items():
            nearest = min(other, key=lambda name: levenshtein(piece, name), default=None)
            if nearest is not None and min(own, key=lambda name: levenshtein(name, nearest)) == piece:
                expected.add((place, other[nearest]))
        found = {tuple(pair) for pair in pairs}
        assert {pair for pair in found if pair[0] in own.values()} == expected
