"""Vocabularies chosen on texts: counted exactly, cut without loss, trained, mixed; and text comes back from each."""

from __future__ import annotations

import json
import random
import unicodedata

import architectures
import numpy as np
import pytest
from refusals import refused
from samples import make_texts
from transformers import AutoTokenizer

from distilvec.config.student import VocabularySection
from distilvec.core.model_name import ModelName
from distilvec.models.load import load_tokenizer
from distilvec.vocabulary.choose import choose
from distilvec.vocabulary.edit import alphabet, fast_tokenizer, swap_ids
from distilvec.vocabulary.pieces import Pieces
from distilvec.vocabulary.train import train_tokenizer
from distilvec.vocabulary.trim import Words, hybrid, trim, unreachable, unseen

KINDS = ["bert", "xlm_roberta", "roberta", "modernbert", "gemma3", "qwen3", "mistral", "t5"]
ENGLISH = [
    *make_texts(200),
    *(
        "A student learns to place a text.",
        "raise ValueError, or don't  raise",
        "the students learn, the teachers teach",
        "\ta\nb",
    ),
]
STEMS, ENDINGS = (
    "ev göz kitap çocuk gün su ağaç yol kuş".split(),
    "ler lerimiz lerimizden de den in imiz iniz leri".split(),
)
TURKISH = [
    *(f"{stem}{ending} {other}" for stem in STEMS for ending in ENDINGS for other in STEMS),
    "çok güzel bir gün, evlerimizden",
]
HARD = [
    "naïve 中文 \u0131ğ 😀",
    "e\u0301 combining",
    "مرحبا بالعالم",
    "ภาษาไทย",
    "አማርኛ ጽሑፍ",
    "I\u0307stanbul \u0131",
    "a\u200bb",
]
SCRIPTS = [
    "👩‍👩‍👧‍👦, 👨🏽‍🚀 and 🏳️‍🌈 🇹🇷 1️⃣",
    unicodedata.normalize("NFD", "crème brûlée, Ấn Độ, İzmir"),
    "I\u0130\u0131i \u0130stanbul'da \u0131l\u0131k IŞIK",
    "مَرْحَبًا بِالعَالَم ٣",
    "他们在河边散步。",
    "ภาษาไทยที่นี่ น้ำ",
    "የአማርኛ ጽሑፍ፡ ሰላም።",
    "x\ty\nz  two \u200b zero\u00a0width",
]


@pytest.fixture(scope="module")
def pieces(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tokenizers")
    made = {}
    for name in KINDS:
        path = getattr(architectures, name)(folder / name)
        made[name] = Pieces(load_tokenizer(ModelName(str(path))), name)
    made["bpe with bytes"] = with_bytes(made["gemma3"])
    made["unigram with bytes"] = Pieces(
        train_tokenizer(lambda: [*ENGLISH, *TURKISH] * 5, "unigram", 420, made["gemma3"]), "unigram"
    )
    return made


def with_bytes(pieces):
    """A metaspace BPE tokenizer with byte tokens behind its own, as Gemma's and Mistral's."""
    state = json.loads(json.dumps(pieces.state))
    state["model"]["vocab"] |= {f"<0x{value:02X}>": len(pieces.tokens) + value for value in range(256)}
    state["model"]["byte_fallback"] = True
    state["decoder"]["decoders"].insert(1, {"type": "ByteFallback"})
    return Pieces(fast_tokenizer(state, pieces.tokenizer), "bpe with bytes")


def back(tokenizer, text):
    return tokenizer.decode(tokenizer(text)["input_ids"], skip_special_tokens=True, clean_up_tokenization_spaces=False)


def smaller_and_mixed(old):
    """A vocabulary cut to texts in English, and one with 25 tokens of Turkish."""
    english, turkish = {"en": Words(ENGLISH, old)}, Words(TURKISH * 3, old)
    cut = trim(old, english, letters="seen").tokenizer
    return cut, hybrid(
        old, turkish, lambda: TURKISH * 3, english, 25, trim(old, english).figures["always"] + 35
    ).tokenizer


@pytest.mark.parametrize("name", ["roberta", "modernbert", "qwen3", "bpe with bytes", "unigram with bytes"])
def test_tokenizers_of_bytes_give_every_script_back(pieces, name):
    """Byte for byte, whatever texts the vocabulary was chosen on."""
    for tokenizer in (pieces[name].tokenizer, *smaller_and_mixed(pieces[name])):
        for text in [*SCRIPTS, *HARD, *ENGLISH, *TURKISH]:
            assert back(tokenizer, text) == text


@pytest.mark.parametrize("kind", ["bpe", "unigram"])
@pytest.mark.parametrize("name", ["bert", "roberta", "gemma3", "xlm_roberta", "t5"])
def test_trained_tokenizers_give_back_scripts_that_they_never_saw(pieces, name, kind):
    """What the old tokenizer does to letters is done to them, and that alone; only a space at the beginning is lost."""
    old = pieces[name]
    made = train_tokenizer(lambda: [*ENGLISH, *TURKISH] * 5, kind, 400, old)
    normalizer = None if old.kind == "metaspace" and name == "gemma3" else old.plain.normalizer
    for text in [*SCRIPTS, *HARD, *ENGLISH, *TURKISH]:
        normal = normalizer.normalize_str(text) if normalizer else text
        assert back(made, text) == normal.removeprefix(" ")
    assert back(made, " a text") == "a text"


def test_wordpiece_gives_words_back_as_far_as_its_alphabet_goes(pieces):
    old = pieces["bert"]
    trained = train_tokenizer(lambda: [*ENGLISH, *TURKISH, *SCRIPTS] * 5, "wordpiece", 480, old)
    for tokenizer in (old.tokenizer, *smaller_and_mixed(old), trained):
        known, found = set(tokenizer.get_vocab()), 0
        for text in [*SCRIPTS, *HARD, *ENGLISH, *TURKISH]:
            normal = old.plain.normalizer.normalize_str(text)
            for word, _ in old.plain.pre_tokenizer.pre_tokenize_str(normal):
                tokens = tokenizer.tokenize(word)
                if {word[0], *("##" + letter for letter in word[1:])} <= known:
                    assert "".join(token.removeprefix("##") for token in tokens) == word
                    found += not word.isascii()
                else:
                    assert tokenizer.unk_token in tokens
    assert found > 30, "of the last one"


@pytest.mark.parametrize("name", ["xlm_roberta", "gemma3", "mistral", "t5"])
def test_tokenizers_of_letters_give_back_what_they_gave_before(pieces, name):
    old = pieces[name]
    cut, mixed = smaller_and_mixed(old)
    everything = trim(old, {"en": Words(ENGLISH, old)}).tokenizer
    for text in [*SCRIPTS, *HARD, *ENGLISH, *TURKISH]:
        before = back(old.tokenizer, text)
        assert back(everything, text) == before
        if old.unknown not in old.tokenizer(text)["input_ids"]:
            assert back(mixed, text) == before
            assert cut.unk_token_id in cut(text)["input_ids"] or back(cut, text) == before


@pytest.mark.parametrize("name", ["bert", "xlm_roberta", "gemma3"])
def test_texts_in_a_script_that_the_tokenizer_does_not_know_are_refused(pieces, name):
    old, amharic = pieces[name], ["የአማርኛ ጽሑፍ", "ሰላም ለዓለም እንዴት ነህ"]
    with refused("student.vocabulary.kind", "100%"):
        trim(old, {"am": Words(amharic, old)})
    trim(old, {"en": Words([*ENGLISH, *amharic], old)})
    trim(pieces["roberta"], {"am": Words(amharic, pieces["roberta"])})


def test_added_tokens_that_the_model_does_not_hold(pieces):
    """Behind a Unigram model's own pieces come tokens that were added later; new ones do not take their ids."""
    added = load_tokenizer(ModelName(pieces["xlm_roberta"].tokenizer.name_or_path))
    added.add_tokens(["<new>"])
    added.add_special_tokens({"cls_token": "<cls>"})
    added.backend_tokenizer.post_processor = architectures.template(added.backend_tokenizer, "<cls> $A </s>")
    old = Pieces(added)
    assert len(old.state["model"]["vocab"]) < len(old.tokens)
    for tokenizer in (*smaller_and_mixed(old), swap_ids(added, added.cls_token_id, 1)):
        assert None not in Pieces(tokenizer).tokens
        tokens = tokenizer.convert_ids_to_tokens(tokenizer("a <new> text")["input_ids"])
        assert (tokens[0], tokens[-1]) == ("<cls>", "</s>") and "<new>" in tokens
        assert back(tokenizer, "a student learns") == "a student learns"
    assert tokenizer.cls_token_id == 1


def ids(tokenizer, texts):
    return [tokenizer(text, add_special_tokens=False)["input_ids"] for text in texts]


@pytest.mark.parametrize("name", KINDS)
def test_words_count_what_whole_texts_hold(pieces, name):
    texts = [*ENGLISH, *TURKISH, *HARD, *ENGLISH, " begins with a space", "two  spaces", ""]
    expected = np.zeros(len(pieces[name].tokens), dtype=np.int64)
    for row in ids(pieces[name].tokenizer, texts):
        np.add.at(expected, row, 1)
    words = Words(texts, pieces[name])
    np.testing.assert_array_equal(words.tokens(pieces[name]), expected)
    assert words.inner or name in ("gemma3", "mistral"), "only their tokens reach across spaces"


@pytest.mark.parametrize("name", KINDS)
def test_trimming_to_what_is_used_changes_no_token_of_the_texts(pieces, name):
    old = pieces[name]
    found = trim(old, {"en": Words(ENGLISH, old)})
    assert found.figures["tokens"] == len(found.tokenizer) < len(old.vocabulary)
    names = [found.tokenizer.convert_ids_to_tokens(row) for row in ids(found.tokenizer, ENGLISH)]
    assert names == [old.tokenizer.convert_ids_to_tokens(row) for row in ids(old.tokenizer, ENGLISH)]
    assert found.tokenizer(ENGLISH)["input_ids"] and sorted(found.tokenizer.get_vocab().values()) == list(
        range(len(found.tokenizer))
    )


@pytest.mark.parametrize("name", KINDS)
def test_trimming_to_a_size_keeps_what_is_needed(pieces, name):
    old = pieces[name]
    words = {"en": Words(ENGLISH, old), "tr": Words(TURKISH, old)}
    whole = trim(old, words)
    size = (whole.figures["always"] + whole.figures["tokens"]) // 2
    found = trim(old, words, size, "all")
    assert whole.figures["always"] < size == len(found.tokenizer) < whole.figures["tokens"]
    new = Pieces(found.tokenizer)
    assert {old.tokens[number] for number in (*alphabet(old), *old.special, *old.added)} <= set(new.tokens)
    assert not {token for token in unreachable(new) if token not in unreachable(old)}


def possible(old, words, trimmed):
    """How many tokens a trimmed vocabulary has with those that new texts of the same letters may use."""
    used = {int(number) for part in words.values() for number in np.flatnonzero(part.tokens(old))}
    kept = {old.vocabulary[token] for token in trimmed.tokenizer.get_vocab()}
    return len(kept) + len(unseen(old, used, kept))


@pytest.mark.parametrize("name", KINDS)
def test_the_size_of_a_trimmed_vocabulary_is_a_wish(pieces, name):
    """More than there are in the letters of the texts: all of these. Less than the letters: these, and a note each."""
    old = pieces[name]
    words = {"en": Words(ENGLISH, old), "tr": Words(TURKISH, old)}
    whole, seen = trim(old, words), trim(old, words, letters="seen")
    assert not whole.notes and not seen.notes
    for letters, expected in ((None, whole), ("all", whole), ("seen", seen)):
        found = trim(old, words, len(old.vocabulary) + 1000, letters)
        tokens = len(found.tokenizer)
        assert tokens == possible(old, words, expected) >= len(expected.tokenizer)
        assert set(expected.tokenizer.get_vocab()) <= set(found.tokenizer.get_vocab())
        assert len(found.notes) == 1 and f"{tokens:,} tokens instead of" in found.notes[0]
    for letters in (None, "all", "seen"):
        found = trim(old, words, 3, letters)
        assert len(found.tokenizer) == seen.figures["always"]
        assert f"{len(found.tokenizer):,} tokens instead of 3: special tokens, bytes and letters" in found.notes[-1]
        gone = seen.figures["always"] < whole.figures["always"] and letters != "seen"
        assert len(found.notes) == 1 + gone and (not gone or "letters that the texts never use" in found.notes[0])


@pytest.mark.parametrize("name", KINDS)
def test_a_larger_size_is_filled_with_tokens_of_the_same_letters(pieces, name):
    """New texts may use them; the texts themselves are split as before."""
    old = pieces[name]
    words = {"en": Words(ENGLISH, old)}
    used = trim(old, words, letters="seen")
    size = (len(used.tokenizer) + possible(old, words, used) + 1) // 2
    filled = trim(old, words, size, "seen")
    assert len(filled.tokenizer) == size and not filled.notes
    assert [filled.tokenizer.tokenize(text) for text in ENGLISH] == [old.tokenizer.tokenize(text) for text in ENGLISH]
    more = set(filled.tokenizer.get_vocab()) - set(used.tokenizer.get_vocab())
    assert not more & unreachable(old)
    letters = set("".join(ENGLISH).casefold()) | set("".join(ENGLISH))
    for token in more:
        surface = old.surface(old.vocabulary[token])
        assert surface is not None and set(surface.text.decode("utf-8", "ignore")) <= letters


@pytest.mark.parametrize("kind", ["bpe", "unigram", "wordpiece"])
def test_a_larger_size_is_filled_with_words_of_the_texts_language(pieces, kind):
    """Of two languages with the same letters, a vocabulary of both keeps the words of the language of a few texts."""
    draw = random.Random(0)

    def sentences(syllables):
        words = ["".join(draw.choices(syllables, k=draw.randint(2, 3))) for _ in range(600)]
        return [" ".join(draw.choices(words, k=6)) for _ in range(400)]

    own, other = sentences(["kar", "ola", "mik", "usa"]), sentences(["rak", "alo", "kim", "asu"])
    old = Pieces(train_tokenizer(lambda: [*own, *other], kind, 500, pieces["bert"]))
    words = {"own": Words(own[:15], old)}
    used = trim(old, words, letters="seen")
    filled = trim(old, words, (len(used.tokenizer) + possible(old, words, used)) // 2, "seen")
    kept = set(filled.tokenizer.get_vocab())

    def lost(texts):
        return np.mean([token not in kept for text in texts for token in old.tokenizer.tokenize(text)])

    assert lost(own[200:]) < lost(other[200:]) / 3


@pytest.mark.parametrize("name", ["bert", "gemma3"])
def test_letters_make_way_for_tokens_of_the_texts(pieces, name):
    """Without a stated choice the alphabet is at most half of a size that everything together does not fit."""
    old = pieces[name]
    words = {"tr": Words(TURKISH, old)}
    whole, seen = trim(old, words), trim(old, words, letters="seen")
    letters, most = whole.figures["always"], possible(old, words, seen)
    assert seen.figures["always"] < letters
    for size in (letters - 1, letters + 1):
        found = trim(old, words, size)
        assert len(found.tokenizer) == min(size, most) and "letters that the texts never use" in found.notes[0]
        assert f"the old alphabet alone has {letters:,} tokens, of {size:,} in all" in found.notes[0]
    stated = trim(old, words, letters + 1, "all")
    assert len(stated.tokenizer) == letters + 1 and not stated.notes
    assert trim(old, words, len(whole.tokenizer)).tokenizer.get_vocab() == whole.tokenizer.get_vocab()


def test_letters_that_the_texts_lack_may_go(pieces):
    old = pieces["bert"]
    words = {"en": Words(ENGLISH, old)}
    everything, seen = trim(old, words), trim(old, words, letters="seen")
    assert len(seen.tokenizer) < len(everything.tokenizer)
    for tokenizer in (everything.tokenizer, seen.tokenizer):
        assert [tokenizer.tokenize(text) for text in ENGLISH] == [old.tokenizer.tokenize(text) for text in ENGLISH]


def test_languages_count_alike_however_long_their_texts_are(pieces):
    old = pieces["bert"]
    few, many = Words(["turkish"], old), Words(ENGLISH * 500, old)
    size = trim(old, {"tr": few, "en": many}).figures["always"] + 4
    kept = set(trim(old, {"tr": few, "en": many}, size, "all").tokenizer.get_vocab())
    assert set(old.tokenizer.tokenize("turkish")) <= kept | {old.tokens[number] for number in alphabet(old)}


@pytest.mark.parametrize("kind", ["bpe", "unigram", "wordpiece"])
@pytest.mark.parametrize("name", ["bert", "roberta", "gemma3"])
def test_a_trained_tokenizer_has_the_old_special_tokens_and_gives_text_back(pieces, name, kind, tmp_path):
    old = pieces[name]
    texts = [*ENGLISH, *TURKISH, *HARD] * 5
    made = train_tokenizer(lambda: texts, kind, 420, old)
    assert len(made) == 420 and made.special_tokens_map == old.tokenizer.special_tokens_map
    made.save_pretrained(tmp_path)
    again = AutoTokenizer.from_pretrained(tmp_path)
    for text in texts[: 1 + len(ENGLISH) + len(TURKISH) + len(HARD)]:
        encoded = again(text)["input_ids"]
        theirs = old.tokenizer(text)["input_ids"]
        specials = [again.convert_ids_to_tokens(number) for number in encoded if number in again.all_special_ids]
        assert [token for token in specials if token != again.unk_token] == [
            token
            for token in old.tokenizer.convert_ids_to_tokens(theirs)
            if token in old.tokenizer.all_special_tokens and token != old.tokenizer.unk_token
        ]
        if kind != "wordpiece":
            normal = (
                old.plain.normalizer.normalize_str(text) if old.plain.normalizer and old.kind != "metaspace" else text
            )
            assert again.decode(encoded, skip_special_tokens=True).split() == normal.split(), text


@pytest.mark.parametrize("kind", ["bpe", "unigram", "wordpiece"])
@pytest.mark.parametrize("name", ["bert", "roberta", "gemma3"])
def test_the_size_of_a_trained_tokenizer_is_a_wish(pieces, name, kind):
    """Texts that give fewer tokens give fewer; special tokens, bytes and letters of the texts always stay."""
    old, texts = pieces[name], [*ENGLISH, *TURKISH, *SCRIPTS]
    for size, words in ((1, "always stay"), (30, "always stay"), (60_000, "the texts use no more")):
        found = choose(VocabularySection(kind=kind, size=size), old, {"": lambda: iter(texts)})
        tokens = len(found.tokenizer)
        assert found.figures["tokens"] == tokens and (tokens > size) == (size < 100)
        assert len(found.notes) == 1 and found.notes[0].startswith(f"{tokens:,} tokens instead of {size:,}: ")
        assert words in found.notes[0]
        unknown = found.tokenizer.unk_token_id
        assert kind == "wordpiece" or all(unknown not in row for row in ids(found.tokenizer, texts))


@pytest.mark.parametrize("name", KINDS)
def test_a_language_gets_tokens_of_its_own_and_the_others_keep_theirs(pieces, name):
    old = pieces[name]
    always = trim(old, {"tr": Words(TURKISH, old)}).figures["always"]
    others = {"en": Words(ENGLISH, old), "x": Words(HARD, old)}
    found = hybrid(old, Words(TURKISH * 3, old), lambda: TURKISH * 3, others, 25, always + 35, "all")
    assert len(found.tokenizer) == always + 35 and found.figures["target"] == 25 and found.figures["others"] == 10
    new = Pieces(found.tokenizer)
    assert None not in new.tokens and found.figures["unreachable"] == 0
    before = sum(map(len, ids(trim(old, {"none": Words(["x"], old)}).tokenizer, TURKISH)))
    assert sum(map(len, ids(found.tokenizer, TURKISH))) < before


@pytest.mark.parametrize("name", KINDS)
def test_share_and_size_of_a_hybrid_are_wishes(pieces, name):
    old, english = pieces[name], {"en": Words(ENGLISH, pieces[name])}
    always = trim(old, {"tr": Words(TURKISH, old)}).figures["always"]
    few = hybrid(old, Words(["ev"], old), lambda: ["ev"], english, 2000, always + 4000)
    target, size = few.notes
    assert target == f"{few.figures['target']:,} tokens of the target language instead of 2,000: its texts give no more"
    assert size == f"{len(few.tokenizer):,} tokens instead of {always + 4000:,}: the texts use no more"
    assert few.figures["target"] < 2000 and few.figures["others"] > 0
    alone = hybrid(old, Words(TURKISH * 3, old), lambda: TURKISH * 3, {"en": Words(["a"], old)}, 25, always + 300)
    assert alone.figures["target"] == 25 and alone.notes[-1].endswith("the texts use no more")
    for size in (always + 20, 40, 3):  # letters that no text uses make way, then the share
        found = hybrid(old, Words(TURKISH * 3, old), lambda: TURKISH * 3, english, 25, size)
        tokens = len(found.tokenizer)
        assert tokens == found.figures["always"] + found.figures["target"] + found.figures["others"]
        assert found.notes and (tokens == size or found.notes[-1].startswith(f"{tokens:,} tokens instead of {size:,}"))
        if found.figures["target"] < 25:
            assert any("left by special tokens and letters" in note for note in found.notes)
        assert not unreachable(Pieces(found.tokenizer)) - unreachable(old)


@pytest.mark.parametrize("name", ["xlm_roberta", "t5", "unigram with bytes"])
def test_a_language_of_many_letters_gets_tokens_of_its_own(pieces, name):
    """More letters than the share and the old alphabet together, as Chinese has."""
    old = pieces[name]
    texts = ["".join(chr(0x4E00 + start + offset) for offset in range(30)) for start in range(0, 600, 3)]
    english = {"en": Words(ENGLISH, old)}
    always = trim(old, english).figures["always"]
    found = hybrid(old, Words(texts, old), lambda: iter(texts), english, 20, always + 40)
    assert found.figures["tokens"] == len(found.tokenizer) and found.figures["target"] > 0
